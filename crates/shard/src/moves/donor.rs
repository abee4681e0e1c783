//! The moves from a shard: what has changed since the copying began, and the closing of the range.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use sheaf_bson::doc;

use crate::placement::KeyRange;
use crate::transaction::ReplyId;
use crate::types::TransactionId;

use super::{Misfit, Move, MoveAnswer, MoveId, MoveRequest, Token};

/// How long closing waits for those who write in the range.
const DRAIN_MILLIS: u64 = 500;
/// How long a range stays closed when no transaction comes; and how often one that does not go on is to be abandoned.
const CLOSED_MILLIS: u64 = 2000;
/// How long a donation lasts without a word of its recipient.
const SILENCE_MILLIS: u64 = 30_000;
/// How many changes one answer names.
const BATCH: usize = 5000;
/// How many changes are kept. If a recipient falls behind further, the donation ends.
const CHANGES_MAX: usize = 1_000_000;

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeOf {
    /// A document, by its record's key. It may be gone.
    Document(Arc<[u8]>),
    /// The record of a session's retryable statements.
    Session(Arc<[u8]>),
}

/// What the donor's driver has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum DonorEffect {
    /// Answer a request.
    Reply {
        /// Which.
        to: ReplyId,
        /// With what.
        answer: MoveAnswer,
    },
    /// This member is not the primary; the request is for another.
    NotPrimary {
        /// The request.
        to: ReplyId,
    },
    /// Answer by [`MoveAnswer::Copied`] with the next documents of the range as they are now.
    Copy {
        /// The request.
        to: ReplyId,
        /// What.
        the_move: Arc<Move>,
        /// Where the last batch ended, as the driver has said it.
        after: Option<Vec<u8>>,
    },
    /// Answer by [`MoveAnswer::Changed`] with these as they are now. If that is too much for one answer, a first part will do: `upto` is
    /// then the number of its last, and `left` counts what is not in it.
    ///
    /// If records of sessions are among them, answer when what was read is on a majority: they stay on the recipient, even if the
    /// move is given up, and one of a write that the donor loses would keep it from being executed ever again.
    Changes {
        /// The request.
        to: ReplyId,
        /// What is moved.
        the_move: Arc<Move>,
        /// What has changed, by number.
        changes: Vec<(u64, ChangeOf)>,
        /// Up to where these go: what was received before if there is none.
        upto: u64,
        /// How many more there are.
        left: u64,
        /// The range is closed under this name.
        closing: Option<Token>,
    },
    /// New writers of this range wait from now on, new statements of transactions conflict. When nobody writes in it any more, neither units
    /// nor open or prepared transactions nor multi-writes, and [`Donors::changed`] has been told of all that they did:
    /// [`Donors::drained`].
    Close(Arc<Move>),
    /// Everybody may write again.
    Reopen(Arc<Move>),
    /// Abandon this open transaction. If there is nothing of it any more, neither open nor being prepared nor prepared:
    /// [`Donors::ended`].
    Abandon(TransactionId),
}

#[derive(Debug, PartialEq)]
enum Gate {
    Open,
    Closing { since: u64, asked: Vec<(ReplyId, u64)> },
    Closed { closing: Token, since: u64, transaction: Option<TransactionId> },
}

/// What has changed, each thing once, numbered by when it did last.
#[derive(Debug, Default)]
pub struct Changes {
    last: u64,
    by_number: BTreeMap<u64, ChangeOf>,
    numbers: BTreeMap<ChangeOf, u64>,
    /// Sessions that have changed since changes were told last.
    busy: BTreeSet<Arc<[u8]>>,
}

impl Changes {
    fn note_session(&mut self, session: &Arc<[u8]>) {
        self.busy.insert(session.clone());
        self.note(ChangeOf::Session(session.clone()));
    }

    /// Puts off what would be told in vain: the records of sessions that are at work. Each is all statements of a number, and another one by
    /// the next time. Gives how many these are.
    fn put_off_busy(&mut self) -> u64 {
        let busy = mem::take(&mut self.busy);
        let count = busy.len() as u64;
        busy.into_iter().for_each(|session| self.note(ChangeOf::Session(session)));
        count
    }

