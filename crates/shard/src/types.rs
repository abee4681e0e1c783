//! Names that every part of the crate shares.

use std::fmt;
use std::sync::Arc;

/// A shard's name, as `config.shards` has it in `_id`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(Arc<str>);

impl ShardId {
    /// The shard of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        ShardId(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A transaction's name in the whole cluster: `lsid` and `txnNumber`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The session: the bytes of its `lsid`, which mean nothing here.
    pub lsid: Arc<[u8]>,
    /// The transaction's number in its session.
    pub number: i64,
}

impl TransactionId {
    /// The transaction of this number in the session with these bytes.
    pub fn new(lsid: impl Into<Arc<[u8]>>, number: i64) -> Self {
        TransactionId { lsid: lsid.into(), number }
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.lsid.iter() {
            write!(f, "{byte:02x}")?;
        }
        write!(f, ":{}", self.number)
    }
}
