//! The moves to a shard: copying a range, following what changes in it, having the rest.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;

use crate::transaction::ReplyId;
use crate::types::{ShardId, TransactionId};

use super::{Misfit, Move, MoveAnswer, MoveId, MoveRequest, PlacementChange, Progress, Token};

/// After how long without an answer the donor is asked again.
const AGAIN_MILLIS: u64 = 1000;
/// After how long without an answer it is given up.
const DONOR_SILENCE_MILLIS: u64 = 30_000;
/// How long the conductor may be silent.
const CONDUCTOR_SILENCE_MILLIS: u64 = 15_000;
/// How often the donor is asked for changes while there are few.
const FOLLOW_MILLIS: u64 = 50;
/// How often it is asked whether the range is still closed.
const LOOK_MILLIS: u64 = 500;
/// After how long a transaction that does not go on is to be abandoned.
const ABANDON_MILLIS: u64 = 2000;
/// How many batches may wait to be written before another is asked for.
const AHEAD: u32 = 2;
/// A round of so many changes is little. Where writers are fast, no round is; so more and more are, up to what is told and written
/// in a fraction of the time for which a range stays closed.
const FEW: u64 = 500;
const FEW_PER_SECOND: u64 = 2000;
const FEW_MAX: u64 = 20_000;
/// How many ended moves are remembered.
const OVER_MAX: usize = 1000;

/// What the recipient's driver has to do, in this order for each move.
#[derive(Clone, Debug, PartialEq)]
pub enum RecipientEffect<B> {
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
    /// Send this to the shard's primary; what it answers is told to [`Recipients::answered`].
    Send {
        /// The donor.
        to: ShardId,
        /// The number of the call. One that is sent again keeps it.
        call: u64,
        /// What.
        request: MoveRequest,
    },
    /// Change the placement of a collection, for [`PlacementChange::Receive`] after the collection and its indexes are there:
    /// [`Recipients::placed`]. While a transaction has it locked, that is waited for.
    Place {
        /// Which move.
        id: MoveId,
        /// The collection.
        uuid: [u8; 16],
        /// The change.
        change: PlacementChange,
    },
    /// Write what came with an answer, as later writes that need not be waited for: [`Recipients::written`].
    Write {
        /// Which move.
        id: MoveId,
        /// What.
        batch: B,
    },
    /// Abandon this open transaction. If there is nothing of it any more, neither open nor being prepared nor prepared:
    /// [`Recipients::ended`].
    Abandon(TransactionId),
}

#[derive(Debug, PartialEq)]
enum State {
    /// Until the donor notes what changes.
    Asking,
    /// Until the range is marked.
    Marking,
    Copying {
        after: Option<Vec<u8>>,
        is_end: bool,
    },
    Following {
        caught_up: bool,
        next_at: u64,
    },
    /// Without a transaction the donor is asked now and then whether the range is still closed; with one, that is to be abandoned
    /// if it does not go on.
    Ready {
        closing: Token,
        transaction: Option<TransactionId>,
        next_at: u64,
    },
    /// Until the mark is off.
    GivingUp {
        why: String,
        again_at: Option<u64>,
    },
}

#[derive(Debug)]
struct Receiving {
    /// None: what a mark is left of, from before this office.
    the_move: Option<Arc<Move>>,
    uuid: [u8; 16],
    attempt: Token,
    donation: Token,
    state: State,
    /// What the donor is asked, and since when; and when it is asked again.
    call: Option<(u64, MoveRequest, u64, u64)>,
    /// Batches given to the driver.
    writing: u32,
    /// Why not all of what came could be written, as long as something is in the way of some of it.
    in_the_way: Option<String>,
    received: u64,
    /// What the last answer of the donor leads to when its batch is written.
    then: Option<(u64, Option<Token>)>,
    progress: Progress,
    /// Since when changes are followed.
    following: u64,
    placing: bool,
    /// Whether there may be a mark.
    marked: bool,
    finish: Vec<ReplyId>,
    give_up: Vec<ReplyId>,
    heard_at: u64,
}

