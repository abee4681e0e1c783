"""Sharded time-series collections get another shard key or place, and zones."""

import threading

from bson import MaxKey, MinKey
from checks import check, refused
from cluster import eventually

from .measurements import cut, measured, minute, on_shards


def entry_of(client, db):
    return client.config.collections.find_one({"_id": f"{db}.system.buckets.x"})


def all_of(x):
    return sorted(found["v"] for found in x.find({}, {"v": 1}))


@check
def another_key_of_measurements(cluster):
    with cluster.client() as client, cluster.client(1) as other:
        x = measured(client, "measuredreshard", {"m.a": 1})
        reshard = lambda key, **more: client.admin.command("reshardCollection", "measuredreshard.x", key=key, **more)  # noqa: E731
        cut(client, "measuredreshard", {"meta.a": 5})
        x.insert_many([{"t": minute(at * 7), "m": {"a": at % 10, "b": at % 4}, "v": at} for at in range(200)])
        assert len(all_of(other.measuredreshard.x)) == 200
        for key, code in [({"_id": 1}, 5914001), ({"v": 1}, 5914001), ({"t": 1, "m": 1}, 5914000), ({"t": "hashed"}, 880031)]:
            refused(code, lambda: reshard(key))
        fields = entry_of(client, "measuredreshard")["timeseriesFields"]
        written = 200
        for key, on_buckets, index in [
            ({"t": 1}, {"control.min.t": 1}, {"t": 1}),
            ({"m.b": "hashed"}, {"meta.b": "hashed"}, {"m.b": "hashed"}),
            ({"m": 1}, {"meta": 1}, {"m": 1, "t": 1}),
            ({"m.b": 1, "t": 1}, {"meta.b": 1, "control.min.t": 1}, {"m.b": 1, "t": 1}),
        ]:
            before = entry_of(client, "measuredreshard")["uuid"]
            reshard(key, numInitialChunks=2)
            entry = entry_of(client, "measuredreshard")
            assert entry["key"] == on_buckets and entry["uuid"] != before and entry["timeseriesFields"] == fields, entry
            assert index in [found["key"] for found in x.list_indexes()], list(x.list_indexes())
            assert all_of(x) == list(range(written))
            # A router that has not heard of it.
            other.measuredreshard.x.insert_many([{"t": minute(at * 7), "m": {"a": at % 10, "b": at % 4}, "v": at}
                                                 for at in range(written, written + 50)])
            written += 50
            assert all_of(x) == all_of(other.measuredreshard.x) == list(range(written))
            assert sum(on_shards(cluster, "measuredreshard")) == written
            assert x.count_documents({"m.b": 3}) == written // 4 and x.count_documents({"t": minute(70)}) == 1
        assert other.measuredreshard.x.delete_many({"m.b": 3}).deleted_count == written // 4
        other.measuredreshard.x.drop()
        assert entry_of(client, "measuredreshard") is None


