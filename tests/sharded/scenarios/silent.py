"""Members that say nothing any more, with their connections open: a paused process, a link that is cut."""

import os
import signal
import threading

import bson
import pymongo
from pymongo import InsertOne, UpdateOne
from pymongo.errors import PyMongoError
from pymongo.read_preferences import ReadPreference

from checks import alone
from cluster import eventually
from sheaf_process import stand_still


class Attempt:
    """Work in a thread, and what became of it."""

    def __init__(self, name, work):
        self.name, self.done, self.error = name, False, None
        self.thread = threading.Thread(target=self.run, args=(work,), daemon=True)
        self.thread.start()

    def run(self, work):
        try:
            work()
        except PyMongoError as error:
            self.error = error
        self.done = True


def paused_primary(members, attempts):
    """Begins the attempts while the primary stands still; they must end before it goes on."""
    old = members.primary()
    process = members.servers[old].process
    stand_still(process)
    try:
        begun = [Attempt(name, work) for name, work in attempts.items()]
        eventually(lambda: all(attempt.done for attempt in begun), "what was begun ends without the member")
        return begun
    finally:
        os.kill(process.pid, signal.SIGCONT)


@alone(shards=1, members=3, routers=1)
def a_paused_primary_of_a_shard(cluster):
    """Reads and retryable writes go on at the new primary; a transaction is told to begin anew, and so is what cannot be repeated."""
    with cluster.client(0) as client, cluster.client(0, retryWrites=False) as plain:
        plants = client.silent.plants
        plants.insert_many([{"_id": number, "n": 0} for number in range(20)])
        session = client.start_session()
        session.start_transaction()
        plants.update_one({"_id": 7}, {"$inc": {"n": 1}}, session=session)
        cursor = plants.find({}, batch_size=2)
        next(cursor)
        ran = paused_primary(cluster.shards[0], {
            "count": lambda: plants.count_documents({}),
            "find": lambda: list(plants.find({})),
            "aggregate": lambda: list(plants.aggregate([{"$group": {"_id": None, "n": {"$sum": "$n"}}}])),
            "insert": lambda: plants.insert_one({"_id": 100}),
            "update": lambda: plants.update_one({"_id": 1}, {"$inc": {"n": 1}}),
            "large insert": lambda: plants.insert_one({"_id": 101, "text": "x" * (12 << 20)}),
            "findAndModify": lambda: plants.find_one_and_update({"_id": 2}, {"$inc": {"n": 1}}),
            "statement": lambda: plants.update_one({"_id": 8}, {"$inc": {"n": 1}}, session=session),
            "getMore": lambda: list(cursor),
            "plain": lambda: plain.silent.plants.update_many({"_id": {"$gt": 10}}, {"$set": {"m": 1}}),
        })
        failed = {attempt.name: attempt.error for attempt in ran if attempt.error}
        assert failed.pop("statement").has_error_label("TransientTransactionError"), failed
        # Nobody knows what has become of it, and the cursor is with the member that is gone.
        for name in ("plain", "getMore"):
            error = failed.pop(name, None)
            assert error is None or error.code in (6, 43, 89, 175), (name, error)
        assert not failed, failed
        assert plants.count_documents({}) == 22
        assert [plants.find_one({"_id": at})["n"] for at in (1, 2, 7, 8)] == [1, 1, 0, 0]
        try:
            session.abort_transaction()
        finally:
            session.end_session()
        # Who was paused follows, and is read from.
        secondary = client.silent.get_collection("plants", read_preference=ReadPreference.SECONDARY)
        eventually(lambda: secondary.count_documents({}) == 22, "the secondaries have all")


@alone(shards=1, members=1, routers=1, configs=3)
def a_paused_primary_of_the_config_servers(cluster):
    with cluster.client(0) as client:
        client.silent.plants.insert_one({"_id": 1})
        ran = paused_primary(cluster.config, {
            "shards": lambda: client.admin.command("listShards"),
            "database": lambda: client.quiet.plants.insert_one({"_id": 1}),
            "collection": lambda: client.admin.command("shardCollection", "silent.trees", key={"_id": 1}),
        })
        failed = {attempt.name: attempt.error for attempt in ran if attempt.error}
        # The command of a conductor that is gone may be sent again.
        error = failed.pop("collection", None)
        assert error is None or error.code in (6, 89, 91, 11600, 11602, 189, 10107), error
        assert not failed, failed
        client.admin.command("shardCollection", "silent.trees", key={"_id": 1})
        assert client.quiet.plants.count_documents({}) == 1


