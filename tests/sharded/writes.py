"""Writes to sharded collections: the same as to a collection on one shard, to every client."""

import random
import threading
import time

import bson
import bson.json_util
import pymongo
from bson import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.errors import OperationFailure, PyMongoError

from checks import alone, check, refused
from cluster import eventually

KEYS = [{"_id": 1}, {"_id": "hashed"}, {"k": 1}, {"k": "hashed"}, {"k": 1, "n.m": 1}]
IDS = 60


def spread(cluster, client, ns, key):
    """Shards a collection, and gives both shards several ranges of it in turn, by hand."""
    db, name = ns.split(".")
    client.admin.command("enableSharding", db, primaryShard="shard0")
    client.admin.command("shardCollection", ns, key=key)
    entry = client.config.collections.find_one({"_id": ns})
    step = client.admin.command("hello")["$clusterTime"]["clusterTime"]
    hashed = "hashed" in key.values()
    inner = [Int64(-1 << 62), Int64(0), Int64(1 << 62)] if hashed else [10, 20, 30, 40]
    first, *rest = key
    ends = [{first: end, **dict.fromkeys(rest, MinKey())} for end in inner]
    ends = [dict.fromkeys(key, MinKey()), *ends, dict.fromkeys(key, MaxKey())]
    chunks = [{"min": low, "max": high, "shard": f"shard{at % 2}", "lastmod": bson.Timestamp(2, at)}
              for at, (low, high) in enumerate(zip(ends, ends[1:]))]
    for members in cluster.shards:
        own = [chunk for chunk in chunks if chunk["shard"] == members.name]
        placement = {
            "_id": entry["uuid"], "ns": ns, "key": key, "unique": False, "lastmod": own[-1]["lastmod"],
            "owned": [{"min": chunk["min"], "max": chunk["max"]} for chunk in own], "receiving": [], "leaving": []}
        with members.direct(members.primary()) as shard:
            shard.admin.command({
                "_shardsvrCreateCollectionParticipant": ns, "step": step, "uuid": entry["uuid"], "options": {},
                "indexes": [], "placement": placement})
            shard.config.placements.replace_one({"_id": entry["uuid"]}, placement)
    with cluster.config.direct(0) as config:
        config.config.chunks.delete_many({"uuid": entry["uuid"]})
        for chunk in chunks:
            since = {"onCurrentShardSince": step, "history": [{"validAfter": step, "shard": chunk["shard"]}]}
            config.config.chunks.insert_one({"uuid": entry["uuid"], **chunk, **since})
    for at in range(len(cluster.routers)):
        with cluster.client(at) as router:
            router.admin.command("flushRouterConfig")


def document(rng, number):
    """Every `_id` has one shard key, so that what is twice meets."""
    return {"_id": number, "k": number % 50, "n": {"m": number % 7}, "u": number * 3, "v": rng.randrange(10)}


def inserts(rng):
    numbers = [rng.randrange(IDS) for _ in range(rng.choice([1, 2, 5, 20]))]
    return {"insert": None, "documents": [document(rng, number) for number in numbers], "ordered": rng.random() < 0.5}


def filters(rng, number=None):
    """A filter, and whether one document matches at most; of this document, if one is given."""
    kind = rng.randrange(6 if number is None else 2)
    number = rng.randrange(IDS) if number is None else number
    if kind == 0:
        return {"_id": number}, True
    if kind == 1:
        return {"_id": number, "k": number % 50, "n.m": number % 7}, True
    if kind == 2:
        return {"u": number * 3}, True
    if kind == 3:
        return {"k": {"$gte": number % 50, "$lt": number % 50 + 15}}, False
    if kind == 4:
        return {"v": {"$lt": rng.randrange(10)}}, False
    return {"_id": {"$in": [number, rng.randrange(IDS), rng.randrange(IDS)]}}, False


def update(rng, number=None):
    q, single = filters(rng, number)
    change = rng.choice([{"$inc": {"v": 1}}, {"$set": {"w": rng.randrange(3)}}, {"$unset": {"w": 1}},
                         [{"$set": {"v": {"$add": ["$v", 1]}}}], {"$set": {"_id": -1}}, {"$bad": {"v": 1}}])
    entry = {"q": q, "u": change}
    if single and rng.random() < 0.2:
        number = rng.randrange(1000, 2000)
        kept = document(rng, number)
        entry = {"q": {"_id": number, "k": kept["k"], "n": kept["n"], "u": kept["u"]}, "u": {"$inc": {"v": 1}}, "upsert": True}
    elif not single and rng.random() < 0.3:
        entry["sort"] = {"u": rng.choice([1, -1])}
    else:
        entry["multi"] = not single
    return entry


