"""Ranges move between shards while clients write in them, whoever dies meanwhile."""

import itertools
import os
import random
import threading
import time

from bson import Int64, MaxKey, MinKey
from pymongo.errors import AutoReconnect, PyMongoError

from checks import alone, check, refused
from cluster import eventually
from collections_ddl import check_whole, placements, shown

# What passes by itself: the range's remains are being removed, a shard has no primary, a move was given up.
PASSING = (200, 117, 6, 7, 9001, 91, 133, 189, 10107, 11600, 11602, 13435, 13436, 20000)


def cleanup(cluster, seconds):
    for members in cluster.shards:
        for at in range(len(members.servers)):
            # A member that has lost an election may be taking back what it wrote, and closes its connections for that.
            eventually(lambda: cleaned_up_after(members, at, seconds), f"member {at} of {members.name} answers")


def cleaned_up_after(members, at, seconds):
    try:
        with members.direct(at) as shard:
            return shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=seconds)["ok"] == 1
    except AutoReconnect:
        return False


def move(client, namespace, low, high, to, patience=60):
    """Moves a range, again while what stands in its way passes by itself."""
    until = time.monotonic() + patience
    command = {"moveRange": namespace, "min": low, "max": high, "toShard": to}
    while True:
        try:
            return client.admin.command(command)
        except PyMongoError as error:
            passing = isinstance(error, AutoReconnect) or getattr(error, "code", None) in PASSING
            if not passing or time.monotonic() > until:
                raise
            time.sleep(0.05)


def no_moves(cluster):
    with cluster.config.direct(0) as config:
        eventually(lambda: config.config.migrations.count_documents({}) == 0, "no move is under way")


