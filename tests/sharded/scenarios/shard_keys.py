"""The page on analyzeShardKey: how well a key would spread a collection."""

import bson

from checks import check, refused
from scenarios import spread_evenly


@check
def keys_are_analyzed_before_they_are_chosen(cluster):
    with cluster.client() as client:
        admin = client.admin
        client.keys.plants.insert_many([{"_id": at, "bed": at % 4, "n": {"m": at}} for at in range(100)])

        def analyze(key, **options):
            return admin.command("analyzeShardKey", "keys.plants", key=key, readWriteDistribution=False, **options)

        refused(20, lambda: analyze({"bed": 1}))
        told = admin.command("analyzeShardKey", "keys.plants", key={"bed": 1})
        assert "keyCharacteristics" not in told and told["readDistribution"]["sampleSize"]["total"] == 0, told
        client.keys.plants.create_index("bed")
        client.keys.plants.create_index([("n.m", 1), ("bed", 1)])
        told = analyze({"bed": 1})["keyCharacteristics"]
        assert (told["numDocsTotal"], told["numDocsSampled"], told["numDistinctValues"]) == (100, 100, 4), told
        assert not told["isUnique"] and told["avgDocSizeBytes"] > 20 and told["monotonicity"] == {"type": "unknown"}, told
        common = {entry["value"]["bed"]: entry["frequency"] for entry in told["mostCommonValues"]}
        assert common == {0: 25, 1: 25, 2: 25, 3: 25}, common
        told = analyze({"n.m": 1})["keyCharacteristics"]
        assert told["numDistinctValues"] == 100 and set(told["mostCommonValues"][0]["value"]) == {"n.m"}, told
        assert analyze({"_id": 1})["keyCharacteristics"]["isUnique"]
        assert analyze({"bed": 1}, sampleSize=10)["keyCharacteristics"]["numDocsSampled"] == 10
        both = admin.command("analyzeShardKey", "keys.plants", key={"bed": 1})
        assert both["readDistribution"]["sampleSize"]["total"] == 0 and "writeDistribution" in both, both
        spread_evenly(client, "keysspread.plants")
        told = admin.command("analyzeShardKey", "keysspread.plants", key={"k": 1})["keyCharacteristics"]
        assert told["numDocsTotal"] == 100 and told["numOrphanDocs"] == 0 and "note" in told, told
        refused(72, lambda: analyze({"bed": 1}, keyCharacteristics=False))
        refused(72, lambda: analyze({"bed": 1}, sampleSize=10, sampleRate=0.5))
        refused(2, lambda: analyze({"bed": 1}, sampleRate=1.5))
        refused(2, lambda: analyze({"bed": "text"}))
        refused(26, lambda: admin.command("analyzeShardKey", "keys.nothing", key={"a": 1}))
        refused(20, lambda: admin.command("analyzeShardKey", "config.chunks", key={"a": 1}))
        client.keys.create_collection("view", viewOn="plants", pipeline=[])
        refused(166, lambda: admin.command("analyzeShardKey", "keys.view", key={"a": 1}))
        client.keys.create_collection("empty")
        refused(20, lambda: admin.command("analyzeShardKey", "keys.empty", key={"_id": 1}))
        refused(73, lambda: admin.command("analyzeShardKey", "keys", key={"a": 1}))


@check
def keys_that_grow_with_time_are_told(cluster):
    """`_id`s that are ObjectIds tell when documents came; other ones do not."""
    with cluster.client() as client:
        plants = client.growing.plants
        plants.insert_many([{"_id": bson.ObjectId(), "up": at, "down": -at, "mixed": at * 7919 % 300} for at in range(300)])
        for key in ("up", "down", "mixed"):
            plants.create_index(key)
        plants.create_index([("up", "hashed")])
        plants.create_index([("mixed", 1), ("up", 1)])

        def monotonicity(**key):
            told = client.admin.command("analyzeShardKey", "growing.plants", key=key, readWriteDistribution=False)
            return told["keyCharacteristics"]["monotonicity"]

        assert monotonicity(up=1) == {"recordIdCorrelationCoefficient": 1.0, "type": "monotonic"}
        assert monotonicity(down=1) == {"recordIdCorrelationCoefficient": -1.0, "type": "monotonic"}
        assert monotonicity(_id=1)["type"] == "monotonic"
        for key in ({"mixed": 1}, {"mixed": 1, "up": 1}):
            told = monotonicity(**key)
            assert told["type"] == "not monotonic" and abs(told["recordIdCorrelationCoefficient"]) < 0.2, told
        assert monotonicity(up="hashed") == {"type": "not monotonic"}
        plants.insert_one({"_id": 1, "up": 1})
        assert monotonicity(up=1) == {"type": "unknown"}
        client.drop_database("growing")
