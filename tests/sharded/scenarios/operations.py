"""The pages on $currentOp, currentOp, killOp, $listLocalSessions: operations of all shards, and of one router."""

import threading

from pymongo.errors import OperationFailure

from checks import check, refused
from cluster import eventually
from scenarios import spread_evenly

# Compares each document with each.
SLOW = [{"$lookup": {"from": "plants", "let": {"n": "$_id"}, "as": "above", "pipeline": [
    {"$match": {"$expr": {"$gt": [{"$add": ["$_id", 1]}, "$$n"]}}}, {"$count": "c"}]}}]


@check
def operations_of_all_shards_are_seen_and_killed(cluster):
    with cluster.client(0) as client:
        client.admin.command("enableSharding", "operations", primaryShard="shard1")
        client.operations.plants.insert_many([{"_id": at} for at in range(3000)])
        ended = []

        def slow():
            try:
                list(client.operations.plants.aggregate(SLOW, comment="a slow one"))
            except OperationFailure as error:
                ended.append(error.code)

        thread = threading.Thread(target=slow)
        thread.start()

        def seen():
            match = {"command.comment": "a slow one", "active": True, "op": "command"}
            return list(client.admin.aggregate([{"$currentOp": {}}, {"$match": match}]))

        eventually(seen, "the operation is under way")
        [operation] = seen()
        assert operation["shard"] == "shard1" and operation["opid"].startswith("shard1:"), operation
        assert "client_s" in operation and "client" not in operation, operation
        # The router's own go by numbers.
        own = [{"$currentOp": {"localOps": True}}, {"$match": {"command.comment": "a slow one"}}]
        [local] = client.admin.aggregate(own)
        assert isinstance(local["opid"], int) and "shard" not in local, local
        client.admin.command("killOp", op=operation["opid"])
        thread.join()
        assert ended == [11601], ended
        refused(2, lambda: client.admin.command("killOp", op="12"))
        refused(70, lambda: client.admin.command("killOp", op="shard9:12"))
        refused(4, lambda: client.admin.command("killOp"))
        shards = {entry["shard"] for entry in client.admin.command("currentOp", {"$all": True})["inprog"]}
        assert {"shard0", "shard1"} <= shards, shards


@check
def stages_behind_current_op_run_on_the_router(cluster):
    with cluster.client(0) as client:
        groups = [{"$currentOp": {"idleConnections": True}}, {"$group": {"_id": "$shard", "n": {"$sum": 1}}},
                  {"$sort": {"_id": 1}}]
        names = [group["_id"] for group in client.admin.aggregate(groups, batchSize=1)]
        assert {"shard0", "shard1"} <= set(names) and names == sorted(names), names
        refused(73, lambda: client.operations.aggregate([{"$currentOp": {}}]))
        refused(40415, lambda: client.admin.aggregate([{"$currentOp": {"what": True}}]))
        with client.start_session() as session:
            client.operations.plants.find_one({}, session=session)
            known = [entry["_id"]["id"] for entry in client.admin.aggregate([{"$listLocalSessions": {}}])]
            assert session.session_id["id"] in known
        spread_evenly(client, "operationsspread.plants")
        assert client.operationsspread.plants.count_documents({}) == 100


@check
def killed_and_overdue_writes_end_on_shards(cluster):
    """A router's operation that is killed or out of time leaves nothing behind that goes on."""
    ends = [members.direct(members.primary()) for members in cluster.shards]
    with cluster.client(0, retryWrites=False) as client, ends[0], ends[1]:
        spread_evenly(client, "overdue.plants")
        client.overdue.plants.insert_many([{"k": number % 100, "n": 0} for number in range(20000)])
        total = {"$reduce": {"input": {"$range": [0, 2000]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}
        update = {"update": "plants", "updates": [{"q": {}, "u": [{"$set": {"n": total}}], "multi": True}]}

        def under_way(of, **local):
            shown = of.admin.aggregate([{"$currentOp": local}])
            return [op["opid"] for op in shown if op.get("command", {}).get("update") == "plants"]

        def ended(code, meanwhile=lambda: None, **limit):
            codes = []

            def attempt():
                try:
                    client.overdue.command(update, **limit)
                except OperationFailure as error:
                    codes.append(error.code)

            thread = threading.Thread(target=attempt)
            thread.start()
            meanwhile()
            thread.join()
            assert codes == [code], codes
            eventually(lambda: not any(under_way(end) for end in ends), "the shards' operations end")

        def kill():
            eventually(lambda: any(under_way(end) for end in ends), "the update runs")
            for op in under_way(client, localOps=True):
                client.admin.command("killOp", op=op)

        ended(50, maxTimeMS=700)
        ended(11601, kill)
        assert client.overdue.plants.count_documents({"n": 0}) > 10000, "they went on to the end"