@check
def another_key_beside_writers(cluster):
    """What two routers write while the buckets get other keys is there once."""
    with cluster.client() as client:
        x = measured(client, "measuredbeside", {"m": 1})
        cut(client, "measuredbeside", {"meta": 4})
        stop, written = threading.Event(), [[], []]

        def write(router):
            with cluster.client(router, retryWrites=True) as own:
                at = 0
                while not stop.is_set():
                    many = [{"t": minute((at + n) % 300), "m": n % 9, "v": f"{router}.{at + n}"} for n in range(30)]
                    own.measuredbeside.x.insert_many(many, ordered=at % 60 == 0)
                    written[router] += [one["v"] for one in many]
                    at += 30

        threads = [threading.Thread(target=write, args=(router,)) for router in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            for key in ({"m": 1, "t": 1}, {"m": "hashed"}):
                reached = [len(all_) for all_ in written]
                eventually(lambda: all(len(all_) > before for all_, before in zip(written, reached)), "both write")
                client.admin.command("reshardCollection", "measuredbeside.x", key=key)
            client.admin.command("unshardCollection", "measuredbeside.x", toShard="shard1")
            reached = [len(all_) for all_ in written]
            eventually(lambda: all(len(all_) > before + 60 for all_, before in zip(written, reached)), "both still write")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        expected = sorted(written[0] + written[1])
        assert all_of(x) == expected
        assert on_shards(cluster, "measuredbeside") == [0, len(expected)]


@check
def longer_keys_of_measurements(cluster):
    with cluster.client() as client, cluster.client(1) as other:
        refine = lambda name, key: client.admin.command("refineCollectionShardKey", f"measuredrefine.{name}", key=key)  # noqa: E731
        for of, (name, longer) in enumerate([("x", {"m": 1, "t": 1}), ("x", {"meta": 1, "control.min.t": 1}),
                                             ("system.buckets.x", {"meta": 1, "control.min.t": 1})]):
            if of == 0:
                x = measured(client, "measuredrefine", {"m": 1})
            else:
                timeseries = {"timeField": "t", "metaField": "m"}
                client.admin.command("shardCollection", "measuredrefine.x", key={"m": 1}, timeseries=timeseries)
            cut(client, "measuredrefine", {"meta": 5})
            x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(100)])
            assert len(all_of(other.measuredrefine.x)) == 100
            refused(5914001, lambda: refine("x", {"m": 1, "v": 1}))
            refused(72, lambda: refine("x", {"t": 1}))
            refine(name, longer)
            refine(name, longer)
            entry = entry_of(client, "measuredrefine")
            assert entry["key"] == {"meta": 1, "control.min.t": 1} and entry["timeseriesFields"]["timeField"] == "t", entry
            cut(client, "measuredrefine", {"meta": 3, "control.min.t": minute(60)})
            other.measuredrefine.x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(100, 200)])
            assert all_of(x) == all_of(other.measuredrefine.x) == list(range(200))
            assert x.count_documents({"m": 3, "t": {"$gte": minute(60)}}) == 14
            x.drop()


@check
def another_place_of_measurements(cluster):
    with cluster.client() as client, cluster.client(1) as other:
        move = lambda to: client.admin.command("moveCollection", "measuredplace.x", toShard=to)  # noqa: E731
        client.admin.command("enableSharding", "measuredplace", primaryShard="shard0")
        db = client.measuredplace
        x = db.create_collection("x", timeseries={"timeField": "t", "metaField": "m"})
        x.create_index([("v", 1)])
        x.insert_many([{"t": minute(at), "m": at % 5, "v": at} for at in range(100)])
        assert len(all_of(other.measuredplace.x)) == 100
        refused(26, lambda: client.admin.command("unshardCollection", "measuredplace.x"))
        move("shard1")
        entry = entry_of(client, "measuredplace")
        assert entry["unsplittable"] and entry["key"] == {"_id": 1} and entry["timeseriesFields"]["metaField"] == "m", entry
        assert on_shards(cluster, "measuredplace") == [0, 100]
        written = 100
        for step in range(4):
            other.measuredplace.x.insert_many([{"t": minute(at), "m": at % 5, "v": at} for at in range(written, written + 20)])
            x.insert_one({"t": minute(0), "m": 1, "v": written + 20})
            written += 21
            assert all_of(x) == all_of(other.measuredplace.x) == list(range(written))
            assert {"v_1", "m_1_t_1"} <= {found["name"] for found in x.list_indexes()}
            assert other.measuredplace.x.update_many({"m": 3}, {"$set": {"m": 3}}).matched_count > 0
            listed = next(other.measuredplace.list_collections(filter={"name": "x"}))
            assert listed["type"] == "timeseries", listed
            if step == 0:
                move("shard1")
                db.command("collMod", "x", timeseries={"granularity": "minutes"})
            elif step == 1:
                move("shard0")
                assert on_shards(cluster, "measuredplace") == [written, 0]
            elif step == 2:
                # Sharded where it is, spread, and on one shard again.
                reply = client.admin.command("shardCollection", "measuredplace.x", key={"m": 1})
                assert reply["collectionsharded"] == "measuredplace.x", reply
                assert entry_of(client, "measuredplace")["timeseriesFields"]["granularity"] == "minutes"
                refused(26, lambda: move("shard1"))
                cut(client, "measuredplace", {"meta": 2})
                assert all(on_shards(cluster, "measuredplace"))
                client.admin.command("unshardCollection", "measuredplace.x", toShard="shard1")
                refused(118, lambda: client.admin.command("unshardCollection", "measuredplace.x"))
        assert on_shards(cluster, "measuredplace") == [0, written]
        assert x.delete_many({"m": 1}).deleted_count > 0
        other.measuredplace.x.drop()
        assert entry_of(client, "measuredplace") is None
        assert not {"x", "system.buckets.x"} & set(db.list_collection_names())
        x.insert_one({"plain": True})
        assert other.measuredplace.x.find_one()["plain"]


