"""The pages on sharded time-series collections: what is sharded are the buckets, and users see measurements."""

import datetime
import threading

from bson import MaxKey, MinKey
from checks import check, refused
from cluster import eventually
from moves import cleanup
from pymongo import DeleteMany, InsertOne
from pymongo.errors import BulkWriteError, OperationFailure

BEGIN = datetime.datetime(2024, 1, 1)


def minute(at):
    return BEGIN + datetime.timedelta(minutes=at)


def measured(client, db, key, **options):
    """A sharded time-series collection `x` of an empty database on shard0."""
    client.admin.command("enableSharding", db, primaryShard="shard0")
    timeseries = {"timeField": "t", "metaField": "m", **options}
    reply = client.admin.command("shardCollection", f"{db}.x", key=key, timeseries=timeseries)
    assert reply["collectionsharded"] == f"{db}.x", reply
    return client[db].x


def cut(client, db, middle, to="shard1"):
    """Gives what is at and above a key to a shard."""
    buckets = f"{db}.system.buckets.x"
    client.admin.command("split", buckets, middle=middle)
    client.admin.command("moveChunk", buckets, find=middle, to=to)


def on_shards(cluster, db):
    """How many measurements each shard has in what it owns, by its own word."""
    counts = []
    for members in cluster.shards:
        with members.direct(0) as shard:
            buckets = shard[db]["system.buckets.x"]
            counts.append(sum(bucket["control"]["count"] for bucket in buckets.find()))
    return counts


