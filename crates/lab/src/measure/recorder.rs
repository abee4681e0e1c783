//! Latencies: recorded per thread, merged at the end and, for the series, once a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::trace::Trace;
use crate::results;

/// Decimal digits that the whole histogram keeps.
const DIGITS: u8 = 3;
/// Decimal digits of the histograms by second, of which there are many.
const SERIES_DIGITS: u8 = 2;

/// What one thread has measured in one run.
#[derive(Debug, Default)]
pub struct Local {
    operations: Vec<LocalOperation>,
    keep_calls: bool,
    /// Seconds that the thread was ready to run but had no processor.
    pub(crate) queued_s: f64,
}

#[derive(Debug)]
struct LocalOperation {
    name: String,
    histogram: Histogram<u64>,
    errors: u64,
    retries: u64,
    /// Each measured call: when it ended, how long it took.
    calls: Vec<(Instant, Duration)>,
    /// The second that `current` is about.
    second: u32,
    current: Bucket,
    /// Where it is noted more finely, too.
    trace: Option<Arc<Trace>>,
}

/// What happened in one second.
#[derive(Clone, Debug)]
struct Bucket {
    histogram: Histogram<u64>,
    sum_ns: u128,
    errors: u64,
}

impl Default for Bucket {
    fn default() -> Self {
        Bucket { histogram: histogram(SERIES_DIGITS), sum_ns: 0, errors: 0 }
    }
}

impl Bucket {
    fn is_empty(&self) -> bool {
        self.histogram.is_empty() && self.errors == 0
    }

    fn clear(&mut self) {
        self.histogram.reset();
        self.sum_ns = 0;
        self.errors = 0;
    }

    fn add(&mut self, other: &Bucket) {
        add(&mut self.histogram, &other.histogram);
        self.sum_ns += other.sum_ns;
        self.errors += other.errors;
    }

    fn second(&self, at_s: f64) -> results::Second {
        let count = self.histogram.len();
        let us = |quantile: f64| {
            if count == 0 { 0.0 } else { self.histogram.value_at_quantile(quantile) as f64 / 1e3 }
        };
        results::Second {
            at_s,
            count,
            errors: self.errors,
            mean_us: if count == 0 { 0.0 } else { self.sum_ns as f64 / count as f64 / 1e3 },
            p50_us: us(0.5),
            p95_us: us(0.95),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: if count == 0 { 0.0 } else { self.histogram.max() as f64 / 1e3 },
        }
    }
}

fn histogram(digits: u8) -> Histogram<u64> {
    // Up to four seconds without growing; it grows for anything longer.
    let mut histogram = Histogram::new_with_bounds(1, 4_000_000_000, digits)
        .unwrap_or_else(|_| unreachable!("constant bounds"));
    histogram.auto(true);
    histogram
}

fn add(to: &mut Histogram<u64>, from: &Histogram<u64>) {
    // Both grow when they must, so that nothing is out of bounds.
    to.add(from).unwrap_or_else(|error| unreachable!("{error:?}"));
}

fn record(to: &mut Histogram<u64>, ns: u64) {
    // It grows when it must, and a day is far from where it could not.
    to.record(ns).unwrap_or_else(|error| unreachable!("{error:?}"));
}

/// Longer operations than this count as this.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

fn nanoseconds(took: Duration) -> u64 {
    (took.min(LONGEST).as_nanos() as u64).max(1)
}

impl Local {
    /// Empty; with `keep_calls` each call's latency is kept in order.
    pub fn new(keep_calls: bool) -> Local {
        Local { operations: Vec::new(), keep_calls, queued_s: 0.0 }
    }

    /// An operation that ended well.
    pub fn succeeded(&mut self, recorder: &Recorder, name: &str, took: Duration, ended: Instant) {
        let keep_calls = self.keep_calls;
        let operation = self.operation(recorder, name);
        let ns = nanoseconds(took);
        record(&mut operation.histogram, ns);
        operation.enter_second(recorder, ended);
        if let Some(trace) = &operation.trace {
            trace.succeeded(recorder.since_origin(ended), took);
        }
        record(&mut operation.current.histogram, ns);
        operation.current.sum_ns += u128::from(ns);
        if keep_calls {
            operation.calls.push((ended, took));
        }
    }

    /// An operation that failed for good, after so long.
    pub fn failed(&mut self, recorder: &Recorder, name: &str, took: Duration, ended: Instant) {
        let operation = self.operation(recorder, name);
        operation.errors += 1;
        operation.enter_second(recorder, ended);
        if let Some(trace) = &operation.trace {
            trace.failed(recorder.since_origin(ended), took);
        }
        operation.current.errors += 1;
    }