@check
def buckets_are_told_to_who_does_not_know_of_them(cluster):
    """A router that takes measurements for a plain collection is corrected by the shard, whatever it was asked to do to them."""
    def stats(db):
        return db.command("collStats", "x")["timeseries"]["bucketCount"]

    def validated(db):
        return sum(each["nrecords"] for each in db.command("validate", "x")["raw"].values())

    def indexes(db):
        with cluster.shards[1].direct(0) as shard:
            return {found["name"]: found for found in shard[db.name]["system.buckets.x"].list_indexes()}

    def spans(db):
        return entry_of(db.client, db.name)["timeseriesFields"]["granularity"]

    minutes = {"granularity": "minutes"}
    hide = {"keyPattern": {"v": 1}, "hidden": True}
    with cluster.client() as client, cluster.client(1) as other:
        for at, (run, is_done) in enumerate([
            (lambda db: db.command("collMod", "x", timeseries=minutes), lambda db, _: spans(db) == "minutes"),
            (lambda db: db.command("collMod", "x", index=hide), lambda db, _: indexes(db)["v_1"]["hidden"]),
            (lambda db: db.x.create_index("w"), lambda db, _: "w_1" in indexes(db)),
            (lambda db: db.x.drop_index("v_1"), lambda db, _: "v_1" not in indexes(db)),
            (stats, lambda _, answered: answered > 0),
            (validated, lambda _, answered: answered > 0),
        ]):
            name = f"measuredtold{at}"
            client.admin.command("enableSharding", name, primaryShard="shard0")
            x = client[name].create_collection("x", timeseries={"timeField": "t", "metaField": "m"})
            x.create_index("v")
            x.insert_many([{"t": minute(n), "m": n % 5, "v": n} for n in range(20)])
            assert "v_1" in {found["name"] for found in other[name].x.list_indexes()}
            client.admin.command("moveCollection", f"{name}.x", toShard="shard1")
            answered = run(other[name])
            assert is_done(client[name], answered), (at, answered)
            client.drop_database(name)


@check
def zones_of_measurements(cluster):
    """Buckets reach beyond the time at which they begin: no zone ends at one."""
    with cluster.client() as client:
        admin = client.admin
        measured(client, "measuredzones", {"m": 1, "t": 1})
        buckets = "measuredzones.system.buckets.x"
        admin.command("addShardToZone", "shard1", zone="measured")
        zone = lambda low, high: admin.command("updateZoneKeyRange", buckets, min=low, max=high, zone="measured")  # noqa: E731
        try:
            low = {"meta": 5, "control.min.t": MinKey()}
            refused(72, lambda: zone(low, {"meta": 5, "control.min.t": minute(5)}))
            refused(72, lambda: zone({"meta": 5, "control.min.t": minute(5)}, {"meta": 6, "control.min.t": MinKey()}))
            refused(72, lambda: zone(low, {"meta": 5, "control.min.t": MaxKey()}))
            zone({"meta": 5}, {"meta": 7})
            zone({"meta": 8}, {"meta": MaxKey()})
            refused(72, lambda: admin.command("reshardCollection", "measuredzones.x", key={"t": 1}, zones=[
                {"zone": "measured", "min": {"control.min.t": minute(0)}, "max": {"control.min.t": MaxKey()}}]))
            admin.command("reshardCollection", "measuredzones.x", key={"m": 1}, zones=[
                {"zone": "measured", "min": {"meta": 4}, "max": {"meta": 6}}])
            tags = list(client.config.tags.find({"ns": buckets}))
            assert [(tag["min"], tag["max"]) for tag in tags] == [({"meta": 4}, {"meta": 6})], tags
            x = client.measuredzones.x
            x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(100)])
            with cluster.shards[1].direct(0) as shard:
                found = {bucket["meta"] for bucket in shard.measuredzones["system.buckets.x"].find()}
            assert {4, 5} <= found, found
            assert all_of(x) == list(range(100))
            x.drop()
        finally:
            for tag in client.config.tags.find({"ns": buckets}):
                admin.command("updateZoneKeyRange", buckets, min=tag["min"], max=tag["max"], zone=None)
            admin.command("removeShardFromZone", "shard1", zone="measured")


