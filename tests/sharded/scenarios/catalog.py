"""The page on $listClusterCatalog, through routers; and the catalog while it changes."""

import datetime
import threading

from checks import check, refused
from cluster import eventually
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


@check
def a_key_is_refined_while_a_router_reads_the_catalog(cluster):
    """A router that has the entry from before the refinement and the chunks from behind it reads both again."""
    with cluster.client(0) as client, cluster.client(1) as other:
        plants = spread_evenly(client, "refining.plants")
        plants.create_index([("k", 1), ("name", 1)])
        read = []

        def look():
            try:
                read.append(other.refining.plants.find_one({"k": 70})["name"])
            except Exception as error:
                read.append(error)

        with cluster.config.direct(cluster.config.primary()) as config:
            def is_held_up():
                return any(op.get("command", {}).get("find") == "chunks" for op in config.admin.command("currentOp")["inprog"])

            other.admin.command("flushRouterConfig")
            config.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": {
                "failCommands": ["find"], "namespace": "config.chunks", "blockConnection": True, "blockTimeMS": 4000}})
            reader = threading.Thread(target=look)
            reader.start()
            eventually(lambda: is_held_up() or read, "it has the entry, and asks for the chunks")
            client.admin.command("refineCollectionShardKey", "refining.plants", key={"k": 1, "name": 1})
            reader.join()
            config.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        assert read == ["plant 70"], read
        client.drop_database("refining")


@check
def a_shard_without_room_for_a_new_collection(cluster):
    """Who shards a collection is told that a shard has no room, also where it has none to forget what it has begun; the collection is as before."""
    begun = ["_shardsvrCreateCollectionParticipant", "_shardsvrDropCollectionParticipant"]
    with cluster.client() as client, cluster.shards[1].direct(cluster.shards[1].primary()) as full:
        client.admin.command("enableSharding", "noroom", primaryShard="shard0")
        client.noroom.plants.insert_one({"_id": 1})
        client.noroom.plants.delete_one({"_id": 1})
        shard = {"shardCollection": "noroom.plants", "key": {"_id": "hashed"}}
        full.admin.command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": {
            "failCommands": begun, "failInternalCommands": True, "errorCode": 14031}})
        try:
            for _ in range(2):
                refused(14031, lambda: client.admin.command({**shard, "maxTimeMS": 60000}))
            assert client.noroom.plants.insert_one({"_id": 2}).acknowledged
            assert client.noroom.plants.count_documents({}) == 1
        finally:
            full.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        assert client.admin.command(shard)["collectionsharded"] == "noroom.plants"
        client.noroom.plants.insert_many([{"_id": at} for at in range(10, 60)])
        assert client.noroom.plants.count_documents({}) == 51


@check
def logs_of_the_cluster_have_a_size(cluster):
    """The balancer's log is as long as 20 MB; the oldest entries go."""
    def entry(at):
        return {"_id": f"entry {at:03}", "time": datetime.datetime(2000, 1, 1) + datetime.timedelta(hours=at), "text": "x" * 100_000}

    with cluster.config.direct(cluster.config.primary()) as config:
        log = config.config.actionlog
        for at in range(0, 260, 20):
            log.insert_many(entry(at) for at in reversed(range(at, at + 20)))
        eventually(lambda: log.count_documents({"text": {"$exists": True}}) * 100_000 <= 20 << 20, "what is too much is gone")
        left = sorted(found["_id"] for found in log.find({"text": {"$exists": True}}, {"_id": 1}))
        assert len(left) > 150 and left == [entry(at)["_id"] for at in range(260 - len(left), 260)], (len(left), left[:3])
        log.delete_many({"text": {"$exists": True}})
