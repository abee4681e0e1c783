"""The pages on transitionFromDedicatedConfigServer and transitionToDedicatedConfigServer: config servers that are a shard."""

import os
import threading
import time

from bson import MaxKey
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import SecondaryPreferred

from checks import alone, refused
from cluster import eventually
from collections_ddl import check_whole, placements, shown
from moves import Writers, cleanup, move, no_moves

FROM, TO = "transitionFromDedicatedConfigServer", "transitionToDedicatedConfigServer"


class AsShard:
    """The config servers are a shard of the cluster, for its helpers, too."""

    def __init__(self, cluster):
        self.cluster = cluster

    def __enter__(self):
        with self.cluster.client() as client:
            assert client.admin.command(FROM)["ok"] == 1
        self.cluster.shards.append(self.cluster.config)

    def __exit__(self, *_):
        self.cluster.shards.remove(self.cluster.config)


@alone(shards=1, members=1, routers=2)
def config_servers_become_a_shard(cluster):
    with cluster.client(0) as client, cluster.config.direct(0) as config:
        admin = client.admin
        refused(70, lambda: admin.command(TO, 1))
        for command in (FROM, TO):
            refused(40415, lambda: admin.command(command, 1, hosts="x"))
            refused(13, lambda: client.config.command(command, 1))
            refused(59, lambda: config.admin.command(command, 1))
        for command in ("startT{}", "stopT{}", "commitT{}", "getT{}Status"):
            # Of a later version.
            refused(59, lambda: admin.command(command.format("ransitionToDedicatedConfigServer"), 1))
        refused(70, lambda: admin.command("enableSharding", "garden", primaryShard="config"))
        refused(96, lambda: admin.command("addShard", cluster.address(cluster.config), name="other"))
        assert len(admin.command("getShardMap")["map"]) == 2
        config.direct.notes.insert_one({"_id": 1})
        refused(96, lambda: admin.command(FROM, 1))
        config.drop_database("direct")
        for _ in range(2):
            assert admin.command(FROM, 1, writeConcern={"w": "majority"})["ok"] == 1
        shards = {shard["_id"]: shard for shard in admin.command("listShards")["shards"]}
        assert shards.keys() == {"config", "shard0"}, shards
        assert shards["config"]["host"] == cluster.address(cluster.config) and shards["config"]["state"] == 1, shards
        assert client.config.shards.find_one({"_id": "config"})["host"] == cluster.address(cluster.config)
        assert config.admin.command("hello")["configsvr"] == 2
        state = config.admin.command("shardingState")
        assert state["enabled"] and state["shardName"] == "config" and "clusterId" in state, state
        refused(20, lambda: admin.command("removeShard", "config"))
        refused(20, lambda: admin.command("startShardDraining", "config"))
        admin.command("flushRouterConfig")
        shown_map = admin.command("getShardMap")
        assert shown_map["map"].keys() == {"config", "shard0"} and len(shown_map["hosts"]) == 2, shown_map

        # Users' databases live there as on any shard, and the cluster's own are what they were.
        admin.command("enableSharding", "garden", primaryShard="config")
        admin.command("enableSharding", "field", primaryShard="shard0")
        client.garden.plants.insert_many([{"_id": at, "n": at} for at in range(100)])
        client.field.plants.insert_many([{"_id": at, "n": at} for at in range(10)])
        assert config.garden.plants.count_documents({}) == 100
        assert client.garden.plants.update_many({"n": {"$lt": 10}}, {"$set": {"small": True}}).modified_count == 10
        assert client.config.databases.find_one({"_id": "garden"})["primary"] == "config"
        listed = {entry["name"]: entry for entry in admin.command("listDatabases")["databases"]}
        assert listed.keys() == {"admin", "config", "field", "garden"}, listed.keys()
        assert {name: set(entry["shards"]) for name, entry in listed.items()} == {
            "admin": {"config"}, "config": {"config"}, "field": {"shard0"}, "garden": {"config"}}, listed
        assert client.garden.command("dbStats")["objects"] == 100
        assert client.config.command("dbStats")["collections"] == config.config.command("dbStats")["collections"]
        assert list(client.config.chunks.find()) == []
        joined = client.config.databases.aggregate([
            {"$lookup": {"from": "shards", "localField": "primary", "foreignField": "_id", "as": "of"}}, {"$unwind": "$of"}])
        assert {entry["of"]["_id"] for entry in joined} == {"config", "shard0"}
        own = [entry for entry in admin.aggregate([{"$currentOp": {"idleConnections": True}}]) if "opid" in entry]
        assert len({entry["opid"] for entry in own}) == len(own), "an operation is shown twice"

        # By another router, too, which has not heard of it yet.
        with cluster.client(1) as other:
            assert other.garden.plants.count_documents({}) == 100
        # A database goes there and back.
        admin.command("movePrimary", "field", to="config")
        assert config.field.plants.count_documents({}) == 10 == client.field.plants.count_documents({})
        admin.command("movePrimary", "field", to="shard0")
        assert "field" not in config.list_database_names() and client.field.plants.count_documents({}) == 10
        admin.command("moveCollection", "field.plants", toShard="config")
        assert config.field.plants.count_documents({}) == 10 == client.field.plants.count_documents({})
        admin.command("moveCollection", "field.plants", toShard="shard0")
        assert client.field.plants.count_documents({}) == 10
        client.drop_database("garden")
        assert "garden" not in config.list_database_names()


