//! Rounds of statements, until none is left.

mod planned;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sheaf_cluster::{Answer, Sharded};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::reply::Reply;
use sheaf_shard::ShardId;

use super::aim::Aiming;
use super::anywhere::{self, has_done_nothing};
use super::asked::{Asked, Going, Said};
use super::moved::{self, Moved};
use super::multi::Multis;
use super::outcome::{Answers, Taken, is_stale};
use super::{Aim, Attempts, Batch, Kind, is_transient, within_each};
use crate::addressed::{Addressed, Placed};
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::route::Route;

/// What came of a batch.
pub enum Ran<A> {
    /// One shard has answered it all, as the client gets it.
    Answered(Reply),
    /// Several have answered this.
    Put(A),
}

/// Runs a batch on its collections, wherever these are. Their databases are made where `makes` says so.
///
/// Errors: those that end the whole command.
pub fn run<A: Answers>(op: &Operation<'_>, batch: &Batch<'_>, makes: bool) -> Result<Ran<A>> {
    let namespaces = batch.namespaces.iter();
    let mut routes: Vec<Route<'_, '_>> = namespaces
        .map(|namespace| {
            Route::new(op, namespace.db, namespace.collection, makes).of_measurements(namespace.measured)
        })
        .collect();
    let mut rounds = Rounds::<A>::new(op, batch);
    loop {
        let placed: Vec<Placed> = routes.iter_mut().map(Route::placed).collect::<Result<_>>()?;
        rounds.meets(&placed);
        if rounds.left.is_empty() {
            return Ok(Ran::Put(rounds.answers));
        }
        let stale = match the_only(&placed) {
            Some(to) => match rounds.whole(to)? {
                Whole::Answered(reply) => return Ok(Ran::Answered(reply)),
                Whole::Again(stale) => Some(stale),
                Whole::Over => None,
            },
            None => rounds.round(&placed)?,
        };
        match stale {
            Some(Stale { namespace, .. }) if rounds.left.is_empty() => {
                routes[namespace].is_out_of_date();
                return Ok(Ran::Put(rounds.answers));
            }
            Some(Stale { namespace, error }) => {
                routes[namespace].stale(error)?;
                rounds.asked.view_changed();
                if op.in_transaction() {
                    // The transaction begins anew, and this statement with it.
                    rounds = Rounds::new(op, batch);
                }
            }
            None if rounds.left.is_empty() => return Ok(Ran::Put(rounds.answers)),
            None => {}
        }
    }
}

/// The one shard that has all of these collections, none of which is sharded.
fn the_only(placed: &[Placed]) -> Option<&Addressed> {
    let whole = |placed: &'_ Placed| matches!(placed, Placed::Whole(_));
    let [Placed::Whole(first), others @ ..] = placed else { return None };
    let same = |other: &Placed| match other {
        Placed::Whole(other) => other.target.name() == first.target.name() && other.version == first.version,
        Placed::Spread(_) => false,
    };
    (placed.iter().all(whole) && others.iter().all(same)).then_some(first)
}

/// A shard's view of a namespace is not the router's.
struct Stale {
    namespace: usize,
    error: Error,
}

/// Statements of one namespace and shard in a round.
struct Lot {
    to: Addressed,
    places: Vec<u32>,
    /// Whether it has statements that several shards were asked for.
    asked: bool,
}

/// Where a statement goes.
enum Goes<'s> {
    /// To a collection that lies on one shard.
    Whole(&'s Addressed),
    /// To the shards of a collection.
    Spread(Aim<'s>, &'s Sharded),
}

/// So many runs of documents for the same shard are sent one after another: a transaction takes as long.
const RUNS_IN_A_ROW: usize = 3;

/// What came of documents that were to be inserted together.
enum Together {
    /// They are there, or it is noted what they have failed with.
    Done,
    /// The view of the collection is out of date.
    Stale(Error),
    /// They are to go one run after another.
    InRuns,
}

/// What came of a batch that has gone to one shard.
enum Whole {
    /// This is all, as the client gets it.
    Answered(Reply),
    /// The rest goes by a newer view.
    Again(Stale),
    /// Nothing is left.
    Over,
}

/// A statement whose document is to be another shard's than this one, and the attempt that has found that.
struct Leaving {
    at: u32,
    from: Addressed,
    attempt: Option<u128>,
}

