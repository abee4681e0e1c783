"""The driver scenario (see ../README.md) through PyMongo."""

import datetime
import os
import struct
import sys
import threading
import time
import traceback
import uuid

import gridfs
import pymongo
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, encode
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError, ClientBulkWriteException, DuplicateKeyError, OperationFailure

uri = os.environ["SHEAF_URI"]
client = pymongo.MongoClient(uri, serverSelectionTimeoutMS=60_000)
db = client["drivers_pymongo"]
steps = []


def step(function):
    steps.append(function)
    return function


def expect_code(code, function):
    try:
        function()
    except OperationFailure as error:
        assert error.code == code, f"expected code {code}, got {error.code}: {error}"
        return error
    raise AssertionError(f"expected error {code}, but the operation succeeded")


@step
def handshake():
    client.drop_database(db.name)
    assert client.admin.command("ping")["ok"] == 1.0
    hello = client.admin.command("hello")
    assert hello["isWritablePrimary"] is True and hello["maxWireVersion"] >= 25
    assert hello["maxBsonObjectSize"] == 16 * 1024 * 1024 and hello["maxMessageSizeBytes"] == 48_000_000
    assert client.server_info()["version"].startswith("8.")


@step
def bson_types():
    nested = {"a": [1, [2, {"b": []}], {}], "": "empty name", "dotted.name": 1, "$dollar": 2}
    values = {
        "minKey": MinKey(), "maxKey": MaxKey(), "null": None, "true": True, "false": False,
        "int32": -(2**31), "int64": Int64(2**63 - 1), "smallInt64": Int64(1),
        "double": 0.1, "nan": float("nan"), "infinity": float("-inf"), "negativeZero": -0.0,
        "decimal": Decimal128("1234567890.123456789012345678901234"), "decimalNaN": Decimal128("NaN"),
        "decimalZeros": Decimal128("1.500E+10"),
        "string": "grüße \U0001f33e", "emptyString": "", "nulInString": "a\x00b",
        "document": nested, "emptyDocument": {}, "array": [None, 1, "x", [[]]], "emptyArray": [],
        "objectId": ObjectId("5f1d7b3e9c8b4a0012345678"),
        "date": datetime.datetime(2024, 2, 29, 12, 30, 15, 123000), "dateBeforeEpoch": datetime.datetime(1901, 1, 1),
        "regex": Regex("^a.*b$", "im"), "code": Code("function () { return 1; }"), "codeWithScope": Code("x", {"x": 1}),
        "timestamp": Timestamp(1700000000, 7), "binary": Binary(b"\x00\xff\x10"), "binaryUser": Binary(b"u", 0x80),
        "binaryOld": Binary(b"old", 2), "uuid": Binary(uuid.UUID(int=1).bytes, 4), "md5": Binary(b"\x01" * 16, 5),
    }
    body = encode({"_id": 1, **values})[4:-1]
    # Three deprecated types that no driver writes any more, but that old data holds.
    body += b"\x06undefined\x00"
    body += b"\x0edeprecatedSymbol\x00" + struct.pack("<i", 4) + b"sym\x00"
    body += b"\x0cdbPointer\x00" + struct.pack("<i", 5) + b"ns.x\x00" + bytes(range(12))
    sent = struct.pack("<i", len(body) + 5) + body + b"\x00"
    collection = db.get_collection("types", codec_options=CodecOptions(document_class=RawBSONDocument))
    collection.insert_one(RawBSONDocument(sent))
    received = collection.find_one({"_id": 1}).raw
    assert received == sent, "the document came back with different bytes"
    # Each value finds its document, so the types survive comparison too.
    for name, value in values.items():
        if name in ("regex", "minKey", "maxKey", "null"):
            continue
        assert db.types.count_documents({name: {"$eq": value}}) == 1, f"{name} does not find itself"
    for name, alias in [("minKey", "minKey"), ("decimal", "decimal"), ("codeWithScope", "javascriptWithScope"),
                        ("uuid", "binData"), ("undefined", "undefined"), ("dbPointer", "dbPointer"), ("int64", "long")]:
        assert db.types.count_documents({name: {"$type": alias}}) == 1, f"$type {alias}"


