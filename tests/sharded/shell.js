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
sh.status();
check(db.getSiblingDB("shell").dropDatabase().ok === 1, "dropDatabase");
print("all helpers answer");