/// What a round sends.
#[derive(Default)]
struct Planned<'s> {
    lots: Vec<Lot>,
    /// Statements that concern one document, and the shards that may have it.
    anywhere: Vec<(u32, &'s Sharded, Vec<&'s ShardId>)>,
}

struct Rounds<'o, 'a, 'b, A> {
    op: &'o Operation<'a>,
    batch: &'o Batch<'b>,
    aiming: Aiming,
    /// Statements that are not done yet, in order.
    left: VecDeque<u32>,
    answers: A,
    multis: Multis,
    /// Statements whose documents are to be another shard's than the one that has said so.
    moving: Vec<Leaving>,
    asked: Asked,
    /// Documents of an ordered batch go in runs: all together, one has failed.
    in_runs: bool,
}

impl<'o, 'a, 'b, A: Answers> Rounds<'o, 'a, 'b, A> {
    fn new(op: &'o Operation<'a>, batch: &'o Batch<'b>) -> Self {
        let left = (0..batch.statements.len() as u32).collect();
        let (answers, multis) = (A::default(), Multis::default());
        Rounds {
            op,
            batch,
            aiming: Aiming::new(batch.kind),
            left,
            answers,
            multis,
            moving: Vec::new(),
            asked: Asked::default(),
            in_runs: false,
        }
    }

    /// The collections are these now. What was begun while one of them was another one begins anew or fails.
    fn meets(&mut self, placed: &[Placed]) {
        let Rounds { batch, left, multis, answers, .. } = self;
        left.retain(|at| match multis.meets(batch, *at, &placed[batch.namespace_of(*at)]) {
            Ok(()) => true,
            Err(error) => {
                answers.fail(*at, &error);
                false
            }
        });
        if batch.ordered && answers.has_failed() {
            left.clear();
        }
    }

    /// Sends all that is left to the one shard that has the whole of it: at first, as it came.
    fn whole(&mut self, to: &Addressed) -> Result<Whole> {
        let is_first = self.left.len() == self.batch.statements.len() && self.answers.is_empty();
        let mut message = match is_first && self.batch.is_as_it_came() && self.batch.kind != Kind::Bulk {
            true => forward::message(self.op, to, &Body::of(self.op)),
            false => self.batch.message(self.op, to, self.left.make_contiguous()),
        };
        let again = |error| Whole::Again(Stale { namespace: 0, error });
        let answer = match forward::exchange(self.op, &to.target, &mut message) {
            Ok(answer) => answer,
            Err(error) if is_stale(error.code()) => return Ok(again(error)),
            Err(error) => {
                let places = Vec::from(std::mem::take(&mut self.left));
                return self.failed(vec![(places, error)]).map(|()| Whole::Over);
            }
        };
        let places = Vec::from(std::mem::take(&mut self.left));
        match self.answers.take(self.op, &to.target, &places, &answer)?.stale {
            Some((from, error)) => {
                self.left = places[from..].to_vec().into();
                Ok(again(error))
            }
            // A bulkWrite's answer has a cursor, of which this router gives batches itself.
            None if is_first && self.batch.kind != Kind::Bulk => {
                forward::reply(self.op, &to.target, &answer).map(Whole::Answered)
            }
            None => Ok(Whole::Over),
        }
    }

    /// One round. Tells if a shard has answered that a view is out of date.
    fn round(&mut self, placed: &[Placed]) -> Result<Option<Stale>> {
        let (ordered, in_transaction) = (self.batch.ordered, self.op.in_transaction());
        let inserts = self.batch.kind == Kind::Inserts;
        let measured = inserts && !in_transaction && self.batch.is_measured(0);
        if ordered && !in_transaction && inserts && !measured && !self.in_runs {
            match self.together(placed)? {
                Together::Done => return Ok(None),
                Together::Stale(error) => return Ok(Some(Stale { namespace: 0, error })),
                Together::InRuns => self.in_runs = true,
            }
        }
        match self.ask(placed)? {
            Said::All => {}
            Said::Stale(namespace, error) => return Ok(Some(Stale { namespace, error })),
            Said::Again => return Ok(None),
        }
        let planned = match (ordered || in_transaction) && !(in_transaction && inserts) {
            true if measured => self.measurements(placed)?,
            true => self.next_run(placed)?,
            false => self.all_at_once(placed)?,
        };
        let mut stale = self.send(placed, &planned.lots)?;
        if measured {
            // What goes again stands before what has not been sent.
            self.left.make_contiguous().sort_unstable();
        }
        for (at, sharded, shards) in planned.anywhere {
            if stale.is_some() {
                self.left.push_back(at);
            } else {
                stale = self.anywhere(at, sharded, &shards)?;
            }
        }
        for leaving in std::mem::take(&mut self.moving) {
            match &placed[self.batch.namespace_of(leaving.at)] {
                Placed::Spread(sharded) if stale.is_none() => stale = self.moved(&leaving, sharded)?,
                _ => self.left.push_back(leaving.at),
            }
        }
        self.sort_left();
        if (ordered || in_transaction) && self.answers.has_failed() {
            self.left.clear();
            if in_transaction && inserts {
                self.answers.cut_behind_error();
            }
            return Ok(None);
        }
        Ok(stale)
    }

