"""Change streams: of sharded collections, databases and the whole cluster, on shards and through routers."""

import random
import threading
import time

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.read_concern import ReadConcern

from checks import alone, check, refused
from cluster import ReplicaSet, eventually


def two_ranges(cluster, name, key):
    """Shards a collection by the key's first field, below 0 on shard0 and from there on shard1."""
    first, *rest = key
    low, high = ({first: end, **dict.fromkeys(rest, end)} for end in (MinKey(), MaxKey()))
    middle = {first: 0, **dict.fromkeys(rest, MinKey())}
    cluster.shard(name, key, [(low, middle, 0), (middle, high, 1)])


def drained(stream, count):
    """So many events, which have happened."""
    events = []
    while len(events) < count:
        event = stream.try_next()
        if event is not None:
            events.append(event)
    return events


def nothing_more(stream, marker):
    """The events until one that inserts the marker."""
    events = []
    while True:
        event = stream.try_next()
        if event is None:
            continue
        if event["operationType"] == "insert" and event["fullDocument"].get("_id") == marker:
            return events
        events.append(event)


@check
def stream_document_keys(cluster):
    """Events of a sharded collection name documents by the shard key's fields in its order, and `_id`."""
    two_ranges(cluster, "streamkeys.plants", {"b": 1, "n.a": 1})
    with cluster.client() as client, cluster.shards[1].direct(0) as shard:
        plants = client.streamkeys.plants
        with shard.streamkeys.plants.watch(max_await_time_ms=100) as stream:
            plants.insert_one({"_id": 1, "n": {"a": 5}, "b": 7})
            plants.insert_one({"_id": 2, "b": 8})
            plants.update_one({"_id": 1, "b": 7, "n.a": 5}, {"$set": {"c": 1}})
            plants.replace_one({"_id": 1, "b": 7, "n.a": 5}, {"b": 7, "n": {"a": 5}, "c": 2})
            plants.update_one({"b": 7, "n.a": 5}, {"$set": {"b": 9}})
            plants.delete_one({"b": 9, "n.a": 5})
            with client.start_session() as session, session.start_transaction():
                plants.insert_one({"_id": 3, "b": 1, "n": {"a": 1}}, session=session)
                plants.delete_one({"b": 8, "n.a": None}, session=session)
            events = drained(stream, 8)
        seen = [(event["operationType"], list(event["documentKey"].items())) for event in events]
        one = [("b", 7), ("n.a", 5), ("_id", 1)]
        moved = [("b", 9), ("n.a", 5), ("_id", 1)]
        assert seen == [
            ("insert", one), ("insert", [("b", 8), ("_id", 2)]), ("update", one), ("replace", one), ("update", moved),
            ("delete", moved), ("insert", [("b", 1), ("n.a", 1), ("_id", 3)]), ("delete", [("b", 8), ("_id", 2)])], seen


@check
def stream_hides_moves(cluster):
    """What moves to another shard is neither inserted there nor deleted here."""
    two_ranges(cluster, "streammoves.plants", {"n": 1})
    with cluster.client() as client, cluster.shards[0].direct(0) as first, cluster.shards[1].direct(0) as second:
        plants = client.streammoves.plants
        plants.insert_many([{"_id": at, "n": at} for at in range(-20, 20)])
        with first.streammoves.watch(max_await_time_ms=100) as here, second.streammoves.watch(max_await_time_ms=100) as there:
            first.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
            client.admin.command({"moveRange": "streammoves.plants", "min": {"n": -10}, "max": {"n": 0}, "toShard": "shard1"})
            eventually(lambda: first.streammoves.plants.count_documents({}) == 10, "what has left is removed")
            first.admin.command("setParameter", 1, orphanCleanupDelaySecs=900)
            plants.insert_many([{"_id": "a", "n": -20}, {"_id": "b", "n": -5}])
            assert nothing_more(here, "a") == [] and nothing_more(there, "b") == []


