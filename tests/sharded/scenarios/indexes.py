"""The pages on unique indexes, dropIndexes and collMod in sharded collections: what a shard key asks of indexes."""

from checks import check, refused
from scenarios import spread_evenly


@check
def unique_indexes_begin_with_the_shard_key(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "unique.plants")
        error = refused(67, lambda: plants.create_index("name", unique=True))
        assert "with shard key pattern { k: 1 }" in str(error), error
        refused(67, lambda: plants.create_index([("name", 1), ("k", 1)], unique=True))
        refused(67, lambda: client.unique.command(
            "createIndexes", "plants", indexes=[{"key": {"name": 1}, "name": "name_1", "prepareUnique": True}]))
        plants.create_index([("k", 1), ("name", 1)], unique=True)
        plants.create_index("name")
        refused(72, lambda: client.unique.command(
            "collMod", "plants", index={"keyPattern": {"name": 1}, "prepareUnique": True}))
        refused(11000, lambda: plants.insert_one({"k": 60, "name": "plant 60"}))
        # Another shard's, of another key.
        plants.insert_one({"k": 61, "name": "plant 60"})
        assert len(list(plants.list_indexes())) == 4


@check
def the_last_index_of_the_shard_key_stays(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "lastindex.plants")
        drop = client.lastindex.command
        error = refused(370, lambda: drop("dropIndexes", "plants", index="k_1"))
        assert "Cannot drop the only compatible index for this collection's shard key" in str(error)
        refused(72, lambda: drop("collMod", "plants", index={"name": "k_1", "hidden": True}))
        plants.create_index([("k", 1), ("name", 1)])
        plants.create_index("name")
        drop("collMod", "plants", index={"name": "k_1", "hidden": True})
        refused(370, lambda: drop("dropIndexes", "plants", index="k_1_name_1"))
        drop("collMod", "plants", index={"name": "k_1", "hidden": False})
        refused(370, lambda: drop("dropIndexes", "plants", index=["k_1_name_1", "k_1"]))
        drop("dropIndexes", "plants", index="k_1")
        # All but those that the shard key needs.
        drop("dropIndexes", "plants", index="*")
        assert sorted(plants.index_information()) == ["_id_", "k_1_name_1"], plants.index_information()
        assert plants.count_documents({"k": {"$gte": 0}}) == 100
        refused(72, lambda: drop("dropIndexes", "plants", index="_id_"))


@check
def indexes_of_hashed_keys_may_go(cluster):
    with cluster.client() as client:
        client.admin.command("shardCollection", "lastindex.hashed", key={"k": "hashed"})
        client.lastindex.hashed.insert_many([{"k": at} for at in range(50)])
        client.lastindex.command("dropIndexes", "hashed", index="k_hashed")
        assert client.lastindex.hashed.count_documents({"k": 7}) == 1
