package sheaf;

import static com.mongodb.client.model.Filters.and;
import static com.mongodb.client.model.Filters.eq;
import static com.mongodb.client.model.Filters.gt;
import static com.mongodb.client.model.Filters.gte;
import static com.mongodb.client.model.Filters.lt;

import com.mongodb.ClientBulkWriteException;
import com.mongodb.CursorType;
import com.mongodb.MongoBulkWriteException;
import com.mongodb.MongoException;
import com.mongodb.MongoNamespace;
import com.mongodb.client.AggregateIterable;
import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.MongoCursor;
import com.mongodb.client.MongoDatabase;
import com.mongodb.client.gridfs.GridFSBucket;
import com.mongodb.client.gridfs.GridFSBuckets;
import com.mongodb.client.gridfs.model.GridFSUploadOptions;
import com.mongodb.client.model.BulkWriteOptions;
import com.mongodb.client.model.CreateCollectionOptions;
import com.mongodb.client.model.DeleteOneModel;
import com.mongodb.client.model.FindOneAndUpdateOptions;
import com.mongodb.client.model.IndexOptions;
import com.mongodb.client.model.InsertOneModel;
import com.mongodb.client.model.ReplaceOneModel;
import com.mongodb.client.model.ReplaceOptions;
import com.mongodb.client.model.ReturnDocument;
import com.mongodb.client.model.UpdateManyModel;
import com.mongodb.client.model.UpdateOneModel;
import com.mongodb.client.model.UpdateOptions;
import com.mongodb.client.model.WriteModel;
import com.mongodb.client.model.bulk.ClientBulkWriteOptions;
import com.mongodb.client.model.bulk.ClientNamespacedWriteModel;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.bson.BsonArray;
import org.bson.BsonBinary;
import org.bson.BsonBoolean;
import org.bson.BsonDateTime;
import org.bson.BsonDbPointer;
import org.bson.BsonDecimal128;
import org.bson.BsonDocument;
import org.bson.BsonDouble;
import org.bson.BsonInt32;
import org.bson.BsonInt64;
import org.bson.BsonJavaScript;
import org.bson.BsonJavaScriptWithScope;
import org.bson.BsonMaxKey;
import org.bson.BsonMinKey;
import org.bson.BsonNull;
import org.bson.BsonObjectId;
import org.bson.BsonRegularExpression;
import org.bson.BsonString;
import org.bson.BsonSymbol;
import org.bson.BsonTimestamp;
import org.bson.BsonUndefined;
import org.bson.BsonValue;
import org.bson.Document;
import org.bson.types.Decimal128;
import org.bson.types.ObjectId;

/** The driver scenario (see ../README.md) through the synchronous Java driver. */
public final class Scenario {
    private static MongoClient client;
    private static MongoDatabase db;

    private interface Step {
        void run() throws Exception;
    }

    private static void ensure(boolean condition, String message) {
        if (!condition) {
            throw new AssertionError(message);
        }
    }

    private static void equal(Object got, Object want) {
        ensure(Objects.deepEquals(got, want), "got " + got + ", want " + want);
    }

    private static MongoException expectCode(int code, Step step) throws Exception {
        try {
            step.run();
        } catch (MongoException error) {
            int got = error instanceof MongoBulkWriteException bulk ? bulk.getWriteErrors().get(0).getCode() : error.getCode();
            ensure(got == code, "expected code " + code + ", got " + got + ": " + error.getMessage());
            return error;
        }
        throw new AssertionError("expected error " + code + ", but the operation succeeded");
    }

    private static List<Document> all(Iterable<Document> documents) {
        List<Document> list = new ArrayList<>();
        documents.forEach(list::add);
        return list;
    }

    private static List<Object> ids(Iterable<Document> documents) {
        return new ArrayList<>(all(documents).stream().map(d -> d.get("_id")).toList());
    }

    private static List<Object> numbers(int from, int to) {
        return new ArrayList<>(IntStream.range(from, to).boxed().toList());
    }