/// All moves to a shard, on its primary. `B` is what a batch of documents and statements is to the driver.
///
/// A recipient that goes on is the one that began: what it has is in the log of this office. The next primary finds the mark, and takes
/// back what was received; unless the transaction has prepared, for which changing the mark waits.
#[derive(Debug)]
pub struct Recipients<B> {
    term: Option<u64>,
    next: u64,
    now: u64,
    running: BTreeMap<MoveId, Receiving>,
    /// Those that have ended, and why.
    over: VecDeque<(MoveId, String)>,
    out: Vec<RecipientEffect<B>>,
}

impl<B> Default for Recipients<B> {
    fn default() -> Self {
        Recipients {
            term: None,
            next: 0,
            now: 0,
            running: BTreeMap::new(),
            over: VecDeque::new(),
            out: Vec::new(),
        }
    }
}

impl<B> Recipients<B> {
    /// A member's, before it is the primary.
    pub fn new() -> Self {
        Recipients::default()
    }

    /// What the driver has to do.
    pub fn poll(&mut self) -> Vec<RecipientEffect<B>> {
        mem::take(&mut self.out)
    }

    /// This member takes writes from now on. `marked` are the moves, with their collections, that the placements have in `receiving`.
    pub fn became_primary(&mut self, term: u64, marked: impl IntoIterator<Item = ([u8; 16], MoveId)>) {
        self.term = Some(term);
        self.running.clear();
        for (uuid, id) in marked {
            self.begin(id, uuid, None, true);
            self.end(id, "the primary that received it is not the primary any more".to_owned());
        }
    }

    /// This member takes no writes any more.
    pub fn lost_primary(&mut self) {
        self.term = None;
        self.running.clear();
        self.out.clear();
    }

    /// The moves under way.
    pub fn moves(&self) -> impl Iterator<Item = (MoveId, Progress)> {
        self.running.iter().map(|(id, receiving)| (*id, receiving.progress))
    }

    fn token(&mut self) -> Token {
        self.next += 1;
        Token { term: self.term.unwrap_or(0), number: self.next }
    }

    fn reply(&mut self, to: ReplyId, answer: MoveAnswer) {
        self.out.push(RecipientEffect::Reply { to, answer });
    }

    /// The conductor has asked.
    pub fn handle(&mut self, to: ReplyId, request: MoveRequest) {
        if self.term.is_none() {
            return self.out.push(RecipientEffect::NotPrimary { to });
        }
        let id = request.id();
        if let MoveRequest::Receive { the_move } = &request
            && !self.running.contains_key(&id)
            && self.why_over(id).is_none()
        {
            self.begin(id, the_move.uuid, Some(the_move.clone()), false);
            let attempt = self.running.get(&id).map(|receiving| receiving.attempt).unwrap_or_default();
            self.ask(id, MoveRequest::Donate { the_move: the_move.clone(), attempt });
        }
        let now = self.now;
        let Some(of) = self.running.get_mut(&id) else {
            let unknown = || "this primary receives nothing of it".to_owned();
            let why = self.why_over(id).map_or_else(unknown, str::to_owned);
            return self.reply(to, MoveAnswer::GivenUp { why });
        };
        of.heard_at = now;
        match (request, &of.state) {
            (MoveRequest::GiveUp { .. }, _) => {
                of.give_up.push(to);
                self.end(id, "it was called off".to_owned());
            }
            (MoveRequest::Finish { .. }, State::Following { caught_up: true, .. }) => {
                of.finish.push(to);
                self.follow(id);
            }
            (MoveRequest::Finish { .. }, State::Ready { closing, .. }) => {
                let closing = *closing;
                self.reply(to, MoveAnswer::Ready { closing });
            }
            (_, State::GivingUp { why, .. }) => {
                let why = why.clone();
                self.reply(to, MoveAnswer::GivenUp { why });
            }
            _ => {
                let progress = of.progress;
                self.reply(to, MoveAnswer::Receiving(progress));
            }
        }
    }

    fn why_over(&self, id: MoveId) -> Option<&str> {
        self.over.iter().find(|(over, _)| *over == id).map(|(_, why)| why.as_str())
    }

