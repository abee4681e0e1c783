"""Reads of sharded collections: what several shards give together is what one server would give."""

import random

from bson import MaxKey, MinKey
from pymongo.errors import OperationFailure, PyMongoError

from checks import alone, check, refused
from cluster import eventually

LOW, HIGH = MinKey(), MaxKey()


def plants(count, seed=1):
    """Documents of all sorts, the same for the same seed."""
    chance = random.Random(seed)
    for at in range(count):
        plant = {"_id": at, "a": chance.randrange(40), "c": chance.randrange(1000) / 8, "d": {"e": chance.randrange(5)}}
        value = chance.choice([None, "x", "y", 3, 3.5, True, "missing", [1, 2], ["x", 5], {"f": 1}])
        if value != "missing":
            plant["b"] = value
        plant["tags"] = [chance.choice("pqrst") for _ in range(chance.randrange(4))]
        yield plant


def twins(cluster, db, count=600):
    """The same documents in a sharded collection (ranges of `a` on both shards), one by hash, and one that is not sharded."""
    documents = list(plants(count))
    cluster.shard(f"{db}.ranged", {"a": 1}, [({"a": LOW}, {"a": 15}, 0), ({"a": 15}, {"a": 30}, 1), ({"a": 30}, {"a": HIGH}, 0)])
    cluster.shard(f"{db}.hashed", {"_id": "hashed"})
    cluster.fill(f"{db}.ranged", documents)
    cluster.fill(f"{db}.hashed", documents)
    with cluster.client() as client:
        client[db].plain.insert_many(documents)


FILTERS = [
    {}, {"a": 7}, {"a": {"$gt": 10, "$lt": 20}}, {"a": {"$in": [3, 17, 33]}}, {"b": None}, {"b": "x"}, {"_id": 5},
    {"tags": "p"}, {"$or": [{"a": 5}, {"c": {"$lt": 20}}]}, {"d.e": {"$gte": 3}}, {"a": {"$gt": 30, "$lt": 3}},
    {"$expr": {"$gt": ["$a", "$d.e"]}}, {"a": {"$ne": 4}, "b": {"$exists": True}},
]
SORTS = [[], [("_id", 1)], [("a", 1), ("_id", -1)], [("b", -1), ("_id", 1)], [("tags", 1), ("_id", 1)], [("d.e", -1), ("c", 1), ("_id", 1)]]
PROJECTIONS = [
    None, {"a": 1}, {"_id": 0, "a": 1, "b": 1}, {"b": 0}, {"tags": {"$slice": 1}}, {"d.e": 1, "_id": 1},
    {"twice": {"$multiply": ["$a", 2]}}, {"_id": 0, "c": 0},
]


@check
def finds_as_one_server(cluster):
    twins(cluster, "finds")
    chance = random.Random(7)
    with cluster.client(0) as client:
        db = client.finds
        for _ in range(300):
            filter, sort, projection = chance.choice(FILTERS), chance.choice(SORTS), chance.choice(PROJECTIONS)
            options = {"batch_size": chance.choice([0, 2, 7, 1000])}
            if sort and chance.random() < 0.5:
                options["skip"] = chance.choice([0, 3, 50])
                options["limit"] = chance.choice([0, 1, 5, 60])
            results = []
            for name in ("plain", "ranged", "hashed"):
                cursor = db[name].find(filter, projection, **options)
                found = list(cursor.sort(sort) if sort else cursor)
                results.append(found if sort else sorted(found, key=repr))
            what = (filter, sort, projection, options)
            assert results[0] == results[1], (what, results[0][:3], results[1][:3])
            assert results[0] == results[2], (what, results[0][:3], results[2][:3])
            counts = [db[name].count_documents(filter) for name in ("plain", "ranged", "hashed")]
            assert len(set(counts)) == 1, (filter, counts)
            counts = [db.command("count", name, query=filter, skip=3, limit=20)["n"] for name in ("plain", "ranged", "hashed")]
            assert len(set(counts)) == 1, (filter, counts)
            field = chance.choice(["a", "b", "tags", "d.e", "nothing"])
            values = [sorted(map(repr, db[name].distinct(field, filter))) for name in ("plain", "ranged", "hashed")]
            assert values[0] == values[1] == values[2], (field, filter, values)


