//! A made-up run that has something of everything, for the tests of the reports and for looking at them.

use std::collections::BTreeMap;

use super::results::{
    Better, Check, CommandLine, Environment, Fault, Metric, Moment, Operation, Rate, Repetition, Row,
    RunResult, SCHEMA, Second, ServerSeries, Stall, Step,
};

/// Numbers that look like chance and are the same each time.
struct Noise(u64);

impl Noise {
    /// 0 .. 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1_u64 << 31) as f64
    }

    /// Around `middle`, with a long tail to the right.
    fn latency_us(&mut self, middle: f64) -> f64 {
        let body = middle * (0.75 + 0.5 * self.next());
        let tail = self.next();
        body * if tail > 0.999 {
            60.0
        } else if tail > 0.985 {
            8.0
        } else if tail > 0.9 {
            2.0
        } else {
            1.0
        }
    }
}

const SECONDS: u32 = 60;
const REPETITIONS: usize = 5;

/// Four rows of five repetitions, all checks passed.
pub fn run() -> RunResult {
    let rows = [
        ("normal, journal off", 900.0, 55.0),
        ("normal, journal on", 640.0, 60.0),
        ("safe, journal off", 410.0, 70.0),
        ("safe, journal on", 170.0, 420.0),
    ];
    RunResult {
        schema: SCHEMA,
        experiment: "most-single".into(),
        title: "Documents of 16 KB written by six threads while others read them back (made-up figures)"
            .into(),
        started_ms: 1_795_237_384_000,
        duration_s: 743.0,
        scale: 0.1,
        settings: BTreeMap::from([("threads".into(), "6".into())]),
        environment: environment(),
        commands: commands(),
        rows: rows.into_iter().zip(1..).map(|((name, speed, us), seed)| row(name, speed, us, seed)).collect(),
        warnings: vec![
            "The load generator used 38 % of the processors in row \"normal, journal off\".".into(),
        ],
    }
}

/// The same with a wrong balance in one row and a row that was not finished.
pub fn failed_run() -> RunResult {
    let mut run = run();
    run.experiment = "bank".into();
    run.rows[1].repetitions[1].checks[0] =
        Check { name: "total balance".into(), passed: false, detail: "999,900 instead of 1,000,000".into() };
    run.rows[3].failed = Some("server ended with signal 9".into());
    run.rows[3].repetitions.truncate(1);
    run.rows[3].metrics.clear();
    run
}

#[allow(dead_code)] // the example alone compares
/// The same on another machine: what costs no fsync is faster, the tail of what does is slower.
pub fn other_run() -> RunResult {
    let mut run = run();
    run.environment.cpu = "Example CPU 3.6 GHz".into();
    for (row, factor) in run.rows.iter_mut().zip([1.25, 1.16, 1.02, 1.0]) {
        for metric in row.metrics.iter_mut().filter(|m| m.unit == "MB/s") {
            metric.values.iter_mut().for_each(|v| *v *= factor);
        }
        let tail = row.metrics.last_mut().expect("rows have metrics");
        tail.values.iter_mut().for_each(|v| *v *= factor * factor);
    }
    run
}

fn row(name: &str, speed: f64, us: f64, seed: u64) -> Row {
    let mut noise = Noise(seed);
    let repetitions: Vec<Repetition> = (0..REPETITIONS).map(|_| repetition(speed, us, &mut noise)).collect();
    let mut values =
        |middle: f64| (0..REPETITIONS).map(|_| middle * (0.94 + 0.12 * noise.next())).collect::<Vec<f64>>();
    let metrics = vec![
        metric("MB/s written", "MB/s", Better::Higher, values(speed)),
        metric("MB/s read", "MB/s", Better::Higher, values(speed * 1.7)),
        metric("consistent reads", "%", Better::Higher, vec![100.0; REPETITIONS]),
        metric("write p99", "us", Better::Lower, values(us * 8.0)),
    ];
    let variation = BTreeMap::from([("acknowledge".into(), name.into())]);
    Row { name: name.into(), variation, target: "sheaf 0.1.0".into(), metrics, repetitions, failed: None }
}

fn metric(name: &str, unit: &str, better: Better, values: Vec<f64>) -> Metric {
    Metric { name: name.into(), unit: unit.into(), better: Some(better), values, aim: None }
}

fn repetition(speed: f64, us: f64, noise: &mut Noise) -> Repetition {
    let check = |name: &str, detail: &str| Check { name: name.into(), passed: true, detail: detail.into() };
    Repetition {
        seconds: f64::from(SECONDS),
        operations: vec![
            operation("write", speed * 4.0, us, noise),
            operation("read", speed * 40.0, us / 2.0, noise),
        ],
        steps: (0..8).map(|power| step(1 << power, speed, noise)).collect(),
        checks: vec![
            check("count", "104,857 documents, as many as were acknowledged"),
            check("contents", "every checksum right"),
        ],
        servers: vec![server(speed, noise)],
        client_cpu_s: 22.5,
        server_cpu_s: Some(71.0),
        disk_bytes: BTreeMap::from([("127.0.0.1:27018".into(), 1_734_000_123)]),
        faults: vec![fault(us, noise)],
        stalls: vec![Stall { operation: "write".into(), at_s: 31.5, ms: 2013.0 }],
    }
}

