//! The commit pipeline: order, log, apply, publish.
//!
//! Whoever finds it idle leads: it commits its own unit at once, without a thread hop. Units that come
//! meanwhile queue; the first of them leads next and takes the others along as one log entry.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Error, Result};
use smallvec::SmallVec;

use super::Commits;
use crate::catalog::{Catalog, CollectionState};
use crate::core::Core;
use crate::critical::{Critical, impossible, must};
use crate::locks::LockKey;
use crate::oplog;
use crate::options::{Block, OpTime};
use crate::order::{Condvar, Held, Mutex, about_to_wait, rank};

/// So often a commit that is held back looks whether its operation still goes on.
const LOOK_UP: Duration = Duration::from_millis(5);

/// A group does not grow above this; a unit that is larger is alone in its entry.
const GROUP_BYTES: usize = 16 << 20;

/// The largest unit: what log and links carry in one entry with room to spare. Plain writes are committed when at most 32 MB have
/// come together, so that one operation more with all that it may bring (the document before and after, what a retry is
/// answered with) stays below; transactions are chains of smaller entries.
pub(crate) const UNIT_BYTES_MAX: usize = 112 << 20;

/// Per collection: documents and bytes more (or less).
#[derive(Default)]
pub(crate) struct Counts {
    all: SmallVec<[(Arc<CollectionState>, i64, i64); 2]>,
    /// Where each is, by its address, once they are many: `dropDatabase` can be about a hundred thousand.
    places: ahash::AHashMap<usize, usize>,
}

/// From here on collections are looked up by their addresses.
const COUNTS_FEW: usize = 16;

impl Counts {
    fn place(&self, state: &Arc<CollectionState>) -> Option<usize> {
        if self.all.len() < COUNTS_FEW {
            return self.all.iter().position(|(known, ..)| Arc::ptr_eq(known, state));
        }
        self.places.get(&(Arc::as_ptr(state) as usize)).copied()
    }

    pub fn add(&mut self, state: &Arc<CollectionState>, (docs, bytes): (i64, i64)) {
        if let Some(at) = self.place(state) {
            self.all[at].1 += docs;
            self.all[at].2 += bytes;
            return;
        }
        self.all.push((state.clone(), docs, bytes));
        if self.all.len() >= COUNTS_FEW {
            let from = if self.all.len() == COUNTS_FEW { 0 } else { self.all.len() - 1 };
            for (at, (state, ..)) in self.all.iter().enumerate().skip(from) {
                self.places.insert(Arc::as_ptr(state) as usize, at);
            }
        }
    }

    /// What is counted of one collection.
    pub fn of(&self, state: &Arc<CollectionState>) -> (i64, i64) {
        self.place(state).map_or((0, 0), |at| (self.all[at].1, self.all[at].2))
    }

    /// Notes the time of the commit; before it is visible.
    pub fn stamp(&self, time: u64) {
        self.all.iter().for_each(|(state, ..)| state.last_commit.store(time, Ordering::Release));
    }

    pub fn publish(&self) {
        for (state, docs, bytes) in &self.all {
            state.published(*docs, *bytes);
        }
    }
}

/// Locks of what a unit has written.
pub(crate) type Written = SmallVec<[LockKey; 4]>;

/// What DDL changes when its commit is applied.
pub(crate) type Publish = Box<dyn FnOnce(&Catalog) -> Catalog + Send>;

/// A unit that is ready to be ordered.
#[derive(Default)]
pub(crate) struct Prepared {
    /// Oplog documents.
    pub payload: Vec<u8>,
    /// Whether these are a chain, each an entry of its own; see [`crate::commit::chain`].
    pub chained: bool,
    pub batch: WriteBatch,
    pub counts: Counts,
    /// Everything it wrote, for transactions that look for conflicts.
    pub locks: Written,
    /// Changes the catalog, between apply and publish.
    pub publish: Option<Publish>,
    /// [`Commits::others`](crate::commit::Commits::others) when its preparation began. `None`: it depends on no state.
    pub since: Option<u64>,
}

