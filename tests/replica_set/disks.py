"""One member of three has a disk that is full, broken or very slow, or does not run at all: the set goes on without it."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from disk import Disk
from members import PATIENCE, ReplicaSet, eventually
from sheaf_process import stand_still

MAJORITY = WriteConcern(w="majority")
ALL = WriteConcern(w=3, wtimeout=60_000)
OUT_OF_DISK_SPACE = 14031


class Skip(Exception):
    """Cannot be checked on this machine."""


class Writer:
    """Inserts numbered documents, each acknowledged by a majority, until it is stopped."""

    def __init__(self, client, text="x"):
        self.collection = client.t.get_collection("c", write_concern=MAJORITY)
        self.text = text
        self.acknowledged = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        number = 0
        while not self.stopping.is_set():
            try:
                self.collection.insert_one({"_id": number, "text": self.text})
                self.acknowledged.append(number)
            except PyMongoError:
                time.sleep(0.01)
            number += 1

    def more(self, count, what):
        """Waits for so many more acknowledged writes."""
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= wanted, what)

    def stop(self):
        self.stopping.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "a write hangs"


def whole_again(members, client, writer):
    """All three have everything that was acknowledged."""
    marks = client.t.get_collection("marks", write_concern=ALL)

    def everywhere():
        try:
            marks.insert_one({})
            return True
        except PyMongoError:
            return False

    eventually(everywhere, "a write that all three members have")
    for at in range(3):
        with members.direct(at) as member:
            found = {document["_id"] for document in member.t.c.find({}, {"_id": 1})}
        missing = [number for number in writer.acknowledged if number not in found]
        assert not missing, f"member {at} lacks {missing[:10]}, {len(missing)} in all"


# --- full ---


class SmallDisk:
    """A file system of some megabytes."""

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-small-"))
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "none", str(self.folder)], capture_output=True)
        if mounted.returncode != 0:
            self.folder.rmdir()
            raise Skip("a small file system cannot be mounted here")
        return self

    def fill(self):
        with open(self.folder / "ballast", "ab", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass

    def room(self):
        stats = os.statvfs(self.folder)
        return stats.f_bavail * stats.f_frsize >> 20

    def make_room(self):
        (self.folder / "ballast").unlink()

    def __exit__(self, *_):
        subprocess.run(["umount", str(self.folder)], check=True)
        self.folder.rmdir()


def with_a_full_disk(of_primary):
    with SmallDisk() as disk:
        members = ReplicaSet(args=["--oplogSize", "32"])
        full = members.servers[0]
        shutil.rmtree(full.dbpath)
        full.dbpath, full.own_dbpath = disk.folder / "data", False
        # It can lead from the beginning where it is to lead.
        members.config["members"][0]["priority"] = 2 if of_primary else 0.5
        with members, members.client() as client:
            eventually(lambda: (members.primary() == 0) == of_primary, "the primary that is wanted")
            writer = Writer(client, "x" * 20_000)
            try:
                writer.more(50, "writes before")
                disk.fill()
                eventually(lambda: "No space left" in full.log_path.read_text(), "word of the full disk in the log")
                if of_primary:
                    # It may not be told apart from one that hands the lead over: another one leads.
                    others = lambda: "PRIMARY" in members.states()[1:]
                    eventually(others, "another primary")
                writer.more(100, "writes while a member's disk is full")
                disk.make_room()
                if full.process.poll() is not None:
                    full.start()
                writer.more(100, "writes after")
            finally:
                writer.stop()
            whole_again(members, client, writer)


def until_refused(client, most):
    """Inserts until the set refuses that, but no more than so many megabytes; after how many it has."""
    collection = client.t.get_collection("filled", write_concern=WriteConcern(w=1))
    for done in range(most):
        try:
            collection.insert_many([{"text": os.urandom(10_000)} for _ in range(100)])
        except PyMongoError as error:
            if getattr(error, "code", None) == OUT_OF_DISK_SPACE or (getattr(error, "details", None) or {}).get("code") == OUT_OF_DISK_SPACE:
                return done
            raise
    return None


@contextlib.contextmanager
def set_on_small_disks():
    """A set each of whose members has a file system of its own, these, and a client."""
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(SmallDisk()) for _ in range(3)]
        members = ReplicaSet(args=["--oplogSize", "32"])
        for server, disk in zip(members.servers, disks):
            shutil.rmtree(server.dbpath)
            server.dbpath, server.own_dbpath = disk.folder / "data", False
        with members, members.client() as client:
            yield members, disks, client


def full_disks_of_all_are_emptied():
    """Where a majority has no room nothing more is taken but what frees room, so that all can do that."""
    with set_on_small_disks() as (members, disks, client):
        majority = client.t.get_collection("filled", write_concern=WriteConcern(w="majority", wtimeout=60_000))
        client.t.c.insert_many([{"_id": number} for number in range(1000)])
        for _ in range(2):
            done = until_refused(client, 200)
            assert done is not None and done >= 20, f"refused after {done} MB"
            assert majority.delete_one({}).deleted_count == 1
            majority.drop()
            eventually(lambda: min(disk.room() for disk in disks) > 80, "the room of what was dropped")
            # The others tell the primary of it a moment later.
            eventually(lambda: until_refused(client, 1) is None, "writes that add, with room again")
        writer = Writer(client, "x" * 1000)
        writer.more(100, "writes after")
        writer.stop()
        whole_again(members, client, writer)
        assert client.t.c.count_documents({}) >= 1000


def deletions_make_room_on_full_disks_of_all():
    """A half of the documents is deleted, here and there, while all disks are full: large ones are moved out of the files that have them."""
    with set_on_small_disks() as (_members, _disks, client):
        done = until_refused(client, 200)
        assert done is not None and done >= 20, f"refused after {done} MB"
        filled = client.t.get_collection("filled", write_concern=WriteConcern(w="majority", wtimeout=60_000))
        wanted = [one["_id"] for one in filled.find({}, {"_id": 1})][::2]

        def deleted():
            # Merging may have what is kept for a moment: then it is to be tried again.
            try:
                return filled.delete_many({"_id": {"$nin": wanted}}).acknowledged
            except PyMongoError as error:
                if getattr(error, "code", None) == OUT_OF_DISK_SPACE:
                    return False
                raise

        eventually(deleted, "deletions")
        written = 0

        def rewritten():
            nonlocal written
            more = until_refused(client, done // 4 - written)
            written += done // 4 - written if more is None else more
            return written >= done // 4

        eventually(rewritten, "writes of half of what was deleted")
        kept = filled.count_documents({"_id": {"$in": wanted}})
        assert kept == len(wanted), f"{kept} of {len(wanted)}"


def the_lead_goes_where_there_is_room():
    """A primary that is short of room hands over in time; a client that tries again once, as drivers do, hears nothing of it."""
    with SmallDisk() as disk:
        members = ReplicaSet(args=["--oplogSize", "32"])
        small = members.servers[0]
        shutil.rmtree(small.dbpath)
        small.dbpath, small.own_dbpath = disk.folder / "data", False
        members.config["members"][0]["priority"] = 2
        with members, members.client() as client:
            eventually(lambda: members.primary() == 0, "the primary that is wanted")
            assert until_refused(client, 250) is None
            assert members.primary() != 0


def a_secondary_with_a_full_disk():
    with_a_full_disk(of_primary=False)


def a_primary_with_a_full_disk():
    with_a_full_disk(of_primary=True)


# --- broken ---


def a_disk_that_fails_ends_the_member():
    """A secondary whose log cannot be synced says so and ends; it is a member again after a start with a sound disk."""
    members = ReplicaSet()
    disks = [Disk(server.dbpath) for server in members.servers]
    for server, disk in zip(members.servers, disks):
        server.env = disk.env
    try:
        with members, members.client() as client:
            writer = Writer(client)
            at = members.secondaries()[0]
            broken = members.servers[at]
            try:
                writer.more(20, "writes before")
                disks[at].broken(True)
                eventually(lambda: broken.process.poll() is not None, "the end of the member with the broken disk")
                assert broken.process.returncode == -signal.SIGABRT, broken.process.returncode
                said = broken.log_path.read_text(errors="replace")
                assert "what the set has ordered cannot be taken" in said, said[-2000:]
                writer.more(100, "writes without it")
                disks[at].broken(False)
                broken.start()
            finally:
                writer.stop()
            whole_again(members, client, writer)
    finally:
        for disk in disks:
            disk.cleanup()


# --- slow ---


def a_disk_that_does_not_answer():
    """A secondary's syncs take longer than the test has patience: nobody waits for them but who asked for that member."""
    members = ReplicaSet()
    disks = [Disk(server.dbpath) for server in members.servers]
    for server, disk in zip(members.servers, disks):
        server.env = disk.env
    try:
        with members, members.client() as client:
            writer = Writer(client)
            at = members.secondaries()[0]
            try:
                writer.more(20, "writes before")
                disks[at].slow(3_600_000)
                one = client.t.get_collection("one", write_concern=WriteConcern(w=1, j=True))
                for number in range(100):
                    one.insert_one({"_id": number})
                writer.more(300, "writes while a secondary's disk does not answer")
                disks[at].slow(0)
                # The sync that is under way does not come back.
                members.servers[at].kill()
                members.servers[at].start()
                writer.more(20, "writes after")
            finally:
                writer.stop()
            whole_again(members, client, writer)
    finally:
        for disk in disks:
            disk.cleanup()


def a_secondary_that_stands_still():
    with ReplicaSet() as members, members.client() as client:
        writer = Writer(client)
        at = members.secondaries()[0]
        process = members.servers[at].process
        try:
            writer.more(20, "writes before")
            stand_still(process)
            one = client.t.get_collection("one", write_concern=WriteConcern(w=1))
            for number in range(1000):
                one.insert_one({"_id": number, "text": "x" * 10_000})
            writer.more(300, "writes while a secondary stands still")
        finally:
            os.kill(process.pid, signal.SIGCONT)
            writer.stop()
        whole_again(members, client, writer)


CHECKS = [
    full_disks_of_all_are_emptied, deletions_make_room_on_full_disks_of_all, the_lead_goes_where_there_is_room,
    a_secondary_with_a_full_disk, a_primary_with_a_full_disk, a_disk_that_fails_ends_the_member, a_disk_that_does_not_answer,
    a_secondary_that_stands_still,
]
