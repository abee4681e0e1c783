"""The pages of MongoDB's manual on commands of sharded clusters, and on their limitations: what each refuses, and by which code."""

import bson
from pymongo.errors import OperationFailure

from checks import check

LOW, HIGH = bson.MinKey(), bson.MaxKey()
SHARDED, PLAIN, VIEW, CAPPED, NONE, NEW = (f"pages.{name}" for name in ("plants", "plain", "view", "log", "nothing", "new"))

# A command for a router, on admin, and its code; 0 where it is done.
ADMIN = [
    (166, {"shardCollection": VIEW, "key": {"k": 1}}),
    (72, {"shardCollection": CAPPED, "key": {"_id": 1}}),
    (23, {"shardCollection": SHARDED, "key": {"other": 1}}),
    (0, {"shardCollection": SHARDED, "key": {"k": 1}}),
    (73, {"shardCollection": "pages", "key": {"k": 1}}),
    (14, {"shardCollection": 1, "key": {"k": 1}}),
    (40414, {"shardCollection": NEW}),
    (2, {"shardCollection": NEW, "key": {}}),
    (2, {"shardCollection": NEW, "key": {"k": -1}}),
    (2, {"shardCollection": NEW, "key": {"k": "text"}}),
    (2, {"shardCollection": NEW, "key": {"k": "hashed", "j": "hashed"}}),
    (72, {"shardCollection": NEW, "key": {"k": "hashed"}, "unique": True}),
    (2, {"shardCollection": NEW, "key": {"k": 1}, "collation": {"locale": "de"}}),
    (72, {"shardCollection": NEW, "key": {"k": 1}, "presplitHashedZones": True}),
    (72, {"shardCollection": PLAIN, "key": {"other": 1}}),
    (20, {"shardCollection": "admin.new", "key": {"k": 1}}),
    (20, {"shardCollection": "config.new", "key": {"k": 1}}),
    (72, {"enableSharding": "admin"}),
    (73, {"enableSharding": "a.b"}),
    (73, {"enableSharding": ""}),
    (70, {"enableSharding": "pagesnew", "primaryShard": "nowhere"}),
    (13297, {"enableSharding": "PAGES"}),
    (72, {"split": SHARDED}),
    (72, {"split": SHARDED, "find": {"k": 1}, "middle": {"k": 1}}),
    (118, {"split": PLAIN, "middle": {"_id": 1}}),
    (72, {"split": SHARDED, "middle": {"k": LOW}}),
    (2, {"split": SHARDED, "middle": {"other": 1}}),
    (0, {"split": SHARDED, "middle": {"k": 10}}),
    (72, {"split": SHARDED, "middle": {"k": 10}}),
    (40414, {"moveChunk": SHARDED, "find": {"k": 1}}),
    (70, {"moveChunk": SHARDED, "find": {"k": 1}, "to": "nowhere"}),
    (72, {"moveChunk": SHARDED, "find": {"k": 1}, "bounds": [{"k": LOW}, {"k": 10}], "to": "shard1"}),
    (72, {"moveChunk": SHARDED, "to": "shard1"}),
    (72, {"moveChunk": SHARDED, "bounds": [{"k": 1}, {"k": 2}], "to": "shard1"}),
    (118, {"moveChunk": PLAIN, "find": {"_id": 1}, "to": "shard1"}),
    (72, {"moveRange": SHARDED, "toShard": "shard1"}),
    (40414, {"moveRange": SHARDED, "min": {"k": 1}}),
    (70, {"moveRange": SHARDED, "toShard": "nowhere", "min": {"k": 1}}),
    (2, {"moveRange": SHARDED, "toShard": "shard1", "min": {"other": 1}}),
    (2, {"moveRange": SHARDED, "toShard": "shard1", "min": {"k": 9}, "max": {"k": 3}}),
    (118, {"moveRange": PLAIN, "toShard": "shard1", "min": {"_id": 1}}),
    (40414, {"mergeChunks": SHARDED}),
    (2, {"mergeChunks": SHARDED, "bounds": [{"k": 1}, {"k": 2}]}),
    (0, {"mergeChunks": SHARDED, "bounds": [{"k": LOW}, {"k": HIGH}]}),
    (70, {"mergeAllChunksOnShard": SHARDED, "shard": "nowhere"}),
    (118, {"mergeAllChunksOnShard": PLAIN, "shard": "shard0"}),
    (118, {"clearJumboFlag": PLAIN, "find": {"_id": 1}}),
    (0, {"clearJumboFlag": SHARDED, "find": {"k": 1}}),
    (70, {"addShardToZone": "nowhere", "zone": "pages"}),
    (40414, {"addShardToZone": "shard0"}),
    (70, {"removeShardFromZone": "nowhere", "zone": "pages"}),
    (177, {"updateZoneKeyRange": SHARDED, "min": {"k": 1}, "max": {"k": 5}, "zone": "nozone"}),
    (0, {"addShardToZone": "shard0", "zone": "pages"}),
    (0, {"updateZoneKeyRange": SHARDED, "min": {"k": 1}, "max": {"k": 5}, "zone": "pages"}),
    (178, {"updateZoneKeyRange": SHARDED, "min": {"k": 2}, "max": {"k": 7}, "zone": "pages"}),
    (9, {"updateZoneKeyRange": SHARDED, "min": {"k": 9}, "max": {"k": 7}, "zone": "pages"}),
    (9, {"updateZoneKeyRange": SHARDED, "min": {"k": 9}, "max": {"k": 9}, "zone": "pages"}),
    (61, {"updateZoneKeyRange": SHARDED, "min": {"j": 8}, "max": {"j": 9}, "zone": "pages"}),
    (163, {"removeShardFromZone": "shard0", "zone": "pages"}),
    (0, {"updateZoneKeyRange": SHARDED, "min": {"k": 1}, "max": {"k": 5}, "zone": None}),
    (0, {"removeShardFromZone": "shard0", "zone": "pages"}),
    (118, {"refineCollectionShardKey": PLAIN, "key": {"_id": 1}}),
    (72, {"refineCollectionShardKey": SHARDED, "key": {"other": 1}}),
    (72, {"refineCollectionShardKey": SHARDED, "key": {"k": 1, "other": 1}}),
    (0, {"refineCollectionShardKey": SHARDED, "key": {"k": 1}}),
    (118, {"reshardCollection": PLAIN, "key": {"_id": 1}}),
    (118, {"reshardCollection": NONE, "key": {"a": 1}}),
    (2, {"reshardCollection": SHARDED, "key": {"other": 1}, "unique": True}),
    (40414, {"reshardCollection": SHARDED}),
    (26, {"moveCollection": NONE, "toShard": "shard1"}),
    (70, {"moveCollection": PLAIN, "toShard": "nowhere"}),
    (166, {"moveCollection": VIEW, "toShard": "shard1"}),
    (26, {"unshardCollection": PLAIN}),
    (70, {"unshardCollection": SHARDED, "toShard": "nowhere"}),
    (70, {"movePrimary": "pages", "to": "nowhere"}),
    (72, {"movePrimary": "admin", "to": "shard1"}),
    (26, {"movePrimary": "pagesnone", "to": "shard1"}),
    (40414, {"movePrimary": "pages"}),
    (70, {"removeShard": "nowhere"}),
    (70, {"startShardDraining": "nowhere"}),
    (70, {"stopShardDraining": "nowhere"}),
    (118, {"balancerCollectionStatus": PLAIN}),
    (118, {"configureCollectionBalancing": PLAIN}),
    (72, {"configureCollectionBalancing": SHARDED, "chunkSize": 2000}),
    (72, {"configureCollectionBalancing": SHARDED, "chunkSize": -1}),
    (118, {"getShardVersion": NONE}),
    (0, {"getShardVersion": SHARDED}),
    (0, {"flushRouterConfig": SHARDED}),
    (339, {"commitReshardCollection": SHARDED}),
    (339, {"abortReshardCollection": SHARDED}),
    (339, {"abortMoveCollection": PLAIN}),
    (339, {"abortUnshardCollection": SHARDED}),
    (0, {"cleanupReshardCollection": SHARDED}),
    # What only shards, or members of sets, have.
    (59, {"cleanupOrphaned": SHARDED}),
    (59, {"shardingState": 1}),
    (59, {"replSetGetStatus": 1}),
    (125, {"renameCollection": SHARDED, "to": "pagesother.plants"}),
]

