//! One member of a shard: what [`Participant`], [`Settler`] and the ceiling do together.

use std::mem;
use std::sync::Arc;

use sheaf_errors::Result;

use crate::serving::{Serving, ServingEffect, Until};
use crate::time::ClusterTime;
use crate::transaction::{
    Answer, Executed, NotRun, Outcome, Participant, ParticipantEffect, Record, ReplyId, Request, Rows,
    Settler, SettlerEffect, WaiterId,
};
use crate::types::{ShardId, TransactionId};

/// An entry of a shard's log that this crate has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord {
    /// About a transaction.
    Transaction(Record),
    /// `{op: "n", o: {ceiling}}`: the past below this time is final; a new primary stamps above it.
    Ceiling(ClusterTime),
}

/// Names a reader at a cluster time; the driver's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(pub u64);

/// What the driver of a shard's member has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardEffect {
    /// Later entries are stamped above this time.
    Observe(ClusterTime),
    /// Make this the next entry of the log; a prepare or a lone commit carries the operations of its transaction. If it cannot be
    /// done and this member stays the primary, [`Shard::append_failed`].
    Append(LogRecord),
    /// Throw away operations and snapshots of this open transaction. What was opened of it since stays.
    Discard {
        /// Which.
        id: TransactionId,
        /// [`Executed::opening`].
        opening: u64,
    },
    /// Answer a request.
    Reply {
        /// Which.
        to: ReplyId,
        /// With what.
        answer: Answer,
    },
    /// Answer that this member is not the primary.
    NotPrimary {
        /// The request.
        to: ReplyId,
    },
    /// The reader can look again at what it has met.
    Wake {
        /// Who waits.
        waiter: WaiterId,
        /// What has become of the transaction.
        outcome: Outcome,
    },
    /// The state as of the reader's time can be shown.
    Ready(ReaderId),
    /// Send this to that shard's primary, which may be this member; its answer is told to [`Shard::answered`].
    Send {
        /// Where to.
        to: ShardId,
        /// What.
        request: Request,
    },
    /// Shards contradict each other: to be logged.
    Contradiction {
        /// About which transaction.
        id: TransactionId,
        /// What.
        what: String,
    },
}

/// Who waits for a state.
#[derive(Debug, PartialEq)]
enum Reads {
    Reader(ReaderId),
    Confirm { to: ReplyId, id: TransactionId, executed: Executed },
}

/// One member's machine. Its inputs change memory only; [`Shard::poll`] gives what to do.
#[derive(Debug)]
pub struct Shard {
    participant: Participant,
    settler: Settler,
    serving: Serving<Reads>,
    applied: u64,
    /// The term of an office that begins when this index is applied.
    to_lead: Option<(u64, u64)>,
    out: Vec<ShardEffect>,
}

impl Shard {
    /// The machine of a member of shard `me` whose log is applied up to index `applied`, with the rows and the highest ceiling that it
    /// finds there. After a rollback, and when a copy of the data was installed, a new one is made.
    pub fn new(me: ShardId, rows: Rows, ceiling: ClusterTime, applied: u64) -> Self {
        Shard {
            participant: Participant::new(me, rows, applied),
            settler: Settler::new(),
            serving: Serving::new(ceiling, applied),
            applied,
            to_lead: None,
            out: Vec::new(),
        }
    }

    /// The rows about transactions, as they are applied.
    pub fn rows(&self) -> &Rows {
        self.participant.rows()
    }

    /// The highest ceiling in the log, applied.
    pub fn ceiling(&self) -> ClusterTime {
        self.serving.ceiling()
    }

    /// Whether requests are answered here.
    pub fn is_leading(&self) -> bool {
        self.participant.is_leading()
    }

    /// Whether requests will be answered here as soon as the log is applied.
    pub fn is_taking_office(&self) -> bool {
        self.to_lead.is_some()
    }