@step
def crud():
    c = db.crud
    assert c.insert_one({"_id": 1, "name": "a", "tags": ["x", "y"], "n": 1}).inserted_id == 1
    assert c.insert_many([{"_id": i, "name": "b", "n": i} for i in range(2, 11)]).inserted_ids == list(range(2, 11))
    generated = c.insert_one({"name": "generated"}).inserted_id
    assert isinstance(generated, ObjectId) and c.delete_one({"_id": generated}).deleted_count == 1
    expect_code(11000, lambda: c.insert_one({"_id": 1}))
    assert c.find_one({"tags": "y"}) == {"_id": 1, "name": "a", "tags": ["x", "y"], "n": 1}
    found = list(c.find({"n": {"$gte": 3, "$lt": 9}}, {"n": 1, "_id": 0}).sort("n", -1).skip(1).limit(3))
    assert found == [{"n": 7}, {"n": 6}, {"n": 5}], found
    result = c.update_one({"_id": 1}, {"$set": {"deep.er": 1}, "$push": {"tags": "z"}, "$inc": {"n": 10}})
    assert (result.matched_count, result.modified_count) == (1, 1)
    assert c.find_one({"_id": 1}) == {"_id": 1, "name": "a", "tags": ["x", "y", "z"], "n": 11, "deep": {"er": 1}}
    result = c.update_many({"name": "b"}, {"$set": {"name": "c"}})
    assert (result.matched_count, result.modified_count) == (9, 9)
    result = c.update_many({"name": "c"}, {"$set": {"name": "c"}})
    assert (result.matched_count, result.modified_count) == (9, 0)
    result = c.update_one({"_id": "new"}, [{"$set": {"sum": {"$add": [1, 2]}}}], upsert=True)
    assert result.upserted_id == "new" and c.find_one({"_id": "new"}) == {"_id": "new", "sum": 3}
    assert c.replace_one({"_id": "new"}, {"replaced": True}).modified_count == 1
    assert c.find_one_and_update({"_id": 2}, {"$mul": {"n": 5}}, return_document=True)["n"] == 10
    assert c.find_one_and_delete({"_id": "new"}) == {"_id": "new", "replaced": True}
    assert c.count_documents({}) == 10 and c.estimated_document_count() == 10
    assert sorted(c.distinct("name")) == ["a", "c"]
    assert c.delete_many({"n": {"$gt": 5}}).deleted_count == 7
    expect_code(2, lambda: c.find_one({"n": {"$noSuchOperator": 1}}))


@step
def cursors():
    c = db.cursors
    c.insert_many([{"_id": i, "payload": "x" * 200} for i in range(20_000)])
    assert [d["_id"] for d in c.find().batch_size(500)] == list(range(20_000))
    assert sum(1 for _ in c.find({}, batch_size=7).limit(100)) == 100
    big = c.find({"_id": {"$lt": 5000}}, sort=[("_id", -1)], batch_size=1000)
    assert next(big)["_id"] == 4999 and big.alive
    cursor_id, address = big.cursor_id, big.address
    big.close()
    command = {"getMore": Int64(cursor_id), "collection": "cursors"}
    expect_code(43, lambda: db.command(command))
    assert address is not None
    assert len(list(c.aggregate([{"$match": {"_id": {"$gte": 10_000}}}], batchSize=300))) == 10_000