@alone(shards=2, members=3, routers=1)
def a_paused_participant(cluster):
    """A commit over two shards, one of whose primaries says nothing, ends when that one has a successor."""
    cluster.shard("silent.plants", {"k": 1}, [({"k": bson.MinKey()}, {"k": 0}, 0), ({"k": 0}, {"k": bson.MaxKey()}, 1)])
    with cluster.client(0) as client:
        plants = client.silent.plants
        plants.insert_many([{"_id": 1, "k": -1, "n": 0}, {"_id": 2, "k": 1, "n": 0}])

        def transfer():
            def within(session):
                plants.update_one({"k": -1}, {"$inc": {"n": -1}}, session=session)
                plants.update_one({"k": 1}, {"$inc": {"n": 1}}, session=session)
            with client.start_session() as session:
                session.with_transaction(within)

        session = client.start_session()
        session.start_transaction()
        plants.update_one({"k": -1}, {"$inc": {"n": -1}}, session=session)
        plants.update_one({"k": 1}, {"$inc": {"n": 1}}, session=session)
        ran = paused_primary(cluster.shards[1], {"commit": session.commit_transaction, "transfer": transfer})
        commit, moved = ran
        assert moved.error is None, moved.error
        if commit.error is not None:
            assert commit.error.has_error_label("TransientTransactionError"), commit.error
        expected = 1 + (commit.error is None)
        assert [plants.find_one({"k": k})["n"] for k in (-1, 1)] == [-expected, expected]
        session.end_session()


@alone(shards=1, members=1, routers=1)
def nobody_waits_for_a_writer_that_waits_for_the_directory(cluster):
    """Where a collection is to be made the directory is asked before anything is written, also by an operation on several databases."""
    with cluster.client(0, retryWrites=False) as client, cluster.shards[0].direct(0) as shard:
        client.held.plants.insert_one({"_id": 1, "n": 0})
        client.made.plants.insert_one({"_id": 1})
        # The router knows that there is none.
        assert client.made.trees.find_one() is None

        def both():
            client.bulk_write([UpdateOne({"_id": 1}, {"$inc": {"n": 1}}, namespace="held.plants"),
                               InsertOne({"_id": 1}, namespace="made.trees")])

        def asks():
            active = shard.admin.command("currentOp")["inprog"]
            return any(op.get("command", {}).get("bulkWrite") for op in active)

        config = cluster.config.servers[0].process
        stand_still(config)
        try:
            begun = Attempt("bulkWrite", both)
            eventually(asks, "the shard asks")
            with pymongo.timeout(10):
                client.held.plants.update_one({"_id": 1}, {"$inc": {"n": 10}})
            assert not begun.done, begun.error
        finally:
            os.kill(config.pid, signal.SIGCONT)
        eventually(lambda: begun.done, "the config server answers")
        assert begun.error is None, begun.error
        assert client.held.plants.find_one()["n"] == 11 and client.made.trees.count_documents({}) == 1


@alone(shards=1, members=1, routers=1)
def a_statement_that_was_given_up_begins_no_transaction(cluster):
    """It lies in the socket of a shard that stands still; the router has given it up when that goes on."""
    with cluster.client() as client, cluster.shards[0].direct(0) as shard:
        plants = client.late.plants
        plants.insert_one({"_id": 1})
        process = cluster.shards[0].servers[0].process
        stand_still(process)
        try:
            with client.start_session() as session:
                session.start_transaction()
                begun = Attempt("update", lambda: plants.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session))
                eventually(lambda: begun.done, "the router gives it up")
                assert begun.error.has_error_label("TransientTransactionError"), begun.error
        finally:
            os.kill(process.pid, signal.SIGCONT)
        # An open transaction would be in the way of both for a minute.
        with pymongo.timeout(20):
            plants.create_index("n")
            plants.update_one({"_id": 1}, {"$inc": {"n": 10}})
        assert plants.find_one()["n"] == 10
        assert shard.admin.command("serverStatus")["transactions"]["currentOpen"] == 0
