"""Routers that are gone in the middle of something."""

import socket
import struct
import uuid

import bson
from bson import Int64

from checks import check
from cluster import eventually


class Connection:
    """One to a shard, by which it is told what a router would tell it."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)

    def ask(self, command):
        body = bson.encode(command)
        self.socket.sendall(struct.pack("<iiiiIB", len(body) + 21, 1, 0, 2013, 0, 0) + body)
        got = b""
        while len(got) < 4 or len(got) < struct.unpack_from("<i", got)[0]:
            got += self.socket.recv(65536) or b"\0" * 65536
        return bson.decode(got[21:])


@check
def a_router_s_own_transaction_does_not_outlive_it(cluster):
    """What a router had begun for one statement is undone soon where no more comes; a client's own transaction may rest."""
    members = cluster.shards[0]
    with cluster.client() as client, members.direct(members.primary()) as shard:
        client.admin.command("enableSharding", "silent", primaryShard="shard0")
        client.silent.create_collection("plants")
        port = members.servers[members.primary()].port
        begun = {}
        for name, more in (("router", {"routersOwn": True}), ("client", {})):
            of = {"lsid": {"id": bson.Binary(uuid.uuid4().bytes, 4)}, "txnNumber": Int64(1), "autocommit": False, **more}
            begun[name] = (Connection(port), of)
            insert = {"insert": "plants", "documents": [{"_id": name}], **of, "startTransaction": True, "$db": "silent"}
            answer = begun[name][0].ask(insert)
            assert answer["ok"] == 1 and answer["n"] == 1, answer
        command = {"find": "plants", "$db": "silent"}

        def is_undone():
            return shard.silent.command("serverStatus")["transactions"]["currentOpen"] < 2

        eventually(is_undone, "the router's transaction is undone")
        answers = {name: connection.ask({**command, **of}) for name, (connection, of) in begun.items()}
        assert answers["router"]["code"] == 251, answers
        assert [found["_id"] for found in answers["client"]["cursor"]["firstBatch"]] == ["client"], answers
        connection, of = begun["client"]
        assert connection.ask({"commitTransaction": 1, **of, "$db": "admin"})["ok"] == 1
        assert client.silent.plants.distinct("_id") == ["client"]
