"""What administration commands answer: shapes, figures and errors, one function each, on one server."""

import json

from names import what_is_missing_is_named

from bson import Binary, Int64
from pymongo.errors import OperationFailure


def fails(code, db, *command, text=None, **options):
    """The command must fail with this code (and this text)."""
    try:
        reply = db.command(*command, **options)
    except OperationFailure as error:
        assert error.code == code, f"{command} {options}: code {error.code}, not {code}: {error}"
        if text is not None:
            assert text == error.details["errmsg"], f"{command}: {error.details['errmsg']!r}"
        return
    raise AssertionError(f"{command} {options} went well: {reply}")


def system_views(client):
    db = client.ops_views
    db.c.insert_one({"_id": 1})
    db.command("create", "v", viewOn="c", pipeline=[{"$match": {"a": 1}}])
    listed = list(db.list_collections())
    assert [entry["name"] for entry in listed] == ["c", "system.views", "v"], listed
    uuid = listed[1]["info"]["uuid"]
    assert isinstance(uuid, Binary) and uuid.subtype == 4
    assert db["system.views"].find_one() == {
        "_id": "ops_views.v",
        "viewOn": "c",
        "pipeline": [{"$match": {"a": 1}}],
    }
    db.command("collMod", "v", viewOn="c", pipeline=[])
    assert db["system.views"].find_one()["pipeline"] == []
    assert db.command("validate", "system.views")["uuid"] == uuid
    db.drop_collection("v")
    assert db["system.views"].count_documents({}) == 0
    db.command("create", "w", viewOn="c", pipeline=[])
    assert [entry["info"]["uuid"] for entry in db.list_collections(filter={"name": "system.views"})] == [uuid]
    db.drop_collection("system.views")
    assert db.list_collection_names() == ["c"], "views go with their descriptions"
    client.drop_database("ops_views")


def validate(client):
    db = client.ops_validate
    db.c.insert_many([{"_id": n, "a": [n, n + 1]} for n in range(5)])
    db.c.create_index("a")
    db.command("create", "v", viewOn="c", pipeline=[])
    reply = db.command("validate", "c")
    uuid = next(iter(db.list_collections(filter={"name": "c"})))["info"]["uuid"]
    expected = {
        "valid": True,
        "repaired": False,
        "repairMode": "None",
        "ns": "ops_validate.c",
        "uuid": uuid,
        "warnings": [],
        "errors": [],
        "extraIndexEntries": [],
        "missingIndexEntries": [],
        "nInvalidDocuments": 0,
        "nNonCompliantDocuments": 0,
        "nrecords": 5,
        "corruptRecords": [],
        "nIndexes": 2,
        "keysPerIndex": {"_id_": 5, "a_1": 10},
        "indexDetails": {
            "_id_": {"valid": True, "spec": {"v": 2, "key": {"_id": 1}, "name": "_id_"}},
            "a_1": {"valid": True, "spec": {"v": 2, "key": {"a": 1}, "name": "a_1"}},
        },
        "ok": 1.0,
    }
    assert reply == expected and list(reply) == list(expected), reply
    assert db.command("validate", "c", full=True)["valid"]
    assert db.command("validate", "c", repair=True)["repairMode"] == "FixErrors"
    assert db.command("validate", "c", fixMultikey=1)["repairMode"] == "AdjustMultikey"
    metadata = db.command("validate", "c", metadata=True)
    assert metadata["valid"] and "nrecords" not in metadata and "nInvalidDocuments" not in metadata
    both = "Running the validate command with both {{ {}: true }} and {{ {}: true }} is not supported."
    fails(72, db, "validate", "c", background=True, full=True, text=both.format("background", "full"))
    fails(72, db, "validate", "c", metadata=True, full=True)
    fails(72, db, "validate", "c", metadata=True, checkBSONConformance=True)
    fails(72, db, "validate", "c", checkBSONConformance=True, repair=True)
    fails(72, db, "validate", "c", enforceFastCount=True, repair=True)
    fails(72, db, "validate", "c", full=True, checkBSONConformance=False)
    fails(115, db, "validate", "c", background="true")
    fails(26, db, "validate", "missing", text="Collection 'ops_validate.missing' does not exist to validate.")
    fails(166, db, "validate", "v", text="Cannot validate a view")
    db.command("collMod", "c", validator={"b": {"$exists": True}}, validationAction="warn")
    reply = db.command("validate", "c")
    assert reply["nNonCompliantDocuments"] == 5 and reply["valid"] and len(reply["warnings"]) == 1, reply
    client.drop_database("ops_validate")


