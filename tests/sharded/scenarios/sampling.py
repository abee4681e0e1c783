"""The pages on configureQueryAnalyzer, $listSampledQueries and the distributions of analyzeShardKey."""

import pymongo

from checks import alone, check, refused
from cluster import ReplicaSet, eventually
from scenarios import spread_evenly


def listed(client, namespace):
    found = client.admin.aggregate([{"$listSampledQueries": {"namespace": namespace}}])
    return sorted(found, key=lambda sample: sample["cmdName"])


def ask_everything(collection):
    list(collection.find({"k": 3}))
    list(collection.aggregate([{"$match": {"k": {"$gte": 90}}}, {"$count": "n"}]))
    collection.database.command("count", collection.name, query={"name": "plant 1"})
    collection.distinct("name", {"k": 4})
    collection.bulk_write([
        pymongo.UpdateOne({"k": 5}, {"$set": {"name": "five"}}),
        pymongo.UpdateMany({"name": "none"}, {"$set": {"name": "five"}})])
    collection.delete_one({"k": 6})
    collection.find_one_and_update({"k": 7}, {"$set": {"name": "seven"}})


def check_samples(samples, namespace, uuid):
    names = [sample["cmdName"] for sample in samples]
    expected = ["aggregate", "count", "delete", "distinct", "find", "findAndModify", "update", "update"]
    assert names == expected, names
    for sample in samples:
        assert set(sample) == {"_id", "ns", "collectionUuid", "cmdName", "cmd", "expireAt"}, sample
        assert sample["ns"] == namespace and sample["collectionUuid"] == uuid, sample
    told = {sample["cmdName"]: sample["cmd"] for sample in samples}
    assert told["find"] == {"filter": {"k": 3}}, told
    assert told["aggregate"] == {"filter": {"k": {"$gte": 90}}, "collation": {"locale": "simple"}}, told
    assert told["count"] == {"filter": {"name": "plant 1"}} and told["distinct"] == {"filter": {"k": 4}}, told
    db, name = namespace.split(".")
    assert told["delete"] == {"delete": name, "deletes": [{"q": {"k": 6}, "limit": 1}], "$db": db}, told
    change = told["findAndModify"]
    assert change["findAndModify"] == name and change["query"] == {"k": 7} and change["$db"] == db, change
    assert "lsid" not in change and "txnNumber" not in change, change
    updates = [sample["cmd"]["updates"] for sample in samples if sample["cmdName"] == "update"]
    assert sorted(len(statements) for statements in updates) == [1, 1], updates


def uuid_of(collection):
    return next(collection.database.list_collections(filter={"name": collection.name}))["info"]["uuid"]


def check_configuration(client, namespace, of_router):
    admin = client.admin
    db, name = namespace.split(".")

    def configure(mode, **options):
        told = admin.command("configureQueryAnalyzer", namespace, mode=mode, **options)
        return told["newConfiguration"], told.get("oldConfiguration")

    def document():
        return client.config.queryAnalyzers.find_one({"_id": namespace})

    assert configure("off") == ({"mode": "off"}, None) and document() is None
    assert configure("full", samplesPerSecond=50) == ({"mode": "full", "samplesPerSecond": 50.0}, None)
    first = document()
    assert list(first) == ["_id", "collUuid", "mode", "samplesPerSecond", "startTime"], first
    assert first["collUuid"] == uuid_of(client[db][name])
    new, old = configure("full", samplesPerSecond=0.2)
    assert old == {"mode": "full", "samplesPerSecond": 50.0} and new["samplesPerSecond"] == 0.2
    assert document()["startTime"] == first["startTime"]
    assert configure("off") == ({"mode": "off"}, {"mode": "full", "samplesPerSecond": 0.2})
    stopped = document()
    assert stopped["mode"] == "off" and stopped["samplesPerSecond"] == 0.2, stopped
    assert stopped["startTime"] == first["startTime"]
    assert configure("off")[1] == {"mode": "off", "samplesPerSecond": 0.2} and document() == stopped
    assert configure("full", samplesPerSecond=1)[1] == {"mode": "off", "samplesPerSecond": 0.2}
    assert "stopTime" not in document() and document()["startTime"] > first["startTime"]
    for options in ({"mode": "full", "samplesPerSecond": 0}, {"mode": "full", "samplesPerSecond": 51}, {"mode": "full"},
                    {"mode": "off", "samplesPerSecond": 1},
                    {"mode": "full", "samplesPerSecond": 1, "writeConcern": {"w": "majority"}}):
        refused(72, lambda: admin.command("configureQueryAnalyzer", namespace, **options))
    refused(2, lambda: configure("some"))
    refused(40414, lambda: admin.command("configureQueryAnalyzer", namespace))
    for inner in ("config.chunks", "admin.users", f"{db}.system.profile"):
        refused(20, lambda: admin.command("configureQueryAnalyzer", inner, mode="off"))
    refused(26, lambda: admin.command("configureQueryAnalyzer", f"{db}.nothing", mode="off"))
    client[db].create_collection("view", viewOn=name, pipeline=[])
    refused(166, lambda: admin.command("configureQueryAnalyzer", f"{db}.view", mode="off"))
    refused(13, lambda: client[db].command("configureQueryAnalyzer", namespace, mode="off"))
    # A collection of the same name is another one.
    client[db][name].drop()
    assert (document() is None) == of_router, "it goes with its collection"
    client[db].create_collection(name)
    assert configure("full", samplesPerSecond=1)[1] is None
    client[db][name].rename("renamed")
    assert (document() is None) == of_router
    client[db].create_collection(name)
    configure("full", samplesPerSecond=1)
    client.drop_database(db)
    assert (document() is None) == of_router


