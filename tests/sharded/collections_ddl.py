"""Collections become sharded, change and go, whoever dies meanwhile."""

import contextlib
import pathlib
import random
import subprocess
import threading
import time

from bson import MaxKey, MinKey, Timestamp
from pymongo.errors import PyMongoError

from checks import alone, check, refused
from cluster import eventually
from node_packages import npm_home

HERE = pathlib.Path(__file__).resolve().parent
CLOSED = Timestamp(0, 1)


def placements(cluster, namespace):
    """What each shard says that it owns: {shard: placement}."""
    found = {}
    for members in cluster.shards:
        with members.direct(members.primary()) as shard:
            for placement in shard.config.placements.find({"ns": namespace}):
                found[members.name] = placement
    return found


def check_whole(cluster, namespace, key):
    """The directory and the shards say the same of a sharded collection; gives its chunks."""
    with cluster.client() as client:
        entry = client.config.collections.find_one({"_id": namespace})
        assert entry and entry["key"] == key, entry
        chunks = list(client.config.chunks.find({"uuid": entry["uuid"]}).sort("min"))
        assert client.config.ddl.count_documents({}) == 0
    field = next(iter(key))
    ends = [chunk["min"][field] for chunk in chunks] + [chunks[-1]["max"][field]]
    assert isinstance(ends[0], MinKey) and isinstance(ends[-1], MaxKey), ends
    placed = placements(cluster, namespace)
    for shard in {chunk["shard"] for chunk in chunks}:
        own = [chunk for chunk in chunks if chunk["shard"] == shard]
        assert placed[shard]["_id"] == entry["uuid"] and placed[shard]["key"] == key, placed
        # Splits and merges, which change the second number only, are no matter of shards.
        assert placed[shard]["lastmod"].time == max(chunk["lastmod"].time for chunk in own), placed
        assert len(placed[shard]["owned"]) <= len(own) and placed[shard]["owned"], placed
        members = next(members for members in cluster.shards if members.name == shard)
        with members.direct(members.primary()) as direct:
            db, collection = namespace.split(".", 1)
            info = next(direct[db].list_collections(filter={"name": collection}))
            assert info["info"]["uuid"] == entry["uuid"], info
    return chunks


