//! Many documents deleted at once, by deleteMany, by a TTL index and by drop, while another client reads and writes.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, Value, doc};

use crate::analysis::fill as fill_with;
use crate::client::Client;
use crate::latency::{document, fill, find_message, insert_message, spread};
use crate::meanwhile::{Seen, meanwhile};
use crate::process::Server;
use crate::{Settings, table};

/// Documents that the other client reads.
const READ: i32 = 100_000;
/// How long it is watched while nothing else goes on.
const QUIET: Duration = Duration::from_secs(5);
/// A date that has passed: 2020-01-01.
const PASSED: i64 = 1_577_836_800_000;
/// Expired documents must be gone after this.
const TTL_LONGEST: Duration = Duration::from_secs(1800);

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    client.call(&doc! { "setParameter": 1, "ttlMonitorSleepSecs": 1, "$db": "admin" })?;
    fill(&mut client, "latency", READ)?;
    let count = settings.count(10_000_000);
    let mut rows = Vec::new();
    let mut inserted = READ;
    let mut measured = |what: &str, server: &Server, work: &mut dyn FnMut() -> io::Result<()>| {
        let began = inserted;
        let mut made = 0;
        // Nine finds to an insert.
        let make = |n: u64| {
            if n.is_multiple_of(10) {
                made += 1;
                insert_message(began + made)
            } else {
                find_message(spread(n))
            }
        };
        let clock = Instant::now();
        let ((), seen) = meanwhile(server, make, work)?;
        inserted += made + 1;
        rows.push(row(what, clock.elapsed(), &seen));
        Ok::<(), io::Error>(())
    };
    measured("nothing", &server, &mut || {
        sleep(QUIET);
        Ok(())
    })?;
    fill_with(&mut client, "many", count, |n| document(n as i32))?;
    measured("deleteMany", &server, &mut || {
        let all = doc! { "q": {}, "limit": 0 };
        let n = client
            .call(&doc! { "delete": "many", "deletes": [all.as_raw()], "$db": "perf" })?
            .get("n")
            .and_then(|n| n.as_exact_i64());
        assert_eq!(n, Some(count as i64), "not all were deleted");
        Ok(())
    })?;
    fill_with(&mut client, "dated", count, dated)?;
    measured("a TTL index", &server, &mut || expire(&mut client))?;
    fill_with(&mut client, "dropped", count, |n| document(n as i32))?;
    measured("drop", &server, &mut || {
        client.call(&doc! { "drop": "dropped", "$db": "perf" })?;
        // What a drop leaves to be done goes on behind its answer.
        sleep(QUIET);
        Ok(())
    })?;
    println!(
        "{count} documents are removed each time; another client sends nine finds by _id to an insert, elsewhere.\n"
    );
    table(&["beside", "took s", "operations/s", "p50 us", "p99.9 us", "longest stall ms", "aim"], &rows);
    Ok(())
}

fn row(what: &str, took: Duration, seen: &Seen) -> Vec<String> {
    vec![
        what.to_owned(),
        format!("{:.1}", took.as_secs_f64()),
        format!("{:.0}", seen.rate()),
        format!("{:.0}", seen.micros(0.5)),
        format!("{:.0}", seen.micros(0.999)),
        format!("{:.1}", seen.stall_ms()),
        "100 ms".to_owned(),
    ]
}

/// A document that expires at once.
fn dated(n: usize) -> DocBuf {
    let plain = document(n as i32);
    doc! { "_id": n as i32, "t": Value::DateTime(PASSED + n as i64), "rest": plain.as_raw() }
}

/// Makes the index, and waits until everything has expired.
fn expire(client: &mut Client) -> io::Result<()> {
    let index = doc! { "key": { "t": 1 }, "name": "t_1", "expireAfterSeconds": 0 };
    client.call(&doc! { "createIndexes": "dated", "indexes": [index.as_raw()], "$db": "perf" })?;
    let began = Instant::now();
    loop {
        let n =
            client.call(&doc! { "count": "dated", "$db": "perf" })?.get("n").and_then(|n| n.as_exact_i64());
        if n == Some(0) {
            return Ok(());
        }
        if began.elapsed() > TTL_LONGEST {
            return Err(io::Error::other(format!("after half an hour {n:?} documents have not expired")));
        }
        sleep(Duration::from_millis(100));
    }
}
