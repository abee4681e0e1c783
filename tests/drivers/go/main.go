// The driver scenario (see ../README.md) through the Go driver, version 2.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var (
	ctx    = context.Background()
	client *mongo.Client
	db     *mongo.Database
)

// check ends the step on an error; run turns the panic into the step's failure.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func equal(got, want any) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Errorf("got %v (%T), want %v (%T)", got, got, want, want))
	}
}

func ensure(condition bool, format string, args ...any) {
	if !condition {
		panic(fmt.Errorf(format, args...))
	}
}

func expectCode(code int, err error) {
	ensure(err != nil, "expected error %d, but the operation succeeded", code)
	var server mongo.ServerError
	if errors.As(err, &server) {
		ensure(server.HasErrorCode(code), "expected code %d, got: %v", code, err)
		return
	}
	panic(err)
}

func all(cursor *mongo.Cursor, err error) []bson.M {
	check(err)
	documents := []bson.M{}
	check(cursor.All(ctx, &documents))
	return documents
}

func ids(documents []bson.M) []int32 {
	list := []int32{}
	for _, d := range documents {
		list = append(list, d["_id"].(int32))
	}
	return list
}

func numbers(from, to int32) []int32 {
	list := []int32{}
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

func insertRange(c *mongo.Collection, from, to int32, make func(int32) bson.D) {
	documents := []any{}
	for i := from; i < to; i++ {
		documents = append(documents, make(i))
	}
	must(c.InsertMany(ctx, documents))
}

func handshake() {
	check(db.Drop(ctx))
	check(client.Ping(ctx, nil))
	var hello bson.M
	check(db.RunCommand(ctx, bson.D{{"hello", 1}}).Decode(&hello))
	equal(hello["isWritablePrimary"], true)
	ensure(hello["maxWireVersion"].(int32) >= 25, "maxWireVersion %v", hello["maxWireVersion"])
	equal(hello["maxBsonObjectSize"], int32(16*1024*1024))
	var build bson.M
	check(db.RunCommand(ctx, bson.D{{"buildInfo", 1}}).Decode(&build))
	ensure(strings.HasPrefix(build["version"].(string), "8."), "version %v", build["version"])
}

func bsonTypes() {
	decimal := must(bson.ParseDecimal128("1234567890.123456789012345678901234"))
	objectID := must(bson.ObjectIDFromHex("5f1d7b3e9c8b4a0012345678"))
	values := bson.D{
		{"minKey", bson.MinKey{}}, {"maxKey", bson.MaxKey{}}, {"null", nil}, {"true", true}, {"false", false},
		{"int32", int32(math.MinInt32)}, {"int64", int64(math.MaxInt64)}, {"smallInt64", int64(1)}, {"double", 0.1},
		{"nan", math.NaN()}, {"infinity", math.Inf(-1)}, {"negativeZero", math.Copysign(0, -1)}, {"decimal", decimal},
		{"decimalZeros", must(bson.ParseDecimal128("1.500E+10"))}, {"string", "grüße \U0001f33e"}, {"emptyString", ""},
		{"nulInString", "a\x00b"},
		{"document", bson.D{{"a", bson.A{int32(1), bson.A{int32(2)}, bson.D{}}}, {"", "empty name"}, {"dotted.name", int32(1)}, {"$dollar", int32(2)}}},
		{"emptyDocument", bson.D{}}, {"array", bson.A{nil, int32(1), "x", bson.A{bson.A{}}}}, {"emptyArray", bson.A{}},
		{"objectId", objectID}, {"date", bson.DateTime(1709209815123)}, {"dateBeforeEpoch", bson.DateTime(-2177452800000)},
		{"regex", bson.Regex{Pattern: "^a.*b$", Options: "im"}}, {"code", bson.JavaScript("function () { return 1; }")},
		{"codeWithScope", bson.CodeWithScope{Code: "x", Scope: bson.D{{"x", int32(1)}}}},
		{"timestamp", bson.Timestamp{T: 1700000000, I: 7}}, {"binary", bson.Binary{Data: []byte{0, 255, 16}}},
		{"binaryUser", bson.Binary{Subtype: 0x80, Data: []byte("u")}}, {"binaryOld", bson.Binary{Subtype: 2, Data: []byte("old")}},
		{"uuid", bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, {"undefined", bson.Undefined{}}, {"symbol", bson.Symbol("sym")},
		{"dbPointer", bson.DBPointer{DB: "ns.x", Pointer: objectID}},
	}
	sent := must(bson.Marshal(append(bson.D{{"_id", int32(1)}}, values...)))
	c := db.Collection("types")
	must(c.InsertOne(ctx, bson.Raw(sent)))
	received := must(c.FindOne(ctx, bson.D{{"_id", 1}}).Raw())
	ensure(bytes.Equal(received, sent), "the document came back with different bytes")
	for _, value := range values {
		switch value.Key {
		case "regex", "minKey", "maxKey", "null", "undefined":
			continue
		}
		n := must(c.CountDocuments(ctx, bson.D{{value.Key, bson.D{{"$eq", value.Value}}}}))
		ensure(n == 1, "%s does not find itself", value.Key)
	}
	for name, alias := range map[string]string{"decimal": "decimal", "uuid": "binData", "undefined": "undefined", "int64": "long"} {
		equal(must(c.CountDocuments(ctx, bson.D{{name, bson.D{{"$type", alias}}}})), int64(1))
	}
}

func crud() {
	c := db.Collection("crud")
	must(c.InsertOne(ctx, bson.D{{"_id", 1}, {"name", "a"}, {"tags", bson.A{"x", "y"}}, {"n", 1}}))
	insertRange(c, 2, 11, func(i int32) bson.D { return bson.D{{"_id", i}, {"name", "b"}, {"n", i}} })
	_, err := c.InsertOne(ctx, bson.D{{"_id", 1}})
	expectCode(11000, err)
	ensure(mongo.IsDuplicateKeyError(err), "not seen as a duplicate key: %v", err)
	var document bson.D
	check(c.FindOne(ctx, bson.D{{"tags", "y"}}).Decode(&document))
	equal(document, bson.D{{"_id", int32(1)}, {"name", "a"}, {"tags", bson.A{"x", "y"}}, {"n", int32(1)}})
	find := options.Find().SetProjection(bson.D{{"n", 1}, {"_id", 0}}).SetSort(bson.D{{"n", -1}}).SetSkip(1).SetLimit(3)
	found := all(c.Find(ctx, bson.D{{"n", bson.D{{"$gte", 3}, {"$lt", 9}}}}, find))
	equal(found, []bson.M{{"n": int32(7)}, {"n": int32(6)}, {"n": int32(5)}})
	change := bson.D{{"$set", bson.D{{"deep.er", 1}}}, {"$push", bson.D{{"tags", "z"}}}, {"$inc", bson.D{{"n", 10}}}}
	updated := must(c.UpdateOne(ctx, bson.D{{"_id", 1}}, change))
	equal([]int64{updated.MatchedCount, updated.ModifiedCount}, []int64{1, 1})
	updated = must(c.UpdateMany(ctx, bson.D{{"name", "b"}}, bson.D{{"$set", bson.D{{"name", "c"}}}}))
	equal([]int64{updated.MatchedCount, updated.ModifiedCount}, []int64{9, 9})
	updated = must(c.UpdateMany(ctx, bson.D{{"name", "c"}}, bson.D{{"$set", bson.D{{"name", "c"}}}}))
	equal([]int64{updated.MatchedCount, updated.ModifiedCount}, []int64{9, 0})
	pipeline := mongo.Pipeline{{{"$set", bson.D{{"sum", bson.D{{"$add", bson.A{1, 2}}}}}}}}
	updated = must(c.UpdateOne(ctx, bson.D{{"_id", "new"}}, pipeline, options.UpdateOne().SetUpsert(true)))
	equal(updated.UpsertedID, "new")
	equal(must(c.ReplaceOne(ctx, bson.D{{"_id", "new"}}, bson.D{{"replaced", true}})).ModifiedCount, int64(1))
	var after bson.M
	returnAfter := options.FindOneAndUpdate().SetReturnDocument(options.After)
	check(c.FindOneAndUpdate(ctx, bson.D{{"_id", 2}}, bson.D{{"$mul", bson.D{{"n", 5}}}}, returnAfter).Decode(&after))
	equal(after["n"], int32(10))
	check(c.FindOneAndDelete(ctx, bson.D{{"_id", "new"}}).Decode(&document))
	equal(document, bson.D{{"_id", "new"}, {"replaced", true}})
	equal(must(c.CountDocuments(ctx, bson.D{})), int64(10))
	equal(must(c.EstimatedDocumentCount(ctx)), int64(10))
	names := []string{}
	check(c.Distinct(ctx, "name", bson.D{}).Decode(&names))
	equal(names, []string{"a", "c"})
	equal(must(c.DeleteMany(ctx, bson.D{{"n", bson.D{{"$gt", 5}}}})).DeletedCount, int64(7))
	expectCode(2, c.FindOne(ctx, bson.D{{"n", bson.D{{"$noSuchOperator", 1}}}}).Err())
}

func cursors() {
	c := db.Collection("cursors")
	payload := strings.Repeat("x", 200)
	insertRange(c, 0, 20000, func(i int32) bson.D { return bson.D{{"_id", i}, {"payload", payload}} })
	equal(ids(all(c.Find(ctx, bson.D{}, options.Find().SetBatchSize(500)))), numbers(0, 20000))
	equal(len(all(c.Find(ctx, bson.D{}, options.Find().SetBatchSize(7).SetLimit(100)))), 100)
	big := must(c.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{"_id", -1}}).SetBatchSize(1000)))
	ensure(big.Next(ctx), "no first document: %v", big.Err())
	equal(big.Current.Lookup("_id").Int32(), int32(19999))
	id := big.ID()
	check(big.Close(ctx))
	expectCode(43, db.RunCommand(ctx, bson.D{{"getMore", id}, {"collection", "cursors"}}).Err())
	half := mongo.Pipeline{{{"$match", bson.D{{"_id", bson.D{{"$gte", 10000}}}}}}}
	equal(len(all(c.Aggregate(ctx, half, options.Aggregate().SetBatchSize(300)))), 10000)
}

