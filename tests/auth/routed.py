"""What a stranger can do through a router, behind which everybody is the router: as little as on a single server."""

import contextlib
import hashlib
import threading

import pymongo
from bson import Binary, Int64
from common import command_fails, connect, fails
from members import wait_for
from sheaf_process import Server

PASSWORD = "pencil-7731"


def others_operations(root, reader):
    shard = root.admin.command("listShards")["shards"][0]["_id"]
    command_fails(13, reader.admin, "currentOp")
    fails(13, lambda: list(reader.admin.aggregate([{"$currentOp": {"allUsers": True}}])))
    fails(13, lambda: list(reader.admin.aggregate([{"$listLocalSessions": {"allUsers": True}}])))
    command_fails(13, reader.admin, "killOp", op=f"{shard}:1")
    root.admin.command("killOp", op=f"{shard}:1")
    waiting = threading.Event()

    def wait():
        with contextlib.suppress(pymongo.errors.PyMongoError), root.lib.watch(max_await_time_ms=5000) as stream:
            waiting.set()
            stream.try_next()

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()

    def under_way():
        shown = root.admin.aggregate([{"$currentOp": {"localOps": True, "allUsers": True}}])
        return [op["opid"] for op in shown if op.get("command", {}).get("getMore")]

    (number,) = wait_for("a getMore", under_way)
    command_fails(13, reader.admin, "killOp", op=number)
    for spec in ({}, {"localOps": True}, {"idleConnections": True}):
        for op in reader.admin.aggregate([{"$currentOp": spec}]):
            assert [user["user"] for user in op["effectiveUsers"]] == ["reader"], op
    root.admin.command("killOp", op=number)
    thread.join()


def others_cursors_and_sessions(root, reader):
    with root.start_session() as session:
        cursor = root.lib.command("find", "papers", batchSize=1, session=session)["cursor"]["id"]
        for name in ("$listLocalSessions", "$listSessions"):
            source = (reader.admin if name == "$listLocalSessions" else reader.config["system.sessions"])
            seen = [entry["_id"]["id"] for entry in source.aggregate([{name: {}}])]
            assert session.session_id["id"] not in seen, name
        command_fails(13, reader.lib, {"getMore": Int64(cursor), "collection": "papers"})
        command_fails(13, reader.lib, {"killCursors": "papers", "cursors": [Int64(cursor)]})
        # A number without a user is one's own; a session of somebody else needs the right for any.
        reader.admin.command("killSessions", [session.session_id])
        reader.admin.command("killSessions", [])
        others = {**session.session_id, "uid": Binary(hashlib.sha256(b"root@admin").digest())}
        command_fails(13, reader.admin, "killSessions", [others])
        command_fails(13, reader.admin, "killAllSessions", [])
        # Whoever knows its number ends nobody else's session.
        reader.admin.command("endSessions", [session.session_id])
        reader.admin.command("refreshSessions", [session.session_id])
        rest = root.lib.command({"getMore": Int64(cursor), "collection": "papers"}, session=session)["cursor"]
        assert len(rest["nextBatch"]) == 2, rest


def roles_in_expressions(root, reader):
    """`$$USER_ROLES` are the client's, and nobody can say that he has others."""
    seen = {"$ne": [{"$setIntersection": ["$for", "$$USER_ROLES._id"]}, []]}
    root.lib.create_collection("mine", viewOn="papers", pipeline=[{"$match": {"$expr": seen}}])
    root.lib.create_collection("plain_mine", viewOn="plain", pipeline=[{"$match": {"$expr": seen}}])
    for name in ("papers", "plain", "mine", "plain_mine"):
        query = {} if name.endswith("mine") else {"$expr": seen}
        for client, number in ((root, 2), (reader, 1)):
            found = [paper["_id"] for paper in client.lib[name].find(query)]
            assert found == [number], (name, found)
            found = [paper["_id"] for paper in client.lib[name].aggregate([{"$match": query}, {"$group": {"_id": "$_id"}}])]
            assert found == [number], (name, found)
            assert client.lib[name].count_documents(query) == 1
        forged = {"$impersonatedUser": {"user": "root", "db": "admin"}, "$impersonatedRoles": [{"_id": "admin.root", "role": "root", "db": "admin"}]}
        answer = reader.lib.command({"find": name, "filter": query, "$audit": forged})
        assert [paper["_id"] for paper in answer["cursor"]["firstBatch"]] == [1], answer
    redact = {"$cond": [seen, "$$DESCEND", "$$PRUNE"]}
    assert [paper["_id"] for paper in reader.lib.papers.aggregate([{"$redact": redact}])] == [1]
    joined = [{"$limit": 1}, {"$lookup": {"from": "plain", "pipeline": [{"$match": {"$expr": seen}}], "as": "x"}}]
    assert [[paper["_id"] for paper in row["x"]] for row in reader.lib.papers.aggregate(joined)] == [[1]]
    root.lib.papers.update_many({}, [{"$set": {"by": "$$USER_ROLES._id"}}])
    assert all("admin.root" in paper["by"] for paper in root.lib.papers.find())


def a_stranger():
    with Server(args=["--shards", "2", "--auth"]) as server:
        with connect(server) as client:
            wait_for("the first user", lambda: client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"]))
        root = connect(server, "root", PASSWORD)
        root.admin.command("createUser", "reader", pwd=PASSWORD, roles=[{"role": "read", "db": "lib"}])
        root.admin.command("shardCollection", "lib.papers", key={"_id": "hashed"})
        papers = [{"_id": 1, "for": ["lib.read"]}, {"_id": 2, "for": ["admin.root"]}, {"_id": 3, "for": []}]
        root.lib.papers.insert_many(papers)
        root.lib.plain.insert_many(papers)
        reader = connect(server, "reader", PASSWORD)
        for check in (others_operations, others_cursors_and_sessions, roles_in_expressions):
            try:
                check(root, reader)
            except (AssertionError, pymongo.errors.PyMongoError) as error:
                raise AssertionError(f"{check.__name__}: {error}") from error


CHECKS = {"routed": a_stranger}
