//! `allowPartialResults`: what comes in from the shards that can be reached, within the time that there is. The others are left out, and
//! the answer says so.

use std::time::{Duration, Instant};

use sheaf_bson::RawDoc;
use sheaf_client::Message;
use sheaf_cluster::{Answer, Asker, Call, ELECTION, Patience};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::reply::Reply;

use crate::addressed::Addressed;
use crate::forward::{self, Body};
use crate::gather::{self, Remote, is_out_of_reach};
use crate::op::Operation;

/// What remains of `maxTimeMS`, at the least, for what comes of the answers.
const REST: Duration = Duration::from_millis(20);

/// Whether the operation takes what there is without shards that cannot be reached, as its command says, or that by which its cursor was
/// opened.
pub fn allows_partial(op: &Operation<'_>, command: RawDoc<'_>) -> bool {
    command.get("allowPartialResults").is_some_and(|flag| flag.truthy()) && !op.in_transaction()
}

/// Opens a cursor by the same command on each of these that answers, and tells whether there are others.
///
/// Errors: those that somebody has answered; those of the way there, except that there is none.
pub fn open_reachable(op: &Operation<'_>, all: &[Addressed], body: &Body<'_>) -> Result<(Vec<Remote>, bool)> {
    let answers = ask_reachable(op, all, body)?;
    let there: Vec<_> = all
        .iter()
        .cloned()
        .zip(answers)
        .filter(|(_, answer)| !answer.as_ref().is_err_and(is_out_of_reach))
        .collect();
    let (to, answers): (Vec<Addressed>, Vec<_>) = there.into_iter().unzip();
    let partial = to.len() < all.len();
    Ok((gather::opened(&op.router.abandoned, &to, answers)?, partial))
}

/// Runs a `find` on a collection of one shard: without that, nothing is found.
///
/// Errors: as [`open_reachable`].
pub fn to_one(op: &Operation<'_>, to: &Addressed, namespace: &str) -> Result<Reply> {
    let answers = ask_reachable(op, std::slice::from_ref(to), &Body::of(op))?;
    match answers.into_iter().next().expect("one was asked") {
        Ok(answer) => forward::reply(op, &to.target, &answer),
        Err(error) if is_out_of_reach(&error) => Ok(Reply::ok().with_document("cursor", |cursor| {
            drop(cursor.array("firstBatch"));
            cursor.append("partialResultsReturned", true).append("id", 0i64).append("ns", namespace);
        })),
        Err(error) => Err(error),
    }
}

/// A request to one shard.
struct Request<'t> {
    at: usize,
    to: &'t Addressed,
    message: Message,
    patience: Patience,
}

/// The moment at which those that have not answered are left out, of an operation that has so much time.
pub fn last_moment(left: Option<Duration>) -> Option<Instant> {
    left.map(|left| Instant::now() + left.saturating_sub(REST.max(left / 10)))
}

/// What became of the request at each of these, in the same order. Who has a member that can be asked is asked first, and who has answered
/// is received first: one that says nothing takes up the time, but not the others' answers. One that has nobody to be asked is waited for
/// no longer than an election takes.
fn ask_reachable(op: &Operation<'_>, all: &[Addressed], body: &Body<'_>) -> Result<Vec<Result<Answer>>> {
    if all.len() > 1 {
        op.choose_read_time();
    }
    let (began, until) = (Instant::now(), last_moment(op.time_left()));
    let go_on = || {
        op.check_interrupt()?;
        match until {
            Some(until) if Instant::now() >= until => {
                Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time"))
            }
            _ => Ok(()),
        }
    };
    let asker = op.asker(&go_on);
    let mut order: Vec<(usize, &Addressed)> = all.iter().enumerate().collect();
    order.sort_by_cached_key(|(_, to)| !to.target.set().can_answer(&asker.preference));
    let mut answers: Vec<Option<Result<Answer>>> = all.iter().map(|_| None).collect();
    let mut under_way = Vec::with_capacity(all.len());
    for (at, to) in order {
        let mut message = forward::message(op, to, body);
        forward::note_participant(op, &to.target);
        let (set, patience) = (to.target.set(), Patience::since(began, ELECTION));
        let go_on = || go_on().and_then(|()| patience.check(set, &asker.preference));
        match op.blocking(|| Call::send(set, &mut message, &Asker { go_on: &go_on, ..asker })) {
            Ok(call) => under_way.push((Request { at, to, message, patience }, call)),
            Err(error) => answers[at] = Some(Err(to.unanswered(error))),
        }
    }
    let take = |Request { at, to, mut message, patience }: Request<'_>, call: Call| {
        let go_on = || go_on().and_then(|()| patience.check(to.target.set(), &asker.preference));
        let answer = call.finish(&mut message, &Asker { go_on: &go_on, ..asker });
        let answer = answer.map_err(|error| to.unanswered(error));
        answers[at] = Some(answer.and_then(|answer| forward::check(op, &to.target, answer)));
        Ok(())
    };
    op.blocking(|| gather::as_they_come(under_way, until, &|| op.check_interrupt(), take))?;
    // One that was missing would put the others in its place.
    Ok(answers.into_iter().map(|answer| answer.expect("each was asked, and received in the end")).collect())
}