@step
def bulk_writes():
    c = db.bulk
    result = c.bulk_write([
        pymongo.InsertOne({"_id": 1}), pymongo.InsertOne({"_id": 2}),
        pymongo.UpdateOne({"_id": 1}, {"$set": {"x": 1}}), pymongo.UpdateMany({}, {"$set": {"y": 1}}),
        pymongo.ReplaceOne({"_id": 3}, {"z": 1}, upsert=True), pymongo.DeleteOne({"_id": 2}),
    ])
    assert (result.inserted_count, result.matched_count, result.modified_count) == (2, 3, 3)
    assert result.upserted_ids == {4: 3} and result.deleted_count == 1
    batch = [pymongo.InsertOne({"_id": i}) for i in (10, 1, 11, 1, 12)]
    for ordered, inserted, failed in ((True, 1, [1]), (False, 2, [0, 1, 3])):
        try:
            c.bulk_write(batch, ordered=ordered)
            raise AssertionError("duplicates were accepted")
        except BulkWriteError as error:
            assert error.details["nInserted"] == inserted, error.details
            assert [e["index"] for e in error.details["writeErrors"]] == failed
            assert all(e["code"] == 11000 for e in error.details["writeErrors"])
    models = [pymongo.InsertOne({"_id": i}, namespace=f"{db.name}.client_bulk_{i % 2}") for i in range(10)]
    assert client.bulk_write(models).inserted_count == 10
    try:
        client.bulk_write(models[:3], ordered=False)
        raise AssertionError("duplicates were accepted")
    except ClientBulkWriteException as error:
        assert [e["code"] for e in error.write_errors] == [11000] * 3
    assert db.client_bulk_1.count_documents({}) == 5


@step
def indexes():
    c = db.indexes
    c.insert_many([{"_id": i, "a": i % 10, "b": -i, "tags": [i, i + 1]} for i in range(1000)])
    assert c.create_index("a") == "a_1"
    assert c.create_index([("a", 1), ("b", -1)], name="compound") == "compound"
    assert c.create_index("b", unique=True) == "b_1"
    assert c.create_index("tags", sparse=True) == "tags_1"
    listed = {i["name"]: i for i in c.list_indexes()}
    assert list(listed) == ["_id_", "a_1", "compound", "b_1", "tags_1"]
    assert listed["b_1"]["unique"] is True and dict(listed["compound"]["key"]) == {"a": 1, "b": -1}
    error = expect_code(11000, lambda: c.insert_one({"_id": "dup", "b": -5}))
    assert isinstance(error, DuplicateKeyError)
    assert error.details["keyPattern"] == {"b": 1} and error.details["keyValue"] == {"b": -5}
    expect_code(11000, lambda: c.create_index([("a", 1), ("missing", 1)], unique=True))
    expect_code(86, lambda: c.create_index("tags", name="tags_1"))
    assert [d["_id"] for d in c.find({"a": 3, "b": {"$lt": -980}}).sort("b", 1)] == [993, 983]
    plan = c.find({"a": 3, "b": {"$lt": -980}}).explain()["queryPlanner"]["winningPlan"]
    assert "IXSCAN" in str(plan), plan
    assert sorted(d["_id"] for d in c.find({"tags": 500})) == [499, 500]
    c.drop_index("compound")
    expect_code(27, lambda: c.drop_index("compound"))
    c.drop_indexes()
    assert [i["name"] for i in c.list_indexes()] == ["_id_"]


@step
def transactions():
    c = db.accounts
    c.insert_many([{"_id": "a", "balance": 100}, {"_id": "b", "balance": 0}])
    with client.start_session() as session:
        with session.start_transaction():
            c.update_one({"_id": "a"}, {"$inc": {"balance": -30}}, session=session)
            c.update_one({"_id": "b"}, {"$inc": {"balance": 30}}, session=session)
            assert c.find_one({"_id": "b"}, session=session)["balance"] == 30
            assert c.find_one({"_id": "b"})["balance"] == 0, "a dirty read"
        assert c.find_one({"_id": "b"})["balance"] == 30
        session.start_transaction()
        c.insert_one({"_id": "c"}, session=session)
        session.abort_transaction()
        assert c.find_one({"_id": "c"}) is None
    with client.start_session() as first, client.start_session() as second:
        first.start_transaction()
        second.start_transaction()
        c.update_one({"_id": "a"}, {"$inc": {"balance": 1}}, session=first)
        error = expect_code(112, lambda: c.update_one({"_id": "a"}, {"$inc": {"balance": 2}}, session=second))
        assert error.has_error_label("TransientTransactionError")
        first.commit_transaction()
        second.abort_transaction()
    assert c.find_one({"_id": "a"})["balance"] == 71
    with client.start_session() as session:
        session.with_transaction(lambda s: c.update_one({"_id": "a"}, {"$set": {"done": True}}, session=s))
    assert c.find_one({"_id": "a"})["done"] is True


