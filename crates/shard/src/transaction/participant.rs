//! A shard's part in transactions: what it has open, what it has promised, and what it says about them.
//!
//! On every member of the shard the machine follows the log: [`Participant::applied`] and [`Participant::majority`]. On the primary it
//! also answers [`Request`]s, by having a [`Record`] appended or from the rows, and never before what it says is on a majority.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use sheaf_errors::{Code, Error};

use crate::time::ClusterTime;
use crate::types::{ShardId, TransactionId};

use super::rows::{Row, Rows};
use super::{Answer, Executed, Outcome, Record, Request};

/// Names a request; the driver's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId(pub u64);

/// Names a reader that waits; the driver's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(pub u64);

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum ParticipantEffect {
    /// Later entries are stamped above this time.
    Observe(ClusterTime),
    /// Make this the next entry of the log, for a prepare or a lone commit with the operations of the transaction. If that fails and
    /// this member stays the primary, [`Participant::append_failed`].
    Append(Record),
    /// Throw away the operations and snapshots of this open transaction. What was opened of it since stays.
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
    /// This member is not the primary; the request is for another.
    NotPrimary {
        /// The request.
        to: ReplyId,
    },
    /// The outcome that the reader has waited for: what it met is to be looked at again.
    Wake {
        /// Who waits.
        waiter: WaiterId,
        /// What has become of the transaction.
        outcome: Outcome,
    },
    /// This has been in doubt for long: give it to the [`super::Settler`].
    Settle {
        /// Which.
        id: TransactionId,
        /// All shards that write in it.
        participants: Arc<[ShardId]>,
        /// When it committed, if that is known: then only the others' acknowledgements are.
        committed: Option<ClusterTime>,
    },
    /// A shard was told something that cannot be true, which is to be logged.
    Contradiction {
        /// About which transaction.
        id: TransactionId,
        /// What.
        what: String,
    },
}

/// Why a statement was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRun {
    /// This member takes no writes.
    NotPrimary,
    /// The session has a newer transaction.
    TooOld,
    /// It is not open here: it was never begun, or has ended.
    NotOpen,
    /// It has been committed.
    Committed,
    /// It is being ended.
    Ending,
    /// Something else of it was executed here than the statement is to follow.
    OutOfOrder,
}

impl From<NotRun> for Error {
    fn from(why: NotRun) -> Self {
        let (code, text) = match why {
            NotRun::NotPrimary => (Code::NOT_WRITABLE_PRIMARY, "not primary"),
            NotRun::TooOld => (Code::TRANSACTION_TOO_OLD, "the session has a newer transaction"),
            NotRun::NotOpen => (Code::NO_SUCH_TRANSACTION, "the transaction is not open on this shard"),
            NotRun::Committed => (Code::TRANSACTION_COMMITTED, "the transaction has been committed"),
            NotRun::Ending => (Code::NO_SUCH_TRANSACTION, "the transaction is being ended"),
            NotRun::OutOfOrder => {
                (Code::NO_SUCH_TRANSACTION, "the shard has executed something else of the transaction")
            }
        };
        Error::new(code, text)
    }
}

/// How long a transaction is in doubt before the others are asked.
pub(crate) const SETTLE_AFTER_MILLIS: u64 = 1000;
/// How long a commit waits for whoever decided it to say that all have it, before this shard asks.
pub(crate) const UNSETTLED_MILLIS: u64 = 10_000;

/// A transaction whose statements are being executed.
#[derive(Debug)]
struct Open {
    executed: Executed,
    /// Index of the last entry that its snapshot can show.
    snapshot: u64,
    /// It only read, and what it read was confirmed: there is nothing more to it than this.
    confirmed: bool,
}

impl Open {
    fn discard(&self, id: TransactionId) -> ParticipantEffect {
        ParticipantEffect::Discard { id, opening: self.executed.opening }
    }
}

/// A record that was given to the driver and is not applied yet, and who has asked about its transaction meanwhile.
#[derive(Debug)]
struct Underway {
    /// It only shows that this member is the primary.
    proof: bool,
    asked: Vec<(ReplyId, Request)>,
}

