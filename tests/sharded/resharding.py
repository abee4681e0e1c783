"""Collections get another shard or another key while clients write in them, whoever dies meanwhile."""

import itertools
import os
import random
import threading
import time

from bson import Int64, MaxKey, MinKey
from pymongo.errors import DuplicateKeyError, PyMongoError

from checks import alone, check, refused
from cluster import eventually
from collections_ddl import check_whole, placements, shown
from moves import Exact, Writers, cleanup


def where(cluster, namespace):
    """How many documents of a collection there are on each shard, owned or not."""
    db, name = namespace.split(".", 1)
    found = {}
    for members in cluster.shards:
        with members.direct(members.primary()) as shard:
            # Counted by what is in it, without the shard's filter of what it owns.
            info = list(shard[db].list_collections(filter={"name": name}))
            found[members.name] = shard[db].command("collStats", name)["count"] if info else None
    return found


def no_rubbish(cluster, namespace):
    """Nothing is left of an operation but the collection itself."""
    db, name = namespace.split(".", 1)
    with cluster.client() as client:
        assert client.config.ddl.count_documents({}) == 0
        entry = client.config.collections.find_one({"_id": namespace})
        uuids = set(client.config.collections.distinct("uuid"))
        chunks = set(client.config.chunks.distinct("uuid"))
        found = client[db].command("checkMetadataConsistency", name)["cursor"]["firstBatch"]
        assert not found, found
        assert chunks <= uuids, chunks - uuids
    for members in cluster.shards:
        with members.direct(members.primary()) as shard:
            names = shard[db].list_collection_names()
            assert not [found for found in names if found.startswith("system.resharding")], (members.name, names)
            own = [placed for placed in shard.config.placements.find() if placed["ns"].startswith(f"{db}.system.resharding")]
            assert not own, (members.name, own)
            of_name = list(shard.config.placements.find({"ns": namespace}))
            assert all(entry and placed["_id"] == entry["uuid"] for placed in of_name), (members.name, of_name)
            info = list(shard[db].list_collections(filter={"name": name}))
            assert not info or entry is None or info[0]["info"]["uuid"] == entry["uuid"], (members.name, info)


def hang(cluster, phase):
    """Has the conductor wait before a phase; gives how often it has come there."""
    with cluster.config.direct(cluster.config.primary()) as config:
        point = {"configureFailPoint": "hangBeforeDDLPhase", "mode": "alwaysOn", "data": {"op": "reshard", "phase": phase}}
        config.admin.command(point)
        return config.admin.command(point)["count"]


def go_on(cluster):
    with cluster.config.direct(cluster.config.primary()) as config:
        config.admin.command("configureFailPoint", "hangBeforeDDLPhase", mode="off")


class Running:
    """A command of its own thread."""

    def __init__(self, cluster, command, database="admin"):
        self.result, self.cluster, self.database = None, cluster, database
        self.thread = threading.Thread(target=self.run, args=(command,), daemon=True)
        self.thread.start()

    def run(self, command):
        with self.cluster.client() as client:
            try:
                self.result = client[self.database].command(command)
            except PyMongoError as error:
                self.result = error

    def join(self):
        self.thread.join(120)
        assert not self.thread.is_alive(), "the command waits for ever"
        return self.result