def startup_log(client):
    entry = client.local.startup_log.find_one(sort=[("$natural", -1)])
    assert list(entry) == ["_id", "hostname", "startTime", "startTimeLocal", "cmdLine", "pid", "buildinfo"], entry
    assert entry["_id"].startswith(entry["hostname"] + "-")
    assert entry["buildinfo"]["version"] == client.server_info()["version"]
    assert client.local.command("collStats", "startup_log")["maxSize"] == 10 << 20
    assert client.admin["system.version"].find_one({"_id": "featureCompatibilityVersion"})["version"] == "8.2"
    assert {"admin", "config", "local"} <= set(client.list_database_names())


def figures(client):
    db = client.ops_figures
    db.c.insert_many([{"_id": n, "a": n, "b": "x" * 100} for n in range(500)])
    db.c.create_index("a")
    before = {entry["name"]: entry["accesses"]["ops"] for entry in db.c.aggregate([{"$indexStats": {}}])}
    assert before == {"_id_": 0, "a_1": 0}, before
    list(db.c.find({"a": 3}))
    list(db.c.find({"$or": [{"a": 1}, {"a": 2}]}))
    db.c.find_one({"_id": 1})
    list(db.c.find({"b": "y"}))
    after = {entry["name"]: entry["accesses"]["ops"] for entry in db.c.aggregate([{"$indexStats": {}}])}
    assert after == {"_id_": 1, "a_1": 2}, after
    stats = db.command("collStats", "c")
    assert stats["indexSizes"]["a_1"] > 500, stats["indexSizes"]
    assert stats["totalIndexSize"] == sum(stats["indexSizes"].values())
    assert db.command("dbStats")["indexSize"] == stats["totalIndexSize"]
    stages = {"latencyStats": {"histograms": True}, "storageStats": {}, "count": {}, "queryExecStats": {}}
    (stats,) = db.c.aggregate([{"$collStats": stages}])
    assert list(stats)[:4] == ["ns", "host", "localTime", "latencyStats"], list(stats)
    reads = stats["latencyStats"]["reads"]
    assert list(reads) == ["histogram", "latency", "ops", "queryableEncryptionLatencyMicros"], reads
    assert sum(bucket["count"] for bucket in reads["histogram"]) == reads["ops"] >= 6, reads
    assert stats["latencyStats"]["writes"]["ops"] >= 1
    assert stats["count"] == 500
    assert stats["queryExecStats"] == {"collectionScans": {"total": 1, "nonTailable": 1}}, stats
    fails(2, db, "aggregate", "c", pipeline=[{"$collStats": {"storageStats": {"scale": 0}}}], cursor={})
    totals = client.admin.command("top")["totals"]
    entry = totals["ops_figures.c"]
    assert list(entry) == [
        "total", "readLock", "writeLock", "queries", "getmore", "insert", "update", "remove", "commands"
    ], entry
    assert entry["insert"]["count"] == 1 and entry["queries"]["count"] == 4, entry
    db.drop_collection("c")
    assert "ops_figures.c" not in client.admin.command("top")["totals"]
    status = client.admin.command("serverStatus")
    for section in [
        "asserts", "catalogStats", "connections", "extra_info", "globalLock", "indexStats", "mem", "metrics",
        "network", "opLatencies", "opcounters", "opcountersRepl", "storageEngine", "transactions", "wiredTiger",
    ]:
        assert section in status, section
    assert status["indexStats"]["features"]["id"]["count"] >= 2
    client.drop_database("ops_figures")


