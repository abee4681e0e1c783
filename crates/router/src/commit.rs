//! The end of transactions that have written on several shards: the machine of `sheaf_shard` with connections.
//!
//! The client's own thread drives it until it is decided, and sends the decision; a thread that nobody waits for sees to it that all shards
//! get it. What is not brought to its end, because the client has gone or this router dies, the shards bring to its end by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{ArrayBuf, DocBuf, Timestamp, Value, doc};
use sheaf_client::Message;
use sheaf_cluster::{Asker, Call, GoOn, Shard, error_in};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::{
    Answer, ClusterTime, Committer, CommitterEffect, Executed, Outcome, Part, Request, ShardId, TransactionId,
};

use crate::op::Operation;
use crate::router::Router;

/// How long a shard without a primary holds up what the others are to be told.
pub(crate) const SEND: Duration = Duration::from_secs(1);

/// How long shards are told which states to keep.
const HOLD: Duration = Duration::from_millis(300);

/// How long an answer is waited for before the request is sent again.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// So many decided commits are brought to their ends at once by other threads than their clients'.
const FINISHED_AT_ONCE: usize = 64;

/// How long is waited before something is sent again.
const PAUSE: Duration = Duration::from_millis(20);

/// Commits that all their shards have, by shard: to be told to them.
pub type Settled = Mutex<BTreeMap<ShardId, Vec<TransactionId>>>;

/// A shard that takes part in a transaction.
pub struct Participating {
    /// The shard.
    pub shard: Shard,
    /// What was executed there.
    pub executed: Executed,
    /// Whether any of them writes.
    pub wrote: bool,
}

/// A request that was sent.
struct Sent {
    to: ShardId,
    id: Option<TransactionId>,
    message: Message,
    call: Call,
}

/// Commits a transaction over several shards that has read them as of a time; returns when it is decided. Who reads on a primary what
/// it has written waits there until it is applied.
///
/// Errors: `NoSuchTransaction`, if it was aborted; those of the operation, after which the outcome is not known.
pub fn commit(
    op: &Operation<'_>,
    id: &TransactionId,
    participants: &[Participating],
    read_at: Timestamp,
) -> Result<ClusterTime> {
    let part = |taking: &Participating| Part {
        shard: ShardId::new(&*taking.shard.name),
        executed: taking.executed,
        wrote: taking.wrote,
        confirmed: false,
    };
    let parts: Vec<Part> = participants.iter().map(part).collect();
    let writers: Vec<ShardId> =
        parts.iter().filter(|part| part.wrote).map(|part| part.shard.clone()).collect();
    let mut committer = Committer::new();
    committer.commit(id.clone(), parts, read_at.into());
    let shards =
        participants.iter().map(|taking| (ShardId::new(&*taking.shard.name), taking.shard.clone())).collect();
    Commit::new(op.router, committer, shards, writers).decide(op)
}

/// Finds out how a transaction has ended that another router was to commit.
///
/// Errors: `NoSuchTransaction`, if it was aborted; `TransactionTooOld`, if its shard knows nothing of it any more.
pub fn recover(op: &Operation<'_>, id: &TransactionId, shard: &Shard) -> Result<ClusterTime> {
    let name = ShardId::new(&*shard.name);
    let mut committer = Committer::new();
    committer.recover(id.clone(), name.clone());
    Commit::new(op.router, committer, BTreeMap::from([(name, shard.clone())]), Vec::new()).decide(op)
}

/// A commit that is under way.
struct Commit {
    router: Arc<Router>,
    committer: Committer,
    shards: BTreeMap<ShardId, Shard>,
    /// Who has written.
    writers: Vec<ShardId>,
    began: Instant,
    outcome: Option<Outcome>,
    /// What the transaction has done cannot be prepared, however often it is tried.
    refusal: Option<Error>,
    /// It is committed, and the shards are to be told; whether they have been told together with others' decisions.
    decision: Option<TransactionId>,
    is_told: bool,
}

impl Commit {
    fn new(
        router: &Arc<Router>,
        committer: Committer,
        shards: BTreeMap<ShardId, Shard>,
        writers: Vec<ShardId>,
    ) -> Commit {
        let (router, began) = (router.clone(), Instant::now());
        Commit {
            router,
            committer,
            shards,
            writers,
            began,
            outcome: None,
            refusal: None,
            decision: None,
            is_told: false,
        }
    }

