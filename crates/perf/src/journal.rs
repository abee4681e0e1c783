//! j:true: what one client and what 64 clients wait, against a raw append and fdatasync of the same bytes.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sheaf_bson::doc;

use crate::client::message_with;
use crate::latency::document;
use crate::process::Server;
use crate::{Settings, table};

fn insert(id: i32) -> Vec<u8> {
    let command = doc! { "insert": "journal", "writeConcern": { "w": 1, "j": true }, "$db": "perf" };
    message_with(&command, "documents", &[document(id)])
}

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    let folder = tempfile::tempdir()?;
    let mut file = OpenOptions::new().append(true).create(true).open(folder.path().join("log"))?;
    // An entry of the log: its header, the operation around the document.
    let bytes = vec![7; document(1).as_bytes().len() + 120];
    let histogram = || Histogram::<u64>::new(3).map_err(io::Error::other);
    let (mut raw, mut ours) = (histogram()?, histogram()?);
    for n in 0..settings.count(3000) {
        let began = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        raw.record(began.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
        let request = insert(n as i32);
        let began = Instant::now();
        client.checked(&request)?;
        ours.record(began.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
    }
    let micros = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    let rows: Vec<Vec<String>> = [("p50", 0.5), ("p99", 0.99)]
        .map(|(name, quantile)| {
            let (raw, ours) = (micros(&raw, quantile), micros(&ours, quantile));
            vec![
                name.to_owned(),
                format!("{raw:.0}"),
                format!("{ours:.0}"),
                format!("{:.2}", ours / raw),
                "1.1".to_owned(),
            ]
        })
        .into();
    table(&["insert, j:true, one client", "raw write + fdatasync us", "Sheaf us", "ratio", "aim"], &rows);

    let seconds = if settings.quick { 1 } else { 5 };
    let one = throughput(&server, 1, seconds)?;
    let many = throughput(&server, 64, seconds)?;
    let row = vec![format!("{one:.0}"), format!("{many:.0}"), format!("{:.1}", many / one), "20".to_owned()];
    table(&["inserts/s, j:true, 1 client", "64 clients", "times", "aim"], &[row]);
    Ok(())
}

/// Journaled inserts per second by so many clients.
fn throughput(server: &Server, clients: usize, seconds: u64) -> io::Result<f64> {
    let stop = AtomicBool::new(false);
    let began = Instant::now();
    let total = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..clients)
            .map(|worker| {
                let stop = &stop;
                scope.spawn(move || -> io::Result<u64> {
                    let mut client = server.connect()?;
                    let mut done = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let id = 1_000_000 * (clients + worker) as i32 + done as i32;
                        client.checked(&insert(id))?;
                        done += 1;
                    }
                    Ok(done)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .map(|w| w.join().map_err(|_| io::Error::other("a client panicked"))?)
            .sum::<io::Result<u64>>()
    })?;
    Ok(total as f64 / began.elapsed().as_secs_f64())
}