@check
def measurements_are_where_their_buckets_are(cluster):
    with cluster.client() as client:
        x = measured(client, "measured", {"m": 1})
        entry = client.config.collections.find_one({"_id": "measured.system.buckets.x"})
        assert entry["key"] == {"meta": 1}, entry
        expected = {"timeField": "t", "metaField": "m", "granularity": "seconds", "bucketMaxSpanSeconds": 3600}
        assert entry["timeseriesFields"] == expected, entry
        assert client.config.collections.find_one({"_id": "measured.x"}) is None
        listed = next(client.measured.list_collections(filter={"name": "x"}))
        assert listed["type"] == "timeseries" and listed["options"]["timeseries"] == expected, listed
        cut(client, "measured", {"meta": 10})
        documents = [{"t": minute(at // 20), "m": at % 20, "v": at} for at in range(400)]
        x.insert_many(documents[:200])
        x.insert_many(documents[200:390], ordered=False)
        for document in documents[390:]:
            x.insert_one(document)
        assert on_shards(cluster, "measured") == [200, 200]
        assert sorted(found["v"] for found in x.find()) == list(range(400))
        assert [found["v"] for found in x.find({"m": 15}).sort("t", -1).limit(2)] == [395, 375]
        assert x.count_documents({}) == 400 and x.count_documents({"m": {"$gte": 12}}) == 160
        assert sorted(x.distinct("m")) == list(range(20))
        sums = x.aggregate([{"$group": {"_id": "$m", "n": {"$sum": "$v"}}}, {"$sort": {"_id": 1}}])
        assert [group["n"] for group in sums] == [sum(range(m, 400, 20)) for m in range(20)]
        # Another router has not seen any of it.
        with cluster.client(1) as other:
            other.measured.x.insert_many([{"t": minute(500), "m": m, "v": -1} for m in range(20)])
            assert other.measured.x.count_documents({"v": -1}) == 20
        assert on_shards(cluster, "measured") == [210, 210]
        x.drop()
        assert "x" not in client.measured.list_collection_names()
        assert client.config.collections.find_one({"_id": "measured.system.buckets.x"}) is None
        x.insert_one({"plain": True})
        assert x.find_one()["plain"] and "timeseries" not in x.options()
        with cluster.client(1) as other:
            other.measured.x.insert_one({"plain": True})
        assert x.count_documents({}) == 2


@check
def writes_to_measurements_are_explained(cluster):
    """As plans on their buckets, on the shards that have such; sharded or not, and nothing is written."""
    with cluster.client() as client:
        x = measured(client, "measuredplans", {"m": 1})
        client.measuredplans.create_collection("whole", timeseries={"timeField": "t", "metaField": "m"})
        cut(client, "measuredplans", {"meta": 10})
        documents = [{"_id": at, "t": minute(0), "m": at % 20, "v": at} for at in range(40)]
        statements = [
            ({"update": "", "updates": [{"q": {"m": {"$gte": 0}}, "u": {"$set": {"m": 3}}, "multi": True}]}, "UPDATE", 40, 2),
            ({"delete": "", "deletes": [{"q": {}, "limit": 0}]}, "BATCHED_DELETE", 40, 2),
            ({"delete": "", "deletes": [{"q": {"m": 15, "v": {"$gt": 15}}, "limit": 0}]}, "TS_MODIFY", 1, 1),
            ({"findAndModify": "", "query": {"m": 3}, "remove": True}, "TS_MODIFY", 1, 1),
        ]
        for name, shards in (("x", 2), ("whole", 1)):
            client.measuredplans[name].insert_many(documents)
            for statement, stage, count, spread in statements:
                first, *rest = statement.items()
                command = {first[0]: name, **dict(rest)}
                reply = client.measuredplans.command("explain", command, verbosity="executionStats")
                plans = reply["queryPlanner"]["winningPlan"]["shards"]
                assert len(plans) == min(spread, shards), (name, command, reply)
                assert {plan["winningPlan"]["stage"] for plan in plans} == {stage}, (name, command, reply)
                assert {plan["namespace"] for plan in plans} == {f"measuredplans.system.buckets.{name}"}, (name, command, reply)
                ran = [shard["executionStages"] for shard in reply["executionStats"]["executionStages"]["shards"]]
                counted = {"UPDATE": "nMatched", "BATCHED_DELETE": "nWouldDelete", "TS_MODIFY": "nMeasurementsDeleted"}[stage]
                assert sum(stages[counted] for stages in ran) == count, (name, command, reply)
            assert client.measuredplans[name].count_documents({}) == 40
        refused(72, lambda: client.measuredplans.command(
            "explain", {"update": "x", "updates": [{"q": {"m": 1}, "u": {"$set": {"v": 1}}, "multi": True}]}))
        client.drop_database("measuredplans")


@check
def shard_keys_of_measurements(cluster):
    with cluster.client() as client:
        client.admin.command("enableSharding", "measuredkeys", primaryShard="shard0")
        db, plain = client.measuredkeys, {"timeField": "t", "metaField": "m"}

        def shard(key, timeseries=plain, **options):
            return client.admin.command("shardCollection", "measuredkeys.x", key=key, timeseries=timeseries, **options)

        for is_there in (False, True):
            if is_there:
                db.create_collection("x", timeseries=plain)
            for key, code in [({"t": 1, "m": 1}, 5914000), ({"t": "hashed"}, 880031), ({"_id": 1}, 5914001),
                              ({"v": 1}, 5914001), ({"mm": 1}, 5914001)]:
                refused(code, lambda: shard(key))
            refused(72, lambda: shard({"m": 1}, unique=True))
            assert ("x" in db.list_collection_names()) == is_there
        refused(72, lambda: shard({"m": 1}, timeseries={"timeField": "t"}))
        refused(5731501, lambda: client.admin.command("shardCollection", "measuredkeys.system.buckets.x", key={"meta": 1}))
        for key, on_buckets, index in [
            ({"m": 1}, {"meta": 1}, {"m": 1, "t": 1}),
            ({"m.a": 1}, {"meta.a": 1}, {"m.a": 1}),
            ({"m": "hashed"}, {"meta": "hashed"}, {"m": "hashed"}),
            ({"m": 1, "t": 1}, {"meta": 1, "control.min.t": 1}, {"m": 1, "t": 1}),
            ({"t": 1}, {"control.min.t": 1}, {"t": 1}),
        ]:
            shard(key)
            shard(key)
            refused(23, lambda: shard({"m.b": 1}))
            assert client.config.collections.find_one({"_id": "measuredkeys.system.buckets.x"})["key"] == on_buckets
            assert index in [found["key"] for found in db.x.list_indexes()], list(db.x.list_indexes())
            many = [{"t": minute(at), "m": {"b": at, "a": at % 7}} for at in range(100)]
            db.x.insert_many(many)
            assert sorted(found["m"]["b"] for found in db.x.find()) == list(range(100))
            assert db.x.find_one({"m": {"a": 3, "b": 10}})["t"] == minute(10)
            assert db.x.count_documents({"t": {"$gte": minute(90)}}) == 10
            db.x.drop()
        db.whole.insert_one({})
        refused(72, lambda: client.admin.command("shardCollection", "measuredkeys.whole", key={"m": 1}, timeseries=plain))
        # What has measurements needs an index.
        db.create_collection("x", timeseries=plain)
        db.x.insert_one({"t": minute(0), "m": {"a": 1}})
        refused(72, lambda: shard({"m.a": 1}))
        db.x.create_index({"m.a": 1})
        shard({"m.a": 1})
        cut(client, "measuredkeys", {"meta.a": 1})
        db.x.insert_many([{"t": minute(at), "m": {"a": at % 2}} for at in range(10)])
        assert on_shards(cluster, "measuredkeys") == [5, 6]


@check
def wrong_measurements_are_refused_in_their_places(cluster):
    with cluster.client() as client:
        x = measured(client, "measuredwrong", {"m": 1})
        cut(client, "measuredwrong", {"meta": 5})
        many = [{"t": minute(at), "m": at} for at in range(10)]
        many[6] = {"m": 6}
        for ordered, inserted in ((True, 6), (False, 9)):
            try:
                x.insert_many([dict(one) for one in many], ordered=ordered)
                raise AssertionError("nothing was refused")
            except BulkWriteError as error:
                assert error.details["nInserted"] == inserted, error.details
                assert [(e["index"], e["code"]) for e in error.details["writeErrors"]] == [(6, 2)], error.details
        assert x.count_documents({}) == 15
        try:
            x.insert_one({"m": [1], "t": minute(0)})
            raise AssertionError("an array in the shard key was taken")
        except OperationFailure:
            pass


@check
def nothing_is_lost_or_doubled_beside_moves(cluster):
    """Measurements of the same sources come through two routers while the ranges of their buckets go back and forth."""
    with cluster.client() as client:
        x = measured(client, "measuredmoves", {"m": 1, "t": 1})
        buckets = "measuredmoves.system.buckets.x"
        cuts = [{"meta": 3, "control.min.t": MinKey()}, {"meta": 3, "control.min.t": minute(30)}, {"meta": 6, "control.min.t": MinKey()}]
        for middle in cuts:
            client.admin.command("split", buckets, middle=middle)
        stop, written = threading.Event(), [[], []]
        cleanup(cluster, 0)

        def write(router):
            with cluster.client(router, retryWrites=True) as own:
                at = 0
                while not stop.is_set():
                    many = [{"t": minute((at + n) % 60), "m": n % 9, "v": f"{router}.{at + n}"} for n in range(40)]
                    own.measuredmoves.x.insert_many(many, ordered=at % 80 == 0)
                    written[router] += [one["v"] for one in many]
                    at += 40

        threads = [threading.Thread(target=write, args=(router,)) for router in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(8):
                for middle in cuts:
                    to = f"shard{(turn + cuts.index(middle)) % 2}"
                    owner = next(iter(client.config.chunks.find({"min": middle}, {"shard": 1})))["shard"]
                    if owner == to:
                        continue
                    eventually(lambda: moved(client, buckets, middle, to), "a range has moved")
                    assert len(list(x.find({}, {"v": 1}))) >= len(written[0])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            cleanup(cluster, 900)
        expected = sorted(written[0] + written[1])
        assert len(expected) > 400
        assert sorted(found["v"] for found in x.find()) == expected
        assert x.count_documents({}) == len(expected)
        for source in range(9):
            found = [one["v"] for one in x.find({"m": source})]
            assert len(found) == len(set(found)) == x.count_documents({"m": source}), source


def moved(client, namespace, find, to):
    """What was there lately has to be removed before it comes again."""
    try:
        client.admin.command("moveChunk", namespace, find=find, to=to)
        return True
    except OperationFailure as error:
        assert error.code in (117, 200), error
        return False


@check
def ranges_of_buckets(cluster):
    with cluster.client() as client:
        x, buckets = measured(client, "measuredranges", {"m": 1}), "measuredranges.system.buckets.x"
        x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(200)])
        for command in ({"split": "measuredranges.x", "middle": {"meta": 5}},
                        {"moveChunk": "measuredranges.x", "find": {"meta": 5}, "to": "shard1"},
                        {"mergeChunks": "measuredranges.x", "bounds": [{"meta": MinKey()}, {"meta": MaxKey()}]}):
            refused(118, lambda: client.admin.command(command))
        cut(client, "measuredranges", {"meta": 5})
        told = {entry["ns"]: entry for entry in client.admin.aggregate([{"$shardedDataDistribution": {}}])}
        shards = {shard["shardName"]: shard for shard in told["measuredranges.system.buckets.x"]["shards"]}
        assert shards["shard1"]["numOwnedDocuments"] > 0 and shards["shard0"]["numOwnedDocuments"] > 0, shards
        assert sorted(found["v"] for found in x.find()) == list(range(200))
        client.admin.command("moveRange", "measuredranges.system.buckets.x", min={"meta": MinKey()}, toShard="shard1")
        assert x.count_documents({}) == 200
        x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(200, 220)])
        assert x.count_documents({}) == 220
        refused(20, lambda: client.admin.command("reshardCollection", buckets, key={"meta": 1, "control.min.t": 1}))
        refused(20, lambda: client.admin.command("unshardCollection", buckets))
        refused(20, lambda: client.admin.command("moveCollection", buckets, toShard="shard1"))
        refused(166, lambda: client.admin.command("renameCollection", "measuredranges.x", to="measuredranges.y"))
        refused(20, lambda: client.admin.command("renameCollection", "measuredranges.system.buckets.x", to="measuredranges.y"))
        # The database's primary shard is the one that knows the view.
        client.admin.command("movePrimary", "measuredranges", to="shard1")
        x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(220, 240)])
        with cluster.client(1) as other:
            assert sorted(found["v"] for found in other.measuredranges.x.find()) == list(range(240))
            other.measuredranges.x.drop()
        assert not {"x", "system.buckets.x"} & set(client.measuredranges.list_collection_names())


