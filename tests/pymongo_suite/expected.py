"""pytest plugin: compares the outcome of each test with the list of expected failures.

A listed test that fails counts as xfailed; a listed test that passes fails the run, so that the list only shrinks,
unless its reason ends with `(sometimes)`.
The list's lines are `<test id> | <reason>`. A reason that begins with `[no-dns]`, `[unreachable]` or `[container]`
holds only on a machine that cannot resolve public names, that refuses connections to nowhere, or that is a container.
"""

import os
import pathlib
import socket

import pytest


def public_dns():
    try:
        socket.getaddrinfo("localhost.test.build.10gen.cc", None)
        return True
    except OSError:
        return False


def refuses_at_once():
    """Whether the network refuses addresses that nobody has, where others let a client wait."""
    try:
        socket.create_connection(("192.0.2.1", 27017), 0.3).close()
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def read_list(path):
    conditions = {
        "[no-dns]": lambda: not public_dns(),
        "[unreachable]": refuses_at_once,
        "[container]": lambda: pathlib.Path("/.dockerenv").exists() or bool(os.environ.get("KUBERNETES_SERVICE_HOST")),
    }
    holds = {}
    expected = {}
    for line in pathlib.Path(path).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        test, _, reason = line.partition(" | ")
        condition = next((c for c in conditions if reason.startswith(c)), None)
        if condition:
            if condition not in holds:
                holds[condition] = conditions[condition]()
            if not holds[condition]:
                continue
        expected[test.strip()] = reason.strip()
    return expected


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
