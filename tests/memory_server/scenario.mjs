// mongodb-memory-server starts the binary as its system mongod; mongoose connects through it and saves documents.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(`${process.env.SHEAF_NODE_HOME}/package.json`);
const { MongoMemoryReplSet, MongoMemoryServer } = require('mongodb-memory-server-core');
const mongoose = require('mongoose');

const warnings = [];
const warn = console.warn;
console.warn = (...message) => { warnings.push(message.join(' ')); warn(...message); };

// On a busy machine a server takes a while to start.
const patience = { launchTimeout: 120_000 };
const server = await MongoMemoryServer.create({
  instance: patience,
  binary: { systemBinary: process.env.SHEAF_MONGOD, version: process.env.SHEAF_VERSION },
});
try {
  await mongoose.connect(server.getUri('shop'));
  const productSchema = new mongoose.Schema({
    name: { type: String, required: true, unique: true, index: true },
    price: mongoose.Schema.Types.Decimal128,
    tags: [String],
    maker: { type: mongoose.Schema.Types.ObjectId, ref: 'Maker' },
  }, { timestamps: true });
  const Maker = mongoose.model('Maker', new mongoose.Schema({ name: String }));
  const Product = mongoose.model('Product', productSchema);
  await Product.init();

  const maker = await Maker.create({ name: 'Farm' });
  const wheat = await new Product({ name: 'wheat', price: '2.50', tags: ['grain'], maker }).save();
  assert.ok(wheat.createdAt instanceof Date);
  const found = await Product.findOne({ tags: 'grain' }).populate('maker');
  assert.equal(found.maker.name, 'Farm');
  assert.equal(found.price.toString(), '2.50');
  found.tags.push('bread');
  await found.save();
  assert.deepEqual([...(await Product.findById(wheat._id)).tags], ['grain', 'bread']);
  await assert.rejects(Product.create({ name: 'wheat' }), (error) => error.code === 11000);
  await assert.rejects(Product.create({}), mongoose.Error.ValidationError);
  assert.equal(await Product.countDocuments(), 1);
  await Product.deleteOne({ _id: wheat._id });
  assert.equal(await Product.exists({ name: 'wheat' }), null);
} finally {
  await mongoose.disconnect();
  await server.stop();
}
// One that asks for passwords: who connects by a URI with credentials is let in, and has them also in a pool of their own.
const asking = await MongoMemoryServer.create({
  instance: patience,
  auth: { enable: true, customRootName: 'ann', customRootPwd: 'pencil/7731 ß' },
  binary: { systemBinary: process.env.SHEAF_MONGOD, version: process.env.SHEAF_VERSION },
});
try {
  const login = `ann:${encodeURIComponent('pencil/7731 ß')}`;
  const uri = (credentials) => `mongodb://${credentials}${asking.instanceInfo.ip}:${asking.instanceInfo.port}/shop?authSource=admin`;
  await mongoose.connect(uri(`${login}@`));
  const Note = mongoose.model('Note', new mongoose.Schema({ text: String }));
  await Note.create({ text: 'known' });
  assert.equal(await Note.countDocuments(), 1);
  const wrong = mongoose.createConnection(uri('ann:wrong@'), { serverSelectionTimeoutMS: 20_000 });
  await assert.rejects(wrong.asPromise(), (error) => error.code === 18);
  const stranger = await mongoose.createConnection(uri('').replace('?authSource=admin', '')).asPromise();
  await assert.rejects(stranger.collection('notes').findOne(), (error) => error.code === 13);
  await stranger.close();
} finally {
  await mongoose.disconnect();
  await asking.stop();
}
// A set of three: mongoose runs a transaction on it.
const members = await MongoMemoryReplSet.create({
  binary: { systemBinary: process.env.SHEAF_MONGOD, version: process.env.SHEAF_VERSION },
  instanceOpts: Array.from({ length: 3 }, () => ({ ...patience })),
  replSet: { count: 3 },
});
try {
  await mongoose.connect(members.getUri('bank'), { w: 'majority' });
  const Account = mongoose.model('Account', new mongoose.Schema({ _id: String, balance: Number }));
  await Account.createCollection();
  await Account.create([{ _id: 'a', balance: 10 }, { _id: 'b', balance: 0 }]);
  await mongoose.connection.transaction(async (session) => {
    await Account.updateOne({ _id: 'a' }, { $inc: { balance: -3 } }, { session });
    await Account.updateOne({ _id: 'b' }, { $inc: { balance: 3 } }, { session });
  });
  await assert.rejects(mongoose.connection.transaction(async (session) => {
    await Account.updateOne({ _id: 'a' }, { $inc: { balance: -100 } }, { session });
    throw new Error('too much');
  }), /too much/);
  assert.deepEqual((await Account.find().sort('_id')).map((account) => account.balance), [7, 3]);
  const stream = Account.watch();
  let seen;
  stream.once('change', (change) => { seen = change; });
  // The stream shows what comes after it was opened, and nobody says when that was.
  for (let n = 0; !seen && n < 1200; n += 1) {
    await Account.create({ _id: `c${n}`, balance: n });
    await new Promise((resolve) => { setTimeout(resolve, 100); });
  }
  assert.equal(seen.operationType, 'insert');
  assert.equal(seen.documentKey._id, `c${seen.fullDocument.balance}`);
  await stream.close();
} finally {
  await mongoose.disconnect();
  await members.stop();
}
assert.deepEqual(warnings, [], 'mongodb-memory-server warned');
console.log('mongodb-memory-server + mongoose: 3 passed, 0 failed');
process.exit(0);
