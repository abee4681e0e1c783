//! Storage's side of the driver: the order of commits, and what becomes of the units that the core wants written.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sheaf_errors::{Code, Error, Result};
use sheaf_repl::{Entry, HardState, LogPosition, Persist};
use sheaf_storage::{LogEntry, LogUnit, Seal, Sequencer};

use crate::Replica;
use crate::errors::keep_trying;
use crate::figures::LAG_ALLOWED_MILLIS;

impl Sequencer for Replica {
    fn propose(&self, seal: Seal<'_>) -> Result<u64> {
        let mut core = self.core.lock();
        if !core.is_writable() {
            return Err(Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary"));
        }
        let (time, payload) = seal(core.term(), core.cluster_time());
        let at = core.propose(time, payload)?;
        let before = self.units.lock().len();
        self.perform_effects(&mut core);
        let units = self.units.lock();
        let holds_it = |unit: &&Persist| unit.entries.last().is_some_and(|entry| entry.at.index >= at.index);
        let own = units.iter().skip(before).find(holds_it);
        let own = own.unwrap_or_else(|| panic!("the core took {at:?} and wants nothing written"));
        let entry = own.entries.last().expect("it was found by its last entry");
        assert_eq!((entry.at, entry.time), (at, time), "a primary's newest entry is its newest proposal");
        if units.back().is_some_and(|newest| newest.seq > own.seq) {
            self.units_work.notify_one();
        }
        Ok(own.seq)
    }

    fn take(&self) -> Result<Option<LogUnit>> {
        let Some(mut unit) = self.units.lock().pop_front() else { return Ok(None) };
        let applied = self.applied_seq.load(Ordering::Acquire);
        assert_eq!(
            unit.seq,
            applied + 1,
            "one unit is taken at a time, and the next one follows on what is applied"
        );
        self.keep(&mut unit);
        if let Some(rollback) = unit.rollback {
            self.roll_back(rollback);
        }
        if let Some(at) = unit.install {
            self.install_copy(at);
        }
        let entries = unit.entries.into_iter().map(from_core).collect();
        Ok(Some(LogUnit { seq: unit.seq, entries }))
    }

    fn put_back(&self, unit: LogUnit) {
        let entries = unit.entries.into_iter().map(to_core).collect();
        let unit =
            Persist { seq: unit.seq, entries, hard_state: None, config: None, install: None, rollback: None };
        let mut units = self.units.lock();
        assert!(
            units.front().is_none_or(|next| next.seq == unit.seq + 1),
            "unit {} is not the next",
            unit.seq
        );
        units.push_front(unit);
        drop(units);
        self.units_work.notify_one();
    }

    fn acknowledge(&self, seq: u64) {
        // Whatever failed on the way: no unit is told of before those that come before it.
        let before = self.applied_seq.swap(seq, Ordering::AcqRel);
        assert_eq!(before + 1, seq, "units are applied one after another");
        // Whoever waits for other members makes the messages go out; see `Replica::waiting`.
        self.with_unhurried(|core| {
            core.written(seq);
            core.applied(seq);
        });
    }

    fn refused(&self) {
        self.with(|core| core.refused());
    }

    fn short_of_room(&self, short: bool) -> bool {
        self.with(|core| core.short_of_room(short))
    }

    fn little_room(&self, little: bool) {
        self.with(|core| core.little_room(little));
    }

    fn others_lack_room(&self) -> bool {
        self.others_lack_room.load(Ordering::Acquire)
    }

    fn durable(&self, seq: u64) {
        let applied = self.applied_seq.load(Ordering::Acquire);
        assert!(seq <= applied, "unit {seq} is told to be durable, and {applied} is the last one applied");
        if self.durable_seq.fetch_max(seq, Ordering::AcqRel) < seq {
            // An acknowledgement is no entry, and goes out at once all the same; word of the commit point goes with the next entries.
            self.with_unhurried(|core| core.durable(seq));
        }
    }

    fn takes_writes(&self) -> bool {
        self.is_writable()
    }

    fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    fn pause(&self) -> Duration {
        let millis = self.lag_millis.load(Ordering::Relaxed);
        // Who is away does not catch up the sooner for it.
        if millis <= LAG_ALLOWED_MILLIS || self.figures.stands_still() {
            return Duration::ZERO;
        }
        let pause = Duration::from_millis(((millis - LAG_ALLOWED_MILLIS) / 100).clamp(1, 50));
        self.slowed_micros.fetch_add(pause.as_micros() as u64, Ordering::Relaxed);
        pause
    }

    fn commit_index(&self) -> u64 {
        self.flushable.load(Ordering::Acquire)
    }

    fn compacted(&self, index: u64) {
        self.with(|core| {
            assert!(index <= core.log().last, "{index} has left the log, which ends at {}", core.log().last);
            if index > core.log().start.index {
                core.compacted(index.min(core.commit_point().index));
            }
        });
    }
}

impl Replica {
    /// Keeps what a unit wants kept besides entries. A full disk is waited for: a unit that was passed over would be taken
    /// for durable with the next one, and a vote that was forgotten could be given twice.
    fn keep(&self, unit: &mut Persist) {
        let mut file = self.state.lock();
        let mut changed = false;
        let is_kept =
            |hard_state: &HardState| unit.seq <= file.early && is_before(hard_state, &file.state.hard_state);
        if let Some(hard_state) = unit.hard_state.take_if(|hard_state| !is_kept(hard_state)) {
            let hard_state = unit.to_keep(hard_state, &file.state.hard_state);
            let known = &mut file.state.hard_state;
            check_hard_state(known, &hard_state);
            // A commit point alone may be forgotten.
            changed |= (known.term, known.vote) != (hard_state.term, hard_state.vote);
            *known = hard_state;
        }
        if let Some((config, me)) = unit.config.take() {
            file.state.config = Some((config.as_ref().clone(), me));
            changed = true;
        }
        drop(file);
        if changed {
            let failed = |error: &Error| {
                tracing::error!(%error, "term, vote or configuration cannot be kept; trying again");
            };
            keep_trying(Duration::from_millis(200), failed, || self.state.lock().save());
        }
    }
}

impl Replica {
    /// Keeps term and vote of units that wait behind one which the log refuses, so that a member with a full disk can vote. Called again and again
    /// while it does.
    pub(super) fn keep_early(&self) {
        let wanted = {
            let units = self.units.lock();
            let wanted = units.iter().rev().find_map(|unit| Some((unit.seq, unit.hard_state?)));
            let Some(wanted) = wanted else { return };
            wanted
        };
        let (seq, hard_state) = wanted;
        let mut file = self.state.lock();
        if is_before(&file.state.hard_state, &hard_state) {
            let known = file.state.hard_state;
            check_hard_state(&known, &hard_state);
            // The log is as it was.
            file.state.hard_state = HardState { commit: known.commit, ..hard_state };
            if let Err(error) = file.save() {
                tracing::debug!(%error, "term and vote cannot be kept yet");
                file.state.hard_state = known;
                return;
            }
        } else if seq > file.early {
            // Others have kept it, or are about to.
            return;
        }
        file.early = file.early.max(seq);
        drop(file);
        self.with(|core| core.kept(seq));
    }
}

/// Whether a term and a vote are earlier ones.
fn is_before(one: &HardState, other: &HardState) -> bool {
    (one.term, one.vote.is_some()) < (other.term, other.vote.is_some())
}

/// A term that fell, or a second vote in one, could elect two primaries.
fn check_hard_state(known: &HardState, new: &HardState) {
    assert!(known.term <= new.term, "term {} is to be kept after {}", new.term, known.term);
    let given = known.term == new.term && known.vote.is_some();
    assert!(!given || known.vote == new.vote, "{new:?} is to be kept, the vote was given: {known:?}");
}

/// An entry of storage, as the core has it.
pub(super) fn to_core(entry: LogEntry) -> Entry {
    Entry { at: LogPosition::new(entry.term, entry.index), time: entry.time, payload: entry.payload }
}

fn from_core(entry: Entry) -> LogEntry {
    LogEntry { term: entry.at.term, index: entry.at.index, time: entry.time, payload: entry.payload }
}
