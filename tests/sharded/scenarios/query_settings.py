"""Settings for queries of a shape, and other parameters of the cluster, through routers."""

from checks import alone, check, refused
from scenarios import spread_evenly


@alone(shards=2, members=1, routers=2)
def settings_for_queries_of_the_cluster(cluster):
    with cluster.client(0) as client, cluster.client(1) as other:
        plants = spread_evenly(client, "set.plants")
        plants.create_index("name")
        plants.create_index([("name", 1), ("k", 1)], name="both")
        query = {"find": "plants", "filter": {"name": "x"}, "$db": "set"}
        reply = client.admin.command({"setQuerySettings": query, "settings": {"reject": True}})
        assert reply["settings"] == {"reject": True}, reply
        error = refused(411, lambda: client.set.command("find", "plants", filter={"name": "y"}))
        assert error.details["codeName"] == "QueryRejectedBySettings", error.details
        # A query that goes to one shard, and one of another shape.
        refused(411, lambda: client.set.command("find", "plants", filter={"name": "y"}, batchSize=0))
        assert client.set.plants.count_documents({"k": 1}) == 1
        client.set.command("explain", {"find": "plants", "filter": {"name": "y"}})

        def listed(of):
            return [shown["settings"] for shown in of.admin.aggregate([{"$querySettings": {}}])]

        assert listed(client) == listed(other) == [{"reject": True}]
        refused(411, lambda: other.set.command("find", "plants", filter={"name": "y"}))
        for members in cluster.shards:
            with members.direct(0) as shard:
                assert listed(shard) == [{"reject": True}]
                kept = shard.config.clusterParameters.find_one({"_id": "querySettings"})
                assert kept["settingsArray"][0]["representativeQuery"] == query, kept
        shape = next(client.admin.aggregate([{"$querySettings": {"showDebugQueryShape": True}}]))
        assert shape["debugQueryShape"]["cmdNs"] == {"db": "set", "coll": "plants"}, shape

        hints = {"indexHints": [{"ns": {"db": "set", "coll": "plants"}, "allowedIndexes": ["both"]}], "reject": False}
        for query in (query, {"find": "plants", "filter": {"name": "x"}, "limit": 2, "skip": 1, "$db": "set"}):
            client.admin.command({"setQuerySettings": query, "settings": hints})
            asked = {name: value for name, value in query.items() if name != "$db"}
            shown = client.set.command("explain", asked, verbosity="queryPlanner")["queryPlanner"]["winningPlan"]
            assert {"both"} == set(names_of(shown)), shown
            assert client.set.command(asked)["cursor"]["firstBatch"] == []
        # Only routers may say what was set.
        with cluster.shards[0].direct(0) as shard:
            refused(40415, lambda: shard.set.command("find", "plants", querySettings={"reject": True}))
        refused(40415, lambda: client.set.command("find", "plants", querySettings={}))
        client.admin.command({"removeQuerySettings": query})
        assert len(listed(client)) == 1


def names_of(plan):
    if isinstance(plan, dict):
        if "indexName" in plan:
            yield plan["indexName"]
        for part in plan.values():
            yield from names_of(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from names_of(part)


@check
def parameters_of_the_cluster_are_those_of_its_shards(cluster):
    with cluster.client() as client:
        client.admin.command({"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 50000}}})
        try:
            for members in cluster.shards:
                with members.direct(0) as shard:
                    known = shard.admin.command("getClusterParameter", "defaultMaxTimeMS")["clusterParameters"][0]
                    assert known["readOperations"] == 50000, known
        finally:
            client.admin.command({"setClusterParameter": {"defaultMaxTimeMS": {"readOperations": 0}}})


def used(indexes):
    return {shown["name"] for shown in indexes.aggregate([{"$indexStats": {}}]) if shown["accesses"]["ops"]}


@check
def settings_reach_what_is_looked_up(cluster):
    """What was set for a pipeline holds on the shards that its stages ask."""
    with cluster.client(0) as client:
        plants, notes = spread_evenly(client, "within.plants"), spread_evenly(client, "within.notes")
        notes.create_index("name")
        notes.create_index([("name", 1), ("k", 1)], name="both")
        pipeline = [{"$match": {"k": 1}}, {"$lookup": {"from": "notes", "pipeline": [{"$match": {"name": "plant 70"}}], "as": "found"}}]
        before = used(notes)
        query = {"aggregate": "plants", "pipeline": pipeline, "$db": "within"}
        hints = {"indexHints": [{"ns": {"db": "within", "coll": "notes"}, "allowedIndexes": ["both"]}]}
        client.admin.command({"setQuerySettings": query, "settings": hints})
        try:
            (found,) = plants.aggregate(pipeline)
            assert [note["k"] for note in found["found"]] == [70], found
            assert used(notes) - before == {"both"}, used(notes)
        finally:
            client.admin.command({"removeQuerySettings": query})
        client.drop_database("within")


@alone(shards=2, members=1, routers=2)
def figures_of_queries_of_a_router(cluster):
    """Each router counts what it was asked; what was read for that, its shards know."""
    with cluster.client(0) as client, cluster.client(1) as other:
        plants = spread_evenly(client, "counted.plants")
        client.counted.plain.insert_many([{"_id": n} for n in range(5)])
        client.admin.command("setParameter", 1, internalQueryStatsRateLimit=-1)
        other.admin.command("setParameter", 1, internalQueryStatsRateLimit=-1)
        for _ in range(2):
            assert len(list(plants.find({"k": {"$gte": 0}}, batch_size=40))) == 100
        assert len(list(client.counted.plain.find({}, batch_size=2))) == 5
        assert len(list(plants.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}]))) == 1
        assert sorted(plants.distinct("k")) == list(range(100))

        def shown(of):
            match = {"key.queryShape.cmdNs.db": "counted"}
            found = {}
            for entry in of.admin.aggregate([{"$queryStats": {}}, {"$match": match}]):
                shape, figures = entry["key"]["queryShape"], entry["metrics"]
                found[shape["command"], shape["cmdNs"]["coll"]] = figures["execCount"], figures["docsReturned"]["sum"]
                assert "collectionType" not in entry["key"] and "docsExamined" not in figures, entry
                assert figures["totalExecMicros"]["sum"] >= figures["firstResponseExecMicros"]["sum"] > 0, entry
            return found

        # Only values are counted of `distinct`, which is no list of documents.
        counted = shown(client)
        assert counted.pop(("distinct", "plants"))[0] == 1, counted
        assert counted == {("find", "plants"): (2, 200), ("find", "plain"): (1, 5), ("aggregate", "plants"): (1, 1)}, counted
        assert shown(other) == {}
