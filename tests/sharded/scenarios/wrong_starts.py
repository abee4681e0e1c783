"""Processes that were started with the wrong flags: each says what is wrong, and nobody waits for it in silence."""

import json
import socket
import time

from checks import alone, check, refused
from cluster import ReplicaSet, Router, eventually, neighbours
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
        f"config/127.0.0.1:{port}": "cannot be reached (Connection refused",
        "config/nosuch.invalid:27019": "Could not find address for nosuch.invalid:27019",
        shard: "was not started with --configsvr",
        "other/" + shard.split("/")[1]: "is a member of the set 'shard0'",
    }
    routers = [Router(configdb, port) for configdb, port in zip(wrong, neighbours(len(wrong)))]
    try:
        for router in routers:
            router.start()
        for router, reason in zip(routers, wrong.values()):
            eventually(lambda router=router: said(router, 99000062), "a warning")
            warned = said(router, 99000062)
            assert warned[0]["s"] == "W" and reason in warned[0]["attr"]["reason"], warned
    finally:
        for router in routers:
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


@check
def names_without_an_address(cluster):
    """Whose name leads to no address is not taken for somebody who is dead."""
    unknown = "Could not find address for nosuch.invalid:27018"
    with cluster.client(0) as client:
        error = refused(96, lambda: client.admin.command("addShard", "shard9/nosuch.invalid:27018"))
        assert unknown in str(error), error
    members = ReplicaSet([{}, {}], name="named")
    try:
        for server in members.servers:
            server.start()
        with members.direct(0) as member:
            # Names of the one machine alone would not go with one of another.
            hosts = [f"{socket.gethostname()}:{members.servers[0].port}", "nosuch.invalid:27018"]
            config = {"_id": "named", "version": 1, "members": [{"_id": at, "host": host} for at, host in enumerate(hosts)]}
            error = refused(74, lambda: member.admin.command("replSetInitiate", config))
            assert unknown in str(error), error
            config["members"] = config["members"][:1]
            member.admin.command("replSetInitiate", config)
            eventually(lambda: member.admin.command("hello")["isWritablePrimary"], "it leads")
            config["version"] = 2
            config["members"].append({"_id": 1, "host": hosts[1], "votes": 0, "priority": 0})
            member.admin.command("replSetReconfig", config, force=True)
            eventually(lambda: unknown in members.servers[0].log_tail(400), "the log names the member that has no address")
    finally:
        for server in members.servers:
            server.cleanup()


@alone(shards=1, members=1, routers=1)
def a_set_is_a_shard_as_soon_as_it_was_added(cluster):
    """Until it knew which shard it is, it took everything for its own, and made collections without asking the directory."""
    with cluster.client(0) as client:
        for name in ("later1", "later2", "later3"):
            with ReplicaSet([{}], name=name, args=["--shardsvr"]) as added, added.direct(0) as shard:
                assert shard.admin.command("shardingState")["enabled"] is False
                client.admin.command("addShard", cluster.address(added))
                state = shard.admin.command("shardingState")
                assert state["enabled"] and state["shardName"] == name, state
