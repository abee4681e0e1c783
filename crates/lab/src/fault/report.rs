//! What faults did to a workload: how long there was no service, and how it went around each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::measure::trace::Trace;
use crate::results::Fault;
use crate::workload::Figure;

/// Operations that succeed less often than this, per second, have gaps without any fault.
const OFTEN: f64 = 5.0;
/// What is shown before a fault and after its end.
const BEFORE_MS: u64 = 2_000;
const AFTER_MS: u64 = 6_000;
/// A gap that begins longer after the end of a fault is not its doing.
const AFTERMATH_MS: u64 = 15_000;
/// A gap that begins so shortly before the next fault is that one's doing: it begins with the last success before.
const BORDER_MS: u64 = 300;

/// Completes the faults by what the operations' traces say. The run took `seconds`.
pub fn complete(faults: &mut [Fault], traces: &BTreeMap<String, Arc<Trace>>, seconds: f64) {
    let end_ms = (seconds * 1e3) as u64;
    let often: Vec<(&String, &Arc<Trace>)> = traces
        .iter()
        .filter(|(_, trace)| {
            let count: u64 = trace.moments(0..end_ms).iter().map(|moment| moment.count).sum();
            count > 0 && count as f64 >= OFTEN * seconds
        })
        .collect();
    let begins: Vec<u64> = faults.iter().map(|fault| (fault.at_s * 1e3) as u64).collect();
    for (index, fault) in faults.iter_mut().enumerate() {
        let at = begins[index];
        let until = fault.until_s.map_or(at, |until| (until * 1e3) as u64).max(at);
        let next = begins.get(index + 1).copied().unwrap_or(u64::MAX);
        let stretch = at..(until + AFTERMATH_MS).min(next.saturating_sub(BORDER_MS)).min(end_ms).max(at + 1);
        let shown = at.saturating_sub(BEFORE_MS)..(until + AFTER_MS).min(end_ms);
        for (name, trace) in &often {
            if let Some(gap) = trace.longest_gap(stretch.clone(), end_ms) {
                fault.gaps_ms.insert((*name).clone(), gap.length_ms() as f64);
            }
            fault.around.insert((*name).clone(), trace.moments(shown.clone()));
        }
    }
}

/// Columns of the table that every run with faults has.
pub const COLUMNS: [&str; 3] = ["faults", "without service, median", "without service, worst"];

/// The values of [`COLUMNS`]: a fault's time without service is that of the kind of operation that missed it longest.
pub fn figures(faults: &[Fault]) -> Vec<Figure> {
    let longest = |fault: &Fault| fault.gaps_ms.values().copied().fold(0.0, f64::max);
    let mut gaps: Vec<f64> = faults.iter().map(longest).collect();
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

    #[test]
    fn the_time_without_service_is_that_of_each_fault() {
        let (often, seldom) = (Trace::default(), Trace::default());
        for ms in (0..30_000u64).filter(|ms| !(5_000..6_200).contains(ms) && !(20_000..20_080).contains(ms)) {
            often.succeeded(Duration::from_millis(ms), Duration::from_micros(500));
        }
        for ms in (0..30_000u64).step_by(1_000) {
            seldom.succeeded(Duration::from_millis(ms), Duration::from_micros(500));
        }
        let traces = BTreeMap::from([("put".into(), Arc::new(often)), ("audit".into(), Arc::new(seldom))]);
        let fault = |at_s: f64, until_s| Fault { at_s, until_s, ..Fault::default() };
        let mut faults = [fault(2.0, None), fault(5.0, Some(8.0)), fault(19.99, None), fault(29.0, None)];
        complete(&mut faults, &traces, 30.0);
        let gaps: Vec<f64> = faults.iter().map(|fault| fault.gaps_ms["put"]).collect();
        // The gap begins with a success 1 ms before the second fault, and is not the first one's.
        assert_eq!(gaps, [1.0, 1201.0, 81.0, 1.0]);
        assert!(!faults[0].gaps_ms.contains_key("audit"), "once a second has gaps of its own");
        let around = &faults[1].around["put"];
        assert!((around[0].at_s, around.last().unwrap().at_s) == (3.0, 13.9));
        assert!(around.iter().any(|moment| moment.count == 0));
        let values: Vec<f64> = figures(&faults).iter().map(|figure| figure.value).collect();
        assert_eq!(values, [4.0, 81_000.0, 1_201_000.0]);
        assert_eq!(figures(&[]).iter().map(|figure| figure.value).sum::<f64>(), 0.0);
    }
}