/// The pause at 31.5 s.
fn fault(us: f64, noise: &mut Noise) -> Fault {
    let mut moment = |tenth: u32| {
        let at_s = f64::from(tenth) / 10.0;
        let paused = (31.5..33.5).contains(&at_s);
        let p50_us = if paused { 0.0 } else { us * (0.9 + 0.2 * noise.next()) };
        let worst = if at_s == 33.5 { 2_000_000.0 } else { p50_us * (10.0 + 20.0 * noise.next()) };
        Moment { at_s, count: if paused { 0 } else { 40 }, errors: 0, p50_us, max_us: worst }
    };
    Fault {
        at_s: 31.5,
        what: "pause 127.0.0.1:27018 for 2 s".into(),
        until_s: Some(33.5),
        gaps_ms: BTreeMap::from([("write".into(), 2013.0)]),
        around: BTreeMap::from([("write".into(), (285..385).map(&mut moment).collect())]),
    }
}

fn operation(name: &str, per_second: f64, us: f64, noise: &mut Noise) -> Operation {
    let mut histogram = hdrhistogram::Histogram::<u64>::new(3).expect("three digits are allowed");
    for _ in 0..30_000 {
        histogram.record((noise.latency_us(us) * 1e3) as u64).expect("histograms of this kind grow");
    }
    let series: Vec<Second> = (0..SECONDS).map(|s| second(f64::from(s), per_second, us, noise)).collect();
    Operation {
        name: name.into(),
        count: series.iter().map(|s| s.count).sum(),
        errors: 0,
        retries: 3,
        histogram: encode(&histogram),
        series,
        calls_us: (0..1000).map(|i| noise.latency_us(us) * if i < 20 { 4.0 } else { 1.0 }).collect(),
    }
}

/// By the serializer itself: this file is also part of an example, where the crate's own modules have another path.
fn encode(histogram: &hdrhistogram::Histogram<u64>) -> String {
    use base64::Engine as _;
    use hdrhistogram::serialization::{Serializer as _, V2DeflateSerializer};
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).expect("memory does not fail");
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn second(at_s: f64, per_second: f64, us: f64, noise: &mut Noise) -> Second {
    // A pause at 31.5 s, and a slow wave as of compactions.
    let paused = (31.0..33.0).contains(&at_s);
    let wave = 1.0 + 0.15 * (at_s / 7.0).sin() + 0.08 * noise.next();
    let count = if paused { 0 } else { (per_second * wave) as u64 };
    let p50_us = us / wave * (0.95 + 0.1 * noise.next());
    let slow = if at_s == 33.0 { 2_000_000.0 } else { p50_us * (20.0 + 40.0 * noise.next()) };
    Second {
        at_s,
        count,
        errors: 0,
        mean_us: p50_us * 1.2,
        p50_us,
        p95_us: p50_us * 2.1,
        p99_us: p50_us * (7.0 + 3.0 * noise.next()),
        p999_us: slow / 1.5,
        max_us: slow,
    }
}

fn step(clients: u32, speed: f64, noise: &mut Noise) -> Step {
    let at_once = f64::from(clients);
    let mut rate = |most: f64| {
        let average = most * at_once / (at_once + 6.0) * (0.97 + 0.06 * noise.next());
        Rate { average, peak: average * 1.2 }
    };
    let rates = BTreeMap::from([("read".into(), rate(speed * 6.0)), ("write".into(), rate(speed))]);
    Step { clients, rates }
}

fn server(speed: f64, noise: &mut Noise) -> ServerSeries {
    let sample = |s: u32| {
        let figures = BTreeMap::from([
            ("cpu_percent".into(), 60.0 + speed / 12.0 + 25.0 * noise.next()),
            ("resident_mb".into(), 180.0 + f64::from(s) * speed / 60.0),
            ("opcounters.insert".into(), f64::from(s) * speed * 4.0),
        ]);
        (f64::from(s), figures)
    };
    ServerSeries { node: "127.0.0.1:27018".into(), samples: (0..SECONDS).map(sample).collect() }
}

fn commands() -> Vec<CommandLine> {
    let command = |to: &str, text: &str| CommandLine { at_ms: 0, to: to.into(), text: text.into() };
    vec![
        command("shell", "sheaf server --dbpath /tmp/data --port 27018 --bind_ip 127.0.0.1 --nojournal"),
        command("127.0.0.1:27018", "{\"create\": \"documents\", \"$db\": \"lab\"}"),
    ]
}

fn environment() -> Environment {
    Environment {
        cpu: "Example CPU 3.0 GHz".into(),
        cores: 8,
        memory_bytes: 24_000_000_000,
        kernel: "Linux 6.1.0".into(),
        filesystem: "ext4".into(),
        disk: "vda".into(),
        fsync_us: 310.0,
        load: 0.4,
        versions: BTreeMap::from([("sheaf".into(), "0.1.0".into())]),
    }
}