    /// What several shards are to execute again may have come back from more than one.
    fn sort_left(&mut self) {
        if !self.left.make_contiguous().is_sorted_by(|a, b| a < b) {
            let mut left = Vec::from(std::mem::take(&mut self.left));
            left.sort_unstable();
            left.dedup();
            self.left = left.into();
        }
    }

    /// Has the shards look for the document of a statement, and changes it.
    fn anywhere(&mut self, at: u32, sharded: &Sharded, shards: &[&ShardId]) -> Result<Option<Stale>> {
        self.asked.begin(self.op);
        let done = match anywhere::run(self.op, self.batch, at, sharded, shards) {
            Ok((to, answer)) => self.take_one(at, &to, &answer),
            Err(error) => self.one_failed(at, error),
        };
        self.op.attempt.set(None);
        done
    }

    /// Changes a document that is to be another shard's.
    fn moved(&mut self, leaving: &Leaving, sharded: &Sharded) -> Result<Option<Stale>> {
        let (at, to) = (leaving.at, &leaving.from);
        self.op.attempt.set(leaving.attempt);
        let done = moved::run(self.op, self.batch, at, to, sharded);
        self.op.attempt.set(None);
        match done {
            // Another statement was faster: the document may be any shard's by now.
            Ok((Moved::Answered(answer), _))
                if !self.op.in_transaction() && has_done_nothing(answer.reply()) =>
            {
                self.multis.begins_anew(at);
                self.left.push_back(at);
                Ok(None)
            }
            Ok((Moved::Answered(answer), _)) => self.take_one(at, to, &answer),
            Ok((Moved::Done(upserted), concerns)) => {
                self.answers.moved(at, upserted, concerns);
                Ok(None)
            }
            Ok((Moved::Refused(error), _)) => {
                self.answers.fail(at, &error);
                Ok(None)
            }
            Err(error) => self.one_failed(at, error),
        }
    }

    /// Takes in the answer to one statement.
    fn take_one(&mut self, at: u32, to: &Addressed, answer: &Answer) -> Result<Option<Stale>> {
        let taken = self.answers.take(self.op, &to.target, &[at], answer)?;
        if !taken.moving.is_empty() {
            self.moving.push(Leaving { at, from: to.clone(), attempt: self.op.attempt.get() });
        }
        let Some((_, error)) = taken.stale else { return Ok(None) };
        self.left.push_back(at);
        Ok(Some(Stale { namespace: self.batch.namespace_of(at), error }))
    }

    fn one_failed(&mut self, at: u32, error: Error) -> Result<Option<Stale>> {
        if self.asked.has_given_way(self.op, &error) {
            self.left.push_back(at);
            return Ok(None);
        }
        if !is_stale(error.code()) {
            return self.failed(vec![(vec![at], Attempts::for_client(error))]).map(|()| None);
        }
        self.left.push_back(at);
        Ok(Some(Stale { namespace: self.batch.namespace_of(at), error }))
    }

