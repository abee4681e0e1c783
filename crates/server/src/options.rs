//! How to run a mongod.

use std::path::PathBuf;

/// What a mongod is to a sharded cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterRole {
    /// `--shardsvr`: a member of a shard.
    Shard,
    /// `--configsvr`: a member of the set that has the directory.
    Config,
}

impl ClusterRole {
    /// As the configuration file has it.
    pub fn name(self) -> &'static str {
        match self {
            ClusterRole::Shard => "shardsvr",
            ClusterRole::Config => "configsvr",
        }
    }

    /// What the configuration file says.
    pub fn from_name(name: &str) -> Option<ClusterRole> {
        [ClusterRole::Shard, ClusterRole::Config].into_iter().find(|role| role.name() == name)
    }
}

/// What flags and the configuration file decide besides what the front has to know; the binary fills it in.
#[derive(Clone, Debug)]
pub struct MongodOptions {
    /// Present this node as the only member of a replica set with this name.
    pub set_name: Option<String>,
    /// What it is to a sharded cluster; `None`: it belongs to none.
    pub cluster_role: Option<ClusterRole>,
    /// The folder of the data.
    pub dbpath: PathBuf,
    /// Whether there is a journal (`--nojournal` says no).
    pub journal: bool,
    /// Memory for caches, for `serverStatus`.
    pub cache_bytes: u64,
}

impl Default for MongodOptions {
    fn default() -> Self {
        MongodOptions {
            set_name: None,
            cluster_role: None,
            dbpath: PathBuf::new(),
            journal: true,
            cache_bytes: 0,
        }
    }
}
