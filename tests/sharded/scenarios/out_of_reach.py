"""Shards that cannot be reached: what is answered without them, how soon, and what is refused of one that is about to leave."""

import os
import signal
import time

from pymongo.errors import OperationFailure, PyMongoError

from checks import alone, refused
from cluster import eventually
from scenarios import spread_evenly
from sheaf_process import stand_still


def within(seconds, run):
    began = time.monotonic()
    ran = run()
    took = time.monotonic() - began
    assert took < seconds, f"{took:.1f} s"
    return ran


@alone(shards=2, members=1, routers=1)
def partial_results_in_time(cluster):
    """With allowPartialResults a shard that says nothing, or is gone, is left out when the time is over, and before."""
    with cluster.client(0) as client:
        spread_evenly(client, "partial.plants")
        client.admin.command("enableSharding", "whole", primaryShard="shard1")
        client.whole.plants.insert_many([{"_id": at} for at in range(100)])
        db = client.partial

        def find(**more):
            return db.command("find", "plants", allowPartialResults=True, **more)["cursor"]

        assert "partialResultsReturned" not in find(maxTimeMS=20000)
        opened = find(maxTimeMS=4000, batchSize=2)
        # Of collections that are on one shard there is nothing without it.
        whole = [client.whole.command("find", "plants", allowPartialResults=True, batchSize=2, **more)["cursor"]
                 for more in ({"maxTimeMS": 4000}, {}, {})]
        certain = client.whole.command("find", "plants", batchSize=2)["cursor"]

        def rest_of_whole(cursor):
            more = within(15, lambda: client.whole.command("getMore", cursor["id"], collection="plants")["cursor"])
            assert more["partialResultsReturned"] is True and more["nextBatch"] == [] and more["id"] == 0, more
            refused(43, lambda: client.whole.command("getMore", cursor["id"], collection="plants"))

        shard = cluster.shards[1].servers[0]
        stand_still(shard.process)
        try:
            cursor = within(10, lambda: find(maxTimeMS=4000))
            assert cursor["partialResultsReturned"] is True and cursor["id"] == 0, cursor
            assert sorted(plant["k"] for plant in cursor["firstBatch"]) == list(range(50))
            # The flag stays with the cursor.
            cursor = find(maxTimeMS=4000, batchSize=10, sort={"k": 1})
            more = db.command("getMore", cursor["id"], collection="plants")["cursor"]
            assert more["partialResultsReturned"] is True and len(more["nextBatch"]) == 40, more
            # None of the shards that have something answers.
            cursor = within(10, lambda: find(filter={"k": 70}, maxTimeMS=1000))
            assert cursor["firstBatch"] == [] and cursor["partialResultsReturned"] is True, cursor
            cursor = client.whole.command("find", "plants", allowPartialResults=True, maxTimeMS=1000)["cursor"]
            assert cursor["firstBatch"] == [] and cursor["partialResultsReturned"] is True, cursor
            refused(50, lambda: db.command("find", "plants", maxTimeMS=1000))
            # An open cursor gives what the others have, too, within the time that its find was given.
            cursor = within(20, lambda: db.command("getMore", opened["id"], collection="plants", batchSize=60)["cursor"])
            assert cursor["partialResultsReturned"] is True, cursor
            found = [plant["k"] for plant in opened["firstBatch"] + cursor["nextBatch"]]
            assert set(range(50)) <= set(found), found
            rest_of_whole(whole[0])
            rest_of_whole(whole[1])
            # What it has answered wrongly is an error all the same.
            refused(2, lambda: find(filter={"k": {"$what": 1}}, maxTimeMS=1000))
        finally:
            os.kill(shard.process.pid, signal.SIGCONT)
        eventually(lambda: "partialResultsReturned" not in find(maxTimeMS=20000), "the shard answers again")
        opened = find(batchSize=2)
        shard.kill()
        refused(6, lambda: client.whole.command("getMore", certain["id"], collection="plants"))
        rest_of_whole(whole[2])
        # An open cursor goes on with the others' documents.
        seen, cursor = len(opened["firstBatch"]), opened
        while cursor["id"]:
            cursor = db.command("getMore", cursor["id"], collection="plants")["cursor"]
            seen += len(cursor["nextBatch"])
        assert cursor["partialResultsReturned"] is True and seen in range(50, 100), (seen, cursor)
        # Without a time, too, it is waited for no longer than an election takes.
        for name, there in (("partial", 50), ("whole", 0)):
            cursor = within(15, lambda: client[name].command("find", "plants", allowPartialResults=True)["cursor"])
            assert cursor["partialResultsReturned"] is True and len(cursor["firstBatch"]) == there, cursor
        # Who looks how the cluster does is told soon.
        within(15, lambda: refused(133, lambda: client.admin.command("listDatabases")))
        within(15, lambda: refused(133, lambda: client.admin.command("currentOp")))
        for stage in ("$shardedDataDistribution", "$currentOp"):
            began = time.monotonic()
            try:
                list(client.admin.aggregate([{stage: {}}]))
                raise AssertionError("a shard is missing")
            except PyMongoError as error:
                assert error.code == 133, error
            # Who waits for a primary as long as others do takes twenty.
            assert time.monotonic() - began < 15, stage


@alone(shards=2, members=1, routers=1)
def a_shard_that_hangs(cluster):
    """Who waits for a member that says nothing has it asked whether it is there, and waits no longer than for one that is gone."""
    with cluster.client(0) as client:
        spread_evenly(client, "hanging.plants")
        plants, shard = client.hanging.plants, cluster.shards[1].servers[0]
        assert plants.count_documents({}) == 100
        stand_still(shard.process)
        try:
            # Nobody would find out before 15 seconds were over, and then it would be waited for.
            within(30, lambda: refused(133, lambda: plants.count_documents({})))
        finally:
            os.kill(shard.process.pid, signal.SIGCONT)
        eventually(lambda: plants.count_documents({}) == 100, "it answers again")


