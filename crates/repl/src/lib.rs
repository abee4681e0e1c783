//! Replica sets as a pure state machine: messages, ticks and completions go in; messages, writes and decisions come out.
//!
//! - [`Member`] is one member of a set, around raft-rs. Its inputs change memory only; [`Member::poll`] gives
//!   the [`Effect`]s that the driver performs.
//! - [`config`] is MongoDB's replica-set configuration, [`write_concern`] what writes may wait for.
//! - [`sim`] runs whole sets in one thread from one seed, with faults, and checks what must always hold.
//!
//! No socket, clock, thread or disk is used here. The design is told in
//! `docs/design/0003-replication-core.md`.

#![forbid(unsafe_code)]

mod codec;
pub mod config;
mod effect;
mod log_view;
mod member;
mod message;
pub mod rng;
pub mod sim;
pub mod status;
mod types;
pub mod write_concern;

pub use codec::DecodeError;
pub use effect::{Effect, MemberRole, Persist, Rollback, WaiterId};
pub use member::{
    Attempts, Behind, CandidateMetrics, ElectionCounts, ElectionReason, Member, MemberOptions,
    NoticesSilence, ParticipantMetrics, PeerStatus, Recovered, Status,
};
pub use message::{Body, Envelope, Heartbeat, Report};
pub use types::{Entry, HardState, LogBounds, LogPosition, MemberState, Positions, TermRun};
