//! What a server is to its clients: a mongod, a router.
//!
//! The front reads messages, sorts their arguments, keeps count, waits and answers. What a command does is its role's:
//! which commands there are, whether they run here and now, how they run, and what their answers wait for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result};
use sheaf_tls::Wire;

use crate::access::Accounts;
use crate::args::Fields;
use crate::command::Description;
use crate::cursors::{NoCursors, OpenCursors};
use crate::front::{Front, Guest};
use crate::outcome::{Ran, RequestOutcome};
use crate::reply::Reply;
use crate::request::{PlanNames, Request};
use crate::session::{NoSessions, SessionRegistry};

/// Something that comes about; it lives as long as what it borrows.
pub type Coming<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A command as a role has found it.
#[derive(Clone, Copy)]
pub struct Found {
    /// What everybody may know of it.
    pub command: &'static Description,
    /// The command's place in the role's own table.
    pub at: usize,
}

/// What a server is to its clients.
pub trait Role: Send + Sync + 'static {
    /// What every server has.
    fn front(&self) -> &Arc<Front>;

    /// The command of this name or alias.
    fn find(&self, name: &str) -> Option<Found>;

    /// Whether the concerns and the cluster time of a request are such as this server can satisfy.
    ///
    /// Errors: the client's mistakes in them.
    fn check(&self, request: &Request<'_>) -> Result<()>;

    /// Whether this server, being what it is now, runs the command.
    ///
    /// Errors: those by which drivers look for another server.
    fn place(&self, request: &Request<'_>) -> Result<()>;

    /// Runs the command with these fields, within its session, to the point where its answer only has to wait and be sent.
    fn run<'a>(&'a self, request: &'a Request<'a>, fields: Fields<'a>) -> Ran;

    /// Adds what every reply of this server ends with: how far its time has come, whether its place in the topology
    /// changes. `codes` are those of the reply's errors.
    fn finish(&self, reply: Reply, _codes: [Option<Code>; 2], _operation_time: Option<u64>) -> Reply {
        reply
    }

    /// Whether writes are locked (`fsync` with `lock`).
    fn is_locked(&self) -> bool {
        false
    }

    /// The hash of a query's shape, where the command is one.
    fn shape_hash(&self, _db: &str, _command: RawDoc<'_>) -> Option<String> {
        None
    }

    /// By what names the plan cache knows the query of a command that has ended.
    fn plan_names(&self, _request: &Request<'_>, _command: RawDoc<'_>) -> Option<PlanNames> {
        None
    }

    /// The full name of the collection of this UUID, if there is one; `None`: this server knows none by UUIDs.
    fn namespace_of(&self, _uuid: &[u8; 16]) -> Option<Option<String>> {
        None
    }

    /// Is told of each operation that has ended.
    fn measure(&self, _request: &Request<'_>, _outcome: &RequestOutcome, _took: Duration) {}

    /// Keeps the profiler's entries of a finished operation, where the database has a profiler.
    fn profile(&self, _request: &Request<'_>, _db: &str, _entries: &[DocBuf]) {}

    /// The sessions of clients, for the commands that begin and end them.
    fn sessions(&self) -> &dyn SessionRegistry {
        &NoSessions
    }

    /// The cursors that clients have open, for the commands that show and close them.
    fn cursors(&self) -> &dyn OpenCursors {
        &NoCursors
    }

    /// Whether commands go on to other servers, which have to know whose the session in them is.
    fn passes_commands_on(&self) -> bool {
        false
    }

    /// The users that clients may prove to be; `None` where there can be none.
    fn accounts(&self) -> Option<&dyn Accounts> {
        None
    }

    /// What `currentOp` shows besides the operations of this server's clients: transactions that wait for their clients, what
    /// others do for this server.
    fn operations(&self, _request: &Request<'_>) -> Result<Vec<DocBuf>> {
        Ok(Vec::new())
    }

    /// Hands over what only one server of a deployment can have, before this one ends at a client's wish. Waits for no longer
    /// than `patience`.
    ///
    /// Errors: nobody can take it over; not with `force`.
    fn step_down(&self, _patience: Duration, _force: bool) -> Result<()> {
        Ok(())
    }

    /// Lets the operations under way end, and sends clients to other servers if there are any, for no longer than `limit`.
    fn become_quiet(&self, _limit: Duration) -> Coming<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The words of four bytes with which connections begin that do not speak MongoDB's protocol.
    fn words(&self) -> &[[u8; 4]] {
        &[]
    }

    /// Serves a connection that has begun with one of the [words](Role::words). It counts as a client's as long as there is
    /// the guest.
    fn serve(&self, _word: [u8; 4], _stream: Wire, _guest: Guest) -> Coming<'static, std::io::Result<()>> {
        unreachable!("a role without words of its own serves nobody by them")
    }
}

/// What must be so before a reply goes out: enough members have a write, the disk has it, the answer is known.
pub trait Wait: Send + Sync {
    /// Waits until it is so.
    ///
    /// Errors: what stands in `writeConcernError` then.
    fn over(&self) -> Coming<'_, Result<()>>;

    /// Without it the reply is worth nothing: a linearizable read.
    fn is_vital(&self) -> bool;

    /// `errInfo` of its `writeConcernError`.
    fn error_info(&self, timed_out: bool) -> DocBuf;

    /// Adds to the reply what was waited for.
    fn add_to(&self, _reply: &mut Reply) {}
}

/// What a request waits for before it runs again.
pub trait Cause: Send + Sync {
    /// Waits until it has happened.
    fn over(&self) -> Coming<'_, ()>;

    /// The error with which somebody has put an end to what is waited for.
    fn stopped(&self) -> Option<Error> {
        None
    }

    /// Nobody asks for it any more: the client has gone, or its operation was stopped.
    fn abandon(&self) {}
}
