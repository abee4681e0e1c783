//! A command's message, and where it is worked on.

use sheaf_bson::RawDoc;
use sheaf_wire::{Flags, Sequence};

/// A command as the connection read it.
pub struct Message<'a> {
    /// The command.
    pub body: RawDoc<'a>,
    /// The message's kind-1 sections.
    pub sequences: &'a [Sequence<'a>],
    /// Flags of the message; those of OP_QUERY are 0.
    pub flags: Flags,
    /// The database that an OP_QUERY names; OP_MSG has it in `$db`.
    pub query_db: Option<&'a str>,
    /// Where it runs.
    pub place: Place,
}

/// Where a request runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a thread that also serves others, which must not wait for it.
    Reactor,
    /// The same, and the request is so large that it takes long.
    ReactorLong,
    /// On a thread on which nobody else waits.
    Thread,
}
