//! Throughput of each operation with 1 to 64 clients: it must grow to the limit of the cores and then stay flat.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::doc;

use crate::client::message;
use crate::latency::{fill, find_message, insert_message, spread, update_message};
use crate::process::Server;
use crate::{Settings, table};

const CLIENTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

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
    let mut rows = Vec::new();
    for (name, make) in KINDS {
        let mut row = vec![name.to_owned()];
        for clients in CLIENTS {
            row.push(format!("{:.0}", throughput(&server, clients, seconds, make, &sequence)?));
        }
        rows.push(row);
    }
    println!("Operations per second; the clients run on the same cores ({}) as the server.\n", cores());
    let mut head = vec!["clients".to_owned()];
    head.extend(CLIENTS.map(|clients| clients.to_string()));
    table(&head.iter().map(String::as_str).collect::<Vec<_>>(), &rows);
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn throughput(
    server: &Server,
    clients: usize,
    seconds: f64,
    make: Make,
    sequence: &AtomicU64,
) -> io::Result<f64> {
    let stop = AtomicBool::new(false);
    let connections = (0..clients).map(|_| server.connect()).collect::<io::Result<Vec<_>>>()?;
    let began = Instant::now();
    let total = std::thread::scope(|scope| {
        let workers: Vec<_> = connections
            .into_iter()
            .map(|mut client| {
                let stop = &stop;
                scope.spawn(move || -> io::Result<u64> {
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        client.checked(&make(sequence.fetch_add(1, Ordering::Relaxed)))?;
                        done += 1;
                    }
                    Ok(done)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .map(|w| w.join().map_err(|_| io::Error::other("a client panicked"))?)
            .sum::<io::Result<u64>>()
    })?;
    Ok(total as f64 / began.elapsed().as_secs_f64())
}