@check
def shard_collection(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("enableSharding", "ddl", primaryShard="shard1")
        reply = admin.command("shardCollection", "ddl.plain", key={"name": 1})
        assert reply["collectionsharded"] == "ddl.plain" and reply["ok"] == 1, reply
        chunks = check_whole(cluster, "ddl.plain", {"name": 1})
        assert [chunk["shard"] for chunk in chunks] == ["shard1"], chunks
        assert chunks[0]["history"][0]["shard"] == "shard1" and chunks[0]["lastmod"] == Timestamp(1, 0), chunks
        # Once more is no error, with another key it is.
        assert admin.command("shardCollection", "ddl.plain", key={"name": 1})["ok"] == 1
        refused(23, lambda: admin.command("shardCollection", "ddl.plain", key={"other": 1}))
        # Hashed: a range on each shard at once.
        admin.command("shardCollection", "ddl.hashed", key={"_id": "hashed"})
        chunks = check_whole(cluster, "ddl.hashed", {"_id": "hashed"})
        assert sorted(chunk["shard"] for chunk in chunks) == ["shard0", "shard1"], chunks


@check
def shard_collection_refused(cluster):
    with cluster.client() as client:
        admin, db = client.admin, client.ddlrefused
        admin.command("enableSharding", "ddlrefused", primaryShard="shard0")

        def shard(name, key, **options):
            return admin.command({"shardCollection": f"ddlrefused.{name}", "key": key, **options})

        for name in ("nothing", "ddlrefused.$x", "ddlrefused." + "x" * 250):
            refused(73, lambda: admin.command("shardCollection", name, key={"a": 1}))
        refused(20, lambda: admin.command("shardCollection", "config.things", key={"a": 1}))
        refused(40414, lambda: admin.command("shardCollection", "ddlrefused.a"))
        refused(40415, lambda: shard("a", {"a": 1}, what=1))
        for key in ({}, {"a": -1}, {"a": "hashed", "b": "hashed"}, {"a": 1, "a.b": 1}):
            refused(2, lambda: shard("a", key))
        refused(72, lambda: shard("a", {"a": "hashed"}, unique=True))
        refused(2, lambda: shard("a", {"a": 1}, collation={"locale": "de"}))
        refused(13, lambda: client.ddlrefused.command("shardCollection", "ddlrefused.a", key={"a": 1}))
        db.docs.insert_one({"a": 1})
        error = refused(72, lambda: shard("docs", {"a": 1}))
        assert "Please create an index that starts with the proposed shard key" in str(error), error
        # What was refused is as it was.
        db.docs.insert_one({"a": [1, 2]})
        db.docs.create_index("a")
        assert "multikey" in str(refused(72, lambda: shard("docs", {"a": 1})))
        db.sparse.create_index("a", sparse=True)
        refused(72, lambda: shard("sparse", {"a": 1}))
        db.partial.create_index("a", partialFilterExpression={"b": 1})
        refused(72, lambda: shard("partial", {"a": 1}))
        db.unique.create_index("b", unique=True)
        refused(72, lambda: shard("unique", {"a": 1}))
        db.notunique.create_index("a")
        refused(72, lambda: shard("notunique", {"a": 1}, unique=True))
        db.create_collection("capped", capped=True, size=10000)
        refused(72, lambda: shard("capped", {"a": 1}))
        db.create_collection("view", viewOn="docs")
        refused(166, lambda: shard("view", {"a": 1}))
        db.create_collection("german", collation={"locale": "de"})
        refused(2, lambda: shard("german", {"a": 1}))
        assert shard("german", {"a": 1}, collation={"locale": "simple"})["ok"] == 1
        entry = client.config.collections.find_one({"_id": "ddlrefused.german"})
        assert entry["defaultCollation"]["locale"] == "de", entry
        assert client.config.collections.count_documents({"_id": {"$regex": "^ddlrefused"}}) == 1
        assert not placements(cluster, "ddlrefused.docs") and client.config.ddl.count_documents({}) == 0
        db.docs.insert_one({"a": 3})


@check
def shard_collection_beside_writers(cluster):
    """What is written while a collection becomes sharded is written, whether its index was there or not."""
    with cluster.client(0) as client:
        client.admin.command("enableSharding", "ddlwriters", primaryShard="shard0")
        plants = client.ddlwriters.plants
        plants.create_index("n")
        stop, written, failed = threading.Event(), [], []

        def write():
            n = 0
            with cluster.client(0) as own:
                while not stop.is_set():
                    try:
                        own.ddlwriters.plants.insert_one({"n": n})
                        written.append(n)
                    except PyMongoError as error:
                        failed.append(error)
                    n += 1

        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: len(written) > 100, "writes")
        client.admin.command("shardCollection", "ddlwriters.plants", key={"n": 1})
        stop.set()
        writer.join()
        check_whole(cluster, "ddlwriters.plants", {"n": 1})
        with cluster.shards[0].direct(0) as shard:
            assert {plant["n"] for plant in shard.ddlwriters.plants.find()} >= set(written)

