//! `allowPartialResults`: what comes in from the shards that can be reached, within the time that there is. The others are left out, and
//! the answer says so.

use std::time::{Duration, Instant};

use sheaf_client::Message;
use sheaf_cluster::{Answer, Asker, Call};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::reply::Reply;

use crate::addressed::Addressed;
use crate::forward::{self, Body};
use crate::gather::{self, Remote, is_out_of_reach};
use crate::op::Operation;

/// How often it is looked which shards have answered: soon at first, as most answers come soon.
const LOOKS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(5));

/// What remains of `maxTimeMS`, at the least, for what comes of the answers.
const REST: Duration = Duration::from_millis(20);

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

/// A request to one shard, on its way.
struct UnderWay<'t> {
    at: usize,
    to: &'t Addressed,
    call: Call,
    message: Message,
}

/// What became of the request at each of these, in the same order. Who has a member that can be asked is asked first, and who has answered
/// is received first: one that says nothing takes up the time, but not the others' answers.
fn ask_reachable(op: &Operation<'_>, all: &[Addressed], body: &Body<'_>) -> Result<Vec<Result<Answer>>> {
    if all.len() > 1 {
        op.choose_read_time();
    }
    let left = op.time_left();
    let until = left.map(|left| Instant::now() + left.saturating_sub(REST.max(left / 10)));
    let go_on = || match until {
        Some(until) if Instant::now() >= until => {
            op.check_interrupt()?;
            Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time"))
        }
        _ => op.check_interrupt(),
    };
    let asker = op.asker(&go_on);
    let mut order: Vec<(usize, &Addressed)> = all.iter().enumerate().collect();
    order.sort_by_key(|(_, to)| !to.target.set().can_answer(&asker.preference));
    let mut answers: Vec<Option<Result<Answer>>> = all.iter().map(|_| None).collect();
    let mut under_way = Vec::with_capacity(all.len());
    for (at, to) in order {
        let mut message = forward::message(op, to, body);
        forward::note_participant(op, &to.target);
        match op.blocking(|| Call::send(to.target.set(), &mut message, &asker)) {
            Ok(call) => under_way.push(UnderWay { at, to, call, message }),
            Err(error) => answers[at] = Some(Err(to.unanswered(error))),
        }
    }
    op.blocking(|| receive(op, under_way, &asker, until, &mut answers))?;
    // One that was missing would put the others in its place.
    Ok(answers.into_iter().map(|answer| answer.expect("each was asked, and received in the end")).collect())
}

fn receive(
    op: &Operation<'_>,
    mut under_way: Vec<UnderWay<'_>>,
    asker: &Asker<'_>,
    until: Option<Instant>,
    answers: &mut [Option<Result<Answer>>],
) -> Result<()> {
    let mut pause = LOOKS.0;
    while !under_way.is_empty() {
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        let ready = under_way.extract_if(.., |one| is_late || one.call.is_ready());
        let ready: Vec<UnderWay<'_>> = ready.collect();
        if ready.is_empty() {
            op.check_interrupt()?;
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOKS.1);
        }
        for one in ready {
            let UnderWay { at, to, call, mut message } = one;
            let answer = call.finish(&mut message, asker).map_err(|error| to.unanswered(error));
            answers[at] = Some(answer.and_then(|answer| forward::check(op, &to.target, answer)));
        }
    }
    Ok(())
}