def writers(client, db, seconds, seed):
    """Writes to a sharded collection of both shards and to plain ones, alone and in transactions over both, from several threads."""
    ended = time.monotonic() + seconds

    def write(number):
        chance = random.Random(f"{seed} {number}")
        plants, plain = client[db].plants, client[db].plain
        at = 0
        while time.monotonic() < ended:
            at += 1
            name = f"{number} {at}"
            match chance.randrange(5):
                case 0:
                    plants.insert_one({"_id": name, "n": chance.randrange(-50, 50)})
                case 1:
                    plants.insert_many([{"_id": f"{name} {each}", "n": chance.randrange(-50, 50)} for each in range(5)])
                case 2:
                    plants.update_many({"n": chance.randrange(-50, 50)}, {"$inc": {"v": 1}})
                case 3:
                    plain.insert_one({"_id": name})
                case _:
                    def both(session):
                        plants.insert_one({"_id": f"{name} a", "n": -1 - chance.randrange(50), "of": name}, session=session)
                        plants.insert_one({"_id": f"{name} b", "n": chance.randrange(50), "of": name}, session=session)
                    with client.start_session() as session:
                        session.with_transaction(both)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    return threads


def until_marker(stream, marker):
    """All events up to the one that inserts the marker."""
    events = nothing_more(stream, marker)
    return [{**event, "token": event["_id"]["_data"]} for event in events]


@check
def stream_of_all_shards(cluster):
    """Every stream tells every event, all in one order, those of a transaction together; and goes on from any of them."""
    two_ranges(cluster, "streamall.plants", {"n": 1})
    with cluster.client(0) as client, cluster.client(1) as other:
        streams = [
            client.streamall.plants.watch(max_await_time_ms=200), other.streamall.plants.watch(max_await_time_ms=200),
            client.streamall.watch(max_await_time_ms=200), other.watch(max_await_time_ms=200)]
        threads = writers(client, "streamall", 4, 1)
        client.admin.command({"moveRange": "streamall.plants", "min": {"n": -20}, "max": {"n": 0}, "toShard": "shard1"})
        for thread in threads:
            thread.join()
        client.streamall.plants.insert_one({"_id": "end", "n": 7})
        told = [until_marker(stream, "end") for stream in streams]
        for stream in streams:
            stream.close()
        for events in told:
            tokens = [event["token"] for event in events]
            assert tokens == sorted(set(tokens)), "out of order"
        plants = [[event["token"] for event in events if event["ns"] == {"db": "streamall", "coll": "plants"}] for events in told]
        assert plants[0] == plants[1] == plants[2] == plants[3], [len(each) for each in plants]
        inserted = {event["documentKey"]["_id"] for event in told[0] if event["operationType"] == "insert"}
        there = {plant["_id"] for plant in client.streamall.plants.find({}, {"_id": 1})} - {"end"}
        assert inserted == there, (len(inserted), len(there))
        plain = {event["documentKey"]["_id"] for event in told[2] if event["ns"]["coll"] == "plain"}
        assert plain == {each["_id"] for each in client.streamall.plain.find({}, {"_id": 1})}
        pairs = {}
        for event in told[0]:
            if "of" in event.get("fullDocument", {}):
                pairs.setdefault(event["fullDocument"]["of"], set()).add(event["clusterTime"])
        assert pairs and all(len(times) == 1 for times in pairs.values()), pairs
        assert len(told[0]) > 100, len(told[0])
        chance = random.Random(2)
        for at in chance.sample(range(len(told[0])), 12):
            where = {"_data": told[0][at]["token"]}
            option = chance.choice(["resume_after", "start_after"])
            with other.streamall.plants.watch(max_await_time_ms=100, **{option: where}) as stream:
                rest = [event["token"] for event in until_marker(stream, "end")]
            assert rest == plants[0][at + 1:], (at, len(rest), len(plants[0]) - at - 1)
        at = len(told[0]) // 2
        since = told[0][at]["clusterTime"]
        with client.streamall.plants.watch(start_at_operation_time=since, max_await_time_ms=100) as stream:
            rest = [event["clusterTime"] for event in until_marker(stream, "end")]
        assert rest == [event["clusterTime"] for event in told[0] if event["clusterTime"] >= since]


