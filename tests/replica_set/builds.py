"""Index builds on the members of a set, through the loss of a primary in the middle."""

import threading
import time

from pymongo import WriteConcern
from pymongo.errors import OperationFailure, PyMongoError

from members import ReplicaSet

DOCUMENTS = 60_000
INDEXES = {"a_1": [("a", 1)], "text_1_n_1": [("text", 1), ("n", 1)]}


def wait(what, condition, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except PyMongoError:
            pass  # Members come and go here.
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def fill(client):
    collection = client.db.get_collection("c", write_concern=WriteConcern(w=3))
    for first in range(0, DOCUMENTS, 10_000):
        documents = [
            {"_id": n, "n": n, "a": [n % 777, n], "text": f"a text of {n % 1000}"} for n in range(first, first + 10_000)
        ]
        collection.insert_many(documents, ordered=False)


def unfinished(client):
    """Names of the indexes that a member has not ready."""
    return client.db.command("collStats", "c")["indexBuilds"]


def check_alike(members, expected):
    """All members have these indexes, ready and right, and the same documents."""
    for at in range(len(members.servers)):
        with members.direct(at) as client:
            wait(f"indexes of member {at}", lambda: {i["name"] for i in client.db.c.list_indexes()} == expected)
            found = client.db.command("validate", "c")
            assert found["valid"], (at, found)
            assert found["keysPerIndex"].keys() == expected, (at, found)
    hashes = set()

    def same():
        hashes.clear()
        for at in range(len(members.servers)):
            with members.direct(at) as client:
                hashes.add(client.db.command("dbHash")["md5"])
        return len(hashes) == 1

    wait("the same documents on all members", same)


def build_and(members, lose):
    """Builds the indexes beside a writer; `lose(primary)` is done in the middle. Returns the names of those that a client was
    told are there."""
    told, stop = set(), threading.Event()

    def build(name, keys):
        with members.client() as client:
            try:
                client.db.c.create_index(keys, name=name)
                told.add(name)
            except (PyMongoError, OperationFailure):
                pass  # What becomes of it is the next primary's matter.

    def write():
        with members.client() as client:
            n = 0
            while not stop.is_set():
                n += 1
                try:
                    client.db.c.update_one({"_id": n * 7 % DOCUMENTS}, {"$set": {"a": [n, -n]}})
                    client.db.c.delete_one({"_id": n * 11 % DOCUMENTS})
                except PyMongoError:
                    time.sleep(0.05)

    primary = members.primary()
    builders = [threading.Thread(target=build, args=item) for item in INDEXES.items()]
    writer = threading.Thread(target=write)
    for thread in (writer, *builders):
        thread.start()
    with members.direct((primary + 1) % 3) as other:
        deadline = time.monotonic() + 60
        while not unfinished(other) and any(b.is_alive() for b in builders) and time.monotonic() < deadline:
            pass
    lose(primary)
    for thread in builders:
        thread.join()
    stop.set()
    writer.join()
    return told


def finish(members, told):
    """Whatever became of the builds: none is left unfinished, what was told is there, and what is not can be built."""
    with members.client() as client:
        wait("a primary with nothing unfinished", lambda: not unfinished(client))
        there = {index["name"] for index in client.db.c.list_indexes()}
        assert told <= there, (told, there)
        collection = client.db.get_collection("c", write_concern=WriteConcern(w=3))
        for name, keys in INDEXES.items():
            collection.create_index(keys, name=name)
    check_alike(members, {"_id_", *INDEXES})
    print(f"      {len(told)} builds ended as if nothing had been, {len(there) - 1} of {len(INDEXES)} indexes were there in the end")


def index_builds_survive_the_loss_of_the_primary():
    with ReplicaSet() as members:
        with members.client() as client:
            fill(client)

        def lose(primary):
            members.servers[primary].kill()
            members.wait_for(lambda states: states.count("PRIMARY") == 1)
            members.servers[primary].start()

        told = build_and(members, lose)
        members.wait_for(lambda states: sorted(filter(None, states)) == ["PRIMARY", "SECONDARY", "SECONDARY"])
        finish(members, told)


def index_builds_survive_a_step_down():
    with ReplicaSet() as members:
        with members.client() as client:
            fill(client)

        def lose(primary):
            with members.direct(primary) as client:
                client.admin.command("replSetStepDown", 30, secondaryCatchUpPeriodSecs=10)

        told = build_and(members, lose)
        members.wait_for(lambda states: states.count("PRIMARY") == 1)
        finish(members, told)


CHECKS = [index_builds_survive_the_loss_of_the_primary, index_builds_survive_a_step_down]
