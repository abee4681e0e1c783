"""Processes that were started with the wrong flags: each says what is wrong, and nobody waits for it in silence."""

import json
import time

from checks import alone, check, refused
from cluster import Router, eventually, neighbours
from scenarios import spread_evenly


def said(server, number):
    return [line for line in (json.loads(line) for line in server.log_tail(400).splitlines() if line.startswith("{")) if line.get("id") == number]


@alone(shards=2, members=1, routers=1)
def a_shard_without_its_flag(cluster):
    """It warns at its start as mongod does, and what the conductor asks of it fails."""
    server = cluster.shards[1].servers[0]
    with cluster.client() as client:
        spread_evenly(client, "flags.plants")
        client.admin.command("enableSharding", "flags1", primaryShard="shard1")
        client.flags1.plants.insert_one({"_id": 1})
        server.stop()
        args = server.args
        server.args = [arg for arg in args if arg != "--shardsvr"]
        server.start()
        eventually(lambda: said(server, 22074), "a warning")
        warned = said(server, 22074)
        assert warned[0]["s"] == "W" and warned[0]["attr"]["shardIdentityDocument"]["shardName"] == "shard1", warned
        with cluster.shards[1].direct(0) as shard:
            assert "shardIdentity" in str(shard.admin.command("getLog", "startupWarnings"))
        began = time.monotonic()
        error = refused(193, lambda: client.admin.command("shardCollection", "flags1.plants", key={"_id": 1}))
        assert "--shardsvr" in str(error) and time.monotonic() - began < 15, error
        server.stop()
        server.args = args
        server.start()
        client.admin.command("shardCollection", "flags1.plants", key={"_id": 1})
        assert client.flags.plants.count_documents({}) == 100


@check
def a_router_with_wrong_config_servers(cluster):
    port, = neighbours(1)
    shard = cluster.address(cluster.shards[0])
    wrong = {
        f"config/127.0.0.1:{port}": "does not answer",
        shard: "was not started with --configsvr",
        "other/" + shard.split("/")[1]: "is a member of the set 'shard0'",
    }
    for configdb, reason in wrong.items():
        router = Router(configdb, neighbours(1)[0])
        router.start()
        try:
            eventually(lambda: said(router, 99000062), "a warning")
            warned = said(router, 99000062)
            assert warned[0]["s"] == "W" and reason in warned[0]["attr"]["reason"], warned
        finally:
            router.cleanup()


@check
def what_cannot_be_says_why(cluster):
    with cluster.client() as client:
        client.why.plants.insert_one({"_id": 1})
        client.why.create_collection("tall", viewOn="plants", pipeline=[])
        error = refused(166, lambda: client.admin.command("moveCollection", "why.tall", toShard="shard1"))
        assert "why.tall is a view" in str(error), error
        spread_evenly(client, "whyback.plants")
        error = refused(200, lambda: [
            client.admin.command("moveChunk", "whyback.plants", find={"k": 60}, to="shard0"),
            client.admin.command("moveChunk", "whyback.plants", find={"k": 60}, to="shard1")])
        assert "orphanCleanupDelaySecs" in str(error) and "whyback.plants" in str(error), error
        error = refused(20, lambda: client.admin.command("addShard", cluster.address(cluster.shards[1]), name="another"))
        assert "named shard1" in str(error), error