@check
def stream_stages_and_lookups(cluster):
    """Stages run once on each event, behind lookups that find documents wherever they are now."""
    two_ranges(cluster, "streamstages.plants", {"n": 1})
    with cluster.client() as client:
        plants = client.streamstages.plants
        plants.insert_many([{"_id": at, "n": at} for at in range(-5, 5)])
        only = [{"$match": {"operationType": "update"}}, {"$project": {"documentKey": 1, "fullDocument": 1}}]
        with plants.watch(only, full_document="updateLookup", max_await_time_ms=200) as stream:
            plants.update_one({"n": -3}, {"$set": {"a": 1}})
            plants.update_one({"n": 3}, {"$set": {"a": 2}})
            client.admin.command({"moveRange": "streamstages.plants", "min": {"n": -4}, "max": {"n": 0}, "toShard": "shard1"})
            plants.delete_one({"n": 3})
            events = drained(stream, 2)
        shown = [{name: value for name, value in event.items() if name != "_id"} for event in events]
        assert shown == [
            {"documentKey": {"n": -3, "_id": -3}, "fullDocument": {"_id": -3, "n": -3, "a": 1}},
            {"documentKey": {"n": 3, "_id": 3}, "fullDocument": None}], shown
        matching = [{"$match": {"fullDocument.n": {"$gt": 100}}}, {"$addFields": {"seen": True}}]
        with plants.watch(matching, max_await_time_ms=200) as stream:
            plants.insert_many([{"_id": at, "n": at} for at in (50, -150, 150)])
            assert [(event["documentKey"]["n"], event["seen"]) for event in drained(stream, 1)] == [(150, True)]
            before = stream.resume_token
            client.streamstages.plain.insert_one({})
            eventually(lambda: stream.try_next() is None and stream.resume_token["_data"] > before["_data"], "the token moves on")
        with plants.watch([{"$unset": "_id"}], max_await_time_ms=200) as stream:
            plants.insert_one({"_id": 7, "n": 7})
            refused(280, lambda: drained(stream, 1))


@check
def stream_beside_a_default_read_concern(cluster):
    """A default level is for reads that name none; a stream reads what majorities have, and refuses only what its client names."""
    two_ranges(cluster, "streamdefault.plants", {"n": 1})
    with cluster.client() as client, cluster.shards[0].direct(0) as shard:
        plants = client.streamdefault.plants
        for each in (client, shard):
            each.admin.command("setDefaultRWConcern", defaultReadConcern={"level": "local"})
        try:
            with plants.watch(max_await_time_ms=200) as routed, shard.streamdefault.plants.watch(max_await_time_ms=200) as direct:
                plants.insert_one({"_id": 1, "n": -1})
                for stream in (routed, direct):
                    assert drained(stream, 1)[0]["documentKey"] == {"n": -1, "_id": 1}
            explicit = plants.with_options(read_concern=ReadConcern("local"))
            refused(72, lambda: explicit.watch())
        finally:
            for each in (client, shard):
                each.admin.command("setDefaultRWConcern", defaultReadConcern={})


@check
def stream_behind_idle_shards(cluster):
    """An event is told at once, however long other shards have had none."""
    two_ranges(cluster, "streamidle.plants", {"n": 1})
    with cluster.client() as client:
        plants = client.streamidle.plants
        with plants.watch(max_await_time_ms=60000) as stream:
            taken = []
            for at in range(20):
                writer = threading.Timer(0.05, plants.insert_one, [{"_id": at, "n": -1}])
                writer.start()
                began = time.monotonic()
                assert next(stream)["documentKey"]["_id"] == at
                taken.append(time.monotonic() - began)
                writer.join()
        # The wait for others' answers would be a minute.
        assert max(taken) < 30, taken


@check
def stream_beside_foreign_doubts(cluster):
    """A transaction in doubt holds back the events of what it changes, and no others."""
    with cluster.client() as client, cluster.shards[0].direct(0) as shard:
        client.admin.command("enableSharding", "streamdoubt", primaryShard="shard0")
        for name in ("mine", "other"):
            client.streamdoubt.create_collection(name)

        def in_doubt():
            return shard.admin.command("serverStatus")["transactions"]["currentPrepared"]

        def prepare(at):
            session = shard.start_session()
            session.start_transaction()
            reply = shard.streamdoubt.command("insert", "other", documents=[{"_id": at}], session=session)
            name = {"lsid": session.session_id, "txnNumber": bson.Int64(session._server_session._transaction_id)}
            # The other shard never prepares, and is asked after a second.
            shard.admin.command("prepareTransaction", name, participants=["shard0", "shard1"], executed=reply["executed"])

        told_in_doubt = 0
        with client.streamdoubt.mine.watch(max_await_time_ms=200) as mine, client.streamdoubt.watch(max_await_time_ms=200) as both:
            for at in range(20):
                prepare(at)
                client.streamdoubt.mine.insert_one({"_id": at})
                assert drained(mine, 1)[0]["documentKey"]["_id"] == at
                told_in_doubt += in_doubt()
                if told_in_doubt >= 3:
                    break
            assert told_in_doubt >= 3, told_in_doubt
            assert [event["documentKey"]["_id"] for event in drained(both, at + 1)] == list(range(at + 1))
        eventually(lambda: in_doubt() == 0, "nothing is in doubt")


