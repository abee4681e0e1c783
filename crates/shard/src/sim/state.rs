//! What a process knows of moves: the machines, what they wait for, and the collection's gate.

use std::collections::{BTreeMap, BTreeSet};

use crate::moves::{Conductor, Donors, Misfit, MoveId, MoveStatement, PlacementChange, Recipients, Removals};
use crate::placement::Key as ShardKey;
use crate::transaction::{Committer, ReplyId};
use crate::types::{ShardId, TransactionId};

use super::directory::UUID;
use super::message::{Address, Batch, Return};

/// What another process was asked.
#[derive(Clone, Debug)]
pub(super) enum Called {
    Donor { id: MoveId, call: u64 },
    Recipient(MoveId),
    Statement { id: MoveId, on: ShardId, transaction: TransactionId },
    Commit { shard: usize, transaction: TransactionId },
}

/// What is to be done when an entry is applied, or on a majority.
#[derive(Clone, Debug)]
pub(super) enum Then {
    Written(MoveId),
    Placed(Placing),
    Removed { min: ShardKey, more: bool },
    Begun(MoveId),
    Forgotten(MoveId),
    Answer { to: Address, number: u64, result: Box<Return> },
}

/// Whose change of the placement it is.
#[derive(Clone, Debug)]
pub(super) enum Placing {
    Recipient(MoveId),
    Removal(ShardKey),
}

/// Of moves, what a process knows.
#[derive(Default)]
pub(super) struct Moves {
    pub is_leading: bool,
    pub donors: Donors,
    pub recipients: Recipients<Batch>,
    pub removals: Removals,
    pub gate: Gate,
    pub replies: BTreeMap<ReplyId, (Address, u64)>,
    pub calls: BTreeMap<u64, Called>,
    /// Changes of the placement that wait for the gate.
    pub placing: Vec<(Placing, PlacementChange)>,
    /// Statements that wait for the gate.
    pub statements: Vec<Statement>,
    /// Ranges that may still be read, and until when.
    pub awaiting: Vec<(ShardKey, u64)>,
    pub applied: BTreeMap<u64, Vec<Then>>,
    pub majority: BTreeMap<u64, Vec<Then>>,
    /// What is applied.
    pub index: u64,
    /// Who waits for the directory.
    pub table_readers: Vec<(Address, u64)>,
    pub conductors: BTreeMap<MoveId, Conductor>,
    /// The config servers' statement as a shard, until the directory's has come.
    pub own_statement: Option<MoveStatement>,
    pub committer: Committer,
    /// Conductors that wait for the table, and for their document to be deleted.
    pub reading: BTreeSet<MoveId>,
    pub forgetting: BTreeSet<MoveId>,
}

impl Moves {
    /// Begins or ends an office of these machines.
    pub fn follow(&mut self, leads: bool, term: u64, marks: Option<Marks>) {
        if leads == self.is_leading {
            return;
        }
        self.is_leading = leads;
        self.forget();
        if leads {
            let marks = marks.unwrap_or_default();
            self.donors.became_primary(term);
            self.recipients.became_primary(term, marks.receiving.into_iter().map(|id| (UUID, id)));
            self.removals.became_primary();
            self.removals.placement(UUID, marks.leaving);
        } else {
            self.donors.lost_primary();
            self.recipients.lost_primary();
            self.removals.lost_primary();
            self.donors.poll();
        }
    }

    /// Forgets what belongs to an office; the machines go on, with the numbers that they have given.
    fn forget(&mut self) {
        let machines = (
            std::mem::take(&mut self.donors),
            std::mem::take(&mut self.recipients),
            std::mem::take(&mut self.removals),
        );
        let (is_leading, index) = (self.is_leading, self.index);
        let (donors, recipients, removals) = machines;
        *self = Moves { is_leading, index, donors, recipients, removals, ..Moves::default() };
    }

    /// Another process has lost its office.
    pub fn lost(&mut self) {
        self.follow(false, 0, None);
    }

    pub fn reply_to(&mut self, to: ReplyId, from: Address, number: u64) -> ReplyId {
        self.replies.insert(to, (from, number));
        to
    }
}

/// What a placement has marked.
#[derive(Default)]
pub(super) struct Marks {
    pub receiving: Vec<MoveId>,
    pub leaving: Vec<(ShardKey, ShardKey)>,
}

impl Moves {
    /// A change of the placement is made, or cannot be.
    pub fn placed(&mut self, whose: &Placing, result: Result<(), Misfit>) {
        match whose {
            Placing::Recipient(id) => self.recipients.placed(*id, result),
            Placing::Removal(min) => self.removals.placed(UUID, min, result.is_ok()),
        }
    }
}

/// Who holds the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    Unit(u64),
    Transaction(TransactionId),
}

#[derive(Debug, Default)]
pub(super) struct Gate {
    pub closed: BTreeSet<MoveId>,
    holder: Option<Holder>,
}

/// A statement of a move's transaction that waits for the gate.
pub(super) struct Statement {
    pub from: Address,
    pub number: u64,
    pub id: TransactionId,
    pub statement: MoveStatement,
    /// The directory's, which is executed with it: here are the config servers.
    pub directory: Option<MoveStatement>,
    pub until: u64,
}

impl Gate {
    pub fn close(&mut self, id: MoveId) {
        self.closed.insert(id);
    }

    pub fn reopen(&mut self, id: MoveId) {
        self.closed.remove(&id);
    }

    pub fn applied(&mut self, index: u64) {
        if matches!(self.holder, Some(Holder::Unit(at)) if at <= index) {
            self.holder = None;
        }
    }

    /// The transaction is over.
    pub fn ended(&mut self, id: &TransactionId) {
        if self.holder.as_ref() == Some(&Holder::Transaction(id.clone())) {
            self.holder = None;
        }
    }

    pub fn hold_by_transaction(&mut self, id: TransactionId) {
        assert!(self.holder.is_none(), "one holds it at a time");
        self.holder = Some(Holder::Transaction(id));
    }

    pub fn hold_by_unit(&mut self, index: u64) {
        assert!(self.holder.is_none(), "one holds it at a time");
        self.holder = Some(Holder::Unit(index));
    }

    /// Whether nobody changes what it guards.
    pub fn is_free(&self) -> bool {
        self.holder.is_none()
    }
}