    /// Something has changed.
    pub fn note(&mut self, change: ChangeOf) {
        self.last += 1;
        if let Some(old) = self.numbers.insert(change.clone(), self.last) {
            self.by_number.remove(&old);
        }
        self.by_number.insert(self.last, change);
    }

    /// The oldest that are kept, as many as one answer names, with their numbers; and how many more there are.
    pub fn told(&self) -> (Vec<(u64, ChangeOf)>, u64) {
        self.told_of(self.by_number.len())
    }

    /// The same of so many of the oldest.
    fn told_of(&self, count: usize) -> (Vec<(u64, ChangeOf)>, u64) {
        let some = self.by_number.iter().take(count.min(BATCH));
        let some: Vec<(u64, ChangeOf)> = some.map(|(number, change)| (*number, change.clone())).collect();
        let left = (count - some.len()) as u64;
        (some, left)
    }

    /// The number of the newest.
    pub fn newest(&self) -> u64 {
        self.last
    }

    /// Whether there are more than are kept.
    pub fn are_too_many(&self) -> bool {
        self.by_number.len() > CHANGES_MAX
    }

    /// What was received need not be told again.
    pub fn received(&mut self, upto: u64) {
        let rest = self.by_number.split_off(&(upto + 1));
        for (_, change) in mem::replace(&mut self.by_number, rest) {
            self.numbers.remove(&change);
        }
    }
}

#[derive(Debug)]
struct Donation {
    the_move: Arc<Move>,
    attempt: Token,
    name: Token,
    changes: Changes,
    /// The keys of the range's records, where these tell the shard key.
    records: Option<KeyRange>,
    gate: Gate,
    heard_at: u64,
}

impl Donation {
    fn is_of(&self, uuid: &[u8; 16], record: &[u8]) -> bool {
        self.the_move.uuid == *uuid && self.records.as_ref().is_none_or(|range| range.holds(record))
    }
}

/// All moves from a shard, on its primary.
///
/// The gate and the changes are in memory: a primary that has closed a range is the only one who can take part in the move's
/// transaction ([`Donors::statement`]), and its prepare stands in the log behind all that the recipient was told.
#[derive(Debug, Default)]
pub struct Donors {
    term: Option<u64>,
    next: u64,
    now: u64,
    running: BTreeMap<MoveId, Donation>,
    out: Vec<DonorEffect>,
}

impl Donors {
    /// A member's, before it is the primary.
    pub fn new() -> Self {
        Donors::default()
    }

    /// What the driver has to do.
    pub fn poll(&mut self) -> Vec<DonorEffect> {
        mem::take(&mut self.out)
    }

    /// This member takes writes from now on, in this term.
    pub fn became_primary(&mut self, term: u64) {
        self.running.clear();
        self.term = Some(term);
    }

    /// This member takes no writes any more: what it has noted is forgotten.
    pub fn lost_primary(&mut self) {
        self.term = None;
        for (_, donation) in mem::take(&mut self.running) {
            if donation.gate != Gate::Open {
                self.out.push(DonorEffect::Reopen(donation.the_move));
            }
        }
    }

    /// Whether changes of this collection have to be told.
    pub fn wants(&self, uuid: &[u8; 16]) -> bool {
        self.running.values().any(|donation| donation.the_move.uuid == *uuid)
    }

    /// The moves under way.
    pub fn moves(&self) -> impl Iterator<Item = &Arc<Move>> {
        self.running.values().map(|donation| &donation.the_move)
    }

    /// A document of a collection has been written or deleted, visibly. Where its record's key does not tell the shard key, whether it is, or
    /// was, in the range is not asked: what has gone has no shard key any more.
    pub fn changed(&mut self, uuid: &[u8; 16], document: &Arc<[u8]>) {
        for donation in self.running.values_mut().filter(|donation| donation.is_of(uuid, document)) {
            donation.changes.note(ChangeOf::Document(document.clone()));
        }
        self.limit();
    }

