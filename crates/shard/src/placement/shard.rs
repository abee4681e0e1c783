//! A shard's own view of a collection: what it owns. This decides; the directory is for routers.

use std::fmt;

use crate::time::ClusterTime;

use super::{Key, KeyRange, Ranges, Version};

/// What a shard owns of a sharded collection, as of a version. A row of its catalog: each snapshot has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlacement {
    /// Of the last change of its ranges.
    pub version: Version,
    /// What it owns.
    pub owned: Ranges,
    /// What is being copied to it: there, but not to be seen.
    pub receiving: Ranges,
    /// What it has given away and not removed yet: there, but not to be seen.
    pub leaving: Ranges,
    /// What of that is being removed: some of it may be gone.
    pub removing: Ranges,
}

/// What a router believes a shard to own when it sends a request there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belief {
    /// What the shard has owned since its last change.
    Version(Version),
    /// What it owned at an earlier time, by the history of the collection's chunks. They do not say which version that was.
    Owned {
        /// The collection.
        uuid: [u8; 16],
        /// [`Ranges::fingerprint`] of what it owned.
        fingerprint: u64,
    },
}

/// A request was sent by another view of the collection than the one that it met: `StaleConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// What the request came with; `None`: as if the collection were not sharded.
    pub received: Option<Version>,
    /// What the shard has.
    pub wanted: Version,
    /// The directory has the shard's view at this time.
    pub at: ClusterTime,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.received {
            Some(received) => write!(f, "the router's version {received} is not the shard's {}", self.wanted),
            None => write!(
                f,
                "the router does not know that the collection is sharded, at version {}",
                self.wanted
            ),
        }
    }
}

impl ShardPlacement {
    /// A shard's that owns these ranges.
    pub fn new(version: Version, owned: Ranges) -> Self {
        let none = Ranges::default;
        ShardPlacement { version, owned, receiving: none(), leaving: none(), removing: none() }
    }

    /// Compares the version that a request came with; `changed_at` is when this view came to be.
    pub fn check(&self, received: Option<Version>, changed_at: ClusterTime) -> Result<(), Stale> {
        if received.is_some_and(|received| received.is_same_ownership(self.version)) {
            return Ok(());
        }
        Err(Stale { received, wanted: self.version, at: changed_at })
    }

    /// Compares what a router believes this shard to own as of the time that it reads at; this view is as of that time.
    pub fn check_belief(&self, belief: Belief, changed_at: ClusterTime) -> Result<(), Stale> {
        match belief {
            Belief::Version(version) => self.check(Some(version), changed_at),
            Belief::Owned { uuid, fingerprint }
                if uuid == self.version.uuid && fingerprint == self.owned.fingerprint() =>
            {
                Ok(())
            }
            Belief::Owned { .. } => Err(Stale { received: None, wanted: self.version, at: changed_at }),
        }
    }

    /// Whether documents with this key are the shard's to write and to show.
    pub fn owns(&self, key: &Key) -> bool {
        self.owned.contains(key)
    }

    /// Whether all of what it owned once is there, for those who began to read then.
    pub fn keeps(&self, owned: &Ranges) -> bool {
        let there = self.owned.as_slice().iter().chain(self.leaving.as_slice());
        let there = Ranges::new(there.cloned());
        let is_there = |own: &KeyRange| {
            there.covers(own) && !self.removing.as_slice().iter().any(|range| range.overlaps(own))
        };
        owned.as_slice().iter().all(is_there)
    }

    /// Whether documents have to be looked at one by one: some that are there are not to be seen.
    pub fn filters(&self) -> bool {
        !self.receiving.is_empty() || !self.leaving.is_empty()
    }
}