@alone(shards=1, members=1, routers=2)
def transactions_on_config_servers_and_shards(cluster):
    with cluster.client() as client, AsShard(cluster):
        client.admin.command("enableSharding", "bank", primaryShard="config")
        client.admin.command("shardCollection", "bank.accounts", key={"_id": 1})
        move(client, "bank.accounts", {"_id": 50}, {"_id": MaxKey()}, "shard0")
        accounts = client.bank.accounts
        accounts.insert_many([{"_id": at, "balance": 100} for at in range(100)])
        assert shown(cluster, "bank.accounts") == {"config": 50, "shard0": 50}
        stopped, sums = threading.Event(), []

        def read():
            with cluster.client(1) as other, other.start_session() as session:
                while not stopped.is_set():
                    with session.start_transaction(read_concern=ReadConcern("snapshot")):
                        sums.append(sum(at["balance"] for at in other.bank.accounts.find({}, session=session)))

        reader = threading.Thread(target=read)
        reader.start()
        with client.watch(max_await_time_ms=100) as stream, client.start_session() as session:
            try:
                for at in range(50):
                    with session.start_transaction():
                        accounts.update_one({"_id": at}, {"$inc": {"balance": -1 - at}}, session=session)
                        accounts.update_one({"_id": 99 - at}, {"$inc": {"balance": 1 + at}}, session=session)
            finally:
                stopped.set()
                reader.join()
            assert sums and set(sums) == {10000}, sums
            events = [next(stream) for _ in range(100)]
            assert sorted(event["documentKey"]["_id"] for event in events) == list(range(100))
            # A document goes to the other shard by its key, and nothing happens in what is aborted.
            session.start_transaction()
            accounts.update_one({"_id": 1}, {"$set": {"balance": 0}}, session=session)
            accounts.delete_one({"_id": 98}, session=session)
            session.abort_transaction()
        assert sum(at["balance"] for at in accounts.find()) == 10000
        client.admin.command("shardCollection", "bank.moved", key={"n": 1})
        move(client, "bank.moved", {"n": 0}, {"n": MaxKey()}, "shard0")
        client.bank.moved.insert_one({"_id": 1, "n": -1})
        with client.start_session() as session:
            with session.start_transaction():
                client.bank.moved.update_one({"n": -1}, {"$set": {"n": 1}}, session=session)
        assert shown(cluster, "bank.moved") == {"config": 0, "shard0": 1}
        assert client.bank.moved.update_one({"n": 1}, {"$set": {"n": -1}}).modified_count == 1
        assert shown(cluster, "bank.moved") == {"config": 1, "shard0": 0}
        with cluster.config.direct(0) as config:
            eventually(lambda: config.admin.command("serverStatus")["transactions"]["currentPrepared"] == 0, "it is settled")


