"""A shard that has left the cluster, and its process with it: who has not heard of that finds out, and does not wait for nothing."""

from bson import MaxKey

from balancing import drop_at_once
from checks import alone, refused
from cluster import ReplicaSet, eventually
from scenarios import spread_evenly


def remove(client, shard):
    def is_removed():
        return client.admin.command("removeShard", shard)["state"] == "completed"

    eventually(is_removed, "the shard is removed")


@alone(shards=2, members=1, routers=2, balances=True)
def gone_shards_are_not_waited_for(cluster):
    for members in [cluster.config, *cluster.shards]:
        with members.direct(0) as direct:
            direct.admin.command({"setParameter": 1, "orphanCleanupDelaySecs": 0})
    with cluster.client(0) as client, cluster.client(1, retryReads=False, retryWrites=False) as stale:
        client.admin.command("enableSharding", "gone", primaryShard="shard1")
        client.admin.command("shardCollection", "gone.spread", key={"_id": "hashed"})
        for name in ("spread", "written", "plain"):
            stale.gone[name].insert_many([{"_id": n} for n in range(500)])
        client.admin.command("shardCollection", "gone.written", key={"_id": 1})
        assert stale.gone.spread.count_documents({}) == stale.gone.written.count_documents({}) == 500
        client.admin.command("startShardDraining", "shard1")
        eventually(lambda: client.admin.command("shardDrainingStatus", "shard1")["remaining"]["chunks"] == 0, "no chunks")
        client.admin.command("movePrimary", "gone", to="shard0")
        # What this router knows now is older than the directory, but not by more than the end of the draining.
        uuids = [each["uuid"] for each in client.config.collections.find({"_id": {"$regex": "^gone"}})]
        assert not client.config.chunks.count_documents({"uuid": {"$in": uuids}, "shard": "shard1"})
        remove(client, "shard1")
        cluster.shards[1].servers[0].kill()
        # Each is sent once: whoever waits for a member of that set is refused after twenty seconds.
        assert stale.gone.spread.count_documents({}) == 500
        stale.gone.written.insert_many([{"_id": n} for n in range(-5, 0)])
        stale.gone.plain.update_many({}, {"$set": {"n": 1}})
        assert stale.gone.plain.count_documents({"n": 1}) == 500
        assert stale.gone.written.count_documents({}) == 505
        assert [shard["_id"] for shard in stale.admin.command("listShards")["shards"]] == ["shard0"]
        stale.admin.command("listDatabases")
        client.admin.command("listDatabases")


@alone(shards=2, members=1, routers=1, balances=True)
def what_a_removed_shard_drops_is_no_event(cluster):
    """Remains are dropped on it before it may be added again; streams told that as drops of the cluster's collections, and ended."""
    with cluster.client() as client:
        spread_evenly(client, "removed.plants")
        drop_at_once(cluster)
        plants = client.removed.plants
        with client.removed.watch(max_await_time_ms=500) as stream:
            remove(client, "shard1")
            with cluster.shards[1].direct(0) as shard:
                assert "plants" in shard.removed.list_collection_names()
                shard.drop_database("removed")
            plants.insert_one({"_id": 1000, "k": 1000})
            assert next(stream)["operationType"] == "insert"
            assert stream.try_next() is None and stream.alive
            token = stream.resume_token
        client.admin.command("addShard", cluster.address(cluster.shards[1]))
        client.admin.command("moveRange", "removed.plants", min={"k": 50}, max={"k": MaxKey()}, toShard="shard1")
        with client.removed.watch(max_await_time_ms=500, resume_after=token) as stream:
            plants.insert_one({"_id": 1001, "k": 1001})
            assert next(stream)["documentKey"]["_id"] == 1001


def told(stream, last, count=0):
    """The kinds and keys of events up to that of the last insert, and what comes within a moment behind it, or until there are so many."""
    events, tries = [], 0
    while ("insert", last) not in events or tries < 3 or (len(events) < count and tries < 60):
        event = stream.try_next()
        tries += ("insert", last) in events
        if event is not None:
            events.append((event["operationType"], event.get("documentKey", {}).get("_id")))
    return events


def in_any_order(stream, last, *inserted):
    """The first events of a new shard may come behind later ones."""
    events = told(stream, last, len(inserted))
    assert sorted(map(str, events)) == sorted(str(("insert", key)) for key in inserted), events


