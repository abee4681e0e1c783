"""`fsyncLock`: what works in the background waits or passes by, and nothing else waits for it."""

import threading

import pymongo
from pymongo.errors import PyMongoError

from members import PATIENCE, ReplicaSet, eventually
from sheaf_process import Server, free_port


def ends(server):
    """SIGTERM, and the process ends by itself and in order."""
    server.process.terminate()
    assert server.process.wait(PATIENCE) == 0, server.log_tail()


def a_locked_server_goes_on_and_ends():
    args = ["--setParameter", "ttlMonitorSleepSecs=1", "--setParameter", "enableTestCommands=1"]
    with Server(args=args, port=free_port()) as server, pymongo.MongoClient(server.uri, socketTimeoutMS=PATIENCE * 1000) as client:
        db = client.t
        db.c.create_index("at", expireAfterSeconds=0)
        with client.start_session(causal_consistency=False) as session:
            db.c.insert_one({"_id": 1}, session=session)
        db.command("profile", 2)
        client.admin.command("fsync", lock=True)
        # Reads go on, though each would be profiled; the count of locks is told, though somebody waits for one more.
        assert db.c.count_documents({}) == 1
        waiting = []

        def write():
            with pymongo.MongoClient(server.uri, retryWrites=False) as other:
                try:
                    waiting.append(other.t.c.insert_one({"_id": 2}))
                except PyMongoError as error:
                    waiting.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        # Passes of the TTL monitor find nothing to do, or wait; cursors and sessions are seen to all the same.
        cursor = db.c.find({}, batch_size=1)
        next(cursor)
        assert client.admin.command("fsync", lock=True)["lockCount"] == 2
        assert client.admin.command("fsyncUnlock")["lockCount"] == 1
        try:
            client.t.c.with_options(write_concern=pymongo.WriteConcern(w=1)).database.command(
                "insert", "c", documents=[{"_id": 3}], maxTimeMS=200)
            raise AssertionError("a write behind the lock")
        except PyMongoError as error:
            assert error.code == 50, error
        ends(server)
        writer.join(PATIENCE)
        assert not writer.is_alive() and isinstance(waiting[0], PyMongoError), waiting
        server.start()
        with pymongo.MongoClient(server.uri) as again:
            assert again.t.c.count_documents({}) == 1
            assert again.t.c.insert_one({"_id": 4}).acknowledged


def a_locked_member_keeps_its_place_and_ends():
    with ReplicaSet(args=["--setParameter", "ttlMonitorSleepSecs=1"]) as members:
        at = members.primary()
        with members.direct(at) as client:
            client.t.c.insert_one({"_id": 1})
            client.admin.command("fsync", lock=True)
            # The set is told of a new configuration all the same, and the member can give its office away.
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            client.admin.command("replSetReconfig", config)
        ends(members.servers[at])
        members.wait_for(lambda states: states.count("PRIMARY") == 1 and states[at] is None)
        members.servers[at].start()
        members.wait_for(lambda states: states.count("PRIMARY") == 1 and states.count("SECONDARY") == 2)
        with members.client() as client:
            assert client.t.c.insert_one({"_id": 2}).acknowledged


CHECKS = [a_locked_server_goes_on_and_ends, a_locked_member_keeps_its_place_and_ends]
