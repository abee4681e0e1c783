//! A stream of sensors' measurements in a time-series collection, beside the same documents in a plain one.

use std::io;
use std::time::{Duration, Instant};

use sheaf_bson::{ArrayBuf, DocBuf, Value, array, doc};

use crate::client::Client;
use crate::measured::{Measured, alternate, show};
use crate::process::Server;
use crate::{Settings, table};

/// Measurements for each insert, and of each batch of a read.
const BATCH: usize = 1000;
/// Runs of each row; they alternate.
const ROUNDS: usize = 5;
/// Sensors.
const SENSORS: usize = 100;
/// 2024-01-01 in milliseconds.
const BEGIN: i64 = 1_704_067_200_000;

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    let count = settings.count(1_000_000);
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    client.call(&doc! { "create": "measured", "timeseries": &timeseries, "$db": "perf" })?;
    let (mut plain, mut measured) = (Duration::ZERO, Duration::ZERO);
    for first in (0..count).step_by(BATCH) {
        let documents: Vec<DocBuf> = (first..(first + BATCH).min(count)).map(measurement).collect();
        for (collection, time) in [("plain", &mut plain), ("measured", &mut measured)] {
            let began = Instant::now();
            client.insert(collection, &documents)?;
            *time += began.elapsed();
        }
    }
    let sizes = ["plain", "measured"].map(|collection| sizes(&mut client, collection));
    let [plain_size, measured_size] = sizes.map(|sizes| sizes.unwrap_or_default());
    println!("{count} measurements of {SENSORS} sensors, in batches of {BATCH}.\n");
    let row = |what: &str, plain: f64, measured: f64, aim: &str| {
        vec![
            what.to_owned(),
            format!("{plain:.2}"),
            format!("{measured:.2}"),
            format!("{:.2}", measured / plain.max(f64::MIN_POSITIVE)),
            aim.to_owned(),
        ]
    };
    let rows = [
        row(
            "inserts, us a document",
            plain.as_secs_f64() / count as f64 * 1e6,
            measured.as_secs_f64() / count as f64 * 1e6,
            "1",
        ),
        row("data, MB", plain_size.0, measured_size.0, ""),
        row("on disk, MB", plain_size.1, measured_size.1, "0.2"),
    ];
    table(&["what", "plain", "time series", "ratio", "aim"], &rows);
    let mut rows = questions();
    alternate(&mut client, &mut rows, ROUNDS, BATCH)?;
    show(&rows, count);
    Ok(())
}

fn questions() -> Vec<Measured> {
    let of = |what, collection: &'static str, pipeline: &ArrayBuf| {
        let command = doc! {
            "aggregate": collection, "pipeline": pipeline, "cursor": { "batchSize": BATCH as i32 }, "$db": "perf"
        };
        Measured::new(what, collection, command, "")
    };
    let all = ArrayBuf::new();
    let group = array![{ "$group": { "_id": "$m.sensor", "a": { "$avg": "$temperature" } } }];
    let hour = doc! { "$gte": Value::DateTime(BEGIN + 3_600_000), "$lt": Value::DateTime(BEGIN + 7_200_000) };
    let range = array![{ "$match": { "m.sensor": 7, "t": &hour } }];
    let last = array![{ "$sort": { "m.sensor": 1, "t": -1 } }, { "$group": { "_id": "$m.sensor", "v": { "$first": "$temperature" } } }];
    vec![
        of("plain scan", "plain", &all),
        of("time series: scan", "measured", &all),
        of("plain: $group by sensor", "plain", &group),
        of("time series: $group by sensor", "measured", &group),
        of("plain: an hour of a sensor", "plain", &range),
        of("time series: an hour of a sensor", "measured", &range),
        of("plain: last of each sensor", "plain", &last),
        of("time series: last of each sensor", "measured", &last),
    ]
}

fn measurement(n: usize) -> DocBuf {
    let (sensor, at) = (n % SENSORS, (n / SENSORS) as i64);
    let wave = ((at as f64 / 300.0 + sensor as f64).sin() * 100.0).round() / 10.0;
    doc! {
        "_id": n as i64, "t": Value::DateTime(BEGIN + at * 1000 + (n % 7) as i64), "m": { "sensor": sensor as i32, "site": "berlin" },
        "temperature": 20.0 + wave, "humidity": (40 + (n / 1000) % 20) as i32, "ok": !n.is_multiple_of(997)
    }
}

/// Megabytes of a collection: its data, and on disk after a flush.
fn sizes(client: &mut Client, collection: &str) -> io::Result<(f64, f64)> {
    client.call(&doc! { "fsync": 1, "$db": "admin" })?;
    let stats = client.call(&doc! { "collStats": collection, "$db": "perf" })?;
    let number = |name: &str| stats.get(name).and_then(|value| value.as_f64()).unwrap_or(0.0) / 1e6;
    Ok((number("size"), number("storageSize")))
}
