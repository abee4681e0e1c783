"""The pages on read preference and cursors: partial results, staleness, hidden members."""

import datetime
import time

from bson import MaxKey
from pymongo import ReadPreference, WriteConcern
from pymongo.read_preferences import SecondaryPreferred

from checks import alone, check, refused
from cluster import eventually
from moves import cleanup, move
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


@alone(members=2, routers=1)
def cursors_outlive_what_they_read(cluster):
    """What a shard has given away is there for cursors that began before; on secondaries they fail where it is removed, and never end early."""
    with cluster.client() as client:
        cleanup(cluster, 0)
        names = {"find": {}, "sort": {"sort": {"k": 1}}, "aggregate": {}, "secondary": {"$readPreference": {"mode": "secondary"}}}
        for name, more in names.items():
            client.admin.command("enableSharding", "outlived", primaryShard="shard0")
            client.admin.command("shardCollection", f"outlived.{name}", key={"k": 1})
            plants = client.outlived.get_collection(name, write_concern=WriteConcern(2))
            plants.insert_many([{"_id": at, "k": at} for at in range(200)])
            client.admin.command("split", f"outlived.{name}", middle={"k": 100})
            if name == "aggregate":
                opened = {"aggregate": name, "pipeline": [{"$match": {"k": {"$gte": 0}}}], "cursor": {"batchSize": 10}}
            else:
                opened = {"find": name, "batchSize": 10, **more}
            cursor = client.outlived.command(opened)["cursor"]
            move(client, f"outlived.{name}", {"k": 100}, {"k": MaxKey()}, "shard1")

            def removed():
                with cluster.shards[0].direct(cluster.shards[0].primary()) as shard:
                    entry = shard.config.placements.find_one({"ns": f"outlived.{name}"})
                    return not entry["leaving"]

            rest = {"getMore": cursor["id"], "collection": name, "batchSize": 1000}
            if name == "secondary":
                eventually(removed, "nobody on the primary reads it")
                # The removal has come to the secondary.
                plants.insert_one({"_id": -1, "k": -1})
                error = refused(175, lambda: client.outlived.command(rest))
                assert "removed" in str(error), error
                continue
            # One document at a time, while the removal would have long begun.
            got = len(cursor["firstBatch"])
            for _ in range(20):
                time.sleep(0.05)
                got += len(client.outlived.command({**rest, "batchSize": 1})["cursor"]["nextBatch"])
            assert not removed(), name
            got += len(client.outlived.command(rest)["cursor"]["nextBatch"])
            assert got == 200, (name, got)
            eventually(removed, "the cursor is at its end")
            assert plants.count_documents({}) == 200


@check
def views_on_sharded_collections_are_read_in_transactions(cluster):
    """The shard that has the view tells what it is, and the transaction goes on there."""
    with cluster.client() as client:
        spread_evenly(client, "viewed.plants")
        db = client.viewed
        db.create_collection("tall", viewOn="plants", pipeline=[{"$match": {"k": {"$gte": 30}}}])
        db.beds.insert_one({"_id": 1})
        series = {"timeField": "t", "metaField": "m"}
        client.admin.command("shardCollection", "viewed.weather", key={"m": 1}, timeseries=series)
        db.weather.insert_many([{"t": datetime.datetime(2024, 1, 1), "m": at} for at in range(70)])
        join = [{"$limit": 1}, {"$lookup": {"from": "", "pipeline": [], "as": "all"}}, {"$unwind": "$all"}]
        for name in ("tall", "weather"):
            join[1]["$lookup"]["from"] = name
            reads = (
                lambda session: len(list(db[name].find({}, session=session))),
                lambda session: db[name].count_documents({}, session=session),
                lambda session: len(db[name].distinct("k" if name == "tall" else "m", session=session)),
                lambda session: len(list(db.beds.aggregate(join, session=session))),
            )
            # As the first statement and later, before and after one that writes.
            for first in range(len(reads)):
                with client.start_session() as session, session.start_transaction():
                    assert reads[first](session) == 70, (name, first)
                    db.plants.insert_one({"k": -1}, session=session)
                    assert [read(session) for read in reads] == [70] * 4, (name, first)
                    db.beds.insert_one({}, session=session)
        assert db.plants.count_documents({"k": -1}) == 8 and db.beds.count_documents({}) == 9
        client.drop_database("viewed")