@alone(shards=1, members=1, routers=2)
def streams_follow_config_servers(cluster):
    """A stream that was open before they were a shard tells what happens on them, and nothing of what they have for themselves."""
    with cluster.client() as client:
        client.field.plants.insert_one({"_id": 0})
        with client.watch(max_await_time_ms=100) as stream:
            with AsShard(cluster):
                client.admin.command("enableSharding", "garden", primaryShard="config")
                client.garden.plants.insert_many([{"_id": at} for at in range(5)])
                client.field.plants.insert_one({"_id": 1})
                seen = [next(stream) for _ in range(6)]
                told = sorted((event["ns"]["db"], event["documentKey"]["_id"]) for event in seen)
                assert told == [("field", 1), *(("garden", at) for at in range(5))], told
                client.admin.command("movePrimary", "garden", to="shard0")
                client.garden.plants.insert_one({"_id": 5})
                event = next(stream)
                assert (event["operationType"], event["documentKey"]) == ("insert", {"_id": 5}), event
                client.admin.command(TO, 1)
                assert client.admin.command(TO, 1)["state"] == "completed"
            client.garden.plants.insert_one({"_id": 6})
            client.field.plants.insert_one({"_id": 2})
            seen = [next(stream)["documentKey"]["_id"] for _ in range(2)]
            assert sorted(seen) == [2, 6], seen


@alone(shards=1, members=1, routers=2)
def config_servers_become_dedicated_again(cluster):
    with cluster.client(0) as client, cluster.config.direct(0) as config:
        admin = client.admin
        with AsShard(cluster):
            cleanup(cluster, 900)
            admin.command("enableSharding", "garden", primaryShard="config")
            client.garden.plants.create_index("name")
            for name in ("garden.plants", "garden.dropped", "garden.renamed", "garden.refined"):
                client.admin.command("shardCollection", name, key={"n": 1})
                move(client, name, {"n": 50}, {"n": MaxKey()}, "shard0")
            client.garden.plants.insert_many([{"_id": at, "n": at, "name": f"plant {at}"} for at in range(100)])
            client.garden.notes.insert_one({"_id": 1})
            admin.command("enableSharding", "field", primaryShard="shard0")
            client.field.plants.insert_one({"_id": 1})
            admin.command("moveCollection", "field.plants", toShard="config")
            cluster.config.servers[0].kill()
            cluster.config.servers[0].start()
            cluster.config.primary()
            assert client.garden.plants.count_documents({}) == 100
            check_whole(cluster, "garden.plants", {"n": 1})

            told = admin.command(TO, 1, writeConcern={"w": "majority"})
            assert (told["state"], told["shard"], told["dbsToMove"]) == ("started", "config", ["garden"]), told
            told = admin.command(TO, 1)
            assert told["state"] == "ongoing" and told["remaining"]["chunks"] == 4 and told["remaining"]["dbs"] == 1, told
            # Nothing new comes there.
            client.fresh.plants.insert_one({})
            assert client.config.databases.find_one({"_id": "fresh"})["primary"] == "shard0"
            refused(20, lambda: admin.command("removeShard", "shard0"))
            cleanup(cluster, 900)
            admin.command("balancerStart")
            eventually(lambda: admin.command(TO, 1)["remaining"]["chunks"] == 0, "the balancer moves the chunk")
            told = admin.command(TO, 1)
            assert told["state"] == "ongoing" and told["dbsToMove"] == ["garden"], told
            admin.command("movePrimary", "garden", to="shard0")
            told = admin.command(TO, 1)
            assert told["state"] == "ongoing" and told["collectionsToMove"] == ["field.plants"], told
            assert told["remaining"] == {"chunks": 0, "dbs": 0, "collectionsToMove": 1, "jumboChunks": 0}, told
            admin.command("moveCollection", "field.plants", toShard="shard0")
            told = admin.command(TO, 1)
            assert told["state"] == "pendingDataCleanup" and told["pendingRangeDeletions"] == 8, told
            assert told["msg"] == "waiting for data to be cleaned up", told
            assert "garden" in config.list_database_names()
            cleanup(cluster, 0)
            eventually(lambda: config.config.placements.count_documents({"leaving.0": {"$exists": True}}) == 0,
                       "what has left is removed")
            # Nobody may lose what a client has written there directly.
            refused(13388, lambda: config.garden.plants.insert_one({"_id": "by itself", "n": 1}))
            config.fresh.others.insert_one({"_id": "by itself"})
            told = admin.command(TO, 1)
            assert told["state"] == "pendingDataCleanup" and told["firstNonEmptyCollection"] == "fresh.others", told
            config.fresh.others.delete_many({})
            told = admin.command(TO, 1)
            assert (told["state"], told["shard"]) == ("completed", "config"), told
        refused(70, lambda: admin.command(TO, 1))
        assert sorted(config.list_database_names()) == ["admin", "config", "local"]
        assert config.config.placements.count_documents({}) == 0
        assert [shard["_id"] for shard in admin.command("listShards")["shards"]] == ["shard0"]
        assert config.admin.command("hello")["configsvr"] == 2
        assert client.garden.plants.count_documents({}) == 100 and client.garden.notes.count_documents({}) == 1
        refused(70, lambda: admin.command("moveRange", "garden.plants", min={"n": 0}, toShard="config"))
        # What they have owned once is nobody's business any more.
        client.garden.command("drop", "dropped", maxTimeMS=10000)
        # Once more, with an index of meanwhile.
        client.garden.plants.create_index("since")
        with AsShard(cluster):
            move(client, "garden.plants", {"n": 0}, {"n": 50}, "config")
            client.garden.renamed.rename("other", maxTimeMS=10000)
            client.garden.refined.create_index([("n", 1), ("m", 1)])
            admin.command("refineCollectionShardKey", "garden.refined", key={"n": 1, "m": 1}, maxTimeMS=10000)
            for name in ("other", "refined"):
                client.garden[name].insert_one({"n": 60, "m": 1})
                assert client.garden[name].count_documents({}) == 1
            check_whole(cluster, "garden.refined", {"n": 1, "m": 1})
            assert config.garden.list_collection_names() == ["plants"]
            assert shown(cluster, "garden.plants") == {"config": 50, "shard0": 50}
            assert config.garden.plants.index_information().keys() == {"_id_", "n_1", "name_1", "since_1"}
            check_whole(cluster, "garden.plants", {"n": 1})
            client.garden.plants.drop()
            assert config.garden.list_collection_names() == []