@check
def query_analyzers_are_configured_on_routers(cluster):
    with cluster.client(0) as client:
        client.admin.command("enableSharding", "configured")
        client.configured.create_collection("plants")
        check_configuration(client, "configured.plants", True)
        spread_evenly(client, "configured2.plants")
        check_configuration(client, "configured2.plants", True)
    with cluster.shards[0].direct(0) as shard:
        refused(20, lambda: shard.admin.command("configureQueryAnalyzer", "configured.plants", mode="off"))


@check
def queries_are_sampled_by_routers(cluster):
    with cluster.client(0) as client:
        namespace = "sampled.plants"
        plants = spread_evenly(client, namespace)
        other = client.sampled.other
        other.insert_one({"_id": 1})
        ask_everything(plants)
        assert listed(client, namespace) == []
        client.admin.command("configureQueryAnalyzer", namespace, mode="full", samplesPerSecond=50)
        ask_everything(plants)
        ask_everything(other)
        samples = listed(client, namespace)
        check_samples(samples, namespace, uuid_of(plants))
        with cluster.client(1) as second:
            assert listed(second, namespace) == samples, "they are the cluster's"
        assert len(list(client.admin.aggregate([{"$listSampledQueries": {}}]))) >= len(samples)
        index = client.config.sampledQueries.index_information()["SampledQueriesTTLIndex"]
        assert index["expireAfterSeconds"] == 0, index
        shown = list(client.admin.aggregate([{"$currentOp": {"localOps": True}}, {"$match": {"desc": "query analyzer"}}]))
        shown = [entry for entry in shown if entry["ns"] == namespace]
        assert [(entry["sampledReadsCount"], entry["sampledWritesCount"]) for entry in shown] == [(4, 4)], shown
        client.admin.command("configureQueryAnalyzer", namespace, mode="off")
        ask_everything(plants)
        assert listed(client, namespace) == samples
        refused(73, lambda: client.sampled.command({"aggregate": 1, "pipeline": [{"$listSampledQueries": {}}], "cursor": {}}))
        refused(40415, lambda: list(client.admin.aggregate([{"$listSampledQueries": {"name": 1}}])))


@check
def no_more_is_sampled_than_was_asked_for(cluster):
    with cluster.client(0) as client:
        client.rarely.plants.insert_one({"_id": 1})
        client.admin.command("configureQueryAnalyzer", "rarely.plants", mode="full", samplesPerSecond=0.01)
        for _ in range(50):
            client.rarely.plants.find_one({"_id": 1})
        assert len(listed(client, "rarely.plants")) == 1
        client.admin.command("configureQueryAnalyzer", "rarely.plants", mode="off")


