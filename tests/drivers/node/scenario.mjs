// The driver scenario (see ../README.md) through the Node.js driver.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { Readable } from 'node:stream';

// The driver is installed in a cache folder, outside of this repository.
const require = createRequire(`${process.env.SHEAF_NODE_HOME ?? import.meta.dirname}/package.json`);
const {
  Binary, BSON, BSONRegExp, Code, Decimal128, Double, GridFSBucket, Int32, Long, MaxKey, MinKey, MongoClient, ObjectId,
  Timestamp, UUID,
} = require('mongodb');
const driverVersion = require('mongodb/package.json').version;

const client = new MongoClient(process.env.SHEAF_URI, { serverSelectionTimeoutMS: 60000 });
const db = client.db('drivers_node');
const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

async function expectCode(code, run) {
  try {
    await run();
  } catch (error) {
    assert.equal(error.code, code, `expected code ${code}, got ${error.code}: ${error.message}`);
    return error;
  }
  assert.fail(`expected error ${code}, but the operation succeeded`);
}

const steps = {
  async handshake() {
    await db.dropDatabase();
    assert.equal((await db.admin().ping()).ok, 1);
    const hello = await db.admin().command({ hello: 1 });
    assert.ok(hello.isWritablePrimary && hello.maxWireVersion >= 25);
    assert.equal(hello.maxBsonObjectSize, 16 * 1024 * 1024);
    assert.equal(hello.maxMessageSizeBytes, 48000000);
    assert.ok((await db.admin().buildInfo()).version.startsWith('8.'));
  },

  async bsonTypes() {
    const values = {
      minKey: new MinKey(), maxKey: new MaxKey(), null: null, true: true, false: false,
      int32: new Int32(-(2 ** 31)), int64: Long.fromString('9223372036854775807'), smallInt64: Long.fromNumber(1),
      double: new Double(0.1), nan: new Double(NaN), infinity: new Double(-Infinity), negativeZero: new Double(-0),
      decimal: Decimal128.fromString('1234567890.123456789012345678901234'), decimalNaN: Decimal128.fromString('NaN'),
      decimalZeros: Decimal128.fromString('1.500E+10'),
      string: 'grüße \u{1f33e}', emptyString: '', nulInString: 'a\0b',
      document: { a: [1, [2, { b: [] }], {}], '': 'empty name', 'dotted.name': 1, $dollar: 2 },
      emptyDocument: {}, array: [null, 1, 'x', [[]]], emptyArray: [],
      objectId: new ObjectId('5f1d7b3e9c8b4a0012345678'),
      date: new Date('2024-02-29T12:30:15.123Z'), dateBeforeEpoch: new Date('1901-01-01T00:00:00Z'),
      regex: new BSONRegExp('^a.*b$', 'im'), code: new Code('function () { return 1; }'),
      codeWithScope: new Code('x', { x: 1 }), timestamp: new Timestamp({ t: 1700000000, i: 7 }),
      binary: new Binary(Buffer.from([0, 255, 16])), binaryUser: new Binary(Buffer.from('u'), 0x80),
      binaryOld: new Binary(Buffer.from('old'), 2), uuid: new UUID('00000000-0000-0000-0000-000000000001'),
      md5: new Binary(Buffer.alloc(16, 1), 5),
    };
    const sent = BSON.serialize({ _id: 1, ...values });
    const types = db.collection('types');
    await types.insertOne({ _id: 1, ...values });
    const received = await types.findOne({ _id: 1 }, { promoteValues: false, bsonRegExp: true });
    assert.deepEqual(Buffer.from(BSON.serialize(received)), Buffer.from(sent));
    for (const [name, value] of Object.entries(values)) {
      if (['regex', 'minKey', 'maxKey', 'null'].includes(name)) continue;
      assert.equal(await types.countDocuments({ [name]: { $eq: value } }), 1, `${name} does not find itself`);
    }
    for (const [name, alias] of [['minKey', 'minKey'], ['decimal', 'decimal'], ['uuid', 'binData'], ['int64', 'long']]) {
      assert.equal(await types.countDocuments({ [name]: { $type: alias } }), 1, `$type ${alias}`);
    }
  },

  async crud() {
    const c = db.collection('crud');
    assert.equal((await c.insertOne({ _id: 1, name: 'a', tags: ['x', 'y'], n: 1 })).insertedId, 1);
    assert.equal((await c.insertMany(range(2, 11).map((i) => ({ _id: i, name: 'b', n: i })))).insertedCount, 9);
    const { insertedId } = await c.insertOne({ name: 'generated' });
    assert.ok(insertedId instanceof ObjectId);
    assert.equal((await c.deleteOne({ _id: insertedId })).deletedCount, 1);
    await expectCode(11000, () => c.insertOne({ _id: 1 }));
    assert.deepEqual(await c.findOne({ tags: 'y' }), { _id: 1, name: 'a', tags: ['x', 'y'], n: 1 });
    const found = c.find({ n: { $gte: 3, $lt: 9 } }, { projection: { n: 1, _id: 0 } }).sort({ n: -1 }).skip(1).limit(3);
    assert.deepEqual(await found.toArray(), [{ n: 7 }, { n: 6 }, { n: 5 }]);
    let result = await c.updateOne({ _id: 1 }, { $set: { 'deep.er': 1 }, $push: { tags: 'z' }, $inc: { n: 10 } });
    assert.deepEqual([result.matchedCount, result.modifiedCount], [1, 1]);
    assert.deepEqual(await c.findOne({ _id: 1 }), { _id: 1, name: 'a', tags: ['x', 'y', 'z'], n: 11, deep: { er: 1 } });
    result = await c.updateMany({ name: 'b' }, { $set: { name: 'c' } });
    assert.deepEqual([result.matchedCount, result.modifiedCount], [9, 9]);
    result = await c.updateMany({ name: 'c' }, { $set: { name: 'c' } });
    assert.deepEqual([result.matchedCount, result.modifiedCount], [9, 0]);
    result = await c.updateOne({ _id: 'new' }, [{ $set: { sum: { $add: [1, 2] } } }], { upsert: true });
    assert.equal(result.upsertedId, 'new');
    assert.deepEqual(await c.findOne({ _id: 'new' }), { _id: 'new', sum: 3 });
    assert.equal((await c.replaceOne({ _id: 'new' }, { replaced: true })).modifiedCount, 1);
    assert.equal((await c.findOneAndUpdate({ _id: 2 }, { $mul: { n: 5 } }, { returnDocument: 'after' })).n, 10);
    assert.deepEqual(await c.findOneAndDelete({ _id: 'new' }), { _id: 'new', replaced: true });
    assert.equal(await c.countDocuments({}), 10);
    assert.equal(await c.estimatedDocumentCount(), 10);
    assert.deepEqual((await c.distinct('name')).sort(), ['a', 'c']);
    assert.equal((await c.deleteMany({ n: { $gt: 5 } })).deletedCount, 7);
    await expectCode(2, () => c.findOne({ n: { $noSuchOperator: 1 } }));
  },

  async cursors() {
    const c = db.collection('cursors');
    await c.insertMany(range(0, 20000).map((i) => ({ _id: i, payload: 'x'.repeat(200) })));
    let expected = 0;
    for await (const d of c.find().batchSize(500)) assert.equal(d._id, expected++);
    assert.equal(expected, 20000);
    assert.equal((await c.find({}, { batchSize: 7 }).limit(100).toArray()).length, 100);
    const big = c.find({ _id: { $lt: 5000 } }, { sort: { _id: -1 }, batchSize: 1000 });
    assert.equal((await big.next())._id, 4999);
    const id = big.id;
    await big.close();
    await expectCode(43, () => db.command({ getMore: id, collection: 'cursors' }));
    const half = await c.aggregate([{ $match: { _id: { $gte: 10000 } } }], { batchSize: 300 }).toArray();
    assert.equal(half.length, 10000);
  },

  async bulkWrites() {
    const c = db.collection('bulk');
    const result = await c.bulkWrite([
      { insertOne: { document: { _id: 1 } } }, { insertOne: { document: { _id: 2 } } },
      { updateOne: { filter: { _id: 1 }, update: { $set: { x: 1 } } } },
      { updateMany: { filter: {}, update: { $set: { y: 1 } } } },
      { replaceOne: { filter: { _id: 3 }, replacement: { z: 1 }, upsert: true } }, { deleteOne: { filter: { _id: 2 } } },
    ]);
    assert.deepEqual([result.insertedCount, result.matchedCount, result.modifiedCount], [2, 3, 3]);
    assert.deepEqual([result.upsertedIds, result.deletedCount], [{ 4: 3 }, 1]);
    const batch = [10, 1, 11, 1, 12].map((i) => ({ insertOne: { document: { _id: i } } }));
    for (const [ordered, inserted, failed] of [[true, 1, [1]], [false, 2, [0, 1, 3]]]) {
      const error = await expectCode(11000, () => c.bulkWrite(batch, { ordered }));
      assert.equal(error.result.insertedCount, inserted);
      assert.deepEqual([].concat(error.writeErrors).map((e) => [e.index, e.code]), failed.map((i) => [i, 11000]));
    }
    const models = range(0, 10).map((i) => (
      { name: 'insertOne', namespace: `${db.databaseName}.client_bulk_${i % 2}`, document: { _id: i } }));
    assert.equal((await client.bulkWrite(models)).insertedCount, 10);
    try {
      await client.bulkWrite(models.slice(0, 3), { ordered: false });
      assert.fail('duplicates were accepted');
    } catch (error) {
      assert.equal(error.name, 'MongoClientBulkWriteError', error.message);
      assert.deepEqual([...error.writeErrors.values()].map((e) => e.code), [11000, 11000, 11000]);
    }
    assert.equal(await db.collection('client_bulk_1').countDocuments({}), 5);
  },

  async indexes() {
    const c = db.collection('indexes');
    await c.insertMany(range(0, 1000).map((i) => ({ _id: i, a: i % 10, b: -i, tags: [i, i + 1] })));
    assert.equal(await c.createIndex({ a: 1 }), 'a_1');
    assert.equal(await c.createIndex({ a: 1, b: -1 }, { name: 'compound' }), 'compound');
    assert.equal(await c.createIndex({ b: 1 }, { unique: true }), 'b_1');
    assert.equal(await c.createIndex({ tags: 1 }, { sparse: true }), 'tags_1');
    const listed = await c.listIndexes().toArray();
    assert.deepEqual(listed.map((i) => i.name), ['_id_', 'a_1', 'compound', 'b_1', 'tags_1']);
    assert.equal(listed[3].unique, true);
    assert.deepEqual(listed[2].key, { a: 1, b: -1 });
    const error = await expectCode(11000, () => c.insertOne({ _id: 'dup', b: -5 }));
    assert.deepEqual([error.keyPattern, error.keyValue], [{ b: 1 }, { b: -5 }]);
    await expectCode(11000, () => c.createIndex({ a: 1, missing: 1 }, { unique: true }));
    await expectCode(86, () => c.createIndex({ tags: 1 }, { name: 'tags_1' }));
    const filter = { a: 3, b: { $lt: -980 } };
    assert.deepEqual((await c.find(filter).sort({ b: 1 }).toArray()).map((d) => d._id), [993, 983]);
    const explained = await c.find(filter).explain();
    assert.ok(JSON.stringify(explained.queryPlanner.winningPlan).includes('IXSCAN'));
    assert.deepEqual((await c.find({ tags: 500 }).toArray()).map((d) => d._id).sort(), [499, 500]);
    await c.dropIndex('compound');
    await expectCode(27, () => c.dropIndex('compound'));
    await c.dropIndexes();
    assert.deepEqual((await c.listIndexes().toArray()).map((i) => i.name), ['_id_']);
  },

  async transactions() {
    const c = db.collection('accounts');
    await c.insertMany([{ _id: 'a', balance: 100 }, { _id: 'b', balance: 0 }]);
    await client.withSession(async (session) => {
      session.startTransaction();
      await c.updateOne({ _id: 'a' }, { $inc: { balance: -30 } }, { session });
      await c.updateOne({ _id: 'b' }, { $inc: { balance: 30 } }, { session });
      assert.equal((await c.findOne({ _id: 'b' }, { session })).balance, 30);
      assert.equal((await c.findOne({ _id: 'b' })).balance, 0, 'a dirty read');
      await session.commitTransaction();
      assert.equal((await c.findOne({ _id: 'b' })).balance, 30);
      session.startTransaction();
      await c.insertOne({ _id: 'c' }, { session });
      await session.abortTransaction();
      assert.equal(await c.findOne({ _id: 'c' }), null);
    });
    await client.withSession((first) => client.withSession(async (second) => {
      first.startTransaction();
      second.startTransaction();
      await c.updateOne({ _id: 'a' }, { $inc: { balance: 1 } }, { session: first });
      const conflicting = () => c.updateOne({ _id: 'a' }, { $inc: { balance: 2 } }, { session: second });
      const error = await expectCode(112, conflicting);
      assert.ok(error.hasErrorLabel('TransientTransactionError'));
      await first.commitTransaction();
      await second.abortTransaction();
    }));
    assert.equal((await c.findOne({ _id: 'a' })).balance, 71);
    await client.withSession((session) => session.withTransaction(
      () => c.updateOne({ _id: 'a' }, { $set: { done: true } }, { session })));
    assert.equal((await c.findOne({ _id: 'a' })).done, true);
  },

  async gridfsFiles() {
    const bucket = new GridFSBucket(db, { bucketName: 'files', chunkSizeBytes: 64 * 1024 });
    const content = Buffer.from(range(0, 256 * 5000).map((i) => i % 256));
    const upload = bucket.openUploadStream('data.bin', { metadata: { kind: 'test' } });
    await new Promise((resolve, reject) => {
      Readable.from([content.subarray(0, 100001), content.subarray(100001)]).pipe(upload)
        .on('finish', resolve).on('error', reject);
    });
    const received = [];
    for await (const chunk of bucket.openDownloadStream(upload.id)) received.push(chunk);
    assert.ok(Buffer.concat(received).equals(content));
    const chunks = db.collection('files.chunks');
    assert.equal(await chunks.countDocuments({ files_id: upload.id }), Math.ceil(content.length / 65536));
    assert.deepEqual((await bucket.find({ 'metadata.kind': 'test' }).toArray()).map((f) => f.filename), ['data.bin']);
    await bucket.delete(upload.id);
    assert.equal(await chunks.countDocuments({}), 0);
  },

  async tailableCursor() {
    const c = await db.createCollection('capped', { capped: true, size: 1024 * 1024, max: 100 });
    await c.insertMany(range(0, 150).map((i) => ({ _id: i })));
    assert.deepEqual((await c.find().toArray()).map((d) => d._id), range(50, 150));
    assert.deepEqual((await c.find().sort({ $natural: -1 }).limit(2).toArray()).map((d) => d._id), [149, 148]);
    const tail = c.find({}, { tailable: true, awaitData: true, maxAwaitTimeMS: 120_000 });
    for (const i of range(50, 150)) assert.equal((await tail.next())._id, i);
    const began = Date.now();
    const later = new Promise((resolve) => setTimeout(() => resolve(c.insertOne({ _id: 'woken' })), 300));
    assert.deepEqual(await tail.tryNext(), { _id: 'woken' });
    const waited = Date.now() - began;
    await later;
    assert.ok(waited > 200 && waited < 100_000, `waited ${waited} ms`);
    await tail.close();
    const quiet = c.find({}, { tailable: true, awaitData: true, maxAwaitTimeMS: 300 });
    for (let i = 0; i < 100; i++) await quiet.next();
    const quietFrom = Date.now();
    assert.equal(await quiet.tryNext(), null);
    assert.ok(Date.now() - quietFrom >= 250);
    await quiet.close();
  },

  async aggregation() {
    const orders = db.collection('orders');
    await db.collection('customers').insertMany(range(0, 10).map((i) => ({ _id: i, name: `customer ${i}` })));
    await orders.insertMany(range(0, 500).map((i) => (
      { _id: i, customer: i % 10, total: i, items: [{ sku: i % 3 }, { sku: i % 5 }] })));
    const got = await orders.aggregate([
      { $match: { total: { $gte: 100 } } },
      { $group: { _id: '$customer', sum: { $sum: '$total' }, orders: { $count: {} }, max: { $max: '$total' } } },
      { $lookup: { from: 'customers', localField: '_id', foreignField: '_id', as: 'customer' } },
      { $unwind: '$customer' },
      { $project: { _id: 0, name: '$customer.name', sum: 1, orders: 1, max: 1 } },
      { $sort: { name: 1 } },
    ]).toArray();
    assert.deepEqual(got, range(0, 10).map((customer) => {
      const totals = range(100, 500).filter((i) => i % 10 === customer);
      const sum = totals.reduce((a, b) => a + b);
      return { sum, orders: totals.length, max: Math.max(...totals), name: `customer ${customer}` };
    }));
    const [facet] = await orders.aggregate([{ $facet: {
      count: [{ $count: 'n' }],
      skus: [{ $unwind: '$items' }, { $sortByCount: '$items.sku' }, { $limit: 1 }],
      buckets: [{ $bucket: { groupBy: '$total', boundaries: [0, 100, 300, 1000] } }],
    } }]).toArray();
    const zeros = range(0, 500).filter((i) => i % 3 === 0).length + range(0, 500).filter((i) => i % 5 === 0).length;
    assert.deepEqual(facet.count, [{ n: 500 }]);
    assert.deepEqual(facet.skus, [{ _id: 0, count: zeros }]);
    assert.deepEqual(facet.buckets, [{ _id: 0, count: 100 }, { _id: 100, count: 200 }, { _id: 300, count: 200 }]);
    await orders.aggregate([{ $match: { customer: 3 } }, { $out: 'out' }]).toArray();
    assert.equal(await db.collection('out').countDocuments({}), 50);
    await expectCode(40324, () => orders.aggregate([{ $noSuchStage: {} }]).toArray());
  },
};

let failed = 0;
for (const [name, run] of Object.entries(steps)) {
  try {
    await run();
    console.log(`ok   ${name}`);
  } catch (error) {
    failed++;
    console.log(`FAIL ${name}: ${process.env.SHEAF_VERBOSE ? error.stack : error.message}`);
  }
}
await db.dropDatabase();
await client.close();
console.log(`node mongodb ${driverVersion}: ${Object.keys(steps).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
