//! When operations succeeded, finely: to see how long there was no service around a fault, and how it felt.
//!
//! A trace is kept only for runs with faults. All threads write into it without locks: one bit for each millisecond in
//! which an operation of its kind succeeded, and for each tenth of a second a small histogram.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::results::Moment;

/// Length of a slot.
const SLOT_MS: u64 = 100;
/// Milliseconds of a part, which is allocated as a whole.
const PART_MS: u64 = 64_000;
/// Parts: a day and a half. What comes later is not kept.
const PARTS: usize = 2048;
/// Buckets of a slot: four for each doubling, from 1 us.
const BUCKETS: usize = 128;

/// When operations of one kind succeeded.
#[derive(Debug)]
pub struct Trace {
    parts: Vec<OnceLock<Box<Part>>>,
}

#[derive(Debug)]
struct Part {
    milliseconds: Vec<AtomicU64>,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    buckets: [AtomicU32; BUCKETS],
    errors: AtomicU32,
    max_us: AtomicU32,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            buckets: std::array::from_fn(|_| AtomicU32::new(0)),
            errors: AtomicU32::new(0),
            max_us: AtomicU32::new(0),
        }
    }
}

impl Default for Part {
    fn default() -> Part {
        let words = (PART_MS / 64) as usize;
        let slots = (PART_MS / SLOT_MS) as usize;
        Part {
            milliseconds: (0..words).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
        }
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace { parts: (0..PARTS).map(|_| OnceLock::new()).collect() }
    }
}

/// A time without any success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Milliseconds since the measured part began: of the last success before.
    pub from_ms: u64,
    /// Of the first success after; the end of the run when there was none.
    pub to_ms: u64,
}

impl Gap {
    /// Its length.
    pub fn length_ms(self) -> u64 {
        self.to_ms - self.from_ms
    }
}

