"""The balancer, shards that leave, and databases that move."""

import threading
import time

import pymongo
from bson import MaxKey, MinKey
from pymongo.errors import OperationFailure, PyMongoError

from checks import alone, refused
from cluster import eventually

PAD = "x" * 10_000


def owners(client, namespace):
    """How many chunks each shard has."""
    uuid = client.config.collections.find_one({"_id": namespace})["uuid"]
    counts = {}
    for chunk in client.config.chunks.find({"uuid": uuid}):
        counts[chunk["shard"]] = counts.get(chunk["shard"], 0) + 1
    return counts


def moves(client):
    return client.config.changelog.count_documents({"what": "moveChunk.commit"})


def stored(cluster, namespace):
    """How many documents each shard's own count has, orphans left out."""
    db, collection = namespace.split(".", 1)
    counts = {}
    for members in cluster.shards:
        with members.direct(members.primary()) as shard:
            counts[members.name] = shard[db][collection].count_documents({})
    return counts


def rounds(client, more=3):
    """Waits for rounds that begin after this."""
    before = client.admin.command("balancerStatus")["numBalancerRounds"]
    eventually(lambda: client.admin.command("balancerStatus")["numBalancerRounds"] >= before + more, "rounds")


def drop_at_once(cluster):
    """What has left a shard is removed at once."""
    for members in cluster.shards:
        for at in range(len(members.servers)):
            with members.direct(at) as shard:
                shard.admin.command("setParameter", 1, orphanCleanupDelaySecs=0)


def fill(client, namespace, count, key="n"):
    db, collection = namespace.split(".", 1)
    client[db][collection].insert_many([{"_id": n, key: n, "pad": PAD} for n in range(count)])


@alone(shards=2, members=1, routers=1, balances=True)
def even_spread(cluster):
    """What one shard has is spread until nothing is to be done; a stopped balancer moves nothing; what is done is told."""
    with cluster.client() as client:
        admin = client.admin
        drop_at_once(cluster)
        admin.command("balancerStop")
        status = admin.command("balancerStatus")
        assert status["mode"] == "off" and status["inBalancerRound"] is False, status
        admin.command("enableSharding", "even", primaryShard="shard0")
        admin.command("shardCollection", "even.plants", key={"n": 1})
        admin.command({"configureCollectionBalancing": "even.plants", "chunkSize": 1})
        fill(client, "even.plants", 1500)
        status = admin.command("balancerCollectionStatus", "even.plants")
        assert status["balancerCompliant"] is False, status
        assert status["firstComplianceViolation"] == "chunksImbalance", status
        time.sleep(2)
        assert owners(client, "even.plants") == {"shard0": 1}

        admin.command({"configureCollectionBalancing": "even.plants", "enableBalancing": False})
        admin.command("balancerStart")
        rounds(client)
        assert owners(client, "even.plants") == {"shard0": 1}
        window = {"start": "00:00", "stop": "00:00"}
        if time.localtime().tm_hour == 0:
            window = {"start": "12:00", "stop": "12:00"}
        client.config.settings.update_one({"_id": "balancer"}, {"$set": {"activeWindow": window}}, upsert=True)
        admin.command({"configureCollectionBalancing": "even.plants", "enableBalancing": True})
        time.sleep(2)
        assert owners(client, "even.plants") == {"shard0": 1}
        client.config.settings.update_one({"_id": "balancer"}, {"$unset": {"activeWindow": 1}})

        def is_even():
            counts = stored(cluster, "even.plants")
            return abs(counts["shard0"] - counts["shard1"]) * len(PAD) <= 3 << 20

        eventually(is_even, "an even spread")
        eventually(lambda: admin.command("balancerCollectionStatus", "even.plants")["balancerCompliant"], "compliance")
        rounds(client)
        before, chunks = moves(client), owners(client, "even.plants")
        assert before > 0
        rounds(client, 24)
        assert moves(client) == before and owners(client, "even.plants") == chunks
        assert client.even.plants.count_documents({}) == 1500
        assert len({plant["n"] for plant in client.even.plants.find({}, {"n": 1})}) == 1500
        noted = client.config.actionlog.find_one({"what": "balancer.round", "details.chunksMoved": {"$gt": 0}})
        assert noted["details"]["errorOccured"] is False, noted
        assert client.config.changelog.find_one({"what": "split", "ns": "even.plants"})
        # As shells count moves.
        assert client.config.changelog.find_one({"what": "moveChunk.from", "details.note": "success", "details.errmsg": {"$exists": False}})