@check
def updates_and_deletes_of_measurements(cluster):
    with cluster.client() as client:
        x = measured(client, "measuredchanges", {"m.a": 1})
        cut(client, "measuredchanges", {"meta.a": 5})
        x.insert_many([{"_id": at, "t": minute(at), "m": {"a": at % 10, "b": at % 3}, "v": at} for at in range(100)])
        with cluster.client(1) as other:
            changed = other.measuredchanges.x.update_many({"m.a": 7}, {"$set": {"m.c": 1}})
            assert (changed.matched_count, changed.modified_count) == (10, 10) or changed.matched_count > 0, changed.raw_result
            assert x.count_documents({"m.c": 1}) == 10
            changed = other.measuredchanges.x.update_many({"m.b": 1}, {"$set": {"m.c": 2}})
            assert x.count_documents({"m.c": 2}) == 33
            refused(72, lambda: other.measuredchanges.x.update_many({"m.a": 7}, {"$set": {"m.a": 8}}))
            refused(72, lambda: other.measuredchanges.x.update_one({"m.a": 7}, {"$set": {"m.c": 8}}))
            refused(72, lambda: other.measuredchanges.x.update_many({"v": 7}, {"$set": {"m.c": 8}}))
            refused(72, lambda: other.measuredchanges.x.update_many({"m.a": 7}, {"$set": {"m.c": 8}}, upsert=True))
            assert other.measuredchanges.x.delete_many({"m.a": 3}).deleted_count == 10
            assert other.measuredchanges.x.delete_many({"v": {"$lt": 10}}).deleted_count == 9
            for _ in range(2):
                assert other.measuredchanges.x.delete_one({"v": 56}).deleted_count == (1 if _ == 0 else 0)
            assert other.measuredchanges.x.delete_one({"_id": 57}).deleted_count == 1
            assert other.measuredchanges.x.find_one_and_delete({"v": 58})["m"]["a"] == 8
            assert other.measuredchanges.x.find_one_and_delete({"v": 58}) is None
            assert x.count_documents({}) == 100 - 10 - 9 - 3
            done = other.bulk_write([InsertOne({"t": minute(0), "m": {"a": at}, "v": -1}, namespace="measuredchanges.x") for at in range(10)]
                                    + [DeleteMany({"m.a": 9}, namespace="measuredchanges.x")])
            assert done.inserted_count == 10 and done.deleted_count == 10, done
            assert x.count_documents({"v": -1}) == 9
            assert x.delete_many({}).deleted_count == 78 - 9 + 9
        assert on_shards(cluster, "measuredchanges") == [0, 0]


