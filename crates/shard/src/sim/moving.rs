//! A member's part in moves: the machines of donor, recipient and removals with what they have asked for.

use crate::moves::{
    ChangeOf, DonorEffect, MoveAnswer, MoveRequest, PlacementChange, RecipientEffect, RemovalEffect,
    leaving_in, receiving_in,
};
use crate::placement::Key as ShardKey;
use crate::transaction::ReplyId;
use crate::types::TransactionId;

use super::Mutation;
use super::directory::{UUID, name_of, named, shard_key, shard_number};
use super::message::{Address, Batch, Call, Message, Return};
use super::node::Process;
use super::state::{Called, Marks, Placing, Then};
use super::store::{Key, Payload};
use super::world::World;

/// So many documents are copied, or removed, at once.
const PIECE: usize = 2;

fn marks_of(process: &Process) -> Option<Marks> {
    let document = process.store.newest_placement()?.document.as_raw();
    let (receiving, leaving) = (receiving_in(document), leaving_in(document));
    Some(Marks { receiving: receiving.expect("it is a placement"), leaving: leaving.expect("it is one") })
}

impl World {
    /// Drives a member's machines until they want nothing more. False: nothing was to be done.
    pub(super) fn settle_moves(&mut self, node: usize) -> bool {
        let Some(process) = &mut self.nodes[node].process else { return false };
        let leads = process.leads();
        if leads != process.moves.is_leading {
            let (term, marks) = (process.member.term(), marks_of(process));
            process.moves.follow(leads, term, marks);
        }
        let donors = process.moves.donors.poll();
        let recipients = process.moves.recipients.poll();
        let removals = process.moves.removals.poll();
        let any = !(donors.is_empty() && recipients.is_empty() && removals.is_empty());
        for effect in donors {
            self.of_donors(node, effect);
        }
        for effect in recipients {
            self.of_recipients(node, effect);
        }
        for effect in removals {
            self.of_removals(node, effect);
        }
        let conducted = self.settle_conductors(node);
        any | conducted
    }

    /// Time has passed.
    pub(super) fn tick_moves(&mut self, node: usize) {
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        let moves = &mut process.moves;
        moves.donors.tick(now);
        moves.recipients.tick(now);
        moves.removals.tick(now);
        let due: Vec<ShardKey> =
            moves.awaiting.iter().filter(|(_, at)| *at <= now).map(|(min, _)| min.clone()).collect();
        moves.awaiting.retain(|(_, at)| *at > now);
        for min in due {
            moves.removals.unneeded(UUID, &min);
        }
        self.tick_conductors(node);
        self.pass_gate(node);
    }

    /// A request about a move has come.
    pub(super) fn move_request(&mut self, node: usize, from: Address, number: u64, request: MoveRequest) {
        let without_rows = self.mutation == Some(Mutation::StatementRowsLeft);
        let Some(process) = &mut self.nodes[node].process else { return };
        let reply = ReplyId(process.next_number());
        let to = process.moves.reply_to(reply, from, number);
        match request {
            MoveRequest::Receive { .. } | MoveRequest::Finish { .. } | MoveRequest::GiveUp { .. } => {
                process.moves.recipients.handle(to, request);
            }
            MoveRequest::Donate { .. } | MoveRequest::Copy { .. } | MoveRequest::Changes { .. } => {
                let store = &process.store;
                let owned = store.newest_placement().map(|placed| &placed.placement.owned);
                let sessions = || store.statements.keys().filter(|_| !without_rows).cloned().collect();
                process.moves.donors.handle(
                    to,
                    request,
                    |the_move| owned.is_some_and(|owned| owned.covers(&the_move.range())),
                    |_| sessions(),
                );
            }
        }
    }

    fn answer_move(&mut self, node: usize, to: ReplyId, result: Return) {
        let Some(process) = &mut self.nodes[node].process else { return };
        if let Some((from, number)) = process.moves.replies.remove(&to) {
            self.give_back(node, from, number, result);
        }
    }

    /// Sends a call to a shard, and remembers what for.
    pub(super) fn call_of_move(&mut self, node: usize, shard: usize, called: Called, call: Call) {
        self.next_call += 1;
        let number = self.next_call;
        let Some(process) = &mut self.nodes[node].process else { return };
        process.moves.calls.insert(number, called);
        let time = process.clock.time();
        let to = Address::Member(self.guess(shard));
        self.send(Address::Member(node), to, Message::Call { number, time, call });
    }

    // Effects.

