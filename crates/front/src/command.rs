//! What a command is, and everything that is said of it beside its code.
//!
//! A command's [`Spec`] has no defaults: each command states each property in its own file, and one that leaves one out
//! does not compile. A role keeps its commands in a [`Table`], together with those that [every server has](crate::commands).

mod privileges;
mod table;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use crate::args::Args;
use crate::reply::Reply;

pub use privileges::{Action, Asked, Judge, Privilege, Privileges, Resource, When, of_its_name};
pub use table::{Entry, Run, RunOnFront, Table};

/// One command: its arguments, parsed, and how to run it.
///
/// `'a` is the life of the request's bytes, which arguments borrow; `Op` is what a role's commands run with. The commands
/// of every server run with the [`Request`](crate::request::Request) itself.
pub trait Command<'a, Op>: Sized {
    /// The canonical name, as `listCommands` shows it.
    const NAME: &'static str;
    /// What everybody may know of it.
    const SPEC: Spec;

    /// Reads the arguments. Fields not asked for are refused afterwards (see [`Args::finish`]).
    fn parse(args: &mut Args<'a>) -> Result<Self>;

    /// Runs and answers.
    fn run(self, op: &Op) -> Result<Reply>;
}

/// A command's name and what everybody may know of it.
#[derive(Debug)]
pub struct Description {
    /// The canonical name.
    pub name: &'static str,
    /// Everything else.
    pub spec: Spec,
}

/// What everybody may know of a command before it is parsed.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Other spellings (`ismaster`, `findandmodify`).
    pub aliases: &'static [&'static str],
    /// The text of `listCommands`.
    pub help: &'static str,
    /// Reads, writes, or neither.
    pub access: Access,
    /// What it may be to a session's transaction number.
    pub transaction: Transaction,
    /// Where it runs on a member of a replica set that is not primary.
    pub secondary: Secondary,
    /// Whether it runs on a member that is neither primary nor secondary, too.
    pub maintenance: bool,
    /// Whether it runs before its client has proved who it is.
    pub authentication: Authentication,
    /// Whether it is part of the stable API version 1.
    pub api_v1: bool,
    /// Whether it runs against the `admin` database only.
    pub admin_only: bool,
    /// Whether there is the command only with `enableTestCommands=1`.
    pub test_only: bool,
    /// Which of the concerns it takes.
    pub concerns: Concerns,
    /// What its user must be allowed to do.
    pub privileges: Privileges,
    /// How a router runs it.
    pub spread: Spread,
    /// The figure of `opcounters` that it counts in.
    pub counter: Counter,
    /// The threads on which it runs.
    pub threads: Threads,
    /// Whether it ends when its client has gone.
    pub ends_with_client: bool,
}

/// What a command does to data.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// Neither reads nor writes user data.
    None,
    /// Reads.
    Read,
    /// Reads, and writes if this holds for its body: an aggregation into a collection.
    ReadOrWrite(fn(RawDoc<'_>) -> bool),
    /// Writes.
    Write,
}

impl Access {
    /// Whether it always writes.
    pub fn is_write(self) -> bool {
        matches!(self, Access::Write)
    }

    /// Whether a command that otherwise reads writes with this body.
    pub fn writes_after_all(self, body: RawDoc<'_>) -> bool {
        matches!(self, Access::ReadOrWrite(writes) if writes(body))
    }
}

/// What a command may be to a session's transaction number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transaction {
    /// No part of a multi-document transaction.
    Refused,
    /// A part of one.
    Allowed,
    /// A part of one, or a retryable write outside.
    AllowedOrRetryable,
}

/// Whether a command runs on a member of a replica set that is not primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Secondary {
    /// Never.
    Never,
    /// If its `$readPreference` allows it.
    OptIn,
    /// Always.
    Always,
}

/// Whether a command runs before its client has proved who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Authentication {
    /// The command runs before: handshakes, and authentication itself.
    Before,
    /// The command runs only afterwards.
    Required,
}

/// The concerns that a command takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Concerns {
    /// A `readConcern` other than local.
    pub read: bool,
    /// A `writeConcern`.
    pub write: bool,
}

impl Concerns {
    /// Neither.
    pub const NONE: Concerns = Concerns { read: false, write: false };
    /// `readConcern`.
    pub const READ: Concerns = Concerns { read: true, write: false };
    /// `writeConcern`.
    pub const WRITE: Concerns = Concerns { read: false, write: true };
    /// Both.
    pub const BOTH: Concerns = Concerns { read: true, write: true };
}

/// How a router runs a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// The router answers by itself.
    Router,
    /// The shards that may hold what the shard key in the request selects, all that own chunks without one; replies are
    /// merged.
    Targeted,
    /// The primary shard of the database.
    PrimaryShard,
    /// The shards that own chunks of the collection.
    Owners,
    /// One shard that owns a chunk of the collection, as all know the same.
    AnyOwner,
    /// All shards; replies are merged.
    AllShards,
    /// The config servers.
    ConfigServers,
    /// The shards of one of the router's cursors.
    CursorOwners,
    /// The shards that take part in the transaction.
    Participants,
    /// As the command that stands in the request.
    Inner,
    /// Routers refuse it, or do not know it.
    Refused,
}

/// The figures of `serverStatus.opcounters`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// `insert`, one for each document.
    Insert,
    /// `query`.
    Query,
    /// `update`, one for each statement.
    Update,
    /// `delete`, one for each statement.
    Delete,
    /// `getmore`.
    GetMore,
    /// `command`.
    Command,
    /// Each operation of a `bulkWrite` as the insert, update or delete that it is.
    Bulk,
}

/// The threads on which a command runs.
///
/// Control commands run on the control threads for who has asked for nothing else yet: they touch no data, and are
/// answered when those that do have stopped everything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// A control command that takes no time.
    Control,
    /// A control command that may wait: it runs where it may block the thread.
    ControlMayBlock,
    /// A command that takes little time.
    Data,
    /// A command that may wait or run long: it runs where it may block the thread.
    DataMayBlock,
}

impl Threads {
    /// Whether it is a control command.
    pub fn is_control(self) -> bool {
        matches!(self, Threads::Control | Threads::ControlMayBlock)
    }

    /// Whether it runs where it may block the thread.
    pub fn may_block(self) -> bool {
        matches!(self, Threads::ControlMayBlock | Threads::DataMayBlock)
    }
}
