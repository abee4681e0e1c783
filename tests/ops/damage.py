"""A byte of the log has flipped: what a start says, and what `sheaf repair` saves."""

import pathlib
import random
import re
import subprocess

from common import connect, ends_with
from pymongo import WriteConcern
from pymongo.errors import OperationFailure
from sheaf_process import Server

CHECKSUM_MISMATCH = 288
SMALL, LARGE = 2000, 40
FLUSHED_SMALL, FLUSHED_LARGE = 1000, 20


def mark(number):
    return f"small document {number};"


def fill(server):
    """Writes small documents, every fiftieth with one of 100 KB, flushes the first half, and is killed."""
    server.start()
    database = connect(server).get_database("ops", write_concern=WriteConcern(j=True))
    noise = random.Random(1)
    large = []
    for number in range(SMALL):
        if number == FLUSHED_SMALL:
            database.client.admin.command("fsync")
        database.small.insert_one({"_id": number, "text": mark(number)})
        if number % (SMALL // LARGE) == 0:
            large.append(noise.randbytes(100_000))
            database.large.insert_one({"_id": len(large) - 1, "bytes": large[-1]})
    server.kill()
    return large


def flip(folder, wanted):
    """Flips a bit of what is in the log, in place: files of values are the same files."""
    for segment in sorted((folder / "log").glob("*.log")):
        at = segment.read_bytes().find(wanted)
        if at >= 0:
            with segment.open("r+b") as file:
                file.seek(at)
                file.write(bytes([wanted[0] ^ 1]))
            return segment.name
    raise AssertionError(f"{wanted[:30]} is not in the log")


def contents(folder):
    return {path.name: path.read_bytes() for path in (folder / "log").glob("*.log")}


def damaged_log(_):
    whole = Server()
    large = fill(whole)

    def repair(server, wanted, *texts):
        """Gives the server a copy of the folder that is damaged there, about which a start says these texts, and repairs it."""
        server.dbpath.rmdir()
        subprocess.run(["cp", "-a", whole.dbpath, server.dbpath], check=True)
        name = flip(server.dbpath, wanted)
        ends_with(server.command, 100, name, "at byte", "entry", "sheaf repair --dbpath", "--cut-log", *texts)
        command = [str(server.binary), "repair", "--dbpath", str(server.dbpath)]
        before = contents(server.dbpath)
        ends_with(command, 1, name, "Nothing was changed", "--cut-log")
        assert contents(server.dbpath) == before, "the log was changed"
        done = subprocess.run([*command, "--cut-log"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        aside = pathlib.Path(re.search(r"^set aside +(.+)$", done.stdout, re.M)[1])
        assert aside.is_relative_to(server.dbpath / "repair") and (aside / name).read_bytes() == before[name], done.stdout
        ends_with(command, 0, "can be applied whole")

    def check(server, small, lost):
        database = connect(server).ops
        assert [found["_id"] for found in database.small.find().sort("_id", 1)] == list(range(small))
        for number in range(-(-small * LARGE // SMALL)):
            if number not in lost:
                assert database.large.find_one({"_id": number})["bytes"] == large[number], number
                continue
            try:
                database.large.find_one({"_id": number})
                raise AssertionError("a damaged document was read")
            except OperationFailure as error:
                assert error.code == CHECKSUM_MISMATCH and "document of" in str(error), error
        assert database.command("validate", "small")["valid"]
        found = database.command("validate", "large")
        assert found["valid"] == (not lost), found
        assert all(any(f"_id {number} " in text for text in found["errors"]) for number in lost), found
        database.small.insert_one({"_id": -1})
        assert server.stop() == 0
        server.start()
        assert connect(server).ops.small.count_documents({}) == small + 1
        assert server.stop() == 0

    cases = [
        # What is not flushed: all before it stays.
        (mark(1700).encode(), "do not have that entry", 1700, []),
        # What is: nothing is lost, but a document that only the log has.
        (mark(500).encode(), "files have that entry", SMALL, []),
        (large[7][5000:5100], "files have that entry", SMALL, [7]),
    ]
    try:
        for wanted, text, small, lost in cases:
            server = Server()
            try:
                repair(server, wanted, text)
                server.start()
                check(server, small, lost)
            finally:
                server.cleanup()
    finally:
        whole.cleanup()