    /// Goes on until the outcome is known. What the shards are told of it is on its way then, and is brought to its end by others.
    fn decide(mut self, op: &Operation<'_>) -> Result<ClusterTime> {
        let go_on = || op.check_interrupt();
        loop {
            let under_way = self.send(&go_on)?;
            if let (Some(Outcome::Committed(at)), Some(id)) = (self.outcome, self.decision.take()) {
                self.tell_decision(id, at);
                return Ok(at);
            }
            if let Some(outcome) = self.outcome {
                let refusal = self.refusal.take();
                self.finish_elsewhere(under_way, &go_on);
                return match outcome {
                    Outcome::Committed(at) => Ok(at),
                    Outcome::Aborted => Err(refusal.unwrap_or_else(aborted)),
                };
            }
            if under_way.is_empty() && self.committer.running() == 0 {
                let text = "not all shards of the transaction have answered";
                return Err(unknown(Error::new(Code::HOST_UNREACHABLE, text)));
            }
            self.receive(under_way, &go_on)?;
        }
    }

    /// Has the shards told of a commit. Where that fails, this goes on.
    fn tell_decision(mut self, id: TransactionId, at: ClusterTime) {
        self.is_told = true;
        let router = self.router.clone();
        let shards = self.writers.iter().filter_map(|writer| self.shards.get(writer).cloned()).collect();
        let otherwise = move || {
            let router = self.router.clone();
            // Those that are too many are left to the shards.
            if router.finishing.fetch_add(1, Ordering::AcqRel) < FINISHED_AT_ONCE {
                self.finish(Vec::new(), &|| router.until_end());
            }
            router.finishing.fetch_sub(1, Ordering::AcqRel);
        };
        router.tell_decision(&id, at, shards, Box::new(otherwise));
    }