@alone(shards=2, members=1, routers=1)
def shards_that_are_drained_take_nothing(cluster):
    with cluster.client(0) as client:
        spread_evenly(client, "drained.plants")
        client.admin.command("removeShard", "shard1")
        # As in MongoDB: it is in the cluster, and stays as it is.
        assert client.admin.command("addShard", cluster.address(cluster.shards[1]))["shardAdded"] == "shard1"
        assert client.config.shards.find_one({"_id": "shard1"})["draining"] is True
        for command in (
            {"moveChunk": "drained.plants", "find": {"k": 1}, "to": "shard1"},
            {"moveRange": "drained.plants", "min": {"k": 1}, "toShard": "shard1"},
            {"movePrimary": "drained", "to": "shard1"},
        ):
            refused(70, lambda: client.admin.command(command))
        # What is there already stays there.
        client.admin.command({"moveChunk": "drained.plants", "find": {"k": 70}, "to": "shard1"})
        wrong = cluster.address(cluster.shards[0]).replace("shard0/", "other/")
        error = within(8, lambda: refused(96, lambda: client.admin.command("addShard", wrong)))
        assert "does not match the actual set name shard0" in str(error), error


@alone(shards=2, members=1, routers=1, balances=True)
def a_drained_shard_tells_what_its_ranges_wait_for(cluster):
    """A range that a shard has given away cannot come back before its documents are removed there: `removeShard` says so."""
    with cluster.client(0) as client:
        spread_evenly(client, "waiting.plants")
        client.admin.command("removeShard", "shard1")

        def note():
            status = client.admin.command("removeShard", "shard1")
            assert status["remaining"]["chunks"] == 1, status
            # Nothing has to be moved by anybody else.
            assert status["dbsToMove"] == status["collectionsToMove"] == [] and "moveCollection" not in status.get("note", ""), status
            return all(part in status.get("note", "") for part in ("waiting.plants", "orphanCleanupDelaySecs"))

        eventually(note, "the note says why")
        with cluster.shards[0].direct(0) as shard:
            shard.admin.command({"setParameter": 1, "orphanCleanupDelaySecs": 0})
        eventually(lambda: client.admin.command("removeShard", "shard1")["state"] == "completed", "it is removed")


@alone(shards=3, members=1, routers=1)
def parameters_pass_by_shards_that_are_gone(cluster):
    """Shards that are out of reach keep a parameter of the cluster from nobody else, and are told when they come back."""
    def lifetime(shard):
        with cluster.shards[shard].direct(0) as direct:
            shown = direct.admin.command("getClusterParameter", "changeStreamOptions")["clusterParameters"][0]
            return shown["preAndPostImages"]["expireAfterSeconds"]

    with cluster.client(0) as client:
        def change(seconds):
            client.admin.command("setClusterParameter", {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": seconds}}})

        change(100)
        assert [lifetime(shard) for shard in range(3)] == [100, 100, 100]
        for gone in (0, 1):
            cluster.shards[gone].servers[0].kill()
        # One after another they would take their patience each.
        within(15, lambda: refused(133, lambda: change(200)))
        assert lifetime(2) == 200
        for gone in (0, 1):
            cluster.shards[gone].servers[0].start()
        eventually(lambda: lifetime(0) == lifetime(1) == 200, "they are told")


@alone(shards=2, members=1, routers=1)
def a_shard_is_told_of_parameters_before_it_is_one(cluster):
    with cluster.client(0) as client:
        set_parameter = {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 100}}}
        client.admin.command("setClusterParameter", set_parameter)
        client.admin.command("startShardDraining", "shard1")
        eventually(lambda: client.admin.command("removeShard", "shard1")["state"] == "completed", "it is removed")
        with cluster.shards[1].direct(0) as shard:
            shard.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": {
                "failCommands": ["_shardsvrSetClusterParameter"], "failInternalCommands": True, "errorCode": 8}})
        address = cluster.address(cluster.shards[1])
        refused(8, lambda: client.admin.command("addShard", address))
        assert [shard["_id"] for shard in client.admin.command("listShards")["shards"]] == ["shard0"]
        assert client.admin.command("addShard", address)["shardAdded"] == "shard1"


@alone(shards=2, members=1, routers=1)
def what_is_known_serves_without_config_servers(cluster):
    """A change stream opens on the shards that are known, and a pipeline on what is not sharded asks its own shard about it."""
    with cluster.client(0) as client:
        spread_evenly(client, "alone.plants")
        client.alone.beds.insert_one({"k": 1})
        join = [{"$lookup": {"from": "plants", "localField": "k", "foreignField": "k", "as": "all"}}]
        union = [{"$unionWith": "plants"}]

        def joined():
            return len(list(client.alone.beds.aggregate(join))[0]["all"]), len(list(client.alone.beds.aggregate(union)))

        assert joined() == (1, 101)
        opened = client.alone.plants.watch(max_await_time_ms=100)
        config = cluster.config.servers[0]
        stand_still(config.process)
        try:
            assert within(10, joined) == (1, 101)
            with within(12, lambda: client.alone.plants.watch(max_await_time_ms=100)) as stream:
                # For long enough that who watches for new shards is looked for again.
                for k in (200, 201, 202):
                    client.alone.plants.insert_one({"k": k})
                    for told in (stream, opened):
                        assert within(5, lambda: next(told))["fullDocument"]["k"] == k
                    time.sleep(6)
        finally:
            os.kill(config.process.pid, signal.SIGCONT)
            opened.close()