/// What only a primary has. None of it survives the office.
#[derive(Debug, Default)]
struct Leading {
    term: u64,
    open: BTreeMap<TransactionId, Open>,
    underway: BTreeMap<TransactionId, Underway>,
    /// Answers by the index that must be on a majority before.
    answers: BTreeMap<(u64, u64), (ReplyId, Answer)>,
    /// Clients that wait for what is in doubt to be settled.
    recovering: BTreeMap<TransactionId, Vec<ReplyId>>,
    /// What is in doubt, or not yet settled, and when to ask about it.
    doubts: BTreeMap<TransactionId, u64>,
}

/// One member's machine. See the module's page.
#[derive(Debug)]
pub struct Participant {
    me: ShardId,
    rows: Rows,
    applied: u64,
    majority: u64,
    now: u64,
    leading: Option<Leading>,
    /// Readers by the transaction that they have met.
    waiting: BTreeMap<TransactionId, Vec<WaiterId>>,
    /// Readers that go on when this index is on a majority.
    wakes: BTreeMap<(u64, u64), WaiterId>,
    next: u64,
    out: Vec<ParticipantEffect>,
}

impl Participant {
    /// The machine of a member of `me` whose log is applied up to index `applied`, with the rows found there.
    pub fn new(me: ShardId, rows: Rows, applied: u64) -> Self {
        Participant {
            me,
            rows,
            applied,
            majority: 0,
            now: 0,
            leading: None,
            waiting: BTreeMap::new(),
            wakes: BTreeMap::new(),
            next: 0,
            out: Vec::new(),
        }
    }

    /// The rows as they are applied.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Whether requests are answered here.
    pub fn is_leading(&self) -> bool {
        self.leading.is_some()
    }

    /// What the driver has to do.
    pub fn poll(&mut self) -> Vec<ParticipantEffect> {
        mem::take(&mut self.out)
    }

