//! The router's side: how it commits what its clients have executed on shards.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use crate::time::ClusterTime;
use crate::types::{ShardId, TransactionId};

use super::decision::{Decision, Noted};
use super::{Answer, Executed, Outcome, Request};

/// After how long without an answer a request is sent again, to whoever is the shard's primary then.
const AGAIN_MILLIS: u64 = 500;
/// After how long a router leaves a commit to the shards, who settle it without it.
const GIVE_UP_MILLIS: u64 = 60_000;
/// How often shards are told which commits are settled.
const SETTLED_EVERY_MILLIS: u64 = 100;

/// A shard on which a transaction has executed statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which.
    pub shard: ShardId,
    /// What the last statement's answer said was executed there.
    pub executed: Executed,
    /// Whether any of them has written, by the shard's `readOnly`.
    pub wrote: bool,
    /// Whether its last answer said that what it showed is on a majority below its ceiling: then it need not be asked.
    pub confirmed: bool,
}

/// What the router has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum CommitterEffect {
    /// Send this to the shard's primary; what it answers is told to [`Committer::answered`].
    Send {
        /// Where to.
        to: ShardId,
        /// What.
        request: Request,
    },
    /// Answer the client's `commitTransaction`.
    Ended {
        /// Which.
        id: TransactionId,
        /// How. The time of a commit is the answer's `operationTime`.
        outcome: Outcome,
    },
    /// The shard that a recovery token names knows nothing any more: answer `TransactionTooOld`.
    Forgotten {
        /// Which.
        id: TransactionId,
    },
    /// Shards contradict each other, which is to be logged.
    Contradiction {
        /// About which transaction.
        id: TransactionId,
        /// What.
        what: String,
    },
}

/// How far a commit is.
#[derive(Debug)]
enum Phase {
    /// Shards that were only read are asked first: once all writers have prepared it is too late to change one's mind.
    Confirming(BTreeSet<ShardId>),
    /// One shard writes, and decides.
    Alone(ShardId),
    /// Writers prepare, then commit.
    Deciding(Decision),
    /// A shard is asked for the outcome of what another router has begun.
    Recovering(ShardId),
}

#[derive(Debug)]
struct Commit {
    parts: Vec<Part>,
    read_at: ClusterTime,
    phase: Phase,
    began: u64,
    again_at: u64,
}

impl Commit {
    fn executed(&self, shard: &ShardId) -> Executed {
        let part = self.parts.iter().find(|part| part.shard == *shard);
        part.map(|part| part.executed).unwrap_or_default()
    }

    /// What is to be sent now, or again.
    fn requests(&self, id: &TransactionId) -> Vec<(ShardId, Request)> {
        let id = || id.clone();
        match &self.phase {
            Phase::Confirming(left) => {
                let confirm = |shard: &ShardId| {
                    let (executed, read_at) = (self.executed(shard), self.read_at);
                    (shard.clone(), Request::Confirm { id: id(), executed, read_at })
                };
                left.iter().map(confirm).collect()
            }
            Phase::Alone(shard) => {
                let executed = self.executed(shard);
                vec![(shard.clone(), Request::CommitAlone { id: id(), executed })]
            }
            Phase::Recovering(shard) => vec![(shard.clone(), Request::Recover { id: id() })],
            Phase::Deciding(decision) => {
                let request = |shard: &ShardId| match decision.outcome() {
                    None => Request::Prepare {
                        id: id(),
                        participants: decision.participants().clone(),
                        executed: self.executed(shard),
                    },
                    Some(Outcome::Committed(at)) => Request::Commit { id: id(), at },
                    Some(Outcome::Aborted) => Request::Abort { id: id() },
                };
                decision.lacking().map(|shard| (shard.clone(), request(shard))).collect()
            }
        }
    }
}

/// All commits of a router.
#[derive(Debug, Default)]
pub struct Committer {
    running: BTreeMap<TransactionId, Commit>,
    /// What is settled and not yet told, by shard.
    settled: BTreeMap<ShardId, Vec<TransactionId>>,
    settled_at: u64,
    now: u64,
    out: Vec<CommitterEffect>,
}

impl Committer {
    /// A router's, with nothing to do.
    pub fn new() -> Self {
        Committer::default()
    }

    /// What the router has to do.
    pub fn poll(&mut self) -> Vec<CommitterEffect> {
        mem::take(&mut self.out)
    }

    /// How many commits are not over.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// What all its shards have on a majority and nobody was told yet, by shard. What was given up is never among it.
    pub fn take_settled(&mut self) -> BTreeMap<ShardId, Vec<TransactionId>> {
        mem::take(&mut self.settled)
    }

    /// Commits a transaction that reads at `read_at` and has executed statements on `parts`. A second `commitTransaction` while the
    /// first is running changes nothing.
    pub fn commit(&mut self, id: TransactionId, parts: Vec<Part>, read_at: ClusterTime) {
        if self.running.contains_key(&id) {
            return;
        }
        let unsure = parts.iter().filter(|part| !part.wrote && !part.confirmed);
        let unsure: BTreeSet<ShardId> = unsure.map(|part| part.shard.clone()).collect();
        let commit =
            Commit { parts, read_at, phase: Phase::Confirming(unsure), began: self.now, again_at: self.now };
        let asks = !commit.requests(&id).is_empty();
        self.running.insert(id.clone(), commit);
        if asks { self.send(&id) } else { self.go_on(&id) }
    }

