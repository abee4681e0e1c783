"""Time-series collections are sharded, moved and get other keys while those who do it are killed."""

import random
import threading
import time

from bson import MinKey
from pymongo.errors import PyMongoError

from checks import alone
from cluster import eventually
from moves import cleanup, move, no_moves
from resharding import Running, no_rubbish

from .measurements import minute, on_shards

NAME = "measureddeaths.x"


def hang(cluster, op, phase):
    """Has the conductor wait before a phase; gives how often it has come there."""
    with cluster.config.direct(cluster.config.primary()) as config:
        point = {"configureFailPoint": "hangBeforeDDLPhase", "mode": "alwaysOn", "data": {"op": op, "phase": phase}}
        config.admin.command(point)
        return config.admin.command(point)["count"]


class Sources:
    """Two who measure, through a router each, and note what was acknowledged."""

    def __init__(self, cluster):
        self.cluster, self.stopped = cluster, threading.Event()
        self.sure, self.unsure = [[], []], [[], []]
        self.threads = [threading.Thread(target=self.run, args=(router,)) for router in (0, 1)]

    def run(self, router):
        with self.cluster.client(router, retryWrites=True) as client:
            at = 0
            while not self.stopped.is_set():
                many = [{"t": minute((at + n) % 120), "m": n % 9, "v": f"{router}.{at + n}"} for n in range(18)]
                values = [one["v"] for one in many]
                try:
                    client.measureddeaths.x.insert_many(many, ordered=False)
                    self.sure[router] += values
                except PyMongoError:
                    self.unsure[router] += values
                at += len(many)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive(), "a source waits for ever"

    def go_on(self):
        reached = [len(all_) for all_ in self.sure]
        eventually(lambda: all(len(all_) > before for all_, before in zip(self.sure, reached)), "both measure")


@alone(shards=2, members=1, routers=2)
def measurements_beside_deaths(cluster):
    """Each measurement that was acknowledged is there once, whoever is killed meanwhile: a shard, the config server, a router."""
    servers = [cluster.shards[0].servers[0], cluster.config.servers[0], cluster.routers[1], cluster.shards[1].servers[0]]
    ways = [
        ("shardCollection", "placing", {"shardCollection": NAME, "key": {"m": 1}}, 0),
        ("shardCollection", "entering", {"shardCollection": NAME, "key": {"m": 1}}, 1),
        ("reshard", "copying", {"reshardCollection": NAME, "key": {"m": 1, "t": 1}}, 3),
        ("reshard", "closing", {"reshardCollection": NAME, "key": {"m": "hashed"}}, 2),
        ("reshard", "opening", {"reshardCollection": NAME, "key": {"m": 1}}, 0),
        ("refine", "entering", {"refineCollectionShardKey": NAME, "key": {"m": 1, "t": 1}}, 1),
    ]

    def die(victim):
        victim.kill()
        victim.start()
        for members in (cluster.config, *cluster.shards):
            members.primary()

    with cluster.client(0) as client:
        client.admin.command("enableSharding", "measureddeaths", primaryShard="shard0")
        x = client.measureddeaths.create_collection("x", timeseries={"timeField": "t", "metaField": "m"})
        x.insert_one({"t": minute(0), "m": 0, "v": "first"})
        with Sources(cluster) as sources:
            for op, phase, command, victim in ways:
                sources.go_on()
                entered = hang(cluster, op, phase)
                running = Running(cluster, command)
                eventually(lambda: hang(cluster, op, phase) > entered or running.result, f"{phase} is reached")
                # What was begun to the end before has nothing left to do.
                if running.result is None:
                    die(servers[victim])
                with cluster.config.direct(cluster.config.primary()) as config:
                    config.admin.command("configureFailPoint", "hangBeforeDDLPhase", mode="off")
                running.join()
                eventually(lambda: client.config.ddl.count_documents({}) == 0, "it is over")
                # What was taken back, or whose asker was killed, is asked for again.
                client.admin.command(command)
            buckets = "measureddeaths.system.buckets.x"
            cleanup(cluster, 0)
            low = {"meta": 4, "control.min.t": MinKey()}
            # Resharding may have cut there.
            if not client.config.chunks.count_documents({"min": low}):
                client.admin.command("split", buckets, middle=low)
            for turn, victim in enumerate(servers):
                cleanup(cluster, 0)
                sources.go_on()
                owner = next(client.config.chunks.find({"min": low}))["shard"]
                to = "shard1" if owner == "shard0" else "shard0"
                running = Running(cluster, {"moveRange": buckets, "min": low, "toShard": to})
                time.sleep(random.Random(turn).random() / 5)
                die(victim)
                running.join()
                no_moves(cluster)
            cleanup(cluster, 0)
            owner = next(client.config.chunks.find({"min": low}))["shard"]
            chunk = next(client.config.chunks.find({"min": low}))
            move(client, buckets, low, chunk["max"], "shard1" if owner == "shard0" else "shard0")
        found = [one["v"] for one in x.find({}, {"v": 1})]
        assert len(found) == len(set(found)), "a measurement is there twice"
        sure = {"first", *sources.sure[0], *sources.sure[1]}
        assert sure <= set(found), sorted(sure - set(found))[:10]
        assert set(found) <= sure | {*sources.unsure[0], *sources.unsure[1]}
        assert sum(on_shards(cluster, "measureddeaths")) == len(found)
        no_rubbish(cluster, buckets)