def delete(rng, number=None):
    q, single = filters(rng, number)
    return {"q": q, "limit": 1 if single else 0} if rng.random() < 0.9 else {"q": {"$bad": 1}, "limit": 1}


def some(rng, make, count):
    """Statements, and whether they are ordered: if not, each concerns a document of its own."""
    ordered = rng.random() < 0.5
    return [make(rng, None if ordered else number) for number in rng.sample(range(IDS), count)], ordered


def statements(rng):
    kind = rng.random()
    if kind < 0.35:
        return inserts(rng)
    if kind < 0.65:
        entries, ordered = some(rng, update, rng.choice([1, 1, 3, 8]))
        return {"update": None, "updates": entries, "ordered": ordered}
    if kind < 0.85:
        entries, ordered = some(rng, delete, rng.choice([1, 1, 3]))
        return {"delete": None, "deletes": entries, "ordered": ordered}
    q, single = filters(rng)
    command = {"findAndModify": None, "query": q}
    if not single:
        command["sort"] = {"u": rng.choice([1, -1])}
    if rng.random() < 0.3:
        return {**command, "remove": True}
    return {**command, "update": rng.choice([{"$inc": {"v": 1}}, {"$bad": 1}]), "new": rng.random() < 0.5}


def operation(rng, number=None):
    """One of a `bulkWrite`."""
    kind = rng.randrange(3)
    if kind == 0:
        return {"insert": 0, "document": document(rng, rng.randrange(IDS) if number is None else number)}
    if kind == 1:
        entry = update(rng, number)
        return {"update": 0, "filter": entry.pop("q"), "updateMods": entry.pop("u"), **entry}
    entry = delete(rng, number)
    return {"delete": 0, "filter": entry["q"], "multi": not entry["limit"]}


def bulk(rng):
    ops, ordered = some(rng, operation, rng.choice([1, 3, 10]))
    return {"bulkWrite": 1, "ops": ops, "ordered": ordered, "errorsOnly": rng.random() < 0.2}


def shown(answer, name):
    """What two answers have to agree in."""
    between = ("$clusterTime", "operationTime", "opTime", "electionId", "errorLabels")
    answer = {**answer, **({"retriedStmtIds": sorted(answer["retriedStmtIds"])} if "retriedStmtIds" in answer else {})}
    text = bson.json_util.dumps({key: value for key, value in answer.items() if key not in between}, sort_keys=True)
    return text.replace(f".{name}", ".it")


def run(client, name, command, **options):
    db = client.writes
    if "bulkWrite" in command:
        command = {**command, "nsInfo": [{"ns": f"writes.{name}"}]}
        db = client.admin
    else:
        command = {next(iter(command)): name, **dict(list(command.items())[1:])}
    try:
        return shown(db.command(command, **options), name)
    except OperationFailure as error:
        return shown(error.details, name)


def contents(shards, name):
    found = [document for shard in shards for document in shard.writes[name].find()]
    return sorted(found, key=lambda document: document["_id"])


@check
def same_as_on_one_shard(cluster):
    """Random writes to a sharded collection and to one that is not: all answers and all documents are the same."""
    shards = [members.direct(0) for members in cluster.shards]
    with cluster.client(0) as client:
        for at, key in enumerate(KEYS):
            plain, name = f"plain{at}", f"spread{at}"
            spread(cluster, client, f"writes.{name}", key)
            rng = random.Random(at)
            with client.start_session() as one, client.start_session() as other:
                for number in range(300):
                    command = bulk(rng) if rng.random() < 0.2 else statements(rng)
                    multi = [entry for entry in command.get("updates", command.get("ops", [])) if entry.get("multi")]
                    multi += [entry for entry in command.get("deletes", []) if not entry["limit"]]
                    retried = not multi and rng.random() < 0.5
                    for _ in range(2 if retried else 1):
                        sent = {**command, "txnNumber": Int64(1000 * at + number + 1)} if retried else command
                        expected = run(client, plain, sent, session=one)
                        found = run(client, name, sent, session=other)
                        assert found == expected, f"{key} {command}\n one shard: {expected}\n sharded:   {found}"
                    if number % 20 == 0:
                        assert contents(shards, name) == contents(shards, plain), f"{key} {command}"
            assert contents(shards, name) == contents(shards, plain), key
            counts = [shard.writes[name].count_documents({}) for shard in shards]
            assert all(counts), f"{key}: {counts}"
    for shard in shards:
        shard.close()