    /// Tries that were repeated; the last of them took so long until then.
    pub fn retried(&mut self, recorder: &Recorder, name: &str, tries: u64, took: Duration, ended: Instant) {
        let operation = self.operation(recorder, name);
        operation.retries += tries;
        if let Some(trace) = &operation.trace {
            trace.tried(recorder.since_origin(ended), took);
        }
    }

    fn operation(&mut self, recorder: &Recorder, name: &str) -> &mut LocalOperation {
        let at = self.operations.iter().position(|operation| operation.name == name).unwrap_or_else(|| {
            self.operations.push(LocalOperation {
                name: name.to_owned(),
                histogram: histogram(DIGITS),
                errors: 0,
                retries: 0,
                calls: Vec::new(),
                second: 0,
                current: Bucket::default(),
                trace: recorder.trace(name),
            });
            self.operations.len() - 1
        });
        &mut self.operations[at]
    }

    /// Hands what is left to the recorder; the totals of this thread stay.
    pub fn finish(&mut self, recorder: &Recorder) {
        for operation in &mut self.operations {
            operation.flush(recorder);
        }
    }
}

impl LocalOperation {
    fn enter_second(&mut self, recorder: &Recorder, now: Instant) {
        let second = recorder.second_of(now);
        if second != self.second {
            self.flush(recorder);
            self.second = second;
        }
    }

    fn flush(&mut self, recorder: &Recorder) {
        if !self.current.is_empty() {
            recorder.add_second(&self.name, self.second, &self.current);
            self.current.clear();
        }
    }
}

/// What all clients of one run (`Context::run`) have measured together.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Length of the measured part.
    pub seconds: f64,
    /// Clients that ran at once.
    pub clients: u32,
    /// By kind of operation.
    pub operations: BTreeMap<String, Totals>,
    /// Operations of an open loop that were due but never started.
    pub missed: u64,
    /// Seconds that the clients' threads together were ready to run but had no processor.
    pub queued_s: f64,
}

/// What was measured of one kind of operation.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Latencies of those that succeeded, in nanoseconds.
    pub histogram: Histogram<u64>,
    /// Operations that failed for good.
    pub errors: u64,
    /// Tries that were repeated.
    pub retries: u64,
    /// Each call: when it ended, how long it took; in the order in which they ended.
    pub calls: Vec<(Instant, Duration)>,
    /// The most that succeeded in one full second.
    pub peak: f64,
}

impl Default for Totals {
    fn default() -> Self {
        Totals { histogram: histogram(DIGITS), errors: 0, retries: 0, calls: Vec::new(), peak: 0.0 }
    }
}

impl Totals {
    /// Operations that succeeded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// A percentile ("99.9") in microseconds; 0 when there is nothing.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        if self.histogram.is_empty() {
            0.0
        } else {
            self.histogram.value_at_quantile(percent / 100.0) as f64 / 1e3
        }
    }

    /// The mean in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.histogram.mean() / 1e3
    }

    /// The shortest in microseconds.
    pub fn min_us(&self) -> f64 {
        if self.histogram.is_empty() { 0.0 } else { self.histogram.min() as f64 / 1e3 }
    }

    /// The longest in microseconds.
    pub fn max_us(&self) -> f64 {
        if self.histogram.is_empty() { 0.0 } else { self.histogram.max() as f64 / 1e3 }
    }

    fn add(&mut self, other: &Totals) {
        add(&mut self.histogram, &other.histogram);
        self.errors += other.errors;
        self.retries += other.retries;
        self.calls.extend_from_slice(&other.calls);
        self.calls.sort_by_key(|(ended, _)| *ended);
        self.peak = self.peak.max(other.peak);
    }
}

impl Measured {
    /// What was measured of this kind of operation; empty when it never happened.
    pub fn operation(&self, name: &str) -> Totals {
        self.operations.get(name).cloned().unwrap_or_default()
    }

    /// Operations of this kind that succeeded, per second.
    pub fn rate(&self, name: &str) -> f64 {
        let count = self.operations.get(name).map_or(0, Totals::count);
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }

    /// This run as a step of the report.
    pub fn step(&self) -> results::Step {
        let rate = |(name, totals): (&String, &Totals)| {
            let average = self.rate(name);
            // A run of less than a second has no full second.
            (name.clone(), results::Rate { average, peak: totals.peak.max(average) })
        };
        results::Step { clients: self.clients, rates: self.operations.iter().map(rate).collect() }
    }

    pub(crate) fn add_local(&mut self, local: Local) {
        self.queued_s += local.queued_s;
        for operation in local.operations {
            let totals = Totals {
                histogram: operation.histogram,
                errors: operation.errors,
                retries: operation.retries,
                calls: operation.calls,
                peak: 0.0,
            };
            self.operations.entry(operation.name).or_default().add(&totals);
        }
    }
}