/// The bucket of a latency.
fn bucket(us: u64) -> usize {
    if us < 4 {
        return us as usize;
    }
    let octave = us.ilog2() as usize;
    let quarter = (us >> (octave - 2)) as usize & 3;
    (octave * 4 + quarter).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle_us(bucket: usize) -> f64 {
    if bucket < 8 {
        return bucket.min(4) as f64;
    }
    let (octave, quarter) = (bucket / 4, bucket % 4);
    (4.5 + quarter as f64) * f64::powi(2.0, octave as i32 - 2)
}

impl Trace {
    /// Another one of these would double the part; it is made by whoever comes first.
    fn part(&self, ms: u64) -> Option<&Part> {
        let part = self.parts.get((ms / PART_MS) as usize)?;
        Some(part.get_or_init(Box::default))
    }

    /// An operation succeeded so long after the measured part began.
    pub fn succeeded(&self, at: Duration, took: Duration) {
        let ms = at.as_millis() as u64;
        let Some(part) = self.part(ms) else { return };
        let within = ms % PART_MS;
        let (word, bit) = (&part.milliseconds[(within / 64) as usize], 1 << (within % 64));
        // Mostly it is set already, and then nobody's cache line is taken away.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        let slot = &part.slots[(within / SLOT_MS) as usize];
        let us = took.as_micros().min(u128::from(u32::MAX)) as u64;
        slot.buckets[bucket(us)].fetch_add(1, Ordering::Relaxed);
        slot.max_us.fetch_max(us as u32, Ordering::Relaxed);
    }

    /// An operation failed for good.
    pub fn failed(&self, at: Duration) {
        let ms = at.as_millis() as u64;
        if let Some(part) = self.part(ms) {
            part.slots[(ms % PART_MS / SLOT_MS) as usize].errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The milliseconds with a success, in order.
    fn successes(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.parts.iter().enumerate().filter_map(|(at, part)| Some((at, part.get()?)));
        let words = words.flat_map(|(at, part)| {
            part.milliseconds.iter().enumerate().map(move |(index, word)| {
                (at as u64 * PART_MS + index as u64 * 64, word.load(Ordering::Relaxed))
            })
        });
        words.flat_map(|(first, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        })
    }

    /// The longest time without a success that has a part in this stretch. The run ended at `end_ms`.
    pub fn longest_gap(&self, stretch: std::ops::Range<u64>, end_ms: u64) -> Option<Gap> {
        let mut longest: Option<Gap> = None;
        let mut last = 0;
        for to_ms in self.successes().chain([end_ms]) {
            let gap = Gap { from_ms: last, to_ms: to_ms.max(last) };
            last = gap.to_ms;
            let overlaps = gap.to_ms > stretch.start && gap.from_ms < stretch.end;
            if overlaps && longest.is_none_or(|longest| gap.length_ms() > longest.length_ms()) {
                longest = Some(gap);
            }
        }
        longest
    }

    /// How it went in this stretch, by tenths of a second.
    pub fn moments(&self, stretch: std::ops::Range<u64>) -> Vec<Moment> {
        let first = stretch.start / SLOT_MS;
        let slots = (first..stretch.end.div_ceil(SLOT_MS)).map(|slot| slot * SLOT_MS);
        slots.map(|ms| self.moment(ms)).collect()
    }

    fn moment(&self, ms: u64) -> Moment {
        let at_s = ms as f64 / 1e3;
        let part = self.parts.get((ms / PART_MS) as usize).and_then(OnceLock::get);
        let Some(part) = part else { return Moment { at_s, ..Moment::default() } };
        let slot = &part.slots[(ms % PART_MS / SLOT_MS) as usize];
        let counts: Vec<u64> = slot.buckets.iter().map(|n| u64::from(n.load(Ordering::Relaxed))).collect();
        let count: u64 = counts.iter().sum();
        let mut seen = 0;
        let median = counts.iter().position(|n| {
            seen += n;
            seen * 2 >= count && count > 0
        });
        let max_us = f64::from(slot.max_us.load(Ordering::Relaxed));
        Moment {
            at_s,
            count,
            errors: u64::from(slot.errors.load(Ordering::Relaxed)),
            p50_us: median.map_or(0.0, middle_us).min(max_us),
            max_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn gaps_are_from_the_last_success_before_to_the_first_after() {
        let trace = Trace::default();
        // One each 10 ms, none between 2 and 3.5 s nor from 70 s on; across the border of parts, too.
        for at in (0..70_000).step_by(10).filter(|at| !(2_000..3_500).contains(at)) {
            trace.succeeded(ms(at), Duration::from_micros(300));
        }
        let gap = |from: u64, to: u64| trace.longest_gap(from..to, 71_000).unwrap();
        assert_eq!(gap(2_100, 2_200), Gap { from_ms: 1_990, to_ms: 3_500 });
        // The fault came a little before the last success.
        assert_eq!(gap(1_985, 10_000).length_ms(), 1_510);
        assert_eq!(gap(5_000, 6_000).length_ms(), 10);
        assert_eq!(gap(60_000, 80_000), Gap { from_ms: 69_990, to_ms: 71_000 });
        assert_eq!(Trace::default().longest_gap(0..10, 500), Some(Gap { from_ms: 0, to_ms: 500 }));
    }

    #[test]
    fn moments_have_count_median_and_worst() {
        let trace = Trace::default();
        for us in [200, 210, 220, 5_000, 90_000] {
            trace.succeeded(ms(1_250), Duration::from_micros(us));
        }
        trace.failed(ms(1_299));
        let moments = trace.moments(1_100..1_400);
        let counts: Vec<_> = moments.iter().map(|moment| (moment.at_s, moment.count)).collect();
        assert_eq!(counts, [(1.1, 0), (1.2, 5), (1.3, 0)]);
        let moment = &moments[1];
        assert_eq!((moment.errors, moment.max_us), (1, 90_000.0));
        assert!((moment.p50_us / 220.0 - 1.0).abs() < 0.13, "{}", moment.p50_us);
        // Far beyond what is kept: nothing, and no harm.
        trace.succeeded(Duration::from_secs(1 << 30), ms(1));
    }

    #[test]
    fn buckets_are_in_order_and_near() {
        let mut last = 0;
        for us in 1..2_000_000u64 {
            let bucket = bucket(us);
            assert!(bucket >= last && bucket < BUCKETS, "{us}");
            last = bucket;
            let error = middle_us(bucket) / us as f64 - 1.0;
            assert!(us < 8 || error.abs() < 0.13, "{us} is said to be {}", middle_us(bucket));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