    /// Brings the rest to its end, on a thread that no client waits for unless there are too many of them.
    fn finish_elsewhere(mut self, under_way: Vec<Sent>, go_on: GoOn<'_>) {
        let router = self.router.clone();
        if router.finishing.fetch_add(1, Ordering::AcqRel) < FINISHED_AT_ONCE {
            tokio::task::spawn_blocking(move || {
                let router = self.router.clone();
                self.finish(under_way, &|| router.until_end());
                router.finishing.fetch_sub(1, Ordering::AcqRel);
            });
        } else {
            self.finish(under_way, go_on);
            router.finishing.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Goes on until all shards have the outcome. What is not brought to its end here the shards bring to its end by themselves.
    fn finish(&mut self, mut under_way: Vec<Sent>, go_on: GoOn<'_>) {
        loop {
            if self.receive(under_way, go_on).is_err() {
                return;
            }
            let Ok(more) = self.send(go_on) else { return };
            if more.is_empty() && self.committer.running() == 0 {
                break;
            }
            under_way = more;
        }
        // Nothing of a commit that was given up: a shard that forgets it could not tell the others how it has ended.
        let mut settled = self.router.settled.lock();
        for (writer, ids) in self.committer.take_settled() {
            settled.entry(writer).or_default().extend(ids);
        }
    }

    /// Sends what the machine wants sent.
    ///
    /// Errors: `TransactionTooOld`, if nothing is known of the transaction any more.
    fn send(&mut self, go_on: GoOn<'_>) -> Result<Vec<Sent>> {
        let mut under_way = Vec::new();
        for effect in self.committer.poll() {
            match effect {
                // The first time it goes with others'.
                CommitterEffect::Send { request: Request::Commit { id, .. }, .. } if !self.is_told => {
                    self.decision = Some(id);
                }
                CommitterEffect::Send { to, request } => {
                    let shard = self.shards.get(&to);
                    under_way.extend(shard.and_then(|shard| send(&self.router, go_on, shard, to, &request)));
                }
                CommitterEffect::Ended { outcome: ended, .. } => self.outcome = Some(ended),
                CommitterEffect::Forgotten { id } => {
                    let text =
                        format!("Transaction {} is over, and nothing is known of it any more", id.number);
                    return Err(Error::new(Code::TRANSACTION_TOO_OLD, text));
                }
                CommitterEffect::Contradiction { id, what } => {
                    let about = doc! { "transaction": &format!("{id:?}"), "what": &what };
                    let (log_id, text) = (
                        sheaf_front::log::ids::SHARDS_CONTRADICT,
                        "Shards contradict each other about a transaction",
                    );
                    sheaf_front::log::seldom::error("TXN", log_id, "router", text, about);
                }
            }
        }
        Ok(under_way)
    }

    /// Receives what the shards say to what was sent, and tells it to the machine; waits a little if nothing was sent.
    fn receive(&mut self, under_way: Vec<Sent>, go_on: GoOn<'_>) -> Result<()> {
        if under_way.is_empty() && self.committer.running() > 0 {
            go_on().map_err(unknown)?;
            std::thread::sleep(PAUSE);
        }
        for sent in under_way {
            let to = sent.to.clone();
            match finish(&self.router, go_on, sent)? {
                Said::Answer(id, answer) => self.committer.answered(&to, &id, answer),
                Said::Refused(error) => self.refusal = Some(error),
                Said::Nothing => {}
            }
        }
        self.committer.tick(self.began.elapsed().as_millis() as u64);
        Ok(())
    }
}

/// Sends a request. A shard that has no primary now is sent it again later.
fn send(router: &Router, go_on: GoOn<'_>, shard: &Shard, to: ShardId, request: &Request) -> Option<Sent> {
    let began = Instant::now();
    let go_on = || limited(go_on, began, SEND);
    let mut message = message(router, &request.command());
    let asker = Asker { preference: Default::default(), again: true, go_on: &go_on };
    let call = Call::send(&shard.set, &mut message, &asker).ok()?;
    Some(Sent { to, id: request.id().cloned(), message, call })
}

/// What a shard has said.
enum Said {
    Answer(TransactionId, Answer),
    /// What the transaction has done cannot be prepared, however often it is tried.
    Refused(Error),
    /// Nothing that says anything: it is asked again.
    Nothing,
}

/// Receives what a shard says.
fn finish(router: &Router, go_on: GoOn<'_>, mut sent: Sent) -> Result<Said> {
    let began = Instant::now();
    let limited = || limited(go_on, began, ANSWER);
    let asker = Asker { preference: Default::default(), again: true, go_on: &limited };
    match sent.call.finish(&mut sent.message, &asker) {
        Ok(answer) => {
            router.clock.see(answer.reply());
            match (error_in(answer.reply()), sent.id.zip(Answer::parse(answer.reply()))) {
                (Some(error), _) if error.code() == Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION => {
                    Ok(Said::Refused(error))
                }
                (None, Some((id, answer))) => Ok(Said::Answer(id, answer)),
                _ => Ok(Said::Nothing),
            }
        }
        Err(_) => go_on().map_err(unknown).map(|()| Said::Nothing),
    }
}

/// Errors: the time is over; those of `go_on`.
pub(crate) fn limited(go_on: GoOn<'_>, began: Instant, limit: Duration) -> Result<()> {
    go_on()?;
    match began.elapsed() < limit {
        true => Ok(()),
        false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
    }
}

/// A command to a shard.
pub(crate) fn message(router: &Router, command: &DocBuf) -> Message {
    let mut message = Message::new();
    message.begin(0, |body| {
        body.append_all(command.as_raw());
        router.clock.append(body, None);
        body.append("$db", "admin");
    });
    message
}

fn aborted() -> Error {
    Error::new(
        Code::NO_SUCH_TRANSACTION,
        "The transaction was aborted: one of its shards could not commit it",
    )
    .with_label("TransientTransactionError")
}

/// A commit is under way and may come to either end.
fn unknown(error: Error) -> Error {
    error.with_label("UnknownTransactionCommitResult")
}

impl Router {
    /// Errors: the router ends.
    pub(crate) fn until_end(&self) -> Result<()> {
        if self.is_shutting_down() { Err(sheaf_front::front::shutting_down_error()) } else { Ok(()) }
    }

    /// Tells shards which commits all of them have and which states are to be kept, now and then until shutdown. What is not told they
    /// find out by themselves.
    pub async fn keep_settling(self: Arc<Self>) {
        const EVERY: Duration = Duration::from_millis(100);
        while !self.is_shutting_down() {
            self.settle_decided();
            let times = self.open_times.due();
            if !times.is_empty() {
                let router = self.clone();
                // A panic in there ends nothing but this round.
                let _ = tokio::task::spawn_blocking(move || router.hold(&times)).await;
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = self.until_shutdown() => {}
            }
        }
    }

    /// Has all shards keep their states at these times for a while.
    fn hold(&self, times: &[Timestamp]) {
        if times.is_empty() {
            return;
        }
        let began = Instant::now();
        let go_on = || limited(&|| self.until_end(), began, HOLD);
        let Ok(sets) = self.directory.sets(&go_on) else { return };
        let list = ArrayBuf::of(times.iter().copied().map(Value::Timestamp));
        let command = doc! { "holdSnapshots": 1, "times": Value::Array(list.as_raw()) };
        let asker = Asker { preference: Default::default(), again: true, go_on: &go_on };
        let under_way = sets.into_iter().filter_map(|shard| {
            let mut message = message(self, &command);
            Some((Call::send(&shard.set, &mut message, &asker).ok()?, message))
        });
        let under_way: Vec<_> = under_way.collect();
        for (call, mut message) in under_way {
            // Who is not told finds the state gone when he asks for it, and is told to begin anew.
            let _ = call.finish(&mut message, &asker);
        }
    }
}