    /// What the driver has to do.
    pub fn poll(&mut self) -> Vec<ShardEffect> {
        loop {
            let participant = self.participant.poll();
            let settler = self.settler.poll();
            let serving = self.serving.poll();
            if participant.is_empty() && settler.is_empty() && serving.is_empty() {
                return mem::take(&mut self.out);
            }
            participant.into_iter().for_each(|effect| self.of_participant(effect));
            settler.into_iter().for_each(|effect| self.of_settler(effect));
            serving.into_iter().for_each(|effect| self.of_serving(effect));
        }
    }

    fn of_participant(&mut self, effect: ParticipantEffect) {
        let effect = match effect {
            ParticipantEffect::Observe(time) => ShardEffect::Observe(time),
            ParticipantEffect::Append(record) => ShardEffect::Append(LogRecord::Transaction(record)),
            ParticipantEffect::Discard { id, opening } => ShardEffect::Discard { id, opening },
            ParticipantEffect::Reply { to, answer } => ShardEffect::Reply { to, answer },
            ParticipantEffect::NotPrimary { to } => ShardEffect::NotPrimary { to },
            ParticipantEffect::Wake { waiter, outcome } => ShardEffect::Wake { waiter, outcome },
            ParticipantEffect::Settle { id, participants, committed } => {
                return self.settler.settle(&id, &participants, committed);
            }
            ParticipantEffect::Contradiction { id, what } => ShardEffect::Contradiction { id, what },
        };
        self.out.push(effect);
    }

    fn of_settler(&mut self, effect: SettlerEffect) {
        self.out.push(match effect {
            SettlerEffect::Send { to, request } => ShardEffect::Send { to, request },
            SettlerEffect::Contradiction { id, what } => ShardEffect::Contradiction { id, what },
        });
    }

    fn of_serving(&mut self, effect: ServingEffect<Reads>) {
        let effect = match effect {
            ServingEffect::Append(ceiling) => ShardEffect::Append(LogRecord::Ceiling(ceiling)),
            ServingEffect::Observe(time) => ShardEffect::Observe(time),
            ServingEffect::Ready(Reads::Reader(reader)) => ShardEffect::Ready(reader),
            ServingEffect::Ready(Reads::Confirm { to, id, executed }) => {
                let answer = match self.participant.read_up_to(&id, executed) {
                    Some(_) => Answer::Confirmed,
                    None => Answer::Aborted,
                };
                self.participant.confirmed(&id);
                ShardEffect::Reply { to, answer }
            }
        };
        self.out.push(effect);
    }

    /// Time has passed: milliseconds of a clock that does not go back, and the cluster clock's time.
    pub fn tick(&mut self, millis: u64, now: ClusterTime) {
        self.participant.tick(millis);
        self.settler.tick(millis);
        self.serving.tick(now);
    }

    // The set that this is a member of.

    /// This member takes writes from now on, in this election term. `last` is the index of the last entry of its log, which may be one
    /// that it has proposed itself in an office that it has lost meanwhile and regained: nothing is answered before that is applied.
    pub fn became_primary(&mut self, term: u64, last: u64) {
        self.to_lead = Some((term, last));
        self.lead();
    }

    fn lead(&mut self) {
        if let Some((term, last)) = self.to_lead
            && self.applied >= last
        {
            self.to_lead = None;
            self.participant.became_primary(term);
            self.serving.became_primary();
        }
    }

    /// This member takes no writes any more. Requests and readers get no answer from it.
    pub fn lost_primary(&mut self) {
        self.to_lead = None;
        self.participant.lost_primary();
        self.settler.stop();
        self.serving.lost_primary();
    }

    /// The entry at `index`, stamped `time`, is applied; `record` if it is one of this crate's. Every entry is told, in order.
    pub fn applied(&mut self, index: u64, time: ClusterTime, record: Option<&LogRecord>) {
        let ceiling = match record {
            Some(LogRecord::Ceiling(ceiling)) => Some(*ceiling),
            _ => None,
        };
        match record {
            Some(LogRecord::Transaction(record)) => {
                if let Record::Commit { id, at } = record {
                    self.settler.committed(id, *at);
                }
                self.participant.applied(index, time, record);
            }
            Some(LogRecord::Ceiling(_)) | None => self.participant.reached(index),
        }
        self.serving.applied(index, ceiling);
        self.applied = index;
        self.lead();
    }

