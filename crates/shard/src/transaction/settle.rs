//! Settling: how a shard finds the outcome of a transaction that it holds in doubt, without the router that began it.
//!
//! It asks all participants, itself too; whoever has not prepared answers that it never will. Facts do not change, so settlers that work
//! at the same time, and primaries that have been replaced without knowing, find the same outcome or none.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use crate::time::ClusterTime;
use crate::types::{ShardId, TransactionId};

use super::decision::{Decision, Noted};
use super::{Answer, Outcome, Request};

/// After how long without an answer a participant is asked again.
const AGAIN_MILLIS: u64 = 500;
/// After how long a settler stops; if there is still a doubt, it begins anew.
const GIVE_UP_MILLIS: u64 = 60_000;

/// What the shard has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum SettlerEffect {
    /// Send this to that shard's primary, which may be this member; what it answers is told to [`Settler::answered`].
    Send {
        /// Where to.
        to: ShardId,
        /// What.
        request: Request,
    },
    /// Shards contradict each other, which is to be logged.
    Contradiction {
        /// About which transaction.
        id: TransactionId,
        /// What.
        what: String,
    },
}

#[derive(Debug)]
struct Settling {
    decision: Decision,
    began: u64,
    again_at: u64,
}

/// What a shard's primary is settling.
#[derive(Debug, Default)]
pub struct Settler {
    running: BTreeMap<TransactionId, Settling>,
    now: u64,
    out: Vec<SettlerEffect>,
}

impl Settler {
    /// With nothing to settle.
    pub fn new() -> Self {
        Settler::default()
    }

    /// What the shard has to do.
    pub fn poll(&mut self) -> Vec<SettlerEffect> {
        mem::take(&mut self.out)
    }

    /// Finds the outcome of a transaction, unless this shard has it already, and tells it to all participants. If that is under way,
    /// nothing changes.
    pub fn settle(
        &mut self,
        id: &TransactionId,
        participants: &Arc<[ShardId]>,
        committed: Option<ClusterTime>,
    ) {
        if self.running.contains_key(id) {
            return;
        }
        let decision = Decision::new(participants.clone(), committed.map(Outcome::Committed));
        self.running.insert(id.clone(), Settling { decision, began: self.now, again_at: self.now });
        self.send(id);
    }

    /// The commit of a transaction has been applied here. Others may have acknowledged and forgotten it by now: their `TooOld` is no
    /// abort any more.
    pub fn committed(&mut self, id: &TransactionId, at: ClusterTime) {
        if self.running.get_mut(id).is_some_and(|settling| settling.decision.learn(at)) {
            self.send(id);
        }
    }

    /// This member is not the primary any more; the next one settles.
    pub fn stop(&mut self) {
        self.running.clear();
    }

    /// Time has passed: milliseconds of a clock that does not go back.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.running.retain(|_, settling| settling.began + GIVE_UP_MILLIS > self.now);
        let due = self.running.iter().filter(|(_, settling)| settling.again_at <= self.now);
        let due: Vec<TransactionId> = due.map(|(id, _)| id.clone()).collect();
        for id in due {
            self.send(&id);
        }
    }

    /// A participant has said this.
    pub fn answered(&mut self, from: &ShardId, id: &TransactionId, answer: Answer) {
        let Some(settling) = self.running.get_mut(id) else { return };
        match settling.decision.note(from, answer) {
            Noted::Nothing => {}
            Noted::Decided(_) => self.send(id),
            Noted::Over => self.over(id),
            Noted::Contradiction(what) => {
                self.out.push(SettlerEffect::Contradiction { id: id.clone(), what })
            }
        }
    }

    fn over(&mut self, id: &TransactionId) {
        let Some(settling) = self.running.remove(id) else { return };
        if let Some(Outcome::Committed(_)) = settling.decision.outcome() {
            for to in settling.decision.participants().iter() {
                let request = Request::Settled { ids: vec![id.clone()] };
                self.out.push(SettlerEffect::Send { to: to.clone(), request });
            }
        }
    }

    fn send(&mut self, id: &TransactionId) {
        let Some(settling) = self.running.get_mut(id) else { return };
        settling.again_at = self.now + AGAIN_MILLIS;
        for to in settling.decision.lacking() {
            let request = match settling.decision.outcome() {
                None => Request::Ask { id: id.clone() },
                Some(Outcome::Committed(at)) => Request::Commit { id: id.clone(), at },
                Some(Outcome::Aborted) => Request::Abort { id: id.clone() },
            };
            self.out.push(SettlerEffect::Send { to: to.clone(), request });
        }
    }
}

#[cfg(test)]
mod tests;
