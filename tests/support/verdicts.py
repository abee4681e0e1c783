"""How a runner tells what has passed and what has failed: lines that begin alike, by which tests/support/failures finds them again."""

import time
import traceback


def ok(name, began, told=""):
    _line("ok  ", name, began, told)


def skip(name, began, reason):
    _line("skip", name, began, reason)


def fail(name, began, reason=None):
    """Without a `reason`, where the exception comes from that is being handled."""
    _line("FAIL", name, began)
    print(f"{(reason or traceback.format_exc()).rstrip()}\n", flush=True)


def _line(verdict, name, began, told=""):
    """`began` is of the monotonic clock."""
    print(f"{verdict}  {time.monotonic() - began:5.1f} s  {name}{f': {told}' if told else ''}", flush=True)