    /// Time has passed: milliseconds of a clock that does not go back.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        let Some(leading) = &mut self.leading else { return };
        for (id, due) in &mut leading.doubts {
            if *due > self.now {
                continue;
            }
            let (participants, committed, again) = match self.rows.get(id) {
                Some(Row::Prepared { participants, .. }) => (participants, None, SETTLE_AFTER_MILLIS),
                Some(Row::Committed { participants, at, .. }) => (participants, Some(*at), UNSETTLED_MILLIS),
                Some(Row::Aborted) | None => continue,
            };
            *due = self.now + again;
            let participants = participants.clone();
            self.out.push(ParticipantEffect::Settle { id: id.clone(), participants, committed });
        }
    }

    /// This member takes writes from now on, in this election term, and has applied its whole log.
    pub fn became_primary(&mut self, term: u64) {
        let doubts = self.rows.iter().filter_map(|(id, row)| match row {
            Row::Prepared { .. } => Some((id.clone(), self.now)),
            Row::Committed { settled: false, .. } => Some((id.clone(), self.now + UNSETTLED_MILLIS)),
            Row::Committed { .. } | Row::Aborted => None,
        });
        self.leading = Some(Leading { term, doubts: doubts.collect(), ..Leading::default() });
    }

    /// This member takes no writes any more. Nobody gets an answer; open transactions are gone.
    pub fn lost_primary(&mut self) {
        let Some(leading) = self.leading.take() else { return };
        let discard = |(id, open): (TransactionId, Open)| open.discard(id);
        self.out.extend(leading.open.into_iter().map(discard));
    }

    /// The next entry of the log is applied: a record of transactions at `index`, stamped `time`.
    pub fn applied(&mut self, index: u64, time: ClusterTime, record: &Record) {
        self.applied = index;
        let outcome = self.rows.apply(index, time, record, &self.me);
        match record {
            Record::Prepare { id, .. }
            | Record::Alone { id }
            | Record::Commit { id, .. }
            | Record::Abort { id } => {
                self.ended(index, id, outcome);
            }
            Record::Settled { ids } => ids.iter().for_each(|id| self.ended(index, id, None)),
        }
    }

    /// Everything up to this index is applied; there was nothing of transactions in it that was not told.
    pub fn reached(&mut self, index: u64) {
        self.applied = self.applied.max(index);
    }

    /// A session has ended, on all members behind the same entry.
    pub fn session_ended(&mut self, lsid: &Arc<[u8]>) {
        self.rows.end_session(lsid);
    }

    /// The driver could not append this record, and this member is still the primary. Whoever has asked will ask again.
    pub fn append_failed(&mut self, record: &Record) {
        let Some(leading) = &mut self.leading else { return };
        match record {
            Record::Prepare { id, .. }
            | Record::Alone { id }
            | Record::Commit { id, .. }
            | Record::Abort { id } => {
                leading.underway.remove(id);
            }
            Record::Settled { ids } => ids.iter().for_each(|id| drop(leading.underway.remove(id))),
        }
    }

    /// Entries up to this index are on a majority, and applied here.
    pub fn majority(&mut self, index: u64) {
        self.majority = self.majority.max(index);
        while let Some(entry) = self.wakes.first_entry() {
            if entry.key().0 > self.majority {
                break;
            }
            self.out.push(ParticipantEffect::Wake { waiter: entry.remove(), outcome: Outcome::Aborted });
        }
        let Some(leading) = &mut self.leading else { return };
        while let Some(entry) = leading.answers.first_entry() {
            if entry.key().0 > self.majority {
                break;
            }
            let (to, answer) = entry.remove();
            self.out.push(ParticipantEffect::Reply { to, answer });
        }
    }

    /// What the log says of this transaction has come into effect.
    fn ended(&mut self, index: u64, id: &TransactionId, outcome: Option<Outcome>) {
        self.wake(index, id, outcome);
        let Some(leading) = &mut self.leading else { return };
        leading.open.remove(id);
        let due = match self.rows.get(id) {
            Some(Row::Prepared { .. }) => Some(self.now + SETTLE_AFTER_MILLIS),
            Some(Row::Committed { settled: false, .. }) => Some(self.now + UNSETTLED_MILLIS),
            _ => None,
        };
        match due {
            Some(due) => drop(leading.doubts.insert(id.clone(), due)),
            None => drop(leading.doubts.remove(id)),
        }
        if outcome.is_some() {
            for to in leading.recovering.remove(id).unwrap_or_default() {
                self.consider(to, Request::Ask { id: id.clone() });
            }
        }
        let Some(underway) = self.leading.as_mut().and_then(|leading| leading.underway.remove(id)) else {
            return;
        };
        for (to, request) in underway.asked {
            match request {
                Request::Commit { at, .. } if underway.proof => {
                    self.answer_at(index, to, Answer::Committed(at))
                }
                request => self.consider(to, request),
            }
        }
    }

    /// A commit is certain when it comes. An abort may have been decided by one who had missed the commit, on a primary that has been
    /// replaced: then it never gets on a majority.
    fn wake(&mut self, index: u64, id: &TransactionId, outcome: Option<Outcome>) {
        let Some(outcome) = outcome else { return };
        for waiter in self.waiting.remove(id).unwrap_or_default() {
            match outcome {
                Outcome::Committed(_) => self.out.push(ParticipantEffect::Wake { waiter, outcome }),
                Outcome::Aborted => {
                    self.next += 1;
                    self.wakes.insert((index, self.next), waiter);
                }
            }
        }
    }

    // Readers.

    /// Whether who reads as of `at` (`None`: the newest state) and meets what this transaction has written must wait for its outcome.
    pub fn is_in_doubt(&self, id: &TransactionId, at: Option<ClusterTime>) -> bool {
        match self.rows.get(id) {
            Some(Row::Prepared { at: prepared, .. }) => at.is_none_or(|at| *prepared <= at),
            _ => false,
        }
    }

    /// A reader waits for the outcome of a transaction that is in doubt; a `Wake` will follow.
    pub fn wait(&mut self, id: &TransactionId, waiter: WaiterId) {
        assert!(self.is_in_doubt(id, None), "{id:?} is not in doubt");
        self.waiting.entry(id.clone()).or_default().push(waiter);
    }

    /// The reader has given up.
    pub fn cancel_wait(&mut self, waiter: WaiterId) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|other| *other != waiter);
            !waiters.is_empty()
        });
        self.wakes.retain(|_, other| *other != waiter);
    }

    // Statements.

    /// A statement is about to be executed here, after what has been (`None`: it begins the transaction, on a snapshot of what is
    /// applied now). If it fails, the driver abandons the transaction.
    pub fn execute(&mut self, id: &TransactionId, after: Option<Executed>) -> Result<Executed, NotRun> {
        let Some(leading) = &mut self.leading else { return Err(NotRun::NotPrimary) };
        if leading.underway.contains_key(id) {
            return Err(NotRun::Ending);
        }
        match self.rows.get(id) {
            Some(Row::Prepared { .. }) => return Err(NotRun::Ending),
            Some(Row::Committed { .. }) => return Err(NotRun::Committed),
            Some(Row::Aborted) => return Err(NotRun::NotOpen),
            None => {}
        }
        let last = TransactionId { lsid: id.lsid.clone(), number: i64::MAX };
        let newest_open = leading.open.range(id..=&last).next_back().map(|(newest, _)| newest.number);
        let newest_row = self.rows.newest(&id.lsid).map(|(number, _)| number);
        if newest_open.max(newest_row).is_some_and(|newest| newest > id.number) {
            return Err(NotRun::TooOld);
        }
        match leading.open.get_mut(id) {
            Some(open) if open.confirmed => Err(NotRun::Ending),
            Some(open) if Some(open.executed) == after => {
                open.executed.statements += 1;
                Ok(open.executed)
            }
            Some(_) => Err(NotRun::OutOfOrder),
            None if after.is_some() => Err(NotRun::NotOpen),
            None => Ok(self.open(id)),
        }
    }

    /// A newer transaction ends what its session has open.
    fn open(&mut self, id: &TransactionId) -> Executed {
        self.next += 1;
        let mut executed = Executed { term: 0, opening: self.next, statements: 1 };
        let Some(leading) = &mut self.leading else { return executed };
        executed.term = leading.term;
        let first = TransactionId { lsid: id.lsid.clone(), number: i64::MIN };
        let older = leading.open.range(&first..id).map(|(older, _)| older.clone());
        let older: Vec<_> = older.filter(|older| !leading.underway.contains_key(older)).collect();
        for id in older {
            self.out.extend(leading.open.remove(&id).map(|open| open.discard(id)));
        }
        leading.open.insert(id.clone(), Open { executed, snapshot: self.applied, confirmed: false });
        executed
    }

    /// Up to which index an open transaction that has executed just this may have read.
    pub fn read_up_to(&self, id: &TransactionId, executed: Executed) -> Option<u64> {
        let leading = self.leading.as_ref()?;
        let open = leading.open.get(id).filter(|_| !leading.underway.contains_key(id))?;
        (open.executed == executed).then_some(open.snapshot)
    }

    /// What an open transaction has read is confirmed, and it did nothing else. It is remembered until its session's next one, so that
    /// the router can ask again.
    pub fn confirmed(&mut self, id: &TransactionId) {
        let Some(leading) = &mut self.leading else { return };
        let Some(open) = leading.open.get_mut(id) else { return };
        if !mem::replace(&mut open.confirmed, true) {
            self.out.push(open.discard(id.clone()));
        }
    }

    /// An open transaction is over without a trace: a statement has failed, or its client has given it up.
    pub fn abandon(&mut self, id: &TransactionId) {
        let Some(leading) = &mut self.leading else { return };
        if !leading.underway.contains_key(id)
            && let Some(open) = leading.open.remove(id)
        {
            self.out.push(open.discard(id.clone()));
        }
    }

    // Requests.

    /// A request has come. `Confirm` is [`crate::Shard::request`]'s.
    pub fn handle(&mut self, to: ReplyId, request: Request) {
        if self.leading.is_none() {
            self.out.push(ParticipantEffect::NotPrimary { to });
            return;
        }
        match request {
            Request::Settled { ids } => self.settled(ids),
            request => self.consider(to, request),
        }
    }

    /// Those that are still on record as unsettled become so, in one entry.
    fn settled(&mut self, mut ids: Vec<TransactionId>) {
        ids.retain(|id| matches!(self.rows.get(id), Some(Row::Committed { settled: false, .. })));
        if !ids.is_empty() {
            self.out.push(ParticipantEffect::Append(Record::Settled { ids }));
        }
    }

    /// Answers from the rows, or has the log say what can be answered.
    fn consider(&mut self, to: ReplyId, request: Request) {
        let Some(leading) = &mut self.leading else { return };
        let Some(id) = request.id().cloned() else { return };
        if let Some(underway) = leading.underway.get_mut(&id) {
            underway.asked.push((to, request));
            return;
        }
        match self.rows.get(&id).cloned() {
            Some(Row::Prepared { at, .. }) => self.consider_prepared(to, id, at, request),
            Some(Row::Committed { at, .. }) => {
                if let Request::Commit { at: told, .. } = request
                    && told != at
                {
                    self.contradiction(&id, format!("committed at {at}, and told that it was at {told}"));
                }
                self.answer(&id, to, Answer::Committed(at));
            }
            Some(Row::Aborted) => {
                // Unless it was put there by one who has been replaced and does not know.
                let index = self.rows.index_of(&id).unwrap_or(0);
                if let Request::Commit { at, .. } = request
                    && index <= self.majority
                {
                    self.contradiction(&id, format!("aborted, and told that it has committed at {at}"));
                }
                self.answer(&id, to, Answer::Aborted);
            }
            None => self.consider_unknown(to, id, request),
        }
    }

    fn consider_prepared(&mut self, to: ReplyId, id: TransactionId, prepared: ClusterTime, request: Request) {
        match request {
            Request::Commit { at, .. } => {
                if at < prepared {
                    self.contradiction(
                        &id,
                        format!("prepared at {prepared}, and told that it has committed at {at}"),
                    );
                    return self.answer(&id, to, Answer::Prepared(prepared));
                }
                self.out.push(ParticipantEffect::Observe(at));
                self.append(to, Record::Commit { id: id.clone(), at }, id, request);
            }
            Request::Abort { .. } => self.append(to, Record::Abort { id: id.clone() }, id, request),
            Request::Recover { .. } => {
                let Some(leading) = &mut self.leading else { return };
                leading.recovering.entry(id.clone()).or_default().push(to);
                if let Some(Row::Prepared { participants, .. }) = self.rows.get(&id) {
                    let participants = participants.clone();
                    self.out.push(ParticipantEffect::Settle { id, participants, committed: None });
                }
            }
            _ => self.answer(&id, to, Answer::Prepared(prepared)),
        }
    }

    /// There is no row: the transaction may be open, and if not, it never will be.
    fn consider_unknown(&mut self, to: ReplyId, id: TransactionId, request: Request) {
        if let Some((newest, index)) = self.rows.newest(&id.lsid)
            && newest > id.number
        {
            let answer = match request {
                // What was decided to commit was prepared here: it has been settled since.
                Request::Commit { at, .. } => Answer::Committed(at),
                _ => Answer::TooOld,
            };
            self.abandon(&id);
            return self.answer_at(index, to, answer);
        }
        let Some(leading) = &mut self.leading else { return };
        let known = leading.open.get(&id).filter(|open| !open.confirmed).map(|open| open.executed);
        match &request {
            Request::Prepare { participants, executed, .. } if known == Some(*executed) => {
                let participants = participants.clone();
                self.append(to, Record::Prepare { id: id.clone(), participants }, id, request);
            }
            Request::CommitAlone { executed, .. } if known == Some(*executed) => {
                self.append(to, Record::Alone { id: id.clone() }, id, request);
            }
            Request::Abandon { .. } => {
                self.abandon(&id);
                self.out.push(ParticipantEffect::Reply { to, answer: Answer::Abandoned });
            }
            // It was settled, and its session has ended since; or this member has been replaced and does not know. An entry that
            // gets on a majority tells.
            Request::Commit { .. } => {
                self.append(to, Record::Settled { ids: vec![id.clone()] }, id.clone(), request);
                let leading = self.leading.as_mut().and_then(|leading| leading.underway.get_mut(&id));
                leading.expect("it was just appended").proof = true;
            }
            _ => {
                self.abandon(&id);
                self.append(to, Record::Abort { id: id.clone() }, id, request);
            }
        }
    }

    fn append(&mut self, to: ReplyId, record: Record, id: TransactionId, request: Request) {
        let Some(leading) = &mut self.leading else { return };
        leading.underway.insert(id, Underway { proof: false, asked: vec![(to, request)] });
        self.out.push(ParticipantEffect::Append(record));
    }

    /// Answers what the row says, when it is on a majority.
    fn answer(&mut self, id: &TransactionId, to: ReplyId, answer: Answer) {
        let index = self.rows.index_of(id).unwrap_or(self.applied);
        self.answer_at(index, to, answer);
    }

    fn answer_at(&mut self, index: u64, to: ReplyId, answer: Answer) {
        let Some(leading) = &mut self.leading else { return };
        if index <= self.majority {
            self.out.push(ParticipantEffect::Reply { to, answer });
            return;
        }
        self.next += 1;
        leading.answers.insert((index, self.next), (to, answer));
    }

    fn contradiction(&mut self, id: &TransactionId, what: String) {
        self.out.push(ParticipantEffect::Contradiction { id: id.clone(), what });
    }
}

#[cfg(test)]
mod tests;