/// Everything that one repetition measures.
#[derive(Debug, Default)]
pub struct Recorder {
    /// When the first measured part began.
    origin: OnceLock<Instant>,
    /// By kind of operation and second since the origin.
    seconds: Mutex<BTreeMap<String, BTreeMap<u32, Bucket>>>,
    runs: Mutex<Vec<Measured>>,
    /// By kind of operation, if traces are kept.
    traces: Option<Mutex<BTreeMap<String, Arc<Trace>>>>,
}

/// A second of one kind of operation, for the live view.
#[derive(Clone, Debug, PartialEq)]
pub struct Now {
    /// "insert".
    pub name: String,
    /// Operations per second.
    pub rate: f64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

impl Recorder {
    /// One that keeps traces.
    pub fn tracing() -> Recorder {
        Recorder { traces: Some(Mutex::default()), ..Recorder::default() }
    }

    fn trace(&self, name: &str) -> Option<Arc<Trace>> {
        let mut traces = self.traces.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(traces.entry(name.to_owned()).or_default().clone())
    }

    /// The traces by kind of operation; none when none are kept.
    pub fn traces(&self) -> BTreeMap<String, Arc<Trace>> {
        let traces = self.traces.as_ref().map(|traces| traces.lock().unwrap_or_else(PoisonError::into_inner));
        traces.map(|traces| traces.clone()).unwrap_or_default()
    }

    fn since_origin(&self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.origin.get_or_init(|| now))
    }

    /// Says when the measured part began; what the first caller says, counts.
    pub fn begin(&self, at: Instant) {
        self.origin.get_or_init(|| at);
    }

    /// When the measured part began.
    pub fn origin(&self) -> Option<Instant> {
        self.origin.get().copied()
    }

    fn second_of(&self, now: Instant) -> u32 {
        self.since_origin(now).as_secs() as u32
    }

    fn add_second(&self, name: &str, second: u32, bucket: &Bucket) {
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        if !seconds.contains_key(name) {
            seconds.insert(name.to_owned(), BTreeMap::new());
        }
        if let Some(series) = seconds.get_mut(name) {
            series.entry(second).or_default().add(bucket);
        }
    }

    /// Takes in a run that has ended, and finds its best seconds: those that lie wholly in it.
    pub(crate) fn add_run(&self, mut run: Measured, began: Instant, ended: Instant) -> Measured {
        let (first, last) = (self.second_of(began), self.second_of(ended));
        let origin = self.origin().unwrap_or(began);
        let first_full =
            if began > origin + Duration::from_secs(u64::from(first)) { first + 1 } else { first };
        let seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, totals) in &mut run.operations {
            let full = seconds
                .get(name)
                .into_iter()
                .flat_map(|series| series.range(first_full..last.max(first_full)));
            totals.peak = full.map(|(_, bucket)| bucket.histogram.len()).max().unwrap_or(0) as f64;
        }
        drop(seconds);
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).push(run.clone());
        run
    }

    /// All runs of the repetition together.
    pub fn measured(&self) -> Measured {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Measured::default();
        for run in runs.iter() {
            all.seconds += run.seconds;
            all.clients = all.clients.max(run.clients);
            all.missed += run.missed;
            all.queued_s += run.queued_s;
            for (name, totals) in &run.operations {
                all.operations.entry(name.clone()).or_default().add(totals);
            }
        }
        all
    }

    /// The last full second, for the live view.
    pub fn now(&self) -> Vec<Now> {
        let Some(origin) = self.origin() else { return Vec::new() };
        let Some(second) = (origin.elapsed().as_secs() as u32).checked_sub(1) else { return Vec::new() };
        let seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        seconds
            .iter()
            .map(|(name, series)| {
                let second = series.get(&second).cloned().unwrap_or_default().second(0.0);
                Now {
                    name: name.clone(),
                    rate: second.count as f64,
                    p50_us: second.p50_us,
                    p99_us: second.p99_us,
                }
            })
            .collect()
    }

    /// The repetition's operations as the results have them.
    pub fn operations(&self) -> Vec<results::Operation> {
        let seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        let operation = |(name, totals): (String, Totals)| {
            let series = seconds.get(&name).map(whole_series).unwrap_or_default();
            results::Operation {
                count: totals.count(),
                errors: totals.errors,
                retries: totals.retries,
                // Writing into memory does not fail.
                histogram: crate::stats::encode_histogram(&totals.histogram).unwrap_or_default(),
                series,
                calls_us: totals.calls.iter().map(|(_, took)| took.as_secs_f64() * 1e6).collect(),
                name,
            }
        };
        self.measured().operations.into_iter().map(operation).collect()
    }
}

