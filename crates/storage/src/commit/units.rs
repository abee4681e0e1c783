//! Units of what the set has ordered: appended to the log, applied, and told of.
//!
//! What this member has proposed and what others have comes as units from the [`Sequencer`], in one order. The pipeline is
//! held meanwhile.

use bytes::Bytes;
use sheaf_errors::{Code, Error, Result};
use smallvec::SmallVec;

use crate::commit::majority::Span;
use crate::commit::prepared::Prepared;
use crate::core::Core;
use crate::critical::{self, impossible, must};
use crate::hooks::HookPoint;
use crate::oplog::{LogEntry, Stamps};
use crate::options::OpTime;
use crate::sequencer::{LogUnit, Sequencer};

/// So much is applied in one go where flushes do not keep up.
const APPLIED_AT_ONCE: usize = 1 << 20;

impl Core {
    /// Proposes the group, and applies what comes before it. Its own entry is in the log afterwards, not yet applied.
    pub fn order_group(
        &self,
        sequencer: &dyn Sequencer,
        group: &mut [Prepared],
    ) -> Result<(u64, Option<Span>, SmallVec<[OpTime; 4]>)> {
        // This member was a secondary meanwhile, and others have written to what was read and locked here.
        self.durability.check_writable()?;
        group
            .iter()
            .filter_map(|unit| unit.since)
            .try_for_each(|since| self.commits.check_no_others(since))?;
        let bytes = group.iter().map(|unit| unit.payload.len()).sum();
        self.reserve_alone(sequencer, bytes, group.iter().all(Prepared::frees))?;
        let stamps = Stamps::at((self.base.options.clock_micros)());
        let mut times: SmallVec<[OpTime; 4]> = SmallVec::new();
        let own = sequencer.propose(&mut |term, after| {
            // All of an entry is seen at a time or nothing, so what is to be above a time has the others above it too.
            let mut time = group.iter().map(|unit| unit.above).fold(after, u64::max);
            times.clear();
            let len = group.iter().map(|unit| unit.payload.len()).sum();
            let mut payload = Vec::with_capacity(len);
            for unit in group.iter_mut() {
                stamps.stamp(&mut unit.payload, term, &mut time);
                payload.extend_from_slice(&unit.payload);
                times.push(OpTime { term, index: 0, time });
            }
            (time, Bytes::from(payload))
        })?;
        let unit = self.apply_units_before(sequencer, own)?;
        let unit = self.append_own(sequencer, unit)?;
        // What stood open before it is not continued by it.
        self.end_chain();
        let [entry] = &unit.entries[..] else {
            impossible!("a group was proposed as one entry, and its unit {own} has {}", unit.entries.len())
        };
        must!(
            times.last().is_some_and(|last| (last.term, last.time) == (entry.term, entry.time)),
            "entry {} of term {} and time {} was proposed with the times {times:?}",
            entry.index,
            entry.term,
            entry.time
        );
        times.iter_mut().for_each(|at| at.index = entry.index);
        Ok((own, Span::of(&unit.entries), times))
    }

    /// What is proposed cannot be taken back. A primary whose log cannot grow is replaced by another member; where there is none, who wants
    /// to write must be told before it is too late for that. What `frees` has room that was kept for it.
    ///
    /// Errors: `OutOfDiskSpace`.
    pub(crate) fn reserve_alone(&self, sequencer: &dyn Sequencer, bytes: usize, frees: bool) -> Result<()> {
        match self.durability.log().filter(|_| sequencer.is_alone()) {
            Some(log) => log.reserve(bytes, frees).map_err(|error| self.durability.log_error(error)),
            None => Ok(()),
        }
    }

    /// Applies what comes before this member's own unit, and gives that.
    pub(crate) fn apply_units_before(&self, sequencer: &dyn Sequencer, own: u64) -> Result<LogUnit> {
        loop {
            let Some(unit) = sequencer.take()? else {
                return Err(Error::new(Code::INTERNAL_ERROR, "a proposed commit was lost"));
            };
            if unit.seq == own {
                return Ok(unit);
            }
            must!(unit.seq < own, "unit {} has come, and {own}, which was before it, has not", unit.seq);
            // Who waits here is a client. Another member leads by the time that it is told to go and ask that one.
            self.apply_unit(sequencer, unit, &|| !sequencer.takes_writes())?;
        }
    }

    /// Appends this member's own unit, and gives it back.
    pub(crate) fn append_own(&self, sequencer: &dyn Sequencer, unit: LogUnit) -> Result<LogUnit> {
        match self.append_entries(sequencer, &unit.entries, &|| !sequencer.takes_writes()) {
            Ok(()) => Ok(unit),
            Err(error) => {
                sequencer.put_back(unit);
                Err(error)
            }
        }
    }