    private static List<Document> documents(int from, int to, IntFunction<Document> make) {
        return IntStream.range(from, to).mapToObj(make).toList();
    }

    private static Document doc(Object... pairs) {
        Document document = new Document();
        for (int i = 0; i < pairs.length; i += 2) {
            document.append((String) pairs[i], pairs[i + 1]);
        }
        return document;
    }

    private static void handshake() {
        db.drop();
        equal(db.runCommand(doc("ping", 1)).get("ok"), 1.0);
        Document hello = db.runCommand(doc("hello", 1));
        equal(hello.get("isWritablePrimary"), true);
        ensure(hello.getInteger("maxWireVersion") >= 25, "maxWireVersion " + hello.get("maxWireVersion"));
        ensure(db.runCommand(doc("buildInfo", 1)).getString("version").startsWith("8."), "not version 8");
    }

    private static void bsonTypes() {
        ObjectId id = new ObjectId("5f1d7b3e9c8b4a0012345678");
        BsonDocument nested = BsonDocument.parse("{a: [1, [2, {b: []}], {}], '': 'empty name', 'dotted.name': 1}");
        nested.append("$dollar", new BsonInt32(2));
        BsonDocument values = new BsonDocument("_id", new BsonInt32(1))
                .append("minKey", new BsonMinKey()).append("maxKey", new BsonMaxKey()).append("null", new BsonNull())
                .append("true", BsonBoolean.TRUE).append("int32", new BsonInt32(Integer.MIN_VALUE))
                .append("int64", new BsonInt64(Long.MAX_VALUE)).append("smallInt64", new BsonInt64(1))
                .append("double", new BsonDouble(0.1)).append("nan", new BsonDouble(Double.NaN))
                .append("infinity", new BsonDouble(Double.NEGATIVE_INFINITY)).append("negativeZero", new BsonDouble(-0.0))
                .append("decimal", new BsonDecimal128(Decimal128.parse("1234567890.123456789012345678901234")))
                .append("decimalNaN", new BsonDecimal128(Decimal128.NaN))
                .append("decimalZeros", new BsonDecimal128(Decimal128.parse("1.500E+10")))
                .append("string", new BsonString("grüße \ud83c\udf3e")).append("emptyString", new BsonString(""))
                .append("nulInString", new BsonString("a\u0000b")).append("document", nested)
                .append("emptyDocument", new BsonDocument()).append("emptyArray", new BsonArray())
                .append("array", BsonArray.parse("[null, 1, 'x', [[]]]")).append("objectId", new BsonObjectId(id))
                .append("date", new BsonDateTime(1709209815123L)).append("dateBeforeEpoch", new BsonDateTime(-2177452800000L))
                .append("regex", new BsonRegularExpression("^a.*b$", "im"))
                .append("code", new BsonJavaScript("function () { return 1; }"))
                .append("codeWithScope", new BsonJavaScriptWithScope("x", new BsonDocument("x", new BsonInt32(1))))
                .append("timestamp", new BsonTimestamp(1700000000, 7)).append("binary", new BsonBinary(new byte[] {0, -1, 16}))
                .append("binaryUser", new BsonBinary((byte) 0x80, new byte[] {117}))
                .append("uuid", new BsonBinary((byte) 4, new byte[16])).append("undefined", new BsonUndefined())
                .append("symbol", new BsonSymbol("sym")).append("dbPointer", new BsonDbPointer("ns.x", id));
        MongoCollection<BsonDocument> types = db.getCollection("types", BsonDocument.class);
        types.insertOne(values);
        BsonDocument received = types.find(eq("_id", 1)).first();
        equal(received, values);
        equal(new ArrayList<>(received.keySet()), new ArrayList<>(values.keySet()));
        for (Map.Entry<String, BsonValue> value : values.entrySet()) {
            if (List.of("regex", "minKey", "maxKey", "null", "undefined").contains(value.getKey())) {
                continue;
            }
            Document filter = doc(value.getKey(), doc("$eq", value.getValue()));
            ensure(types.countDocuments(filter) == 1, value.getKey() + " does not find itself");
        }
        for (String[] typed : new String[][] {{"decimal", "decimal"}, {"undefined", "undefined"}, {"int64", "long"}}) {
            equal(types.countDocuments(doc(typed[0], doc("$type", typed[1]))), 1L);
        }
    }

