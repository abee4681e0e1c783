"""What mongodump, mongorestore, mongoimport, mongoexport and mongostat --discover ask of a router, in their order."""

import pymongo
from bson import Int64
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from checks import check
from scenarios import spread_evenly


@check
def a_database_is_dumped_and_restored(cluster):
    with cluster.client(0) as client:
        plants = spread_evenly(client, "dumped.plants", 500)
        plants.create_index([("name", -1)], sparse=True)
        client.dumped.create_collection("notes", validator={"text": {"$type": "string"}})
        client.dumped.notes.insert_one({"_id": 1, "text": "dry"})
        client.dumped.create_collection("tall", viewOn="plants", pipeline=[{"$match": {"k": {"$gt": 490}}}])
        # mongodump
        assert client.admin.command("isMaster")["msg"] == "isdbgrid"
        assert client.admin.command("buildInfo")["version"]
        assert "dumped" in [entry["name"] for entry in client.admin.command("listDatabases", nameOnly=True)["databases"]]
        listed = {entry["name"]: entry for entry in client.dumped.list_collections()
                  if entry["name"] != "system.views"}
        assert set(listed) == {"plants", "notes", "tall"}, listed
        dump = {}
        raw = CodecOptions(document_class=RawBSONDocument)
        for name, entry in listed.items():
            indexes = [] if entry["type"] == "view" else list(client.dumped[name].list_indexes())
            documents = []
            if entry["type"] != "view":
                assert client.dumped.command("count", name)["n"] == client.dumped[name].count_documents({})
                found = client.dumped[name].with_options(codec_options=raw).find({}, no_cursor_timeout=True, batch_size=100)
                with found as cursor:
                    documents = list(cursor.hint([("_id", 1)]))
            dump[name] = (entry["options"], indexes, documents)
        # mongorestore --drop --nsFrom --nsTo
        target = client.restored
        for name, (options, indexes, documents) in dump.items():
            target.command("drop", name) if name in target.list_collection_names() else None
            target.command({"create": name, **options})
            for at in range(0, len(documents), 100):
                target.command(
                    "insert", name, documents=documents[at:at + 100], ordered=False, bypassDocumentValidation=True,
                    writeConcern={"w": "majority"})
            others = [dict(index) for index in indexes if index["name"] != "_id_"]
            if others:
                target.command("createIndexes", name, indexes=others)
        assert target.plants.count_documents({}) == 500 and target.tall.count_documents({}) == 9
        assert set(target.plants.index_information()) == {"_id_", "k_1", "name_-1"}
        assert target.notes.options()["validator"], target.notes.options()
        # A sharded one is restored as an ordinary one, and sharded then.
        client.admin.command("shardCollection", "restored.plants", key={"k": 1})
        assert target.plants.count_documents({}) == 500


@check
def documents_are_imported_and_exported(cluster):
    with cluster.client(1) as client:
        plants = spread_evenly(client, "imported.plants", 100)
        # mongoimport, and with --mode=upsert, --mode=merge, --mode=delete
        new = [{"k": at, "name": f"plant {at}"} for at in range(100, 200)]
        client.imported.command("insert", "plants", documents=new, ordered=False, bypassDocumentValidation=False)
        bulk = [pymongo.ReplaceOne({"k": at}, {"k": at, "name": "replaced"}, upsert=True) for at in range(150, 250)]
        done = plants.bulk_write(bulk, ordered=False)
        assert done.matched_count == 50 and done.upserted_count == 50, done.bulk_api_result
        merged = [pymongo.UpdateOne({"_id": at}, {"$set": {"tall": True}}, upsert=True) for at in range(10)]
        assert plants.bulk_write(merged, ordered=True).matched_count == 10
        assert plants.bulk_write([pymongo.DeleteOne({"k": at}) for at in range(5)]).deleted_count == 5
        # mongoexport
        assert client.imported.command("count", "plants", query={"tall": True})["n"] == 5
        found = plants.find({"tall": True}, {"_id": 0, "name": 1}, sort=[("name", 1)], skip=1, limit=3)
        assert [plant["name"] for plant in found] == ["plant 6", "plant 7", "plant 8"]


@check
def all_servers_of_a_cluster_are_found_and_measured(cluster):
    """mongostat --discover: routers from `config.mongos`, shards from `config.shards`, members from each shard's hello."""
    with cluster.client(0) as client:
        known = {entry["_id"].rsplit(":", 1)[1] for entry in client.config.mongos.find()}
        assert known & {str(router.port) for router in cluster.routers}, known
        hosts = [entry["host"].split("/")[1] for entry in client.config.shards.find()]
        status = client.admin.command("serverStatus")
        for section in ("opcounters", "connections", "network", "mem", "extra_info", "asserts"):
            assert section in status, section
        assert status["process"] == "mongos"
    for host in hosts:
        with pymongo.MongoClient(f"mongodb://{host}/", directConnection=True) as member:
            assert host in member.admin.command("hello")["hosts"]
            status = member.admin.command("serverStatus")
            assert isinstance(status["opcounters"]["insert"], (int, Int64)) and status["repl"]["setName"], status["repl"]