STAGES = [
    {"$match": {"a": {"$lt": 25}}}, {"$match": {"tags": {"$ne": "q"}}}, {"$sort": {"c": 1, "_id": 1}},
    {"$sort": {"b": -1, "_id": 1}}, {"$sort": {"_id": 1}}, {"$project": {"a": 1, "c": 1, "d": 1, "tags": 1}},
    {"$addFields": {"sum": {"$add": ["$a", "$d.e"]}}}, {"$unwind": "$tags"}, {"$unset": "b"},
    {"$group": {"_id": "$d.e", "n": {"$sum": 1}, "a": {"$sum": "$a"}, "least": {"$min": "$_id"}, "most": {"$max": "$c"}, "mean": {"$avg": "$a"}}},
    {"$group": {"_id": {"a": "$a"}, "n": {"$count": {}}, "sum": {"$sum": "$c"}}},
    {"$group": {"_id": None, "top": {"$topN": {"n": 3, "sortBy": {"c": 1, "_id": 1}, "output": "$_id"}}, "n": {"$sum": 1}}},
    {"$count": "n"}, {"$sortByCount": "$d.e"}, {"$bucket": {"groupBy": "$a", "boundaries": [0, 10, 20, 100], "default": "no", "output": {"n": {"$sum": 1}}}},
    {"$facet": {"one": [{"$match": {"a": 3}}, {"$sort": {"_id": 1}}, {"$limit": 2}], "two": [{"$count": "n"}]}},
    {"$replaceRoot": {"newRoot": {"$mergeObjects": [{"_id": "$_id"}, "$d"]}}},
    {"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"so_far": {"$sum": "$a", "window": {"documents": ["unbounded", "current"]}}}}},
]
CUTS = [[{"$limit": 10}], [{"$skip": 5}], [{"$skip": 4}, {"$limit": 6}]]


def joins(name):
    """Stages that read other collections: the twin of the one that is read, and one that is not sharded."""
    chosen = [{"$match": {"_id": {"$lt": 20}}}]
    return [
        chosen + [{"$lookup": {"from": name, "localField": "a", "foreignField": "_id", "as": "found"}}],
        chosen + [{"$lookup": {"from": "plain", "localField": "_id", "foreignField": "_id", "as": "found"}}],
        chosen + [{"$lookup": {"from": name, "let": {"a": "$a"}, "as": "found", "pipeline": [
            {"$match": {"$expr": {"$eq": ["$a", "$$a"]}}}, {"$sort": {"_id": 1}}, {"$limit": 3}, {"$project": {"_id": 1}}]}}],
        chosen + [{"$lookup": {"from": name, "as": "found", "pipeline": [{"$group": {"_id": None, "n": {"$sum": "$a"}}}]}}],
        chosen + [{"$unionWith": {"coll": name, "pipeline": [{"$match": {"a": 5}}]}}, {"$sort": {"_id": 1, "a": 1}}],
        chosen + [{"$lookup": {"from": name, "localField": "a", "foreignField": "a", "as": "found"}}, {"$unwind": "$found"},
                  {"$group": {"_id": "$_id", "n": {"$sum": 1}, "ids": {"$sum": "$found._id"}}}],
        [{"$match": {"_id": 3}}, {"$graphLookup": {"from": name, "startWith": "$a", "connectFromField": "a",
                                                   "connectToField": "_id", "as": "found", "maxDepth": 4}}],
    ]


def canonical(documents):
    """Arrays of joins come in any order."""
    for document in documents:
        if isinstance(document.get("found"), list):
            document["found"] = sorted(document["found"], key=repr)
    return documents


@check
def pipelines_as_one_server(cluster):
    twins(cluster, "pipes")
    chance = random.Random(11)
    with cluster.client(0) as client:
        db = client.pipes

        def run(name, stages):
            try:
                return canonical(list(db[name].aggregate(stages, batchSize=chance.choice([0, 3, 1000]))))
            except OperationFailure as error:
                return [{"code": error.code}]

        for _ in range(250):
            stages, ordered = [], False
            for stage in chance.sample(STAGES, chance.randrange(1, 5)):
                stages.append(stage)
                name = next(iter(stage))
                ordered = name == "$sort" or (ordered and name in ("$match", "$project", "$addFields", "$unset", "$replaceRoot", "$unwind"))
                # After an unwind or a group the `_id` does not order all.
                if name in ("$group", "$sortByCount", "$bucket", "$unwind", "$facet", "$count"):
                    ordered = False
                    break
                if ordered and chance.random() < 0.4:
                    stages += chance.choice(CUTS)
            results = [run(name, stages) for name in ("plain", "ranged", "hashed")]
            if not ordered:
                results = [sorted(result, key=repr) for result in results]
            assert results[0] == results[1], (stages, results[0][:3], results[1][:3])
            assert results[0] == results[2], (stages, results[0][:3], results[2][:3])
        for at in range(len(joins(""))):
            results = [sorted(run(name, joins(name)[at]), key=repr) for name in ("plain", "ranged", "hashed")]
            assert results[0] and "code" not in results[0][0], (joins("")[at], results[0][:2])
            assert results[0] == results[1], (joins("ranged")[at], results[0][:2], results[1][:2])
            assert results[0] == results[2], (joins("hashed")[at], results[0][:2], results[2][:2])
        # What is not sharded reads what is.
        for stages in joins("ranged"):
            there = sorted(run("plain", stages), key=repr)
            here = sorted(run("ranged", stages), key=repr)
            assert here == there and here, (stages, here[:2], there[:2])
        shown = sorted(document["_id"] for document in db.ranged.aggregate([{"$sample": {"size": 10}}]))
        assert len(set(shown)) == 10, shown
        assert len(list(db.ranged.aggregate([{"$sample": {"size": 5000}}]))) == 600


@check
def views(cluster):
    """Views on sharded collections, and those that read one beside another."""
    twins(cluster, "views", 120)
    low = [{"$match": {"a": {"$lt": 30}}}, {"$addFields": {"twice": {"$multiply": ["$a", 2]}}}]
    with cluster.client(0) as client:
        db = client.views
        for name in ("plain", "ranged"):
            db.create_collection(f"low_{name}", viewOn=name, pipeline=low)
            db.create_collection(f"lower_{name}", viewOn=f"low_{name}", pipeline=[{"$match": {"twice": {"$lt": 40}}}])
            db.create_collection(f"joined_{name}", viewOn="plain", pipeline=[
                {"$match": {"_id": {"$lt": 9}}}, {"$lookup": {"from": name, "localField": "a", "foreignField": "a", "as": "n"}},
                {"$addFields": {"n": {"$size": "$n"}}}])
        for view in ("low", "lower", "joined"):
            plain, ranged = db[f"{view}_plain"], db[f"{view}_ranged"]
            assert list(ranged.find({}).sort("_id", 1)) == list(plain.find({}).sort("_id", 1)) != [], view
            query = {"d.e": {"$gt": 1}}
            some = [list(each.find(query, {"a": 1}, batch_size=3).sort([("a", -1), ("_id", 1)]).skip(2).limit(4)) for each in (plain, ranged)]
            assert some[0] == some[1] != [], (view, some)
            counts = [db.command("count", each.name, query=query, skip=1)["n"] for each in (plain, ranged)]
            assert counts[0] == counts[1] > 0, (view, counts)
            values = [sorted(map(repr, each.distinct("tags", query))) for each in (plain, ranged)]
            assert values[0] == values[1] != [], (view, values)
            groups = [list(each.aggregate([{"$group": {"_id": "$d.e", "n": {"$sum": "$a"}}}, {"$sort": {"_id": 1}}])) for each in (plain, ranged)]
            assert groups[0] == groups[1] != [], (view, groups)
            join = {"$lookup": {"from": ranged.name, "localField": "_id", "foreignField": "_id", "as": "found"}}
            joins = [canonical(list(db[name].aggregate([{"$match": {"_id": {"$lt": 15}}}, join, {"$sort": {"_id": 1}}]))) for name in ("plain", "ranged")]
            assert joins[0] == joins[1] and any(each["found"] for each in joins[0]), (view, joins)
        cursor = db.command("find", "low_ranged", batchSize=2)["cursor"]
        assert cursor["ns"] == "views.low_ranged" and cursor["id"], cursor
        assert len(db.command("getMore", cursor["id"], collection="low_ranged")["cursor"]["nextBatch"]) > 2


@check
def merges_into_collections(cluster):
    twins(cluster, "merges", 100)
    with cluster.client(0) as client:
        db = client.merges
        group = [{"$group": {"_id": "$d.e", "n": {"$sum": 1}}}]
        db.ranged.aggregate(group + [{"$merge": {"into": "found"}}])
        found = list(db.found.find().sort("_id"))
        assert found == sorted(db.plain.aggregate(group), key=lambda each: each["_id"]) and found, found
        # Again: each is found and added to.
        db.hashed.aggregate(group + [{"$merge": {"into": "found", "whenMatched": [{"$set": {"n": {"$add": ["$n", "$$new.n"]}}}]}}])
        assert [each["n"] for each in db.found.find().sort("_id")] == [2 * each["n"] for each in found]


@check
def cursors_over_shards(cluster):
    twins(cluster, "open")
    with cluster.client(0) as client:
        db = client.open

        def open_on_shards():
            total = 0
            for members in cluster.shards:
                with members.direct(members.primary()) as shard:
                    total += shard.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
            return total

        reply = db.command("find", "ranged", batchSize=0)["cursor"]
        assert reply["firstBatch"] == [] and reply["id"], reply
        more = db.command("getMore", reply["id"], collection="ranged", batchSize=5)["cursor"]
        assert len(more["nextBatch"]) == 5 and more["id"] == reply["id"] and more["ns"] == "open.ranged", more
        refused(13, lambda: db.command("getMore", reply["id"], collection="hashed"))
        killed = db.command("killCursors", "ranged", cursors=[reply["id"]])
        assert killed["cursorsKilled"] == [reply["id"]], killed
        refused(43, lambda: db.command("getMore", reply["id"], collection="ranged"))
        eventually(lambda: open_on_shards() == 0, "no cursor is open on a shard")
        single = db.command("find", "ranged", batchSize=7, singleBatch=True, sort={"_id": 1})["cursor"]
        assert single["id"] == 0 and [each["_id"] for each in single["firstBatch"]] == list(range(7)), single
        limited = db.command("find", "ranged", limit=3, sort={"c": 1, "_id": 1})["cursor"]
        assert limited["id"] == 0 and len(limited["firstBatch"]) == 3, limited
        eventually(lambda: open_on_shards() == 0, "no cursor is open on a shard")
        refused(2, lambda: db.command("find", "ranged", tailable=True))
        refused(14, lambda: db.command("find", "ranged", sort="a"))
        refused(2, lambda: db.command("find", "ranged", filter={"a": {"$nope": 1}}))
        assert [each["_id"] for each in db.ranged.find({}).hint([("_id", 1)]).min([("_id", 3)]).max([("_id", 6)]).sort("_id", 1)] == [3, 4, 5]
        with client.start_session(snapshot=False) as session, session.start_transaction():
            cursor = db.ranged.find({}, session=session, batch_size=50).sort("_id", 1)
            assert [each["_id"] for each in cursor] == list(range(600))


@check
def explained(cluster):
    twins(cluster, "explained", 50)
    with cluster.client(0) as client:
        db = client.explained

        def explain(command, verbosity="queryPlanner"):
            return db.command("explain", command, verbosity=verbosity)

        one = explain({"find": "ranged", "filter": {"a": 3}})["queryPlanner"]["winningPlan"]
        assert one["stage"] == "SINGLE_SHARD" and [shard["shardName"] for shard in one["shards"]] == ["shard0"], one
        all_ = explain({"find": "ranged"}, "executionStats")
        plan = all_["queryPlanner"]["winningPlan"]
        assert plan["stage"] == "SHARD_MERGE" and [shard["shardName"] for shard in plan["shards"]] == ["shard0", "shard1"], plan
        assert all_["executionStats"]["nReturned"] == 50 == all_["executionStats"]["totalDocsExamined"], all_
        merged = explain({"find": "ranged", "sort": {"c": 1}})["queryPlanner"]["winningPlan"]
        assert merged["stage"] == "SHARD_MERGE_SORT", merged
        split = explain({"aggregate": "ranged", "pipeline": [{"$match": {"c": 1}}, {"$group": {"_id": "$a"}}], "cursor": {}})
        assert split["mergeType"] == "mongos" and sorted(split["shards"]) == ["shard0", "shard1"], split
        assert "$group" in split["splitPipeline"]["mergerPart"][0], split
        whole = explain({"aggregate": "ranged", "pipeline": [{"$match": {"a": 1}}, {"$group": {"_id": "$a"}}], "cursor": {}})
        assert list(whole["shards"]) == ["shard0"], whole
        # The only operation of a bulkWrite is shown as the write that it is.
        for name, stage, docs in [("ranged", "SHARD_WRITE", 50), ("plain", "SINGLE_SHARD", 50)]:
            bulk = {"bulkWrite": 1, "ops": [{"delete": 0, "filter": {}, "multi": True}], "nsInfo": [{"ns": f"explained.{name}"}]}
            shown = client.admin.command("explain", bulk, verbosity="executionStats")
            assert shown["queryPlanner"]["winningPlan"]["stage"] == stage, shown
            assert shown["executionStats"]["totalDocsExamined"] == docs and db[name].count_documents({}) == docs, shown


@alone(shards=2, members=1, routers=1)
def shard_dies_under_a_cursor(cluster):
    twins(cluster, "dies", 400)
    with cluster.client(0, retryReads=False) as client:
        cursor = client.dies.ranged.find({}, batch_size=5)
        next(cursor)
        cluster.shards[1].servers[0].kill()
        try:
            list(cursor)
            raise AssertionError("half of the documents were all")
        except PyMongoError as error:
            assert getattr(error, "code", None) in (6, 7, 89, 91, 189, 11602, 9001, 133), error
        # What the other one has is to be had.
        assert client.dies.ranged.count_documents({"a": 3}) > 0
        cluster.shards[1].servers[0].start()
        assert client.dies.ranged.count_documents({}) == 400