enum Slot {
    Waiting(Box<Prepared>),
    /// A leader took it along.
    InGroup,
    /// The pipeline is this one's now.
    Lead(Box<Prepared>),
    Done(Result<OpTime>),
    /// Wants the pipeline to be still.
    WaitingStill,
    /// It is.
    Still,
    Taken,
}

struct Ticket {
    slot: Mutex<{ rank::SLOT }, Slot>,
    changed: Condvar,
}

/// A group takes microseconds. Behind one that takes longer than this (a disk that lets writes wait) the thread's other
/// work must go on.
const PATIENCE: Duration = Duration::from_millis(2);

impl Ticket {
    /// Waits until a leader has come by, and takes what it left.
    fn wait(&self, block: &Block) -> Slot {
        let undecided = |slot: &Slot| matches!(slot, Slot::Waiting(_) | Slot::InGroup);
        let mut slot = self.slot.lock();
        if undecided(&slot) {
            self.changed.wait_for(&mut slot, PATIENCE);
        }
        if undecided(&slot) {
            drop(slot);
            block(&mut || {
                let mut slot = self.slot.lock();
                while undecided(&slot) {
                    self.changed.wait(&mut slot);
                }
            });
            slot = self.slot.lock();
        }
        std::mem::replace(&mut *slot, Slot::Taken)
    }
}

#[derive(Default)]
pub(super) struct Queue {
    busy: bool,
    waiting: std::collections::VecDeque<Arc<Ticket>>,
}

/// The pipeline held still: no commit is between log and publish while it lives. A panic of its holder ends the process: those
/// whom it has taken along would wait for ever, and what the log has might not be applied.
pub(crate) struct Still<'p>(&'p Core, #[allow(dead_code)] Held, Critical);

impl<'p> Still<'p> {
    /// The pipeline is this thread's now.
    fn new(core: &'p Core) -> Still<'p> {
        Still(core, Held::note(rank::PIPELINE), Critical::enter("the commit pipeline"))
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.2.end();
        self.0.commits.hand_on();
    }
}

impl Commits {
    /// Gives the pipeline to the next in the queue, or leaves it idle.
    fn hand_on(&self) {
        let mut queue = self.queue.lock();
        must!(queue.busy, "the pipeline is handed on, and nobody has it");
        let Some(next) = queue.waiting.pop_front() else {
            queue.busy = false;
            return;
        };
        drop(queue);
        let mut slot = next.slot.lock();
        *slot = match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Waiting(prepared) => Slot::Lead(prepared),
            Slot::WaitingStill => Slot::Still,
            Slot::InGroup | Slot::Lead(_) | Slot::Done(_) | Slot::Still | Slot::Taken => {
                impossible!("one who does not wait is in the queue of the pipeline")
            }
        };
        next.changed.notify_one();
    }
}