    /// A retryable statement has been executed, visibly, whatever it wrote: the session's record travels.
    pub fn session_changed(&mut self, session: &Arc<[u8]>) {
        for donation in self.running.values_mut() {
            donation.changes.note_session(session);
        }
        self.limit();
    }

    fn limit(&mut self) {
        self.running.retain(|_, donation| donation.gate != Gate::Open || !donation.changes.are_too_many());
    }

    /// A request has come. `owns` tells whether this shard owns all of a range now; `sessions` are those whose records travel.
    pub fn handle(
        &mut self,
        to: ReplyId,
        request: MoveRequest,
        owns: impl FnOnce(&Move) -> bool,
        sessions: impl FnOnce(&Move) -> Vec<Arc<[u8]>>,
    ) {
        let Some(term) = self.term else { return self.out.push(DonorEffect::NotPrimary { to }) };
        if let MoveRequest::Donate { the_move, attempt } = request {
            return self.donate(to, term, the_move, attempt, owns, sessions);
        }
        let now = self.now;
        let donation = self.running.get_mut(&request.id());
        match (donation, request) {
            (Some(of), MoveRequest::Copy { donation, after, .. }) if of.name == donation => {
                of.heard_at = now;
                let the_move = of.the_move.clone();
                self.out.push(DonorEffect::Copy { to, the_move, after });
            }
            (Some(of), MoveRequest::Changes { id, donation, received, close }) if of.name == donation => {
                of.heard_at = now;
                of.changes.received(received);
                match &mut of.gate {
                    Gate::Open if close => {
                        of.gate = Gate::Closing { since: now, asked: vec![(to, received)] };
                        let the_move = of.the_move.clone();
                        self.out.push(DonorEffect::Close(the_move));
                    }
                    Gate::Closing { asked, .. } if close => asked.push((to, received)),
                    Gate::Open | Gate::Closing { .. } | Gate::Closed { .. } => self.tell(id, to, received),
                }
            }
            _ => self.refuse(to, "this primary notes nothing for the move".to_owned()),
        }
    }

    fn refuse(&mut self, to: ReplyId, why: String) {
        self.out.push(DonorEffect::Reply { to, answer: MoveAnswer::Refused { why } });
    }

    fn donate(
        &mut self,
        to: ReplyId,
        term: u64,
        the_move: Arc<Move>,
        attempt: Token,
        owns: impl FnOnce(&Move) -> bool,
        sessions: impl FnOnce(&Move) -> Vec<Arc<[u8]>>,
    ) {
        if let Some(running) = self.running.get(&the_move.id) {
            if running.attempt == attempt {
                let answer = MoveAnswer::Donating { donation: running.name };
                return self.out.push(DonorEffect::Reply { to, answer });
            }
            if running.gate != Gate::Open {
                return self.refuse(to, "the range is closed for another recipient".to_owned());
            }
        }
        let range = the_move.range();
        let clashes = |other: &Donation| {
            other.the_move.id != the_move.id
                && other.the_move.uuid == the_move.uuid
                && other.the_move.range().overlaps(&range)
        };
        if self.running.values().any(clashes) {
            return self.refuse(to, "another move takes part of the range".to_owned());
        }
        if !owns(&the_move) {
            return self.refuse(to, "the shard does not own the range".to_owned());
        }
        self.next += 1;
        let name = Token { term, number: self.next };
        let mut changes = Changes::default();
        for session in sessions(&the_move) {
            changes.note(ChangeOf::Session(session));
        }
        let id = the_move.id;
        let by_id = sheaf_bson::compare_docs(the_move.pattern.document(), doc! { "_id": 1 }.as_raw()).is_eq();
        let records = by_id.then(|| the_move.range());
        let (gate, heard_at) = (Gate::Open, self.now);
        let donation = Donation { the_move, attempt, name, changes, records, gate, heard_at };
        self.running.insert(id, donation);
        self.out.push(DonorEffect::Reply { to, answer: MoveAnswer::Donating { donation: name } });
    }