@check
def definitions_of_measurements(cluster):
    with cluster.client() as client:
        x = measured(client, "measureddefs", {"m": 1})
        cut(client, "measureddefs", {"meta": 5})
        x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(50)])
        x.create_index([("v", 1)])
        with cluster.client(1) as other:
            assert other.measureddefs.x.create_index([("m", 1), ("v", -1)], name="mv") == "mv"
            names = {found["name"]: found["key"] for found in other.measureddefs.x.list_indexes()}
            assert names == {"m_1_t_1": {"m": 1, "t": 1}, "v_1": {"v": 1}, "mv": {"m": 1, "v": -1}}, names

        def on_each():
            for members in cluster.shards:
                with members.direct(0) as shard:
                    yield sorted(index["name"] for index in shard.measureddefs["system.buckets.x"].list_indexes())

        assert all("mv" in names and "v_1" in names for names in on_each()), list(on_each())
        x.drop_index("v_1")
        x.drop_index("mv")
        assert all("mv" not in names and "v_1" not in names for names in on_each()), list(on_each())
        refused(72, lambda: x.create_index([("v", 1)], unique=True))
        stats = client.measureddefs.command("collStats", "x")
        assert stats["sharded"] and set(stats["shards"]) == {"shard0", "shard1"}, stats
        assert client.measureddefs.command("validate", "x")["valid"]
        assert stats["ns"] == "measureddefs.x" and stats["timeseries"]["bucketCount"] == 10, stats
        refused(2, lambda: client.measureddefs.command("collMod", "x", timeseries={"granularity": "days"}))
        client.measureddefs.command("collMod", "x", timeseries={"granularity": "minutes"}, expireAfterSeconds=3600 * 24 * 365 * 40)
        refused(72, lambda: client.measureddefs.command("collMod", "x", timeseries={"granularity": "seconds"}))
        entry = client.config.collections.find_one({"_id": "measureddefs.system.buckets.x"})
        assert entry["timeseriesFields"]["granularity"] == "minutes", entry
        listed = next(client.measureddefs.list_collections(filter={"name": "x"}))["options"]
        assert listed["timeseries"]["bucketMaxSpanSeconds"] == 86400 and "expireAfterSeconds" in listed, listed
        for members in cluster.shards:
            with members.direct(0) as shard:
                options = shard.measureddefs["system.buckets.x"].options()
                assert options["timeseries"]["bucketMaxSpanSeconds"] == 86400 and "expireAfterSeconds" in options, options
        client.drop_database("measureddefs")
        assert client.config.collections.find_one({"_id": "measureddefs.system.buckets.x"}) is None