@check
def ends_of_streams(cluster):
    """A drop ends a stream once; a killed cursor ends those on shards."""
    two_ranges(cluster, "streamends.plants", {"n": 1})
    with cluster.client() as client:
        plants = client.streamends.plants
        plants.insert_many([{"_id": 1, "n": 1}, {"_id": -1, "n": -1}])
        with plants.watch(max_await_time_ms=200) as stream, client.streamends.watch(max_await_time_ms=200) as whole:
            plants.insert_one({"_id": 2, "n": 2})
            plants.drop()
            client.streamends.other.insert_one({"_id": "end"})
            kinds = [event["operationType"] for event in stream]
            assert kinds == ["insert", "drop", "invalidate"], kinds
            kinds = [event["operationType"] for event in nothing_more(whole, "end")]
            assert kinds == ["insert", "drop"], kinds
        stream = client.streamends.watch(max_await_time_ms=200)
        assert stream.try_next() is None

        def open_on_shards():
            count = 0
            for members in cluster.shards:
                with members.direct(0) as shard:
                    count += sum(
                        "$changeStream" in str(each) for each in shard.admin.aggregate(
                            [{"$currentOp": {"idleCursors": True, "localOps": True}}]))
            return count
        assert open_on_shards() >= 2
        stream.close()
        eventually(lambda: open_on_shards() == 0, "the cursors on shards are closed")
        with client.start_session() as session:
            session.start_transaction()
            refused(263, lambda: client.streamends.command(
                "aggregate", 1, pipeline=[{"$changeStream": {}}], cursor={}, session=session))
            session.abort_transaction()
    with cluster.client(0) as client, cluster.client(0) as other, client.start_session() as session:
        with client.streamends.watch(max_await_time_ms=5000, session=session) as stream:
            number = stream._cursor._id
            killer = threading.Timer(0.3, lambda: other.streamends.command("killCursors", "$cmd.aggregate", cursors=[number]))
            killer.start()
            refused(237, lambda: client.streamends.command(
                "getMore", number, collection="$cmd.aggregate", maxTimeMS=20000, session=session))
            killer.join()


@alone(shards=1)
def stream_follows_added_shards(cluster):
    """A stream follows a shard that comes while it is open."""
    with ReplicaSet([{}], name="shard1", args=["--shardsvr"]) as added, cluster.client() as client:
        plants = client.streamadded.plants
        plants.insert_one({"_id": 0})
        with client.watch(max_await_time_ms=200) as stream:
            client.admin.command("addShard", cluster.address(added))
            client.admin.command("enableSharding", "streamlater", primaryShard="shard1")
            client.streamlater.plants.insert_one({"_id": "there"})
            plants.insert_one({"_id": "here"})
            events = drained(stream, 2)
        # The first events of a new shard may come behind later ones of others.
        assert sorted(event["documentKey"]["_id"] for event in events) == ["here", "there"], events


@alone(members=3)
def stream_survives_primaries(cluster):
    """A driver goes on behind what it has, and misses nothing."""
    two_ranges(cluster, "streamdeath.plants", {"n": 1})
    with cluster.client(retryWrites=True) as client:
        plants = client.streamdeath.plants
        with plants.watch(max_await_time_ms=500) as stream:
            threads = writers(client, "streamdeath", 8, 3)
            time.sleep(1)
            dead = cluster.shards[1].primary()
            cluster.shards[1].servers[dead].kill()
            for thread in threads:
                thread.join()
            plants.insert_one({"_id": "end", "n": 7})
            events = until_marker(stream, "end")
        tokens = [event["token"] for event in events]
        assert tokens == sorted(set(tokens)), "out of order"
        inserted = {event["documentKey"]["_id"] for event in events if event["operationType"] == "insert"}
        there = {plant["_id"] for plant in plants.find({}, {"_id": 1})} - {"end"}
        assert inserted == there, (len(inserted), len(there))