    fn tell(&mut self, id: MoveId, to: ReplyId, received: u64) {
        let Some(donation) = self.running.get_mut(&id) else { return };
        let closing = match &donation.gate {
            Gate::Closed { closing, .. } => Some(*closing),
            Gate::Open | Gate::Closing { .. } => None,
        };
        let put_off = if closing.is_none() { donation.changes.put_off_busy() } else { 0 };
        // What was put off is at the end.
        let count = donation.changes.by_number.len() - put_off as usize;
        let (changes, left) = donation.changes.told_of(count);
        self.out.push(DonorEffect::Changes {
            to,
            the_move: donation.the_move.clone(),
            upto: changes.last().map_or(received, |(number, _)| *number),
            left,
            changes,
            closing,
        });
    }

    /// Whether this range is being closed and [`Donors::drained`] is waited for.
    pub fn is_closing(&self, id: MoveId) -> bool {
        self.running.get(&id).is_some_and(|donation| matches!(donation.gate, Gate::Closing { .. }))
    }

    /// Nobody writes in the closing range any more.
    pub fn drained(&mut self, id: MoveId) {
        let Some(term) = self.term else { return };
        self.next += 1;
        let closing = Token { term, number: self.next };
        let Some(donation) = self.running.get_mut(&id) else { return };
        let Gate::Closing { asked, .. } = &mut donation.gate else { return };
        let asked = mem::take(asked);
        donation.gate = Gate::Closed { closing, since: self.now, transaction: None };
        for (to, received) in asked {
            self.tell(id, to, received);
        }
    }

    /// The transaction that changes the owner is about to execute its statement here.
    ///
    /// Errors: if the recipient has not got everything that is here: its closing is over.
    pub fn statement(
        &mut self,
        id: MoveId,
        closing: Token,
        transaction: &TransactionId,
    ) -> Result<(), Misfit> {
        let gate = self.running.get_mut(&id).map(|donation| &mut donation.gate);
        match gate {
            Some(Gate::Closed { closing: own, transaction: of @ None, since }) if *own == closing => {
                *of = Some(transaction.clone());
                *since = self.now;
                Ok(())
            }
            _ => Err(Misfit("the range has been opened again".to_owned())),
        }
    }

    /// A transaction has come to its end here, or was abandoned before it prepared. It may be anybody's.
    pub fn ended(&mut self, transaction: &TransactionId, committed: bool) {
        let is_of = |donation: &Donation| match &donation.gate {
            Gate::Closed { transaction: of, .. } => of.as_ref() == Some(transaction),
            Gate::Open | Gate::Closing { .. } => false,
        };
        let Some((id, donation)) = self.running.iter_mut().find(|(_, donation)| is_of(donation)) else {
            return;
        };
        let (id, the_move) = (*id, donation.the_move.clone());
        donation.gate = Gate::Open;
        if committed {
            self.running.remove(&id);
        }
        self.out.push(DonorEffect::Reopen(the_move));
    }

    /// Time has passed: milliseconds of a clock that does not go back.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        let now = self.now;
        for donation in self.running.values_mut() {
            match &mut donation.gate {
                Gate::Open => {}
                Gate::Closing { since, asked } if *since + DRAIN_MILLIS <= now => {
                    for (to, _) in mem::take(asked) {
                        self.out.push(DonorEffect::Reply { to, answer: MoveAnswer::Busy });
                    }
                    donation.gate = Gate::Open;
                    self.out.push(DonorEffect::Reopen(donation.the_move.clone()));
                }
                Gate::Closed { since, transaction, .. } if *since + CLOSED_MILLIS <= now => match transaction
                {
                    Some(transaction) => {
                        *since = now;
                        self.out.push(DonorEffect::Abandon(transaction.clone()));
                    }
                    None => {
                        donation.gate = Gate::Open;
                        self.out.push(DonorEffect::Reopen(donation.the_move.clone()));
                    }
                },
                Gate::Closing { .. } | Gate::Closed { .. } => {}
            }
        }
        let is_silent =
            |donation: &Donation| donation.gate == Gate::Open && donation.heard_at + SILENCE_MILLIS <= now;
        self.running.retain(|_, donation| !is_silent(donation));
    }
}
