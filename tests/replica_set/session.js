// A mongosh session on a replica set: from three members that know nothing of each other to a set that grows, changes
// hands and shrinks. The members' addresses come in SHEAF_HOSTS; the shell is connected to the first.

const assert = require('assert').strict;
const hosts = process.env.SHEAF_HOSTS.split(',');

async function until(what, condition) {
  const deadline = Date.now() + 120000;
  for (;;) {
    try {
      if (await condition()) return;
    } catch (error) {
      if (Date.now() > deadline) throw error;
    }
    assert.ok(Date.now() < deadline, `not in two minutes: ${what}`);
    await sleep(50);
  }
}

async function states() {
  return (await rs.status()).members.map((member) => member.stateStr).sort();
}

/** Waits until as many members vote and a majority has the configuration: before that, another one is refused. */
async function settled(votes) {
  await until(`${votes} votes`, async () => (await rs.status()).votingMembersCount === votes);
  await until('a committed configuration', async () =>
    (await db.adminCommand({ replSetGetConfig: 1, commitmentStatus: true })).commitmentStatus);
}

async function expectCode(code, run) {
  try {
    await run();
  } catch (error) {
    assert.equal(error.code, code, error.message);
    return;
  }
  assert.fail(`no error ${code}`);
}

const steps = {
  async nothingYet() {
    await expectCode(94, () => rs.status());
    await expectCode(94, () => rs.conf());
    assert.equal((await rs.hello()).isreplicaset, true);
  },

  async initiate() {
    const first = { _id: 'rs', members: [{ _id: 0, host: hosts[0] }], settings: { electionTimeoutMillis: 2000 } };
    assert.equal((await rs.initiate(first)).ok, 1);
    await until('a primary', async () => (await db.hello()).isWritablePrimary);
    await expectCode(23, () => rs.initiate());
    const conf = await rs.conf();
    assert.equal(conf.members[0].host, hosts[0]);
    assert.ok(conf.settings.replicaSetId);
    await db.getSiblingDB('t').c.insertOne({ _id: 1 });
  },

  async add() {
    assert.equal((await rs.add(hosts[1])).ok, 1);
    await until('the second member', async () => (await states()).join() === 'PRIMARY,SECONDARY');
    await settled(2);
    assert.equal((await rs.add({ host: hosts[2], priority: 0, tags: { dc: 'west' } })).ok, 1);
    await until('the third member', async () => (await states()).join() === 'PRIMARY,SECONDARY,SECONDARY');
    await settled(3);
    await db.getSiblingDB('t').c.insertOne({ _id: 2 }, { writeConcern: { w: 3, wtimeout: 120000 } });
    await expectCode(103, async () => rs.reconfig({ ...(await rs.conf()), _id: 'rs', members: [] }));
  },

  async helpers() {
    const hello = await rs.hello();
    assert.deepEqual([...hello.hosts].sort(), [hosts[0], hosts[1]].sort());
    assert.deepEqual([...hello.passives], [hosts[2]]);
    assert.equal((await rs.isMaster()).ismaster, true);
    assert.ok((await rs.printReplicationInfo()) !== null);
    assert.ok((await rs.printSecondaryReplicationInfo()) !== null);
    const info = await db.getReplicationInfo();
    assert.ok(info.configuredLogSizeMB > 0 && info.tFirst && info.tLast, JSON.stringify(info));
    assert.equal((await db.serverStatus()).repl.setName, 'rs');
    assert.equal((await db.adminCommand({ getDefaultRWConcern: 1 })).defaultWriteConcern.w, 'majority');
    await rs.secondaryOk();
    await expectCode(95, () => rs.freeze(5));
    assert.equal((await db.getSiblingDB('local').system.replset.findOne())._id, 'rs');
    assert.ok(await db.getSiblingDB('local').oplog.rs.findOne({ op: 'i', ns: 't.c' }));
  },

  async reconfigure() {
    const conf = await rs.conf();
    conf.members[1].priority = 2;
    assert.equal((await rs.reconfig(conf)).ok, 1);
    assert.equal((await rs.conf()).members[1].priority, 2);
    await until('the lead with the higher priority', async () => (await rs.status()).members[1].stateStr === 'PRIMARY');
  },

  async stepDown() {
    const second = await connect(`mongodb://${hosts[1]}/?directConnection=true`);
    const admin = second.getSiblingDB('admin');
    await expectCode(2, () => admin.runCommand({ replSetStepDown: 1, secondaryCatchUpPeriodSecs: 5 }).then(raise));
    // Refused while the first one is behind. For so long that it does not take the lead back before the next step.
    await until('the end of its time', async () =>
      (await admin.runCommand({ replSetStepDown: 300, secondaryCatchUpPeriodSecs: 2 })).ok);
    await until('the first member as primary', async () => (await db.hello()).isWritablePrimary);
  },

  async remove() {
    const conf = await rs.conf();
    conf.members[1].priority = 1;
    await until('the reconfiguration', async () => {
      const now = await rs.conf();
      now.members[1].priority = 1;
      return (await rs.reconfig(now)).ok;
    });
    await until('the removal', async () => (await rs.remove(hosts[2])).ok);
    assert.equal((await rs.conf()).members.length, 2);
    assert.equal(await db.getSiblingDB('t').c.countDocuments(), 2);
  },
};

function raise(reply) {
  if (reply.ok) return reply;
  throw Object.assign(new Error(reply.errmsg), { code: reply.code });
}

(async () => {
  for (const [name, step] of Object.entries(steps)) {
    try {
      await step();
    } catch (error) {
      console.log(`FAIL ${name}: ${error.stack}`);
      process.exit(1);
    }
  }
  console.log(`mongosh session: ${Object.keys(steps).length} passed`);
  process.exit(0);
})();
