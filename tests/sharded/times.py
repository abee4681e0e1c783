"""Which state of the cluster is the present one, whoever is asked."""

import time

import bson
from pymongo.write_concern import WriteConcern

from checks import alone, refused
from cluster import Cluster
from members import ReplicaSet

AHEAD = 60


def seen(client, session):
    return sorted(client.present.plants.distinct("_id", session=session))


@alone(shards=1, members=1, routers=2)
def snapshots_of_the_present(cluster):
    """A snapshot has what was acknowledged before, also through another router."""
    with cluster.client(0) as first, cluster.client(1) as second:
        plants = first.get_database("present", write_concern=WriteConcern("majority")).plants
        for n in range(10):
            # Its reader has the shard promise that nothing comes below a time ahead; that moves nobody's clock.
            with first.start_session(snapshot=True) as session:
                assert seen(first, session) == list(range(n))
                plants.insert_one({"_id": n})
                assert seen(first, session) == list(range(n)), "what was written later is in a snapshot"
            # This client has heard nothing of the other one, nor has its router.
            with second.start_session(snapshot=True) as session:
                assert seen(second, session) == list(range(n + 1))
        with first.start_session() as session:
            first.present.plants.find_one(session=session)
            ahead = session.operation_time.time - time.time()
            assert ahead < 1, f"the cluster's time is {ahead} s ahead"
            told = session.cluster_time
        # What a client has seen elsewhere, it tells.
        told = {**told, "clusterTime": bson.Timestamp(int(time.time()) + AHEAD, 1)}
        with first.start_session() as session:
            session.advance_cluster_time(told)
            plants.insert_one({"_id": 10}, session=session)
            assert session.operation_time.time >= told["clusterTime"].time
            told = session.cluster_time
        with second.start_session(snapshot=True) as session:
            session.advance_cluster_time(told)
            assert seen(second, session) == list(range(11))


@alone(shards=0, members=1, routers=2)
def the_first_shard(cluster):
    """A router that knew of no shard finds the first one as soon as it is there."""
    shard = ReplicaSet([{}], name="late", args=["--shardsvr"])
    try:
        shard.start()
        with cluster.client(0) as first, cluster.client(1) as second:
            refused(70, lambda: first.late.plants.insert_one({"_id": 1}))
            second.admin.command("addShard", Cluster.address(shard))
            first.late.plants.insert_one({"_id": 1})
            assert second.late.plants.find_one() == {"_id": 1}
    finally:
        for server in shard.servers:
            server.cleanup()
