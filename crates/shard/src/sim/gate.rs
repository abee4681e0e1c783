//! The collection's gate: writers and changes of the placement keep apart.
//!
//! A writer that has been let in has read a placement that stays as it is until the write is visible. Who changes the placement waits until
//! nobody is within, and lets nobody in: until its entry is applied or its transaction is decided. A donor that has closed a range
//! does so too.

use crate::moves::{Misfit, MoveId, MoveStatement, PlacementChange};
use crate::placement::Key as ShardKey;
use crate::time::ClusterTime;
use crate::transaction::Executed;
use crate::types::TransactionId;

use super::Mutation;
use super::conduct::entered;
use super::directory::{Placed, shard_id};
use super::message::{Address, Return};
use super::node::{OpenWrites, Process};
use super::state::{Statement, Then};
use super::store::Payload;
use super::world::World;

/// How long a statement waits for writers.
pub(super) const WAIT_MILLIS: u64 = 500;

impl Process {
    /// Whether somebody has prepared a change of what the gate guards.
    fn is_change_prepared(&self) -> bool {
        self.store.prepared.values().any(|payload| payload.placement.is_some() || !payload.chunks.is_empty())
    }

    /// Whether writers are let in.
    pub fn lets_in(&self, mutation: Option<Mutation>) -> bool {
        let is_prepared = self.is_change_prepared();
        if mutation == Some(Mutation::DonorWritesAfterPrepare) && is_prepared {
            return true;
        }
        let gate = &self.moves.gate;
        let waiting = !self.moves.placing.is_empty() || !self.moves.statements.is_empty();
        !is_prepared && gate.is_free() && gate.closed.is_empty() && !waiting
    }

    /// Whether who has read the placement as of a time may write now.
    pub fn may_write(&self, read_at: ClusterTime, mutation: Option<Mutation>) -> bool {
        let Some(newest) = self.store.newest_placement() else { return true };
        self.store.placement(read_at) == newest && self.lets_in(mutation)
    }

    /// Whether no writer is within.
    fn is_drained(&self) -> bool {
        self.writing.is_empty()
            && self.ending.is_empty()
            && self.store.prepared.values().all(|payload| payload.writes.is_empty())
    }
}

impl World {
    /// Lets in who waits, if it is their turn.
    pub(super) fn pass_gate(&mut self, node: usize) {
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        if !process.leads() {
            return;
        }
        if process.is_drained() {
            let ids: Vec<MoveId> = process.moves.gate.closed.iter().copied().collect();
            for id in ids.into_iter().filter(|id| process.moves.donors.is_closing(*id)).collect::<Vec<_>>() {
                process.moves.donors.drained(id);
            }
        }
        if !process.moves.statements.is_empty() {
            let waiting = std::mem::take(&mut process.moves.statements);
            for statement in waiting {
                let result = self.try_statement(node, &statement);
                let Some(process) = &mut self.nodes[node].process else { return };
                match result {
                    None if statement.until > now => process.moves.statements.push(statement),
                    result => {
                        let late = || Err(Misfit("others were writing".to_owned()));
                        let result = result.unwrap_or_else(late);
                        let Some(MoveStatement::Directory { the_move, .. }) = &statement.directory else {
                            let result = Return::Statement(result);
                            self.give_back(node, statement.from, statement.number, result);
                            continue;
                        };
                        let here = shard_id(self.plan.config());
                        self.executed_of_move(node, the_move.id, &here, &statement.id, result);
                    }
                }
            }
        }
        self.place(node);
        self.pass_directory(node);
    }

