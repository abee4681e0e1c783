"""The manual's pages on $collStats, $indexStats, $shardedDataDistribution, collStats, dbStats, serverStatus: who says what, and for whom."""

from checks import check, refused
from scenarios import spread_evenly


@check
def stages_say_which_shard_speaks(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "figures.plants")
        plants.create_index("name")
        stats = list(plants.aggregate([{"$collStats": {"storageStats": {}, "count": {}, "latencyStats": {}}}]))
        assert {entry["shard"] for entry in stats} == {"shard0", "shard1"}, stats
        assert all(entry["ns"] == "figures.plants" and ":" in entry["host"] for entry in stats)
        assert sum(entry["count"] for entry in stats) == 100
        assert sum(entry["storageStats"]["count"] - entry["storageStats"]["numOrphanDocs"] for entry in stats) == 100
        used = list(plants.aggregate([{"$indexStats": {}}, {"$sort": {"name": 1, "shard": 1}}]))
        names = [(entry["name"], entry["shard"]) for entry in used]
        assert names == [(name, shard) for name in ("_id_", "k_1", "name_1") for shard in ("shard0", "shard1")], names
        assert all(entry["host"] and entry["spec"]["name"] == entry["name"] for entry in used)


@check
def the_distribution_of_sharded_data(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "distribution.plants")
        own = [{"$match": {"ns": "distribution.plants"}}]
        [entry] = client.admin.aggregate([{"$shardedDataDistribution": {}}, *own])
        shards = {shard["shardName"]: shard for shard in entry["shards"]}
        assert set(shards) == {"shard0", "shard1"}, entry
        assert sum(shard["numOwnedDocuments"] for shard in shards.values()) == 100
        size = plants.aggregate([{"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}}]).next()["bytes"]
        assert abs(sum(shard["ownedSizeBytes"] for shard in shards.values()) - size) <= 200, (entry, size)
        # What was moved away is there until it is removed.
        client.admin.command("moveRange", "distribution.plants", min={"k": 10}, max={"k": 20}, toShard="shard1")
        [entry] = client.admin.aggregate([{"$shardedDataDistribution": {}}, *own])
        shards = {shard["shardName"]: shard for shard in entry["shards"]}
        assert shards["shard0"]["numOwnedDocuments"] == 40 and shards["shard1"]["numOwnedDocuments"] == 60, entry
        assert shards["shard0"]["numOrphanedDocs"] == 10 and shards["shard1"]["numOrphanedDocs"] == 0, entry
        assert plants.count_documents({}) == 100
        # A router that knows the collection as one that is not sharded looks again.
        later = client.distribution.later
        later.insert_one({"_id": 1, "k": 1})
        later.create_index("k")
        with cluster.client(router=1) as other:
            other.admin.command("shardCollection", "distribution.later", key={"k": 1})
        assert len(list(client.admin.aggregate([{"$shardedDataDistribution": {}}, {"$match": {"ns": "distribution.later"}}]))) == 1
        refused(6789100, lambda: client.admin.aggregate([{"$shardedDataDistribution": {"a": 1}}]))
        refused(6789102, lambda: client.test.aggregate([{"$shardedDataDistribution": {}}]))
        with cluster.shards[0].direct(0) as shard:
            refused(6789101, lambda: list(shard.admin.aggregate([{"$shardedDataDistribution": {}}])))


@check
def figures_of_collections_and_databases_are_summed(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "sums.plants")
        stats = client.sums.command("collStats", "plants")
        assert stats["sharded"] and stats["count"] == 100 and set(stats["shards"]) == {"shard0", "shard1"}, stats
        assert stats["nchunks"] == 2 and stats["nindexes"] == 2, stats
        whole = client.sums.command("dbStats")
        assert whole["objects"] == 100 and len(whole["raw"]) == 2, whole
        assert client.sums.command("dataSize", "sums.plants")["numObjects"] == 100
        assert plants.estimated_document_count() == 100
        assert client.sums.command("validate", "plants")["valid"]
        status = client.admin.command("serverStatus")
        assert status["process"] == "mongos" and status["sharding"]["configsvrConnectionString"].startswith("config/")