    private static void crud() throws Exception {
        MongoCollection<Document> c = db.getCollection("crud");
        c.insertOne(doc("_id", 1, "name", "a", "tags", List.of("x", "y"), "n", 1));
        c.insertMany(documents(2, 11, i -> doc("_id", i, "name", "b", "n", i)));
        expectCode(11000, () -> c.insertOne(doc("_id", 1)));
        equal(c.find(eq("tags", "y")).first(), doc("_id", 1, "name", "a", "tags", List.of("x", "y"), "n", 1));
        List<Document> found = all(c.find(and(gte("n", 3), lt("n", 9))).projection(doc("n", 1, "_id", 0)).sort(doc("n", -1))
                .skip(1).limit(3));
        equal(found, List.of(doc("n", 7), doc("n", 6), doc("n", 5)));
        Document change = doc("$set", doc("deep.er", 1), "$push", doc("tags", "z"), "$inc", doc("n", 10));
        equal(c.updateOne(eq("_id", 1), change).getModifiedCount(), 1L);
        equal(c.updateMany(eq("name", "b"), doc("$set", doc("name", "c"))).getModifiedCount(), 9L);
        equal(c.updateMany(eq("name", "c"), doc("$set", doc("name", "c"))).getModifiedCount(), 0L);
        List<Document> pipeline = List.of(doc("$set", doc("sum", doc("$add", List.of(1, 2)))));
        var upserted = c.updateOne(eq("_id", "new"), pipeline, new UpdateOptions().upsert(true));
        equal(upserted.getUpsertedId(), new BsonString("new"));
        equal(c.find(eq("_id", "new")).first(), doc("_id", "new", "sum", 3));
        equal(c.replaceOne(eq("_id", "new"), doc("replaced", true)).getModifiedCount(), 1L);
        var returnAfter = new FindOneAndUpdateOptions().returnDocument(ReturnDocument.AFTER);
        equal(c.findOneAndUpdate(eq("_id", 2), doc("$mul", doc("n", 5)), returnAfter).get("n"), 10);
        equal(c.findOneAndDelete(eq("_id", "new")), doc("_id", "new", "replaced", true));
        equal(c.countDocuments(), 10L);
        equal(c.estimatedDocumentCount(), 10L);
        List<String> names = c.distinct("name", String.class).into(new ArrayList<>());
        equal(names, List.of("a", "c"));
        equal(c.deleteMany(gt("n", 5)).getDeletedCount(), 7L);
        expectCode(2, () -> c.find(doc("n", doc("$noSuchOperator", 1))).first());
    }

    private static void cursors() throws Exception {
        MongoCollection<Document> c = db.getCollection("cursors");
        String payload = "x".repeat(200);
        c.insertMany(documents(0, 20000, i -> doc("_id", i, "payload", payload)));
        equal(ids(c.find().batchSize(500)), numbers(0, 20000));
        equal(all(c.find().batchSize(7).limit(100)).size(), 100);
        long id;
        try (MongoCursor<Document> big = c.find().sort(doc("_id", -1)).batchSize(1000).cursor()) {
            equal(big.next().get("_id"), 19999);
            id = big.getServerCursor().getId();
        }
        expectCode(43, () -> db.runCommand(doc("getMore", id, "collection", "cursors")));
        AggregateIterable<Document> half = c.aggregate(List.of(doc("$match", doc("_id", doc("$gte", 10000)))));
        equal(all(half.batchSize(300)).size(), 10000);
    }

