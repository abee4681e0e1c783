"""The pages on convertToCapped, cloneCollectionAsCapped, renameCollection, $out and $merge: what whole collections undergo."""

import uuid

from bson.binary import UUID_SUBTYPE, Binary
from pymongo.read_concern import ReadConcern

from checks import check, refused
from scenarios import spread_evenly


@check
def sharded_collections_are_never_capped(cluster):
    with cluster.client() as client:
        spread_evenly(client, "capped.plants")
        command = client.capped.command
        error = refused(20, lambda: command("convertToCapped", "plants", size=4096))
        assert "You can't convertToCapped a sharded collection" in str(error)
        refused(59, lambda: command("cloneCollectionAsCapped", "plants", toCollection="few", size=4096))
        client.capped.whole.insert_one({})
        command("convertToCapped", "whole", size=4096)
        assert client.capped.whole.options()["capped"]
        refused(72, lambda: client.admin.command("shardCollection", "capped.whole", key={"_id": 1}))


@check
def out_replaces_collections_on_one_shard(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "outs.plants")
        client.admin.command("enableSharding", "outselsewhere", primaryShard="shard1")
        every = [{"$match": {"k": {"$gte": 20}}}, {"$sort": {"k": 1}}]
        for db in ("outs", "outselsewhere"):
            into = client[db].tall
            for _ in range(2):
                plants.aggregate([*every, {"$out": {"db": db, "coll": "tall"}}])
                assert into.count_documents({}) == 80
                assert [plant["k"] for plant in into.find({}).sort("k", -1).limit(2)] == [99, 98]
            # The target's options and indexes stay.
            into.create_index("name", unique=True)
            plants.aggregate([*every, {"$out": {"db": db, "coll": "tall"}}])
            assert into.index_information()["name_1"]["unique"] and "temp" not in into.options()
            refused(11000, lambda: plants.aggregate(
                [{"$set": {"name": "one"}}, {"$out": {"db": db, "coll": "tall"}}]))
            assert into.count_documents({}) == 80 and client[db].list_collection_names(filter={"name": {"$regex": "tmp"}}) == []
        # How its source is read says nothing about the target's definition.
        for level in ("available", "majority", "snapshot"):
            source = plants.with_options(read_concern=ReadConcern(level))
            source.aggregate([*every, {"$out": {"db": "outselsewhere", "coll": "tall"}}])
            source.aggregate([*every, {"$merge": {"into": {"db": "outselsewhere", "coll": "tall"}, "on": "name"}}])
            assert client.outselsewhere.tall.count_documents({}) == 80, level
        linear = plants.with_options(read_concern=ReadConcern("linearizable"))
        refused(72, lambda: linear.aggregate([{"$merge": {"into": "tall"}}]))
        client.outs.create_collection("shown", viewOn="plants", pipeline=[])
        code = {"map": "function() { emit(1, 1) }", "reduce": "function(k, v) { return 1 }"}
        refused(166, lambda: client.outs.command("mapReduce", "shown", **code, out={"inline": 1}))
        # An unsharded collection into a database on another shard.
        client.outs.tall.aggregate([{"$match": {"k": {"$lt": 30}}}, {"$out": {"db": "outselsewhere", "coll": "small"}}])
        assert client.outselsewhere.small.count_documents({}) == 10
        client.outselsewhere.create_collection("rows", capped=True, size=4096)
        refused(17152, lambda: plants.aggregate([{"$out": {"db": "outselsewhere", "coll": "rows"}}]))
        client.outselsewhere.create_collection("view", viewOn="tall", pipeline=[])
        refused(166, lambda: plants.aggregate([{"$out": {"db": "outselsewhere", "coll": "view"}}]))


@check
def out_never_replaces_a_sharded_collection(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "outsharded.plants")
        client.outsharded.whole.insert_one({"k": 1})
        for source in (plants, client.outsharded.whole):
            error = refused(28769, lambda: source.aggregate([{"$out": "plants"}]))
            assert "outsharded.plants cannot be sharded" in str(error), error
        assert plants.count_documents({}) == 100


@check
def merge_tells_documents_apart_by_the_shard_key(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "mergings.plants")
        client.mergings.news.insert_many([{"_id": 5, "k": 5, "name": "new"}, {"_id": 500, "k": 70, "name": "another"}])
        client.mergings.news.aggregate([{"$merge": "plants"}])
        assert plants.find_one({"k": 5})["name"] == "new" and plants.count_documents({"k": 70}) == 2
        refused(51183, lambda: client.mergings.news.aggregate([{"$merge": {"into": "plants", "on": "name"}}]))
        plants.create_index([("k", 1), ("name", 1)], unique=True)
        stage = {"into": "plants", "on": ["name", "k"], "whenMatched": "fail"}
        refused(11000, lambda: client.mergings.news.aggregate([{"$merge": stage}]))
        plants.aggregate([{"$set": {"copied": True}}, {"$merge": {"into": "plants", "whenNotMatched": "fail"}}])
        assert plants.count_documents({"copied": True}) == 101


@check
def renaming_stays_within_a_database(cluster):
    with cluster.client() as client:
        spread_evenly(client, "renames.plants")
        client.admin.command("enableSharding", "renameselsewhere", primaryShard="shard1")
        client.renames.whole.insert_one({})
        refused(125, lambda: client.admin.command("renameCollection", "renames.whole", to="renameselsewhere.whole"))
        client.renames.plants.rename("herbs")
        assert client.renames.herbs.count_documents({}) == 100
        assert client.config.collections.find_one({"_id": "renames.herbs"})["key"] == {"k": 1}


@check
def a_refused_rename_keeps_its_target(cluster):
    """The target of `dropTarget` goes only when nothing can refuse any more."""
    with cluster.client() as client:
        spread_evenly(client, "renamedonto.plants")
        db = client.renamedonto
        db.whole.insert_one({"_id": 1})
        db.command("create", "view", viewOn="whole", pipeline=[])
        db.create_collection("measured", timeseries={"timeField": "t"})
        other = Binary(uuid.uuid4().bytes, UUID_SUBTYPE)
        for code, source, more in [(26, "nothing", {}), (166, "view", {}), (166, "measured", {}), (20, "system.views", {}),
                                   (361, "whole", {"collectionUUID": other})]:
            rename = {"renameCollection": f"renamedonto.{source}", "to": "renamedonto.plants", "dropTarget": True, **more}
            refused(code, lambda: client.admin.command(rename))
            assert db.plants.count_documents({}) == 100, source
            assert client.config.collections.count_documents({"_id": "renamedonto.plants"}) == 1, source
        own = next(db.list_collections(filter={"name": "whole"}))["info"]["uuid"]
        client.admin.command("renameCollection", "renamedonto.whole", to="renamedonto.plants", dropTarget=True, collectionUUID=own)
        assert list(db.plants.find()) == [{"_id": 1}]
