//! Moves of ranges from one shard to another.
//!
//! - [`Conductor`] leads one move, on the config servers' primary: from its document in `config.migrations` to the transaction that
//!   changes the owner, or to giving it up.
//! - [`Recipients`] are the moves to a shard: it copies a range from its donor, follows what changes there, and has the rest when the
//!   donor has closed the range.
//! - [`Donors`] are the moves from a shard: what has changed since the copying began, and the closing of the range.
//! - [`Removals`] take away what a shard has given away, or received in vain.
//!
//! What survives a process is in documents: `config.migrations`, and each shard's placement ([`PlacementChange`]). The machines live in the
//! memory of a primary for as long as its office. If one is gone the move is given up, unless its transaction has prepared: that is
//! decided as every other is. Who wants to write a document that the transaction has locked waits for it and reads again; so
//! nobody has to know how far a move was. The whole is told in `docs/design/0022-moves.md`.

mod change;
mod conductor;
mod donor;
mod message;
mod recipient;
mod removal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use sheaf_bson::{Timestamp, uuid_text};

use crate::placement::{Chunk, Key, KeyPattern, KeyRange};
use crate::types::ShardId;

pub use change::{Misfit, PlacementChange, leaving_in, receiving_in};
pub use conductor::{Conductor, ConductorEffect, Ending};
pub use donor::{ChangeOf, Changes, DonorEffect, Donors};
pub use message::name;
pub use recipient::{RecipientEffect, Recipients};
pub use removal::{RemovalEffect, Removals};

/// Names a move in the whole cluster: the `_id` of its document in `config.migrations`, and the session of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId(pub [u8; 16]);

impl fmt::Debug for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&uuid_text(self.0))
    }
}

/// What is moved, from where and to where.
#[derive(Clone, Debug)]
pub struct Move {
    /// Its name.
    pub id: MoveId,
    /// The collection's namespace.
    pub ns: Arc<str>,
    /// The collection's UUID.
    pub uuid: [u8; 16],
    /// The shard key.
    pub pattern: KeyPattern,
    /// The lowest key that is moved.
    pub min: Key,
    /// The key before which the range ends.
    pub max: Key,
    /// The owner until the move commits: the donor.
    pub from: ShardId,
    /// The owner from then on: the recipient.
    pub to: ShardId,
}

impl Move {
    /// The keys that are moved.
    pub fn range(&self) -> KeyRange {
        KeyRange::new(&self.min, &self.max, self.max == self.pattern.max())
    }
}

/// A move's name says everything of it.
impl PartialEq for Move {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Move {}

/// Names something that only one primary in one office knows, and forgets with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    /// The office: its election term.
    pub term: u64,
    /// The number within the process.
    pub number: u64,
}

/// What is asked about a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveRequest {
    /// The conductor to the recipient: begin, or go on; nothing is received any more when this stays away. Answered at once.
    Receive {
        /// What.
        the_move: Arc<Move>,
    },
    /// The conductor to the recipient: have the donor close the range, and take what is left. Answered by [`MoveAnswer::Ready`] when
    /// that is done.
    Finish {
        /// Which.
        id: MoveId,
    },
    /// The conductor to the recipient: it will not happen. Answered when nothing is marked as received any more.
    GiveUp {
        /// Which.
        id: MoveId,
    },
    /// The recipient to the donor: note what changes from now on.
    Donate {
        /// What.
        the_move: Arc<Move>,
        /// Which recipient: a later one replaces an earlier one.
        attempt: Token,
    },
    /// The recipient to the donor: the next documents of the range by shard key.
    Copy {
        /// Which.
        id: MoveId,
        /// What the donor has called it.
        donation: Token,
        /// Where the last batch ended, in the donor's words.
        after: Option<Vec<u8>>,
    },
    /// The recipient to the donor: what has changed.
    Changes {
        /// Which.
        id: MoveId,
        /// What the donor has called it.
        donation: Token,
        /// Up to where changes have been received.
        received: u64,
        /// Whether the range is to be closed: it is answered when nobody writes in it any more.
        close: bool,
    },
}

impl MoveRequest {
    /// The move that is asked about.
    pub fn id(&self) -> MoveId {
        match self {
            MoveRequest::Receive { the_move } | MoveRequest::Donate { the_move, .. } => the_move.id,
            MoveRequest::Finish { id }
            | MoveRequest::GiveUp { id }
            | MoveRequest::Copy { id, .. }
            | MoveRequest::Changes { id, .. } => *id,
        }
    }
}

/// How far a recipient is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Batches written.
    pub batches: u64,
    /// Whether the range is copied and what has changed since is little: the end may come.
    pub caught_up: bool,
}

/// What is answered. The documents that come with `Copied` and `Changed` are the drivers' matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveAnswer {
    /// The recipient is at it.
    Receiving(Progress),
    /// The recipient has everything, and the donor's range is closed under this name.
    Ready {
        /// The closing.
        closing: Token,
    },
    /// The range could not be closed, for others were writing in it for long. It is open again.
    Busy,
    /// Nothing is received, and nothing will be under this name.
    GivenUp {
        /// Why.
        why: String,
    },
    /// The donor notes what changes from now on.
    Donating {
        /// What it calls that.
        donation: Token,
    },
    /// A batch of documents.
    Copied {
        /// Where it ends, in the donor's words. None: it was the last.
        last: Option<Vec<u8>>,
    },
    /// A batch of changes.
    Changed {
        /// Up to where they go.
        upto: u64,
        /// How many are in it.
        count: u64,
        /// How many more there are.
        left: u64,
        /// The range is closed under this name.
        closing: Option<Token>,
    },
    /// The donor does not know of it, or cannot do it.
    Refused {
        /// Why.
        why: String,
    },
}

/// A statement of the transaction that changes the owner.
#[derive(Clone, Debug, PartialEq)]
pub enum MoveStatement {
    /// On the donor.
    Leave {
        /// What.
        the_move: Arc<Move>,
        /// The closing in which the recipient has got everything.
        closing: Token,
        /// The donor's version from then on.
        lastmod: Timestamp,
    },
    /// On the recipient.
    Own {
        /// What.
        the_move: Arc<Move>,
        /// As above.
        closing: Token,
        /// The recipient's version from then on.
        lastmod: Timestamp,
    },
    /// On the config servers: these chunks take the place of what they overlap, and the move's document goes. It conflicts with every other
    /// change of the collection's chunks since they were read.
    Directory {
        /// What.
        the_move: Arc<Move>,
        /// The chunks that change.
        chunks: Vec<Chunk>,
    },
}

impl MoveStatement {
    /// What it changes in the shard's placement, at a time of day in milliseconds; none on the config servers.
    pub fn change(&self, now: i64) -> Option<PlacementChange> {
        match self.clone() {
            MoveStatement::Leave { the_move, lastmod, .. } => {
                Some(PlacementChange::Leave { the_move, lastmod, since: now })
            }
            MoveStatement::Own { the_move, lastmod, .. } => Some(PlacementChange::Own { the_move, lastmod }),
            MoveStatement::Directory { .. } => None,
        }
    }
}