@check
def stream_tells_of_resharding(cluster):
    """One event for each of the family, of the collection as it was; what is done to the new one comes later."""
    with cluster.client() as client:
        admin, watched = client.admin, client.streamreshard
        admin.command("enableSharding", "streamreshard", primaryShard="shard0")
        admin.command("shardCollection", "streamreshard.plants", key={"_id": 1})
        watched.plants.insert_many([{"_id": n, "n": n} for n in range(20)])
        watched.notes.insert_one({"_id": 0})
        old = client.config.collections.find_one({"_id": "streamreshard.plants"})["uuid"]
        with watched.watch(max_await_time_ms=100) as plain, \
                watched.watch(show_expanded_events=True, max_await_time_ms=100) as stream:
            admin.command({"reshardCollection": "streamreshard.plants", "key": {"n": 1}, "numInitialChunks": 2,
                           "collation": {"locale": "simple"}})
            watched.plants.insert_one({"_id": 100, "n": 100})
            admin.command("unshardCollection", "streamreshard.plants", toShard="shard1")
            admin.command("moveCollection", "streamreshard.notes", toShard="shard1")
            watched.end.insert_one({"_id": "end"})
            events = until_marker(stream, "end")
            assert "reshardCollection" not in {event["operationType"] for event in until_marker(plain, "end")}
        seen = [event["operationType"] for event in events]
        assert [kind for kind in seen if kind in ("reshardCollection", "insert")] == [
            "reshardCollection", "insert", "reshardCollection", "reshardCollection"], seen
        told = [event for event in events if event["operationType"] == "reshardCollection"]
        assert told[0]["collectionUUID"] == old and told[0]["ns"] == {"db": "streamreshard", "coll": "plants"}, told[0]
        for event in told:
            assert len(bytes(event["operationDescription"].pop("reshardUUID"))) == 16
        assert [list(event["operationDescription"].items()) for event in told] == [list(each.items()) for each in [
            {"shardKey": {"n": 1}, "oldShardKey": {"_id": 1}, "unique": False, "numInitialChunks": 2,
             "collation": {"locale": "simple"}, "provenance": "reshardCollection"},
            {"shardKey": {"_id": 1}, "oldShardKey": {"n": 1}, "unique": False, "numInitialChunks": 1,
             "provenance": "unshardCollection"},
            {"shardKey": {"_id": 1}, "oldShardKey": {"_id": 1}, "unique": False, "numInitialChunks": 1,
             "provenance": "moveCollection"}]], told
        client.drop_database("streamreshard")


@check
def stream_tells_definitions_once(cluster):
    """What is done to a collection of several shards is one event, and what only makes room on a shard is none."""
    with cluster.client() as client:
        watched, expanded = client.streamddl, {"show_expanded_events": True, "max_await_time_ms": 100}
        client.admin.command("enableSharding", "streamddl", primaryShard="shard0")
        with client.watch([{"$match": {"ns.db": "streamddl"}}], **expanded) as stream:
            client.admin.command("shardCollection", "streamddl.plants", key={"n": "hashed"})
            watched.plants.insert_one({"_id": 1, "n": 1})
            watched.plain.insert_one({"_id": 2})
            watched.plain.create_index("a")
            client.admin.command("shardCollection", "streamddl.plain", key={"_id": 1}, unique=True)
            client.admin.command({"moveRange": "streamddl.plain", "min": {"_id": MinKey()}, "toShard": "shard1"})
            watched.plain.create_index([("_id", 1), ("a", 1)], unique=True)
            client.admin.command("refineCollectionShardKey", "streamddl.plain", key={"_id": 1, "a": 1})
            client.admin.command("renameCollection", "streamddl.plants", to="streamddl.herbs")
            watched.drop_collection("herbs")
            client.drop_database("streamddl")
            watched.end.insert_one({"_id": "end"})
            events = until_marker(stream, "end")
        seen = [event["operationType"] for event in events]
        # Indexes are built by each shard that has something of the collection, as in MongoDB.
        once = [kind for kind in seen if kind != "createIndexes"]
        assert once == [
            "create", "shardCollection", "insert", "create", "insert", "shardCollection", "refineCollectionShardKey", "rename", "drop",
            "drop", "dropDatabase", "create"], seen
        by_kind = {event["operationType"]: event for event in events}
        described = [event["operationDescription"] for event in events if event["operationType"] == "shardCollection"]
        assert [(told["shardKey"], told["unique"], told["presplitHashedZones"]) for told in described] == [
            ({"n": "hashed"}, False, False), ({"_id": 1}, True, False)], described
        refined = by_kind["refineCollectionShardKey"]
        assert refined["operationDescription"] == {"shardKey": {"_id": 1, "a": 1}, "oldShardKey": {"_id": 1}}, refined
        assert refined["ns"] == {"db": "streamddl", "coll": "plain"} and len(bytes(refined["collectionUUID"])) == 16, refined
        client.drop_database("streamddl")