func bulkWrites() {
	c := db.Collection("bulk")
	result := must(c.BulkWrite(ctx, []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", 1}}), mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", 2}}),
		mongo.NewUpdateOneModel().SetFilter(bson.D{{"_id", 1}}).SetUpdate(bson.D{{"$set", bson.D{{"x", 1}}}}),
		mongo.NewUpdateManyModel().SetFilter(bson.D{}).SetUpdate(bson.D{{"$set", bson.D{{"y", 1}}}}),
		mongo.NewReplaceOneModel().SetFilter(bson.D{{"_id", 3}}).SetReplacement(bson.D{{"z", 1}}).SetUpsert(true),
		mongo.NewDeleteOneModel().SetFilter(bson.D{{"_id", 2}}),
	}))
	equal([]int64{result.InsertedCount, result.MatchedCount, result.ModifiedCount, result.DeletedCount}, []int64{2, 3, 3, 1})
	equal(result.UpsertedIDs, map[int64]any{4: int32(3)})
	batch := []mongo.WriteModel{}
	for _, i := range []int{10, 1, 11, 1, 12} {
		batch = append(batch, mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", i}}))
	}
	for _, expected := range []struct {
		ordered bool
		failed  []int
	}{{true, []int{1}}, {false, []int{0, 1, 3}}} {
		_, err := c.BulkWrite(ctx, batch, options.BulkWrite().SetOrdered(expected.ordered))
		var bulk mongo.BulkWriteException
		ensure(errors.As(err, &bulk), "expected a bulk write error, got %v", err)
		failed := []int{}
		for _, e := range bulk.WriteErrors {
			equal(e.Code, 11000)
			failed = append(failed, e.Index)
		}
		equal(failed, expected.failed)
	}
	models := []mongo.ClientBulkWrite{}
	for i := range 10 {
		models = append(models, mongo.ClientBulkWrite{
			Database: db.Name(), Collection: fmt.Sprintf("client_bulk_%d", i%2),
			Model: mongo.NewClientInsertOneModel().SetDocument(bson.D{{"_id", i}}),
		})
	}
	equal(must(client.BulkWrite(ctx, models)).InsertedCount, int64(10))
	_, err := client.BulkWrite(ctx, models[:3], options.ClientBulkWrite().SetOrdered(false))
	var clientBulk mongo.ClientBulkWriteException
	ensure(errors.As(err, &clientBulk), "expected a client bulk write error, got %v", err)
	equal(len(clientBulk.WriteErrors), 3)
	equal(must(db.Collection("client_bulk_1").CountDocuments(ctx, bson.D{})), int64(5))
}

