//! Reading: what is published, and views and cursors on it.
//!
//! - [`published`]: the newest state;
//! - [`view`]: one consistent state, with a transaction's own writes ([`overlay`]) where there are any;
//! - [`undecided`]: what is prepared over several shards, as readers meet it;
//! - [`cursor`]: records and entries of indexes, in their order;
//! - [`random`]: records by chance;
//! - [`oplog`]: the log as a stream of operations, and as a collection ([`oplog_collection`]);
//! - [`validate`]: records, indexes and counters compared.

pub(crate) mod cursor;
pub(crate) mod oplog;
pub(crate) mod oplog_collection;
pub(crate) mod overlay;
pub(crate) mod published;
pub(crate) mod random;
pub(crate) mod undecided;
pub(crate) mod validate;
pub(crate) mod view;