@check
def samples_tell_how_a_key_would_spread_reads_and_writes(cluster):
    with cluster.client(0) as client, cluster.client(1) as second:
        admin = client.admin
        plants = spread_evenly(client, "spreading.plants")

        def analyze(of, key, namespace="spreading.plants"):
            told = of.admin.command("analyzeShardKey", namespace, key=key, keyCharacteristics=False)
            return told["readDistribution"], told["writeDistribution"]

        for of in (client, second):
            of.admin.command("setParameter", 1, analyzeShardKeyNumRanges=4)
        reads, writes = analyze(client, {"k": 1})
        assert reads == {"sampleSize": {"total": 0, "find": 0, "aggregate": 0, "count": 0, "distinct": 0}}, reads
        assert writes == {"sampleSize": {"total": 0, "update": 0, "delete": 0, "findAndModify": 0}}, writes
        admin.command("configureQueryAnalyzer", "spreading.plants", mode="full", samplesPerSecond=50)
        ask_everything(plants)
        admin.command("configureQueryAnalyzer", "spreading.plants", mode="off")
        reads, writes = analyze(client, {"k": 1})
        assert reads["sampleSize"] == {"total": 4, "find": 1, "aggregate": 1, "count": 1, "distinct": 1}, reads
        assert reads["percentageOfSingleShardReads"] == 50 and reads["percentageOfMultiShardReads"] == 25, reads
        assert reads["percentageOfScatterGatherReads"] == 25 and reads["numReadsByRange"] == [3, 1, 1, 2], reads
        assert writes["sampleSize"] == {"total": 4, "update": 2, "delete": 1, "findAndModify": 1}, writes
        assert writes["percentageOfSingleShardWrites"] == 75 and writes["percentageOfScatterGatherWrites"] == 25, writes
        assert writes["numWritesByRange"] == [4, 1, 1, 1], writes
        assert writes["percentageOfMultiWritesWithoutShardKey"] == 25, writes
        assert writes["percentageOfSingleWritesWithoutShardKey"] == 0, writes
        assert [half["sampleSize"]["total"] for half in analyze(second, {"k": "hashed"})] == [4, 4]
        reads, writes = analyze(client, {"k": "hashed"})
        assert reads["percentageOfSingleShardReads"] == 50 and reads["percentageOfScatterGatherReads"] == 50, reads
        assert sum(reads["numReadsByRange"]) == 2 + 2 * 4, reads
        reads, writes = analyze(client, {"name": 1})
        assert reads["percentageOfSingleShardReads"] == 25 and writes["percentageOfSingleWritesWithoutShardKey"] == 75
        plants.update_many({}, {"$set": {"same": 1, "list": [1, 2]}})
        refused(4952606, lambda: analyze(client, {"same": 1}))
        refused(2, lambda: analyze(client, {"list": 1}))
        for of in (client, second):
            of.admin.command("setParameter", 1, analyzeShardKeyNumRanges=100)


def change_keys(plants):
    """Updates, of which the first six change `k`; the first is told of by its diff."""
    plants.update_one({"_id": 1}, {"$set": {"k": 1.5, "new": 1}, "$unset": {"name": ""}})
    plants.update_one({"k": 2}, {"$inc": {"k": 95}})
    plants.replace_one({"k": 3}, {"k": 97, "name": "plant 3"})
    plants.update_one({"k": 4}, [{"$set": {"k": 4.5}}])
    plants.find_one_and_update({"k": 5}, {"$set": {"k": 5.5}})
    plants.find_one_and_update({"k": 6}, {"$set": {"k": 99}})
    plants.update_many({"k": {"$gte": 40, "$lt": 60}}, {"$set": {"n": {"m": 1}}})
    plants.update_one({"k": 8}, {"$set": {"k": 8}})
    plants.find_one_and_delete({"k": 9})
    plants.update_one({"k": 10, "_id": 1000}, {"$set": {"name": "upserted"}}, upsert=True)


