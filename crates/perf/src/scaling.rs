//! Throughput of each operation with 1 to 1,000 clients: it must grow to the limit of the cores and then stay flat. And how much longer than
//! usual the slowest of 64 clients' operations take. A process that only echoes, with a thread for each client, tells what becomes of the
//! machine itself with so many clients.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::doc;

use crate::client::{Client, message};
use crate::latency::{Echo, EchoClient, fill, find_message, insert_message, spread, update_message};
use crate::process::Server;
use crate::{Settings, table};

const CLIENTS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 256, 1000];
/// Of so many clients the slowest operations are told.
const CROWD: usize = 64;

/// Operations per second, and the microseconds that each took.
type Measured = (f64, Vec<u32>);

/// The n-th request of a kind.
type Make = fn(u64) -> Vec<u8>;

/// A range of 100 documents by `_id`.
fn range_scan(n: u64) -> Vec<u8> {
    let from = spread(n).min(99_900);
    message(
        &doc! { "find": "latency", "filter": { "_id": { "$gte": from, "$lt": from + 100 } }, "batchSize": 200, "$db": "perf" },
    )
}

/// About 100 documents through a secondary index, of which the newest ten are wanted.
fn indexed_query(n: u64) -> Vec<u8> {
    let filter = doc! { "group": spread(n) % 1000 };
    message(&doc! {
        "find": "latency", "filter": filter.as_raw(), "sort": { "_id": -1 }, "limit": 10, "singleBatch": true, "$db": "perf"
    })
}

const KINDS: [(&str, Make); 5] = [
    ("insert, w:1", |n| insert_message(1_000_000 + n as i32)),
    ("update by _id, w:1", |n| update_message(spread(n))),
    ("find by _id", |n| find_message(spread(n))),
    ("range scan, 100 documents", range_scan),
    ("indexed query, 10 documents", indexed_query),
];

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    fill(&mut client, "latency", 100_000)?;
    client.call(&doc! {
        "createIndexes": "latency", "indexes": [{ "key": { "group": 1, "_id": 1 }, "name": "group_id" }], "$db": "perf"
    })?;
    let sequence = AtomicU64::new(0);
    let seconds = if settings.quick { 0.5 } else { 3.0 };
    let (mut rows, mut tails) = (Vec::new(), Vec::new());
    let mut measure = |name: &str, measured: &mut dyn FnMut(usize) -> io::Result<Measured>| {
        let mut rates = Vec::new();
        for clients in CLIENTS {
            let (rate, mut latencies) = measured(clients)?;
            rates.push(rate);
            if clients == CROWD {
                tails.push(tail(name, &mut latencies));
            }
        }
        rows.push(row(name, &rates));
        Ok::<_, io::Error>(())
    };
    client.checked(&find_message(0))?;
    let echo = Echo::start(find_message(0).len(), client.reply_len())?;
    measure("bare echo", &mut |clients| {
        throughput(&|| echo.connect(), clients, seconds, &|echo: &mut EchoClient| echo.round_trip())
    })?;
    for (name, make) in KINDS {
        let ask =
            |client: &mut Client| client.checked(&make(sequence.fetch_add(1, Ordering::Relaxed))).map(|_| ());
        measure(name, &mut |clients| throughput(&|| server.connect(), clients, seconds, &ask))?;
    }
    println!("Operations per second; the clients run on the same cores ({}) as the server.\n", cores());
    let mut head = vec!["clients".to_owned()];
    head.extend(CLIENTS.map(|clients| clients.to_string()));
    head.extend(["least from 2 on, of the best", "aim"].map(str::to_owned));
    table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &rows);
    println!();
    table(&[&format!("{CROWD} clients"), "p50 us", "p99.9 us", "ratio", "aim"], &tails);
    Ok(())
}

fn row(name: &str, rates: &[f64]) -> Vec<String> {
    let several = &rates[1..];
    let (least, best) =
        (several.iter().copied().fold(f64::MAX, f64::min), several.iter().copied().fold(0.0, f64::max));
    let mut row = vec![name.to_owned()];
    row.extend(rates.iter().map(|rate| format!("{rate:.0}")));
    row.extend([format!("{:.2}", least / best), "0.95".to_owned()]);
    row
}

fn tail(name: &str, latencies: &mut [u32]) -> Vec<String> {
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    let (median, slowest) = (at(0.5), at(0.999));
    let ratio = f64::from(slowest) / f64::from(median.max(1));
    vec![name.to_owned(), median.to_string(), slowest.to_string(), format!("{ratio:.1}"), "5".to_owned()]
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// What so many clients reach.
fn throughput<C: Send>(
    connect: &dyn Fn() -> io::Result<C>,
    clients: usize,
    seconds: f64,
    ask: &(dyn Fn(&mut C) -> io::Result<()> + Sync),
) -> io::Result<Measured> {
    let stop = AtomicBool::new(false);
    let connections = (0..clients).map(|_| connect()).collect::<io::Result<Vec<_>>>()?;
    let began = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let workers: Vec<_> = connections
            .into_iter()
            .map(|mut client| {
                let stop = &stop;
                scope.spawn(move || -> io::Result<Vec<u32>> {
                    let mut latencies = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let began = Instant::now();
                        ask(&mut client)?;
                        latencies.push(began.elapsed().as_micros().try_into().unwrap_or(u32::MAX));
                    }
                    Ok(latencies)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| io::Error::other("a client panicked"))??);
        }
        Ok::<_, io::Error>(all)
    })?;
    Ok((latencies.len() as f64 / began.elapsed().as_secs_f64(), latencies))
}
