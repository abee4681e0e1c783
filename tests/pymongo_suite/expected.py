"""pytest plugin: compares the outcome of each test with the list of expected failures.

A listed test that fails counts as xfailed; a listed test that passes fails the run, so that the list only shrinks,
unless its reason ends with `(sometimes)`.
The lists' lines are those of tests/support/expected_failures.py.
"""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from expected_failures import read_list  # noqa: E402


class Expected:
    def __init__(self, expected):
        self.expected = expected
        self.failed = set()
        self.collected = set()
        self.skipped = set()

    def pytest_collection_modifyitems(self, items):
        self.collected.update(item.nodeid for item in items)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        reason = self.expected.get(item.nodeid)
        if reason is None:
            return
        report = outcome.get_result()
        if report.failed:
            self.failed.add(item.nodeid)
            report.outcome = "skipped"
            report.wasxfail = reason
        elif report.skipped:
            self.skipped.add(item.nodeid)
        elif report.when == "call" and item.nodeid not in self.failed and not reason.endswith("(sometimes)"):
            report.outcome = "failed"
            report.longrepr = f"[unexpected pass] take it off the list of expected failures: {reason}"

    def pytest_terminal_summary(self, terminalreporter):
        # Only a whole run can say that an entry names a test that does not exist or that never runs.
        if os.environ.get("SHEAF_SUITE_PARTIAL"):
            return
        for test in sorted((set(self.expected) - self.collected) | self.skipped):
            terminalreporter.write_line(f"stale entry in the list of expected failures: {test}")


def pytest_configure(config):
    config.pluginmanager.register(Expected(read_list(os.environ["SHEAF_EXPECTED_FAILURES"])))
