//! From commands to storage: index bounds, the choice of plans, running them on a snapshot, explain, and
//! turning write commands into commit units.
//!
//! - [`plan`]: a [`plan::Query`] becomes a [`plan::PlanNode`]; [`bounds`] says what of an index can match.
//! - [`run`]: a plan's operators, pulled on a view by an [`run::Executor`].
//! - [`mod@write`]: insert, update, delete and find-and-modify on anything that implements `sheaf_storage::Write`.
//! - [`oplog`]: the log as the collection `local.oplog.rs`.
//! - [`ddl`]: checks of collection options and index specifications.
//! - [`usage`]: how often indexes and collections are read.
//! - [`explain`]: plans and their figures in MongoDB's shape.

#![forbid(unsafe_code)]

pub mod bounds;
pub mod change_stream;
pub mod database;
pub mod ddl;
pub mod explain;
pub mod find;
pub mod index;
pub mod oplog;
pub mod plan;
pub mod run;
pub mod usage;
pub mod write;