# The same on the database, on the page of limitations.
LIMITS = [
    (72, {"update": "plants", "updates": [{"q": {}, "u": {"$set": {"k": 5}}, "multi": True}]}),
    (61, {"insert": "plants", "documents": [{"_id": "a", "k": [1, 2]}]}),
    (0, {"insert": "plants", "documents": [{"_id": "b", "other": 1}]}),
    (0, {"delete": "plants", "deletes": [{"q": {"other": 1}, "limit": 1}]}),
    (0, {"findAndModify": "plants", "query": {"other": 1}, "update": {"$set": {"n": 1}}}),
    (20, {"convertToCapped": "plants", "size": 4096}),
    (67, {"createIndexes": "plants", "indexes": [{"key": {"z": 1}, "name": "z", "unique": True}]}),
    (0, {"createIndexes": "plants", "indexes": [{"key": {"k": 1, "z": 1}, "name": "kz", "unique": True}]}),
    (0, {"dropIndexes": "plants", "index": "kz"}),
    (370, {"dropIndexes": "plants", "index": "k_1"}),
    (28769, {"aggregate": "plain", "pipeline": [{"$out": "plants"}], "cursor": {}}),
    (2, {"find": "plants", "tailable": True}),
    (27, {"collMod": "plants", "index": {"keyPattern": {"q": 1}, "expireAfterSeconds": 5}}),
    (59, {"geoSearch": "plants"}),
    (59, {"group": {"ns": "plants"}}),
]


def code_of(db, command):
    try:
        reply = db.command(command)
    except OperationFailure as error:
        return error.code
    errors = reply.get("writeErrors", [])
    return errors[0]["code"] if errors else 0


@check
def each_page_and_limitation(cluster):
    with cluster.client(0) as client:
        client.admin.command("enableSharding", "pages", primaryShard="shard0")
        client.admin.command("shardCollection", SHARDED, key={"k": 1})
        client.pages.plants.insert_many([{"_id": at, "k": at} for at in range(20)])
        client.pages.plain.insert_one({"_id": 1})
        client.pages.create_collection("view", viewOn="plain", pipeline=[])
        client.pages.create_collection("log", capped=True, size=4096)
        wrong = [(command, expected, found) for db, cases in ((client.admin, ADMIN), (client.pages, LIMITS))
                 for expected, command in cases if (found := code_of(db, command)) != expected]
        assert not wrong, "\n".join(f"{command}: {found}, expected {expected}" for command, expected, found in wrong)
        client.drop_database("pages")
