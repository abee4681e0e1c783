"""Which state of the cluster is the present one, whoever is asked."""

import contextlib
import threading
import time

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Secondary
from pymongo.write_concern import WriteConcern

from checks import alone, check, refused
from cluster import Cluster
from members import ReplicaSet
from moves import cleanup, move, no_moves

AHEAD = 60


class AtTime(ReadConcern):
    """A snapshot at a time, which drivers let nobody ask for."""

    def __init__(self, named):
        super().__init__("snapshot")
        self.named = named

    @property
    def document(self):
        return {"level": "snapshot", "atClusterTime": self.named}


def seen(client, session):
    return sorted(client.present.plants.distinct("_id", session=session))


@alone(shards=1, members=1, routers=2)
def snapshots_of_the_present(cluster):
    """A snapshot has what was acknowledged before, also through another router."""
    with cluster.client(0) as first, cluster.client(1) as second:
        plants = first.get_database("present", write_concern=WriteConcern("majority")).plants
        for n in range(10):
            # Its reader has the shard promise that nothing comes below a time ahead; that moves nobody's clock.
            with first.start_session(snapshot=True) as session:
                assert seen(first, session) == list(range(n))
                plants.insert_one({"_id": n})
                assert seen(first, session) == list(range(n)), "what was written later is in a snapshot"
            # This client has heard nothing of the other one, nor has its router.
            with second.start_session(snapshot=True) as session:
                assert seen(second, session) == list(range(n + 1))
        with first.start_session() as session:
            first.present.plants.find_one(session=session)
            ahead = session.operation_time.time - time.time()
            assert ahead < 1, f"the cluster's time is {ahead} s ahead"
            told = session.cluster_time
        # What a client has seen elsewhere, it tells.
        told = {**told, "clusterTime": bson.Timestamp(int(time.time()) + AHEAD, 1)}
        with first.start_session() as session:
            session.advance_cluster_time(told)
            plants.insert_one({"_id": 10}, session=session)
            assert session.operation_time.time >= told["clusterTime"].time
            told = session.cluster_time
        with second.start_session(snapshot=True) as session:
            session.advance_cluster_time(told)
            assert seen(second, session) == list(range(11))


def states(plants, session):
    """What every kind of read sees, in a session."""
    group = [{"$group": {"_id": None, "n": {"$sum": 1}, "times": {"$sum": "$times"}}}]
    join = [{"$match": {"n": {"$lt": 3}}}, {"$lookup": {"from": "plants", "localField": "n", "foreignField": "n", "as": "same"}}]
    return (
        sorted(plants.find(session=session), key=lambda plant: plant["n"]),
        [plants.find_one({"n": n}, session=session) for n in (5, 8, 15, 25)],
        list(plants.find({"n": {"$gte": 8, "$lt": 22}}, session=session).sort("n", -1)),
        sorted(plants.distinct("n", {"times": 0}, session=session)),
        list(plants.aggregate(group, session=session)),
        sorted(plants.aggregate(join, session=session), key=lambda plant: plant["n"]),
    )


@check
def snapshots_read_on_after_a_move(cluster):
    """A session or transaction that began before a range was moved sees what it saw, whoever has the range now."""
    with cluster.client(0) as client, cluster.client(1) as other:
        client.admin.command("enableSharding", "past", primaryShard="shard0")
        client.admin.command("shardCollection", "past.plants", key={"n": 1})
        plants = client.get_database("past", write_concern=WriteConcern("majority")).plants
        plants.insert_many([{"_id": n, "n": n, "times": 0} for n in range(40)])
        cleanup(cluster, 0)
        move(client, "past.plants", {"n": 20}, {"n": 30}, "shard1")
        with client.start_session(snapshot=True) as snapshot, client.start_session() as reader, \
                client.start_session() as late, client.start_session() as writer:
            before = states(plants, snapshot)
            for session in (reader, late, writer):
                session.start_transaction()
            assert states(plants, reader) == before
            # These two know one shard each, until the range has moved.
            late.client.past.plants.find_one({"n": 25}, session=late)
            plants.find_one({"n": 5}, session=writer)
            for low, high, to in ((0, 10, "shard1"), (22, 24, "shard0"), (0, 6, "shard0")):
                move(client, "past.plants", {"n": low}, {"n": high}, to)
                plants.update_many({"n": {"$lt": 25}}, {"$inc": {"times": 1}})
                plants.delete_one({"n": low + 1})
                plants.insert_one({"n": low + 0.5, "times": 7})
                assert states(plants, snapshot) == before, f"after the range from {low} on has moved to {to}"
                assert states(plants, reader) == before, f"after the range from {low} on has moved to {to}"
            assert states(plants, late) == before
            # Another router has never heard of the table of that time.
            at = snapshot._snapshot_time
            read = {"find": "plants", "filter": {"n": {"$lt": 10}}, "sort": {"n": 1},
                    "readConcern": {"level": "snapshot", "atClusterTime": at}}
            seen_there = other.past.command(read)["cursor"]["firstBatch"]
            assert seen_there == before[0][:10], seen_there
            # A transaction that names that time reads it, through the router that has never heard of the table, too.
            for there in (client, other):
                with there.start_session() as session, session.start_transaction(read_concern=AtTime(at)):
                    assert states(there.past.plants, session) == before
                with there.start_session() as session, session.start_transaction(read_concern=AtTime(at)):
                    assert there.past.plants.find_one({"n": 25}, session=session) == before[1][3]
            # What has another owner is not written as of a time when it had not.
            with expected_transient():
                plants.update_one({"n": 5}, {"$inc": {"times": 1}}, session=writer)
                writer.commit_transaction()
            reader.commit_transaction()
            late.commit_transaction()
        assert states(plants, None)[0] != before[0]
        no_moves(cluster)
        cleanup(cluster, 900)
        client.drop_database("past")