impl Core {
    /// Commits one unit; returns when it is in the log (not yet synced), applied and visible.
    ///
    /// Errors: `TransactionTooLarge` if no entry can carry it.
    pub fn commit(&self, prepared: Prepared) -> Result<OpTime> {
        if !prepared.chained && prepared.payload.len() > UNIT_BYTES_MAX {
            let bytes = prepared.payload.len();
            let text =
                format!("a commit of {bytes} bytes is larger than the log's largest entry, {UNIT_BYTES_MAX}");
            return Err(Error::new(Code::TRANSACTION_TOO_LARGE, text));
        }
        self.wait_for_room()?;
        self.wait_for_followers()?;
        // From here on it is done, and others' units with it: nobody's time is over before it is applied.
        let _shield = sheaf_meter::shield();
        about_to_wait(rank::PIPELINE);
        let mut queue = self.commits.queue.lock();
        if !queue.busy {
            queue.busy = true;
            drop(queue);
            let _still = Still::new(self);
            if prepared.chained {
                return self.commit_chain(prepared);
            }
            let mut alone = [prepared];
            if let Some(sequencer) = self.base.sequencer() {
                let (seq, span, times) = self.order_group(&**sequencer, &mut alone)?;
                let [unit] = alone;
                let at = self.apply_own(unit, times[0])?;
                self.carried(&**sequencer, seq, span);
                return Ok(at);
            }
            let times = self.write_log(&mut alone)?;
            let [unit] = alone;
            return self.apply(unit, times[0]);
        }
        let ticket =
            Arc::new(Ticket { slot: Mutex::new(Slot::Waiting(Box::new(prepared))), changed: Condvar::new() });
        // Who is given the pipeline must take it.
        let waiting = Critical::enter("the queue of the commit pipeline");
        queue.waiting.push_back(ticket.clone());
        drop(queue);
        let left = ticket.wait(&self.base.options.block);
        drop(waiting);
        match left {
            Slot::Done(result) => result,
            Slot::Lead(own) => self.lead(*own),
            Slot::Waiting(_) | Slot::InGroup | Slot::WaitingStill | Slot::Still | Slot::Taken => {
                impossible!("a commit came out of the queue undecided")
            }
        }
    }

    /// Commits the own unit and all that wait, as one group.
    fn lead(&self, own: Prepared) -> Result<OpTime> {
        let _still = Still::new(self);
        if own.chained {
            return self.commit_chain(own);
        }
        let mut bytes = own.payload.len();
        let mut group = vec![own];
        let mut tickets = Vec::new();
        let mut queue = self.commits.queue.lock();
        while bytes < GROUP_BYTES
            && let Some(ticket) = queue.waiting.front()
        {
            let mut slot = ticket.slot.lock();
            let Slot::Waiting(next) = &*slot else { break };
            if next.chained || bytes + next.payload.len() > GROUP_BYTES {
                break;
            }
            if let Slot::Waiting(prepared) = std::mem::replace(&mut *slot, Slot::InGroup) {
                bytes += prepared.payload.len();
                group.push(*prepared);
            }
            drop(slot);
            tickets.extend(queue.waiting.pop_front());
        }
        drop(queue);
        let results = self.commit_group(group);
        must!(
            results.len() == tickets.len() + 1,
            "a group of {} commits has {} results",
            tickets.len() + 1,
            results.len()
        );
        let mut results = results.into_iter();
        let Some(own) = results.next() else { impossible!("a group has no first commit") };
        for (ticket, result) in tickets.iter().zip(results) {
            let before = std::mem::replace(&mut *ticket.slot.lock(), Slot::Done(result));
            must!(matches!(before, Slot::InGroup), "a commit of a group was decided twice");
            ticket.changed.notify_one();
        }
        own
    }

