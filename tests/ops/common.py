"""What the checks of operations share."""

import subprocess
import time

import pymongo
from pymongo.errors import PyMongoError

OUT_OF_DISK_SPACE = 14031


class Skip(Exception):
    """This check cannot run here."""


def connect(server):
    return pymongo.MongoClient(server.uri, retryWrites=False, serverSelectionTimeoutMS=60_000)


def until(what, condition):
    deadline = time.monotonic() + 60
    while True:
        try:
            if condition():
                return
        except PyMongoError:
            pass
        assert time.monotonic() < deadline, f"no {what} in a minute"
        time.sleep(0.05)


def initiate(server):
    """A set of one."""
    uri = f"mongodb://127.0.0.1:{server.port}/?directConnection=true"
    with pymongo.MongoClient(uri) as first:
        first.admin.command("replSetInitiate", {"_id": "rs", "members": [{"_id": 0, "host": f"127.0.0.1:{server.port}"}]})
        until("a primary", lambda: first.admin.command("hello")["isWritablePrimary"])


def write_error(collection, number, text="x" * 100_000):
    try:
        collection.insert_one({"_id": number, "text": text})
    except PyMongoError as error:
        return getattr(error, "code", None) or str(error)
    return None


def ends_with(command, code, *texts, **options):
    """Runs a server that must end by itself with this exit code and these words."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    output = done.stdout + done.stderr
    assert done.returncode == code, f"exit code {done.returncode}, not {code}:\n{output}"
    for text in texts:
        assert text in output, f"no {text!r} in:\n{output}"