func indexNames(c *mongo.Collection) []string {
	list := []string{}
	for _, specification := range must(c.Indexes().ListSpecifications(ctx)) {
		list = append(list, specification.Name)
	}
	return list
}

func indexes() {
	c := db.Collection("indexes")
	insertRange(c, 0, 1000, func(i int32) bson.D {
		return bson.D{{"_id", i}, {"a", i % 10}, {"b", -i}, {"tags", bson.A{i, i + 1}}}
	})
	create := func(keys bson.D, o *options.IndexOptionsBuilder) (string, error) {
		return c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: keys, Options: o})
	}
	equal(must(create(bson.D{{"a", 1}}, nil)), "a_1")
	equal(must(create(bson.D{{"a", 1}, {"b", -1}}, options.Index().SetName("compound"))), "compound")
	equal(must(create(bson.D{{"b", 1}}, options.Index().SetUnique(true))), "b_1")
	equal(must(create(bson.D{{"tags", 1}}, options.Index().SetSparse(true))), "tags_1")
	equal(indexNames(c), []string{"_id_", "a_1", "compound", "b_1", "tags_1"})
	equal(*must(c.Indexes().ListSpecifications(ctx))[3].Unique, true)
	_, err := c.InsertOne(ctx, bson.D{{"_id", "dup"}, {"b", -5}})
	expectCode(11000, err)
	_, err = create(bson.D{{"a", 1}, {"missing", 1}}, options.Index().SetUnique(true))
	expectCode(11000, err)
	_, err = create(bson.D{{"tags", 1}}, options.Index().SetName("tags_1"))
	expectCode(86, err)
	filter := bson.D{{"a", 3}, {"b", bson.D{{"$lt", -980}}}}
	equal(ids(all(c.Find(ctx, filter, options.Find().SetSort(bson.D{{"b", 1}})))), []int32{993, 983})
	var plan bson.Raw
	explain := bson.D{{"explain", bson.D{{"find", "indexes"}, {"filter", filter}}}, {"verbosity", "queryPlanner"}}
	check(db.RunCommand(ctx, explain).Decode(&plan))
	ensure(strings.Contains(plan.String(), "IXSCAN"), "no index used: %s", plan.String())
	equal(ids(all(c.Find(ctx, bson.D{{"tags", 500}}, options.Find().SetSort(bson.D{{"_id", 1}})))), []int32{499, 500})
	check(c.Indexes().DropOne(ctx, "compound"))
	expectCode(27, c.Indexes().DropOne(ctx, "compound"))
	check(c.Indexes().DropAll(ctx))
	equal(indexNames(c), []string{"_id_"})
}

