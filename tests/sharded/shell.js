// mongosh's helpers of sharding, on a cluster of the shards shard0 and shard1.

function check(condition, what) {
  if (!condition) throw new Error(what);
}

function chunks() {
  const uuid = db.getSiblingDB("config").collections.findOne({ _id: "shell.plants" }).uuid;
  return db.getSiblingDB("config").chunks.find({ uuid }).sort({ min: 1 }).toArray();
}

sh.enableSharding("shell", "shard0");
check(sh.shardCollection("shell.plants", { n: 1 }).collectionsharded === "shell.plants", "shardCollection");
sh.splitAt("shell.plants", { n: 10 });
check(chunks().length === 2 && chunks()[1].min.n === 10, "splitAt");
sh.moveChunk("shell.plants", { n: 10 }, "shard1");
check(chunks()[1].shard === "shard1", "moveChunk");
sh.moveRange("shell.plants", "shard1", { n: 0 }, { n: 5 });
check(chunks().find((chunk) => chunk.min.n === 0).shard === "shard1", "moveRange");
sh.addShardToZone("shard1", "wet");
sh.updateZoneKeyRange("shell.plants", { n: 0 }, { n: 5 }, "wet");
check(db.getSiblingDB("config").tags.countDocuments({ ns: "shell.plants", tag: "wet" }) === 1, "updateZoneKeyRange");
sh.status();
check(sh.balancerCollectionStatus("shell.plants").balancerCompliant === true, "balancerCollectionStatus");
sh.removeRangeFromZone("shell.plants", { n: 0 }, { n: 5 });
sh.removeShardFromZone("shard1", "wet");
check(db.getSiblingDB("config").tags.countDocuments({ ns: "shell.plants" }) === 0, "removeRangeFromZone");
sh.stopBalancer();
check(sh.getBalancerState() === false, "stopBalancer");
sh.startBalancer();
check(sh.getBalancerState() === true, "startBalancer");
check(sh.isBalancerRunning() !== undefined, "isBalancerRunning");
sh.stopBalancer();
sh.disableBalancing("shell.plants");
check(db.getSiblingDB("config").collections.findOne({ _id: "shell.plants" }).noBalance === true, "disableBalancing");
sh.enableBalancing("shell.plants");
const plants = db.getSiblingDB("shell").plants;
plants.createIndex({ name: 1 });
check(plants.getIndexes().length === 3, "getIndexes");
check(plants.validate().valid === true, "validate");
check(db.getSiblingDB("shell").stats().collections === 2, "stats of the database");

// Another key, another place.
plants.insertMany([...Array(40).keys()].map((n) => ({ n, height: n % 7 })));
function entry(name) {
  return db.getSiblingDB("config").collections.findOne({ _id: "shell." + name });
}
function refused(code, run) {
  try {
    run();
  } catch (error) {
    check(error.code === code, "an error " + error.code + ": " + error.message);
    return;
  }
  check(false, "not refused with " + code);
}
plants.createIndex({ height: 1 });
check(sh.reshardCollection("shell.plants", { height: 1 }, { numInitialChunks: 2 }).ok === 1, "reshardCollection");
check("height" in entry("plants").key && plants.countDocuments() === 40, "what reshardCollection has made");
refused(339, () => sh.abortReshardCollection("shell.nothing"));
refused(339, () => sh.abortReshardCollection("shell.plants"));
refused(339, () => sh.commitReshardCollection("shell.plants"));
check(sh.shardAndDistributeCollection("shell.spread", { n: "hashed" }).ok === 1, "shardAndDistributeCollection");
check(sh.unshardCollection("shell.spread", "shard1").ok === 1 && entry("spread").unsplittable, "unshardCollection");
db.getSiblingDB("shell").notes.insertOne({ _id: 1 });
check(sh.moveCollection("shell.notes", "shard1").ok === 1, "moveCollection");
const where = db.getSiblingDB("shell").notes.getShardLocation();
check(where.shards.join() === "shard1" && where.sharded === false, "getShardLocation");
check(plants.getShardLocation().sharded === true, "getShardLocation of a sharded collection");
plants.getShardDistribution();
refused(339, () => sh.abortMoveCollection("shell.notes"));
refused(339, () => sh.abortUnshardCollection("shell.spread"));
const shown = sh.getShardedDataDistribution().toArray().find((each) => each.ns === "shell.plants");
check(shown.shards.reduce((sum, shard) => sum + shard.numOwnedDocuments, 0) === 40, "getShardedDataDistribution");
sh.disableMigrations("shell.plants");
check(entry("plants").permitMigrations === false, "disableMigrations");
sh.enableMigrations("shell.plants");
sh.stopAutoMerger();
check(sh.isAutoMergerEnabled() === false, "stopAutoMerger");
sh.startAutoMerger();
check(sh.isAutoMergerEnabled() === true, "startAutoMerger");
sh.disableAutoMerger("shell.plants");
check(entry("plants").enableAutoMerge === false, "disableAutoMerger");
sh.enableAutoMerger("shell.plants");
check(sh.checkMetadataConsistency().toArray().length === 0, "checkMetadataConsistency");
check(plants.checkMetadataConsistency().toArray().length === 0, "checkMetadataConsistency of a collection");
check(sh.listShards().length >= 2 && sh.isConfigShardEnabled().enabled === false, "listShards, isConfigShardEnabled");
refused(20, () => sh.shardDrainingStatus("shard1"));
check(plants.configureQueryAnalyzer({ mode: "full", samplesPerSecond: 1 }).ok === 1, "configureQueryAnalyzer");
plants.configureQueryAnalyzer({ mode: "off" });
check(plants.analyzeShardKey({ height: 1 }).keyCharacteristics.numDistinctValues == 7, "analyzeShardKey");
sh.addShardTag("shard1", "dry");
sh.addTagRange("shell.plants", { height: 0 }, { height: 3 }, "dry");
sh.status(true);
sh.removeTagRange("shell.plants", { height: 0 }, { height: 3 });
sh.removeShardTag("shard1", "dry");
refused(121, () => db.getSiblingDB("config").settings.updateOne({ _id: "chunksize" }, { $set: { value: -5 } }, { upsert: true }));
sh.status();
check(db.getSiblingDB("shell").dropDatabase().ok === 1, "dropDatabase");
print("all helpers answer");