    /// Executes a statement that changes the placement; none: others are within.
    fn try_statement(&mut self, node: usize, of: &Statement) -> Option<Result<Executed, Misfit>> {
        let millis = self.now as i64;
        let process = self.nodes[node].process.as_mut()?;
        let misfit = |what: &str| Some(Err(Misfit(what.to_owned())));
        let change = of.statement.change(millis)?;
        let (is_leave, id, closing) = match &of.statement {
            MoveStatement::Leave { the_move, closing, .. } => (true, the_move.id, *closing),
            MoveStatement::Own { the_move, closing, .. } => (false, the_move.id, *closing),
            MoveStatement::Directory { .. } => return misfit("that is for the config servers"),
        };
        let closed_for_others = process.moves.gate.closed.iter().any(|closed| !is_leave || *closed != id);
        let others = process.is_change_prepared() || !process.is_drained() || closed_for_others;
        if others || !process.moves.gate.is_free() {
            return None;
        }
        let placed = process.store.newest_placement()?.clone();
        let after = match change.apply(Some(placed.document.as_raw())) {
            Ok(Some(after)) => after,
            Ok(None) => return misfit("it changes nothing"),
            Err(error) => return misfit(error.message()),
        };
        let directory = of.directory.as_ref().map(|directory| entered(&process.store, directory));
        let directory = match directory.transpose() {
            Ok(directory) => directory.unwrap_or_default(),
            Err(why) => return Some(Err(why)),
        };
        let Ok(executed) = process.shard.try_execute(&of.id, None) else {
            return misfit("the transaction is not new");
        };
        process.open.remove(&of.id);
        let moves = &mut process.moves;
        let result = match is_leave {
            true => moves.donors.statement(id, closing, &of.id),
            false => moves.recipients.statement(id, closing, &of.id),
        };
        if let Err(why) = result {
            process.shard.abandon(&of.id);
            return Some(Err(why));
        }
        moves.gate.hold_by_transaction(of.id.clone());
        let payload = Payload { placement: Some(Placed::new(after).into()), ..directory };
        let read_at = process.clock.time();
        process.open.insert(of.id.clone(), OpenWrites { executed, read_at, payload });
        Some(Ok(executed))
    }

    /// Changes of the placement by units.
    fn place(&mut self, node: usize) {
        let returns = self.mutation == Some(Mutation::ReturnedRangeRemoved);
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.moves.placing.is_empty()
            || !process.moves.gate.closed.is_empty()
            || !process.moves.gate.is_free()
            || process.is_change_prepared()
            || !process.is_drained()
        {
            return;
        }
        let Some(placed) = process.store.newest_placement().cloned() else { return };
        let (whose, change) = process.moves.placing.remove(0);
        let mut document = placed.document.clone();
        if returns && matches!(change, PlacementChange::Receive { .. }) {
            document = without_leaving(&document);
        }
        match change.apply(Some(document.as_raw())) {
            Ok(Some(after)) => {
                let payload = Payload { placement: Some(Placed::new(after).into()), ..Payload::default() };
                if let Some(at) = self.propose_for_move(node, payload, Then::Placed(whose))
                    && let Some(process) = &mut self.nodes[node].process
                {
                    process.moves.gate.hold_by_unit(at);
                }
            }
            Ok(None) => process.moves.placed(&whose, Ok(())),
            Err(error) => process.moves.placed(&whose, Err(Misfit(error.message().to_owned()))),
        }
    }

    /// A statement of a move's transaction has come.
    pub(super) fn move_statement(
        &mut self,
        node: usize,
        from: Address,
        number: u64,
        id: TransactionId,
        statement: MoveStatement,
    ) {
        let until = self.now + WAIT_MILLIS;
        let Some(process) = &mut self.nodes[node].process else { return };
        process.moves.statements.push(Statement { from, number, id, statement, directory: None, until });
        self.pass_gate(node);
    }
}

/// A placement that has forgotten what it has yet to remove.
fn without_leaving(document: &sheaf_bson::DocBuf) -> sheaf_bson::DocBuf {
    let mut document = document.clone();
    let marks: Vec<(ShardKey, ShardKey)> =
        crate::moves::leaving_in(document.as_raw()).expect("it is a placement");
    for (min, _) in marks {
        if let Ok(Some(after)) = (PlacementChange::Removed { min }).apply(Some(document.as_raw())) {
            document = after;
        }
    }
    document
}
