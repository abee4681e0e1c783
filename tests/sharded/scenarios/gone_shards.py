"""A shard that has left the cluster, and its process with it: who has not heard of that finds out, and does not wait for nothing."""

from checks import alone
from cluster import eventually


def remove(client, shard):
    def is_removed():
        return client.admin.command("removeShard", shard)["state"] == "completed"

    eventually(is_removed, "the shard is removed")


@alone(shards=2, members=1, routers=2, balances=True)
def gone_shards_are_not_waited_for(cluster):
    for members in [cluster.config, *cluster.shards]:
        with members.direct(0) as direct:
            direct.admin.command({"setParameter": 1, "orphanCleanupDelaySecs": 0})
    with cluster.client(0) as client, cluster.client(1, retryReads=False, retryWrites=False) as stale:
        client.admin.command("enableSharding", "gone", primaryShard="shard1")
        client.admin.command("shardCollection", "gone.spread", key={"_id": "hashed"})
        for name in ("spread", "written", "plain"):
            stale.gone[name].insert_many([{"_id": n} for n in range(500)])
        client.admin.command("shardCollection", "gone.written", key={"_id": 1})
        assert stale.gone.spread.count_documents({}) == stale.gone.written.count_documents({}) == 500
        client.admin.command("startShardDraining", "shard1")
        eventually(lambda: client.admin.command("shardDrainingStatus", "shard1")["remaining"]["chunks"] == 0, "no chunks")
        client.admin.command("movePrimary", "gone", to="shard0")
        # What this router knows now is older than the directory, but not by more than the end of the draining.
        uuids = [each["uuid"] for each in client.config.collections.find({"_id": {"$regex": "^gone"}})]
        assert not client.config.chunks.count_documents({"uuid": {"$in": uuids}, "shard": "shard1"})
        remove(client, "shard1")
        cluster.shards[1].servers[0].kill()
        # Each is sent once: whoever waits for a member of that set is refused after twenty seconds.
        assert stale.gone.spread.count_documents({}) == 500
        stale.gone.written.insert_many([{"_id": n} for n in range(-5, 0)])
        stale.gone.plain.update_many({}, {"$set": {"n": 1}})
        assert stale.gone.plain.count_documents({"n": 1}) == 500
        assert stale.gone.written.count_documents({}) == 505
        assert [shard["_id"] for shard in stale.admin.command("listShards")["shards"]] == ["shard0"]
        stale.admin.command("listDatabases")
        client.admin.command("listDatabases")