    /// A client asks with a recovery token for the outcome of what it has committed through another router.
    pub fn recover(&mut self, id: TransactionId, shard: ShardId) {
        let commit = Commit {
            parts: Vec::new(),
            read_at: ClusterTime::ZERO,
            phase: Phase::Recovering(shard),
            began: self.now,
            again_at: self.now,
        };
        self.running.entry(id.clone()).or_insert(commit);
        self.send(&id);
    }

    /// Time has passed: milliseconds of a clock that does not go back.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.running.retain(|_, commit| commit.began + GIVE_UP_MILLIS > self.now);
        let due = self.running.iter().filter(|(_, commit)| commit.again_at <= self.now);
        let due: Vec<TransactionId> = due.map(|(id, _)| id.clone()).collect();
        for id in due {
            self.send(&id);
        }
        if self.now >= self.settled_at + SETTLED_EVERY_MILLIS {
            self.settled_at = self.now;
            for (to, ids) in self.take_settled() {
                self.out.push(CommitterEffect::Send { to, request: Request::Settled { ids } });
            }
        }
    }

    /// What is decided is brought to its end by others: by whoever tells the shards of several decisions at once, and by these.
    pub fn leave(&mut self, id: &TransactionId) {
        self.running.remove(id);
    }

    /// A shard has said this about a transaction.
    pub fn answered(&mut self, from: &ShardId, id: &TransactionId, answer: Answer) {
        let Some(commit) = self.running.get_mut(id) else { return };
        match &mut commit.phase {
            Phase::Confirming(left) => match (left.remove(from), answer) {
                (false, _) => {}
                (true, Answer::Confirmed) => self.go_on(id),
                // Nothing is prepared anywhere: it can be dropped.
                (true, _) => self.give_up(id),
            },
            Phase::Alone(shard) if shard == from => match answer {
                Answer::Committed(at) => self.end(id, Outcome::Committed(at)),
                Answer::Aborted | Answer::TooOld => self.end(id, Outcome::Aborted),
                Answer::Prepared(_) | Answer::Confirmed | Answer::Abandoned => {}
            },
            Phase::Recovering(shard) if shard == from => match answer {
                Answer::Committed(at) => self.end(id, Outcome::Committed(at)),
                Answer::Aborted => self.end(id, Outcome::Aborted),
                Answer::TooOld => {
                    self.running.remove(id);
                    self.out.push(CommitterEffect::Forgotten { id: id.clone() });
                }
                Answer::Prepared(_) | Answer::Confirmed | Answer::Abandoned => {}
            },
            Phase::Alone(_) | Phase::Recovering(_) => {}
            Phase::Deciding(decision) => match decision.note(from, answer) {
                Noted::Nothing => {}
                Noted::Decided(outcome) => self.decided(id, outcome),
                Noted::Over => self.over(id),
                Noted::Contradiction(what) => {
                    self.out.push(CommitterEffect::Contradiction { id: id.clone(), what });
                }
            },
        }
    }

    /// What was read is sure: now for what was written.
    fn go_on(&mut self, id: &TransactionId) {
        let Some(commit) = self.running.get_mut(id) else { return };
        if let Phase::Confirming(left) = &commit.phase {
            if !left.is_empty() {
                return;
            }
            let writers: Arc<[ShardId]> =
                commit.parts.iter().filter(|part| part.wrote).map(|part| part.shard.clone()).collect();
            match &*writers {
                [] => {
                    let at = commit.read_at;
                    return self.end(id, Outcome::Committed(at));
                }
                [only] => commit.phase = Phase::Alone(only.clone()),
                _ => commit.phase = Phase::Deciding(Decision::new(writers, None)),
            }
        }
        self.send(id);
    }

    fn send(&mut self, id: &TransactionId) {
        let Some(commit) = self.running.get_mut(id) else { return };
        commit.again_at = self.now + AGAIN_MILLIS;
        for (to, request) in commit.requests(id) {
            self.out.push(CommitterEffect::Send { to, request });
        }
    }

    /// The client is answered now; that the shards learn of it is not its concern.
    fn decided(&mut self, id: &TransactionId, outcome: Outcome) {
        self.out.push(CommitterEffect::Ended { id: id.clone(), outcome });
        self.send(id);
        // Whoever has prepared and does not hear of the abort asks the one who has refused.
        if outcome == Outcome::Aborted {
            self.running.remove(id);
        }
    }

    fn over(&mut self, id: &TransactionId) {
        let Some(Commit { phase: Phase::Deciding(decision), .. }) = self.running.remove(id) else { return };
        for shard in decision.participants().iter() {
            self.settled.entry(shard.clone()).or_default().push(id.clone());
        }
    }

    fn end(&mut self, id: &TransactionId, outcome: Outcome) {
        self.running.remove(id);
        self.out.push(CommitterEffect::Ended { id: id.clone(), outcome });
    }

    /// A shard cannot vouch for what it has shown, before anything was prepared.
    fn give_up(&mut self, id: &TransactionId) {
        let Some(commit) = self.running.get(id) else { return };
        for part in &commit.parts {
            let request = Request::Abandon { id: id.clone() };
            self.out.push(CommitterEffect::Send { to: part.shard.clone(), request });
        }
        self.end(id, Outcome::Aborted);
    }
}

#[cfg(test)]
mod tests;