class Writers:
    """Clients that insert documents and count up those that are there, and note what was acknowledged."""

    def __init__(self, cluster, namespace, keys, count=3):
        self.cluster, self.keys, self.stopped = cluster, keys, threading.Event()
        self.db, self.name = namespace.split(".", 1)
        self.sure, self.unsure, self.errors = {}, {}, []
        self.threads = [threading.Thread(target=self.run, args=(at,)) for at in range(count)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive(), "a writer waits for ever"

    def run(self, at):
        choose = random.Random(at)
        own = []
        with self.cluster.client(router=at % len(self.cluster.routers)) as client:
            collection = client[self.db][self.name]
            number = 0
            while not self.stopped.is_set():
                new = not own or choose.random() < 0.3
                if new:
                    number += 1
                    name, n = f"{at}-{number}", choose.randrange(self.keys)
                else:
                    name, n = choose.choice(own)
                try:
                    if new:
                        collection.insert_one({"_id": name, "n": n, "times": 0})
                        own.append((name, n))
                        self.sure[name] = 0
                    elif choose.random() < 0.5:
                        done = collection.update_one({"_id": name, "n": n}, {"$inc": {"times": 1}})
                        assert done.matched_count == 1, (name, n, done.raw_result)
                        self.sure[name] += 1
                    else:
                        done = collection.find_one_and_update({"_id": name, "n": n}, {"$inc": {"times": 1}})
                        assert done is not None, (name, n)
                        self.sure[name] += 1
                except PyMongoError as error:
                    self.errors.append(error)
                    self.unsure[name] = self.unsure.get(name, 0) + 1
                except AssertionError as error:
                    self.errors.append(error)
                    self.unsure[name] = 10**9
                    return

    def judge(self, client):
        lost = [error for error in self.errors if isinstance(error, AssertionError)]
        assert not lost, lost
        found = {}
        for document in client[self.db][self.name].find({"_id": {"$type": "string"}}):
            assert document["_id"] not in found, f"{document['_id']} is there twice"
            found[document["_id"]] = document["times"]
        for name, times in self.sure.items():
            assert name in found, f"{name} is lost"
            assert times <= found[name] <= times + self.unsure.get(name, 0), (name, times, found[name])
        extra = [name for name in found if name not in self.sure and name not in self.unsure]
        assert not extra, extra


class Exact(Writers):
    """Writers, and beside them one who counts what they do not write, through the other router: it must never change."""

    def __init__(self, cluster, name, keys):
        super().__init__(cluster, name, keys)
        self.expected, self.counts, self.counted = keys, [], threading.Event()
        self.counter = threading.Thread(target=self.count, args=(cluster, *name.split(".", 1)), daemon=True)

    def count(self, cluster, db, name):
        query = {"_id": {"$type": "number"}}
        with cluster.client(router=1) as other:
            while not self.counted.is_set():
                try:
                    self.counts.append(other[db][name].count_documents(query))
                    self.counts.append(sum(1 for _ in other[db][name].find(query, {"_id": 1}, batch_size=1000)))
                except PyMongoError as error:
                    self.counts.append(error)

    def __enter__(self):
        self.counter.start()
        return super().__enter__()

    def __exit__(self, *trace):
        super().__exit__(*trace)
        self.counted.set()
        self.counter.join(60)

    def judge_all(self, client):
        wrong = [count for count in self.counts if count != self.expected]
        assert self.counts and not wrong, (len(self.counts), wrong[:3])
        assert not self.errors, self.errors[:3]
        assert len(self.sure) > 10
        self.judge(client)


@check
def moves_beside_writers(cluster):
    """Ranges go to and fro; each acknowledged write is found once, and counts are exact."""
    name, keys = "movers.plants", 300
    with cluster.client() as client:
        client.admin.command("enableSharding", "movers", primaryShard="shard0")
        client.admin.command("shardCollection", name, key={"n": 1})
        client.movers.plants.insert_many([{"_id": n, "n": n, "text": "x" * 200} for n in range(keys)])
        cleanup(cluster, 0)
        with Exact(cluster, name, keys) as writers:
            for at in range(6):
                low = at * 50
                move(client, name, {"n": low}, {"n": low + 50}, "shard1")
            for at in range(3):
                low = at * 100
                move(client, name, {"n": low}, {"n": low + 50}, "shard0")
        writers.judge_all(client)
        check_whole(cluster, name, {"n": 1})
        no_moves(cluster)
        eventually(lambda: not any(placed["leaving"] for placed in placements(cluster, name).values()), "it is removed")
        assert sum(shown(cluster, name).values()) == client.movers.plants.count_documents({})
        for members in cluster.shards:
            with members.direct(0) as shard:
                # What is there is what is owned, and the copies say what they are.
                there = shard.movers.command("collStats", "plants")["count"]
                assert there == shown(cluster, name)[members.name], members.name
                oplog = shard.local["oplog.rs"]
                assert oplog.count_documents({"ns": name, "op": "d", "fromMigrate": True}) > 0, members.name
                assert oplog.count_documents({"ns": name, "op": "d", "fromMigrate": {"$exists": False}}) == 0
        cleanup(cluster, 900)


@check
def hashed_ranges_move(cluster):
    with cluster.client() as client:
        for name, key in (("hashed", {"_id": "hashed"}), ("byid", {"_id": 1}), ("two", {"a": 1, "b": 1})):
            namespace = f"movedkeys.{name}"
            if name == "hashed":
                client.admin.command("enableSharding", "movedkeys", primaryShard="shard0")
            client.admin.command("shardCollection", namespace, key=key)
            client.movedkeys[name].insert_many([{"_id": n, "a": n % 7, "b": n} for n in range(500)])
            with cluster.config.direct(0) as config:
                uuid_of = config.config.collections.find_one({"_id": namespace})["uuid"]
                chunk = config.config.chunks.find_one({"uuid": uuid_of, "shard": "shard0"})
            if name == "two":
                move(client, namespace, {"a": 2, "b": 100}, {"a": 5, "b": 0}, "shard1")
            elif name == "byid":
                move(client, namespace, {"_id": 100}, {"_id": 300}, "shard1")
                assert shown(cluster, namespace) == {"shard0": 300, "shard1": 200}
            else:
                move(client, namespace, chunk["min"], chunk["max"], "shard1")
            check_whole(cluster, namespace, key)
            assert sum(shown(cluster, namespace).values()) == 500, shown(cluster, namespace)
            assert len(list(client.movedkeys[name].find())) == 500
            no_moves(cluster)


@check
def retries_after_a_move(cluster):
    """A retryable write that is sent again after its document has moved is answered, not executed."""
    with cluster.client() as client:
        client.admin.command("enableSharding", "retried", primaryShard="shard0")
        client.admin.command("shardCollection", "retried.plants", key={"n": 1})
        client.retried.plants.insert_many([{"_id": n, "n": n, "times": 0} for n in range(20)])
        update = {"update": "plants", "updates": [{"q": {"n": 5}, "u": {"$inc": {"times": 1}}}]}
        modify = {"findAndModify": "plants", "query": {"n": 6}, "update": {"$inc": {"times": 1}}, "new": True}
        delete = {"delete": "plants", "deletes": [{"q": {"n": 7}, "limit": 1}]}
        insert = {"insert": "plants", "documents": [{"_id": 100, "n": 8}]}
        cleanup(cluster, 0)
        for number, command in enumerate((update, modify, delete, insert)):
            with client.start_session() as session:
                sent = {**command, "txnNumber": Int64(1000 + number)}
                first = client.retried.command(sent, session=session)
                move(client, "retried.plants", {"n": 0}, {"n": 10}, f"shard{1 - number % 2}")
                again = client.retried.command(sent, session=session)
                for field in ("n", "nModified", "value"):
                    assert first.get(field) == again.get(field), (command, first, again)
        found = {document["_id"]: document.get("times") for document in client.retried.plants.find()}
        assert found[5] == 1 and found[6] == 1 and 7 not in found and 100 in found and len(found) == 20, found
        cleanup(cluster, 900)


@check
def moves_leave_what_others_have_done(cluster):
    """Of a session's statements only those about the collection travel."""
    with cluster.client() as client:
        client.admin.command("enableSharding", "alone", primaryShard="shard0")
        client.admin.command("shardCollection", "alone.plants", key={"n": 1})
        with client.start_session() as other, client.start_session() as own:
            client.alone.others.insert_many([{"_id": n} for n in range(1000)], session=other)
            client.alone.plants.insert_many([{"_id": n, "n": n} for n in range(20)], session=own)
            with cluster.shards[1].direct(0) as shard:
                told = {"op": "n", "o.msg": "a statement of another shard", "ns": {"$regex": "^alone"}}
                move(client, "alone.plants", {"n": 0}, {"n": 10}, "shard1")
                entries = list(shard.local["oplog.rs"].find(told))
            assert [entry["stmtId"] for entry in entries] == list(range(20)), len(entries)
            assert {entry["ns"] for entry in entries} == {"alone.plants"}


@alone(shards=2, members=1, routers=1)
def moves_beside_deaths(cluster):
    """The config servers' primary, the donor's or the recipient's is killed in each phase: each document is there once."""
    name, total = "deaths.plants", 300
    with cluster.client() as client:
        client.admin.command("enableSharding", "deaths", primaryShard="shard0")
        client.admin.command("shardCollection", name, key={"n": 1})
        client.deaths.plants.insert_many([{"_id": n, "n": n} for n in range(total)])

        def run(low, results):
            try:
                command = {"moveRange": name, "min": {"n": low}, "max": {"n": low + 10}, "toShard": "shard1"}
                results.append(client.admin.command(command))
            except PyMongoError as error:
                results.append(error)

        phases, victims = ("receiveRange", "finishRange", "executing", "committing"), (cluster.config, *cluster.shards)
        rounds = list(itertools.product(phases, victims))
        if not os.environ.get("SHEAF_ALL_DEATHS"):
            # A round takes fifteen seconds: each phase once, with the next victim. scripts/test --all has all.
            rounds = list(zip(phases, itertools.cycle(victims)))
        low = 0
        for phase, victim in rounds:
            with cluster.config.direct(0) as config:
                point = {"configureFailPoint": "hangBeforeDDLPhase", "mode": "alwaysOn", "data": {"phase": phase}}
                config.admin.command(point)
                entered = config.admin.command(point)["count"]
                results = []
                thread = threading.Thread(target=run, args=(low, results))
                thread.start()
                eventually(lambda: config.admin.command(point)["count"] > entered or results, f"{phase} is reached")
                assert not results, (phase, results)
                victim.servers[0].kill()
                victim.servers[0].start()
                victim.primary()
                if victim is not cluster.config:
                    config.admin.command("configureFailPoint", "hangBeforeDDLPhase", mode="off")
            thread.join(120)
            assert not thread.is_alive() and results, (phase, victim.name)
            no_moves(cluster)
            # It has happened, or nothing has: then it is done again.
            move(client, name, {"n": low}, {"n": low + 10}, "shard1")
            chunks = check_whole(cluster, name, {"n": 1})
            assert any(chunk["min"]["n"] == low and chunk["shard"] == "shard1" for chunk in chunks), (phase, victim.name)
            low += 10
            assert shown(cluster, name) == {"shard0": total - low, "shard1": low}, (phase, victim.name)


@alone(shards=2, members=3, routers=2)
def moves_beside_elections(cluster):
    """Writers beside moves, while primaries of the donor and the recipient are killed."""
    name, keys = "elected.plants", 100
    with cluster.client() as client:
        client.admin.command("enableSharding", "elected", primaryShard="shard0")
        client.admin.command("shardCollection", name, key={"n": 1})
        client.elected.plants.insert_many([{"_id": n, "n": n, "text": "x" * 1000} for n in range(keys)])
        cleanup(cluster, 0)
        with Writers(cluster, name, keys) as writers:
            for at, victim in enumerate([*cluster.shards, *cluster.shards]):
                low, to = (at % 2) * 50, f"shard{1 - at // 2}"
                moved = threading.Thread(
                    target=lambda: move(client, name, {"n": low}, {"n": low + 50}, to, patience=120), daemon=True
                )
                moved.start()
                time.sleep(random.random() / 5)
                primary = victim.primary()
                victim.servers[primary].kill()
                moved.join(150)
                assert not moved.is_alive(), (at, victim.name)
                victim.servers[primary].start()
                cleanup(cluster, 0)
        no_moves(cluster)
        writers.judge(client)
        check_whole(cluster, name, {"n": 1})


@check
def shard_keys_are_refined_beside_orphans(cluster):
    """What has left a shard and is not removed yet is known by the longer key afterwards, on the shard that owns nothing any more, too."""
    with cluster.client(router=0) as client:
        admin = client.admin
        admin.command("enableSharding", "ddlorphans", primaryShard="shard0")
        upper, lower = ({"n": 10}, {"n": MaxKey()}), ({"n": MinKey()}, {"n": 10})

        def leaving(namespace):
            return sum(len(placement["leaving"]) for placement in placements(cluster, namespace).values())
        for name, first, then in (("some", (), (upper,)), ("all", (lower, upper), (lower, upper))):
            plants, namespace = client.ddlorphans[name], f"ddlorphans.{name}"
            admin.command("shardCollection", namespace, key={"n": 1})
            admin.command("split", namespace, middle={"n": 10})
            plants.create_index([("n", 1), ("m", 1)])
            cleanup(cluster, 0)
            for bounds in first:
                move(client, namespace, *bounds, "shard1")
            eventually(lambda: leaving(namespace) == 0, "what has left is removed")
            cleanup(cluster, 900)
            plants.insert_many([{"n": n, "m": n} for n in range(20)])
            for bounds in then:
                move(client, namespace, *bounds, "shard0" if first else "shard1")
            assert leaving(namespace) > 0
            before = client.ddlorphans.command("ping")["operationTime"]
            admin.command("refineCollectionShardKey", namespace, key={"n": 1, "m": 1})
            check_whole(cluster, namespace, {"n": 1, "m": 1})
            plants.insert_one({"n": 15, "m": -1})
            assert plants.count_documents({}) == plants.estimated_document_count() == 21
            assert len(list(plants.find({"n": {"$gte": 10}}))) == 11
            # Of the layout of before the other router knows nothing.
            past = {"find": name, "readConcern": {"level": "snapshot", "atClusterTime": before}}
            with cluster.client(router=1) as other:
                refused(246, lambda: other.ddlorphans.command(past))
        cleanup(cluster, 0)
        for name, there in (("some", "shard0"), ("all", "shard1")):
            move(client, f"ddlorphans.{name}", {"n": 10, "m": MinKey()}, {"n": MaxKey(), "m": MaxKey()}, there)
            assert client.ddlorphans[name].count_documents({}) == 21
        cleanup(cluster, 900)
        client.drop_database("ddlorphans")
        assert placements(cluster, "ddlorphans.all") == placements(cluster, "ddlorphans.some") == {}
