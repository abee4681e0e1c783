//! Decisions of several transactions in one message, as routers and shards of the server tell them: a shard answers when they are applied,
//! and is asked later whether a majority has them. Only then are they settled.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::ClusterTime;
use crate::transaction::{Answer, ReplyId, Request, Row};
use crate::types::TransactionId;

use super::Mutation;
use super::deciding::{Applied, Batch, Decided, Deciding, Outbox, Question, Round, Telling};
use super::message::{Address, Call, Return};
use super::router::Pending;
use super::world::World;

/// After how long without an answer a message is taken for lost.
const ANSWER_MILLIS: u64 = 1000;

/// So long what is decided waits for more, as it does in earnest while a message is under way to a shard that is slow.
const HELD_MILLIS: u64 = 400;

/// How often shards are asked what is on majorities.
const CONFIRM_EVERY_MILLIS: u64 = 100;

impl World {
    // The router.

    /// These shards are to be told of a commit.
    pub(super) fn tell_decision(
        &mut self,
        router: usize,
        id: &TransactionId,
        at: ClusterTime,
        shards: &[usize],
    ) {
        let Some(deciding) = self.deciding(router) else { return };
        if deciding.telling.contains_key(id) {
            return;
        }
        let writers: BTreeSet<usize> = shards.iter().copied().collect();
        let telling = Telling { at, left: writers.len(), has_failed: false, writers: writers.clone() };
        deciding.telling.insert(id.clone(), telling);
        let now = self.now;
        for shard in writers {
            let waits = self.rng.percent(70);
            let Some(deciding) = self.deciding(router) else { return };
            let outbox = deciding.boxes.entry(shard).or_default();
            if outbox.waiting.is_empty() {
                outbox.since = now;
            }
            outbox.waiting.push((id.clone(), at));
            if !outbox.is_busy && !waits {
                self.send_decisions(router, shard);
            }
        }
    }

    fn deciding(&mut self, router: usize) -> Option<&mut Deciding> {
        Some(&mut self.routers[router].process.as_mut()?.deciding)
    }

    /// Sends what has come together for a shard.
    fn send_decisions(&mut self, router: usize, shard: usize) {
        let now = self.now;
        let Some(deciding) = self.deciding(router) else { return };
        let outbox = deciding.boxes.entry(shard).or_default();
        let batch = std::mem::take(&mut outbox.waiting);
        outbox.is_busy = !batch.is_empty();
        if batch.len() > 1 {
            self.tally.together += batch.len() as u64;
        }
        if !batch.is_empty() {
            self.call(router, Pending::Decide { shard, batch, since: now }, 0);
        }
    }

    /// A shard has answered which of these it has applied; nothing, if it has not.
    pub(super) fn decisions_answered(
        &mut self,
        router: usize,
        shard: usize,
        batch: Vec<Decided>,
        has: &[bool],
    ) {
        for (nth, (id, _)) in batch.into_iter().enumerate() {
            let is_applied = has.get(nth).is_some_and(|has| *has);
            let Some(deciding) = self.deciding(router) else { return };
            let Some(telling) = deciding.telling.get_mut(&id) else { continue };
            telling.has_failed |= !is_applied;
            telling.left -= 1;
            if telling.left > 0 {
                continue;
            }
            let Some(told) = deciding.telling.remove(&id) else { continue };
            if told.has_failed {
                deciding.alone.insert(id);
                continue;
            }
            deciding.applied.push(Applied { id: id.clone(), at: told.at, writers: told.writers });
            if let Some(process) = &mut self.routers[router].process {
                process.committer.leave(&id);
            }
        }
        self.send_decisions(router, shard);
    }