@alone(shards=2, members=1, routers=1, balances=True)
def zones_are_obeyed(cluster):
    """Zones that are set on a collection with documents have it cut and moved; what is in no zone stays."""
    with cluster.client() as client:
        admin = client.admin
        drop_at_once(cluster)
        admin.command("enableSharding", "zoned", primaryShard="shard0")
        admin.command("shardCollection", "zoned.plants", key={"n": 1})
        client.zoned.plants.insert_many([{"n": n} for n in range(1000)])
        admin.command("addShardToZone", "shard1", zone="wet")
        admin.command({"updateZoneKeyRange": "zoned.plants", "min": {"n": 200}, "max": {"n": 500}, "zone": "wet"})

        def obeyed():
            uuid = client.config.collections.find_one({"_id": "zoned.plants"})["uuid"]
            chunks = list(client.config.chunks.find({"uuid": uuid}).sort("min"))
            return [(chunk["min"]["n"], chunk["shard"]) for chunk in chunks] == [
                (MinKey(), "shard0"), (200, "shard1"), (500, "shard0")]

        eventually(obeyed, "zones are obeyed")
        assert admin.command("balancerCollectionStatus", "zoned.plants")["balancerCompliant"] is True
        before = moves(client)
        rounds(client, 4)
        assert moves(client) == before == 1
        assert stored(cluster, "zoned.plants") == {"shard0": 700, "shard1": 300}
        # The zone's last shard stays.
        refused(163, lambda: admin.command("removeShard", "shard1"))


def make_database(client):
    """A database with everything that moves with it."""
    db = client.drained
    db.plants.insert_many([{"_id": n, "name": f"plant{n}", "n": n} for n in range(3000)])
    db.plants.create_index("name", unique=True)
    db.create_collection("ring", capped=True, size=1 << 20)
    db.ring.insert_many([{"_id": 100 - n, "at": n} for n in range(100)])
    db.create_collection("checked", validator={"n": {"$gte": 0}})
    db.checked.insert_one({"_id": 1, "n": 1})
    db.command("create", "large", viewOn="plants", pipeline=[{"$match": {"n": {"$gte": 2990}}}])


def check_database(client):
    db = client.drained
    assert db.plants.count_documents({}) >= 3000
    assert db.plants.find_one({"name": "plant7"})["_id"] == 7
    refused(11000, lambda: db.plants.insert_one({"name": "plant7"}))
    assert [each["at"] for each in db.ring.find()] == list(range(100))
    assert db.ring.options()["capped"] is True
    refused(121, lambda: db.checked.insert_one({"n": -1}))
    assert sorted(each["_id"] for each in db.large.find()) == list(range(2990, 3000))
    assert {"checked", "large", "plants", "ring"} <= set(db.list_collection_names()), db.list_collection_names()


@alone(shards=3, members=1, routers=2, balances=True)
def draining(cluster):
    """A shard that is drained becomes empty, while others write, and goes."""
    with cluster.client(0) as client, cluster.client(1) as other:
        admin = client.admin
        drop_at_once(cluster)
        refused(70, lambda: admin.command("removeShard", "shard9"))
        admin.command("enableSharding", "drained", primaryShard="shard2")
        make_database(client)
        admin.command("shardCollection", "drained.spread", key={"_id": "hashed"})
        client.drained.spread.insert_many([{"_id": n} for n in range(2000)])
        assert "shard2" in owners(client, "drained.spread")
        check_database(other)

        started = admin.command("removeShard", "shard2")
        assert started["state"] == "started" and started["dbsToMove"] == ["drained"], started
        assert started["msg"] == "draining started successfully" and started["shard"] == "shard2", started
        ongoing = admin.command("removeShard", "shard2")
        assert ongoing["state"] == "ongoing" and ongoing["remaining"]["dbs"] == 1, ongoing
        refused(20, lambda: admin.command("commitShardRemoval", "shard2"))
        eventually(lambda: admin.command("shardDrainingStatus", "shard2")["remaining"]["chunks"] == 0, "no chunks")
        refused(70, lambda: admin.command("movePrimary", "drained", to="shard9"))
        refused(72, lambda: admin.command("movePrimary", "config", to="shard0"))

        written, stop, errors = [], threading.Event(), []

        def write():
            number = 10_000
            while not stop.is_set():
                try:
                    other.drained.plants.insert_one({"_id": number, "name": f"plant{number}"})
                    other.drained[f"new{number % 7}"].insert_one({"_id": number})
                    written.append(number)
                except PyMongoError as error:
                    errors.append(error)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        eventually(lambda: len(written) > 20, "writes")
        admin.command("movePrimary", "drained", to="shard0")
        count = len(written)
        eventually(lambda: len(written) > count + 20, "writes go on")
        stop.set()
        writer.join()
        assert not errors, errors[:3]
        assert client.config.databases.find_one({"_id": "drained"})["primary"] == "shard0"
        for reader in (client, other):
            check_database(reader)
            assert {plant["_id"] for plant in reader.drained.plants.find({"_id": {"$gte": 10_000}})} == set(written)
            assert sum(reader.drained[f"new{at}"].count_documents({}) for at in range(7)) == len(written)
        assert client.drained.spread.count_documents({}) == 2000
        with cluster.shards[2].direct(0) as shard:
            assert "plants" not in shard.drained.list_collection_names()
        assert admin.command("shardDrainingStatus", "shard2")["state"] == "drainingComplete"
        assert admin.command("removeShard", "shard2")["state"] == "completed"
        assert [shard["_id"] for shard in admin.command("listShards")["shards"]] == ["shard0", "shard1"]
        refused(70, lambda: admin.command("removeShard", "shard2"))
        # That shard has owned something of it.
        client.drained.command("drop", "spread", maxTimeMS=20000)
        admin.command("startShardDraining", "shard1")
        refused(20, lambda: admin.command("startShardDraining", "shard0"))
        admin.command("stopShardDraining", "shard1")
        refused(20, lambda: admin.command("shardDrainingStatus", "shard1"))
        what = {entry["what"] for entry in client.config.changelog.find({}, {"what": 1})}
        assert {"removeShard.start", "removeShard", "movePrimary"} <= what, what


