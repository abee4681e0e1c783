"""Commands with extreme values: each command's usual arguments, some of them exchanged for what nobody would send."""

import copy
import struct
import uuid

import bson
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, Regex, Timestamp
from bson.code import Code
from bson.datetime_ms import DatetimeMS

LEAST, MOST = Int64(-2**63), Int64(2**63 - 1)


def nested(depth, wrap, core):
    for _ in range(depth):
        core = wrap(core)
    return core


EXTREMES = [
    LEAST, MOST, -2**31, 2**31 - 1, -1, 0, 1, 1.5, -0.0, float("nan"), float("inf"), -1e308, 5e-324, 2**53 + 1.0,
    Decimal128("NaN"), Decimal128("9.99E+6144"), Decimal128("-1E-6176"), Decimal128("Infinity"),
    "", "a", "$", "$$", "$a", "a.b", ".", "..", "$**", "a\0b", "é€𝄞" * 3, "x" * 70_000, "system.indexes", "$cmd", "admin",
    None, True, False, DatetimeMS(-2**63), DatetimeMS(2**63 - 1), DatetimeMS(0),
    [], [[]], [None], [1, [2]], {}, {"": 1}, {"a": 1}, {"$a": 1}, {"a.b": {"$c": []}}, {"$expr": {"$divide": [1, 0]}},
    Regex("a", "i"), Regex("(a|b)*" * 20, ""), Regex("[", "x"), Regex("(?R)", ""), Binary(b""), Binary(b"\0" * 5000), Binary(b"\1" * 3, 4),
    Timestamp(2**32 - 1, 2**32 - 1), Timestamp(0, 0), MinKey(), MaxKey(), bson.ObjectId("0" * 24), Code("x"), Code("x", {"y": 1}),
    list(range(3000)), {f"f{n}": n for n in range(2000)}, nested(95, lambda x: {"a": x}, 1), nested(95, lambda x: [x], 1),
    nested(150, lambda x: {"$and": [x]}, {"a": 1}), nested(90, lambda x: {"$not": [x]}, "$a"),
]

COLLECTIONS = [f"c{n}" for n in range(6)] + ["capped", "view", "nowhere"]
DATABASES = ["hostile", "hostile", "hostile", "hostile2"]

# Arguments that commands have in common.
SHARED = {
    "maxTimeMS": 100, "comment": "x", "readConcern": {"level": "majority"}, "writeConcern": {"w": 1, "wtimeout": 50},
    "$readPreference": {"mode": "primary"}, "lsid": {"id": Binary(uuid.UUID(int=7).bytes, 4)}, "txnNumber": Int64(1),
    "autocommit": False, "startTransaction": True, "let": {"v": 1}, "collation": {"locale": "de", "strength": 2},
    "hint": {"a": 1}, "apiVersion": "1", "apiStrict": True, "$clusterTime": {"clusterTime": Timestamp(1, 1)}, "allowDiskUse": True,
    "batchSize": 3, "cursor": {"batchSize": 2}, "stmtId": 1, "bypassDocumentValidation": True, "ordered": False, "$db": "hostile",
    "afterClusterTime": Timestamp(1, 1), "stmtIds": [1, 2], "unknownField": 1, "explain": True, "isUpgrade": True,
}

_FILTER = {"a": {"$gte": 1, "$lt": 90}, "tags": "t1"}
_PIPELINE = [{"$match": {"a": {"$gt": 3}}}, {"$group": {"_id": "$b", "n": {"$sum": "$a"}, "all": {"$push": "$s"}}}, {"$sort": {"n": -1}}, {"$limit": 5}]
_ANY = object()

