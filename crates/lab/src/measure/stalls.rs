//! Stalls: times in which operations of a kind were under way and none of them succeeded.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::trace::{Gap, Trace};
use crate::results::Stall;

/// Shorter ones are no stalls, in milliseconds.
pub const STALL_MS: u64 = 100;
/// Longer ones are more than a person overlooks.
pub const LONG_MS: u64 = 250;
/// A kind of operation that succeeds less often than this, per second, has no stalls: how long one of them takes is its
/// own.
const OFTEN: f64 = 5.0;
/// So many are kept for the page: the longest.
const KEPT: usize = 500;

/// Stalls of some kinds of operations together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// The longest time in which nothing of some kind succeeded, in milliseconds.
    pub longest_ms: u64,
    /// Stalls of more than [`STALL_MS`]; those of several kinds at once are one.
    pub over_100: usize,
    /// Of more than [`LONG_MS`].
    pub over_250: usize,
}

impl Stalls {
    /// Of the kinds with these names, in a part of the run that took `seconds`.
    pub fn of(traces: &BTreeMap<String, Arc<Trace>>, names: &[&str], seconds: f64) -> Stalls {
        let often =
            names.iter().filter_map(|name| traces.get(*name)).filter(|trace| is_often(trace, seconds));
        let gaps: Vec<Gap> = often.flat_map(|trace| trace.gaps()).collect();
        let over = |ms: u64| merged(gaps.iter().copied().filter(|gap| gap.length_ms() > ms).collect());
        Stalls {
            longest_ms: gaps.iter().map(|gap| gap.length_ms()).max().unwrap_or(0),
            over_100: over(STALL_MS),
            over_250: over(LONG_MS),
        }
    }
}

fn is_often(trace: &Trace, seconds: f64) -> bool {
    let count = trace.count();
    count > 0 && count as f64 >= OFTEN * seconds
}

/// How many they are when those that overlap count as one.
fn merged(mut gaps: Vec<Gap>) -> usize {
    gaps.sort_by_key(|gap| gap.from_ms);
    let (mut count, mut until) = (0, 0);
    for gap in gaps {
        if count == 0 || gap.from_ms >= until {
            count += 1;
        }
        until = until.max(gap.to_ms);
    }
    count
}

/// The longest stalls of all kinds, in the order in which they began. `seconds` is how long the kind was asked for.
pub fn longest(traces: &BTreeMap<String, Arc<Trace>>, seconds: impl Fn(&str) -> f64) -> Vec<Stall> {
    let mut stalls = Vec::new();
    for (name, trace) in traces.iter().filter(|(name, trace)| is_often(trace, seconds(name))) {
        let gaps = trace.gaps().into_iter().filter(|gap| gap.length_ms() > STALL_MS);
        stalls.extend(gaps.map(|gap| Stall {
            operation: name.clone(),
            at_s: gap.from_ms as f64 / 1e3,
            ms: gap.length_ms() as f64,
        }));
    }
    stalls.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    stalls.truncate(KEPT);
    stalls.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    stalls
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// One success each 10 ms, but not within the gaps, whose ends have waited all the time.
    fn trace(gaps: &[std::ops::Range<u64>]) -> Arc<Trace> {
        let trace = Trace::default();
        for at in (10..10_000).step_by(10).filter(|at| !gaps.iter().any(|gap| gap.contains(at))) {
            let took = gaps.iter().find(|gap| gap.end == at).map_or(10, |gap| gap.end - gap.start + 10);
            trace.succeeded(ms(at), ms(took));
        }
        Arc::new(trace)
    }

    #[test]
    fn stalls_of_several_kinds_at_once_are_one() {
        let seldom = Trace::default();
        seldom.succeeded(ms(5_000), ms(4_000));
        let traces = BTreeMap::from([
            ("read".to_owned(), trace(&[2_000..2_150, 6_000..6_300])),
            ("update".to_owned(), trace(&[2_050..2_200, 8_000..8_120])),
            ("scan".to_owned(), Arc::new(seldom)),
        ]);
        let stalls = Stalls::of(&traces, &["read", "update", "scan", "nothing"], 10.0);
        assert_eq!(stalls, Stalls { longest_ms: 310, over_100: 3, over_250: 1 });
        assert_eq!(Stalls::of(&traces, &["update"], 10.0).longest_ms, 160);
        assert_eq!(Stalls::of(&traces, &[], 10.0), Stalls::default());
        let kept = longest(&traces, |_| 10.0);
        let kept: Vec<(&str, f64)> = kept.iter().map(|stall| (stall.operation.as_str(), stall.ms)).collect();
        assert_eq!(kept, [("read", 160.0), ("update", 160.0), ("read", 310.0), ("update", 130.0)]);
    }
}
