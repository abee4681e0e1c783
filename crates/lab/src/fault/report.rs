//! What faults did to a workload: how long there was no service, and how it went around each of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::measure::trace::{Gap, Trace};
use crate::results::Fault;
use crate::workload::Figure;

/// Operations that succeed less often than this, per second, are left out: how long one of them takes is no sign of a
/// service that is missing.
const OFTEN: f64 = 5.0;
/// What is shown before a fault and after its end.
const BEFORE_MS: u64 = 2_000;
const AFTER_MS: u64 = 6_000;
/// A gap that begins longer after the end of a fault is not its doing.
const AFTERMATH_MS: u64 = 15_000;
/// A gap that begins so shortly before the next fault is that one's doing: it begins with the last success before.
const BORDER_MS: u64 = 300;
/// Of so many faults it is kept how it went around them: of those that were felt most.
pub const DRAWN: usize = 12;

/// Completes the faults by what the operations' traces say. The run took `seconds`.
pub fn complete(faults: &mut [Fault], traces: &BTreeMap<String, Arc<Trace>>, seconds: f64) {
    let end_ms = (seconds * 1e3) as u64;
    let often = traces.iter().filter(|(_, trace)| {
        let count: u64 = trace.moments(0..end_ms).iter().map(|moment| moment.count).sum();
        count > 0 && count as f64 >= OFTEN * seconds
    });
    let often: Vec<(&String, &Arc<Trace>, Vec<Gap>)> =
        often.map(|(name, trace)| (name, trace, trace.gaps())).collect();
    let begins: Vec<u64> = faults.iter().map(|fault| (fault.at_s * 1e3) as u64).collect();
    for (index, fault) in faults.iter_mut().enumerate() {
        let (at, until) = (begins[index], over_ms(fault));
        let next = begins.get(index + 1).copied().unwrap_or(u64::MAX);
        let stretch = at..(until + AFTERMATH_MS).min(next.saturating_sub(BORDER_MS)).min(end_ms).max(at + 1);
        for (name, _, gaps) in &often {
            fault.gaps_ms.insert((*name).clone(), longest(gaps, &stretch) as f64);
        }
    }
    for index in most_felt(faults) {
        let shown = begins[index].saturating_sub(BEFORE_MS)..(over_ms(&faults[index]) + AFTER_MS).min(end_ms);
        for (name, trace, _) in &often {
            faults[index].around.insert((*name).clone(), trace.moments(shown.clone()));
        }
    }
}

/// When a fault was over: at once, where there was nothing to undo.
fn over_ms(fault: &Fault) -> u64 {
    let ms = |seconds: f64| (seconds * 1e3) as u64;
    fault.until_s.map_or(0, ms).max(ms(fault.at_s))
}

/// The longest of the gaps, which are in order, that has a part in this stretch; 0 when nobody waited.
fn longest(gaps: &[Gap], stretch: &Range<u64>) -> u64 {
    let first = gaps.partition_point(|gap| gap.to_ms <= stretch.start);
    let meets = gaps[first..].iter().take_while(|gap| gap.from_ms < stretch.end);
    meets.map(|gap| gap.length_ms()).max().unwrap_or(0)
}

/// The longest time without service after a fault, whatever was missing.
fn felt(fault: &Fault) -> f64 {
    fault.gaps_ms.values().copied().fold(0.0, f64::max)
}

/// The faults with the longest times without service.
fn most_felt(faults: &[Fault]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..faults.len()).collect();
    order.sort_by(|a, b| felt(&faults[*b]).total_cmp(&felt(&faults[*a])));
    order.truncate(DRAWN);
    order
}

/// Columns of the table that every run with faults has.
pub const COLUMNS: [&str; 3] = ["faults", "without service, median", "without service, worst"];

/// The values of [`COLUMNS`]: a fault's time without service is that of the kind of operation that missed it longest.
pub fn figures(faults: &[Fault]) -> Vec<Figure> {
    let mut gaps: Vec<f64> = faults.iter().map(felt).collect();
    gaps.sort_by(f64::total_cmp);
    let median = gaps.get(gaps.len() / 2).copied().unwrap_or(0.0);
    let worst = gaps.last().copied().unwrap_or(0.0);
    let [count, middle, most] = COLUMNS;
    vec![
        Figure::plain(count, "", faults.len() as f64),
        Figure::lower(middle, "us", median * 1e3),
        Figure::lower(most, "us", worst * 1e3),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn fault(at_s: f64, until_s: Option<f64>) -> Fault {
        Fault { at_s, until_s, ..Fault::default() }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_time_without_service_is_that_of_each_fault() {
        let (often, seldom, asked) = (Trace::default(), Trace::default(), Trace::default());
        for at in (0..30_000u64).filter(|at| !(5_000..6_200).contains(at) && !(20_000..20_080).contains(at)) {
            // Whoever comes after a gap has waited all the time.
            let took = if at == 6_200 {
                1_201
            } else if at == 20_080 {
                81
            } else {
                0
            };
            often.succeeded(ms(at), ms(took));
        }
        (0..30_000u64).step_by(1_000).for_each(|at| seldom.succeeded(ms(at), ms(300)));
        // Many at once every second, and nobody asks between.
        for at in (0..30_000u64).step_by(1_000) {
            (0..8).for_each(|_| asked.succeeded(ms(at), ms(2)));
        }
        let traces = [("put", often), ("audit", seldom), ("batch", asked)];
        let traces = traces.into_iter().map(|(name, trace)| (name.to_owned(), Arc::new(trace))).collect();
        let mut faults = [fault(2.0, None), fault(5.0, Some(8.0)), fault(19.99, None), fault(29.5, None)];
        complete(&mut faults, &traces, 30.0);
        let gaps = |name: &str| faults.iter().map(|fault| fault.gaps_ms[name]).collect::<Vec<f64>>();
        // The gap begins with a success 1 ms before the second fault, and is not the first one's.
        assert_eq!(gaps("put"), [0.0, 1201.0, 81.0, 0.0]);
        assert_eq!(gaps("batch"), [2.0, 2.0, 2.0, 0.0]);
        assert!(!faults[0].gaps_ms.contains_key("audit"), "once a second is not often");
        let around = &faults[1].around["put"];
        assert!((around[0].at_s, around.last().unwrap().at_s) == (3.0, 13.9));
        assert!(around.iter().any(|moment| moment.count == 0));
        let values: Vec<f64> = figures(&faults).iter().map(|figure| figure.value).collect();
        assert_eq!(values, [4.0, 81_000.0, 1_201_000.0]);
        assert_eq!(figures(&[]).iter().map(|figure| figure.value).sum::<f64>(), 0.0);
    }

    #[test]
    fn moments_are_kept_of_the_faults_that_were_felt_most() {
        let trace = Trace::default();
        for second in 0..100u64 {
            (0..10).for_each(|n| trace.succeeded(ms(second * 1_000 + n), ms(1)));
            // Longer and longer waits.
            trace.succeeded(ms(second * 1_000 + 20 + second), ms(second));
        }
        let traces = BTreeMap::from([("put".to_owned(), Arc::new(trace))]);
        let mut faults: Vec<Fault> = (0..20).map(|n| fault(f64::from(n) * 5.0, None)).collect();
        complete(&mut faults, &traces, 100.0);
        let kept: Vec<usize> = (0..20).filter(|at| !faults[*at].around.is_empty()).collect();
        assert_eq!(kept, (20 - DRAWN..20).collect::<Vec<_>>());
    }
}
