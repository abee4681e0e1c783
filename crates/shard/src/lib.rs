//! Sharding as pure state machines: inputs change memory, `poll` gives effects for a driver to perform in order.
//!
//! - [`Shard`] is one member of a shard: its part in transactions over several shards, settling what is in doubt, and showing the state
//!   at a cluster time. Every member has one and tells it of the log; the primary's also answers.
//! - [`Committer`] is a router's side of such transactions.
//! - [`placement`] is where documents belong: shard keys, ranges, routing tables, versions.
//! - [`balance`] decides which ranges to cut and to move.
//! - [`moves`] are how ranges of documents go from one shard to another.
//! - [`sim`] runs whole clusters in one thread from one seed, with faults, and judges everything that was read.
//! - [`message`] is what these say to each other as commands and replies.
//! - [`time`] is cluster time and the clock that stamps it.
//!
//! No socket, clock, thread or disk is used here. What is meant is told in `docs/design/0014-transactions-over-shards.md`,
//! `docs/design/0020-placement.md` and `docs/design/0022-moves.md`.

#![forbid(unsafe_code)]

pub mod balance;
pub mod message;
pub mod moves;
pub mod placement;
mod serving;
mod shard;
pub mod sim;
pub mod time;
pub mod transaction;
mod types;

pub use message::Decisions;
pub use serving::Until;
pub use shard::{LogRecord, ReaderId, Shard, ShardEffect};
pub use time::{Clock, ClusterTime};
pub use transaction::{
    Answer, Committer, CommitterEffect, Executed, NotRun, Outcome, Part, Record, ReplyId, Request, Row, Rows,
    WaiterId,
};
pub use types::{ShardId, TransactionId};