func balance(c *mongo.Collection, ctx context.Context, id string) int32 {
	var account struct{ Balance int32 }
	check(c.FindOne(ctx, bson.D{{"_id", id}}).Decode(&account))
	return account.Balance
}

func add(c *mongo.Collection, ctx context.Context, id string, amount int) error {
	_, err := c.UpdateOne(ctx, bson.D{{"_id", id}}, bson.D{{"$inc", bson.D{{"balance", amount}}}})
	return err
}

func transactions() {
	c := db.Collection("accounts")
	must(c.InsertMany(ctx, []any{bson.D{{"_id", "a"}, {"balance", 100}}, bson.D{{"_id", "b"}, {"balance", 0}}}))
	first := must(client.StartSession())
	defer first.EndSession(ctx)
	second := must(client.StartSession())
	defer second.EndSession(ctx)
	inFirst := mongo.NewSessionContext(ctx, first)
	inSecond := mongo.NewSessionContext(ctx, second)
	check(first.StartTransaction())
	check(add(c, inFirst, "a", -30))
	check(add(c, inFirst, "b", 30))
	equal(balance(c, inFirst, "b"), int32(30))
	equal(balance(c, ctx, "b"), int32(0))
	check(first.CommitTransaction(ctx))
	equal(balance(c, ctx, "b"), int32(30))
	check(first.StartTransaction())
	must(c.InsertOne(inFirst, bson.D{{"_id", "c"}}))
	check(first.AbortTransaction(ctx))
	equal(c.FindOne(ctx, bson.D{{"_id", "c"}}).Err(), mongo.ErrNoDocuments)
	check(first.StartTransaction())
	check(second.StartTransaction())
	check(add(c, inFirst, "a", 1))
	err := add(c, inSecond, "a", 2)
	expectCode(112, err)
	var labelled mongo.LabeledError
	ensure(errors.As(err, &labelled) && labelled.HasErrorLabel("TransientTransactionError"), "no label: %v", err)
	check(first.CommitTransaction(ctx))
	check(second.AbortTransaction(ctx))
	equal(balance(c, ctx, "a"), int32(71))
	must(first.WithTransaction(ctx, func(inside context.Context) (any, error) { return nil, add(c, inside, "a", 5) }))
	equal(balance(c, ctx, "a"), int32(76))
}

