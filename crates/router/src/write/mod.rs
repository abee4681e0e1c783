//! Batches of writes, dealt to the shards that own what they concern; the answers put together as one server's.
//!
//! - [`Batch`] is a command's statements as they came.
//! - [`Aim`] says where a statement goes; the shard key says it, by a document or a filter.
//! - [`run`] sends rounds until no statement is left: of an ordered batch as many as one shard has in a row, otherwise all at once. What a
//!   shard refuses as sent by an older view goes again by a newer one.
//! - [`Answers`] is what the shards have answered so far: [`Outcome`], and [`BulkOutcome`] of a `bulkWrite`.
//! - [`within`] runs what has to happen on several shards or on none, in a transaction of the router's own.

mod aim;
mod anywhere;
mod asked;
mod attempt;
mod batch;
mod bulk;
mod moved;
mod multi;
mod outcome;
mod own;
mod rounds;
mod twice;

pub use aim::{Aim, Selection};
pub use anywhere::{Search, may_execute};
pub use attempt::{Attempts, said};
pub use batch::{Batch, Kind};
pub use bulk::BulkOutcome;
pub use moved::{Change, Moving};
pub use outcome::{Answers, Outcome, write_concern_error};
pub use own::{ConcernErrors, is_transient, within, within_each};
pub use rounds::{Ran, run};
