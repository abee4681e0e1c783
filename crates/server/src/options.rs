//! How to run a mongod.

use std::path::PathBuf;

/// What flags and the configuration file decide besides what the front has to know; the binary fills it in.
#[derive(Clone, Debug)]
pub struct MongodOptions {
    /// Present this node as the only member of a replica set with this name.
    pub set_name: Option<String>,
    /// The folder of the data.
    pub dbpath: PathBuf,
    /// Whether there is a journal (`--nojournal` says no).
    pub journal: bool,
    /// Memory for caches, for `serverStatus`.
    pub cache_bytes: u64,
}

impl Default for MongodOptions {
    fn default() -> Self {
        MongodOptions { set_name: None, dbpath: PathBuf::new(), journal: true, cache_bytes: 0 }
    }
}