# The usual arguments; `_ANY` stands for a collection's name.
USUAL = {
    "find": {"find": _ANY, "filter": _FILTER, "sort": {"a": 1, "b": -1}, "projection": {"a": 1, "tags": {"$slice": 2}}, "skip": 1, "limit": 9,
             "batchSize": 3, "singleBatch": False, "tailable": False, "awaitData": False, "min": {"a": 1}, "max": {"a": 50}, "returnKey": False,
             "showRecordId": True, "noCursorTimeout": False, "oplogReplay": True, "allowPartialResults": False},
    "aggregate": {"aggregate": _ANY, "pipeline": _PIPELINE, "cursor": {"batchSize": 2}},
    "getMore": {"getMore": Int64(1), "collection": "c0", "batchSize": 4},
    "insert": {"insert": _ANY, "documents": [{"a": 1, "s": "x"}, {"a": 2}], "ordered": True},
    "update": {"update": _ANY, "updates": [{"q": {"a": 5}, "u": {"$set": {"b": 1}, "$inc": {"n": 1}, "$push": {"tags": {"$each": [1], "$slice": -9,
               "$sort": 1, "$position": 0}}}, "multi": True, "upsert": True, "arrayFilters": [{"x": 1}], "c": {"k": 1}}]},
    "delete": {"delete": _ANY, "deletes": [{"q": {"a": 99}, "limit": 1, "collation": {"locale": "en"}}]},
    "findAndModify": {"findAndModify": _ANY, "query": {"a": 3}, "sort": {"b": 1}, "update": {"$inc": {"n": 1}}, "new": True, "upsert": True,
                      "fields": {"a": 1}, "arrayFilters": []},
    "bulkWrite": {"bulkWrite": 1, "ops": [{"insert": 0, "document": {"a": 1}}, {"update": 0, "filter": {"a": 1}, "updateMods": {"$set": {"z": 1}}},
                  {"delete": 0, "filter": {"a": 98}}], "nsInfo": [{"ns": "hostile.c0"}], "ordered": True, "errorsOnly": False, "$db": "admin"},
    "count": {"count": _ANY, "query": _FILTER, "limit": 5, "skip": 1},
    "distinct": {"distinct": _ANY, "key": "tags", "query": {"a": {"$gt": 1}}},
    "explain": {"explain": {"find": "c0", "filter": _FILTER}, "verbosity": "executionStats"},
    "create": {"create": _ANY, "capped": True, "size": 4096, "max": 5, "validator": {"a": {"$gt": 0}}, "validationLevel": "strict", "validationAction": "warn",
               "viewOn": "c0", "pipeline": [{"$match": {"a": 1}}], "timeseries": {"timeField": "t"}, "clusteredIndex": {"key": {"_id": 1}, "unique": True},
               "expireAfterSeconds": 1, "changeStreamPreAndPostImages": {"enabled": True}, "idIndex": {"key": {"_id": 1}, "name": "_id_"}},
    "createIndexes": {"createIndexes": _ANY, "indexes": [{"key": {"a": 1, "s": -1}, "name": "x", "unique": False, "sparse": True,
                      "partialFilterExpression": {"a": {"$gt": 1}}, "expireAfterSeconds": 3600, "collation": {"locale": "fr"}, "hidden": True, "v": 2,
                      "weights": {"s": 1}, "wildcardProjection": {"a": 1}}], "commitQuorum": "votingMembers"},
    "dropIndexes": {"dropIndexes": _ANY, "index": "x"}, "drop": {"drop": _ANY}, "dropDatabase": {"dropDatabase": 1, "$db": "hostile2"},
    "collMod": {"collMod": _ANY, "index": {"name": "x", "hidden": True, "unique": True, "prepareUnique": True, "expireAfterSeconds": 5},
                "validator": {"a": 1}, "validationLevel": "off", "viewOn": "c1", "pipeline": [], "cappedSize": 8192, "cappedMax": 7, "dryRun": True},
    "renameCollection": {"renameCollection": "hostile.c5", "to": "hostile.c4", "dropTarget": True, "$db": "admin"},
    "convertToCapped": {"convertToCapped": _ANY, "size": 100_000, "max": 50},
    "cloneCollectionAsCapped": {"cloneCollectionAsCapped": _ANY, "toCollection": "capped", "size": 100_000, "max": 10},
    "compact": {"compact": _ANY, "force": True, "freeSpaceTargetMB": 1, "dryRun": True},
    "validate": {"validate": _ANY, "full": True, "repair": True, "metadata": False, "checkBSONConformance": True, "fixMultikey": True},
    "reIndex": {"reIndex": _ANY}, "collStats": {"collStats": _ANY, "scale": 1024}, "dbStats": {"dbStats": 1, "scale": 1, "freeStorage": 1},
    "dataSize": {"dataSize": "hostile.c0", "keyPattern": {"_id": 1}, "min": {"_id": 0}, "max": {"_id": 9}, "estimate": True},
    "dbHash": {"dbHash": 1, "collections": ["c0", "c1"]}, "listCollections": {"listCollections": 1, "filter": {"name": "c0"}, "nameOnly": True},
    "listDatabases": {"listDatabases": 1, "filter": {"name": "x"}, "nameOnly": True, "$db": "admin"}, "listIndexes": {"listIndexes": _ANY},
    "planCacheClear": {"planCacheClear": _ANY, "query": {"a": 1}, "sort": {}, "projection": {}}, "killCursors": {"killCursors": "c0", "cursors": [Int64(5)]},
    "killOp": {"killOp": 1, "op": 2**31 - 1, "$db": "admin"}, "currentOp": {"currentOp": 1, "$all": True, "$ownOps": True, "$db": "admin"},
    "endSessions": {"endSessions": [{"id": Binary(b"\7" * 16, 4)}]}, "refreshSessions": {"refreshSessions": [{"id": Binary(b"\7" * 16, 4)}]},
    "killSessions": {"killSessions": [{"id": Binary(b"\7" * 16, 4)}]}, "startSession": {"startSession": 1},
    "abortTransaction": {"abortTransaction": 1, "lsid": SHARED["lsid"], "txnNumber": Int64(1), "autocommit": False, "$db": "admin"},
    "commitTransaction": {"commitTransaction": 1, "lsid": SHARED["lsid"], "txnNumber": Int64(1), "autocommit": False, "$db": "admin"},
    "hello": {"hello": 1, "helloOk": True, "topologyVersion": {"processId": bson.ObjectId("0" * 24), "counter": Int64(0)}, "maxAwaitTimeMS": 50,
              "client": {"application": {"name": "x"}, "driver": {"name": "y", "version": "1"}, "os": {"type": "z"}}, "compression": ["zlib"], "$db": "admin"},
    "getParameter": {"getParameter": 1, "syncdelay": 1, "allParameters": True, "$db": "admin"}, "profile": {"profile": 2, "slowms": 0, "sampleRate": 0.5, "filter": {}},
    "getLog": {"getLog": "global", "$db": "admin"}, "top": {"top": 1, "$db": "admin"}, "serverStatus": {"serverStatus": 1, "metrics": 1, "$db": "admin"},
    "appendOplogNote": {"appendOplogNote": 1, "data": {"x": 1}, "$db": "admin"}, "fsync": {"fsync": 1, "$db": "admin"},
    "getClusterParameter": {"getClusterParameter": "*", "$db": "admin"}, "saslStart": {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=a,r=b")},
    "replSetSyncFrom": {"replSetSyncFrom": "127.0.0.1:1", "$db": "admin"}, "replSetResizeOplog": {"replSetResizeOplog": 1, "size": 990.0, "minRetentionHours": 0.1, "$db": "admin"},
    "replSetInitiate": {"replSetInitiate": {"_id": "other", "members": [{"_id": 0, "host": "127.0.0.1:1"}]}, "$db": "admin"},
}

# What changes the server for all its users on purpose: a test of its own, or an administrator's right to do harm.
LEFT_OUT = {
    "shutdown", "setParameter", "setClusterParameter", "configureFailPoint", "fsyncUnlock", "replSetStepDown", "replSetStepUp", "replSetReconfig",
    "replSetFreeze", "replSetMaintenance", "replSetTest", "setDefaultRWConcern", "setFeatureCompatibilityVersion", "logRotate", "killAllSessions",
    "killAllSessionsByPattern",
}


def command(random, names):
    """A command, as a dict."""
    name = random.choice(names)
    usual = copy.deepcopy(USUAL.get(name, {name: 1}))
    for field, value in usual.items():
        if value is _ANY:
            usual[field] = random.choice(COLLECTIONS)
    usual.setdefault("$db", random.choice(DATABASES))
    first, *others = usual
    # Rarely all of them: most commands would find a conflict, and look no further.
    kept = [field for field in others if field == "$db" or random.random() < random.choice([0.2, 0.5, 1])]
    made = {first: usual[first], **{field: usual[field] for field in kept}}
    for field in random.sample(sorted(SHARED), random.choice([0, 0, 0, 1, 2])):
        made.setdefault(field, SHARED[field])
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        put(random, made)
    if random.random() < 0.8 and "maxTimeMS" not in made:
        made["maxTimeMS"] = random.choice([1, 50, 500, 3000])
    if not str(made.get("$db")).startswith("hostile") and made.get("$db") != "admin":
        made["$db"] = "hostile"
    return made


def put(random, document):
    """Exchanges a value somewhere in a command."""
    at = document
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = random.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and random.random() < 0.6:
            at = at[key]
            continue
        if at is document and key == "$db":
            return
        at[key] = random.choice(EXTREMES)
        if isinstance(at, dict) and random.random() < 0.1:
            at[random.choice(["", "$x", "a.b", "_id", "0"])] = random.choice(EXTREMES)
        return


def encoded(random, made):
    """The command's bytes, now and then damaged."""
    try:
        data = bytearray(bson.encode(made))
    except (bson.errors.BSONError, OverflowError, UnicodeError):
        # Python refuses some (a NUL in a name); they can still be sent.
        return None
    if random.random() < 0.1:
        for _ in range(random.choice([1, 1, 2, 8])):
            data[random.randrange(4, len(data))] = random.choice([0, 1, 3, 4, 0x7F, 0x80, 0xFF, random.randrange(256)])
    elif random.random() < 0.02:
        data[:4] = struct.pack("<i", random.choice([-1, 0, 4, 5, len(data) - 1, len(data) + 1, 2**31 - 1]))
    return bytes(data)