    private static void bulkWrites() throws Exception {
        MongoCollection<Document> c = db.getCollection("bulk");
        var result = c.bulkWrite(List.of(
                new InsertOneModel<>(doc("_id", 1)), new InsertOneModel<>(doc("_id", 2)),
                new UpdateOneModel<>(eq("_id", 1), doc("$set", doc("x", 1))),
                new UpdateManyModel<>(doc(), doc("$set", doc("y", 1))),
                new ReplaceOneModel<>(eq("_id", 3), doc("z", 1), new ReplaceOptions().upsert(true)),
                new DeleteOneModel<>(eq("_id", 2))));
        equal(List.of(result.getInsertedCount(), result.getMatchedCount(), result.getModifiedCount(), result.getDeletedCount()),
                List.of(2, 3, 3, 1));
        equal(result.getUpserts().get(0).getIndex(), 4);
        List<WriteModel<Document>> batch = new ArrayList<>();
        for (int i : new int[] {10, 1, 11, 1, 12}) {
            batch.add(new InsertOneModel<>(doc("_id", i)));
        }
        for (boolean ordered : new boolean[] {true, false}) {
            var error = (MongoBulkWriteException) expectCode(11000, () -> c.bulkWrite(batch, new BulkWriteOptions().ordered(ordered)));
            List<Integer> failed = error.getWriteErrors().stream().map(e -> e.getIndex()).toList();
            equal(failed, ordered ? List.of(1) : List.of(0, 1, 3));
            equal(error.getWriteResult().getInsertedCount(), ordered ? 1 : 2);
        }
        List<ClientNamespacedWriteModel> models = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            var namespace = new MongoNamespace(db.getName(), "client_bulk_" + i % 2);
            models.add(ClientNamespacedWriteModel.insertOne(namespace, doc("_id", i)));
        }
        equal(client.bulkWrite(models).getInsertedCount(), 10L);
        try {
            client.bulkWrite(models.subList(0, 3), ClientBulkWriteOptions.clientBulkWriteOptions().ordered(false));
            throw new AssertionError("duplicates were accepted");
        } catch (ClientBulkWriteException error) {
            equal(error.getWriteErrors().size(), 3);
        }
        equal(db.getCollection("client_bulk_1").countDocuments(), 5L);
    }

    private static List<Object> indexNames(MongoCollection<Document> c) {
        return new ArrayList<>(all(c.listIndexes()).stream().map(i -> i.get("name")).toList());
    }

    private static void indexes() throws Exception {
        MongoCollection<Document> c = db.getCollection("indexes");
        c.insertMany(documents(0, 1000, i -> doc("_id", i, "a", i % 10, "b", -i, "tags", List.of(i, i + 1))));
        equal(c.createIndex(doc("a", 1)), "a_1");
        equal(c.createIndex(doc("a", 1, "b", -1), new IndexOptions().name("compound")), "compound");
        equal(c.createIndex(doc("b", 1), new IndexOptions().unique(true)), "b_1");
        equal(c.createIndex(doc("tags", 1), new IndexOptions().sparse(true)), "tags_1");
        equal(indexNames(c), new ArrayList<Object>(List.of("_id_", "a_1", "compound", "b_1", "tags_1")));
        equal(all(c.listIndexes()).get(3).get("unique"), true);
        expectCode(11000, () -> c.insertOne(doc("_id", "dup", "b", -5)));
        expectCode(11000, () -> c.createIndex(doc("a", 1, "missing", 1), new IndexOptions().unique(true)));
        expectCode(86, () -> c.createIndex(doc("tags", 1), new IndexOptions().name("tags_1")));
        var filter = and(eq("a", 3), lt("b", -980));
        equal(ids(c.find(filter).sort(doc("b", 1))), new ArrayList<Object>(List.of(993, 983)));
        ensure(c.find(filter).explain().toJson().contains("IXSCAN"), "no index used");
        equal(ids(c.find(eq("tags", 500)).sort(doc("_id", 1))), new ArrayList<Object>(List.of(499, 500)));
        c.dropIndex("compound");
        c.dropIndexes();
        equal(indexNames(c), new ArrayList<Object>(List.of("_id_")));
    }

    private static void transactions() throws Exception {
        MongoCollection<Document> c = db.getCollection("accounts");
        c.insertMany(List.of(doc("_id", "a", "balance", 100), doc("_id", "b", "balance", 0)));
        try (ClientSession first = client.startSession(); ClientSession second = client.startSession()) {
            first.startTransaction();
            c.updateOne(first, eq("_id", "a"), doc("$inc", doc("balance", -30)));
            c.updateOne(first, eq("_id", "b"), doc("$inc", doc("balance", 30)));
            equal(c.find(first, eq("_id", "b")).first().get("balance"), 30);
            equal(c.find(eq("_id", "b")).first().get("balance"), 0);
            first.commitTransaction();
            equal(c.find(eq("_id", "b")).first().get("balance"), 30);
            first.startTransaction();
            c.insertOne(first, doc("_id", "c"));
            first.abortTransaction();
            equal(c.find(eq("_id", "c")).first(), null);
            first.startTransaction();
            second.startTransaction();
            c.updateOne(first, eq("_id", "a"), doc("$inc", doc("balance", 1)));
            MongoException error = expectCode(112, () -> c.updateOne(second, eq("_id", "a"), doc("$inc", doc("balance", 2))));
            ensure(error.hasErrorLabel("TransientTransactionError"), "no TransientTransactionError label");
            first.commitTransaction();
            second.abortTransaction();
            equal(c.find(eq("_id", "a")).first().get("balance"), 71);
            first.withTransaction(() -> c.updateOne(first, eq("_id", "a"), doc("$set", doc("done", true))));
            equal(c.find(eq("_id", "a")).first().get("done"), true);
        }
    }

    private static void gridfsFiles() {
        GridFSBucket bucket = GridFSBuckets.create(db, "files");
        byte[] content = new byte[256 * 5000];
        for (int i = 0; i < content.length; i++) {
            content[i] = (byte) i;
        }
        var options = new GridFSUploadOptions().chunkSizeBytes(64 * 1024).metadata(doc("kind", "test"));
        ObjectId id = bucket.uploadFromStream("data.bin", new ByteArrayInputStream(content), options);
        ByteArrayOutputStream received = new ByteArrayOutputStream();
        bucket.downloadToStream(id, received);
        ensure(Arrays.equals(received.toByteArray(), content), "the file came back with different bytes");
        MongoCollection<Document> chunks = db.getCollection("files.chunks");
        equal(chunks.countDocuments(eq("files_id", id)), (long) (content.length + 65535) / 65536);
        equal(bucket.find(eq("metadata.kind", "test")).first().getFilename(), "data.bin");
        bucket.delete(id);
        equal(chunks.countDocuments(), 0L);
    }

    private static void tailableCursor() throws Exception {
        db.createCollection("capped", new CreateCollectionOptions().capped(true).sizeInBytes(1 << 20).maxDocuments(100));
        MongoCollection<Document> c = db.getCollection("capped");
        c.insertMany(documents(0, 150, i -> doc("_id", i)));
        equal(ids(c.find()), numbers(50, 150));
        equal(ids(c.find().sort(doc("$natural", -1)).limit(2)), new ArrayList<Object>(List.of(149, 148)));
        var tailing = c.find().cursorType(CursorType.TailableAwait).maxAwaitTime(120, TimeUnit.SECONDS);
        try (MongoCursor<Document> tail = tailing.cursor()) {
            for (Object i : numbers(50, 150)) {
                equal(tail.next().get("_id"), i);
            }
            long began = System.nanoTime();
            CompletableFuture<Void> later = CompletableFuture.runAsync(() -> c.insertOne(doc("_id", "woken")),
                    CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS));
            equal(tail.next().get("_id"), "woken");
            long waited = (System.nanoTime() - began) / 1_000_000;
            later.get();
            ensure(waited > 200 && waited < 100_000, "waited " + waited + " ms");
        }
    }

    private static void aggregation() throws Exception {
        MongoCollection<Document> orders = db.getCollection("orders");
        db.getCollection("customers").insertMany(documents(0, 10, i -> doc("_id", i, "name", "customer " + i)));
        orders.insertMany(documents(0, 500, i -> doc("_id", i, "customer", i % 10, "total", i,
                "items", List.of(doc("sku", i % 3), doc("sku", i % 5)))));
        List<Document> got = all(orders.aggregate(List.of(
                doc("$match", doc("total", doc("$gte", 100))),
                doc("$group", doc("_id", "$customer", "sum", doc("$sum", "$total"), "orders", doc("$count", doc()))),
                doc("$lookup", doc("from", "customers", "localField", "_id", "foreignField", "_id", "as", "customer")),
                doc("$unwind", "$customer"),
                doc("$project", doc("_id", 0, "name", "$customer.name", "sum", 1, "orders", 1)),
                doc("$sort", doc("name", 1)))));
        List<Document> expected = documents(0, 10, customer -> {
            int[] totals = IntStream.range(100, 500).filter(i -> i % 10 == customer).toArray();
            return doc("sum", IntStream.of(totals).sum(), "orders", totals.length, "name", "customer " + customer);
        });
        equal(got, new ArrayList<>(expected));
        Document facet = orders.aggregate(List.of(doc("$facet", doc(
                "count", List.of(doc("$count", "n")),
                "skus", List.of(doc("$unwind", "$items"), doc("$sortByCount", "$items.sku"), doc("$limit", 1)),
                "buckets", List.of(doc("$bucket", doc("groupBy", "$total", "boundaries", List.of(0, 100, 300, 1000)))))))).first();
        equal(facet.get("count"), List.of(doc("n", 500)));
        equal(facet.get("skus"), List.of(doc("_id", 0, "count", 167 + 100)));
        equal(facet.get("buckets"),
                List.of(doc("_id", 0, "count", 100), doc("_id", 100, "count", 200), doc("_id", 300, "count", 200)));
        orders.aggregate(List.of(doc("$match", doc("customer", 3)), doc("$out", "out"))).toCollection();
        equal(db.getCollection("out").countDocuments(), 50L);
        expectCode(40324, () -> orders.aggregate(List.of(doc("$noSuchStage", doc()))).first());
    }

    /** Runs every step, prints one line for each, and ends with status 1 when one failed. */
    public static void main(String[] arguments) {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("handshake", Scenario::handshake);
        steps.put("bsonTypes", Scenario::bsonTypes);
        steps.put("crud", Scenario::crud);
        steps.put("cursors", Scenario::cursors);
        steps.put("bulkWrites", Scenario::bulkWrites);
        steps.put("indexes", Scenario::indexes);
        steps.put("transactions", Scenario::transactions);
        steps.put("gridfsFiles", Scenario::gridfsFiles);
        steps.put("tailableCursor", Scenario::tailableCursor);
        steps.put("aggregation", Scenario::aggregation);
        int failed = 0;
        client = MongoClients.create(System.getenv("SHEAF_URI"));
        db = client.getDatabase("drivers_java");
        for (Map.Entry<String, Step> step : steps.entrySet()) {
            try {
                step.getValue().run();
                System.out.println("ok   " + step.getKey());
            } catch (Exception | AssertionError error) {
                failed++;
                System.out.println("FAIL " + step.getKey() + ": " + error);
                if (System.getenv("SHEAF_VERBOSE") != null) {
                    error.printStackTrace(System.out);
                }
            }
        }
        db.drop();
        client.close();
        System.out.println("java mongodb-driver-sync: " + (steps.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }
}
