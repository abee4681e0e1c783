"""What a router may hold for its clients, and what it sends on."""

import socket
import struct
import time

import bson
import pymongo

from checks import check
from cluster import Router, eventually, neighbours
from scenarios import spread_evenly

LIMIT = 64 << 20
READERS = 40


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def message(command):
    body = bson.encode(command)
    return struct.pack("<iiiiIB", len(body) + 21, 1, 0, 2013, 0, 0) + body


@check
def replies_that_nobody_reads_have_an_end(cluster):
    """Large replies of shards count: beyond what operations may use clients are refused (146), and others go on."""
    router = Router(cluster.address(cluster.config), neighbours(1)[0])
    router.args += ["--setParameter", f"operationsMemoryBytes={LIMIT}"]
    router.start()
    readers = []
    try:
        with pymongo.MongoClient(f"mongodb://127.0.0.1:{router.port}/") as client:
            spread_evenly(client, "room.plants")
            client.room.plants.insert_many([{"k": at % 100, "text": "x" * 14000} for at in range(2000)])
            before, most = resident(router), 0
            command = {"aggregate": "plants", "cursor": {"batchSize": 2100}, "$db": "room",
                       "pipeline": [{"$match": {"text": {"$exists": 1}}}, {"$limit": 1000}]}
            for _ in range(READERS):
                reader = socket.create_connection(("127.0.0.1", router.port))
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.sendall(message(command))
                readers.append(reader)
            until = time.monotonic() + 8
            while time.monotonic() < until:
                most = max(most, resident(router))
                time.sleep(0.05)
            assert most - before < 5 * LIMIT, (before >> 20, most >> 20)
            assert client.room.plants.find_one({"k": 7})["name"] == "plant 7"
            answers = []
            for reader in readers:
                reader.settimeout(30)
                answers.append(reader.recv(1000))
            assert any(b"ExceededMemoryLimit" in answer for answer in answers), answers[0]
            for reader in readers:
                reader.close()
            eventually(lambda: client.room.plants.count_documents({}) == 2100, "the router goes on")
    finally:
        router.cleanup()


@check
def full_batches_arrive(cluster):
    """What fills a client's message is longer on its way to a shard, by the numbers of its statements."""
    with cluster.client() as client:
        client.admin.command("shardCollection", "full.plants", key={"k": 1})
        plants = [{"_id": at, "k": at, "text": "x" * 2000} for at in range(24_000)]
        assert sum(len(bson.encode(plant)) for plant in plants) > 48_000_000
        assert len(client.full.plants.insert_many(plants).inserted_ids) == len(plants)
        assert client.full.plants.estimated_document_count() == len(plants)
        client.drop_database("full")
