//! Which shards have the parameters of the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_cluster::{CONFIG_SHARD, Shard};

/// The parameters that the config servers had last, and the shards that this router has told of them.
#[derive(Default)]
pub struct Told {
    /// Documents of `config.clusterParameters`.
    pub kept: Vec<DocBuf>,
    /// Who has them from this router.
    pub shards: BTreeSet<Arc<str>>,
}

impl Told {
    /// Nobody has been told of these.
    pub fn of(kept: Vec<DocBuf>) -> Self {
        Told { kept, shards: BTreeSet::new() }
    }

    /// Those of these shards that are to be told. Others that were told once and are none any more are forgotten: who comes back under such
    /// a name may have forgotten, too.
    pub fn missing(&mut self, shards: Vec<Shard>) -> Vec<Shard> {
        self.shards.retain(|told| shards.iter().any(|shard| shard.name == *told));
        // The config servers have told themselves.
        let is_missing = |shard: &Shard| !self.shards.contains(&shard.name) && &*shard.name != CONFIG_SHARD;
        shards.into_iter().filter(is_missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use sheaf_cluster::{ReplicaSet, SetAddress};

    use super::*;

    #[test]
    fn a_shard_that_leaves_and_comes_back_is_told_again() {
        let set = ReplicaSet::new(&"s/127.0.0.1:1".parse::<SetAddress>().unwrap(), &Default::default());
        let shards = |names: &[&str]| -> Vec<Shard> {
            let shard = |name: &&str| Shard { name: (*name).into(), set: set.clone(), draining: false };
            names.iter().map(shard).collect()
        };
        let mut told = Told::default();
        let mut missing = |names: &[&str]| -> Vec<String> {
            let missing = told.missing(shards(names));
            told.shards.extend(missing.iter().map(|shard| shard.name.clone()));
            missing.iter().map(|shard| shard.name.to_string()).collect()
        };
        assert_eq!(missing(&["a", "b", CONFIG_SHARD]), ["a", "b"]);
        assert_eq!(missing(&["a", "b", "c", CONFIG_SHARD]), ["c"]);
        assert!(missing(&["a", "c"]).is_empty());
        assert_eq!(missing(&["a", "b", "c"]), ["b"]);
    }
}
