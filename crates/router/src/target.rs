//! Where a command goes.

use std::sync::Arc;

use sheaf_cluster::{CONFIG_SHARD, ReplicaSet, Shard};

/// Where a command goes.
#[derive(Clone)]
pub enum Target {
    /// A shard.
    Shard(Shard),
    /// The config servers.
    Config(Arc<ReplicaSet>),
}

impl Target {
    /// The set.
    pub fn set(&self) -> &Arc<ReplicaSet> {
        match self {
            Target::Shard(shard) => &shard.set,
            Target::Config(set) => set,
        }
    }

    /// The name by which transactions and cursors know it.
    pub fn name(&self) -> &str {
        match self {
            Target::Shard(shard) => &shard.name,
            Target::Config(_) => CONFIG_SHARD,
        }
    }
}