@check
def definitions_of_sharded_collections(cluster):
    """Indexes and options change on all owners; figures are summed; a drop leaves nothing."""
    with cluster.client() as client:
        admin, db = client.admin, client.ddldefined
        admin.command("enableSharding", "ddldefined", primaryShard="shard0")
        admin.command("shardCollection", "ddldefined.plants", key={"_id": "hashed"})
        reply = db.command("createIndexes", "plants", indexes=[{"key": {"name": 1}, "name": "name_1"}])
        assert len(reply["raw"]) == 2, reply

        def indexes():
            names = []
            for members in cluster.shards:
                with members.direct(0) as shard:
                    names.append(sorted(shard.ddldefined.plants.index_information()))
            return names

        assert indexes() == [["_id_", "_id_hashed", "name_1"]] * 2, indexes()
        assert sorted(db.plants.index_information()) == ["_id_", "_id_hashed", "name_1"]
        db.command("collMod", "plants", index={"name": "name_1", "hidden": True})
        for members in cluster.shards:
            with members.direct(0) as shard:
                assert shard.ddldefined.plants.index_information()["name_1"]["hidden"] is True
                shard.ddldefined.plants.count_documents({})
        reply = db.command("dropIndexes", "plants", index="name_1")
        assert len(reply["raw"]) == 2, reply
        assert indexes() == [["_id_", "_id_hashed"]] * 2, indexes()
        refused(27, lambda: db.command("dropIndexes", "plants", index="name_1"))
        assert db.command("create", "plants")["ok"] == 1
        refused(48, lambda: db.command("create", "plants", capped=True, size=1000))
        # Only a router makes temporary collections, on a shard.
        refused(72, lambda: db.command("create", "passing", temp=True))
        reply = db.command("validate", "plants")
        assert reply["valid"] is True and len(reply["raw"]) == 2, reply
        stats = db.command("collStats", "plants")
        assert stats["sharded"] is True and sorted(stats["shards"]) == ["shard0", "shard1"], stats
        assert stats["nindexes"] == 2 and stats["count"] == 0 and stats["nchunks"] == 2, stats
        # What is acknowledged is counted, also where several shards had to decide.
        for first in range(0, 400, 20):
            db.plants.insert_many([{"_id": first + number} for number in range(20)])
            assert db.command("collStats", "plants")["count"] == first + 20
            each = [found["count"] for found in db.plants.aggregate([{"$collStats": {"count": {}}}])]
            assert sum(each) == first + 20, each
        db.plants.delete_many({})
        stats = db.command("dbStats")
        assert stats["db"] == "ddldefined" and stats["collections"] == 2 and len(stats["raw"]) == 2, stats
        assert stats["fsTotalSize"] > stats["fsUsedSize"] > 0 and stats["objects"] == 0, stats
        assert [found["name"] for found in db.list_collections()] == ["plants"]
        uuid = client.config.collections.find_one({"_id": "ddldefined.plants"})["uuid"]
        db.plants.drop()
        assert client.config.collections.find_one({"_id": "ddldefined.plants"}) is None
        assert client.config.chunks.count_documents({"uuid": uuid}) == 0
        assert not placements(cluster, "ddldefined.plants")
        for members in cluster.shards:
            with members.direct(0) as shard:
                assert "plants" not in shard.ddldefined.list_collection_names()
        # The name is free.
        admin.command("shardCollection", "ddldefined.plants", key={"name": 1})
        admin.command("shardCollection", "ddldefined.herbs", key={"_id": "hashed"})
        db.weeds.insert_one({"_id": 1})
        client.drop_database("ddldefined")
        assert client.config.collections.count_documents({"_id": {"$regex": "^ddldefined"}}) == 0
        assert client.config.databases.find_one({"_id": "ddldefined"}) is None
        for members in cluster.shards:
            with members.direct(0) as shard:
                assert "ddldefined" not in shard.list_database_names()
                assert shard.config.placements.count_documents({"ns": {"$regex": "^ddldefined"}}) == 0


