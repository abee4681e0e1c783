//! The end of transactions that have written on several shards: the machine of `sheaf_shard` with connections.
//!
//! The client's own thread drives it. What it does not bring to its end, because the client has gone or this router dies, the shards
//! bring to its end by themselves.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, doc};
use sheaf_client::Message;
use sheaf_cluster::{Asker, Call, Shard, error_in};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::{
    Answer, ClusterTime, Committer, CommitterEffect, Executed, Outcome, Part, Request, ShardId, TransactionId,
};

use crate::op::Operation;
use crate::router::Router;

/// How long a shard without a primary holds up what the others are to be told.
const SEND: Duration = Duration::from_secs(1);

/// How long an answer is waited for before the request is sent again.
const ANSWER: Duration = Duration::from_secs(5);

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

/// Commits a transaction over several shards; returns when all of them have the commit.
///
/// Errors: `NoSuchTransaction`, if it was aborted; those of the operation, after which the outcome is not known.
pub fn commit(op: &Operation<'_>, id: &TransactionId, participants: &[Participating]) -> Result<ClusterTime> {
    let read_at = op.router.clock.now().map_or(ClusterTime::ZERO, ClusterTime::from);
    let part = |taking: &Participating| Part {
        shard: ShardId::new(&*taking.shard.name),
        executed: taking.executed,
        wrote: taking.wrote,
        confirmed: false,
    };
    let mut committer = Committer::new();
    committer.commit(id.clone(), participants.iter().map(part).collect(), read_at);
    let shards: BTreeMap<ShardId, Shard> =
        participants.iter().map(|taking| (ShardId::new(&*taking.shard.name), taking.shard.clone())).collect();
    let committed = drive(op, &mut committer, &shards);
    if committed.is_ok() && committer.running() == 0 {
        let mut settled = op.router.settled.lock();
        let writers = participants.iter().filter(|taking| taking.wrote);
        for writer in writers {
            settled.entry(ShardId::new(&*writer.shard.name)).or_default().push(id.clone());
        }
    }
    committed
}

/// Finds out how a transaction has ended that another router was to commit.
///
/// Errors: `NoSuchTransaction`, if it was aborted; `TransactionTooOld`, if its shard knows nothing of it any more.
pub fn recover(op: &Operation<'_>, id: &TransactionId, shard: &Shard) -> Result<ClusterTime> {
    let name = ShardId::new(&*shard.name);
    let mut committer = Committer::new();
    committer.recover(id.clone(), name.clone());
    drive(op, &mut committer, &BTreeMap::from([(name, shard.clone())]))
}

/// Sends what the machine wants sent and tells it the answers, until nothing of the transaction is left to do.
fn drive(
    op: &Operation<'_>,
    committer: &mut Committer,
    shards: &BTreeMap<ShardId, Shard>,
) -> Result<ClusterTime> {
    let began = Instant::now();
    let (mut outcome, mut refusal) = (None, None);
    loop {
        let mut under_way = Vec::new();
        for effect in committer.poll() {
            match effect {
                CommitterEffect::Send { to, request } => {
                    under_way.extend(shards.get(&to).and_then(|shard| send(op, shard, to, &request)));
                }
                CommitterEffect::Ended { outcome: ended, .. } => outcome = Some(ended),
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
                    sheaf_front::log::error("TXN", log_id, "router", text, Some(about));
                }
            }
        }
        if under_way.is_empty() {
            if committer.running() == 0 {
                break;
            }
            op.check_interrupt().map_err(unknown)?;
            std::thread::sleep(PAUSE);
        }
        for sent in under_way {
            let to = sent.to.clone();
            match finish(op, sent)? {
                Said::Answer(id, answer) => committer.answered(&to, &id, answer),
                Said::Refused(error) => refusal = Some(error),
                Said::Nothing => {}
            }
        }
        committer.tick(began.elapsed().as_millis() as u64);
    }
    match outcome {
        Some(Outcome::Committed(at)) => Ok(at),
        Some(Outcome::Aborted) => Err(refusal.unwrap_or_else(aborted)),
        None => Err(unknown(Error::new(
            Code::HOST_UNREACHABLE,
            "not all shards of the transaction have answered",
        ))),
    }
}

/// Sends a request. A shard that has no primary now is sent it again later.
fn send(op: &Operation<'_>, shard: &Shard, to: ShardId, request: &Request) -> Option<Sent> {
    let began = Instant::now();
    let go_on = || limited(op, began, SEND);
    let mut message = message(op.router, &request.command());
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
fn finish(op: &Operation<'_>, mut sent: Sent) -> Result<Said> {
    let began = Instant::now();
    let go_on = || limited(op, began, ANSWER);
    let asker = Asker { preference: Default::default(), again: true, go_on: &go_on };
    match sent.call.finish(&mut sent.message, &asker) {
        Ok(answer) => {
            op.heard(answer.reply());
            match (error_in(answer.reply()), sent.id.zip(Answer::parse(answer.reply()))) {
                (Some(error), _) if error.code() == Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION => {
                    Ok(Said::Refused(error))
                }
                (None, Some((id, answer))) => Ok(Said::Answer(id, answer)),
                _ => Ok(Said::Nothing),
            }
        }
        Err(_) => op.check_interrupt().map_err(unknown).map(|()| Said::Nothing),
    }
}

fn limited(op: &Operation<'_>, began: Instant, limit: Duration) -> Result<()> {
    op.check_interrupt()?;
    match began.elapsed() < limit {
        true => Ok(()),
        false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
    }
}

fn message(router: &Router, command: &DocBuf) -> Message {
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
    /// Tells shards which commits all of them have, now and then until shutdown. What is not told they find out by themselves.
    pub async fn keep_settling(self: Arc<Self>) {
        const EVERY: Duration = Duration::from_millis(100);
        while !self.is_shutting_down() {
            let settled = mem::take(&mut *self.settled.lock());
            if !settled.is_empty() {
                let router = self.clone();
                // A panic in there ends nothing but this round.
                let _ = tokio::task::spawn_blocking(move || router.settle(settled)).await;
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = self.until_shutdown() => {}
            }
        }
    }

    fn settle(&self, settled: BTreeMap<ShardId, Vec<TransactionId>>) {
        for (to, ids) in settled {
            let began = Instant::now();
            let go_on = || match self.is_shutting_down() || began.elapsed() > SEND {
                true => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
                false => Ok(()),
            };
            let command = Request::Settled { ids }.command();
            let told = self.directory.shard(to.as_str(), &go_on).and_then(|shard| {
                sheaf_cluster::run(&shard.set, &self.clock, "admin", &command, true, &go_on)
            });
            if let Err(error) = told {
                tracing::debug!(%error, shard = %to, "a shard was not told what is settled");
            }
        }
    }
}
