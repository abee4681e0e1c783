"""Settings and figures of collections, routers and shards: setAllowMigrations, profile, shardingStatistics."""

import bson
from bson import MinKey

from checks import check, refused


@check
def migrations_are_allowed_or_not(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("enableSharding", "still", primaryShard="shard0")
        admin.command("shardCollection", "still.plants", key={"_id": 1})
        client.still.plants.insert_many([{"_id": n} for n in range(10)])
        client.still.plain.insert_one({"_id": 0})
        refused(118, lambda: admin.command("setAllowMigrations", "still.plain", allowMigrations=False))
        refused(118, lambda: admin.command("setAllowMigrations", "still.nothing", allowMigrations=False))
        refused(40414, lambda: admin.command("setAllowMigrations", "still.plants"))
        refused(13, lambda: client.still.command("setAllowMigrations", "still.plants", allowMigrations=False))
        known = client.config.collections

        def move(to):
            admin.command({"moveRange": "still.plants", "min": {"_id": MinKey()}, "toShard": to})

        admin.command("setAllowMigrations", "still.plants", allowMigrations=False)
        assert known.find_one({"_id": "still.plants"})["permitMigrations"] is False
        refused(117, lambda: move("shard1"))
        refused(117, lambda: admin.command("moveChunk", "still.plants", find={"_id": 1}, to="shard1"))
        # Chunks are the directory's, and documents are written as ever.
        admin.command("split", "still.plants", middle={"_id": 5})
        client.still.plants.insert_one({"_id": 10})
        assert {chunk["shard"] for chunk in client.config.chunks.find({"uuid": known.find_one({"_id": "still.plants"})["uuid"]})} == {
            "shard0"}
        admin.command("setAllowMigrations", "still.plants", allowMigrations=True)
        assert "permitMigrations" not in known.find_one({"_id": "still.plants"})
        move("shard1")
        assert client.still.plants.count_documents({}) == 11
        # Of several chunks none is moved, also where the first is there already.
        for to in ("shard0", "shard1"):
            refused(2, lambda: admin.command({"moveRange": "still.plants", "min": {"_id": 0}, "max": {"_id": 7}, "toShard": to}))
        client.drop_database("still")


@check
def profile_of_a_router(cluster):
    with cluster.client(0) as client, cluster.client(1) as other:
        before = client.still.command("profile", -1)
        assert (before["was"], before["slowms"], before["sampleRate"]) == (0, 100, 1.0), before
        refused(2, lambda: client.still.command("profile", 1))
        refused(2, lambda: client.still.command("profile", 2, slowms=1))
        refused(2, lambda: client.still.command("profile", 0, sampleRate=2.0))
        client.still.command("profile", 0, slowms=7, sampleRate=0.5, filter={"ns": "still.plants"})
        now = client.still.command("profile", -1)
        assert (now["was"], now["slowms"], now["sampleRate"], now["filter"]) == (0, 7, 0.5, {"ns": {"$eq": "still.plants"}}) or \
            now["filter"] == {"ns": "still.plants"}, now
        # It is this router's alone, and no shard's.
        assert other.still.command("profile", -1)["slowms"] == 100
        with cluster.shards[0].direct(0) as shard:
            assert shard.still.command("profile", -1)["slowms"] == 100
        client.still.command("profile", 0, slowms=100, sampleRate=1.0, filter="unset")
        assert "filter" not in client.still.command("profile", -1)


@check
def sharding_statistics(cluster):
    def of_shard(number):
        with cluster.shards[number].direct(0) as shard:
            return shard.admin.command("serverStatus")["shardingStatistics"]

    def more(before, now):
        return {name: count - before[name] for name, count in now.items()}

    with cluster.client(0) as client, cluster.client(1) as other:
        def cache(of):
            return of.admin.command("serverStatus")["shardingStatistics"]["catalogCache"]

        admin = client.admin
        admin.command("enableSharding", "counted", primaryShard="shard0")
        admin.command("shardCollection", "counted.plants", key={"_id": 1})
        client.counted.plants.insert_many([{"_id": n} for n in range(50)])
        assert other.counted.plants.count_documents({"_id": {"$gte": 0}}) == 50
        assert other.counted.notes.find_one() is None
        donor, recipient, known = of_shard(0), of_shard(1), cache(other)
        assert known["numDatabaseEntries"] > 0 and known["numCollectionEntries"] > 0, known
        admin.command({"moveRange": "counted.plants", "min": {"_id": 0}, "toShard": "shard1"})
        # Asked by what is out of date now.
        assert other.counted.plants.count_documents({"_id": {"$gte": 0}}) == 50
        moved = more(donor, of_shard(0))
        assert (moved["countDonorMoveChunkStarted"], moved["countDonorMoveChunkCommitted"], moved["countDonorMoveChunkAborted"],
                moved["countDocsClonedOnDonor"], moved["countRecipientMoveChunkStarted"]) == (1, 1, 0, 50, 0), moved
        assert moved["countBytesClonedOnDonor"] == 50 * len(bson.encode({"_id": 1})), moved
        assert moved["totalDonorChunkCloneTimeMillis"] <= moved["totalDonorMoveChunkTimeMillis"], moved
        came = more(recipient, of_shard(1))
        assert (came["countRecipientMoveChunkStarted"], came["countDocsClonedOnRecipient"], came["countDonorMoveChunkStarted"]) == (
            1, 50, 0), came
        assert moved["countStaleConfigErrors"] >= 1, moved
        read = more(known, cache(other))
        assert read["countStaleConfigErrors"] >= 1 and read["countIncrementalRefreshesStarted"] >= 1, read
        client.drop_database("counted")
    with cluster.config.direct(0) as config:
        assert "countDonorMoveChunkStarted" in config.admin.command("serverStatus")["shardingStatistics"]


@check
def settings_that_cannot_be_meant(cluster):
    """`config.settings` keeps out sizes that cannot be and what nobody reads; a balancer's document that cannot be read stops it."""
    with cluster.client(0) as client:
        settings, admin = client.config.settings, client.admin

        def size(value):
            return lambda: settings.update_one({"_id": "chunksize"}, {"$set": {"value": value}}, upsert=True)

        for value in (-5, 0, 0.5, 1025, "64", None):
            refused(121, size(value))
        refused(121, lambda: settings.insert_one({"_id": "chunksize", "value": 64, "more": 1}))
        refused(121, lambda: settings.insert_one({"_id": "autosplit", "enabled": True}))
        refused(121, lambda: settings.insert_one({"_id": 1}))
        for value in (1, 1024, bson.Int64(64), 2.0):
            size(value)()
        [shown] = client.config.list_collections(filter={"name": "settings"})
        assert "$jsonSchema" in shown["options"]["validator"], shown
        settings.delete_one({"_id": "chunksize"})
        settings.update_one({"_id": "automerge"}, {"$set": {"enabled": True}}, upsert=True)
        settings.delete_one({"_id": "automerge"})
        before = settings.find_one({"_id": "balancer"})
        admin.command("balancerStart")
        assert admin.command("balancerStatus")["mode"] == "full"
        for wrong in ({"mode": "sometimes"}, {"stopped": "yes"}, {"stopped": 1}, {"activeWindow": {"start": "22:00"}},
                      {"activeWindow": "night"}, {"stoppped": True}, {"_waitForDelete": "yes"}, {"_secondaryThrottle": 1},
                      {"attemptToBalanceJumboChunks": 1}):
            refused(121, lambda: settings.update_one({"_id": "balancer"}, {"$set": wrong}))
            assert admin.command("balancerStatus")["mode"] == "full", wrong
        for right in ({"_secondaryThrottle": {"w": "majority"}}, {"_secondaryThrottle": True}, {"_waitForDelete": True},
                      {"attemptToBalanceJumboChunks": False}):
            settings.update_one({"_id": "balancer"}, {"$set": right})
        # What a validator does not see.
        settings.update_one({"_id": "balancer"}, {"$set": {"activeWindow": {"start": "25:00", "stop": "6:00"}}})
        assert admin.command("balancerStatus")["mode"] == "off"
        settings.replace_one({"_id": "balancer"}, {"mode": "full", "stopped": False})
        assert admin.command("balancerStatus")["mode"] == "full"
        # It is no client's to change.
        for change in ({"validator": {}}, {"validationLevel": "off"}, {"validationAction": "warn"}):
            refused(72, lambda: client.config.command({"collMod": "settings", **change}))
        admin.command("balancerStop")
        assert settings.find_one({"_id": "balancer"}) == before
