//! Six writers of batches of 16 KB documents, sustained, against a raw append of the same bytes that is synced ten times a
//! second.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, Value, doc};
use tempfile::TempDir;

use crate::bulk::{BATCH, payload};
use crate::client::message_with;
use crate::process::Server;
use crate::{Settings, table};

const WRITERS: usize = 6;
/// Different batches, which are sent again and again; the server gives the documents their `_id`.
const BATCHES: usize = 6;
/// Between two syncs of the raw file.
const SYNC: Duration = Duration::from_millis(100);
/// Numbers in a line of the series.
const LINE: usize = 20;

/// One side of the comparison.
struct Run {
    bytes: usize,
    took: Duration,
    /// When each batch was done, from the beginning on; in order.
    done: Vec<Duration>,
}

impl Run {
    fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.took.as_secs_f64()
    }

    /// The longest time in which no batch was done.
    fn stall(&self) -> Duration {
        let ends = [Duration::ZERO].iter().chain(&self.done);
        ends.zip(&self.done).map(|(before, now)| *now - *before).max().unwrap_or_default()
    }

    /// Megabytes of each full second.
    fn series(&self, batch: usize) -> Vec<f64> {
        let mut seconds = vec![0.0; self.took.as_secs() as usize];
        for done in &self.done {
            if let Some(second) = seconds.get_mut(done.as_secs() as usize) {
                *second += batch as f64 / 1e6;
            }
        }
        seconds
    }
}

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let messages: Vec<Vec<u8>> = (0..BATCHES).map(message).collect();
    let batch = messages[0].len();
    let gigabytes = if settings.quick { 1 } else { settings.gigabytes.max(1) as usize };
    let batches = (gigabytes << 30).div_ceil(batch);
    // Half of the raw side comes before and half after, in case the disk grows tired. What each has written stays until the end: memory that is
    // free again is there at once for who comes next, and memory that a virtual machine has yet to be given costs several times a copy.
    let (before, _kept_before) = raw(&messages, batches.div_ceil(2))?;
    let (ours, _kept_ours) = sheaf(settings, &messages, batches)?;
    let (after, _kept_after) = raw(&messages, batches.div_ceil(2))?;
    let floor = (before.bytes + after.bytes) as f64 / 1e6 / (before.took + after.took).as_secs_f64();
    let row = |what: &str, run: &Run, aim: &str| {
        let stall = run.stall().as_secs_f64() * 1000.0;
        let share = format!("{:.0} %", run.rate() / floor * 100.0);
        vec![what.to_owned(), format!("{:.0}", run.rate()), share, format!("{stall:.0}"), aim.to_owned()]
    };
    println!("{WRITERS} writers, {gigabytes} GB in batches of {BATCH} documents of 16 KB, w:1.\n");
    table(
        &["what", "MB/s", "of raw", "longest stall ms", "aim"],
        &[
            row("raw append, before", &before, ""),
            row("Sheaf", &ours, "85 %"),
            row("raw append, after", &after, ""),
        ],
    );
    println!("MB of each second, Sheaf:\n");
    for line in ours.series(batch).chunks(LINE) {
        println!("    {}", line.iter().map(|mb| format!("{mb:.0}")).collect::<Vec<_>>().join(" "));
    }
    println!();
    Ok(())
}

fn message(number: usize) -> Vec<u8> {
    let document = |at: usize| -> DocBuf {
        let bytes = payload((number * BATCH + at) as u64 + 1);
        doc! { "kind": "bulk", "payload": Value::Binary(sheaf_bson::Binary { subtype: 0, bytes: &bytes }) }
    };
    let documents: Vec<DocBuf> = (0..BATCH).map(document).collect();
    message_with(&doc! { "insert": "bulk", "$db": "perf" }, "documents", &documents)
}

/// The writers share the batches out; each does the next one by what `writer` makes of the writer's turn.
fn sustained<W: FnMut(usize) -> io::Result<()>>(
    batches: usize,
    bytes: usize,
    writer: impl Fn() -> io::Result<W> + Sync,
) -> io::Result<Run> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(batches));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| -> io::Result<()> {
                    let mut write = writer()?;
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= batches {
                            return Ok(());
                        }
                        write(number % BATCHES)?;
                        done.lock().map_err(|_| io::Error::other("a writer panicked"))?.push(began.elapsed());
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| io::Error::other("a writer panicked"))?)
    })?;
    let took = began.elapsed();
    let mut done = done.into_inner().map_err(|_| io::Error::other("a writer panicked"))?;
    done.sort();
    Ok(Run { bytes: batches * bytes, took, done })
}

fn sheaf(settings: &Settings, messages: &[Vec<u8>], batches: usize) -> io::Result<(Run, TempDir)> {
    let server = Server::start(settings)?;
    let began = Instant::now();
    let run = sustained(batches, messages[0].len(), || {
        let mut client = server.connect()?;
        Ok(move |number: usize| client.checked(&messages[number]).map(drop))
    })?;
    // The last bytes are on the disk, as those of the other side.
    let last = doc! { "insert": "last", "documents": [doc! { "a": 1 }.as_raw()], "writeConcern": doc! { "j": true }.as_raw(), "$db": "perf" };
    server.connect()?.call(&last)?;
    let run = Run { took: began.elapsed(), ..run };
    Ok((run, server.into_data()?))
}

/// The same bytes at the end of one file, which the writers share; the last sync counts on either side.
fn raw(messages: &[Vec<u8>], batches: usize) -> io::Result<(Run, File)> {
    let file = tempfile::tempfile()?;
    let (syncing, stop): (File, AtomicBool) = (file.try_clone()?, AtomicBool::new(false));
    let kept = file.try_clone()?;
    let file = Mutex::new(file);
    std::thread::scope(|scope| {
        let syncs = scope.spawn(|| -> io::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(SYNC);
                syncing.sync_data()?;
            }
            Ok(())
        });
        let began = Instant::now();
        let run = sustained(batches, messages[0].len(), || {
            Ok(|number: usize| {
                let mut file = file.lock().map_err(|_| io::Error::other("a writer panicked"))?;
                file.write_all(&messages[number])
            })
        });
        stop.store(true, Ordering::Relaxed);
        syncs.thread().unpark();
        syncs.join().map_err(|_| io::Error::other("the syncing thread panicked"))??;
        run.map(|run| (Run { took: began.elapsed(), ..run }, kept))
    })
}