    /// Inserts all documents of an ordered batch on their shards at once, in one transaction; where the client does not wait for a majority each
    /// shard commits its own, and what then fails goes again without what has committed.
    fn together(&mut self, placed: &[Placed]) -> Result<Together> {
        let [Placed::Spread(sharded)] = placed else { return Ok(Together::InRuns) };
        let mut lots: BTreeMap<&ShardId, Vec<u32>> = BTreeMap::new();
        let (mut runs, mut last) = (0, None);
        for at in &self.left {
            // What has no key fails in its turn, and what is before it stays.
            let statement = self.batch.statements[*at as usize];
            let Ok(Aim::One(shard)) = self.aiming.aim(statement, false, sharded) else {
                return Ok(Together::InRuns);
            };
            if last.replace(shard) != Some(shard) {
                runs += 1;
            }
            lots.entry(shard).or_default().push(*at);
        }
        if runs <= RUNS_IN_A_ROW {
            return Ok(Together::InRuns);
        }
        let lot = |(shard, places)| Ok(Lot { to: self.op.addressed(sharded, shard)?, places, asked: false });
        let lots: Vec<Lot> = lots.into_iter().map(lot).collect::<Result<_>>()?;
        let (mut has_failed, mut committed, mut answers) = (false, Vec::new(), Vec::<A>::new());
        let done = within_each(self.op, &mut committed, || {
            let messages =
                lots.iter().map(|lot| (&lot.to, self.batch.message(self.op, &lot.to, &lot.places)));
            answers.clear();
            for (lot, answer) in lots.iter().zip(forward::exchange_all(self.op, messages.collect())) {
                let mut own = A::default();
                let taken = own.take(self.op, &lot.to.target, &lot.places, &answer?)?;
                if let Some((_, error)) = taken.stale {
                    return Err(error);
                }
                answers.push(own);
            }
            if answers.iter().any(A::has_failed) {
                has_failed = true;
                return Err(Error::new(Code::OPERATION_FAILED, "a document cannot be inserted"));
            }
            Ok(())
        });
        let is_there = |lot: &Lot| committed.iter().any(|name| name == lot.to.target.name());
        if done.is_err() && !committed.is_empty() {
            for (lot, own) in lots.iter().zip(answers).filter(|(lot, _)| is_there(lot)) {
                self.answers.add(own, Vec::new());
                self.left.retain(|at| lot.places.binary_search(at).is_err());
            }
            return match done {
                Err(error) if !is_transient(&error) && !is_stale(error.code()) => {
                    let places = Vec::from(std::mem::take(&mut self.left));
                    self.failed(vec![(places, error)]).map(|()| Together::Done)
                }
                _ => Ok(Together::Done),
            };
        }
        match done {
            Ok(((), concerns)) => {
                answers.into_iter().for_each(|own| self.answers.add(own, Vec::new()));
                self.answers.add(A::default(), concerns);
                self.left.clear();
                Ok(Together::Done)
            }
            Err(error) if is_stale(error.code()) => Ok(Together::Stale(error)),
            Err(error) if has_failed || error.code() == Code::TRANSACTION_TOO_LARGE => Ok(Together::InRuns),
            Err(error) => {
                let places = Vec::from(std::mem::take(&mut self.left));
                self.failed(vec![(places, error)]).map(|()| Together::Done)
            }
        }
    }

    /// Whether a statement about one document, which comes alone, looks where that is. Sent to all shards it might be done twice, or not at all, beside
    /// whoever gives the document another shard; many statements that look would wait for each other.
    fn looks_first(&self, at: u32) -> bool {
        self.batch.statements.len() == 1 && self.batch.is_single(at) && !self.op.in_transaction()
    }

    /// Whether shards are asked for a statement that goes to several of them.
    fn is_asked(&self, at: u32) -> bool {
        self.op.is_retryable_write() && !self.batch.inserts(at) && self.batch.is_single(at)
    }

    /// Asks what was executed before of the statements that are about one document and go to several shards.
    fn ask(&mut self, placed: &[Placed]) -> Result<Said> {
        if self.asked.has_all() {
            return Ok(Said::All);
        }
        let mut going = Vec::new();
        for at in self.left.iter().copied().filter(|at| self.is_asked(*at)).collect::<Vec<_>>() {
            if let Ok(Goes::Spread(Aim::Each(shards), sharded)) = self.goes(at, placed) {
                going.push(Going { at, sharded, shards });
            }
        }
        self.asked.ask::<A>(self.op, self.batch, &going)
    }