@check
def nobody_replaces_what_is_sharded(cluster):
    """`$out` names a collection that is sharded, which not every router has heard."""
    with cluster.client() as client, cluster.client(1) as other:
        client.admin.command("enableSharding", "measuredout", primaryShard="shard0")
        db, fields = client.measuredout, {"timeField": "t", "metaField": "m", "granularity": "seconds"}
        x = db.create_collection("x", timeseries=fields)
        x.insert_many([{"t": minute(at), "m": at % 5, "v": at} for at in range(50)])
        db.plain.insert_many([{"t": minute(at), "m": at % 5, "v": -at} for at in range(10)])
        db.plants.insert_many([{"_id": at, "v": at} for at in range(50)])
        db.spread.insert_many([{"_id": at, "t": minute(at), "m": at} for at in range(10)])
        client.admin.command("shardCollection", "measuredout.spread", key={"_id": 1})
        client.admin.command("split", "measuredout.spread", middle={"_id": 5})
        client.admin.command("moveChunk", "measuredout.spread", find={"_id": 5}, to="shard1")
        # The other router knows them as collections that are not sharded.
        assert list(other.measuredout.x.list_indexes()) and other.measuredout.plants.count_documents({}) == 50
        list(other.measuredout.plain.aggregate([{"$limit": 5}, {"$out": "x"}]))
        assert sorted(found["v"] for found in x.find()) == [-4, -3, -2, -1, 0]
        x.insert_many([{"t": minute(at), "m": at % 5, "v": at} for at in range(1, 50)])
        client.admin.command("shardCollection", "measuredout.x", key={"m": 1})
        client.admin.command("shardCollection", "measuredout.plants", key={"_id": 1})
        measurements = {"$out": {"db": "measuredout", "coll": "x", "timeseries": fields}}
        for source in ("plain", "spread", "x"):
            for router in (other, client):
                for stage in ({"$out": "x"}, measurements, {"$out": "plants"}):
                    refused(28769, lambda: list(router.measuredout[source].aggregate([stage])))
        # What is neither sharded nor on one shard with the target comes together on the router.
        whole = db.create_collection("whole", timeseries=fields)
        whole.insert_many([{"t": minute(at), "m": 1, "v": at} for at in range(10)])
        joined = [{"$lookup": {"from": "spread", "localField": "v", "foreignField": "_id", "as": "s"}}, {"$group": {"_id": "$m", "n": {"$sum": 1}}}]
        assert [group["n"] for group in whole.aggregate(joined)] == [10]
        assert all_of(x) == list(range(-4, 50)) and db.plants.count_documents({"v": {"$gte": 0}}) == 50
        assert not [name for name in db.list_collection_names() if name.startswith("tmp.")]


@check
def streams_of_measurements(cluster):
    """A view has no stream; a database's shows nothing of what is done to buckets, nor of where these go."""
    with cluster.client() as client:
        client.admin.command("enableSharding", "measuredstream", primaryShard="shard0")
        db = client.measuredstream
        x = db.create_collection("x", timeseries={"timeField": "t", "metaField": "m"})
        refused(166, lambda: x.watch())
        with db.watch() as stream, client.watch() as all_:
            x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(50)])
            client.admin.command("shardCollection", "measuredstream.x", key={"m": 1})
            cut(client, "measuredstream", {"meta": 5})
            x.insert_many([{"t": minute(at), "m": at % 10, "v": at} for at in range(50, 100)])
            assert x.update_many({"m": 7}, {"$set": {"m": 7}}).matched_count > 0
            client.admin.command("reshardCollection", "measuredstream.x", key={"t": 1}, numInitialChunks=2)
            x.insert_one({"t": minute(3), "m": 3, "v": 100})
            x.delete_many({"m": 3})
            client.admin.command("unshardCollection", "measuredstream.x", toShard="shard1")
            db.plain.insert_one({"_id": 1})
            for watching in (stream, all_):
                event = watching.next()
                assert (event["operationType"], event["ns"]["coll"]) == ("insert", "plain"), event
        x.drop()
