"""Disks that are full: nothing acknowledged is lost, what frees room works, and nobody restarts anything."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time

from common import OUT_OF_DISK_SPACE, Skip, connect, initiate, until, write_error
from pymongo.errors import OperationFailure, PyMongoError
from sheaf_process import Server


@contextlib.contextmanager
def server_on_a_small_disk(size, args=()):
    """A server that is not started yet, and its folder: a file system of this size."""
    folder = tempfile.mkdtemp(prefix="sheaf-small-")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True)
    if mounted.returncode != 0:
        os.rmdir(folder)
        raise Skip("a small file system cannot be mounted here")
    server = Server(dbpath=folder, log=f"{folder}.log", args=args)
    try:
        yield server, folder
    finally:
        server.kill()
        subprocess.run(["umount", folder], check=True)
        os.rmdir(folder)
        server.log_path.unlink(missing_ok=True)


def disk_full(_):
    with server_on_a_small_disk("48m") as (server, folder):
        ballast = pathlib.Path(folder, "ballast")
        ballast.write_bytes(bytes(8 << 20))
        server.start()
        collection = connect(server).ops.c
        written = fill(collection)
        assert collection.count_documents({}) == written, "reads must go on, with all that was acknowledged"
        assert collection.find_one({"_id": written // 2})["_id"] == written // 2
        code = write_error(collection, -1)
        assert code == OUT_OF_DISK_SPACE, f"a second write gave {code}"
        ballast.unlink()
        server.kill()
        server.start()
        collection = connect(server).ops.c
        assert [d["_id"] for d in collection.find({}, {"_id": 1}).sort("_id", 1)] == list(range(written))
        collection.insert_one({"_id": written})
        report = collection.database.command("validate", "c")
        assert report["valid"], report
        assert server.stop() == 0


def full_disk_of_a_set_of_one_is_emptied(_):
    full_disk_is_emptied(_, ["--replSet", "rs"])


def full_disk_is_emptied(_, args=()):
    """Whoever has filled the disk can delete and drop, which gives the room back, again and again, and nobody restarts anything."""
    with server_on_a_small_disk("200m", args) as (server, folder):

        def room():
            stats = os.statvfs(folder)
            return stats.f_bavail * stats.f_frsize >> 20

        server.start()
        if args:
            initiate(server)
        database = connect(server).ops
        database.kept.insert_many([{"_id": number, "text": "k" * 1000} for number in range(1000)])
        before = room()
        # Written into the tables, and left in the log.
        for name, text in (("log", lambda: os.urandom(100_000)), ("tables", lambda: os.urandom(7000))):
            written = fill(database[name], text)
            assert database[name].count_documents({}) == written
            assert database.kept.delete_one({"_id": database.kept.find_one()["_id"]}).deleted_count == 1
            # A compaction may have it for a moment.
            until("the room that is kept", lambda: room() >= 1)
            assert room() < before / 3, f"{room()} MB were left when writes were refused"
            database[name].create_index("other")
            database[name].drop()
            until("the room of what was dropped", lambda: room() > before * 0.5)
            assert write_error(database.kept, 5000) is None
            database.kept.delete_one({"_id": 5000})
        kept = database.kept.count_documents({})
        assert kept == 998, kept
        server.kill()
        server.start()
        database = connect(server).ops
        assert database.kept.count_documents({}) == kept
        assert database.command("validate", "kept")["valid"]
        assert server.stop() == 0


def full_disk_of_a_few_large_files_is_emptied(_):
    """Too few for RocksDB to merge them by itself, and no room to write them again: the drop has to take them."""
    with server_on_a_small_disk("300m") as (server, folder):
        server.start()
        database = connect(server).ops
        first = 0
        try:
            while True:
                texts = [os.urandom(8000) for _ in range(20)]
                database.c.insert_many([{"_id": first + at, "bytes": text} for at, text in enumerate(texts)])
                first += 20
        except OperationFailure as error:
            assert error.code == OUT_OF_DISK_SPACE, error
        database.c.drop()

        def room():
            stats = os.statvfs(folder)
            return stats.f_bavail * stats.f_frsize >> 20

        until("the room of what was dropped", lambda: room() > 150)
        until("a write", lambda: write_error(database.d, 0) is None)
        assert server.stop() == 0


def deletions_leave_room_for_a_drop(_):
    """Deletions take room before they give any: a hundred thousand of them leave enough for what does."""
    for size in ("160m", "300m"):
        with server_on_a_small_disk(size) as (server, folder):
            server.start()
            database = connect(server).ops
            try:
                while True:
                    database.c.insert_many([{"bytes": os.urandom(1000)} for _ in range(1000)])
            except OperationFailure as error:
                assert error.code == OUT_OF_DISK_SPACE, error
            # Whatever comes of it: on disks so small the merge of what is deleted may have no room.
            for _ in range(3):
                try:
                    database.c.delete_many({})
                    break
                except OperationFailure as error:
                    assert error.code == OUT_OF_DISK_SPACE, error

            def dropped():
                database.c.drop()
                return True

            def room():
                stats = os.statvfs(folder)
                return stats.f_bavail * stats.f_frsize >> 20

            until("a drop", dropped)
            until("the room of what was dropped", lambda: room() > int(size[:-1]) * 0.6)
            until("a write", lambda: write_error(database.d, 0) is None)
            assert server.stop() == 0


def deletions_make_room(_):
    """Whoever has filled the disk deletes a half, here and there, and writes again: small documents, and large ones that stay in the log's files."""
    for size in (1000, 16_000):
        with server_on_a_small_disk("200m") as (server, _folder):
            server.start()
            collection = connect(server).ops.c
            batch = 1_000_000 // size
            batches = 0
            try:
                while True:
                    first = batches * batch
                    collection.insert_many([{"_id": first + at, "bytes": os.urandom(size)} for at in range(batch)])
                    batches += 1
            except OperationFailure as error:
                assert error.code == OUT_OF_DISK_SPACE, error
            collection.delete_many({"_id": {"$gte": batches * batch}})
            until("deletions", lambda collection=collection: collection.delete_many({"_id": {"$mod": [2, 1]}}).acknowledged)
            kept = list(range(0, batches * batch, 2))
            for _ in range(batches // 4):
                more = [{"bytes": os.urandom(size)} for _ in range(batch)]
                until("writes", lambda collection=collection, more=more: collection.insert_many(more).acknowledged)
            assert [one["_id"] for one in collection.find({"_id": {"$type": "number"}}, {"_id": 1}).sort("_id", 1)] == kept
            assert collection.database.command("validate", "c")["valid"]
            assert server.stop() == 0


def a_batch_on_a_full_disk_claims_what_is_kept(_):
    """A batch that is more than what is committed at once: what a reply says is done is there."""
    with server_on_a_small_disk("64m") as (server, folder):
        server.start()
        database = connect(server).ops
        fill(database.c)

        def kept(name, command):
            """How many of the command's statements its reply says are done, and how many documents have come."""
            before = database[name].count_documents({})
            try:
                reply = database.client.admin.command(command) if "bulkWrite" in command else database.command(command)
                claimed = reply.get("nInserted", reply.get("n"))
            except OperationFailure as error:
                assert error.code == OUT_OF_DISK_SPACE, error
                claimed = None
            return claimed, database[name].count_documents({}) - before

        text = os.urandom(4000).hex()
        inserted = [{"_id": number, "text": text} for number in range(2000)]
        upserts = [{"q": {"_id": one["_id"]}, "u": {"$set": {"text": text}}, "upsert": True} for one in inserted]
        operations = [{"insert": 0, "document": one} for one in inserted]
        for round in range(2):
            for ordered in (True, False):
                for command in (
                    {"insert": "n", "documents": inserted, "ordered": ordered},
                    {"update": "n", "updates": upserts, "ordered": ordered},
                    {"bulkWrite": 1, "ops": operations, "nsInfo": [{"ns": "ops.n"}], "ordered": ordered},
                ):
                    claimed, come = kept("n", command)
                    assert claimed is None or claimed == come, f"round {round}, {list(command)[0]}: {claimed} done, {come} there"
                    database.n.delete_many({})


def disk_full_of_a_set_of_one(_):
    """Nobody takes over from a member that is alone: it refuses what has no room, in time, and goes on by itself."""
    with server_on_a_small_disk("48m", ["--replSet", "rs"]) as (server, folder):
        ballast = pathlib.Path(folder, "ballast")
        ballast.write_bytes(bytes(8 << 20))
        server.start()
        initiate(server)
        client = connect(server)
        collection = client.ops.c
        written = fill(collection)
        assert collection.count_documents({}) == written, "reads must go on, with all that was acknowledged"
        for number in range(5):
            began = time.monotonic()
            code = write_error(collection, -1 - number)
            assert code == OUT_OF_DISK_SPACE, f"another write gave {code}"
            assert time.monotonic() - began < 30, "it was waited for room"
        try:
            with client.start_session() as session, session.start_transaction():
                for number in range(20):
                    collection.insert_one({"_id": 10_000 + number, "text": "x" * 1_000_000}, session=session)
            raise AssertionError("a transaction of 20 MB found room")
        except PyMongoError as error:
            assert error.code == OUT_OF_DISK_SPACE, error
        ballast.unlink()
        until("a write", lambda: write_error(collection, written) is None)
        found = [d["_id"] for d in collection.find({}, {"_id": 1}).sort("_id", 1)]
        assert found == list(range(written + 1)), "what was refused has happened"
        assert collection.database.command("validate", "c")["valid"]
        assert server.stop() == 0


def start_on_a_full_disk(_):
    """Again and again, after a crash and after an end in order; what was acknowledged can be read, and written to with room."""
    with server_on_a_small_disk("48m") as (server, folder):
        ballast = pathlib.Path(folder, "ballast")
        ballast.write_bytes(bytes(8 << 20))
        server.start()
        written = fill(connect(server).ops.c)
        for number, end in enumerate([server.kill, server.stop, server.kill, server.kill, server.stop]):
            end()
            fill_disk(folder, ballast, 0)
            server.start()
            collection = connect(server).ops.c
            found = collection.count_documents({})
            assert found == written, f"{found} documents, not {written}"
            # The log's end, which was kept ahead of the entries, may have given some room.
            code = write_error(collection, 10_000 + number)
            assert code in (None, OUT_OF_DISK_SPACE), f"a write gave {code}"
            written += code is None
        ballast.unlink()
        until("a write", lambda: write_error(collection, 20_000) is None)
        assert collection.database.command("validate", "c")["valid"]
        assert server.stop() == 0


def disk_full_for_a_moment(_):
    """What the server must flush finds no room; then there is room again, and nobody restarts anything."""
    # Memtables have a thirty-second of the disk.
    with server_on_a_small_disk("520m", ["--setParameter", "syncdelay=3600"]) as (server, folder):
        ballast = pathlib.Path(folder, "ballast")
        server.start()
        database = connect(server).ops
        database.c.insert_many([{"_id": n} for n in range(10)])
        database.client.admin.command("fsync")
        # Others of this size would stay in the log, and a flush would need no room for them.
        for number in range(12):
            database.big.insert_one({"_id": number, "bytes": os.urandom(64) * (1 << 14)})
        database.c.delete_one({"_id": 3})
        for spare in (8 << 20, 2 << 20, 0):
            fill_disk(folder, ballast, spare)
            try:
                database.client.admin.command("fsync")
                raise AssertionError("12 MB were flushed to a full disk")
            except PyMongoError as error:
                assert error.code == OUT_OF_DISK_SPACE, error
            # The log may have room, or not; what was acknowledged is there.
            codes = {write_error(database.c, 1000 + spare % 97 + n) for n in range(3)}
            assert codes <= {None, OUT_OF_DISK_SPACE}, codes
            assert database.big.count_documents({}) == 12
        acknowledged = {document["_id"] for document in database.c.find()}
        ballast.unlink()
        until("a write", lambda: write_error(database.c, 5000, "room") is None)
        until("a flush", lambda: database.client.admin.command("fsync")["ok"] == 1)
        acknowledged.add(5000)
        server.kill()
        server.start()
        database = connect(server).ops
        assert {document["_id"] for document in database.c.find()} == acknowledged
        assert database.big.count_documents({}) == 12
        assert all(database.command("validate", name)["valid"] for name in ("c", "big"))
        assert server.stop() == 0


def fill_disk(folder, ballast, spare):
    """Leaves so many bytes free."""
    with open(ballast, "ab") as file:
        free = os.statvfs(folder)
        free = free.f_bavail * free.f_frsize - spare
        try:
            while free > 0:
                free -= file.write(bytes(min(free, 1 << 20)))
        except OSError:
            pass


def fill(collection, text=None):
    """Inserts until the disk is full; how many documents were acknowledged."""
    one = os.urandom(50_000).hex()
    for number in range(200_000):
        code = write_error(collection, number, text() if text else one)
        if code is not None:
            assert code == OUT_OF_DISK_SPACE, f"the full disk gave {code}"
            return number
    raise AssertionError("the disk is not small")


CHECKS = [
    disk_full,
    a_batch_on_a_full_disk_claims_what_is_kept,
    full_disk_is_emptied,
    full_disk_of_a_few_large_files_is_emptied,
    deletions_leave_room_for_a_drop,
    deletions_make_room,
    full_disk_of_a_set_of_one_is_emptied,
    disk_full_of_a_set_of_one,
    start_on_a_full_disk,
    disk_full_for_a_moment,
]