@check
def samples_tell_which_updates_change_the_key(cluster):
    with cluster.client(0) as client:
        admin = client.admin
        spread, whole = spread_evenly(client, "changing.plants"), client.changing.whole
        whole.insert_many(spread.find())
        admin.command("setParameter", 1, analyzeShardKeyNumRanges=4)
        for plants in (spread, whole):
            namespace = plants.full_name
            admin.command("configureQueryAnalyzer", namespace, mode="full", samplesPerSecond=50)
            change_keys(plants)
            command = client.changing.command
            told = command("update", plants.name, updates=[{"q": {"k": 20}, "u": {"$set": {"told": 1}}}])
            assert told["nModified"] == 1 and "sampledDiffs" not in told, "that is between router and shard"
            told = command("findAndModify", plants.name, query={"k": 21}, update={"$set": {"told": 1}})
            assert told["value"]["_id"] == 21 and "sampledDiffs" not in told, told
            admin.command("configureQueryAnalyzer", namespace, mode="off")

            def updates(key):
                told = admin.command("analyzeShardKey", namespace, key=key, keyCharacteristics=False)["writeDistribution"]
                return told["sampleSize"]["total"], told["percentageOfShardKeyUpdates"]

            assert updates({"k": 1}) == (12, 50), (namespace, updates({"k": 1}))
            diffs = {bytes(told["_id"]): told for told in client.config.sampledQueriesDiff.find({"ns": namespace})}
            samples = {bytes(sample["_id"]): sample for sample in listed(client, namespace)}
            assert diffs.keys() <= samples.keys() and len(diffs) == 9, diffs
            for told in diffs.values():
                assert list(told) == ["_id", "ns", "collectionUuid", "diff", "expireAt"], told
                assert told["collectionUuid"] == uuid_of(plants), told
            shown = [told["diff"] for told in diffs.values()]
            assert {"k": "u", "name": "d", "new": "i"} in shown and {"n": "i"} in shown and {"k": "u"} in shown, shown
        index = client.config.sampledQueriesDiff.index_information()["SampledQueriesDiffTTLIndex"]
        assert index["expireAfterSeconds"] == 0, index
        admin.command("setParameter", 1, analyzeShardKeyNumRanges=100)


@check
def sampling_ends_with_the_collection_whoever_drops_it(cluster):
    with cluster.client(0) as client, cluster.client(1) as second, cluster.shards[0].direct(0) as shard:
        admin = client.admin

        def is_sampled(of, namespace):
            shown = of.admin.aggregate([{"$currentOp": {"localOps": True}}])
            return any(entry["ns"] == namespace for entry in shown if entry.get("desc") == "query analyzer")

        admin.command("enableSharding", "ending", primaryShard="shard0")
        for of in (client, second):
            of.admin.command("setParameter", 1, queryAnalysisSamplerConfigurationRefreshSecs=1)
        client.ending.plants.insert_one({"_id": 1})
        admin.command("configureQueryAnalyzer", "ending.plants", mode="full", samplesPerSecond=1)
        eventually(lambda: is_sampled(second, "ending.plants"), "the other router has not heard of it")
        shard.ending.plants.drop()
        shard.ending.create_collection("plants")
        eventually(lambda: not is_sampled(client, "ending.plants") and not is_sampled(second, "ending.plants"), "it goes on")
        assert client.config.queryAnalyzers.find_one({"_id": "ending.plants"}) is None
        spread_evenly(client, "ending.moved")
        admin.command("configureQueryAnalyzer", "ending.moved", mode="full", samplesPerSecond=1)
        admin.command("reshardCollection", "ending.moved", key={"name": 1}, numInitialChunks=1)
        eventually(lambda: not is_sampled(client, "ending.moved"), "a resharded collection is another one")
        for of in (client, second):
            of.admin.command("setParameter", 1, queryAnalysisSamplerConfigurationRefreshSecs=10)


@alone(shards=1, routers=1)
def queries_go_on_while_samples_cannot_be_written(cluster):
    with cluster.client(0) as client:
        plants = client.beds.plants
        plants.insert_one({"_id": 1})
        client.admin.command("setParameter", 1, queryAnalysisWriterIntervalSecs=1)
        client.admin.command("configureQueryAnalyzer", "beds.plants", mode="full", samplesPerSecond=50)
        cluster.config.servers[0].kill()
        for at in range(20):
            assert plants.find_one({"_id": 1})["_id"] == 1
            plants.update_one({"_id": 1}, {"$set": {"at": at}})
        cluster.config.servers[0].start()
        eventually(lambda: len(listed(client, "beds.plants")) == 40, "samples are lost")


