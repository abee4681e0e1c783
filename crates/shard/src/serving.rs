//! Showing the state at a cluster time, so that it never changes afterwards.
//!
//! The state at T is what has stamps up to T, and the transactions that committed as of T or before. It is final on a shard when nothing
//! can be stamped at or below T any more: this primary has seen T and stamps above it, and a next one stamps above the *ceiling*, a time
//! in the log that is above T and on a majority. What was proposed before T was seen must be on a majority too.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use crate::time::ClusterTime;

/// By how much a ceiling is ahead of the time at which it is put into the log.
const AHEAD_MILLIS: u64 = 2000;
/// A ceiling that is nearer than this is renewed while there are readers.
const RENEW_MILLIS: u64 = 1000;

/// What a shard has promised about its past, and who waits for such a promise. `R` names a reader.
#[derive(Debug)]
pub(crate) struct Serving<R> {
    /// The highest ceiling in the log.
    logged: ClusterTime,
    /// The highest ceiling on a majority.
    sure: ClusterTime,
    /// Ceilings by index that are not on a majority yet.
    unsure: VecDeque<(u64, ClusterTime)>,
    /// A ceiling was given to the driver and is not applied yet.
    asked: bool,
    leading: bool,
    applied: u64,
    majority: u64,
    /// Somebody has read since the ceiling was renewed.
    busy: bool,
    readers: BTreeMap<u64, Reader<R>>,
    next: u64,
    out: Vec<ServingEffect<R>>,
}

#[derive(Debug)]
struct Reader<R> {
    who: R,
    at: ClusterTime,
    index: u64,
    until: Until,
}

/// What a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The state is applied here: enough for a transaction, which asks again before it commits.
    Applied,
    /// The state is on a majority and will not change.
    Final,
}

#[derive(Debug, PartialEq)]
pub(crate) enum ServingEffect<R> {
    /// Put this ceiling into the log.
    Append(ClusterTime),
    /// Later entries are stamped above this.
    Observe(ClusterTime),
    /// The reader can begin.
    Ready(R),
}

impl<R> Serving<R> {
    /// A member's whose log is applied up to `applied`, with the highest ceiling found there.
    pub fn new(ceiling: ClusterTime, applied: u64) -> Self {
        Serving {
            logged: ceiling,
            sure: ClusterTime::ZERO,
            unsure: VecDeque::from([(applied, ceiling)]),
            asked: false,
            leading: false,
            applied,
            majority: 0,
            busy: false,
            readers: BTreeMap::new(),
            next: 0,
            out: Vec::new(),
        }
    }

    pub fn poll(&mut self) -> Vec<ServingEffect<R>> {
        mem::take(&mut self.out)
    }

    /// The highest ceiling in the log.
    pub fn ceiling(&self) -> ClusterTime {
        self.logged
    }

    /// A reader wants the state as of `at`, which this member's clock has seen. Before that, entries up to `last` had been proposed.
    /// `now` is the clock's time.
    pub fn read(&mut self, who: R, at: ClusterTime, last: u64, until: Until, now: ClusterTime) {
        self.next += 1;
        self.readers.insert(self.next, Reader { who, at, index: last, until });
        if until == Until::Final {
            self.busy = true;
            if self.logged <= at {
                self.raise(at.max(now));
            }
        }
        self.serve();
    }

    /// Forgets readers.
    pub fn cancel(&mut self, is_gone: impl Fn(&R) -> bool) {
        self.readers.retain(|_, reader| !is_gone(&reader.who));
    }

    /// `now` is the clock's time.
    pub fn tick(&mut self, now: ClusterTime) {
        let wanted =
            self.readers.values().filter(|reader| reader.until == Until::Final).map(|reader| reader.at).max();
        if wanted.is_some_and(|at| at >= self.logged) {
            self.raise(now.max(wanted.unwrap_or(now)));
        } else if self.busy && self.logged < now.plus_millis(RENEW_MILLIS) {
            self.busy = false;
            self.raise(now);
        }
    }

    fn raise(&mut self, from: ClusterTime) {
        if self.leading && !mem::replace(&mut self.asked, true) {
            self.out.push(ServingEffect::Append(from.plus_millis(AHEAD_MILLIS)));
        }
    }

