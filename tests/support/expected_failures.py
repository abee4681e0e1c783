"""Lists of expected failures: `<test id> | <reason>`, one per line.

A reason begins with the conditions under which the line holds, if there are any: `[single]` and `[set]` name what the
tests run against; `[no-dns]`, `[unreachable]` and `[container]` hold on a machine that cannot resolve public names, that
refuses connections to nowhere, or that is a container. A reason that ends with `(sometimes)` lets the test pass, too.
"""

import os
import pathlib
import re
import socket


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


def in_container():
    return pathlib.Path("/.dockerenv").exists() or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


CONDITIONS = {"no-dns": lambda: not public_dns(), "unreachable": refuses_at_once, "container": in_container}


def read_list(path, deployment=None):
    """The lines that hold here, as {test id: reason}; `deployment` is "single", "set", "sharded" or None where lists name neither."""
    known = {name: deployment == name for name in ("single", "set", "sharded")}
    expected = {}
    for line in pathlib.Path(path).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        test, _, reason = line.partition(" | ")
        names = re.findall(r"\[([^]]+)\]", re.match(r"\s*(\[[^]]+\]\s*)*", reason).group())
        for name in names:
            if name not in known:
                known[name] = CONDITIONS[name]()
        if all(known[name] for name in names):
            expected[test.strip()] = reason.strip()
    return expected