@alone(shards=1)
def what_a_set_does_while_it_is_no_shard_is_no_event(cluster):
    """Before it is added, and after it is removed, what is written there is not the cluster's: for streams that are open, and for others."""
    with ReplicaSet([{}], name="shard1", args=["--shardsvr"]) as other, cluster.client() as client:
        plants = client.foreign.plants

        def by_itself(*keys, drops):
            with other.direct(0) as direct:
                direct.abroad.plants.insert_many([{"_id": key} for key in keys])
                if drops:
                    direct.drop_database("abroad")

        def within(name):
            client.admin.command("addShard", cluster.address(other))
            client.admin.command("enableSharding", name, primaryShard="shard1")
            client[name].plants.insert_one({"_id": name})

        def again():
            return client.watch(max_await_time_ms=300, start_at_operation_time=began)

        with client.start_session() as session:
            plants.insert_one({"_id": 0}, session=session)
            began = session.operation_time
        with client.watch(max_await_time_ms=300, start_at_operation_time=began) as stream:
            by_itself(100, drops=True)
            within("once")
            plants.insert_one({"_id": 1})
            with again() as another:
                assert told(another, 1) == [("insert", key) for key in (0, "once", 1)]
            client.admin.command("movePrimary", "once", to="shard0")
            remove(client, "shard1")
            by_itself(101, drops=False)
            plants.insert_one({"_id": 2})
            # Nothing was asked of this one since it was opened, and the router knows by now that the shard is none any more.
            client.admin.command("getShardMap")
            in_any_order(stream, 2, 0, "once", 1, 2)
            by_itself(102, 103, drops=True)
            plants.insert_one({"_id": 3})
            assert told(stream, 3) == [("insert", 3)]
            within("twice")
            plants.insert_one({"_id": 4})
            in_any_order(stream, 4, "twice", 4)
        # The shard's part is told for each time for which it was one.
        with again() as another:
            events = told(another, 4)
        assert events == [("insert", key) for key in (0, "once", 1, 2, 3, "twice", 4)], events


def known_and_removed(client, stale):
    """shard1 leaves, after both routers and shard0 have talked to it."""
    client.admin.command("enableSharding", "first", primaryShard="shard1")
    stale.first.plants.insert_one({"_id": 0})
    client.admin.command("movePrimary", "first", to="shard0")
    remove(client, "shard1")


@alone(shards=2, members=1, routers=2, balances=True)
def a_removed_shards_name_stays_its_sets(cluster):
    """Members that know a set by that name would ask it, and be told of transactions that another one has."""
    with ReplicaSet([{}], name="other", args=["--shardsvr"]) as other, cluster.client(0) as client, cluster.client(1) as stale:
        known_and_removed(client, stale)
        for router in (client, stale):
            refused(20, lambda: router.admin.command("addShard", cluster.address(other), name="shard1"))
        assert client.admin.command("addShard", cluster.address(other))["shardAdded"] == "other"
        # The set itself may be one again.
        assert stale.admin.command("addShard", cluster.address(cluster.shards[1]))["shardAdded"] == "shard1"
        client.admin.command("enableSharding", "second", primaryShard="shard1")
        client.second.plants.insert_one({"_id": 1})
        assert [document["_id"] for document in stale.second.plants.find()] == [1]
        client.drop_database("second")
        remove(client, "shard1")
        refused(20, lambda: client.admin.command("addShard", cluster.address(other), name="shard1"))


@alone(shards=2, members=1, routers=2, balances=True)
def a_set_that_was_made_anew_is_a_shard_again(cluster):
    """Of the same name, on other ports, while the first one's process is gone."""
    with ReplicaSet([{}], name="shard1", args=["--shardsvr"]) as anew, cluster.client(0) as client, cluster.client(1) as stale:
        known_and_removed(client, stale)
        cluster.shards[1].servers[0].kill()
        assert client.admin.command("addShard", cluster.address(anew))["shardAdded"] == "shard1"
        client.admin.command("enableSharding", "second", primaryShard="shard1")
        client.second.plants.insert_one({"_id": 1})
        stale.second.plants.insert_one({"_id": 2})
        client.admin.command("movePrimary", "second", to="shard0")
        assert sorted(document["_id"] for document in stale.second.plants.find()) == [1, 2]
