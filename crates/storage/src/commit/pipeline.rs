//! The commit pipeline: order, log, apply, publish.
//!
//! Whoever finds it idle leads: it commits its own unit at once, without a thread hop. Units that come
//! meanwhile queue; the first of them leads next and takes the others along as one log entry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Error, Result};
use smallvec::SmallVec;

use crate::commit::prepared::{Prepared, UNIT_BYTES_MAX};
use crate::commit::queue::{Outcome, Still};
use crate::commit::step::{Holding, Step};
use crate::commit::transactions::RowChanges;
use crate::core::Core;
use crate::critical::{impossible, must};
use crate::oplog::Stamps;
use crate::options::OpTime;

/// So often a commit that is held back looks whether its operation still goes on.
const LOOK_UP: Duration = Duration::from_millis(5);

/// A group does not grow above this; a unit that is larger is alone in its entry.
const GROUP_BYTES: usize = 16 << 20;

/// Whether only some of a group free what others hold.
fn is_mixed(group: &[Prepared]) -> bool {
    let frees = group.iter().filter(|unit| unit.frees()).count();
    frees > 0 && frees < group.len()
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
        if let Some(bytes) = prepared.adds() {
            self.wait_for_disk_space(bytes)?;
        } else if let Some(bytes) = prepared.deletes() {
            self.wait_for_room_to_delete(bytes)?;
        }
        self.wait_for_room(prepared.frees())?;
        self.wait_for_followers()?;
        // From here on it is done, and others' units with it: nobody's time is over before it is applied.
        let _shield = sheaf_meter::shield();
        match self.commits.queue.enter(prepared, &self.base.options.block) {
            Outcome::Done(result) => result,
            Outcome::Alone(_still, prepared) => self.commit_alone(prepared),
            Outcome::Leads(_still, prepared) => self.lead(*prepared),
        }
    }

    /// Commits a unit that no other goes with. The pipeline is held.
    fn commit_alone(&self, prepared: Prepared) -> Result<OpTime> {
        if prepared.chained {
            return self.commit_chain(prepared);
        }
        let mut alone = [prepared];
        if let Some(sequencer) = self.base.sequencer() {
            let (seq, span, times) = self.order_group(&**sequencer, &mut alone)?;
            let [unit] = alone;
            let at = self.apply_own(unit, times[0])?;
            self.acknowledge(&**sequencer, seq, span);
            return Ok(at);
        }
        let times = self.write_log(&mut alone)?;
        let [unit] = alone;
        self.apply(unit, times[0])
    }

    /// Commits the own unit and all that wait, as one group. The pipeline is held.
    fn lead(&self, own: Prepared) -> Result<OpTime> {
        if own.chained {
            return self.commit_chain(own);
        }
        let mut group = vec![own];
        let others = self.commits.queue.take_along(&mut group, GROUP_BYTES.min(self.base.pending_bytes));
        let mut results = self.commit_group(group).into_iter();
        let Some(own) = results.next() else { impossible!("a group has no first commit") };
        others.tell(results);
        own
    }

    /// Holds the pipeline still: waits for commits under way, lets none start until it is dropped.
    pub fn still(&self) -> Still<'_> {
        self.commits.queue.still()
    }

    fn commit_group(&self, mut group: Vec<Prepared>) -> Vec<Result<OpTime>> {
        if let Some(sequencer) = self.base.sequencer() {
            return match self.order_group(&**sequencer, &mut group) {
                Ok((seq, span, times)) => {
                    let apply = |(unit, at)| self.apply_own(unit, at);
                    let done: Vec<_> = group.into_iter().zip(times).map(apply).collect();
                    if done.iter().all(Result::is_ok) {
                        self.acknowledge(&**sequencer, seq, span);
                    }
                    done
                }
                Err(error) if error.code() == Code::OUT_OF_DISK_SPACE && is_mixed(&group) => {
                    self.commit_what_frees(group, &error)
                }
                Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
            };
        }
        match self.write_log(&mut group) {
            Ok(times) => group.into_iter().zip(times).map(|(unit, at)| self.apply(unit, at)).collect(),
            Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Of a group that finds no room, and of which nothing was proposed, those go that may have what was kept for them.
    fn commit_what_frees(&self, group: Vec<Prepared>, full: &Error) -> Vec<Result<OpTime>> {
        let frees: Vec<bool> = group.iter().map(Prepared::frees).collect();
        let mut done = self.commit_group(group.into_iter().filter(Prepared::frees).collect()).into_iter();
        let mut result = |frees| match frees {
            true => {
                done.next().unwrap_or_else(|| impossible!("a unit that frees was committed without a result"))
            }
            false => Err(full.clone()),
        };
        frees.into_iter().map(&mut result).collect()
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
        let stamps = Stamps::at((self.base.options.clock_micros)());
        let mut time = before.time;
        let mut times = SmallVec::new();
        for unit in group.iter_mut() {
            time = time.max(unit.above);
            stamps.stamp(&mut unit.payload, before.term, &mut time);
            times.push(OpTime { term: before.term, index: before.index + 1, time });
        }
        must!(time > before.time, "a group without an operation is to be entry {}", before.index + 1);
        if let Some(log) = self.durability.log() {
            let parts: SmallVec<[&[u8]; 4]> = group.iter().map(|unit| &unit.payload[..]).collect();
            let (at, place) =
                log.append_placed(before.term, time, &parts).map_err(|e| self.durability.log_error(e))?;
            self.flushes.note_logged(parts.iter().map(|part| part.len() as u64).sum());
            drop(parts);
            must!(
                at.index == before.index + 1,
                "the log has given {at:?} to what the pipeline orders after {before:?}"
            );
            self.durability.appended();
            let left = self.place_values(log, group, place);
            self.flushes.note_left(left);
        }
        Ok(times)
    }

    /// Applies a unit that is in the log.
    pub(crate) fn apply(&self, unit: Prepared, at: OpTime) -> Result<OpTime> {
        self.apply_prepared(unit, at, Some(at))
    }

    /// `logged`: where it is in the log, if it is there.
    pub(crate) fn apply_prepared(
        &self,
        unit: Prepared,
        at: OpTime,
        logged: Option<OpTime>,
    ) -> Result<OpTime> {
        let placed = unit.large.as_ref().is_none_or(|large| large.left == 0);
        must!(placed, "a commit is applied whose batch refers to its payload");
        let Prepared { payload, mut batch, counts, large, locks, publish, step, .. } = unit;
        let step = match step {
            Some(step) => Some(self.begin_step(*step, at, &mut batch)?),
            None => None,
        };
        let as_of = step.as_ref().map_or(0, |(step, _)| step.commits_as_of());
        let (bytes, written) = self.commits.write(batch, &locks, logged, as_of);
        if let Err(error) = written {
            // The log has what the memtables have not: only a restart can bring them together.
            self.wait_for_restart();
            self.durability.fail(&format!("applying a commit failed: {error}"));
            return Err(error);
        }
        if let Some(large) = large {
            self.base.db.values().note_gone(&large.gone);
        }
        if let Some(publish) = publish {
            let catalog = publish(&self.published.peek_catalog());
            self.published.show_catalog(Arc::new(catalog));
        }
        counts.stamp(at.time);
        // Before anybody wakes: who looks after a change must find it.
        self.advance(at);
        self.flushes.note_gone(counts.publish());
        if let Some((mut step, changes)) = step {
            let held = step.holding.take();
            self.end_step(step, changes, held, at);
        }
        self.published.wake_log_readers();
        self.commits.give_buffer(payload);
        self.commits.count_one();
        self.flushes.note_written(bytes);
        Ok(at)
    }

    /// What a step makes of rows is in the batch with it.
    fn begin_step(&self, step: Step, at: OpTime, batch: &mut WriteBatch) -> Result<(Step, RowChanges)> {
        let transactions = self.commits.transactions();
        let changes = transactions.changes(&step, at).inspect_err(|error| {
            // The log has what cannot be applied.
            self.durability.fail(&format!("applying a commit failed: {error}"));
        })?;
        transactions.put(&self.base.db, &step, &changes, batch);
        Ok((step, changes))
    }

    /// What a step has changed is visible.
    pub fn end_step(&self, step: Step, changes: RowChanges, held: Option<Holding>, at: OpTime) {
        let pin = |index| self.durability.pin_log(index);
        self.commits.transactions().show(step, changes, held, pin, at);
    }

    /// Applies what the set has ordered and the log has. It cannot be left out: the next unit would be acknowledged without it.
    ///
    /// Errors: the member is stopping.
    pub(crate) fn apply_own(&self, unit: Prepared, at: OpTime) -> Result<OpTime> {
        self.apply(unit, at).inspect_err(|error| self.cannot_apply(&format!("entry {at:?}"), error))
    }

    /// A commit is the newest one from now on.
    pub fn advance(&self, at: OpTime) {
        let last = self.published.last();
        // Alone, a transaction of several entries is one commit.
        let next = at.index == last.index + 1 || at.index == last.index;
        must!(
            next || !self.base.is_replica(),
            "{at:?} is applied after {last:?}: an entry between them is not"
        );
        if at.term != last.term || last.index == 0 {
            self.durability.knowledge().note(at.index, at.term);
        }
        self.published.advance(at);
    }
}
