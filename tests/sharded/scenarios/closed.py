"""Reads as of a time at which their collection was closed, since something changed it on all shards."""

import threading
import time

from pymongo.read_concern import ReadConcern

from checks import check, refused
from cluster import eventually
from resharding import Running, go_on, hang
from scenarios import spread_evenly

SNAPSHOT = ReadConcern("snapshot")


class Reader(threading.Thread):
    """A read in a thread of its own, and how long it took."""

    def __init__(self, cluster, read):
        super().__init__(daemon=True)
        self.cluster, self.read, self.result, self.seconds = cluster, read, None, None
        self.start()

    def run(self):
        began = time.monotonic()
        with self.cluster.client() as client, client.start_session(snapshot=True) as session:
            try:
                self.result = self.read(client, session)
            except Exception as error:
                self.result = error
        self.seconds = time.monotonic() - began


def in_a_transaction(client, _):
    with client.start_session() as session, session.start_transaction(read_concern=SNAPSHOT):
        return len(list(client.closed.plants.find({}, session=session)))


READS = {
    "find": lambda client, session: len(list(client.closed.plants.find({}, session=session))),
    "distinct": lambda client, session: len(client.closed.plants.distinct("k", session=session)),
    "aggregate": lambda client, session: list(client.closed.plants.aggregate([{"$count": "n"}], session=session))[0]["n"],
    "$lookup": lambda client, session: len(list(client.closed.beds.aggregate(join(), session=session))[0]["all"]),
    "transaction": in_a_transaction,
}


def join():
    return [{"$limit": 1}, {"$lookup": {"from": "plants", "pipeline": [], "as": "all"}}]


@check
def snapshots_of_a_closed_collection_are_taken_anew(cluster):
    """What a router has chosen itself it chooses anew; these waited for 20 seconds, and failed then."""
    with cluster.client() as client:
        spread_evenly(client, "closed.plants")
        client.closed.beds.insert_one({})
        before = hang(cluster, "opening")
        running = Running(cluster, {"reshardCollection": "closed.plants", "key": {"name": 1}, "numInitialChunks": 2})
        eventually(lambda: hang(cluster, "opening") > before, "the new collection is entered, and closed yet")
        with client.start_session() as session:
            client.closed.beds.insert_one({}, session=session)
            at = session.operation_time
        readers = {name: Reader(cluster, read) for name, read in READS.items()}
        named = {"level": "snapshot", "atClusterTime": at}
        refused_at_once = [
            {"find": "plants", "readConcern": named},
            {"aggregate": "beds", "pipeline": join(), "cursor": {}, "readConcern": named},
        ]
        try:
            for command in refused_at_once:
                began = time.monotonic()
                refused(246, lambda: client.closed.command(command))
                assert time.monotonic() - began < 3, command
            time.sleep(0.5)
            assert all(reader.is_alive() for reader in readers.values()), {name: reader.result for name, reader in readers.items()}
        finally:
            go_on(cluster)
        for name, reader in readers.items():
            reader.join(30)
            assert reader.result == 100 and reader.seconds < 10, (name, reader.result, reader.seconds)
        assert running.join()["ok"] == 1, running.result
        for command in refused_at_once:
            refused(246, lambda: client.closed.command(command))
        client.drop_database("closed")