@check
def move_collection(cluster):
    with cluster.client() as client:
        admin, plants = client.admin, client.relocated.plants
        admin.command("enableSharding", "relocated", primaryShard="shard0")
        plants.insert_many([{"_id": n, "n": n, "text": "x" * 100} for n in range(500)])
        plants.create_index("n")
        plants.create_index("text", name="texts")
        plants.create_index("u", unique=True, sparse=True)
        before = plants.index_information()
        assert admin.command("moveCollection", "relocated.plants", toShard="shard1")["ok"] == 1
        entry = client.config.collections.find_one({"_id": "relocated.plants"})
        assert entry["unsplittable"] is True and entry["key"] == {"_id": 1} and entry["unique"] is False, entry
        [chunk] = client.config.chunks.find({"uuid": entry["uuid"]})
        assert chunk["shard"] == "shard1", chunk
        assert where(cluster, "relocated.plants") == {"shard0": 0, "shard1": 500}
        with cluster.client(router=1) as other:
            assert other.relocated.plants.count_documents({}) == 500
            assert other.relocated.plants.index_information() == before
        no_rubbish(cluster, "relocated.plants")
        # It is as it was to clients: not sharded, with whatever unique index, and upserts of many.
        stats = client.relocated.command("collStats", "plants")
        assert stats["sharded"] is False and stats["count"] == 500, stats
        plants.create_index("v", unique=True, sparse=True)
        plants.update_many({"n": {"$gte": 1000}}, {"$set": {"v": 1}}, upsert=True)
        try:
            plants.insert_one({"_id": -1, "v": 1})
            raise AssertionError("not refused")
        except DuplicateKeyError:
            pass
        plants.delete_one({"v": 1})
        assert plants.update_many({}, {"$inc": {"n": 1}}).modified_count == 500
        assert plants.find_one_and_update({"n": 5}, {"$set": {"seen": True}})["_id"] == 4
        for command in ({"split": "relocated.plants", "middle": {"_id": 5}},
                        {"moveRange": "relocated.plants", "min": {"_id": 5}, "toShard": "shard0"},
                        {"refineCollectionShardKey": "relocated.plants", "key": {"_id": 1, "n": 1}}):
            refused(118, lambda: admin.command(command))
        # Once more is nothing, and it goes back, too.
        assert admin.command("moveCollection", "relocated.plants", toShard="shard1")["ok"] == 1
        assert admin.command("moveCollection", "relocated.plants", toShard="shard0")["ok"] == 1
        assert where(cluster, "relocated.plants") in ({"shard0": 500, "shard1": None}, {"shard0": 500, "shard1": 0})
        assert plants.count_documents({"n": {"$gt": 0}}) == 500
        no_rubbish(cluster, "relocated.plants")
        plants.drop()
        no_rubbish(cluster, "relocated.plants")


@check
def move_collection_refused(cluster):
    with cluster.client() as client:
        admin = client.admin
        refused(26, lambda: admin.command("moveCollection", "nowhere.plants", toShard="shard1"))
        admin.command("enableSharding", "unmoved", primaryShard="shard0")
        refused(26, lambda: admin.command("moveCollection", "unmoved.plants", toShard="shard1"))
        client.unmoved.plants.insert_one({"_id": 1})
        refused(40414, lambda: admin.command("moveCollection", "unmoved.plants"))
        refused(70, lambda: admin.command("moveCollection", "unmoved.plants", toShard="shard9"))
        admin.command("shardCollection", "unmoved.sharded", key={"n": 1})
        refused(26, lambda: admin.command("moveCollection", "unmoved.sharded", toShard="shard1"))
        refused(20, lambda: admin.command("moveCollection", "config.shards", toShard="shard1"))
        refused(13, lambda: client.unmoved.command("moveCollection", "unmoved.plants", toShard="shard1"))
        refused(339, lambda: admin.command("abortMoveCollection", "unmoved.plants"))
        assert client.config.collections.find_one({"_id": "unmoved.plants"}) is None
        no_rubbish(cluster, "unmoved.plants")


@check
def move_collection_beside_writers(cluster):
    """A collection goes to and fro; each acknowledged write is found once, and counts are exact."""
    name, keys = "placing.plants", 300
    with cluster.client() as client:
        client.admin.command("enableSharding", "placing", primaryShard="shard0")
        client.placing.plants.insert_many([{"_id": n, "n": n, "text": "x" * 200} for n in range(keys)])
        with Exact(cluster, name, keys) as writers:
            for at in range(4):
                client.admin.command("moveCollection", name, toShard=f"shard{1 - at % 2}")
        writers.judge_all(client)
        check_whole(cluster, name, {"_id": 1})
        no_rubbish(cluster, name)


