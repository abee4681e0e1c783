//! Decisions on their way to the shards: of several transactions at once, where more are decided than messages are under way.
//!
//! A shard has one message with decisions at a time, and answers when they are applied; what is decided meanwhile goes with the next one.
//! That majorities have them is asked for later, for many at once: then they are settled. Where a shard does not have one, its own
//! [`Commit`](crate::commit) goes on as if nothing had been sent.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sheaf_client::Message;
use sheaf_cluster::{Asker, Call, Shard, error_in};
use sheaf_errors::Result;
use sheaf_shard::{ClusterTime, Decisions, Request, ShardId, TransactionId};

use crate::commit::{self, ANSWER, SEND};
use crate::decided::{Applied, Otherwise, Telling, Waiting};
use crate::router::Router;

/// No more are in one message.
const AT_ONCE: usize = 500;

/// No more are confirmed, or told to be settled, by one message: a shard looks at all of a message before it answers.
const CONFIRMED: usize = 5000;

/// Others may ask again when it is over, however it ends.
struct Round<'a>(&'a AtomicBool);

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A message that was sent.
type Sent = Option<(Call, Message)>;

impl Router {
    /// Tells these shards that a transaction is committed at a time; `otherwise` does it where that fails. The first message goes out at
    /// once, by this thread.
    pub(crate) fn tell_decision(
        self: &Arc<Self>,
        id: &TransactionId,
        at: ClusterTime,
        shards: Vec<Shard>,
        otherwise: Otherwise,
    ) {
        let telling = Arc::new(Telling {
            writers: shards.iter().map(|shard| ShardId::new(&*shard.name)).collect(),
            left: AtomicUsize::new(shards.len()),
            failed: AtomicBool::new(false),
            otherwise: Mutex::new(Some(otherwise)),
        });
        for shard in shards {
            let name = ShardId::new(&*shard.name);
            let waiting = Waiting { id: id.clone(), at, of: telling.clone() };
            let batch = {
                let mut boxes = self.decided.boxes.lock();
                let outbox = boxes.entry(name.clone()).or_default();
                outbox.waiting.push(waiting);
                if mem::replace(&mut outbox.busy, true) {
                    continue;
                }
                mem::take(&mut outbox.waiting)
            };
            let sent = self.send_decisions(&shard, &batch);
            let router = self.clone();
            tokio::task::spawn_blocking(move || router.bring_decisions(&shard, &name, batch, sent));
        }
    }

    fn send_decisions(&self, shard: &Shard, batch: &[Waiting]) -> Sent {
        let all = batch.iter().map(|waiting| (waiting.id.clone(), waiting.at)).collect();
        let mut message = commit::message(self, &Decisions { all, applied: true }.command());
        let began = Instant::now();
        let go_on = || commit::limited(&|| self.until_end(), began, SEND);
        let asker = Asker { preference: Default::default(), again: true, go_on: &go_on };
        let call = Call::send(&shard.set, &mut message, &asker).ok()?;
        Some((call, message))
    }

    /// Sees to it that a shard gets these decisions, and what comes together meanwhile.
    fn bring_decisions(self: &Arc<Self>, shard: &Shard, name: &ShardId, batch: Vec<Waiting>, sent: Sent) {
        let (mut batch, mut sent) = (batch, sent);
        loop {
            let applied = sent.and_then(|sent| self.answered(sent)).unwrap_or_default();
            for (at, waiting) in batch.into_iter().enumerate() {
                self.told(waiting, applied.get(at).is_some_and(|applied| *applied));
            }
            {
                let mut boxes = self.decided.boxes.lock();
                let outbox = boxes.entry(name.clone()).or_default();
                if outbox.waiting.is_empty() {
                    outbox.busy = false;
                    return;
                }
                let some = outbox.waiting.len().min(AT_ONCE);
                batch = outbox.waiting.drain(..some).collect();
            }
            sent = self.send_decisions(shard, &batch);
        }
    }