@alone(shards=1, members=1, routers=1)
def what_config_servers_have_is_the_first_shard_s(cluster):
    """A cluster of nothing but config servers: what a client wrote there directly is the cluster's."""
    with cluster.client() as client, cluster.config.direct(0) as config:
        config.config.shards.delete_many({})
        config.garden.plants.insert_one({"_id": 1})
        client.admin.command(FROM, 1)
        client.admin.command("flushRouterConfig")
        assert client.garden.plants.find_one() == {"_id": 1}
        refused(20, lambda: client.admin.command(TO, 1))
        client.admin.command("shardCollection", "garden.plants", key={"_id": 1})
        client.garden.plants.insert_one({"_id": 2})
        assert client.garden.plants.count_documents({}) == 2


@alone(shards=1, members=1, routers=2)
def config_servers_take_and_give_ranges_beside_writers(cluster):
    name, keys = "beside.plants", 100
    with cluster.client() as client, AsShard(cluster):
        cleanup(cluster, 0)
        client.admin.command("enableSharding", "beside", primaryShard="shard0")
        client.admin.command("shardCollection", name, key={"n": 1})
        client.beside.plants.insert_many([{"_id": n, "n": n, "text": "x" * 1000} for n in range(keys)])
        with Writers(cluster, name, keys) as writers:
            for at in range(12):
                low = (at % 4) * 25
                to = "config" if (at // 4) % 2 == 0 else "shard0"
                move(client, name, {"n": low}, {"n": low + 25}, to)
        no_moves(cluster)
        writers.judge(client)
        check_whole(cluster, name, {"n": 1})
        assert client.config.changelog.count_documents({"what": "moveChunk.commit", "ns": name}) >= 12
        told = client.beside.command("checkMetadataConsistency")
        assert told["cursor"]["firstBatch"] == [], told
        client.admin.command("reshardCollection", name, key={"_id": "hashed"})
        writers.judge(client)
        assert all(count > 0 for count in shown(cluster, name).values()), shown(cluster, name)


@alone(shards=1, members=1, routers=1)
def config_servers_die_as_donor_and_recipient(cluster):
    """They are killed, or the other shard is, in each phase of moves to and from them: each document is there once."""
    name, total = "deaths.plants", 300
    with cluster.client() as client, AsShard(cluster):
        client.admin.command("enableSharding", "deaths", primaryShard="shard0")
        client.admin.command("shardCollection", name, key={"n": 1})
        client.deaths.plants.insert_many([{"_id": n, "n": n} for n in range(total)])
        move(client, name, {"n": 150}, {"n": MaxKey()}, "config")
        there = {"shard0": 150, "config": 150}

        def run(command, results):
            try:
                results.append(client.admin.command(command))
            except PyMongoError as error:
                results.append(error)

        phases = ("receiveRange", "finishRange", "executing", "committing")
        rounds = [(phase, to, cluster.config) for phase in phases for to in ("config", "shard0")]
        rounds += [("executing", "config", cluster.shards[0]), ("committing", "shard0", cluster.shards[0])]
        if not os.environ.get("SHEAF_ALL_DEATHS"):
            # A round takes fifteen seconds.
            rounds = [rounds[4], rounds[7], rounds[8]]
        for at, (phase, to, victim) in enumerate(rounds):
            low = at * 10 if to == "config" else 150 + at * 10
            command = {"moveRange": name, "min": {"n": low}, "max": {"n": low + 10}, "toShard": to}
            with cluster.config.direct(0) as config:
                point = {"configureFailPoint": "hangBeforeDDLPhase", "mode": "alwaysOn", "data": {"phase": phase}}
                config.admin.command(point)
                entered, results = config.admin.command(point)["count"], []
                thread = threading.Thread(target=run, args=(command, results))
                thread.start()
                eventually(lambda: config.admin.command(point)["count"] > entered or results, f"{phase} is reached")
                assert not results, (phase, results)
                victim.servers[0].kill()
                victim.servers[0].start()
                victim.primary()
                if victim is not cluster.config:
                    config.admin.command("configureFailPoint", "hangBeforeDDLPhase", mode="off")
            thread.join(120)
            assert not thread.is_alive() and results, (phase, to)
            no_moves(cluster)
            cleanup(cluster, 0)
            move(client, name, {"n": low}, {"n": low + 10}, to)
            check_whole(cluster, name, {"n": 1})
            other = "shard0" if to == "config" else "config"
            there[to] += 10
            there[other] -= 10
            assert shown(cluster, name) == there, (phase, to, there, shown(cluster, name))


@alone(shards=1, members=1, routers=2, configs=3)
def config_servers_elect_beside_writers(cluster):
    """The config servers' primary is killed while it gives ranges away, takes them, and is written to."""
    name, keys = "elected.plants", 100
    with cluster.client() as client, AsShard(cluster):
        cleanup(cluster, 0)
        client.admin.command("enableSharding", "elected", primaryShard="config")
        client.admin.command("shardCollection", name, key={"n": 1})
        client.elected.plants.insert_many([{"_id": n, "n": n, "text": "x" * 1000} for n in range(keys)])
        move(client, name, {"n": 50}, {"n": MaxKey()}, "shard0")
        followers = client.elected.get_collection("plants", read_preference=SecondaryPreferred(), read_concern=ReadConcern("majority"))
        assert followers.count_documents({}) == keys and followers.find_one({"_id": 1})["n"] == 1
        with Writers(cluster, name, keys) as writers:
            for at, (low, to) in enumerate([(0, "shard0"), (50, "config")]):
                moved = threading.Thread(
                    target=lambda: move(client, name, {"n": low}, {"n": low + 50}, to, patience=120), daemon=True)
                moved.start()
                time.sleep(0.1 * at)
                primary = cluster.config.primary()
                cluster.config.servers[primary].kill()
                moved.join(150)
                assert not moved.is_alive(), at
                cluster.config.servers[primary].start()
                cleanup(cluster, 0)
        no_moves(cluster)
        writers.judge(client)
        check_whole(cluster, name, {"n": 1})