@step
def gridfs_files():
    bucket = gridfs.GridFSBucket(db, bucket_name="files", chunk_size_bytes=64 * 1024)
    content = bytes(range(256)) * 5000
    file_id = bucket.upload_from_stream("data.bin", content, metadata={"kind": "test"})
    assert bucket.open_download_stream(file_id).read() == content
    assert db["files.chunks"].count_documents({"files_id": file_id}) == (len(content) + 65535) // 65536
    assert [f.filename for f in bucket.find({"metadata.kind": "test"})] == ["data.bin"]
    bucket.delete(file_id)
    assert db["files.chunks"].count_documents({}) == 0


@step
def tailable_cursor():
    c = db.create_collection("capped", capped=True, size=1024 * 1024, max=100)
    c.insert_many([{"_id": i} for i in range(150)])
    assert [d["_id"] for d in c.find()] == list(range(50, 150))
    assert [d["_id"] for d in c.find().sort("$natural", -1).limit(2)] == [149, 148]
    tail = c.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(120_000)
    assert [next(tail)["_id"] for _ in range(100)][-1] == 149

    def later():
        time.sleep(0.3)
        c.insert_one({"_id": "woken"})

    writer = threading.Thread(target=later)
    began = time.monotonic()
    writer.start()
    received = next(tail, None)
    waited = time.monotonic() - began
    writer.join()
    assert received == {"_id": "woken"} and 0.2 < waited < 100, (received, waited)
    quiet = c.find(cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(300)
    for _ in range(100):
        next(quiet)
    began = time.monotonic()
    assert next(quiet, None) is None and quiet.alive and time.monotonic() - began >= 0.25
    tail.close()
    quiet.close()


@step
def aggregation():
    db.customers.insert_many([{"_id": i, "name": f"customer {i}"} for i in range(10)])
    db.orders.insert_many([{"_id": i, "customer": i % 10, "total": i, "items": [{"sku": i % 3}, {"sku": i % 5}]}
                           for i in range(500)])
    got = list(db.orders.aggregate([
        {"$match": {"total": {"$gte": 100}}},
        {"$group": {"_id": "$customer", "sum": {"$sum": "$total"}, "orders": {"$count": {}}, "max": {"$max": "$total"}}},
        {"$lookup": {"from": "customers", "localField": "_id", "foreignField": "_id", "as": "customer"}},
        {"$unwind": "$customer"},
        {"$project": {"_id": 0, "name": "$customer.name", "sum": 1, "orders": 1, "max": 1}},
        {"$sort": {"name": 1}},
    ]))
    expected = []
    for customer in range(10):
        totals = [i for i in range(100, 500) if i % 10 == customer]
        expected.append({"sum": sum(totals), "orders": len(totals), "max": max(totals), "name": f"customer {customer}"})
    assert got == expected, got
    facet = next(db.orders.aggregate([{"$facet": {
        "count": [{"$count": "n"}],
        "skus": [{"$unwind": "$items"}, {"$sortByCount": "$items.sku"}, {"$limit": 1}],
        "buckets": [{"$bucket": {"groupBy": "$total", "boundaries": [0, 100, 300, 1000]}}],
    }}]))
    skus = [i % 3 for i in range(500)] + [i % 5 for i in range(500)]
    assert facet["count"] == [{"n": 500}]
    assert facet["skus"] == [{"_id": 0, "count": skus.count(0)}]
    assert facet["buckets"] == [{"_id": 0, "count": 100}, {"_id": 100, "count": 200}, {"_id": 300, "count": 200}]
    db.orders.aggregate([{"$match": {"customer": 3}}, {"$out": "out"}])
    assert db.out.count_documents({}) == 50
    expect_code(40324, lambda: list(db.orders.aggregate([{"$noSuchStage": {}}])))


def main():
    failed = 0
    for function in steps:
        try:
            function()
            print(f"ok   {function.__name__}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {function.__name__}: {type(error).__name__}: {error}", flush=True)
            if os.environ.get("SHEAF_VERBOSE"):
                traceback.print_exc()
    client.drop_database(db.name)
    print(f"pymongo {pymongo.version}: {len(steps) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
