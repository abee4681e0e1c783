// The driver scenario (see ../README.md) as a mongosh script: what a person at the shell would type.
// mongosh awaits the driver's promises itself, so the steps are plain synchronous-looking functions.

const assert = require('assert').strict;
const verbose = Boolean(process.env.SHEAF_VERBOSE);
const home = db.getSiblingDB('drivers_mongosh');
const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
// The shell's objects come from another context than the script's, which a strict deepEqual would call different.
const same = (got, want) => assert.equal(EJSON.stringify(got), EJSON.stringify(want));
const canonical = (value) => EJSON.stringify(value, { relaxed: false });

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
    await home.dropDatabase();
    assert.equal((await home.runCommand({ ping: 1 })).ok, 1);
    const hello = await home.hello();
    assert.ok(hello.isWritablePrimary && hello.maxWireVersion >= 25);
    assert.ok((await home.version()).startsWith('8.'));
    assert.ok((await home.serverStatus()).uptime >= 0);
    assert.ok(Array.isArray((await home.adminCommand({ listDatabases: 1 })).databases));
  },

  async bsonTypes() {
    const values = {
      _id: 1,
      minKey: MinKey(), maxKey: MaxKey(), null: null, true: true, false: false,
      int32: NumberInt(-(2 ** 31)), int64: NumberLong('9223372036854775807'), smallInt64: NumberLong('1'),
      double: Double(0.1), nan: NaN, infinity: -Infinity, negativeZero: Double(-0), wholeDouble: Double(3),
      decimal: NumberDecimal('1234567890.123456789012345678901234'), decimalNaN: NumberDecimal('NaN'),
      decimalZeros: NumberDecimal('1.500E+10'), string: 'grüße \u{1f33e}', emptyString: '', nulInString: 'a\0b',
      document: { a: [1, [2, { b: [] }], {}], '': 'empty name', 'dotted.name': 1, $dollar: 2 },
      emptyDocument: {}, array: [null, 1, 'x', [[]]], emptyArray: [], objectId: ObjectId('5f1d7b3e9c8b4a0012345678'),
      date: ISODate('2024-02-29T12:30:15.123Z'), dateBeforeEpoch: ISODate('1901-01-01T00:00:00Z'), regex: /^a.*b$/im,
      code: Code('function () { return 1; }'), codeWithScope: Code('x', { x: 1 }),
      timestamp: Timestamp({ t: 1700000000, i: 7 }), binary: BinData(0, 'AP8Q'), binaryUser: BinData(128, 'dQ=='),
      uuid: UUID('00000000-0000-0000-0000-000000000001'), md5: BinData(5, 'AQEBAQEBAQEBAQEBAQEBAQ=='),
    };
    await home.types.insertOne(values);
    // The shell reads a double as a JavaScript number, so a whole one prints like an int32; $type tells them apart below.
    assert.equal(canonical(await home.types.findOne({ _id: 1 })), canonical({ ...values, wholeDouble: 3 }));
    for (const name of ['int64', 'double', 'decimal', 'document', 'array', 'date', 'timestamp', 'uuid', 'codeWithScope']) {
      assert.equal(await home.types.countDocuments({ [name]: { $eq: values[name] } }), 1, `${name} does not find itself`);
    }
    for (const [name, alias] of [['minKey', 'minKey'], ['decimal', 'decimal'], ['uuid', 'binData'], ['int64', 'long'],
      ['wholeDouble', 'double']]) {
      assert.equal(await home.types.countDocuments({ [name]: { $type: alias } }), 1, `$type ${alias}`);
    }
  },

  async crud() {
    const c = home.crud;
    assert.equal((await c.insertOne({ _id: 1, name: 'a', tags: ['x', 'y'], n: 1 })).insertedId, 1);
    const many = await c.insertMany(range(2, 11).map((i) => ({ _id: i, name: 'b', n: i })));
    assert.equal(Object.keys(many.insertedIds).length, 9);
    await expectCode(11000, async () => { await c.insertOne({ _id: 1 }); });
    same(await c.findOne({ tags: 'y' }), { _id: 1, name: 'a', tags: ['x', 'y'], n: 1 });
    const found = await c.find({ n: { $gte: 3, $lt: 9 } }, { n: 1, _id: 0 }).sort({ n: -1 }).skip(1).limit(3).toArray();
    same(found, [{ n: 7 }, { n: 6 }, { n: 5 }]);
    let result = await c.updateOne({ _id: 1 }, { $set: { 'deep.er': 1 }, $push: { tags: 'z' }, $inc: { n: 10 } });
    same([result.matchedCount, result.modifiedCount], [1, 1]);
    same(await c.findOne({ _id: 1 }), { _id: 1, name: 'a', tags: ['x', 'y', 'z'], n: 11, deep: { er: 1 } });
    result = await c.updateMany({ name: 'b' }, { $set: { name: 'c' } });
    same([result.matchedCount, result.modifiedCount], [9, 9]);
    result = await c.updateOne({ _id: 'new' }, [{ $set: { sum: { $add: [1, 2] } } }], { upsert: true });
    assert.equal(result.insertedId, 'new');
    same(await c.findOne({ _id: 'new' }), { _id: 'new', sum: 3 });
    assert.equal((await c.replaceOne({ _id: 'new' }, { replaced: true })).modifiedCount, 1);
    const after = await c.findOneAndUpdate({ _id: 2 }, { $mul: { n: 5 } }, { returnDocument: 'after' });
    assert.equal(after.n, 10);
    same(await c.findOneAndDelete({ _id: 'new' }), { _id: 'new', replaced: true });
    assert.equal(await c.countDocuments({}), 10);
    assert.equal(await c.estimatedDocumentCount(), 10);
    same((await c.distinct('name')).sort(), ['a', 'c']);
    assert.equal((await c.deleteMany({ n: { $gt: 5 } })).deletedCount, 7);
    await expectCode(2, async () => { await c.findOne({ n: { $noSuchOperator: 1 } }); });
  },

  async cursors() {
    const c = home.cursors;
    await c.insertMany(range(0, 20000).map((i) => ({ _id: i, payload: 'x'.repeat(200) })));
    const ids = (await c.find().batchSize(500).toArray()).map((d) => d._id);
    same(ids, range(0, 20000));
    assert.equal((await c.find().batchSize(7).limit(100).toArray()).length, 100);
    const reply = await home.runCommand({ find: 'cursors', filter: {}, sort: { _id: -1 }, batchSize: 10 });
    assert.equal(reply.cursor.firstBatch[0]._id, 19999);
    const killed = await home.runCommand({ killCursors: 'cursors', cursors: [reply.cursor.id] });
    assert.equal(killed.cursorsKilled.length, 1);
    await expectCode(43, async () => { await home.runCommand({ getMore: reply.cursor.id, collection: 'cursors' }); });
    const half = await c.aggregate([{ $match: { _id: { $gte: 10000 } } }], { cursor: { batchSize: 300 } }).toArray();
    assert.equal(half.length, 10000);
  },

  async bulkWrites() {
    const c = home.bulk;
    const result = await c.bulkWrite([
      { insertOne: { document: { _id: 1 } } }, { insertOne: { document: { _id: 2 } } },
      { updateOne: { filter: { _id: 1 }, update: { $set: { x: 1 } } } },
      { updateMany: { filter: {}, update: { $set: { y: 1 } } } },
      { replaceOne: { filter: { _id: 3 }, replacement: { z: 1 }, upsert: true } }, { deleteOne: { filter: { _id: 2 } } },
    ]);
    same([result.insertedCount, result.matchedCount, result.modifiedCount], [2, 3, 3]);
    same([result.upsertedCount, result.deletedCount], [1, 1]);
    const batch = [10, 1, 11, 1, 12].map((i) => ({ insertOne: { document: { _id: i } } }));
    await expectCode(11000, async () => { await c.bulkWrite(batch, { ordered: true }); });
    assert.equal(await c.countDocuments({ _id: { $gte: 10 } }), 1);
    await expectCode(11000, async () => { await c.bulkWrite(batch, { ordered: false }); });
    assert.equal(await c.countDocuments({ _id: { $gte: 10 } }), 3);
  },

  async indexes() {
    const c = home.indexes;
    await c.insertMany(range(0, 1000).map((i) => ({ _id: i, a: i % 10, b: -i, tags: [i, i + 1] })));
    assert.equal(await c.createIndex({ a: 1 }), 'a_1');
    assert.equal(await c.createIndex({ a: 1, b: -1 }, { name: 'compound' }), 'compound');
    assert.equal(await c.createIndex({ b: 1 }, { unique: true }), 'b_1');
    assert.equal(await c.createIndex({ tags: 1 }, { sparse: true }), 'tags_1');
    const listed = await c.getIndexes();
    same(listed.map((i) => i.name), ['_id_', 'a_1', 'compound', 'b_1', 'tags_1']);
    assert.equal(listed[3].unique, true);
    await expectCode(11000, async () => { await c.insertOne({ _id: 'dup', b: -5 }); });
    await expectCode(86, async () => { await c.createIndex({ tags: 1 }, { name: 'tags_1' }); });
    const found = await c.find({ a: 3, b: { $lt: -980 } }).sort({ b: 1 }).toArray();
    same(found.map((d) => d._id), [993, 983]);
    const explained = await c.find({ a: 3, b: { $lt: -980 } }).explain('executionStats');
    assert.ok(JSON.stringify(explained.queryPlanner.winningPlan).includes('IXSCAN'));
    assert.equal(Number(explained.executionStats.nReturned), 2);
    await c.dropIndex('compound');
    await expectCode(27, async () => { await c.dropIndex('compound'); });
    await c.dropIndexes();
    same((await c.getIndexes()).map((i) => i.name), ['_id_']);
  },

  async transactions() {
    await home.accounts.insertMany([{ _id: 'a', balance: 100 }, { _id: 'b', balance: 0 }]);
    const first = db.getMongo().startSession();
    const second = db.getMongo().startSession();
    const inFirst = first.getDatabase(home.getName()).accounts;
    const inSecond = second.getDatabase(home.getName()).accounts;
    first.startTransaction();
    await inFirst.updateOne({ _id: 'a' }, { $inc: { balance: -30 } });
    await inFirst.updateOne({ _id: 'b' }, { $inc: { balance: 30 } });
    assert.equal((await inFirst.findOne({ _id: 'b' })).balance, 30);
    assert.equal((await home.accounts.findOne({ _id: 'b' })).balance, 0, 'a dirty read');
    await first.commitTransaction();
    assert.equal((await home.accounts.findOne({ _id: 'b' })).balance, 30);
    first.startTransaction();
    await inFirst.insertOne({ _id: 'c' });
    await first.abortTransaction();
    assert.equal(await home.accounts.findOne({ _id: 'c' }), null);
    first.startTransaction();
    second.startTransaction();
    await inFirst.updateOne({ _id: 'a' }, { $inc: { balance: 1 } });
    const error = await expectCode(112, async () => { await inSecond.updateOne({ _id: 'a' }, { $inc: { balance: 2 } }); });
    assert.ok((error.errorLabels ?? []).includes('TransientTransactionError') || error.hasErrorLabel?.('TransientTransactionError'));
    await first.commitTransaction();
    await second.abortTransaction();
    assert.equal((await home.accounts.findOne({ _id: 'a' })).balance, 71);
    await first.endSession();
    await second.endSession();
  },

  // The shell has no GridFS helper: the same documents that the specification lays down, written and read by hand.
  async gridfsFiles() {
    const size = 64 * 1024;
    const content = Buffer.from(range(0, 256 * 2000).map((i) => i % 256));
    const chunks = home.getCollection('files.chunks');
    const files = home.getCollection('files.files');
    await chunks.createIndex({ files_id: 1, n: 1 }, { unique: true });
    const id = ObjectId();
    const count = Math.ceil(content.length / size);
    await chunks.insertMany(range(0, count).map((n) => (
      { files_id: id, n, data: BinData(0, content.subarray(n * size, (n + 1) * size).toString('base64')) })));
    await files.insertOne(
      { _id: id, length: NumberLong(String(content.length)), chunkSize: size, uploadDate: new Date(), filename: 'data.bin' });
    const stored = await chunks.find({ files_id: id }).sort({ n: 1 }).toArray();
    assert.ok(Buffer.concat(stored.map((c) => Buffer.from(c.data.buffer.subarray(0, c.data.position)))).equals(content));
    await chunks.deleteMany({ files_id: id });
    assert.equal(await chunks.countDocuments({}), 0);
  },

  async tailableCursor() {
    await home.createCollection('capped', { capped: true, size: 1024 * 1024, max: 100 });
    const c = home.capped;
    await c.insertMany(range(0, 150).map((i) => ({ _id: i })));
    same((await c.find().toArray()).map((d) => d._id), range(50, 150));
    same((await c.find().sort({ $natural: -1 }).limit(2).toArray()).map((d) => d._id), [149, 148]);
    assert.equal(await c.isCapped(), true);
    const tail = c.find().tailable({ awaitData: true }).maxAwaitTimeMS(120_000);
    for (const i of range(50, 150)) assert.equal((await tail.next())._id, i);
    const began = Date.now();
    const later = new Promise((resolve) => { setTimeout(async () => { resolve(await c.insertOne({ _id: 'woken' })); }, 300); });
    const woken = await tail.tryNext();
    const waited = Date.now() - began;
    await later;
    same(woken, { _id: 'woken' });
    assert.ok(waited > 200 && waited < 100_000, `waited ${waited} ms`);
    await tail.close();
  },

  async aggregation() {
    await home.customers.insertMany(range(0, 10).map((i) => ({ _id: i, name: `customer ${i}` })));
    await home.orders.insertMany(range(0, 500).map((i) => (
      { _id: i, customer: i % 10, total: i, items: [{ sku: i % 3 }, { sku: i % 5 }] })));
    const got = await home.orders.aggregate([
      { $match: { total: { $gte: 100 } } },
      { $group: { _id: '$customer', sum: { $sum: '$total' }, orders: { $count: {} }, max: { $max: '$total' } } },
      { $lookup: { from: 'customers', localField: '_id', foreignField: '_id', as: 'customer' } },
      { $unwind: '$customer' },
      { $project: { _id: 0, name: '$customer.name', sum: 1, orders: 1, max: 1 } },
      { $sort: { name: 1 } },
    ]).toArray();
    same(got, range(0, 10).map((customer) => {
      const totals = range(100, 500).filter((i) => i % 10 === customer);
      const sum = totals.reduce((a, b) => a + b);
      return { sum, orders: totals.length, max: Math.max(...totals), name: `customer ${customer}` };
    }));
    const [facet] = await home.orders.aggregate([{ $facet: {
      count: [{ $count: 'n' }],
      skus: [{ $unwind: '$items' }, { $sortByCount: '$items.sku' }, { $limit: 1 }],
      buckets: [{ $bucket: { groupBy: '$total', boundaries: [0, 100, 300, 1000] } }],
    } }]).toArray();
    const zeros = range(0, 500).filter((i) => i % 3 === 0).length + range(0, 500).filter((i) => i % 5 === 0).length;
    same(facet.count, [{ n: 500 }]);
    same(facet.skus, [{ _id: 0, count: zeros }]);
    same(facet.buckets, [{ _id: 0, count: 100 }, { _id: 100, count: 200 }, { _id: 300, count: 200 }]);
    await home.orders.aggregate([{ $match: { customer: 3 } }, { $out: 'out' }]).toArray();
    assert.equal(await home.out.countDocuments({}), 50);
    await expectCode(40324, async () => { await home.orders.aggregate([{ $noSuchStage: {} }]).toArray(); });
  },
};

(async () => {
  let failed = 0;
  for (const [name, run] of Object.entries(steps)) {
    try {
      await run();
      print(`ok   ${name}`);
    } catch (error) {
      failed++;
      print(`FAIL ${name}: ${verbose ? error.stack : error.message}`);
    }
  }
  await home.dropDatabase();
  print(`mongosh ${version()}: ${Object.keys(steps).length - failed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
})();