    fn of_donors(&mut self, node: usize, effect: DonorEffect) {
        let Some(process) = &mut self.nodes[node].process else { return };
        match effect {
            DonorEffect::Reply { to, answer } => {
                self.answer_move(node, to, Return::Move(answer, Batch::default()))
            }
            DonorEffect::NotPrimary { to } => self.answer_move(node, to, Return::NotPrimary),
            DonorEffect::Copy { to, the_move, after } => {
                let from = after.map_or(0, |name| named(&name) + 1);
                let range = the_move.range();
                let all = process.store.versions.range(from..).map(|(key, _)| *key);
                let mut keys: Vec<Key> = all.filter(|key| range.contains(&shard_key(*key))).collect();
                let more = keys.len() > PIECE;
                keys.truncate(PIECE);
                let last = keys.last().filter(|_| more).map(|key| name_of(*key).to_vec());
                let documents =
                    keys.into_iter().filter_map(|key| Some((key, Some(process.store.newest(key)?))));
                let batch = Batch { documents: documents.collect(), ..Batch::default() };
                self.answer_move(node, to, Return::Move(MoveAnswer::Copied { last }, batch));
            }
            DonorEffect::Changes { .. } => self.tell_changes(node, effect),
            DonorEffect::Close(the_move) => {
                process.moves.gate.close(the_move.id);
                self.pass_gate(node);
            }
            DonorEffect::Reopen(the_move) => process.moves.gate.reopen(the_move.id),
            DonorEffect::Abandon(id) => self.abandon_for_move(node, &id),
        }
    }

    fn tell_changes(&mut self, node: usize, effect: DonorEffect) {
        let DonorEffect::Changes { to, the_move, changes, upto, left, closing } = effect else { return };
        let Some(process) = &mut self.nodes[node].process else { return };
        let range = the_move.range();
        let count = changes.len() as u64;
        let mut batch = Batch::default();
        for (_, change) in changes {
            match change {
                ChangeOf::Document(name) if range.contains(&shard_key(named(&name))) => {
                    batch.documents.insert(named(&name), process.store.newest(named(&name)));
                }
                ChangeOf::Document(_) => {}
                ChangeOf::Session(lsid) => {
                    let statements = process.store.statements.get(&lsid).cloned().unwrap_or_default();
                    batch.statements.insert(lsid, statements);
                }
            }
        }
        let is_unsure =
            !batch.statements.is_empty() && process.member.commit_point().index < process.moves.index;
        let result = Return::Move(MoveAnswer::Changed { upto, count, left, closing }, batch);
        if !is_unsure {
            return self.answer_move(node, to, result);
        }
        if let Some((to, number)) = process.moves.replies.remove(&to) {
            let at = process.moves.index;
            let then = Then::Answer { to, number, result: Box::new(result) };
            process.moves.majority.entry(at).or_default().push(then);
        }
    }

    fn of_recipients(&mut self, node: usize, effect: RecipientEffect<Batch>) {
        let Some(process) = &mut self.nodes[node].process else { return };
        match effect {
            RecipientEffect::Reply { to, answer } => {
                self.answer_move(node, to, Return::Move(answer, Batch::default()))
            }
            RecipientEffect::NotPrimary { to } => self.answer_move(node, to, Return::NotPrimary),
            RecipientEffect::Send { to, call, request } => {
                let called = Called::Donor { id: request.id(), call };
                self.call_of_move(node, shard_number(&to), called, Call::Move(request));
            }
            RecipientEffect::Place { id, change, .. } => {
                process.moves.placing.push((Placing::Recipient(id), change));
                self.pass_gate(node);
            }
            RecipientEffect::Write { id, batch } => {
                let payload =
                    Payload { moved: batch.documents, statements: batch.statements, ..Payload::default() };
                self.propose_for_move(node, payload, Then::Written(id));
            }
            RecipientEffect::Abandon(id) => self.abandon_for_move(node, &id),
        }
    }

    fn of_removals(&mut self, node: usize, effect: RemovalEffect) {
        let wait = self.rng.below(2000);
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        match effect {
            RemovalEffect::Await { min, .. } => process.moves.awaiting.push((min, now + wait)),
            RemovalEffect::Remove { min, max, .. } => {
                let is_in = |key: &Key| (min.clone()..max.clone()).contains(&shard_key(*key));
                let store = &process.store;
                let there = store.versions.keys().copied().filter(|key| store.newest(*key).is_some());
                let mut keys: Vec<Key> = there.filter(is_in).collect();
                let more = keys.len() > PIECE;
                keys.truncate(PIECE);
                let moved = keys.into_iter().map(|key| (key, None)).collect();
                let payload = Payload { moved, ..Payload::default() };
                self.propose_for_move(node, payload, Then::Removed { min, more });
            }
            RemovalEffect::Place { change, .. } => {
                let PlacementChange::Removed { min } = &change else { return };
                process.moves.placing.push((Placing::Removal(min.clone()), change));
                self.pass_gate(node);
            }
        }
    }

