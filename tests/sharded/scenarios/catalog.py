"""The page on $listClusterCatalog, through routers."""

from checks import check
from scenarios import spread_evenly


@check
def the_catalog_is_the_cluster_s(cluster):
    with cluster.client() as client:
        spread_evenly(client, "catalogued.plants")
        client.catalogued.notes.insert_one({"_id": 1})
        client.catalogued.loose.insert_one({"_id": 1})
        client.catalogued.create_collection("tall", viewOn="plants", pipeline=[])
        client.admin.command("moveCollection", "catalogued.notes", toShard="shard1")

        def catalog(db, **spec):
            return {entry["ns"]: entry for entry in client[db].aggregate([{"$listClusterCatalog": spec}])}

        told = catalog("catalogued", shards=True, balancingConfiguration=True)
        plants, notes, loose = (told[f"catalogued.{name}"] for name in ("plants", "notes", "loose"))
        assert plants["sharded"] and plants["shardKey"] == {"k": 1} and plants["shards"] == ["shard0", "shard1"], plants
        assert plants["balancingEnabled"] and plants["chunkSize"] == 128, plants
        assert not notes["sharded"] and notes["shards"] == ["shard1"] and "shardKey" not in notes, notes
        assert not loose["sharded"] and loose["shards"] == ["shard0"], loose
        assert told["catalogued.tall"]["type"] == "view", told
        assert "shards" not in catalog("catalogued")["catalogued.plants"]
        everything = catalog("admin")
        assert {"catalogued.plants", "catalogued.tall", "config.chunks"} <= everything.keys(), list(everything)