    fn begin(&mut self, id: MoveId, uuid: [u8; 16], the_move: Option<Arc<Move>>, marked: bool) {
        let receiving = Receiving {
            the_move,
            uuid,
            attempt: self.token(),
            donation: Token::default(),
            state: State::Asking,
            call: None,
            writing: 0,
            in_the_way: None,
            received: 0,
            then: None,
            progress: Progress::default(),
            following: 0,
            placing: false,
            marked,
            finish: Vec::new(),
            give_up: Vec::new(),
            heard_at: self.now,
        };
        self.running.insert(id, receiving);
    }

    // The donor.

    fn ask(&mut self, id: MoveId, request: MoveRequest) {
        self.next += 1;
        let (call, now) = (self.next, self.now);
        let Some(of) = self.running.get_mut(&id) else { return };
        let Some(the_move) = &of.the_move else { return };
        of.call = Some((call, request.clone(), now, now + AGAIN_MILLIS));
        let to = the_move.from.clone();
        self.out.push(RecipientEffect::Send { to, call, request });
    }

    /// The donor has answered; `batch` is what came with it.
    pub fn answered(&mut self, id: MoveId, call: u64, answer: MoveAnswer, batch: Option<B>) {
        let Some(of) = self.running.get_mut(&id) else { return };
        if of.call.as_ref().is_none_or(|(asked, ..)| *asked != call) {
            return;
        }
        of.call = None;
        match (&mut of.state, answer) {
            (State::Asking, MoveAnswer::Donating { donation }) => {
                of.donation = donation;
                of.state = State::Marking;
                (of.placing, of.marked) = (true, true);
                if let Some(the_move) = of.the_move.clone() {
                    let (uuid, change) = (of.uuid, PlacementChange::Receive { the_move });
                    self.out.push(RecipientEffect::Place { id, uuid, change });
                }
            }
            (State::Copying { after, is_end }, MoveAnswer::Copied { last }) => {
                *is_end = last.is_none();
                *after = last;
                self.write(id, batch);
                self.copy(id);
            }
            (
                State::Following { .. } | State::Ready { .. },
                MoveAnswer::Changed { upto, count, left, closing },
            ) => {
                of.received = upto;
                of.then = Some((left, closing));
                let few = FEW + (self.now - of.following) * FEW_PER_SECOND / 1000;
                let mut more = false;
                if let State::Following { caught_up, .. } = &mut of.state {
                    *caught_up = left == 0 && count <= few.min(FEW_MAX);
                    of.progress.caught_up = *caught_up;
                    more = left > 0;
                }
                // What was in the way of something may have gone.
                if count > 0 || of.in_the_way.is_some() {
                    self.write(id, batch);
                }
                // The donor finds the next while these are written.
                if more {
                    self.follow(id);
                }
                self.caught(id);
            }
            (State::Following { .. }, MoveAnswer::Busy) => {
                for to in mem::take(&mut of.finish) {
                    self.out.push(RecipientEffect::Reply { to, answer: MoveAnswer::Busy });
                }
                self.later(id, FOLLOW_MILLIS);
            }
            // Its transaction has come to an end there, or is in doubt: it will be here, too.
            (State::Ready { transaction: Some(_), .. }, MoveAnswer::Refused { .. }) => {}
            (_, MoveAnswer::Refused { why }) => self.end(id, why),
            _ => {}
        }
    }

    fn write(&mut self, id: MoveId, batch: Option<B>) {
        let (Some(of), Some(batch)) = (self.running.get_mut(&id), batch) else { return };
        of.writing += 1;
        of.progress.batches += 1;
        self.out.push(RecipientEffect::Write { id, batch });
    }

    fn copy(&mut self, id: MoveId) {
        let Some(of) = self.running.get_mut(&id) else { return };
        let State::Copying { after, is_end } = &of.state else { return };
        match (is_end, of.writing) {
            (true, 0) => {
                of.state = State::Following { caught_up: false, next_at: 0 };
                of.following = self.now;
                self.follow(id);
            }
            (false, writing) if writing <= AHEAD && of.call.is_none() => {
                let request = MoveRequest::Copy { id, donation: of.donation, after: after.clone() };
                self.ask(id, request);
            }
            _ => {}
        }
    }

    /// Asks for changes, unless that is under way or much of what came is still to be written.
    fn follow(&mut self, id: MoveId) {
        let Some(of) = self.running.get(&id) else { return };
        if of.call.is_some() || of.writing > AHEAD {
            return;
        }
        let caught_up = matches!(of.state, State::Following { caught_up: true, .. });
        let close = caught_up && !of.finish.is_empty() && of.writing == 0;
        let request = MoveRequest::Changes { id, donation: of.donation, received: of.received, close };
        self.ask(id, request);
    }