def explain(client):
    db = client.ops_explain
    db.c.insert_many([{"_id": n, "a": n % 10, "b": n, "t": "x" * 200} for n in range(100)])
    db.d.insert_many([{"_id": n, "x": n} for n in range(10)])
    db.c.create_index([("a", 1), ("b", 1)])

    def run(command, verbosity="executionStats"):
        return db.command("explain", command, verbosity=verbosity)

    def aggregate(*stages, verbosity="executionStats"):
        return run({"aggregate": "c", "pipeline": list(stages), "cursor": {}}, verbosity)

    reply = aggregate(
        {"$match": {"b": {"$gte": 50}}},
        {"$group": {"_id": "$a", "n": {"$sum": 1}}},
        {"$sort": {"n": -1}},
        {"$limit": 3},
    )
    cursor, group, sort = reply["stages"]
    plan = cursor["$cursor"]["queryPlanner"]["winningPlan"]
    assert plan["stage"] == "PROJECTION_SIMPLE" and plan["transformBy"] == {"a": 1, "_id": 0}, plan
    assert (cursor["nReturned"], group["nReturned"], sort["nReturned"]) == (50, 10, 3), reply
    assert group["$group"] == {"_id": "$a", "n": {"$sum": {"$const": 1}}} and group["usedDisk"] is False
    assert sort["$sort"] == {"sortKey": {"n": -1}, "limit": 3}, sort
    # What only finds is shown as a find; a $project that includes is part of it.
    reply = aggregate({"$match": {"a": 1}}, {"$sort": {"b": 1}}, {"$project": {"b": 1, "_id": 0}})
    assert reply["queryPlanner"]["winningPlan"]["stage"] == "PROJECTION_COVERED", reply["queryPlanner"]
    assert reply["executionStats"]["totalDocsExamined"] == 0
    reply = aggregate(
        {"$lookup": {"from": "d", "localField": "a", "foreignField": "_id", "as": "r"}},
        {"$unwind": "$r"},
        {"$count": "n"},
    )
    _, lookup, group, project = reply["stages"]
    assert lookup["$lookup"]["unwinding"] == {"preserveNullAndEmptyArrays": False}
    assert lookup["indexesUsed"] == ["_id_"] and lookup["totalDocsExamined"] == 100, lookup
    assert group["$group"] == {"_id": {"$const": None}, "n": {"$sum": {"$const": 1}}}
    assert project["$project"] == {"n": True, "_id": False} and project["nReturned"] == 1
    assert "executionStats" not in str(aggregate({"$out": "e"}, verbosity="queryPlanner"))
    assert "e" not in db.list_collection_names()
    update = {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 11}}, "multi": True}]}
    stage = run(update)["executionStats"]["executionStages"]
    assert (stage["stage"], stage["nMatched"], stage["nWouldModify"]) == ("UPDATE", 10, 9), stage
    stage = run({"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 0}]})["executionStats"]["executionStages"]
    assert (stage["stage"], stage["nWouldDelete"]) == ("BATCHED_DELETE", 10), stage
    modify = {"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"b": 1}}}
    assert run(modify)["executionStats"]["executionStages"]["nWouldModify"] == 0
    stage = run({"find": "c", "sort": {"t": 1}, "limit": 3})["executionStats"]["executionStages"]
    assert (stage["stage"], stage["limitAmount"], stage["isEOF"], stage["usedDisk"]) == ("SORT", 3, 1, False)
    db.big.insert_many([{"_id": n, "n": -n, "t": "x" * (2 << 20)} for n in range(60)])
    reply = db.command("explain", {"find": "big", "sort": {"n": 1}}, verbosity="executionStats")
    stage = reply["executionStats"]["executionStages"]
    assert stage["usedDisk"] is True and stage["spills"] >= 1, stage
    assert stage["executionTimeMillisEstimate"] >= stage["inputStage"]["executionTimeMillisEstimate"] >= 0
    fails(20, db, "explain", {"insert": "c", "documents": [{}]})
    fails(59, db, "explain", {})
    fails(2, db, "explain", {"find": "c"}, verbosity="all")
    fails(14, db, "explain", 1)
    client.drop_database("ops_explain")


def collection_uuid(client):
    db = client.ops_uuid
    db.c.insert_one({"_id": 1, "a": 1})
    db.create_collection("d")
    right, other = (
        next(iter(db.list_collections(filter={"name": name})))["info"]["uuid"] for name in ("c", "d")
    )
    unknown = Binary(bytes(16), 4)
    q = {"_id": 1}
    commands = [
        {"find": "c"},
        {"aggregate": "c", "pipeline": [], "cursor": {}},
        {"count": "c"},
        {"distinct": "c", "key": "a"},
        {"insert": "c", "documents": [{}]},
        {"update": "c", "updates": [{"q": q, "u": {"$set": {"a": 2}}}]},
        {"delete": "c", "deletes": [{"q": {"_id": 5}, "limit": 1}]},
        {"findAndModify": "c", "query": q, "update": {"$set": {"a": 2}}},
        {"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
        {"collMod": "c"},
        {"dropIndexes": "c", "index": "*"},
        {"drop": "c"},
    ]
    for command in commands:
        for uuid, actual in ((other, "d"), (unknown, None)):
            reply = db.command({**command, "collectionUUID": uuid}, check=False)
            error = reply["writeErrors"][0] if "writeErrors" in reply else reply
            assert error["code"] == 361, (command, reply)
            named = [error[name] for name in ("db", "collectionUUID", "expectedCollection", "actualCollection")]
            assert named == ["ops_uuid", uuid, "c", actual], (command, reply)
        fails(14, db, {**command, "collectionUUID": "x"})
        fails(207, db, {**command, "collectionUUID": Binary(b"short", 4)})
        reply = db.command({**command, "collectionUUID": right})
        assert reply["ok"] == 1.0 and "writeErrors" not in reply, (command, reply)
    rename = {"renameCollection": "ops_uuid.d", "to": "ops_uuid.e", "collectionUUID": right}
    fails(361, client.admin, rename)
    fails(4928901, db, {"aggregate": 1, "pipeline": [{"$documents": []}], "cursor": {}, "collectionUUID": right})
    client.drop_database("ops_uuid")


def texts(client):
    db = client.ops_texts
    db.c.insert_many([{"_id": 1, "a": 0}, {"_id": 2, "a": "x"}])
    fails(73, db, "find", "", text="Invalid namespace specified 'ops_texts.'")
    fails(73, db, {"aggregate": "", "pipeline": [], "cursor": {}}, text="Invalid namespace specified 'ops_texts.'")
    error = "$add only supports numeric or date types, not string"
    bad = {"$expr": {"$gt": [{"$add": ["$a", 1]}, 0]}}
    prefix = "Executor error during find command: ops_texts.c :: caused by :: "
    fails(14, db, "find", "c", filter=bad, text=prefix + error)
    stage = {"$addFields": {"b": {"$add": ["$a", 1]}}}
    prefix = "PlanExecutor error during aggregation :: caused by :: "
    fails(14, db, "aggregate", "c", pipeline=[stage], cursor={}, text=prefix + error)
    db.c.create_index("a", unique=True)
    duplicate = {"findAndModify": "c", "query": {"_id": 2}, "update": {"$set": {"a": 0}}}
    try:
        db.command(duplicate)
        raise AssertionError("a duplicate was written")
    except OperationFailure as failure:
        assert failure.code == 11000
        assert str(failure).startswith("Plan executor error during findAndModify :: caused by :: E11000"), failure
    client.drop_database("ops_texts")


def parameters(client):
    admin = client.admin
    assert admin.command("setParameter", 1, journalCommitInterval=50)["was"] == 100
    assert admin.command("setParameter", 1, syncdelay=30)["was"] == 60.0
    assert admin.command("getParameter", 1, syncdelay=1)["syncdelay"] == 30.0
    for name, value, reason in [
        ("journalCommitInterval", 0, "0 is not greater than or equal to 1"),
        ("journalCommitInterval", 501, "501 is not less than or equal to 500"),
        ("syncdelay", -1, "-1 is not greater than or equal to 0"),
        ("syncdelay", 3601, "3601 is not less than or equal to 3600"),
        ("ttlMonitorSleepSecs", 0, "0 is not greater than 0"),
    ]:
        fails(2, admin, "setParameter", 1, **{name: value}, text=f"Invalid value for parameter {name}: {reason}")
    assert admin.command("setParameter", 1, ttlMonitorEnabled=False)["was"] is True
    admin.command("setParameter", 1, ttlMonitorEnabled=True, journalCommitInterval=100, syncdelay=60)


def validators(client):
    db = client.ops_validators
    db.create_collection("c", validator={"a": {"$type": "int"}}, validationAction="warn")
    db.c.insert_one({"_id": "warned", "a": "x"})
    db.command("collMod", "c", validationAction="errorAndLog")
    reply = db.command({"insert": "c", "documents": [{"_id": "refused", "a": "x"}]}, check=False)
    assert reply["writeErrors"][0]["code"] == 121, reply
    db.command("collMod", "c", validationAction="error")
    db.command({"insert": "c", "documents": [{"_id": "silent", "a": "x"}]}, check=False)
    lines = [json.loads(line) for line in client.admin.command("getLog", "global")["log"]]
    lines = [line for line in lines if line["id"] == 20294]
    assert [line["attr"]["document"]["_id"] for line in lines] == ["warned", "refused"], lines
    for line in lines:
        assert line["msg"] == "Document would fail validation" and line["c"] == "STORAGE" and line["s"] == "W"
        assert line["attr"]["namespace"] == "ops_validators.c" and line["ctx"].startswith("conn")
        assert line["attr"]["errInfo"]["details"]["operatorName"] == "$type", line
    fails(2, db, "create", "d", validator={"$text": {"$search": "x"}})
    fails(2, db, "create", "d", validationAction="shout")
    fails(67, db, {"createIndexes": "c", "indexes": [
        {"key": {"a": 1}, "name": "a", "partialFilterExpression": {"a": {"$not": {"$gt": 1}}}}
    ]})
    client.drop_database("ops_validators")


def compact(client):
    db = client.ops_compact
    db.c.insert_many([{"_id": n} for n in range(100)])
    assert db.command("compact", "c") == {"bytesFreed": 0, "ok": 1.0}
    assert db.command("compact", "c", force=True, freeSpaceTargetMB=5) == {"bytesFreed": 0, "ok": 1.0}
    assert db.command("compact", "c", dryRun=True) == {"estimatedBytesFreed": 0, "ok": 1.0}
    for bad in (0, -1, 0.5):
        fails(2, db, "compact", "c", freeSpaceTargetMB=bad)
    fails(14, db, "compact", "c", freeSpaceTargetMB="20")
    fails(26, db, "compact", "missing")
    client.drop_database("ops_compact")


def arguments(client):
    db = client.ops_arguments
    db.c.insert_many([{"_id": n} for n in range(3)])
    # A part of a command has no name of its own: its first field is checked like the others.
    fails(40415, db, {"update": "c", "updates": [{"odd": 1, "q": {}, "u": {"$set": {"a": 1}}}]},
          text="BSON field 'update.updates.odd' is an unknown field.")
    fails(40415, db, {"delete": "c", "deletes": [{"odd": 1, "q": {}, "limit": 0}]})
    fails(40415, db, {"aggregate": "c", "pipeline": [], "cursor": {"odd": 1}})
    fails(2, db, "find", "c", skip=-1, text="BSON field 'skip' value must be >= 0, actual value '-1'")
    fails(14, db, "find", "c", limit="1")
    fails(9, db, "find", "c", maxTimeMS=1.5)
    fails(14, db, "find", "c", maxTimeMS="1")
    fails(2, db, "find", "c", maxTimeMS=-1)
    fails(40414, db, "dataSize", None)
    fails(72, db, "find", "c", writeConcern={"w": 1})
    db.command("create", "v", viewOn="c", pipeline=[])
    fails(15958, db, "count", "v", limit=0)
    assert db.command("count", "v")["n"] == db.command("count", "c", limit=0)["n"] == 3
    # What API version 1 leaves out.
    strict = {"apiVersion": "1", "apiStrict": True}
    fails(323, db, {"find": "c", "showRecordId": True, **strict},
          text="BSON field 'find.showRecordId' is not allowed with apiStrict:true.")
    fails(323, db, {"create": "d", "capped": True, "size": 4096, **strict})
    for allowed, option in ((True, "count"), (False, "latencyStats")):
        command = {"aggregate": "c", "pipeline": [{"$collStats": {option: {}}}], "cursor": {}, **strict}
        if allowed:
            db.command(command)
        else:
            fails(323, db, command)
    # A single node is asked for no tags.
    db.command({"insert": "c", "documents": [{}], "writeConcern": {"w": {"dc": 1}}})
    # setParameter changes all or nothing.
    before = client.admin.command("getParameter", 1, ttlMonitorSleepSecs=1)["ttlMonitorSleepSecs"]
    fails(72, client.admin, "setParameter", 1, ttlMonitorSleepSecs=before + 1, odd=1)
    assert client.admin.command("getParameter", 1, ttlMonitorSleepSecs=1)["ttlMonitorSleepSecs"] == before
    client.drop_database("ops_arguments")


def cursors(client):
    db = client.ops_cursors
    db.c.insert_many([{"_id": n} for n in range(9)])
    db.command("profile", 2)
    opened = db.command("find", "c", batchSize=1, comment="opened")["cursor"]["id"]
    more = {"getMore": Int64(opened), "collection": "c", "batchSize": 1}
    db.command(more)
    db.command("profile", 0)
    entry = db["system.profile"].find_one({"op": "getmore"})
    assert entry["command"]["comment"] == "opened" and entry["originatingCommand"]["find"] == "c", entry
    idle = list(client.admin.aggregate([
        {"$currentOp": {"allUsers": True, "idleCursors": True}}, {"$match": {"type": "idleCursor"}}
    ]))
    assert len(idle) == 1 and idle[0]["ns"] == "ops_cursors.c", idle
    cursor = idle[0]["cursor"]
    assert cursor["cursorId"] == opened and cursor["nBatchesReturned"] == 2, cursor
    assert cursor["originatingCommand"]["comment"] == "opened" and not cursor["tailable"], cursor
    db.command("killCursors", "c", cursors=[Int64(opened)])
    client.drop_database("ops_cursors")


CHECKS = [system_views, validate, startup_log, figures, explain, collection_uuid, texts, parameters,
          validators, compact, arguments, cursors, what_is_missing_is_named]