func gridFSFiles() {
	bucket := db.GridFSBucket(options.GridFSBucket().SetName("files").SetChunkSizeBytes(64 * 1024))
	content := bytes.Repeat([]byte{0, 1, 2, 3, 4, 5, 6, 7}, 160_000)
	upload := options.GridFSUpload().SetMetadata(bson.D{{"kind", "test"}})
	id := must(bucket.UploadFromStream(ctx, "data.bin", bytes.NewReader(content), upload))
	var received bytes.Buffer
	must(bucket.DownloadToStream(ctx, id, &received))
	ensure(bytes.Equal(received.Bytes(), content), "the file came back with different bytes")
	chunks := db.Collection("files.chunks")
	equal(must(chunks.CountDocuments(ctx, bson.D{{"files_id", id}})), int64((len(content)+65535)/65536))
	equal(len(all(bucket.Find(ctx, bson.D{{"metadata.kind", "test"}}))), 1)
	check(bucket.Delete(ctx, id))
	equal(must(chunks.CountDocuments(ctx, bson.D{})), int64(0))
}

func tailableCursor() {
	check(db.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20).SetMaxDocuments(100)))
	c := db.Collection("capped")
	insertRange(c, 0, 150, func(i int32) bson.D { return bson.D{{"_id", i}} })
	equal(ids(all(c.Find(ctx, bson.D{}))), numbers(50, 150))
	backwards := options.Find().SetSort(bson.D{{"$natural", -1}}).SetLimit(2)
	equal(ids(all(c.Find(ctx, bson.D{}, backwards))), []int32{149, 148})
	tail := must(c.Find(ctx, bson.D{}, options.Find().SetCursorType(options.TailableAwait).SetMaxAwaitTime(2*time.Minute)))
	defer tail.Close(ctx)
	for _, i := range numbers(50, 150) {
		ensure(tail.Next(ctx), "the tail ended: %v", tail.Err())
		equal(tail.Current.Lookup("_id").Int32(), i)
	}
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		time.Sleep(300 * time.Millisecond)
		_, err := c.InsertOne(ctx, bson.D{{"_id", "woken"}})
		done <- err
	}()
	ensure(tail.TryNext(ctx), "nothing arrived: %v", tail.Err())
	waited := time.Since(began)
	check(<-done)
	equal(tail.Current.Lookup("_id").StringValue(), "woken")
	ensure(waited > 200*time.Millisecond && waited < 100*time.Second, "waited %v", waited)
}