    /// Asks what is on majorities, now and then, and takes messages for lost that are not answered.
    pub(super) fn tick_decisions(&mut self, router: usize) {
        let now = self.now;
        let Some(process) = &mut self.routers[router].process else { return };
        let is_late = |pending: &Pending| match pending {
            Pending::Decide { since, .. } | Pending::Confirm { since, .. } => since + ANSWER_MILLIS < now,
            _ => false,
        };
        let late: Vec<u64> = process
            .pending
            .iter()
            .filter(|(_, (pending, _))| is_late(pending))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let Some(process) = &mut self.routers[router].process else { return };
            match process.pending.remove(&number) {
                Some((Pending::Decide { shard, batch, .. }, _)) => {
                    self.decisions_answered(router, shard, batch, &[]);
                }
                Some((Pending::Confirm { of, .. }, _)) => self.confirmed(router, &of, &[]),
                _ => {}
            }
        }
        let Some(deciding) = self.deciding(router) else { return };
        let is_due = |outbox: &Outbox| {
            !outbox.is_busy && !outbox.waiting.is_empty() && outbox.since + HELD_MILLIS <= now
        };
        let due = deciding.boxes.iter().filter(|(_, outbox)| is_due(outbox));
        for shard in due.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            self.send_decisions(router, shard);
        }
        let Some(deciding) = self.deciding(router) else { return };
        if deciding.round.is_none() && deciding.asked_at + CONFIRM_EVERY_MILLIS <= now {
            deciding.asked_at = now;
            self.confirm_decided(router);
        }
    }

    fn confirm_decided(&mut self, router: usize) {
        let unasked = self.mutation == Some(Mutation::SettledUnconfirmed);
        let now = self.now;
        let Some(deciding) = self.deciding(router) else { return };
        let all = std::mem::take(&mut deciding.applied);
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, one) in all.iter().enumerate() {
            one.writers.iter().for_each(|writer| by_shard.entry(*writer).or_default().push(at));
        }
        if by_shard.is_empty() {
            return;
        }
        let asked: Vec<(usize, Vec<usize>, Vec<Decided>)> = by_shard
            .into_iter()
            .map(|(shard, of)| {
                let named = of.iter().map(|at| (all[*at].id.clone(), all[*at].at)).collect();
                (shard, of, named)
            })
            .collect();
        deciding.round = Some(Round { all, unsure: BTreeSet::new(), left: asked.len() });
        for (shard, of, batch) in asked {
            if unasked {
                let sure = vec![true; of.len()];
                self.confirmed(router, &of, &sure);
            } else {
                self.call(router, Pending::Confirm { shard, of, batch, since: now }, 0);
            }
        }
    }

    /// A shard has answered which of these a majority has.
    pub(super) fn confirmed(&mut self, router: usize, of: &[usize], has: &[bool]) {
        let Some(deciding) = self.deciding(router) else { return };
        let Some(round) = &mut deciding.round else { return };
        let lacks = |nth: usize| !has.get(nth).is_some_and(|has| *has);
        round.unsure.extend(of.iter().enumerate().filter(|(nth, _)| lacks(*nth)).map(|(_, at)| *at));
        round.left -= 1;
        if round.left > 0 {
            return;
        }
        let Some(Round { all, unsure, .. }) = deciding.round.take() else { return };
        let mut settled: BTreeMap<usize, Vec<TransactionId>> = BTreeMap::new();
        for (_, one) in all.iter().enumerate().filter(|(at, _)| !unsure.contains(at)) {
            for writer in &one.writers {
                settled.entry(*writer).or_default().push(one.id.clone());
            }
        }
        for (shard, ids) in settled {
            self.request_of_router(router, shard, Request::Settled { ids });
        }
    }

    // The shard.

    /// The decisions of a message that a shard looks at: with a planted bug the first one.
    fn meant<'d>(&self, all: &'d [Decided]) -> &'d [Decided] {
        match self.mutation {
            Some(Mutation::FirstForAll) => &all[..1],
            _ => all,
        }
    }

    /// A router tells of commits.
    pub(super) fn decide(&mut self, node: usize, from: Address, number: u64, all: Vec<Decided>) {
        let wall = self.wall(self.nodes[node].wall_wrong);
        for (id, at) in self.meant(&all) {
            let Some(process) = &mut self.nodes[node].process else { return };
            let now = process.clock.now(wall);
            // Nobody waits for these answers.
            let reply = ReplyId(process.next_number());
            process.shard.request(reply, Request::Commit { id: id.clone(), at: *at }, now);
        }
        self.settle_node(node);
        let Some(process) = &mut self.nodes[node].process else { return };
        if !process.leads() {
            return self.give_back(node, from, number, Return::NotPrimary);
        }
        process.batches.push(Batch { from, number, all, until: process.last_index });
        self.answer_batches(node, 0);
    }

    /// Entries up to an index are applied: answers what has waited for them.
    pub(super) fn answer_batches(&mut self, node: usize, index: u64) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let index = index.max(process.member.positions().applied.index);
        let (told, left) =
            std::mem::take(&mut process.batches).into_iter().partition(|batch| batch.until <= index);
        process.batches = left;
        let told: Vec<Batch> = told;
        for Batch { from, number, all, .. } in told {
            let Some(process) = &self.nodes[node].process else { return };
            let has = |(id, at): &Decided| matches!(process.shard.rows().get(id), Some(Row::Committed { at: known, .. }) if known == at);
            let mut has: Vec<bool> = self.meant(&all).iter().map(has).collect();
            has.resize(all.len(), has.first() == Some(&true));
            self.give_back(node, from, number, Return::Decided(has));
        }
    }

    /// A router asks whether a majority has these.
    pub(super) fn is_decided(&mut self, node: usize, from: Address, number: u64, all: Vec<Decided>) {
        let wall = self.wall(self.nodes[node].wall_wrong);
        let meant = self.meant(&all).len();
        let Some(process) = &mut self.nodes[node].process else { return };
        let mut left = BTreeMap::new();
        for (nth, (id, at)) in all[..meant].iter().enumerate() {
            let now = process.clock.now(wall);
            let reply = ReplyId(process.next_number());
            left.insert(reply, nth);
            process.shard.request(reply, Request::Commit { id: id.clone(), at: *at }, now);
        }
        let has = vec![false; all.len()];
        process.questions.push(Question { from, number, all, has, left });
        // Whoever waits for a majority has the log synced.
        self.sync_due(node);
    }

    /// The machine answers a request; false: it is none of a question's.
    pub(super) fn question_answered(&mut self, node: usize, to: ReplyId, answer: &Answer) -> bool {
        let Some(process) = &mut self.nodes[node].process else { return false };
        let asked = process.questions.iter().position(|question| question.left.contains_key(&to));
        let Some(place) = asked else { return false };
        let question = &mut process.questions[place];
        if let Some(nth) = question.left.remove(&to) {
            question.has[nth] = *answer == Answer::Committed(question.all[nth].1);
        }
        if question.left.is_empty() {
            let Question { from, number, mut has, all, .. } = process.questions.remove(place);
            let first = has[0];
            has[self.meant(&all).len()..].fill(first);
            self.give_back(node, from, number, Return::Decided(has));
        }
        true
    }

    /// The machine is no primary's; false: the request is none of a question's.
    pub(super) fn question_refused(&mut self, node: usize, to: ReplyId) -> bool {
        let Some(process) = &mut self.nodes[node].process else { return false };
        let asked = process.questions.iter().position(|question| question.left.contains_key(&to));
        let Some(place) = asked else { return false };
        let Question { from, number, .. } = process.questions.remove(place);
        self.give_back(node, from, number, Return::NotPrimary);
        true
    }

    /// The call of a router with decisions.
    pub(super) fn call_of_decisions(pending: &Pending) -> Option<(usize, Call)> {
        match pending {
            Pending::Decide { shard, batch, .. } => {
                Some((*shard, Call::Decide { all: batch.clone(), applied: true }))
            }
            Pending::Confirm { shard, batch, .. } => {
                Some((*shard, Call::Decide { all: batch.clone(), applied: false }))
            }
            _ => None,
        }
    }

    /// What a router that tells decisions together does with one that is to be sent; false: the commit's own machine sends it.
    pub(super) fn goes_with_others(&mut self, router: usize, requests: &[(usize, Request)]) -> bool {
        let Some((_, Request::Commit { id, at })) = requests.first() else { return false };
        if !self.plan.decisions_together || self.deciding(router).is_none_or(|deciding| deciding.is_alone(id))
        {
            return false;
        }
        let shards: Vec<usize> = requests.iter().map(|(shard, _)| *shard).collect();
        self.tell_decision(router, id, *at, &shards);
        true
    }
}
