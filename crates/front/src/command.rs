//! What a command is.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use crate::args::Args;
use crate::reply::Reply;

/// One command: its arguments, parsed, and how to run it.
///
/// `'a` is the life of the request's bytes, which arguments borrow; `Op` is what a role's commands run with.
pub trait Command<'a, Op>: Sized {
    /// The canonical name, as `listCommands` shows it.
    const NAME: &'static str;
    /// What dispatch must know before it parses.
    const SPEC: Spec;

    /// Reads the arguments. Fields not asked for are refused afterwards (see [`Args::finish`]).
    fn parse(args: &mut Args<'a>) -> Result<Self>;

    /// Runs and answers.
    fn run(self, op: &Op) -> Result<Reply>;
}

/// What dispatch must know about a command before it parses.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Other spellings (`ismaster`, `findandmodify`).
    pub aliases: &'static [&'static str],
    /// Reads, writes, or neither.
    pub access: Access,
    /// May be part of a multi-document transaction.
    pub in_transaction: bool,
    /// Takes `txnNumber` outside a transaction: a retryable write.
    pub retryable: bool,
    /// Runs against the `admin` database only.
    pub admin_only: bool,
    /// Part of the stable API version 1.
    pub api_v1: bool,
    /// May wait or run long: runs where it may block the thread.
    pub may_block: bool,
    /// Takes no time and touches no data: runs on the control threads for who has asked for nothing else yet.
    pub control: bool,
    /// Ends when its client has gone.
    pub ends_with_client: bool,
    /// Whether such a body writes, though the command reads otherwise: an aggregation into a collection.
    pub writes_if: fn(RawDoc<'_>) -> bool,
    /// Takes a `readConcern` other than local.
    pub read_concern: bool,
    /// Takes a `writeConcern`.
    pub write_concern: bool,
    /// Where it runs on a member of a replica set that is not primary.
    pub secondary: Secondary,
    /// Runs on a member that is neither primary nor secondary, too.
    pub maintenance: bool,
    /// Only with `enableTestCommands=1`.
    pub test_only: bool,
    /// The figure of `opcounters` that it counts in.
    pub counter: Counter,
    /// Shown by `listCommands`.
    pub help: &'static str,
}

/// What a command does to data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Neither reads nor writes user data.
    None,
    /// Reads.
    Read,
    /// Writes.
    Write,
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
}

impl Spec {
    /// A command that touches no user data.
    pub const fn plain() -> Spec {
        Spec {
            aliases: &[],
            access: Access::None,
            in_transaction: false,
            retryable: false,
            admin_only: false,
            api_v1: false,
            may_block: false,
            control: false,
            ends_with_client: false,
            writes_if: |_| false,
            read_concern: false,
            write_concern: false,
            secondary: Secondary::Always,
            maintenance: true,
            test_only: false,
            counter: Counter::Command,
            help: "",
        }
    }

    /// A command that reads user data, with a read concern.
    pub const fn read() -> Spec {
        Spec {
            access: Access::Read,
            read_concern: true,
            ends_with_client: true,
            secondary: Secondary::OptIn,
            maintenance: false,
            ..Spec::plain()
        }
    }

    /// A command that writes user data, with a write concern.
    pub const fn write() -> Spec {
        Spec {
            access: Access::Write,
            write_concern: true,
            secondary: Secondary::Never,
            maintenance: false,
            ..Spec::plain()
        }
    }

    /// Other spellings.
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Spec {
        self.aliases = aliases;
        self
    }

    /// May be part of a multi-document transaction.
    pub const fn in_transaction(mut self) -> Spec {
        self.in_transaction = true;
        self
    }

    /// May be a retryable write.
    pub const fn retryable(mut self) -> Spec {
        self.retryable = true;
        self
    }

    /// Runs against `admin` only.
    pub const fn admin_only(mut self) -> Spec {
        self.admin_only = true;
        self
    }

    /// Part of the stable API.
    pub const fn api_v1(mut self) -> Spec {
        self.api_v1 = true;
        self
    }

    /// May wait or run long.
    pub const fn may_block(mut self) -> Spec {
        self.may_block = true;
        self
    }

    /// Takes no time and touches no data.
    pub const fn control(mut self) -> Spec {
        self.control = true;
        self
    }

    /// Ends when its client has gone, as all do that only read.
    pub const fn ends_with_client(mut self) -> Spec {
        self.ends_with_client = true;
        self
    }

    /// Writes if this holds for its body, though it reads otherwise.
    pub const fn writes_if(mut self, writes_if: fn(RawDoc<'_>) -> bool) -> Spec {
        self.writes_if = writes_if;
        self
    }

    /// Takes a `readConcern`.
    pub const fn read_concern(mut self) -> Spec {
        self.read_concern = true;
        self
    }

    /// Takes a `writeConcern`.
    pub const fn write_concern(mut self) -> Spec {
        self.write_concern = true;
        self
    }

    /// Where it runs on a member that is not primary.
    pub const fn secondary(mut self, secondary: Secondary) -> Spec {
        self.secondary = secondary;
        self
    }

    /// Runs on a member that is neither primary nor secondary, too.
    pub const fn maintenance(mut self) -> Spec {
        self.maintenance = true;
        self
    }

    /// Only with `enableTestCommands=1`.
    pub const fn test_only(mut self) -> Spec {
        self.test_only = true;
        self
    }

    /// Counts in this figure of `opcounters` instead of `command`.
    pub const fn counter(mut self, counter: Counter) -> Spec {
        self.counter = counter;
        self
    }

    /// The text of `listCommands`.
    pub const fn help(mut self, help: &'static str) -> Spec {
        self.help = help;
        self
    }
}

/// A command as everybody may know it.
#[derive(Debug)]
pub struct Description {
    /// Its canonical name.
    pub name: &'static str,
    /// What dispatch must know.
    pub spec: Spec,
}