@check
def chunks_are_cut_and_merged(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("enableSharding", "ddlchunks", primaryShard="shard0")
        admin.command("shardCollection", "ddlchunks.plants", key={"n": 1})
        with cluster.shards[0].direct(0) as shard:
            shard.ddlchunks.plants.insert_many([{"n": n} for n in range(100)])

        def ends():
            chunks = check_whole(cluster, "ddlchunks.plants", {"n": 1})
            return [chunk["min"]["n"] for chunk in chunks[1:]]

        def command(name, **options):
            return admin.command({name: "ddlchunks.plants", **options})

        assert command("split", middle={"n": 80})["ok"] == 1
        assert ends() == [80]
        refused(72, lambda: command("split", middle={"n": 80}))
        refused(2, lambda: command("split", middle={"m": 80}))
        refused(72, lambda: command("split"))
        refused(72, lambda: command("split", find={"n": 1}, middle={"n": 1}))
        refused(118, lambda: admin.command({"split": "ddlchunks.nothing", "middle": {"n": 1}}))
        command("split", find={"n": 3})
        median = ends()[0]
        assert 30 < median < 50 and ends() == [median, 80], ends()
        command("split", bounds=[{"n": median}, {"n": 80}])
        assert len(ends()) == 3 and median < ends()[1] < 80, ends()
        refused(72, lambda: command("split", bounds=[{"n": 1}, {"n": 80}]))
        command("mergeChunks", bounds=[{"n": MinKey()}, {"n": 80}])
        assert ends() == [80]
        refused(2, lambda: command("mergeChunks", bounds=[{"n": 1}, {"n": 80}]))
        command("split", middle={"n": 10})
        command("clearJumboFlag", bounds=[{"n": 10}, {"n": 80}])
        refused(72, lambda: command("clearJumboFlag"))
        command("mergeAllChunksOnShard", shard="shard0")
        assert ends() == []
        refused(70, lambda: command("mergeAllChunksOnShard", shard="shard9"))
        # One key cannot be cut.
        command("split", middle={"n": 99})
        refused(87, lambda: command("split", find={"n": 99}))
        whats = {entry["what"] for entry in client.config.changelog.find({"ns": "ddlchunks.plants"})}
        assert whats == {"shardCollection.end", "split", "merge"}, whats


@check
def zones(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("enableSharding", "ddlzones", primaryShard="shard0")

        def update(low, high, zone, name="plants"):
            return admin.command({"updateZoneKeyRange": f"ddlzones.{name}", "min": low, "max": high, "zone": zone})

        refused(70, lambda: admin.command("addShardToZone", "shard9", zone="wet"))
        refused(177, lambda: update({"n": 0}, {"n": 10}, "wet"))
        admin.command("addShardToZone", "shard1", zone="wet")
        assert client.config.shards.find_one({"_id": "shard1"})["tags"] == ["wet"]
        update({"n": 0}, {"n": 10}, "wet")
        refused(178, lambda: update({"n": 5}, {"n": 15}, "wet"))
        refused(9, lambda: update({"n": 5}, {"n": 5}, "wet"))
        refused(163, lambda: admin.command("removeShardFromZone", "shard1", zone="wet"))
        assert client.config.tags.count_documents({"ns": "ddlzones.plants"}) == 1
        # A new collection begins with the zones' ranges on their shards.
        admin.command("shardCollection", "ddlzones.plants", key={"n": 1})
        chunks = check_whole(cluster, "ddlzones.plants", {"n": 1})
        assert [chunk["min"]["n"] for chunk in chunks[1:]] == [0, 10], chunks
        assert chunks[1]["shard"] == "shard1", chunks
        refused(61, lambda: update({"m": 0}, {"m": 10}, "wet"))
        status = admin.command("balancerCollectionStatus", "ddlzones.plants")
        assert status["balancerCompliant"] is True and status["chunkSize"] == 128, status
        admin.command("configureCollectionBalancing", "ddlzones.plants", chunkSize=256, enableBalancing=False)
        entry = client.config.collections.find_one({"_id": "ddlzones.plants"})
        assert entry["noBalance"] is True and entry["maxChunkSizeBytes"] == 256 << 20, entry
        refused(72, lambda: admin.command("configureCollectionBalancing", "ddlzones.plants", chunkSize=2000))
        update({"n": 0}, {"n": 10}, None)
        admin.command("removeShardFromZone", "shard1", zone="wet")
        assert client.config.shards.find_one({"_id": "shard1"})["tags"] == []
        admin.command("balancerStop")
        assert admin.command("balancerStatus")["mode"] == "off"
        assert client.config.settings.find_one({"_id": "balancer"})["stopped"] is True
        admin.command("balancerStart")
        assert admin.command("balancerStatus")["mode"] == "full"
        admin.command("balancerStop")


@check
def sharded_collections_are_renamed(cluster):
    with cluster.client() as client:
        admin, db = client.admin, client.ddlrenamed
        admin.command("enableSharding", "ddlrenamed", primaryShard="shard1")

        def rename(old, new, **options):
            return admin.command({"renameCollection": f"ddlrenamed.{old}", "to": f"ddlrenamed.{new}", **options})

        admin.command("shardCollection", "ddlrenamed.a", key={"_id": "hashed"})
        uuid = client.config.collections.find_one({"_id": "ddlrenamed.a"})["uuid"]
        rename("a", "b")
        check_whole(cluster, "ddlrenamed.b", {"_id": "hashed"})
        assert client.config.collections.find_one({"_id": "ddlrenamed.b"})["uuid"] == uuid
        assert client.config.collections.find_one({"_id": "ddlrenamed.a"}) is None
        assert db.list_collection_names() == ["b"]
        # What has the new name goes, if that is wanted, sharded or not.
        db.plain.insert_one({"_id": 1})
        refused(48, lambda: rename("b", "plain"))
        check_whole(cluster, "ddlrenamed.b", {"_id": "hashed"})
        rename("b", "plain", dropTarget=True)
        check_whole(cluster, "ddlrenamed.plain", {"_id": "hashed"})
        admin.command("shardCollection", "ddlrenamed.c", key={"n": 1})
        refused(48, lambda: rename("c", "plain"))
        rename("c", "plain", dropTarget=True)
        check_whole(cluster, "ddlrenamed.plain", {"n": 1})
        db.weeds.insert_one({"_id": 1})
        rename("weeds", "plain", dropTarget=True)
        assert client.config.collections.count_documents({"_id": {"$regex": "^ddlrenamed"}}) == 0
        assert db.plain.count_documents({}) == 1
        refused(26, lambda: rename("nothing", "more"))
        admin.command("shardCollection", "ddlrenamed.d", key={"n": 1})
        refused(125, lambda: admin.command("renameCollection", "ddlrenamed.d", to="ddlother.d"))


@check
def renames_over_a_sharded_collection_keep_it(cluster):
    """The target is dropped only when nothing can happen to the source any more that would have the rename refused."""
    with cluster.client(router=0) as client, cluster.client(router=1) as other, cluster.config.direct(0) as config:
        client.admin.command("enableSharding", "ddlover", primaryShard="shard0")
        db, results = client.ddlover, []

        def hang(phase):
            data = {"mode": "alwaysOn", "data": {"op": "rename", "phase": phase}} if phase else {"mode": "off"}
            config.admin.command({"configureFailPoint": "hangBeforeDDLPhase", **data})

        def make(name):
            client.admin.command("shardCollection", f"ddlover.{name}", key={"_id": "hashed"})
            db[name].insert_many([{"_id": n} for n in range(50)])
            db[f"{name}source"].insert_many([{"_id": -n} for n in range(1, 8)])

        def begin(work):
            def run():
                try:
                    results.append(work())
                except PyMongoError as error:
                    results.append(error)
            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def rename_until(name, phase):
            results.clear()
            hang(phase)
            thread = begin(lambda: db[f"{name}source"].rename(name, dropTarget=True))
            eventually(lambda: config.config.ddl.count_documents({"_id": f"ddlover.{name}source", "phase": phase}), f"{phase} is reached")
            return thread

        # The source goes, or becomes another one, before it is closed: the target stays, and is open.
        for name, change in [("gone", lambda: None), ("replaced", lambda: other.ddlover.replacedsource.insert_one({"_id": "new"}))]:
            make(name)
            thread = rename_until(name, "closing")
            other.ddlover[f"{name}source"].drop()
            change()
            hang(None)
            thread.join(60)
            assert len(results) == 1 and getattr(results[0], "code", None) == 26, results
            check_whole(cluster, f"ddlover.{name}", {"_id": "hashed"})
            assert db[name].count_documents({}) == 50 and other.ddlover[name].insert_one({"_id": 50})
        assert db.replacedsource.find_one() == {"_id": "new"} and db.replacedsource.insert_one({"_id": "newer"})
        # What comes when it is closed waits until it has the new name.
        for phase in ("dropping", "renaming"):
            for name, work in [("drop", lambda source: source.drop()), ("write", lambda source: source.insert_one({"_id": "late"}).acknowledged)]:
                name += phase
                make(name)
                thread = rename_until(name, phase)
                late = begin(lambda: work(other.ddlover[f"{name}source"]))
                time.sleep(0.5)
                assert not results, results
                hang(None)
                thread.join(60), late.join(60)
                assert len(results) == 2 and not any(isinstance(result, PyMongoError) for result in results), results
                assert db[name].count_documents({}) == 7 and other.ddlover[name].insert_one({"_id": "more"})
                assert client.config.collections.find_one({"_id": f"ddlover.{name}"}) is None
        assert not any(placed["lastmod"] == CLOSED for name in db.list_collection_names() for placed in placements(cluster, f"ddlover.{name}").values())
        assert config.config.ddl.count_documents({}) == 0
        client.drop_database("ddlover")


@check
def shard_keys_are_refined(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("enableSharding", "ddlrefined", primaryShard="shard0")
        admin.command("shardCollection", "ddlrefined.plants", key={"n": 1})
        admin.command("split", "ddlrefined.plants", middle={"n": 10})

        def refine(key, **options):
            return admin.command({"refineCollectionShardKey": "ddlrefined.plants", "key": key, **options})

        refused(72, lambda: refine({"m": 1}))
        refused(72, lambda: refine({"n": 1, "m": 1}))
        refused(118, lambda: admin.command("refineCollectionShardKey", "ddlrefined.other", key={"n": 1}))
        assert refine({"n": 1})["ok"] == 1
        client.ddlrefined.plants.create_index([("n", 1), ("m", 1)])
        refine({"n": 1, "m": 1})
        chunks = check_whole(cluster, "ddlrefined.plants", {"n": 1, "m": 1})
        assert chunks[1]["min"] == {"n": 10, "m": MinKey()} and chunks[1]["lastmod"].time == 2, chunks
        assert chunks[1]["max"] == {"n": MaxKey(), "m": MaxKey()}, chunks
        assert refine({"n": 1, "m": 1})["ok"] == 1


@check
def metadata_is_checked(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("enableSharding", "ddlchecked", primaryShard="shard0")
        admin.command("shardCollection", "ddlchecked.plants", key={"_id": "hashed"})

        def found(db="ddlchecked", what=1, **options):
            return client[db].command({"checkMetadataConsistency": what, **options})["cursor"]["firstBatch"]

        assert found() == [] and found(what="plants", checkIndexes=True) == []
        with cluster.shards[1].direct(0) as shard:
            shard.ddlchecked.plants.create_index("n")
            assert [one["type"] for one in found(checkIndexes=True)] == ["InconsistentIndex"]
            shard.ddlchecked.plants.drop()
        assert [one["type"] for one in found()] == ["MissingLocalCollection"]
        assert [one["type"] for one in found("admin")] == ["MissingLocalCollection"]
        client.drop_database("ddlchecked")
        assert found("admin") == []
        admin.command("enableSharding", "ddlstray", primaryShard="shard0")
        admin.command("shardCollection", "ddlstray.plants", key={"_id": "hashed"})
        client.ddlstray.create_collection("measured", timeseries={"timeField": "t"})
        client.ddlstray.plain.insert_one({"_id": 1})
        with cluster.shards[1].direct(0) as shard:
            for name in ("stray", "stray2"):
                shard.ddlstray[name].insert_one({"_id": 1})
            uuid = shard.ddlstray.command("listCollections", filter={"name": "stray"})["cursor"]["firstBatch"][0]["info"]["uuid"]
            one, two = sorted(found("ddlstray"), key=lambda one: one["details"]["namespace"])
            assert one["type"] == two["type"] == "MisplacedCollection" and one["details"] == {
                "namespace": "ddlstray.stray", "shard": "shard1", "localUUID": uuid}, one
            assert found("ddlstray", what="stray2") == [two] and found("ddlstray", what="plain") == []
            for name in ("stray", "stray2"):
                shard.ddlstray[name].drop()
        assert found("ddlstray") == []
        client.drop_database("ddlstray")


@alone(shards=2, members=1, routers=1)
def shard_collection_beside_deaths(cluster):
    """The config servers' primary or a shard's is killed before each phase: the collection is sharded or it is not, never half."""
    with cluster.client() as client:
        client.admin.command("enableSharding", "deaths", primaryShard="shard0")

        def run(name, results):
            try:
                results.append(client.admin.command("shardCollection", name, key={"_id": "hashed"}))
            except PyMongoError as error:
                results.append(error)

        at = 0
        for phase in ("closing", "placing", "entering"):
            for victim in (cluster.config, cluster.shards[0], cluster.shards[1]):
                name, at = f"deaths.plants{at}", at + 1
                with cluster.config.direct(0) as config:
                    config.admin.command("configureFailPoint", "hangBeforeDDLPhase", mode="alwaysOn", data={"phase": phase})
                    results = []
                    thread = threading.Thread(target=run, args=(name, results))
                    thread.start()
                    eventually(lambda: config.config.ddl.count_documents({"_id": name, "phase": phase}), f"{phase} is reached")
                    victim.servers[0].kill()
                    victim.servers[0].start()
                    victim.primary()
                    if victim is not cluster.config:
                        config.admin.command("configureFailPoint", "hangBeforeDDLPhase", mode="off")
                thread.join(120)
                assert not thread.is_alive() and results, (phase, victim.name)
                with cluster.config.direct(0) as config:
                    eventually(lambda: config.config.ddl.count_documents({}) == 0, "it is brought to its end")
                # Forward: it had begun, so it is sharded now, whatever the client was told.
                chunks = check_whole(cluster, name, {"_id": "hashed"})
                assert sorted(chunk["shard"] for chunk in chunks) == ["shard0", "shard1"], chunks
                assert all(placed["lastmod"] != CLOSED for placed in placements(cluster, name).values())
                assert client.admin.command("shardCollection", name, key={"_id": "hashed"})["ok"] == 1


def shown(cluster, namespace):
    """How many documents each shard shows to whoever asks it: those that it owns."""
    db, collection = namespace.split(".", 1)
    counts = {}
    for members in cluster.shards:
        with members.direct(members.primary()) as shard:
            counts[members.name] = sum(1 for _ in shard[db][collection].find())
    return counts


@check
def ranges_are_moved(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("enableSharding", "ddlmoved", primaryShard="shard0")
        admin.command("shardCollection", "ddlmoved.plants", key={"n": 1})
        with cluster.shards[0].direct(0) as shard:
            shard.ddlmoved.plants.insert_many([{"_id": n, "n": n, "text": "x" * 100} for n in range(2000)])

        def move(low, high, to):
            return admin.command({"moveRange": "ddlmoved.plants", "min": low, "max": high, "toShard": to})

        assert move({"n": 500}, {"n": 1500}, "shard1")["ok"] == 1
        chunks = check_whole(cluster, "ddlmoved.plants", {"n": 1})
        assert [(chunk["min"]["n"], chunk["shard"]) for chunk in chunks[1:]] == [(500, "shard1"), (1500, "shard0")], chunks
        assert chunks[1]["history"][0]["shard"] == "shard1" and chunks[1]["history"][1]["shard"] == "shard0", chunks
        assert shown(cluster, "ddlmoved.plants") == {"shard0": 1000, "shard1": 1000}
        # It cannot come back before what it has left is removed.
        refused(200, lambda: move({"n": 500}, {"n": 1500}, "shard0"))
        check_whole(cluster, "ddlmoved.plants", {"n": 1})
        with cluster.shards[0].direct(0) as shard:
            shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
            eventually(lambda: not placements(cluster, "ddlmoved.plants")["shard0"]["leaving"], "it is removed")
            shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=900)
        assert admin.command("moveChunk", "ddlmoved.plants", find={"n": 600}, to="shard0")["millis"] >= 0
        assert admin.command("moveChunk", "ddlmoved.plants", find={"n": 600}, to="shard0")["ok"] == 1
        check_whole(cluster, "ddlmoved.plants", {"n": 1})
        assert shown(cluster, "ddlmoved.plants") == {"shard0": 2000, "shard1": 0}
        refused(70, lambda: move({"n": 1}, {"n": 2}, "shard9"))
        refused(2, lambda: move({"n": 1}, {"n": 600}, "shard1"))
        refused(118, lambda: admin.command("moveChunk", "ddlmoved.other", find={"n": 1}, to="shard1"))
        refused(72, lambda: admin.command("moveChunk", "ddlmoved.plants", to="shard1"))


@check
def shell_helpers(cluster):
    """mongosh's `sh.` helpers, sh.status() among them."""
    program, home = npm_home("drivers/mongosh")
    shell = home / "node_modules" / "@mongosh" / "cli-repl" / "bin" / "mongosh.js"
    uri = f"mongodb://127.0.0.1:{cluster.routers[0].port}/"
    command = [program, str(shell), uri, "--quiet", "--norc", "--file", str(HERE / "shell.js")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "all helpers answer" in done.stdout, done.stdout + done.stderr


@alone(members=3, routers=2)
def renames_beside_shard_collection(cluster):
    """Whoever comes first, a collection is made once, and under one name."""
    until = time.monotonic() + 8

    def work(at):
        with cluster.client(router=at % 2) as client:
            client.admin.command("enableSharding", "ddlnames", primaryShard="shard0")
            while time.monotonic() < until:
                name, other = random.sample(["a", "b", "x"], 2)
                db, plants = client.ddlnames, client.ddlnames[name]
                with contextlib.suppress(PyMongoError):
                    random.choice([
                        lambda: plants.insert_many([{"k": k} for k in range(20)]),
                        lambda: (plants.create_index("k"), client.admin.command("shardCollection", f"ddlnames.{name}", key={"k": 1})),
                        plants.drop, lambda: db.command("convertToCapped", name, size=1 << 20), lambda: plants.rename(other, dropTarget=True), lambda: plants.rename(other, dropTarget=True),
                    ])()
    workers = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for members in cluster.shards:
        with members.direct(members.primary()) as shard:
            made = [entry["ui"] for entry in shard.local["oplog.rs"].find({"op": "c", "o.create": {"$exists": True}, "ns": "ddlnames.$cmd"})]
            assert len(made) == len(set(made)), "a collection was made twice"
    for shard in placements(cluster, "ddlnames.a"), placements(cluster, "ddlnames.b"), placements(cluster, "ddlnames.x"):
        assert CLOSED not in [placement["lastmod"] for placement in shard.values()]


@check
def what_was_left_by_a_database_goes_too(cluster):
    """A database that was on a shard for a while leaves its sharded collections' definitions there, of which the directory does not tell."""
    with cluster.client(router=0) as client:
        admin = client.admin

        def leave(name):
            plants = client[name].plants
            admin.command("enableSharding", name, primaryShard="shard0")
            plants.insert_many([{"_id": n} for n in range(5)])
            admin.command("shardCollection", plants.full_name, key={"_id": 1})
            for to in ("shard1", "shard0"):
                admin.command("movePrimary", name, to=to)
            return plants
        ends = {
            "ddlleftdrop": lambda plants: plants.drop(),
            "ddlleftrename": lambda plants: plants.rename("herbs"),
            "ddllefttarget": lambda plants: (plants.database.herbs.insert_one({}), plants.database.herbs.rename("plants", dropTarget=True)),
        }
        for name, end in ends.items():
            plants = leave(name)
            end(plants)
            with cluster.shards[1].direct(cluster.shards[1].primary()) as shard:
                assert "plants" not in shard[name].list_collection_names(), name
            plants.drop()
            plants.insert_many([{"_id": n} for n in range(7)])
            admin.command("moveCollection", plants.full_name, toShard="shard1")
            assert plants.count_documents({}) == 7
            assert list(client[name].command("checkMetadataConsistency")["cursor"]["firstBatch"]) == []
            client.drop_database(name)
        # What was left by an earlier version, or by hand, is in nobody's way if it is empty.
        with cluster.shards[1].direct(cluster.shards[1].primary()) as shard:
            shard.ddlleft.create_collection("plants")
        client.ddlleft.plants.insert_one({"_id": 1})
        admin.command("moveCollection", "ddlleft.plants", toShard="shard1")
        assert client.ddlleft.plants.count_documents({}) == 1
        client.drop_database("ddlleft")