@check
def queries_are_sampled_by_the_primary_of_a_set(_):
    with ReplicaSet([{}], name="sampled") as members, members.direct(0) as client:
        eventually(lambda: client.admin.command("hello")["isWritablePrimary"], "it leads")
        client.alone.create_collection("plants")
        check_configuration(client, "alone.plants", False)
        plants = client.beds.plants
        plants.insert_many([{"_id": at, "k": at} for at in range(10)])
        client.admin.command("configureQueryAnalyzer", "beds.plants", mode="full", samplesPerSecond=50)
        ask_everything(plants)
        samples = listed(client, "beds.plants")
        check_samples(samples, "beds.plants", uuid_of(plants))
        changed = {bytes(told["_id"]): told["diff"] for told in client.config.sampledQueriesDiff.find()}
        updates = {bytes(sample["_id"]) for sample in samples if sample["cmdName"] in ("update", "findAndModify")}
        assert changed.keys() <= updates and list(changed.values()) == [{"name": "i"}] * 2, changed


def check_bulk(client, namespace, uuid, told):
    """Each statement of a `bulkWrite` is a sample, with its own namespace; inserts are none."""
    db, name = namespace.split(".")
    client.admin.command("configureQueryAnalyzer", namespace, mode="full", samplesPerSecond=50)
    client.admin.command("bulkWrite", 1, nsInfo=[{"ns": f"{db}.another"}, {"ns": namespace}], ops=[
        {"insert": 1, "document": {"_id": "new", "k": 1}},
        {"update": 0, "filter": {"k": 8}, "updateMods": {"$set": {"name": "none"}}},
        {"update": 1, "filter": {"k": 8}, "updateMods": {"$set": {"name": "eight"}}},
        {"delete": 1, "filter": {"k": 9}, "multi": True}])
    samples = told(namespace)
    assert [sample["cmdName"] for sample in samples] == ["bulkWrite", "bulkWrite"], samples
    assert all(sample["collectionUuid"] == uuid for sample in samples), samples
    statements = sorted((sample["cmd"] for sample in samples), key=lambda command: list(command["ops"][0])[0])
    assert statements[0] == {"bulkWrite": 1, "ops": [{"delete": 0, "filter": {"k": 9}, "multi": True}],
                             "nsInfo": [{"ns": namespace}], "$db": "admin"}, statements
    assert statements[1]["ops"] == [{"update": 0, "filter": {"k": 8}, "updateMods": {"$set": {"name": "eight"}}}], statements
    update = next(sample["_id"] for sample in samples if "update" in sample["cmd"]["ops"][0])
    eventually(lambda: client.config.sampledQueriesDiff.find_one({"_id": update}), "what it has changed is told")
    assert "name" in str(client.config.sampledQueriesDiff.find_one({"_id": update})["diff"])
    client.admin.command("configureQueryAnalyzer", namespace, mode="off")


@check
def statements_of_bulk_writes_are_sampled(cluster):
    with cluster.client(0) as client:
        client.admin.command("setParameter", 1, queryAnalysisWriterIntervalSecs=1)
        client.admin.command("setParameter", 1, analyzeShardKeyNumRanges=4)
        plants = spread_evenly(client, "bulky.plants")
        client.bulky.another.insert_one({"k": 8})
        check_bulk(client, "bulky.plants", uuid_of(plants), lambda namespace: listed(client, namespace))
        told = client.admin.command("analyzeShardKey", "bulky.plants", key={"k": 1}, keyCharacteristics=False)
        assert told["writeDistribution"]["sampleSize"] == {"total": 2, "update": 1, "delete": 1, "findAndModify": 0}, told
        client.admin.command("setParameter", 1, queryAnalysisWriterIntervalSecs=90)
        client.admin.command("setParameter", 1, analyzeShardKeyNumRanges=100)
    with ReplicaSet([{}], name="bulky") as members, members.direct(0) as client:
        client.admin.command("setParameter", 1, queryAnalysisWriterIntervalSecs=1)
        client.bulky.plants.insert_many([{"_id": at, "k": at, "name": "plant"} for at in range(10)])
        client.bulky.another.insert_one({"k": 8})
        check_bulk(client, "bulky.plants", uuid_of(client.bulky.plants), lambda namespace: listed(client, namespace))