@check
def move_collection_given_up(cluster):
    name = "abiding.plants"
    with cluster.client() as client:
        client.admin.command("enableSharding", "abiding", primaryShard="shard0")
        client.abiding.plants.insert_many([{"_id": n} for n in range(100)])
        for phase in ("copying", "closing"):
            entered = hang(cluster, phase)
            running = Running(cluster, {"moveCollection": name, "toShard": "shard1"})
            eventually(lambda: hang(cluster, phase) > entered, f"{phase} is reached")
            aborting = Running(cluster, {"abortMoveCollection": name})
            time.sleep(0.2)
            go_on(cluster)
            assert running.join().code == 341, running.result
            assert aborting.join()["ok"] == 1, aborting.result
            assert client.config.collections.find_one({"_id": name}) is None
            assert where(cluster, name) == {"shard0": 100, "shard1": None}
            client.abiding.plants.insert_one({"_id": phase})
            client.abiding.plants.delete_one({"_id": phase})
            no_rubbish(cluster, name)
        noted = client.config.changelog.count_documents({"ns": name, "what": "moveCollection.error"})
        assert noted == 2, noted


def spread(cluster, client, namespace, count, key="n"):
    """A sharded collection of two equal parts on two shards, with another field `m`."""
    db, name = namespace.split(".", 1)
    client.admin.command("enableSharding", db, primaryShard="shard0")
    client.admin.command("shardCollection", namespace, key={key: 1})
    client[db][name].insert_many(
        [{"_id": n, "n": n, "m": (n * 7919) % 100003, "even": n % 2, "text": "x" * 100} for n in range(count)])
    cleanup(cluster, 0)
    client.admin.command("moveRange", namespace, min={key: count // 2}, toShard="shard1")
    eventually(lambda: not any(placed["leaving"] for placed in placements(cluster, namespace).values()), "it is removed")
    cleanup(cluster, 900)
    return client[db][name]


@check
def reshard_collection(cluster):
    name = "keyed.plants"
    with cluster.client() as client:
        admin, plants = client.admin, spread(cluster, client, name, 1000)
        plants.create_index("text")
        with cluster.client(router=1) as other:
            assert other.keyed.plants.count_documents({}) == 1000
            assert admin.command("reshardCollection", name, key={"m": 1})["ok"] == 1
            chunks = check_whole(cluster, name, {"m": 1})
            assert [chunk["shard"] for chunk in chunks] == ["shard0", "shard1"], chunks
            assert min(shown(cluster, name).values()) > 400 and sum(shown(cluster, name).values()) == 1000
            # What was moved away before is not there twice.
            assert sum(where(cluster, name).values()) == 1000, where(cluster, name)
            assert other.keyed.plants.count_documents({}) == 1000
            assert len(list(other.keyed.plants.find({"m": {"$gte": 0}}))) == 1000
            other.keyed.plants.insert_one({"_id": -1, "n": -1, "m": 1})
            assert other.keyed.plants.update_one({"m": 1, "_id": -1}, {"$set": {"k": 1}}).modified_count == 1
            other.keyed.plants.delete_one({"_id": -1})
        assert {"text_1", "n_1", "m_1", "_id_"} == set(plants.index_information())
        no_rubbish(cluster, name)
        # The same key is nothing to do, unless it is to be spread anew.
        before = client.config.collections.find_one({"_id": name})
        assert admin.command("reshardCollection", name, key={"m": 1})["ok"] == 1
        assert client.config.collections.find_one({"_id": name}) == before
        admin.command("reshardCollection", name, key={"m": 1}, forceRedistribution=True, numInitialChunks=6)
        chunks = check_whole(cluster, name, {"m": 1})
        assert len(chunks) == 6 and client.config.collections.find_one({"_id": name})["uuid"] != before["uuid"]
        # To one shard, by ranges, and hashed.
        admin.command("reshardCollection", name, key={"n": 1}, shardDistribution=[{"shard": "shard1"}])
        assert shown(cluster, name).get("shard1") == 1000
        ranges = [{"shard": "shard0", "min": {"m": MinKey()}, "max": {"m": 500}},
                  {"shard": "shard1", "min": {"m": 500}, "max": {"m": MaxKey()}}]
        admin.command("reshardCollection", name, key={"m": 1}, shardDistribution=ranges)
        assert shown(cluster, name)["shard0"] == plants.count_documents({"m": {"$lt": 500}})
        admin.command("reshardCollection", name, key={"n": "hashed"}, numInitialChunks=4)
        check_whole(cluster, name, {"n": "hashed"})
        assert plants.count_documents({}) == 1000 and plants.find_one({"n": 77})["_id"] == 77
        # In zones.
        admin.command("addShardToZone", "shard0", zone="wet")
        zones = [{"zone": "wet", "min": {"n": 0}, "max": {"n": 900}}]
        admin.command("reshardCollection", name, key={"n": 1}, zones=zones, numInitialChunks=2)
        for chunk in check_whole(cluster, name, {"n": 1}):
            inside = not isinstance(chunk["min"]["n"], MinKey) and chunk["min"]["n"] < 900
            assert chunk["shard"] == "shard0" or not inside, chunk
        [tag] = client.config.tags.find({"ns": name})
        assert tag["tag"] == "wet" and tag["max"] == {"n": 900}, tag
        refused(2, lambda: admin.command("reshardCollection", name, key={"m": 1}))
        admin.command("updateZoneKeyRange", name, min={"n": 0}, max={"n": 900}, zone=None)
        admin.command("removeShardFromZone", "shard0", zone="wet")
        no_rubbish(cluster, name)
        assert client.config.changelog.find_one({"ns": name, "what": "reshardCollection.end"})
        plants.drop()


@check
def reshard_collection_refused(cluster):
    with cluster.client() as client:
        admin = client.admin
        refused(26, lambda: admin.command("reshardCollection", "nodb.plants", key={"n": 1}))
        plants = spread(cluster, client, "unkeyed.plants", 100)
        client.unkeyed.plain.insert_one({})
        refused(118, lambda: admin.command("reshardCollection", "unkeyed.plain", key={"n": 1}))
        name = "unkeyed.plants"
        refused(40414, lambda: admin.command("reshardCollection", name))
        refused(2, lambda: admin.command("reshardCollection", name, key={"m": 1}, unique=True))
        refused(2, lambda: admin.command("reshardCollection", name, key={"m": 1}, collation={"locale": "de"}))
        refused(4952606, lambda: admin.command("reshardCollection", name, key={"even": 1}, numInitialChunks=5))
        refused(2, lambda: admin.command("reshardCollection", name, key={"m": 1}, numInitialChunks=0))
        zones = [{"zone": "nozone", "min": {"m": 5}, "max": {"m": 10}}]
        refused(4952607, lambda: admin.command("reshardCollection", name, key={"m": 1}, zones=zones))
        parts = [{"shard": "shard0", "min": {"m": MinKey()}, "max": {"m": 5}}, {"shard": "shard1"}]
        refused(2, lambda: admin.command("reshardCollection", name, key={"m": 1}, shardDistribution=parts))
        refused(2, lambda: admin.command("reshardCollection", name, key={"m": 1}, shardDistribution=parts[:1]))
        refused(70, lambda: admin.command("reshardCollection", name, key={"m": 1}, shardDistribution=[{"shard": "x"}]))
        refused(339, lambda: admin.command("abortReshardCollection", name))
        refused(339, lambda: admin.command("commitReshardCollection", name))
        assert admin.command("cleanupReshardCollection", name)["ok"] == 1
        # Unique indexes hold on one shard only.
        plants.create_index([("n", 1), ("m", 1)], unique=True)
        refused(72, lambda: admin.command("reshardCollection", name, key={"m": 1}))
        plants.drop_index("n_1_m_1")
        # The same _id on two shards cannot be together.
        plants.insert_one({"_id": 99, "n": -1, "m": 1, "even": 0})
        assert plants.count_documents({"_id": 99}) == 2
        refused(11000, lambda: admin.command("reshardCollection", name, key={"even": 1}, numInitialChunks=1))
        plants.delete_one({"n": -1})
        # A document that could not have the key.
        plants.insert_one({"_id": "list", "n": 5, "m": [1, 2]})
        error = refused_with(lambda: admin.command("reshardCollection", name, key={"m": 1}))
        assert "array" in str(error), error
        plants.delete_one({"_id": "list"})
        check_whole(cluster, name, {"n": 1})
        assert plants.count_documents({}) == 100
        no_rubbish(cluster, name)
        assert admin.command("reshardCollection", name, key={"m": 1})["ok"] == 1
        assert plants.count_documents({}) == 100
        plants.drop()


def refused_with(run):
    try:
        run()
    except PyMongoError as error:
        return error
    raise AssertionError("not refused")


@check
def reshard_beside_writers(cluster):
    """A collection gets one key after another; each acknowledged write is found once, and counts are exact."""
    name, keys = "keying.plants", 400
    with cluster.client() as client:
        spread(cluster, client, name, keys)
        with Exact(cluster, name, keys) as writers:
            for key in ({"_id": "hashed"}, {"n": 1}, {"_id": 1}, {"n": "hashed"}):
                client.admin.command("reshardCollection", name, key=key, numInitialChunks=4)
            client.admin.command("unshardCollection", name, toShard="shard1")
        writers.judge_all(client)
        check_whole(cluster, name, {"_id": 1})
        no_rubbish(cluster, name)


@check
def keys_change_while_they_are_copied(cluster):
    """Documents go from donor to donor, and exchange what is unique, between the copy and its end."""
    name = "swapping.plants"
    with cluster.client() as client:
        plants = spread(cluster, client, name, 100)
        plants.create_index([("n", 1), ("u", 1)], unique=True)
        plants.update_many({}, [{"$set": {"u": "$m"}}])
        entered = hang(cluster, "closing")
        running = Running(cluster, {"reshardCollection": name, "key": {"n": "hashed"}, "numInitialChunks": 3})
        eventually(lambda: running.result or hang(cluster, "closing") > entered, "it is copied")
        assert running.join().code == 72, "unique indexes begin with the key"
        plants.drop_index("n_1_u_1")
        running = Running(cluster, {"reshardCollection": name, "key": {"even": 1}})
        eventually(lambda: hang(cluster, "closing") > entered, "it is copied")
        with client.start_session() as session, session.start_transaction():
            plants.update_one({"n": 3}, {"$set": {"n": 90, "moved": 1}}, session=session)
            plants.update_one({"n": 95}, {"$set": {"n": 4, "moved": 1}}, session=session)
        plants.update_one({"n": 6}, {"$set": {"even": 1}})
        plants.delete_one({"n": 7})
        expected = list(plants.find().sort("_id"))
        go_on(cluster)
        assert running.join()["ok"] == 1, running.result
        assert list(plants.find().sort("_id")) == expected and len(expected) == 99
        check_whole(cluster, name, {"even": 1})
        no_rubbish(cluster, name)


@check
def reshard_given_up_and_hurried(cluster):
    name = "hurried.plants"
    with cluster.client() as client:
        spread(cluster, client, name, 100)
        for phase in ("copying", "closing"):
            entered = hang(cluster, phase)
            running = Running(cluster, {"reshardCollection": name, "key": {"m": 1}})
            eventually(lambda: hang(cluster, phase) > entered, f"{phase} is reached")
            # Others change nothing of the database meanwhile.
            aborting = Running(cluster, {("abort" if phase == "copying" else "cleanup") + "ReshardCollection": name})
            time.sleep(0.2)
            go_on(cluster)
            assert running.join().code == 341, running.result
            assert aborting.join()["ok"] == 1, aborting.result
            check_whole(cluster, name, {"n": 1})
            assert client.hurried.plants.count_documents({}) == 100
            no_rubbish(cluster, name)
        entered = hang(cluster, "copying")
        running = Running(cluster, {"reshardCollection": name, "key": {"m": 1}})
        eventually(lambda: hang(cluster, "copying") > entered, "it is copied")
        committing = Running(cluster, {"commitReshardCollection": name})
        time.sleep(0.2)
        go_on(cluster)
        assert running.join()["ok"] == 1 and committing.join()["ok"] == 1, (running.result, committing.result)
        check_whole(cluster, name, {"m": 1})
        no_rubbish(cluster, name)


@check
def unshard_collection(cluster):
    name = "gathered.plants"
    with cluster.client() as client:
        admin, plants = client.admin, spread(cluster, client, name, 200)
        refused(26, lambda: admin.command("unshardCollection", "gathered.none"))
        refused(70, lambda: admin.command("unshardCollection", name, toShard="shard9"))
        assert admin.command("unshardCollection", name, toShard="shard1")["ok"] == 1
        entry = client.config.collections.find_one({"_id": name})
        assert entry["unsplittable"] is True and entry["key"] == {"_id": 1}, entry
        assert where(cluster, name) == {"shard0": 0, "shard1": 200}
        assert plants.count_documents({}) == 200
        refused(118, lambda: admin.command("unshardCollection", name))
        refused(118, lambda: admin.command("reshardCollection", name, key={"m": 1}))
        no_rubbish(cluster, name)
        # It can be sharded again, with what it has.
        assert admin.command("shardCollection", name, key={"n": 1})["collectionsharded"] == name
        chunks = check_whole(cluster, name, {"n": 1})
        assert [chunk["shard"] for chunk in chunks] == ["shard1"] and plants.count_documents({}) == 200
        admin.command("unshardCollection", name)
        assert client.config.collections.find_one({"_id": name})["unsplittable"] is True
        assert plants.count_documents({}) == 200
        no_rubbish(cluster, name)
        plants.drop()


@check
def streams_see_writes_only(cluster):
    """A change stream goes on across another key and another shard, and shows nothing of it."""
    name = "watched.plants"
    with cluster.client() as client:
        plants = spread(cluster, client, name, 50)
        with plants.watch(max_await_time_ms=200) as stream, client.watched.watch(max_await_time_ms=200) as whole:
            plants.insert_one({"_id": "before", "n": 1})
            client.admin.command("reshardCollection", name, key={"m": 1})
            plants.insert_one({"_id": "between", "n": 99, "m": 1})
            client.admin.command("unshardCollection", name, toShard="shard1")
            plants.update_one({"_id": "between"}, {"$set": {"n": 5}})
            client.admin.command("moveCollection", name, toShard="shard0")
            plants.delete_one({"_id": "before"})
            for watching in (stream, whole):
                seen = [watching.next() for _ in range(4)]
                kinds = [(event["operationType"], event["documentKey"]["_id"]) for event in seen]
                expected = [("insert", "before"), ("insert", "between"), ("update", "between"), ("delete", "before")]
                assert kinds == expected, kinds
                assert watching.try_next() is None


@check
def retries_after_resharding(cluster):
    """A retryable write that is sent again after its collection has got another key is answered, not executed."""
    name = "rekeyed.plants"
    with cluster.client() as client:
        spread(cluster, client, name, 20)
        update = {"update": "plants", "updates": [{"q": {"n": 5}, "u": {"$inc": {"times": 1}}}]}
        insert = {"insert": "plants", "documents": [{"_id": 100, "n": 8, "m": 9}]}
        for number, command in enumerate((update, insert)):
            with client.start_session() as session:
                sent = {**command, "txnNumber": Int64(1000 + number)}
                first = client.rekeyed.command(sent, session=session)
                client.admin.command("reshardCollection", name, key={"_id": "hashed"} if number else {"_id": 1})
                again = client.rekeyed.command(sent, session=session)
                assert (first["n"], first.get("nModified")) == (again["n"], again.get("nModified")), (first, again)
        assert client.rekeyed.plants.find_one({"n": 5})["times"] == 1
        assert client.rekeyed.plants.count_documents({}) == 21


@check
def writes_that_meet_another_key(cluster):
    """One shard has executed a statement when the collection gets another key, the other has not: nothing is written twice, or is
    missing without an error."""
    name = "metkeys.plants"
    with cluster.client(retryWrites=False) as client, cluster.shards[1].direct(0) as shard:
        plants = spread(cluster, client, name, 200)
        # By the new key it lies among what the other shard has had by the old one.
        plants.insert_one({"_id": 500, "n": 500, "m": 5})
        kept = {"$nin": [20, 180]}

        def batch(at):
            # One by `_id` that comes alone looks where its document is.
            return [{"q": {"_id": one}, "u": {"$inc": {"one": 1}}} for one in (at, -1000)]

        sent = {
            "here": {"update": "plants", "updates": batch(7)},
            "there": {"update": "plants", "updates": batch(500)},
            "nobody": {"update": "plants", "updates": batch(-1)},
            "all": {"update": "plants", "updates": [{"q": {"_id": kept}, "u": {"$inc": {"all": 1}}, "multi": True}]},
            "same": {"update": "plants", "updates": [{"q": {"_id": kept}, "u": {"$set": {"same": 1}, "$max": {"most": 5}}, "multi": True}]},
            "high": {"update": "plants", "updates": [{"q": {"_id": {"$gte": 190}}, "u": {"$inc": {"high": 1}}, "multi": True}]},
            "gone": {"delete": "plants", "deletes": [{"q": {"_id": {"$in": [20, 180]}}, "limit": 0}]},
        }
        bulk = {"bulkWrite": 1, "nsInfo": [{"ns": name}], "ops": [
            {"update": 0, "filter": {"_id": at}, "updateMods": {"$inc": {"one": 1}}, "multi": False} for at in (8, -1000)]}
        shard.admin.command({
            "configureFailPoint": "failCommand", "mode": "alwaysOn",
            "data": {"failCommands": ["update", "delete", "bulkWrite"], "blockConnection": True, "blockTimeMS": 10000, "failInternalCommands": True}})
        running = {what: Running(cluster, command, "metkeys") for what, command in sent.items()}
        running["bulk"] = Running(cluster, bulk)
        with cluster.shards[0].direct(0) as other:
            there = other.metkeys.plants
            eventually(lambda: [there.count_documents({field: 1}) for field in ("one", "all", "same")] == [2, 99, 99], "one shard has done its part")
            eventually(lambda: there.count_documents({"_id": 20}) == 0, "one shard has deleted its part")
        client.admin.command("reshardCollection", name, key={"m": 1}, numInitialChunks=2)
        waits = [what for what, command in running.items() if command.thread.is_alive()]
        shard.admin.command("configureFailPoint", "failCommand", mode="off")
        assert len(waits) == len(running), waits
        answers = {what: command.join() for what, command in running.items()}
        count = {what: answer["n"] for what, answer in answers.items() if what != "bulk"}
        # What was found by the old key is found once more.
        same, modified = count.pop("same"), answers["same"]["nModified"]
        assert same == 99 + 199 and modified == 199, answers
        assert count == {"here": 1, "there": 1, "nobody": 0, "all": 99, "high": 11, "gone": 2}, answers
        assert answers["bulk"]["nMatched"] == 1, answers
        failed = {what: answer["writeErrors"][0]["code"] for what, answer in answers.items() if "writeErrors" in answer}
        assert failed == {"all": 175}, answers
        found = {document["_id"]: document for document in plants.find()}
        assert [(at, document["one"]) for at, document in sorted(found.items()) if "one" in document] == [(7, 1), (8, 1), (500, 1)]
        assert sorted(at for at, document in found.items() if document.get("all") == 1) == [at for at in range(100) if at != 20]
        assert all(document.get("all", 1) == 1 and document.get("high", 1) == 1 for document in found.values())
        assert all((document.get("same"), document.get("most")) == (1, 5) for document in found.values())
        assert sum("high" in document for document in found.values()) == 11 and len(found) == 199
        no_rubbish(cluster, name)


@alone(shards=2, members=1, routers=1)
def reshard_beside_deaths(cluster):
    """The config servers' primary, a donor's or a recipient's is killed in each phase: each document is there once, and nothing is left over."""
    name, total = "deaths.plants", 300
    with cluster.client() as client:
        plants = spread(cluster, client, name, total)
        phases, victims = ("preparing", "copying", "closing", "entering", "telling", "opening"), (cluster.config, *cluster.shards)
        rounds = list(itertools.product(phases, victims))
        if not os.environ.get("SHEAF_ALL_DEATHS"):
            # Each phase once, with the next victim. scripts/test --all has all.
            rounds = list(zip(phases, itertools.cycle(victims)))
        key = "n"
        for number, (phase, victim) in enumerate(rounds):
            key = "m" if key == "n" else "n"
            entered = hang(cluster, phase)
            running = Running(cluster, {"reshardCollection": name, "key": {key: 1}})
            eventually(lambda: hang(cluster, phase) > entered or running.result, f"{phase} is reached")
            assert running.result is None, (phase, running.result)
            victim.servers[0].kill()
            victim.servers[0].start()
            victim.primary()
            if victim is not cluster.config:
                go_on(cluster)
            result = running.join()
            eventually(lambda: client.config.ddl.count_documents({}) == 0, "it is over")
            assert isinstance(result, dict) and result["ok"] == 1, (phase, victim.name, result)
            check_whole(cluster, name, {key: 1})
            no_rubbish(cluster, name)
            assert sum(where(cluster, name).values()) == total, (phase, victim.name, where(cluster, name))
            assert plants.count_documents({}) == total
            plants.insert_one({"_id": f"{number}", "n": number, "m": number})
            total += 1
            if number == 2:
                command = {"moveCollection": "deaths.notes", "toShard": "shard1"}
                client.deaths.notes.insert_many([{"_id": n} for n in range(50)])
                assert client.admin.command(command)["ok"] == 1
                assert client.deaths.notes.count_documents({}) == 50


@alone(shards=2, members=3, routers=2)
def reshard_beside_elections(cluster):
    """Writers beside other keys, while primaries of shards are killed."""
    name, keys = "elected.plants", 200
    with cluster.client() as client:
        spread(cluster, client, name, keys)
        with Writers(cluster, name, keys) as writers:
            for at, victim in enumerate(cluster.shards):
                key = [{"_id": "hashed"}, {"n": 1}][at]
                running = Running(cluster, {"reshardCollection": name, "key": key, "numInitialChunks": 2})
                time.sleep(random.random() / 10)
                primary = victim.primary()
                victim.servers[primary].kill()
                result = running.join()
                assert isinstance(result, dict), (at, result)
                victim.servers[primary].start()
        writers.judge(client)
        check_whole(cluster, name, {"n": 1})
        no_rubbish(cluster, name)


@check
def operations_under_way_are_shown(cluster):
    name = "shown.plants"
    with cluster.client() as client:
        spread(cluster, client, name, 100)
        entered = hang(cluster, "closing")
        running = Running(cluster, {"reshardCollection": name, "key": {"m": 1}})
        eventually(lambda: hang(cluster, "closing") > entered, "it is copied")
        [noted] = client.config.reshardingOperations.find()
        assert noted["ns"] == name and noted["state"] == "cloning" and noted["reshardingKey"] == {"m": 1}, noted
        assert {shard["id"] for shard in noted["recipientShards"]} == {"shard0", "shard1"}, noted
        assert noted["tempNs"].startswith("shown.system.resharding."), noted
        stages = [{"$currentOp": {"allUsers": True, "localOps": False}}, {"$match": {"desc": {"$regex": "^Resharding"}}}]
        shown = list(client.admin.aggregate(stages))
        kinds = sorted(entry["desc"].split()[0] for entry in shown)
        assert kinds == ["ReshardingCoordinatorService"] + ["ReshardingDonorService"] * 2 + ["ReshardingRecipientService"] * 2, kinds
        assert all(entry["type"] == "op" and entry["ns"] == name and entry["totalOperationTimeElapsedSecs"] >= 0 for entry in shown)
        copied = sum(entry["documentsCopied"] for entry in shown if "Recipient" in entry["desc"])
        assert copied == 100, shown
        found = client.admin.command("currentOp", {"$all": True})["inprog"]
        assert sum(entry.get("desc", "").startswith("Resharding") for entry in found) == 5, found
        go_on(cluster)
        assert running.join()["ok"] == 1, running.result
        assert list(client.admin.aggregate(stages)) == []
        assert client.config.reshardingOperations.count_documents({}) == 0