/// Every second from the first to the last, also those in which nothing ended: there was no service then.
fn whole_series(seconds: &BTreeMap<u32, Bucket>) -> Vec<results::Second> {
    let (Some((first, _)), Some((last, _))) = (seconds.first_key_value(), seconds.last_key_value()) else {
        return Vec::new();
    };
    let second = |second: u32| match seconds.get(&second) {
        Some(bucket) => bucket.second(f64::from(second)),
        None => results::Second { at_s: f64::from(second), ..results::Second::default() },
    };
    (*first..=*last).map(second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_merged() {
        let recorder = Recorder::tracing();
        let origin = Instant::now();
        recorder.begin(origin);
        let mut run = Measured { seconds: 3.0, clients: 2, ..Measured::default() };
        for thread in 0..2u64 {
            let mut local = Local::new(true);
            for n in 0..300u64 {
                // A hundred in each of three seconds.
                let ended = origin + Duration::from_millis(n * 10 + thread);
                local.succeeded(&recorder, "insert", Duration::from_micros(100 + n), ended);
            }
            let ended = origin + Duration::from_millis(2500);
            local.failed(&recorder, "insert", Duration::ZERO, ended);
            local.retried(&recorder, "insert", 4, Duration::ZERO, ended);
            local.finish(&recorder);
            run.add_local(local);
        }
        let run = recorder.add_run(run, origin, origin + Duration::from_secs(3));
        let totals = run.operation("insert");
        assert_eq!((totals.count(), totals.errors, totals.retries), (600, 2, 8));
        assert_eq!(totals.peak, 200.0);
        assert!((totals.percentile_us(50.0) - 249.0).abs() < 2.0, "{}", totals.percentile_us(50.0));
        assert!((totals.max_us() - 399.0).abs() < 1.0);
        assert_eq!(run.rate("insert"), 200.0);

        assert!(
            recorder.traces()["insert"].gaps().is_empty(),
            "nobody ever waited for more than a millisecond"
        );
        assert!(Recorder::default().traces().is_empty());

        let operations = recorder.operations();
        assert_eq!(operations.len(), 1);
        let insert = &operations[0];
        assert_eq!((insert.count, insert.errors, insert.retries), (600, 2, 8));
        let series: Vec<_> = insert.series.iter().map(|s| (s.at_s, s.count, s.errors)).collect();
        assert_eq!(series, [(0.0, 200, 0), (1.0, 200, 0), (2.0, 200, 2)]);
        assert!((insert.series[0].mean_us - 149.5).abs() < 0.1);
        // In the order in which they ended: the threads take turns.
        assert_eq!(insert.calls_us.len(), 600);
        assert_eq!(insert.calls_us[..4], [100.0, 100.0, 101.0, 101.0]);
        let back = crate::stats::decode_histogram(&insert.histogram).unwrap();
        assert_eq!((back.len(), back.max()), (600, totals.histogram.max()));
    }

    #[test]
    fn values_beyond_the_bounds_are_kept() {
        let recorder = Recorder::default();
        let mut local = Local::new(false);
        let long = Duration::from_secs(7200);
        local.succeeded(&recorder, "find", long, Instant::now());
        local.finish(&recorder);
        let mut run = Measured::default();
        run.add_local(local);
        let took = run.operation("find").max_us() / 1e6;
        assert!((took - 7200.0).abs() < 10.0, "{took}");
    }

    #[test]
    fn a_second_without_service_is_in_the_series() {
        let (recorder, origin) = (Recorder::default(), Instant::now());
        recorder.begin(origin);
        let mut local = Local::new(false);
        for ms in [1_100, 1_200, 4_500] {
            local.succeeded(&recorder, "put", Duration::from_micros(80), origin + Duration::from_millis(ms));
        }
        local.finish(&recorder);
        let mut run = Measured::default();
        run.add_local(local);
        recorder.add_run(run, origin, origin + Duration::from_secs(5));
        let series = recorder.operations().remove(0).series;
        let counts: Vec<_> = series.iter().map(|second| (second.at_s, second.count)).collect();
        assert_eq!(counts, [(1.0, 2), (2.0, 0), (3.0, 0), (4.0, 1)]);
    }

    #[test]
    fn what_never_happened_is_zero() {
        let run = Measured::default();
        assert_eq!(run.rate("find"), 0.0);
        assert_eq!(run.operation("find").percentile_us(99.0), 0.0);
        assert_eq!(run.operation("find").min_us(), 0.0);
    }
}