    fn later(&mut self, id: MoveId, millis: u64) {
        let at = self.now + millis;
        let Some(of) = self.running.get_mut(&id) else { return };
        if let State::Following { next_at, .. } | State::Ready { next_at, .. } = &mut of.state {
            *next_at = at;
        }
    }

    /// What the donor has told is written, perhaps.
    fn caught(&mut self, id: MoveId) {
        let Some(of) = self.running.get_mut(&id) else { return };
        if of.writing > 0 {
            return;
        }
        let Some((left, closing)) = of.then.take() else { return };
        if left == 0
            && closing.is_some()
            && let Some(why) = of.in_the_way.take()
        {
            return self.end(id, why);
        }
        match (&mut of.state, closing) {
            (State::Ready { closing: own, .. }, Some(closing)) if left == 0 && *own == closing => {
                self.later(id, LOOK_MILLIS);
            }
            (State::Ready { transaction: Some(_), .. }, _) => {}
            (state, Some(closing)) if left == 0 => {
                let next_at = self.now + LOOK_MILLIS;
                *state = State::Ready { closing, transaction: None, next_at };
                for to in mem::take(&mut of.finish) {
                    self.out.push(RecipientEffect::Reply { to, answer: MoveAnswer::Ready { closing } });
                }
            }
            (state, _) => {
                if matches!(state, State::Ready { .. }) {
                    *state = State::Following { caught_up: false, next_at: 0 };
                }
                // While much changes, the next round is the shorter the sooner it begins.
                let behind = matches!(state, State::Following { caught_up: false, .. });
                if left > 0 || behind || !of.finish.is_empty() {
                    self.follow(id);
                } else {
                    self.later(id, FOLLOW_MILLIS);
                }
            }
        }
    }

    // What the driver has done.

    /// A batch is in the log, visibly. Batches are written in order. Where something is `in_the_way` of documents of this or earlier ones, which the
    /// driver keeps for the next batch, it says so each time: what is not written when the range is closed ends the move.
    pub fn written(&mut self, id: MoveId, in_the_way: Option<String>) {
        let Some(of) = self.running.get_mut(&id) else { return };
        of.in_the_way = in_the_way;
        of.writing = of.writing.saturating_sub(1);
        match of.state {
            State::Copying { .. } => self.copy(id),
            State::Following { .. } | State::Ready { .. } => self.caught(id),
            _ => {}
        }
    }

    /// A batch could not be written.
    pub fn write_failed(&mut self, id: MoveId, why: String) {
        self.end(id, why);
    }

    /// The placement has been changed, or could not be.
    pub fn placed(&mut self, id: MoveId, result: Result<(), Misfit>) {
        let again = self.now + AGAIN_MILLIS;
        let Some(of) = self.running.get_mut(&id) else { return };
        of.placing = false;
        match (&mut of.state, result) {
            (State::Marking, Ok(())) => {
                of.state = State::Copying { after: None, is_end: false };
                self.copy(id);
            }
            (State::Marking, Err(Misfit(why))) => {
                of.marked = false;
                self.end(id, why);
            }
            // The mark that was under way when the move was given up.
            (State::GivingUp { again_at: None, .. }, _) => self.unmark(id),
            (State::GivingUp { .. }, Ok(())) => self.over(id),
            (State::GivingUp { again_at, .. }, Err(_)) => *again_at = Some(again),
            _ => {}
        }
    }

    /// The transaction that changes the owner is about to execute its statement here.
    ///
    /// Errors: if not everything is here that was in the range when it was closed under this name.
    pub fn statement(
        &mut self,
        id: MoveId,
        closing: Token,
        transaction: &TransactionId,
    ) -> Result<(), Misfit> {
        match self.running.get_mut(&id).map(|of| &mut of.state) {
            Some(State::Ready { closing: own, transaction: of @ None, next_at }) if *own == closing => {
                *of = Some(transaction.clone());
                *next_at = self.now + ABANDON_MILLIS;
                Ok(())
            }
            _ => Err(Misfit("not all of the range has been received".to_owned())),
        }
    }