    /// Holds the pipeline still: waits for commits under way, lets none start until it is dropped.
    pub fn still(&self) -> Still<'_> {
        about_to_wait(rank::PIPELINE);
        let mut queue = self.commits.queue.lock();
        if !queue.busy {
            queue.busy = true;
            return Still::new(self);
        }
        // It takes its turn like a commit, so that a stream of them cannot starve it.
        let ticket = Arc::new(Ticket { slot: Mutex::new(Slot::WaitingStill), changed: Condvar::new() });
        queue.waiting.push_back(ticket.clone());
        drop(queue);
        let mut slot = ticket.slot.lock();
        while matches!(*slot, Slot::WaitingStill) {
            ticket.changed.wait(&mut slot);
        }
        must!(matches!(*slot, Slot::Still), "who wanted the pipeline held has got something else");
        Still::new(self)
    }

    fn commit_group(&self, mut group: Vec<Prepared>) -> Vec<Result<OpTime>> {
        if let Some(sequencer) = self.base.sequencer() {
            return match self.order_group(&**sequencer, &mut group) {
                Ok((seq, span, times)) => {
                    let apply = |(unit, at)| self.apply_own(unit, at);
                    let done: Vec<_> = group.into_iter().zip(times).map(apply).collect();
                    if done.iter().all(Result::is_ok) {
                        self.carried(&**sequencer, seq, span);
                    }
                    done
                }
                Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
            };
        }
        match self.write_log(&mut group) {
            Ok(times) => group.into_iter().zip(times).map(|(unit, at)| self.apply(unit, at)).collect(),
            Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Holds a commit back a little where the set is far behind.
    fn wait_for_followers(&self) -> Result<()> {
        let pause = self.base.sequencer().map_or(Duration::ZERO, |sequencer| sequencer.pause());
        if pause.is_zero() {
            return Ok(());
        }
        let until = Instant::now() + pause;
        let mut outcome = Ok(());
        (self.base.options.block)(&mut || {
            while Instant::now() < until && outcome.is_ok() {
                std::thread::sleep(until.saturating_duration_since(Instant::now()).min(LOOK_UP));
                outcome = sheaf_meter::check();
            }
        });
        outcome
    }

    /// Gives the group its times and appends it as one entry.
    fn write_log(&self, group: &mut [Prepared]) -> Result<SmallVec<[OpTime; 4]>> {
        self.durability.check_writable()?;
        self.base.check_alone()?;
        let before = self.published.last();
        let wall = (self.base.options.clock)();
        let first = ((wall / 1000) as u64) << 32;
        let mut time = before.time;
        let mut times = SmallVec::new();
        for unit in group.iter_mut() {
            oplog::stamp(&mut unit.payload, before.term, wall, || {
                time = if time < first { first | 1 } else { time + 1 };
                time
            });
            times.push(OpTime { term: before.term, index: before.index + 1, time });
        }
        must!(time > before.time, "a group without an operation is to be entry {}", before.index + 1);
        if let Some(log) = self.durability.log() {
            let parts: SmallVec<[&[u8]; 4]> = group.iter().map(|unit| &unit.payload[..]).collect();
            let at = log.append(before.term, time, &parts).map_err(|e| self.durability.log_error(e))?;
            must!(
                at.index == before.index + 1,
                "the log has given {at:?} to what the pipeline orders after {before:?}"
            );
            self.durability.appended();
        }
        Ok(times)
    }

    /// Applies a unit that is in the log.
    pub(crate) fn apply(&self, unit: Prepared, at: OpTime) -> Result<OpTime> {
        self.apply_unit(unit, at, Some(at))
    }

    /// `logged`: where it is in the log, if it is there.
    pub(crate) fn apply_unit(&self, unit: Prepared, at: OpTime, logged: Option<OpTime>) -> Result<OpTime> {
        let Prepared { payload, batch, counts, locks, publish, .. } = unit;
        let (bytes, written) = self.commits.write(batch, &locks, logged);
        if let Err(error) = written {
            // The log has what the memtables have not: only a restart can bring them together.
            self.wait_for_restart();
            self.durability.fail(&format!("applying a commit failed: {error}"));
            return Err(error);
        }
        if let Some(publish) = publish {
            let catalog = publish(&self.published.peek_catalog());
            self.published.show_catalog(Arc::new(catalog));
        }
        counts.stamp(at.time);
        // Before anybody wakes: who looks after a change must find it.
        self.advance(at);
        counts.publish();
        self.published.wake_log_readers();
        self.commits.give_buffer(payload);
        self.commits.count_one();
        self.flushes.note_written(bytes);
        Ok(at)
    }

    /// Applies what the set has ordered and the log has. It cannot be left out: the next unit would be acknowledged without it.
    ///
    /// Errors: the member is stopping.
    pub(crate) fn apply_own(&self, unit: Prepared, at: OpTime) -> Result<OpTime> {
        self.apply(unit, at).inspect_err(|error| self.cannot_apply(&format!("entry {at:?}"), error))
    }
}