    /// Entries up to `index` are on a majority and applied here.
    pub fn majority(&mut self, index: u64) {
        self.participant.majority(index);
        self.serving.majority(index);
    }

    /// The record could not be appended, and this member is still the primary.
    pub fn append_failed(&mut self, record: &LogRecord) {
        match record {
            LogRecord::Transaction(record) => self.participant.append_failed(record),
            LogRecord::Ceiling(_) => self.serving.append_failed(),
        }
    }

    /// Sessions have ended, on all members behind the same entry: what is on record about them and over goes.
    pub fn sessions_ended<'a>(&mut self, lsids: impl IntoIterator<Item = &'a Arc<[u8]>>) {
        lsids.into_iter().for_each(|lsid| self.participant.session_ended(lsid));
    }

    // Requests of routers and other shards.

    /// A request has come, with a cluster time that the driver's clock has observed. `now` is the clock's time.
    pub fn request(&mut self, to: ReplyId, request: Request, now: ClusterTime) {
        let Request::Confirm { id, executed, read_at } = request else {
            return self.participant.handle(to, request);
        };
        if !self.is_leading() {
            return self.out.push(ShardEffect::NotPrimary { to });
        }
        match self.participant.read_up_to(&id, executed) {
            None => self.out.push(ShardEffect::Reply { to, answer: Answer::Aborted }),
            Some(index) => {
                let reads = Reads::Confirm { to, id, executed };
                self.serving.read(reads, read_at, index, Until::Final, now);
            }
        }
    }

    /// A shard has answered what this one has sent it.
    pub fn answered(&mut self, from: &ShardId, id: &TransactionId, answer: Answer) {
        self.settler.answered(from, id, answer);
    }

    // Statements and readers.

    /// A statement of a transaction is about to be executed here, after what has been (`None`: it is the first); if it is the first, on a
    /// snapshot of what is applied now. What has then been executed goes to the router with the answer. If it fails, the driver calls
    /// [`Shard::abandon`].
    ///
    /// Errors: `NoSuchTransaction`, `TransactionTooOld`, `TransactionCommitted`, `NotWritablePrimary`.
    pub fn execute(&mut self, id: &TransactionId, after: Option<Executed>) -> Result<Executed> {
        Ok(self.try_execute(id, after)?)
    }

    /// [`Shard::execute`], with the reason as a value.
    pub fn try_execute(&mut self, id: &TransactionId, after: Option<Executed>) -> Result<Executed, NotRun> {
        self.participant.execute(id, after)
    }

    /// Whether a transaction that has executed just this is still open here.
    pub fn is_open(&self, id: &TransactionId, executed: Executed) -> bool {
        self.participant.read_up_to(id, executed).is_some()
    }

    /// An open transaction is over without a trace.
    pub fn abandon(&mut self, id: &TransactionId) {
        self.participant.abandon(id);
    }

    /// A reader wants the state as of `at`, which the clock has observed; `last` is the index of the last entry that was proposed
    /// before. A `Ready` will follow, unless this member loses its office.
    pub fn read(&mut self, reader: ReaderId, at: ClusterTime, last: u64, until: Until, now: ClusterTime) {
        self.serving.read(Reads::Reader(reader), at, last, until, now);
    }

    /// The reader has given up.
    pub fn cancel_read(&mut self, reader: ReaderId) {
        self.serving.cancel(|reads| *reads == Reads::Reader(reader));
    }

    /// Whether a reader as of `at` (`None`: of the newest state) that meets what this transaction has written must wait.
    pub fn is_in_doubt(&self, id: &TransactionId, at: Option<ClusterTime>) -> bool {
        self.participant.is_in_doubt(id, at)
    }

    /// A reader waits for the outcome of a transaction that is in doubt; a `Wake` will follow.
    pub fn wait(&mut self, id: &TransactionId, waiter: WaiterId) {
        self.participant.wait(id, waiter);
    }

    /// The reader has given up.
    pub fn cancel_wait(&mut self, waiter: WaiterId) {
        self.participant.cancel_wait(waiter);
    }
}