    /// A transaction has come to its end here, or was abandoned before it prepared. It may be anybody's.
    pub fn ended(&mut self, transaction: &TransactionId, committed: bool) {
        let is_of = |of: &Receiving| match &of.state {
            State::Ready { transaction: of, .. } => of.as_ref() == Some(transaction),
            _ => false,
        };
        let Some((id, of)) = self.running.iter_mut().find(|(_, of)| is_of(of)) else { return };
        let id = *id;
        if committed {
            return self.over(id);
        }
        of.state = State::Following { caught_up: false, next_at: self.now };
        if of.give_up.is_empty() { self.follow(id) } else { self.end(id, "it was called off".to_owned()) }
    }

    // Giving up.

    fn end(&mut self, id: MoveId, why: String) {
        let Some(of) = self.running.get_mut(&id) else { return };
        match &of.state {
            State::GivingUp { .. } => return,
            // Whether it happens is not for this machine to say any more.
            State::Ready { transaction: Some(_), .. } => return,
            _ => {}
        }
        of.call = None;
        of.state = State::GivingUp { why: why.clone(), again_at: None };
        for to in mem::take(&mut of.finish) {
            let why = why.clone();
            self.out.push(RecipientEffect::Reply { to, answer: MoveAnswer::GivenUp { why } });
        }
        self.unmark(id);
    }

    fn unmark(&mut self, id: MoveId) {
        let again = self.now + AGAIN_MILLIS;
        let Some(of) = self.running.get_mut(&id) else { return };
        if of.placing {
            return;
        }
        if !of.marked {
            return self.over(id);
        }
        of.placing = true;
        if let State::GivingUp { again_at, .. } = &mut of.state {
            *again_at = Some(again);
        }
        self.out.push(RecipientEffect::Place { id, uuid: of.uuid, change: PlacementChange::GiveUp { id } });
    }

    fn over(&mut self, id: MoveId) {
        let Some(of) = self.running.get_mut(&id) else { return };
        let why = match &of.state {
            State::GivingUp { why, .. } => why.clone(),
            _ => "it has happened".to_owned(),
        };
        for to in mem::take(&mut of.give_up) {
            let why = why.clone();
            self.out.push(RecipientEffect::Reply { to, answer: MoveAnswer::GivenUp { why } });
        }
        self.running.remove(&id);
        self.over.push_back((id, why));
        if self.over.len() > OVER_MAX {
            self.over.pop_front();
        }
    }

    // Time.

    /// Time has passed: milliseconds of a clock that does not go back.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        let ids: Vec<MoveId> = self.running.keys().copied().collect();
        for id in ids {
            self.tick_one(id);
        }
    }

    fn tick_one(&mut self, id: MoveId) {
        let now = self.now;
        let Some(of) = self.running.get_mut(&id) else { return };
        if of.heard_at + CONDUCTOR_SILENCE_MILLIS <= now {
            self.end(id, "nothing was heard of the conductor".to_owned());
        }
        let Some(of) = self.running.get_mut(&id) else { return };
        match &mut of.call {
            Some((_, _, since, _)) if *since + DONOR_SILENCE_MILLIS <= now => {
                return self.end(id, "nothing was heard of the donor".to_owned());
            }
            Some((call, request, _, again_at)) if *again_at <= now => {
                *again_at = now + AGAIN_MILLIS;
                let (call, request) = (*call, request.clone());
                if let Some(the_move) = &of.the_move {
                    let to = the_move.from.clone();
                    self.out.push(RecipientEffect::Send { to, call, request });
                }
            }
            _ => {}
        }
        let Some(of) = self.running.get_mut(&id) else { return };
        match &mut of.state {
            State::Ready { transaction: Some(transaction), next_at, .. } if *next_at <= now => {
                *next_at = now + ABANDON_MILLIS;
                self.out.push(RecipientEffect::Abandon(transaction.clone()));
            }
            State::Following { next_at, .. } | State::Ready { transaction: None, next_at, .. }
                if *next_at <= now =>
            {
                self.follow(id);
            }
            State::GivingUp { again_at: Some(at), .. } if *at <= now && !of.placing => self.unmark(id),
            _ => {}
        }
    }
}
