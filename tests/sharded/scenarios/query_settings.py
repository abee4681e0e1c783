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