@check
def transactions_that_meet_a_move(cluster):
    """A router learns by a transaction's second statement that a range has moved: run again, the transaction goes through."""
    with cluster.client(0) as mover, cluster.client(1) as client:
        mover.admin.command("enableSharding", "staleness", primaryShard="shard0")
        for name in ("first", "second", "read"):
            mover.admin.command("shardCollection", f"staleness.{name}", key={"_id": 1})
            client.staleness[name].insert_one({"_id": 0})
        for name in ("second", "read"):
            mover.admin.command("moveRange", f"staleness.{name}", min={"_id": MinKey()}, max={"_id": MaxKey()}, toShard="shard1")
        attempts = []

        def statements(session):
            attempts.append(1)
            client.staleness.first.insert_one({"_id": 1}, session=session)
            client.staleness.second.insert_one({"_id": 1}, session=session)
            return client.staleness.read.find_one({"_id": 0}, session=session)

        with client.start_session() as session:
            assert session.with_transaction(statements) == {"_id": 0}
        assert len(attempts) <= 3, f"each of two views was out of date once, and {len(attempts)} attempts were made"
        assert client.staleness.second.count_documents({}) == 2


@check
def answers_of_bulk_writes_come_in_batches(cluster):
    """What a `bulkWrite` has done comes by a cursor of the router: in batches of any size, in transactions, until it is killed."""
    with cluster.client(0) as client:
        spread(cluster, client, "bulks.spread", {"k": 1})
        client.bulks.whole.insert_one({"_id": 0})
        for name in ("whole", "spread"):
            ops = [{"insert": 0, "document": {"_id": at, "k": at % 50}} for at in range(10)]

            def bulk(ops=ops, name=name, **options):
                command = {"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": f"bulks.{name}"}], "ordered": False}
                return client.admin.command(command, **options)

            client.bulks[name].delete_many({})
            answer = bulk(cursor={"batchSize": 3})
            shown, number = answer["cursor"]["firstBatch"], answer["cursor"]["id"]
            assert answer["nInserted"] == 10 and len(shown) == 3 and number, answer
            while number:
                more = client.admin.command("getMore", number, collection="$cmd.bulkWrite", batchSize=4)["cursor"]
                assert more["ns"] == "admin.$cmd.bulkWrite" and len(more["nextBatch"]) <= 4, more
                number, shown = more["id"], shown + more["nextBatch"]
            assert [item["idx"] for item in shown] == list(range(10)), shown
            assert bulk(cursor={"batchSize": 10})["cursor"]["id"] == 0
            empty = bulk(cursor={"batchSize": 0})
            assert empty["cursor"]["firstBatch"] == [] and empty["nErrors"] == 10, empty
            killed = client.admin.command("killCursors", "$cmd.bulkWrite", cursors=[Int64(empty["cursor"]["id"])])
            assert killed["cursorsKilled"] == [empty["cursor"]["id"]], killed
            refused(43, lambda: client.admin.command("getMore", empty["cursor"]["id"], collection="$cmd.bulkWrite"))
            # Two answers that no batch holds together.
            large = [pymongo.UpdateOne({"_id": letter * (9 << 20), "k": at}, {"$set": {"v": 1}}, upsert=True,
                                       namespace=f"bulks.{name}") for at, letter in enumerate("ab")]
            with client.start_session() as session, session.start_transaction():
                done = client.bulk_write(large, session=session, verbose_results=True)
                assert done.upserted_count == 2 and sorted(done.update_results) == [0, 1], done
            assert client.bulks[name].count_documents({"v": 1}) == 2
            errors = bulk(ops=ops * 1000, cursor={"batchSize": 4000})
            assert errors["nErrors"] == 10000 and errors["cursor"]["id"], errors["nErrors"]
            left, number = len(errors["cursor"]["firstBatch"]), errors["cursor"]["id"]
            while number:
                more = client.admin.command("getMore", number, collection="$cmd.bulkWrite")["cursor"]
                number, left = more["id"], left + len(more["nextBatch"])
            assert left == 10000, left