@check
def figures_of_measurements_are_of_all_shards(cluster):
    """Only the database's primary shard knows the collection by its name; the figures of the other's buckets were not told."""
    with cluster.client() as client:
        x = measured(client, "measuredfigures", {"m": 1})
        cut(client, "measuredfigures", {"meta": 5})
        x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(50)])
        x.create_index([("v", -1)])
        with cluster.client(1) as other:
            x = other.measuredfigures.x
            stats = list(x.aggregate([{"$collStats": {"storageStats": {}, "count": {}}}]))
            assert sorted(entry["shard"] for entry in stats) == ["shard0", "shard1"], stats
            assert {entry["ns"] for entry in stats} == {"measuredfigures.x"}, stats
            assert [entry["storageStats"]["timeseries"]["bucketCount"] for entry in stats] == [5, 5], stats
            shown = sorted((entry["name"], entry["shard"], entry["key"]) for entry in x.aggregate([{"$indexStats": {}}]))
            keys = [("m_1_t_1", {"m": 1, "t": 1}), ("v_-1", {"v": -1})]
            assert shown == [(name, shard, key) for name, key in keys for shard in ("shard0", "shard1")], shown
            assert all(entry["spec"]["key"] == entry["key"] for entry in x.aggregate([{"$indexStats": {}}]))
            # Who looks at the buckets themselves sees these.
            buckets = other.measuredfigures["system.buckets.x"]
            assert len(list(buckets.aggregate([{"$collStats": {"count": {}}}]))) == 2


@check
def longer_spans_beside_writers(cluster):
    """Where the time is in the shard key, the begin of buckets says where measurements go: routers hear of it when spans change."""
    with cluster.client() as client:
        x = measured(client, "measuredspans", {"t": 1})
        # Where buckets of an hour begin it is another shard's turn than where those of a minute do.
        cut(client, "measuredspans", {"control.min.t": minute(90)})
        stop, written = threading.Event(), [[], []]

        def write(router):
            with cluster.client(router, retryWrites=True) as own:
                at = 0
                while not stop.is_set():
                    many = [{"t": minute((at + n) % 180), "m": n % 3, "v": f"{router}.{at + n}"} for n in range(30)]
                    own.measuredspans.x.insert_many(many, ordered=at % 60 == 0)
                    written[router] += [one["v"] for one in many]
                    at += 30

        threads = [threading.Thread(target=write, args=(router,)) for router in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: min(len(all) for all in written) > 100, "both write")
            client.measuredspans.command("collMod", "x", timeseries={"granularity": "minutes"})
            reached = [len(all) for all in written]
            eventually(lambda: all(len(all_) > before + 100 for all_, before in zip(written, reached)), "both still write")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        expected = sorted(written[0] + written[1])
        assert sorted(found["v"] for found in x.find()) == expected
        for at in range(0, 180, 7):
            found = [one["v"] for one in x.find({"t": minute(at)})]
            assert len(found) == sum(int(v.split(".")[1]) % 180 == at for v in expected), at