    /// Which decisions a shard has, by its answer.
    fn answered(&self, (call, mut message): (Call, Message)) -> Option<Vec<bool>> {
        let began = Instant::now();
        let go_on = || commit::limited(&|| self.until_end(), began, ANSWER);
        let asker = Asker { preference: Default::default(), again: true, go_on: &go_on };
        let answer = call.finish(&mut message, &asker).ok()?;
        self.clock.see(answer.reply());
        if error_in(answer.reply()).is_some() {
            return None;
        }
        Decisions::parse_answer(answer.reply())
    }

    /// A shard has applied a decision, or nobody knows whether it has.
    fn told(&self, waiting: Waiting, applied: bool) {
        let Waiting { id, at, of } = waiting;
        if !applied {
            of.failed.store(true, Ordering::Release);
        }
        if of.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if !of.failed.load(Ordering::Acquire) {
            self.decided.applied.lock().push(Applied { id, at, writers: of.writers.clone() });
        } else if let Some(otherwise) = of.otherwise.lock().take() {
            tokio::task::spawn_blocking(otherwise);
        }
    }

    /// Asks whether majorities have what was applied, and tells the shards what is settled, on a thread of its own; not before the last
    /// time is over. What is not told the shards find out by themselves.
    pub(crate) fn settle_decided(self: &Arc<Self>) {
        let is_idle = self.decided.applied.lock().is_empty() && self.settled.lock().is_empty();
        if is_idle || self.decided.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let router = self.clone();
        tokio::task::spawn_blocking(move || {
            // A panic in here ends nothing but this round.
            let _round = Round(&router.decided.asking);
            // What is applied meanwhile waits for the next round.
            let count = router.decided.applied.lock().len();
            for _ in 0..count.div_ceil(CONFIRMED) {
                router.confirm_decided();
            }
            let settled = mem::take(&mut *router.settled.lock());
            router.settle(settled);
        });
    }

    fn confirm_decided(&self) {
        let applied = self.decided.take_applied(CONFIRMED);
        let mut by_shard: BTreeMap<&ShardId, Vec<usize>> = BTreeMap::new();
        for (at, one) in applied.iter().enumerate() {
            one.writers.iter().for_each(|writer| by_shard.entry(writer).or_default().push(at));
        }
        let began = Instant::now();
        let go_on = || commit::limited(&|| self.until_end(), began, SEND);
        let asker = Asker { preference: Default::default(), again: true, go_on: &go_on };
        let send = |(name, of): (&ShardId, Vec<usize>)| {
            let all = of.iter().map(|at| (applied[*at].id.clone(), applied[*at].at)).collect();
            let mut message = commit::message(self, &Decisions { all, applied: false }.command());
            let sent = self.directory.shard(name.as_str(), &go_on);
            let sent = sent.and_then(|shard| Call::send(&shard.set, &mut message, &asker));
            (of, sent.ok().map(|call| (call, message)))
        };
        let under_way: Vec<(Vec<usize>, Sent)> = by_shard.into_iter().map(send).collect();
        let mut unsure = BTreeSet::new();
        for (of, sent) in under_way {
            let has = sent.and_then(|sent| self.answered(sent)).unwrap_or_default();
            let lacks = |nth: &usize| !has.get(*nth).is_some_and(|has| *has);
            unsure.extend(of.iter().enumerate().filter(|(nth, _)| lacks(nth)).map(|(_, at)| *at));
        }
        let mut settled = self.settled.lock();
        for (_, one) in applied.iter().enumerate().filter(|(at, _)| !unsure.contains(at)) {
            for writer in &one.writers {
                settled.entry(writer.clone()).or_default().push(one.id.clone());
            }
        }
    }

    fn settle(&self, settled: BTreeMap<ShardId, Vec<TransactionId>>) {
        for (to, ids) in settled {
            let began = Instant::now();
            let go_on = || commit::limited(&|| self.until_end(), began, SEND);
            for ids in ids.chunks(CONFIRMED) {
                let command = Request::Settled { ids: ids.to_vec() }.command();
                let told: Result<_> = self.directory.shard(to.as_str(), &go_on).and_then(|shard| {
                    sheaf_cluster::run(&shard.set, &self.clock, "admin", &command, true, &go_on)
                });
                if let Err(error) = told {
                    tracing::debug!(%error, shard = %to, "a shard was not told what is settled");
                    break;
                }
            }
        }
    }
}