    /// Writes a unit; what follows when it is applied.
    pub(super) fn propose_for_move(&mut self, node: usize, payload: Payload, then: Then) -> Option<u64> {
        let at = self.propose(node, payload)?.index;
        let process = self.nodes[node].process.as_mut()?;
        process.moves.applied.entry(at).or_default().push(then);
        Some(at)
    }

    /// Abandons a transaction that does not go on. If there is nothing of it any more, that is told.
    fn abandon_for_move(&mut self, node: usize, id: &TransactionId) {
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.open.contains_key(id) {
            process.shard.abandon(id);
        } else if !process.store.prepared.contains_key(id) {
            process.moves.donors.ended(id, false);
            process.moves.recipients.ended(id, false);
        }
    }

    // What the log has.

    /// An entry is applied; `made` is what has come into effect with it.
    pub(super) fn applied_for_moves(&mut self, node: usize, index: u64, made: Option<&Payload>) {
        let (keeps_removing, without_rows) = (
            self.mutation == Some(Mutation::ReturnedRangeRemoved),
            self.mutation == Some(Mutation::StatementRowsLeft),
        );
        let Some(process) = &mut self.nodes[node].process else { return };
        process.moves.index = index;
        if let Some(made) = made {
            for key in made.writes.keys().chain(made.moved.keys()) {
                process.moves.donors.changed(&UUID, &name_of(*key));
            }
            for lsid in made.statements.keys().filter(|_| !without_rows) {
                process.moves.donors.session_changed(lsid);
            }
            if let Some(placed) = &made.placement {
                let leaving = leaving_in(placed.document.as_raw()).expect("it is a placement");
                if !keeps_removing || !leaving.is_empty() {
                    process.moves.removals.placement(UUID, leaving);
                }
            }
        }
        process.moves.gate.applied(index);
        while let Some(entry) = process.moves.applied.first_entry() {
            if *entry.key() > index {
                break;
            }
            for then in entry.remove() {
                match then {
                    Then::Written(id) => process.moves.recipients.written(id, None),
                    Then::Placed(whose) => process.moves.placed(&whose, Ok(())),
                    Then::Removed { min, more } => {
                        process.moves.removals.removed(UUID, &min, Some(more));
                    }
                    Then::Begun(_) | Then::Forgotten(_) | Then::Answer { .. } => {
                        unreachable!("these wait for a majority")
                    }
                }
            }
        }
    }

    /// A transaction has come to its end here.
    pub(super) fn ended_for_moves(&mut self, node: usize, id: &TransactionId, committed: bool) {
        let Some(process) = &mut self.nodes[node].process else { return };
        process.moves.gate.ended(id);
        process.moves.donors.ended(id, committed);
        process.moves.recipients.ended(id, committed);
    }

    /// Entries up to this index are on a majority.
    pub(super) fn majority_for_moves(&mut self, node: usize, index: u64) {
        while let Some(process) = &mut self.nodes[node].process
            && let Some(entry) = process.moves.majority.first_entry()
            && *entry.key() <= index
        {
            for then in entry.remove() {
                match then {
                    Then::Answer { to, number, result } => self.give_back(node, to, number, *result),
                    then => self.of_config(node, then),
                }
            }
        }
    }

    /// Somebody has answered what this member has asked about a move. False: it was not about one.
    pub(super) fn move_answered(&mut self, node: usize, number: u64, result: &Return) -> bool {
        let skips = self.mutation == Some(Mutation::TailSkipped);
        let Some(process) = &mut self.nodes[node].process else { return false };
        let Some(called) = process.moves.calls.remove(&number) else { return false };
        match (called, result.clone()) {
            (Called::Donor { id, call }, Return::Move(answer, mut batch)) => {
                if skips && let MoveAnswer::Changed { closing: Some(_), .. } = &answer {
                    batch.documents.clear();
                }
                process.moves.recipients.answered(id, call, answer, Some(batch));
            }
            (Called::Donor { .. }, _) => {}
            (called, result) => self.conductor_answered(node, called, result),
        }
        true
    }
}