@alone(shards=2, members=1, routers=1)
def move_primary_dies(cluster):
    """Whoever dies in whichever phase: the database is on one shard, whole, and can be used."""
    with cluster.client(retryWrites=True) as client:
        make_database(client)
        home = client.config.databases.find_one({"_id": "drained"})["primary"]
        other = {"shard0": "shard1", "shard1": "shard0"}
        for phase in ("closing", "catching", "entering", "opening"):
            for victim in ("config", "from", "to"):
                fail = {"mode": "alwaysOn", "data": {"op": "movePrimary", "phase": phase}}
                with cluster.config.direct(0) as config:
                    config.admin.command("configureFailPoint", "hangBeforeDDLPhase", **fail)
                to = other[home]

                def move():
                    try:
                        client.admin.command("movePrimary", "drained", to=to)
                    except PyMongoError:
                        pass  # It goes on without us.

                mover = threading.Thread(target=move)
                mover.start()

                def reached():
                    return client.config.ddl.find_one({"op": "movePrimary", "phase": phase})

                eventually(reached, f"{phase} is reached")
                members = cluster.config if victim == "config" else next(
                    each for each in cluster.shards if each.name == (home if victim == "from" else to))
                members.servers[0].kill()
                members.servers[0].start()
                if victim != "config":
                    with cluster.config.direct(0) as config:
                        config.admin.command("configureFailPoint", "hangBeforeDDLPhase", mode="off")
                mover.join()
                eventually(lambda: client.config.ddl.count_documents({}) == 0, "it is over")
                home = client.config.databases.find_one({"_id": "drained"})["primary"]
                check_database(client)
                client.drained.plants.insert_one({"_id": f"{phase}.{victim}", "name": f"{phase}.{victim}"})


@alone(shards=2, members=1, routers=1, balances=True, configs=3)
def config_primary_dies(cluster):
    """The config servers' primary is killed during rounds: the next one goes on, and nothing is lost."""
    with cluster.client() as client:
        admin = client.admin
        drop_at_once(cluster)
        admin.command("enableSharding", "killed", primaryShard="shard0")
        admin.command("shardCollection", "killed.plants", key={"n": 1})
        admin.command({"configureCollectionBalancing": "killed.plants", "chunkSize": 1})
        fill(client, "killed.plants", 1200)
        for _ in range(2):
            eventually(lambda: moves(client) > 0, "a move")
            at = cluster.config.primary()
            cluster.config.servers[at].kill()
            before = moves(client)
            eventually(lambda: cluster.config.primary() is not None, "a new primary")
            cluster.config.servers[at].start()
            assert moves(client) >= before

        def is_even():
            counts = stored(cluster, "killed.plants")
            return abs(counts["shard0"] - counts["shard1"]) * len(PAD) <= 3 << 20

        eventually(is_even, "an even spread")
        eventually(lambda: client.config.ddl.count_documents({}) == 0, "no change under way")
        assert len({plant["n"] for plant in client.killed.plants.find({}, {"n": 1})}) == 1200
        assert admin.command("checkMetadataConsistency", 1)["cursor"]["firstBatch"] == []


@alone(shards=2, members=1, routers=1, balances=True)
def first_load(cluster):
    """Ranges of an empty collection are cut and spread while it is being filled."""
    with cluster.client() as client:
        client.admin.command("enableSharding", "loaded", primaryShard="shard0")
        client.admin.command("shardCollection", "loaded.plants", key={"name": 1})
        began = time.monotonic()

        def write(of):
            number = of
            # Names in no order, each once.
            while time.monotonic() - began < 60 and len(owners(client, "loaded.plants")) < 2:
                batch = [{"name": (number + 4 * n) * 0x9E3779B1 % (1 << 32), "pad": PAD} for n in range(200)]
                client.loaded.plants.insert_many(batch, ordered=False)
                number += 800

        writers = [threading.Thread(target=write, args=(of,)) for of in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        print(f"  spread after {time.monotonic() - began:.1f} s")
        client.admin.command("balancerStop")
        counts = owners(client, "loaded.plants")
        assert counts.keys() == {"shard0", "shard1"} and sum(counts.values()) >= 8, counts
        assert client.loaded.plants.count_documents({}) == sum(stored(cluster, "loaded.plants").values())