    /// Sends these, all at once, and takes in the answers.
    fn send(&mut self, placed: &[Placed], lots: &[Lot]) -> Result<Option<Stale>> {
        if lots.len() > 1 {
            self.op.choose_read_time();
        }
        let messages = lots.iter().map(|lot| {
            self.op.attempt.set(self.asked.attempt().filter(|_| lot.asked));
            (&lot.to, self.message(placed, lot))
        });
        let messages = messages.collect();
        self.op.attempt.set(None);
        let answers = forward::exchange_all(self.op, messages);
        let (mut stale, mut failed, mut over) = (None, Vec::new(), Vec::new());
        for (lot, answer) in lots.iter().zip(answers) {
            let taken = match answer {
                Ok(answer) => self.answers.take(self.op, &lot.to.target, &lot.places, &answer)?,
                Err(error) if is_stale(error.code()) => Taken { stale: Some((0, error)), ..Taken::default() },
                Err(error) if lot.asked && self.asked.has_given_way(self.op, &error) => {
                    self.left.extend(&lot.places);
                    continue;
                }
                Err(error) => {
                    let error = Attempts::for_client(error);
                    failed.push((lot.places.clone(), error));
                    continue;
                }
            };
            let done = match (taken.stale, taken.moving.first()) {
                (Some((from, error)), _) => {
                    stale = Some(Stale { namespace: self.batch.namespace_of(lot.places[0]), error });
                    from
                }
                // To the shard it is an error, behind which it executes nothing.
                (None, Some(first)) if self.batch.ordered || self.op.in_transaction() => first + 1,
                (None, _) => lot.places.len(),
            };
            let attempt = self.asked.attempt().filter(|_| lot.asked);
            let leaving = |at: &usize| Leaving { at: lot.places[*at], from: lot.to.clone(), attempt };
            self.moving.extend(taken.moving.iter().map(leaving));
            // A document that is to leave is as it was: the shard has done nothing of that statement.
            let leave: BTreeSet<usize> = taken.moving.iter().copied().collect();
            let executed = (0..done).filter(|at| !leave.contains(at)).map(|at| lot.places[at]);
            let executed: Vec<u32> = executed.collect();
            over.extend(taken.refused.iter().map(|at| lot.places[*at]));
            if taken.found == executed.len() as i64 {
                over.extend_from_slice(&executed);
            }
            self.multis.done_on(lot.to.target.name(), &executed, taken.found > 0);
            self.left.extend(&lot.places[done..]);
        }
        for (at, part) in self.multis.end_round(stale.is_some()) {
            if let Placed::Spread(sharded) = &placed[self.batch.namespace_of(at)] {
                self.multis.is_done(at, part, sharded);
            }
        }
        self.end_singles(over);
        self.failed(failed)?;
        Ok(stale)
    }

    /// Shards have found the documents of these statements. Where a statement is about one there is nothing left for others, wherever the
    /// document is by the time that they look.
    fn end_singles(&mut self, mut over: Vec<u32>) {
        over.retain(|at| self.multis.are_several(*at) && self.batch.is_single(*at));
        if !over.is_empty() && !self.op.in_transaction() {
            self.left.retain(|at| !over.contains(at));
        }
    }

    fn message(&self, placed: &[Placed], lot: &Lot) -> sheaf_client::Message {
        if let Placed::Spread(sharded) = &placed[self.batch.namespace_of(lot.places[0])]
            && let Some(narrowed) =
                self.multis.narrowed(self.batch, sharded, lot.to.target.name(), &lot.places)
        {
            let statements = narrowed.iter().map(|statement| statement.as_raw());
            return self.batch.message_of(self.op, &lot.to, &lot.places, statements);
        }
        self.batch.message(self.op, &lot.to, &lot.places)
    }

    /// Shards have answered errors that are about all that they were sent, or nothing.
    ///
    /// Errors: these, where the command has done nothing else, or happens once however often it is sent, or is one statement of a
    /// transaction. Otherwise they are those of its statements, so that the client learns what has happened.
    fn failed(&mut self, failed: Vec<(Vec<u32>, Error)>) -> Result<()> {
        for (places, error) in failed {
            let stops = self.op.in_transaction() || self.op.is_retryable_write() || self.answers.is_empty();
            if stops || matches!(error.code(), Code::MAX_TIME_MS_EXPIRED | Code::INTERRUPTED) {
                return Err(error);
            }
            let meant = if self.batch.ordered { &places[..1] } else { &places[..] };
            meant.iter().for_each(|at| self.answers.fail(*at, &error));
        }
        Ok(())
    }
}