    /// The ceiling could not be appended.
    pub fn append_failed(&mut self) {
        self.asked = false;
    }

    /// The log is applied up to `index`, where there is a ceiling or not.
    pub fn applied(&mut self, index: u64, ceiling: Option<ClusterTime>) {
        self.applied = self.applied.max(index);
        if let Some(ceiling) = ceiling {
            self.logged = self.logged.max(ceiling);
            self.unsure.push_back((index, ceiling));
            self.asked = false;
        }
        self.serve();
    }

    /// The log is on a majority up to `index`.
    pub fn majority(&mut self, index: u64) {
        self.majority = self.majority.max(index);
        while let Some((index, ceiling)) = self.unsure.front()
            && *index <= self.majority
        {
            self.sure = self.sure.max(*ceiling);
            self.unsure.pop_front();
        }
        self.serve();
    }

    /// Everything before the own term is applied: this member has heard of every time that its predecessors have shown.
    pub fn became_primary(&mut self) {
        self.leading = true;
        self.asked = false;
        self.out.push(ServingEffect::Observe(self.logged));
    }

    /// Nobody is served any more.
    pub fn lost_primary(&mut self) {
        self.leading = false;
        self.readers.clear();
    }

    fn serve(&mut self) {
        let (applied, majority, sure) = (self.applied, self.majority, self.sure);
        let is_ready = |reader: &Reader<R>| match reader.until {
            Until::Applied => reader.index <= applied,
            Until::Final => reader.index <= majority && reader.at < sure,
        };
        let ready = self.readers.iter().filter(|(_, reader)| is_ready(reader));
        let ready: Vec<u64> = ready.map(|(number, _)| *number).collect();
        for number in ready {
            self.out.extend(self.readers.remove(&number).map(|reader| ServingEffect::Ready(reader.who)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> ClusterTime {
        ClusterTime::from_micros(secs * 1_000_000)
    }

    fn primary() -> Serving<&'static str> {
        let mut serving = Serving::new(ClusterTime::ZERO, 0);
        serving.became_primary();
        serving.poll();
        serving
    }

    #[test]
    fn a_final_state_waits_for_a_ceiling_above_it_on_a_majority() {
        let mut serving = primary();
        serving.read("r", at(10), 3, Until::Final, at(10));
        assert_eq!(serving.poll(), [ServingEffect::Append(at(12))]);
        serving.applied(4, Some(at(12)));
        serving.majority(3);
        assert_eq!(serving.poll(), []);
        serving.majority(4);
        assert_eq!(serving.poll(), [ServingEffect::Ready("r")]);
        // Below it nothing more is needed; at it, another.
        serving.read("s", at(11), 4, Until::Final, at(11));
        assert_eq!(serving.poll(), [ServingEffect::Ready("s")]);
        serving.read("t", at(12), 4, Until::Final, at(11));
        assert_eq!(serving.poll(), [ServingEffect::Append(at(14))]);
    }

    #[test]
    fn what_was_proposed_before_is_waited_for() {
        let mut serving = primary();
        serving.applied(4, Some(at(12)));
        serving.majority(4);
        serving.read("applied", at(10), 6, Until::Applied, at(10));
        serving.read("final", at(10), 6, Until::Final, at(10));
        assert_eq!(serving.poll(), []);
        serving.applied(6, None);
        assert_eq!(serving.poll(), [ServingEffect::Ready("applied")]);
        serving.majority(6);
        assert_eq!(serving.poll(), [ServingEffect::Ready("final")]);
    }

    #[test]
    fn a_new_primary_stamps_above_the_ceiling_that_it_has_not_seen_committed() {
        let mut serving: Serving<()> = Serving::new(at(3), 5);
        serving.applied(6, Some(at(7)));
        serving.became_primary();
        assert_eq!(serving.poll(), [ServingEffect::Observe(at(7))]);
    }

    #[test]
    fn a_ceiling_is_renewed_while_there_are_readers() {
        let mut serving = primary();
        serving.applied(1, Some(at(12)));
        serving.majority(1);
        serving.tick(at(12));
        assert_eq!(serving.poll(), []);
        serving.read("r", at(11), 1, Until::Final, at(11));
        serving.poll();
        serving.tick(at(12));
        assert_eq!(serving.poll(), [ServingEffect::Append(at(14))]);
    }
}
