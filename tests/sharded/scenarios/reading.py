"""The pages on read preference and cursors: partial results, staleness, hidden members."""

import datetime

from pymongo import ReadPreference
from pymongo.read_preferences import SecondaryPreferred

from checks import alone, check, refused
from cluster import eventually
from scenarios import spread_evenly


@check
def staleness_is_ninety_seconds_at_least(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "stalereads.plants")
        preference = {"mode": "secondaryPreferred", "maxStalenessSeconds": 30}
        refused(160, lambda: client.stalereads.command({"find": "plants", "$readPreference": preference}))
        stale = SecondaryPreferred(max_staleness=90)
        assert len(list(plants.with_options(read_preference=stale).find({}))) == 100
        assert len(list(plants.with_options(read_preference=ReadPreference.NEAREST).find({}))) == 100


@alone(routers=1)
def partial_results_leave_a_dead_shard_out(cluster):
    with cluster.client() as client:
        plants = spread_evenly(client, "partial.plants")
        command = {"find": "plants", "sort": {"k": 1}, "allowPartialResults": True, "batchSize": 10, "maxTimeMS": 3000}
        whole = client.partial.command(command)["cursor"]
        assert "partialResultsReturned" not in whole and whole["id"], whole
        for server in cluster.shards[1].servers:
            server.kill()
        refused_codes = []

        def is_lost():
            try:
                client.partial.command({"find": "plants", "maxTimeMS": 300})
            except Exception as error:
                refused_codes.append(getattr(error, "code", None))
                return True

        eventually(is_lost, "the shard is lost")
        part = client.partial.command(command)["cursor"]
        assert part["partialResultsReturned"] is True, part
        found = list(plants.find({}, allow_partial_results=True, max_time_ms=2000))
        assert sorted(plant["k"] for plant in found) == list(range(50)), len(found)
        lost = client.partial.command({"find": "plants", "filter": {"k": 70}, "allowPartialResults": True, "maxTimeMS": 1000})
        assert lost["cursor"]["firstBatch"] == [] and lost["cursor"]["partialResultsReturned"], lost


@check
def views_compare_strings_by_their_own_collation(cluster):
    with cluster.client() as client:
        client.admin.command("enableSharding", "collated", primaryShard="shard0")
        db, loose = client.collated, {"locale": "en", "strength": 2}
        for name in ("whole", "spread"):
            db.create_collection(name, collation=loose)
            db[name].insert_many([{"_id": at, "k": at, "m": "aA"[at % 2]} for at in range(10)])
            db.create_collection(f"{name}view", viewOn=name, pipeline=[{"$match": {"_id": {"$gte": 0}}}], collation=loose)
            db.create_collection(f"{name}strict", viewOn=name, pipeline=[])
        db.spread.create_index("k", collation={"locale": "simple"})
        client.admin.command("shardCollection", "collated.spread", key={"k": 1}, collation={"locale": "simple"})
        client.admin.command("split", "collated.spread", middle={"k": 5})
        client.admin.command("moveChunk", "collated.spread", find={"k": 5}, to="shard1")
        db.create_collection("measured", timeseries={"timeField": "t", "metaField": "m"}, collation=loose)
        db.measured.insert_many([{"t": datetime.datetime(2024, 1, 1), "m": "aA"[at % 2], "_id": at} for at in range(10)])
        lookup = {"$lookup": {"from": "spread", "localField": "_id", "foreignField": "_id", "as": "same"}}
        for name in ("whole", "spread", "wholeview", "spreadview", "measured", "wholestrict", "spreadstrict"):
            found, groups = (5, 2) if name.endswith("strict") else (10, 1)
            shown = db[name]
            assert len(list(shown.find({"m": "A"}))) == shown.count_documents({"m": "A"}) == found, name
            assert db.command("count", name, query={"m": "A"})["n"] == found, name
            assert len(shown.distinct("m")) == groups, name
            for stages in ([], [lookup]):
                grouped = list(shown.aggregate([*stages, {"$group": {"_id": "$m", "n": {"$sum": 1}}}]))
                assert len(grouped) == groups and sum(group["n"] for group in grouped) == 10, (name, grouped)
            other = {"locale": "en", "strength": 1}
            if name.endswith("view") or name.endswith("strict"):
                refused(167, lambda: list(shown.find({"m": "A"}, collation=other)))
                refused(167, lambda: list(shown.aggregate([{"$match": {"m": "A"}}], collation=other)))
