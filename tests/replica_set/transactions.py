"""Transactions that are larger than one entry of the log may be."""

import random
import threading
import time

from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from members import ReplicaSet

# About 19 MB: two entries.
DOCS = 24
PAD = "x" * 800_000


def transact(client, number):
    """One large transaction; its documents carry its number."""
    majority = WriteConcern("majority")
    with client.start_session() as session, session.start_transaction(write_concern=majority):
        for at in range(0, DOCS, 8):
            documents = [{"_id": f"{number}.{n}", "t": number, "pad": PAD} for n in range(at, at + 8)]
            client.large.c.insert_many(documents, session=session)


def numbers(client):
    """The transactions that a member shows, each whole."""
    found = list(client.large.c.aggregate([{"$group": {"_id": "$t", "n": {"$sum": 1}}}]))
    halves = [group for group in found if group["n"] != DOCS]
    assert not halves, f"transactions that are not whole: {halves}"
    return {group["_id"] for group in found}


def same_in_the_end(members, expected):
    def seen(at):
        try:
            with members.direct(at) as client:
                return numbers(client)
        except PyMongoError:
            # It is just coming back.
            return None

    deadline = time.monotonic() + 120
    while True:
        found = [seen(at) for at in range(len(members.servers))]
        if found[0] is not None and found[0] == found[1] == found[2] and found[0] >= expected:
            return
        assert time.monotonic() < deadline, f"members differ: {found}, expected at least {expected}"
        time.sleep(0.2)


def large_transactions_are_whole_everywhere():
    """Also where the primary is killed while it commits one."""
    with ReplicaSet() as members:
        acknowledged = set()
        with members.client() as client:
            client.large.create_collection("c")
            transact(client, 0)
            acknowledged.add(0)
        same_in_the_end(members, acknowledged)
        for number in range(1, 3):
            at = members.primary()
            done = threading.Event()

            def commit(number=number, at=at, done=done):
                try:
                    with members.direct(at, retryWrites=False) as client:
                        transact(client, number)
                    acknowledged.add(number)
                except PyMongoError:
                    pass
                done.set()

            writer = threading.Thread(target=commit)
            writer.start()
            done.wait(random.uniform(0, 1))
            members.servers[at].kill()
            writer.join()
            with members.client() as client:
                # The next primary takes writes, small and large.
                deadline = time.monotonic() + 120
                while True:
                    try:
                        transact(client, 100 + number)
                        break
                    except PyMongoError:
                        assert time.monotonic() < deadline, "no primary takes a transaction"
                        time.sleep(0.5)
            members.servers[at].start()
            acknowledged.add(100 + number)
            same_in_the_end(members, acknowledged)


CHECKS = [large_transactions_are_whole_everywhere]
