"""The pages on getShardVersion, shardingState, cleanupOrphaned, flushRouterConfig, getShardMap: what servers know of the directory."""

from bson import ObjectId, Timestamp

from checks import check, refused
from scenarios import spread_evenly


@check
def versions_of_a_router_and_of_shards(cluster):
    with cluster.client(0) as client:
        spread_evenly(client, "versions.plants")
        client.versions.whole.insert_one({})
        told = client.admin.command("getShardVersion", "versions.plants", fullMetadata=True)
        assert isinstance(told["version"], Timestamp) and isinstance(told["versionEpoch"], ObjectId), told
        assert told["versionTimestamp"] == client.config.collections.find_one({"_id": "versions.plants"})["timestamp"]
        assert [low["k"] for low, high in told["chunks"]][1:] == [50], told
        assert "chunks" not in client.admin.command("getShardVersion", "versions.plants")
        refused(118, lambda: client.admin.command("getShardVersion", "versions.whole"))
        of_database = client.admin.command("getShardVersion", "versions")
        entry = client.config.databases.find_one({"_id": "versions"})
        assert of_database["primaryShard"] == "shard0" and of_database["version"] == entry["version"], of_database
        refused(26, lambda: client.admin.command("getShardVersion", "nothing"))
        refused(13, lambda: client.versions.command("getShardVersion", "versions.plants"))
        assert client.admin.command("flushRouterConfig", "versions.plants")["flushed"] is True
        assert client.admin.command("flushRouterConfig")["flushed"] is True
        shard_map = client.admin.command("getShardMap")
    newest = []
    for number, members in enumerate(cluster.shards):
        with members.direct(members.primary()) as shard:
            told = shard.admin.command("getShardMap")
            assert told["map"].keys() == shard_map["map"].keys() and told["hosts"] == shard_map["hosts"], (told, shard_map)
            told = shard.admin.command("getShardVersion", "versions.plants", fullMetadata=True)
            assert told["configServer"].startswith("config/") and len(told["metadata"]["chunks"]) == 1, told
            newest.append(told["global"])
            assert shard.admin.command("getShardVersion", "versions.whole")["global"] == Timestamp(0, 0)
            state = shard.admin.command("shardingState")
            assert state["enabled"] and state["shardName"] == f"shard{number}" and "clusterId" in state, state
            assert state["versions"]["versions.plants"]["placementVersion"] == told["global"], state
            refused(73, lambda: shard.admin.command("getShardVersion", "versions"))
    with cluster.client() as client:
        assert max(newest) == client.admin.command("getShardVersion", "versions.plants")["version"]
        refused(59, lambda: client.admin.command("shardingState"))
        refused(59, lambda: client.admin.command("cleanupOrphaned", "versions.plants"))
    with cluster.config.direct(0) as config:
        # As which shard they may hold documents.
        state = config.admin.command("shardingState")
        assert state["enabled"] and state["shardName"] == "config" and state["versions"] == {}, state


@check
def cleanup_waits_for_what_was_moved(cluster):
    with cluster.client() as client:
        spread_evenly(client, "cleanup.plants")
    donor, recipient = cluster.shards[1], cluster.shards[0]
    with recipient.direct(recipient.primary()) as shard:
        # It has had the range before.
        shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
        assert shard.admin.command("cleanupOrphaned", "cleanup.plants")["ok"] == 1
        shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=900)
    with cluster.client() as client, donor.direct(donor.primary()) as shard:
        assert shard.admin.command("cleanupOrphaned", "cleanup.plants")["ok"] == 1
        assert shard.admin.command("cleanupOrphaned", "cleanup.nothing")["ok"] == 1
        client.admin.command("moveRange", "cleanup.plants", min={"k": 50}, max={"k": 60}, toShard="shard0")
        refused(50, lambda: shard.admin.command("cleanupOrphaned", "cleanup.plants", maxTimeMS=200))
        shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
        assert shard.admin.command("cleanupOrphaned", "cleanup.plants")["ok"] == 1
        [stats] = shard.cleanup.plants.aggregate([{"$collStats": {"storageStats": {}}}])
        assert stats["storageStats"]["count"] == 40 and stats["storageStats"]["numOrphanDocs"] == 0, stats
        shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=900)
        refused(73, lambda: shard.admin.command("cleanupOrphaned", "cleanup"))