@check
def nobody_names_a_time_far_ahead(cluster):
    """A frame with the last of all times ended a shard's primary."""
    last = bson.Timestamp(2**32 - 1, 2**32 - 1)
    with cluster.client() as client, cluster.shards[0].direct(0) as shard:
        client.admin.command("enableSharding", "far", primaryShard="shard0")
        client.far.plants.insert_one({"_id": 1})
        shard.admin.command("holdSnapshots", 1, times=[last])
        with client.far.plants.watch(max_await_time_ms=100) as stream:
            stream.try_next()
            opened = shard.admin.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": {"type": "idleCursor"}}])
            cursors = [entry["cursor"]["cursorId"] for entry in opened]
            refused(205, lambda: shard.admin.command("advanceStreams", cursors, upTo=last))
        shard.far.own.insert_one({"_id": 1})
        client.far.plants.insert_one({"_id": 2})


@contextlib.contextmanager
def expected_transient():
    try:
        yield
    except PyMongoError as error:
        assert error.has_error_label("TransientTransactionError"), error
    else:
        raise AssertionError("a transaction has written what was moved since it began")


@alone(shards=0, members=1, routers=2)
def the_first_shard(cluster):
    """A router that knew of no shard finds the first one as soon as it is there."""
    shard = ReplicaSet([{}], name="late", args=["--shardsvr"])
    try:
        shard.start()
        with cluster.client(0) as first, cluster.client(1) as second:
            refused(70, lambda: first.late.plants.insert_one({"_id": 1}))
            second.admin.command("addShard", Cluster.address(shard))
            first.late.plants.insert_one({"_id": 1})
            assert second.late.plants.find_one() == {"_id": 1}
    finally:
        for server in shard.servers:
            server.cleanup()


@alone(members=3)
def snapshots_on_any_member(cluster):
    """A snapshot is of one state of the whole cluster, whichever members are read, and a shard that is idle comes as far as its readers."""
    low, high = [({"_id": end}) for end in (MinKey(), MaxKey())]
    cluster.shard("anywhere.plants", {"_id": 1}, [(low, {"_id": 0}, 0), ({"_id": 0}, high, 1)])
    with cluster.client() as client, cluster.client(readPreference="nearest") as anywhere:
        plants = client.get_database("anywhere", write_concern=WriteConcern("majority")).plants
        plants.insert_many([{"_id": at, "n": 0} for at in range(-4, 4)])
        over = threading.Event()

        def write(at):
            n = 0
            while not over.is_set():
                n += 1
                with client.start_session() as session:
                    session.with_transaction(lambda session: [
                        plants.update_one({"_id": each}, {"$set": {"n": n}}, session=session) for each in (at, -1 - at)
                    ], write_concern=WriteConcern("majority"))
        writers = [threading.Thread(target=write, args=(at,)) for at in range(4)]
        for writer in writers:
            writer.start()
        try:
            seen = set()
            for _ in range(200):
                command = {"find": "plants", "readConcern": {"level": "snapshot"}, "$readPreference": {"mode": "nearest"}}
                batch = anywhere.anywhere.command(command)["cursor"]["firstBatch"]
                if not batch and not seen:
                    continue  # of a moment before the insert: nobody has told this client of that
                found = {plant["_id"]: plant["n"] for plant in batch}
                assert all(found[at] == found[-1 - at] for at in range(4)), found
                seen.add(tuple(sorted(found.items())))
        finally:
            over.set()
            for writer in writers:
                writer.join()
        assert len(seen) > 3, "nothing was written meanwhile"
        # Nobody has told the router of a time for a while: the one that it chooses by its clock is news to the members.
        for _ in range(5):
            time.sleep(0.3)
            assert len(anywhere.anywhere.command(command)["cursor"]["firstBatch"]) == 8
        # The first shard has nothing to write any more; what a session has seen is of the second one.
        with client.start_session(causal_consistency=True) as session:
            behind = client.get_database("anywhere", read_preference=Secondary()).plants
            for n in range(5):
                plants.update_one({"_id": 1}, {"$set": {"n": -n}}, session=session)
                assert behind.find_one({"_id": -1}, session=session)["_id"] == -1
                assert behind.find_one({"_id": 1}, session=session)["n"] == -n
