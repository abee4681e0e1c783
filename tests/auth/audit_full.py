"""The audit log where its disk is full: what cannot be written down is not done, and what is promised to one is taken by nobody else.

The file system is a small one in memory, which needs root.
"""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import threading

import pymongo
from audit import PASSWORD, events
from bson.raw_bson import RawBSONDocument
from common import command_fails, connect
from members import wait_for
from sheaf_process import Server

FULL = 14031


@contextlib.contextmanager
def small_disk(*flags):
    """A server whose audit log is on a disk of 2 MB; the path of that."""
    folder = tempfile.mkdtemp(prefix="sheaf-audit-full-")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "sheaf", folder], capture_output=True)
    if mounted.returncode != 0:
        os.rmdir(folder)
        print("  not root: no small file system, left out", flush=True)
        yield None, None
        return
    try:
        path = pathlib.Path(folder) / "audit.json"
        with Server(args=["--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", str(path), *flags]) as server:
            yield server, path
    finally:
        subprocess.run(["umount", folder], check=True)
        os.rmdir(folder)


def fill(path):
    """Takes what is left of the disk; what the server has taken in advance stays."""
    with open(path.parent / "filler", "wb", buffering=0) as filler:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(b"x" * size)


def until_full(action):
    """Repeats it, with ever smaller things, until it is refused for the disk; gives how often it was done."""
    done = 0
    for size in (8000, 100, 1):
        for _ in range(4000):
            try:
                action(size)
            except pymongo.errors.OperationFailure as error:
                if error.code == FULL:
                    break
                assert error.code == 13, error
            done += 1
        else:
            raise AssertionError("nothing was refused")
    return done


def a_full_disk():
    """Commands are refused and do nothing, until there is room again."""
    with small_disk() as (server, path):
        if server is None:
            return
        with connect(server) as client:
            client.lib.create_collection("before")
            fill(path)
            # There is room for what has been taken before.
            said = until_full(lambda size: client.admin.command("logApplicationMessage", "x" * size))
            assert len(events(path, "applicationMessage")) == said
            for made in range(400):
                try:
                    client.lib.command("create", f"c{made}")
                except pymongo.errors.OperationFailure as error:
                    assert error.code == FULL, error
                    break
            else:
                raise AssertionError("nothing was refused")
            assert len(client.lib.list_collection_names()) == made + 1
            assert len(events(path, "createCollection")) == made + 1
            assert client.lib.before.count_documents({}) == 0
            os.remove(path.parent / "filler")
            client.lib.create_collection("after")


def promised_room():
    """A command that was let run has its room, whoever fills the disk meanwhile; and the end of the server has."""
    with small_disk("--auth") as (server, path):
        if server is None:
            return
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        worker, root, stranger = connect(server, "root", PASSWORD), connect(server, "root", PASSWORD), connect(server)
        for client in (worker, root):
            client.admin.command("usersInfo", 1)
        stranger.admin.command("ping")
        root.admin.command("fsync", lock=True)
        answered = []
        thread = threading.Thread(target=lambda: answered.append(worker.admin.command("createUser", "ann", pwd="a", roles=["read"])))
        thread.start()
        working = {"command.createUser": "ann"}
        wait_for("the command is at work", lambda: list(root.admin.aggregate([{"$currentOp": {"allUsers": True}}, {"$match": working}])))
        fill(path)
        assert until_full(lambda size: stranger.lib.command("find", "c", filter={"x": "y" * size})) > 10
        # Nor does a new file cost anybody his room, where it has none.
        command_fails(37, root.admin, "logRotate", "audit", words="No space left")
        root.admin.command("fsyncUnlock")
        thread.join(120)
        assert answered and answered[0]["ok"] == 1, answered
        (made,) = [event for event in events(path, "createUser") if event["param"]["user"] == "ann"]
        assert made["result"] == 0, made
        assert server.stop() == 0, server.log_tail()
        assert events(path, "shutdown"), path.read_text()[-2000:]


def long_events():
    """Values that take many times their bytes as text, many indexes, many roles: room is taken for what is written."""
    with small_disk("--auth") as (server, path):
        if server is None:
            return
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(server, "root", PASSWORD)
        # So many keys of the lowest value, without names.
        fields = b"\xff\x00" * 130_000
        custom = RawBSONDocument((len(fields) + 5).to_bytes(4, "little") + fields + b"\0")
        command_fails(FULL, root.admin, "createUser", "ann", pwd="a", roles=["read"], customData=custom)
        # The user of every event has so many roles.
        roles = [f"r{at}{'x' * 100}" for at in range(150)]
        for role in roles:
            root.admin.command("createRole", role, privileges=[], roles=[])
        root.admin.command("createUser", "ann", pwd=PASSWORD, roles=["root", *roles])
        ann = connect(server, "ann", PASSWORD)
        ann.lib.c.insert_one({"a": 1})
        fill(path)
        indexes = [{"key": {f"k{at}": 1}, "name": f"i{at}"} for at in range(20)]

        def indexes_come_and_go(_):
            ann.lib.command("createIndexes", "c", indexes=indexes)
            ann.lib.command("dropIndexes", "c", index="*")

        until_full(indexes_come_and_go)
        until_full(lambda size: ann.lib.command("create", f"made{os.urandom(8).hex()}"))
        os.remove(path.parent / "filler")
        (path.parent / "audit.json").rename(path.parent / "old")
        ann.admin.command("logRotate", "audit")
        os.remove(path.parent / "old")
        ann.lib.command("create", "between")
        fill(path)
        # One command makes many collections.
        places = [{"ns": f"lib.many{at}"} for at in range(200)]
        inserts = [{"insert": at, "document": {"_id": at}} for at in range(200)]
        answer = ann.admin.command("bulkWrite", 1, ops=inserts, nsInfo=places, ordered=False)
        assert answer["nErrors"] > 0, answer
        made = [name for name in ann.lib.list_collection_names() if name.startswith("many")]
        told = [event for event in events(path, "createCollection") if ".many" in event["param"]["ns"]]
        assert 0 < len(made) < 200 and len(told) == len(made), (len(made), len(told))
        assert server.stop() == 0, server.log_tail()


CHECKS = {
    "audit-full": a_full_disk,
    "audit promised": promised_room,
    "audit long": long_events,
}
