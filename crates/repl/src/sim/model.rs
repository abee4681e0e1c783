//! What the simulated members store: a map of counters whose every value depends on all writes before it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::rng::mix;
use crate::types::{Entry, LogPosition};

/// The applied state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    /// The last entry applied.
    pub at: LogPosition,
    /// Cluster time of the newest entry applied.
    pub time: u64,
    /// Per key, how many writes and a hash of them in order.
    keys: BTreeMap<u64, (u64, u64)>,
    /// Hash of all entries in order.
    pub chain: u64,
}

impl Model {
    pub fn apply(&mut self, entry: &Entry) {
        self.at = entry.at;
        self.time = entry.time;
        self.chain = link(self.chain, entry);
        if let Some((uid, key)) = operation(entry) {
            let value = self.keys.entry(key).or_default();
            *value = (value.0 + 1, mix(value.1 ^ uid));
        }
    }
}

/// The hash of a log with one more entry.
pub(super) fn link(chain: u64, entry: &Entry) -> u64 {
    let uid = operation(entry).map_or(0, |(uid, _)| uid);
    mix(mix(mix(chain ^ entry.at.term) ^ entry.at.index) ^ entry.time ^ (uid << 1))
}

/// The payload of write number `uid` to `key`.
pub(super) fn payload(uid: u64, key: u64, filler: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(16 + filler);
    bytes.extend_from_slice(&uid.to_le_bytes());
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.resize(16 + filler, 0);
    bytes.into()
}

/// Number and key of a write; none for the entry that begins a term.
pub(super) fn operation(entry: &Entry) -> Option<(u64, u64)> {
    let uid = entry.payload.get(0..8)?.try_into().ok()?;
    let key = entry.payload.get(8..16)?.try_into().ok()?;
    Some((u64::from_le_bytes(uid), u64::from_le_bytes(key)))
}