@check
def ordered_inserts_that_commit_on_one_shard_only(cluster):
    """With `w: 1` each shard commits its documents by itself: what one has refused goes again, what the other has is not inserted twice."""
    with cluster.client(0) as client, cluster.shards[1].direct(0) as shard:
        spread(cluster, client, "halves.plants", {"k": 1})
        plants = client.halves.get_collection("plants", write_concern=pymongo.WriteConcern(w=1))
        for retries in (True, False):
            with cluster.client(0, retryWrites=retries) as other:
                plants = other.halves.get_collection("plants", write_concern=pymongo.WriteConcern(w=1))
                plants.delete_many({})
                shard.admin.command({
                    "configureFailPoint": "failCommand", "mode": {"times": 1},
                    "data": {"failCommands": ["commitTransaction"], "errorCode": 112, "failInternalCommands": True}})
                inserted = plants.insert_many([{"_id": at, "k": at} for at in range(50)])
                assert len(inserted.inserted_ids) == 50
                assert plants.count_documents({}) == 50
        shard.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


@check
def one_document_is_another_shard_s(cluster):
    """A document that no filter says the place of: made on the shard that was not asked first, and on record on two shards."""
    with cluster.client(retryWrites=False) as client:
        plants = client.elsewhere.plants
        client.admin.command("enableSharding", "elsewhere", primaryShard="shard0")
        client.admin.command("shardCollection", "elsewhere.plants", key={"k": 1})
        client.admin.command("split", "elsewhere.plants", middle={"k": 0})
        # What has no key belongs below all numbers.
        client.admin.command({"moveRange": "elsewhere.plants", "min": {"k": MinKey()}, "max": {"k": 0}, "toShard": "shard1"})
        for new in (False, True):
            made = client.elsewhere.command(
                "findAndModify", "plants", query={"name": f"rose {new}"}, update={"$set": {"v": 1}}, upsert=True, new=new)
            assert made["lastErrorObject"]["n"] == 1 and made["lastErrorObject"]["updatedExisting"] is False, made
            assert (made["value"] or {}).get("v") == (1 if new else None), made
        assert plants.update_one({"name": "tulip"}, {"$set": {"v": 1}}, upsert=True).upserted_id is not None
        assert plants.count_documents({"v": 1}) == 3
        client.admin.command("split", "elsewhere.plants", middle={"k": 10})
        plants.insert_many([{"_id": 0, "k": 5}, {"_id": 1, "k": 15}])
        sent = ((0, "update", {"q": {"_id": 0}, "u": {"$inc": {"n": 1}}}), (10, "delete", {"q": {"_id": 1}, "limit": 1}))
        for low, kind, statement in sent:
            with client.start_session() as session:
                command = {kind: "plants", f"{kind}s": [statement], "txnNumber": bson.Int64(1)}
                first = client.elsewhere.command(command, session=session)
                client.admin.command({"moveRange": "elsewhere.plants", "min": {"k": low}, "toShard": "shard1"})
                again = client.elsewhere.command(command, session=session)
            counts = [[answer.get(field) for field in ("n", "nModified")] for answer in (first, again)]
            assert counts[0] == counts[1] and counts[0][0] == 1, counts
        assert plants.find_one({"_id": 0})["n"] == 1


@check
def a_session_s_attempts_come_one_after_another(cluster):
    """A statement is sent again while its first attempt still looks for the document: it is executed once by one router."""
    with cluster.client(0) as client, cluster.shards[0].direct(0) as shard:
        spread(cluster, client, "attempts.plants", {"k": 1})
        plants = client.attempts.plants
        plants.insert_many([{"_id": at, "k": at} for at in range(50)])
        here = shard.attempts.plants.distinct("_id")
        there = sorted(set(range(50)) - set(here))
        # The best is on the shard that is slow, the next on the other one.
        for order, at in enumerate((here[0], there[0], here[1])):
            plants.update_one({"_id": at, "k": at}, {"$set": {"order": order}})
        shard.admin.command({
            "configureFailPoint": "failCommand", "mode": {"times": 1},
            "data": {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 1000, "failInternalCommands": True}})
        command = {"findAndModify": "plants", "query": {"order": {"$gte": 0}}, "sort": {"order": 1}, "remove": True}
        with client.start_session() as session:
            sent = {**command, "txnNumber": bson.Int64(1000)}
            answers = []
            attempts = [threading.Thread(target=lambda: answers.append(client.attempts.command(sent, session=session))) for _ in range(2)]
            for attempt in attempts:
                attempt.start()
            for attempt in attempts:
                attempt.join()
        shard.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
        assert [answer["value"]["order"] for answer in answers] == [0, 0], answers
        assert plants.count_documents({}) == 49