    /// Applies the units that are ready; where memtables are full, or the disk is nearly, no more than a megabyte or one of them. Returns whether
    /// there were any.
    pub fn apply_units(&self) -> Result<bool> {
        let Some(sequencer) = self.base.sequencer().cloned() else { return Ok(false) };
        self.flushes.make_room();
        let _still = self.still();
        if self.is_stopping() {
            return Ok(false);
        }
        self.durability.check_writable()?;
        let (mut any, mut bytes, mut before) = (false, 0, None);
        while let Some(unit) = sequencer.take()? {
            must!(before.is_none_or(|before| before < unit.seq), "unit {} comes after {before:?}", unit.seq);
            before = Some(unit.seq);
            bytes += unit.entries.iter().map(|entry| entry.payload.len()).sum::<usize>();
            self.apply_unit(&*sequencer, unit, &|| false)?;
            any = true;
            // No flush begins while the pipeline is held.
            if bytes >= APPLIED_AT_ONCE && self.flushes.wants_pause() {
                break;
            }
        }
        Ok(any)
    }

    /// Appends a unit, whoever has proposed it, and applies it.
    ///
    /// Errors: `InterruptedDueToReplStateChange` if the log has no room and it `gives_up`.
    pub(crate) fn apply_unit(
        &self,
        sequencer: &dyn Sequencer,
        unit: LogUnit,
        gives_up: &dyn Fn() -> bool,
    ) -> Result<()> {
        if let Err(error) = self.append_entries(sequencer, &unit.entries, gives_up) {
            sequencer.put_back(unit);
            return Err(error);
        }
        if let (Some(first), Some(last)) = (unit.entries.first(), unit.entries.last()) {
            tracing::trace!(seq = unit.seq, first = first.index, last = last.index, "applying");
            let began = std::time::Instant::now();
            let applied = self.published.last().index;
            must!(
                first.index == applied + 1,
                "unit {} begins with entry {}, and applied is {applied}",
                unit.seq,
                first.index
            );
            let hooked = self.base.hooks.call(HookPoint::Apply);
            match hooked.and_then(|()| crate::apply::apply_entries(self, &unit.entries)) {
                Ok(ops) => self.commits.applied().add(ops, began.elapsed()),
                Err(error) => {
                    let what = format!(
                        "entries ({}, {}) to ({}, {}), applied up to {:?}",
                        first.term,
                        first.index,
                        last.term,
                        last.index,
                        self.published.last(),
                    );
                    self.cannot_apply(&what, &error);
                    return Err(error);
                }
            }
            self.commits.count_one();
        }
        self.acknowledge(sequencer, unit.seq, Span::of(&unit.entries));
        Ok(())
    }

    /// The log has what the memtables have not, and only a start can bring them together. What goes on would take the next
    /// unit, and acknowledge it without this one: the process ends. One that is ending anyway applies nothing more.
    pub fn cannot_apply(&self, what: &str, error: &Error) {
        let why = format!("what the set has ordered cannot be applied here: {what}: {error}");
        if !self.is_stopping() {
            critical::stop(&why);
        }
        self.durability.refuse_writes(&why);
    }

    /// Tells that a unit is in the log and visible.
    pub fn acknowledge(&self, sequencer: &dyn Sequencer, seq: u64, unit: Option<Span>) {
        let start = self.commits.recent().sequence();
        self.commits.majority().note_candidate(&self.published, unit, start);
        self.published.wake_log_readers();
        sequencer.acknowledge(seq);
        self.durability.await_sync(seq, self.published.last().index);
    }

    /// What the set has ordered must go into the log. A full disk is waited for: meanwhile this member, if it leads, is
    /// replaced. Entries that are there from an earlier attempt are passed over.
    ///
    /// Errors: `InterruptedDueToReplStateChange` if there is no room and `gives_up`.
    fn append_entries(
        &self,
        sequencer: &dyn Sequencer,
        entries: &[LogEntry],
        gives_up: &dyn Fn() -> bool,
    ) -> Result<()> {
        let Some(log) = self.durability.log() else { impossible!("a member of a set has no log") };
        let last = log.last().index;
        let entries = &entries[entries.partition_point(|entry| entry.index <= last)..];
        let run: SmallVec<[(u64, u64, &[u8]); 4]> =
            entries.iter().map(|entry| (entry.term, entry.time, &entry.payload[..])).collect();
        let (mut done, mut told) = (0, false);
        while done < run.len() {
            let appended = self.base.hooks.call(HookPoint::Append).and_then(|()| {
                log.append_run(&run[done..]).map_err(|error| self.durability.log_error(error))
            });
            match appended {
                Ok((count, at)) => {
                    let bytes =
                        run[done..done + count].iter().map(|(.., payload)| payload.len() as u64).sum();
                    self.flushes.note_logged(bytes);
                    done += count;
                    must!(
                        at.index == entries[done - 1].index,
                        "the log has given {at:?} to entry {}",
                        entries[done - 1].index
                    );
                    self.durability.appended();
                }
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::error!(%error, "the log cannot be appended to; trying again");
                    }
                    sequencer.refused();
                    (self.base.options.block)(&mut || {
                        std::thread::sleep(std::time::Duration::from_millis(200))
                    });
                    must!(!self.durability.is_failed(), "the log has failed: {error}");
                    if gives_up() {
                        return Err(Error::new(
                            Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                            format!("operation was interrupted: this member has lost the lead: {error}"),
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Commits what stays on this member: applied without an entry in the log. A crash loses what no flush has kept.
    pub fn commit_here(&self, prepared: Prepared) -> Result<OpTime> {
        let _still = self.still();
        let at = self.published.last();
        self.apply_prepared(prepared, at, None)
    }
}
