//! What is measured.

use crate::client::ConnectionString;

/// What is measured.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a run has a handful of them")]
pub enum Database {
    /// Anything that speaks MongoDB's wire protocol.
    MongoDb(ConnectionString),
    /// PostgreSQL, by its connection string. Only some workloads know it.
    PostgreSql(String),
}