func aggregation() {
	customers, orders := db.Collection("customers"), db.Collection("orders")
	insertRange(customers, 0, 10, func(i int32) bson.D { return bson.D{{"_id", i}, {"name", fmt.Sprint("customer ", i)}} })
	insertRange(orders, 0, 500, func(i int32) bson.D {
		return bson.D{{"_id", i}, {"customer", i % 10}, {"total", i}, {"items", bson.A{bson.D{{"sku", i % 3}}, bson.D{{"sku", i % 5}}}}}
	})
	got := all(orders.Aggregate(ctx, mongo.Pipeline{
		{{"$match", bson.D{{"total", bson.D{{"$gte", 100}}}}}},
		{{"$group", bson.D{{"_id", "$customer"}, {"sum", bson.D{{"$sum", "$total"}}}, {"orders", bson.D{{"$count", bson.D{}}}}}}},
		{{"$lookup", bson.D{{"from", "customers"}, {"localField", "_id"}, {"foreignField", "_id"}, {"as", "customer"}}}},
		{{"$unwind", "$customer"}},
		{{"$project", bson.D{{"_id", 0}, {"name", "$customer.name"}, {"sum", 1}, {"orders", 1}}}},
		{{"$sort", bson.D{{"name", 1}}}},
	}))
	expected := []bson.M{}
	for customer := int32(0); customer < 10; customer++ {
		sum, n := int32(0), int32(0)
		for i := int32(100); i < 500; i++ {
			if i%10 == customer {
				sum, n = sum+i, n+1
			}
		}
		expected = append(expected, bson.M{"sum": sum, "orders": n, "name": fmt.Sprint("customer ", customer)})
	}
	equal(got, expected)
	facet := all(orders.Aggregate(ctx, mongo.Pipeline{{{"$facet", bson.D{
		{"count", bson.A{bson.D{{"$count", "n"}}}},
		{"buckets", bson.A{bson.D{{"$bucket", bson.D{{"groupBy", "$total"}, {"boundaries", bson.A{0, 100, 300, 1000}}}}}}},
		{"skus", bson.A{bson.D{{"$unwind", "$items"}}, bson.D{{"$sortByCount", "$items.sku"}}, bson.D{{"$limit", 1}}}},
	}}}}))[0]
	bucket := func(id, count int32) bson.D { return bson.D{{"_id", id}, {"count", count}} }
	equal(facet["count"], bson.A{bson.D{{"n", int32(500)}}})
	equal(facet["buckets"], bson.A{bucket(0, 100), bucket(100, 200), bucket(300, 200)})
	equal(facet["skus"], bson.A{bucket(0, 167+100)})
	must(orders.Aggregate(ctx, mongo.Pipeline{{{"$match", bson.D{{"customer", 3}}}}, {{"$out", "out"}}}))
	equal(must(db.Collection("out").CountDocuments(ctx, bson.D{})), int64(50))
	_, err := orders.Aggregate(ctx, mongo.Pipeline{{{"$noSuchStage", bson.D{}}}})
	expectCode(40324, err)
}

func run(name string, step func()) (passed bool) {
	defer func() {
		if failure := recover(); failure != nil {
			fmt.Printf("FAIL %s: %v\n", name, failure)
			if os.Getenv("SHEAF_VERBOSE") != "" {
				debug.PrintStack()
			}
		}
	}()
	step()
	fmt.Printf("ok   %s\n", name)
	return true
}

func main() {
	client = must(mongo.Connect(options.Client().ApplyURI(os.Getenv("SHEAF_URI"))))
	db = client.Database("drivers_go")
	steps := []struct {
		name string
		step func()
	}{
		{"handshake", handshake}, {"bsonTypes", bsonTypes}, {"crud", crud}, {"cursors", cursors}, {"bulkWrites", bulkWrites},
		{"indexes", indexes}, {"transactions", transactions}, {"gridfsFiles", gridFSFiles},
		{"tailableCursor", tailableCursor}, {"aggregation", aggregation},
	}
	failed := 0
	for _, s := range steps {
		if !run(s.name, s.step) {
			failed++
		}
	}
	check(db.Drop(ctx))
	fmt.Printf("go mongo-driver: %d passed, %d failed\n", len(steps)-failed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
