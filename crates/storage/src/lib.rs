//! The storage engine: catalog, records, indexes, capped collections, snapshots, locks and the
//! commit pipeline, over the one log (`sheaf-log`) and RocksDB as its materialisation.
//!
//! - [`Engine`] is a data folder that is open. It hands out [`View`]s to read and [`WriteUnit`]s or
//!   [`Transaction`]s to write; DDL is methods on it.
//! - [`View`] is one consistent state (snapshot and catalog together); cursors come from it and own
//!   what they need, so they can be kept and moved.
//! - [`Write`] is what statements do to the database, whether each stands alone ([`WriteUnit`]) or
//!   belongs to a transaction ([`Transaction`]).
//! - Nothing here is async and nothing here knows a socket. Long waits go through [`Options::block`].

mod api;

pub use api::*;
