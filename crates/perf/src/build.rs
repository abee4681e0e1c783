//! An index built on many documents, against a scan of the same documents and an external sort of their keys; and what
//! writers lose meanwhile.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rocksdb::{DB, DBCompressionType, IteratorMode, Options, WriteBatch, WriteOptions};
use sheaf_bson::{RawDoc, doc};

use crate::analysis::fill;
use crate::client::message_with;
use crate::latency::document;
use crate::meanwhile::meanwhile;
use crate::process::Server;
use crate::{Settings, table};

/// Bytes of a key: the number that is indexed, and behind it the document's own.
const KEY: usize = 16;
/// Keys that are sorted in memory at a time: 64 MB.
const RUN: usize = 4 << 20;
/// How long the writer is measured without a build.
const QUIET: Duration = Duration::from_secs(5);

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let count = settings.count(10_000_000);
    let folder = tempfile::tempdir()?;
    let raw = {
        let database = raw_database(&folder.path().join("db"), count)?;
        let began = Instant::now();
        assert_eq!(scan_and_sort(&database, folder.path())?, count, "keys were lost");
        began.elapsed()
    };
    drop(folder);
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    fill(&mut client, "built", count, |n| document(scattered(n, count)))?;
    client.call(&doc! { "fsync": 1, "$db": "admin" })?;
    let mut build = |name: &str| {
        let index = doc! { "key": { "score": 1 }, "name": name };
        let began = Instant::now();
        client.call(&doc! { "createIndexes": "built", "indexes": [index.as_raw()], "$db": "perf" })?;
        let took = began.elapsed();
        client.call(&doc! { "dropIndexes": "built", "index": name, "$db": "perf" })?;
        Ok::<Duration, io::Error>(took)
    };
    let alone = build("alone")?;
    // The writer inserts into the very collection.
    let mut next = count as i32;
    let mut make = |_| {
        next += 1;
        message_with(&doc! { "insert": "built", "$db": "perf" }, "documents", &[document(next)])
    };
    let quiet = || {
        std::thread::sleep(QUIET);
        Ok(())
    };
    let ((), before) = meanwhile(&server, &mut make, quiet)?;
    let (beside, during) = meanwhile(&server, &mut make, || build("beside"))?;
    let ((), after) = meanwhile(&server, &mut make, quiet)?;
    let rate = |took: Duration| format!("{:.0}", count as f64 / took.as_secs_f64());
    let row = |what: &str, took: Duration| {
        let share = format!("{:.2}", raw.as_secs_f64() / took.as_secs_f64());
        vec![what.to_owned(), format!("{:.1}", took.as_secs_f64()), rate(took), share, "1".to_owned()]
    };
    println!("{count} documents, an index on a number.\n");
    table(
        &["what", "s", "documents/s", "of scan and sort", "aim"],
        &[
            row("RocksDB scan and external sort", raw),
            row("createIndexes", alone),
            row("createIndexes beside a writer", beside),
        ],
    );
    let quiet = (before.rate() + after.rate()) / 2.0;
    let lost = format!("{:.0} %", (1.0 - during.rate() / quiet) * 100.0);
    let row = vec![
        format!("{quiet:.0}"),
        format!("{:.0}", during.rate()),
        lost,
        "20 %".to_owned(),
        format!("{:.0}", during.stall_ms()),
    ];
    table(&["one writer's inserts/s", "during the build", "lost", "aim", "longest stall ms"], &[row]);
    Ok(())
}

/// The n-th document's number: all of them, in no order, so that keys do not come sorted.
fn scattered(n: usize, count: usize) -> i32 {
    // A prime that divides no power of ten.
    (n as u64 * 7_368_787 % count as u64) as i32
}

fn raw_database(folder: &Path, count: usize) -> io::Result<DB> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    let database = DB::open(&options, folder).map_err(io::Error::other)?;
    let mut no_wal = WriteOptions::default();
    no_wal.disable_wal(true);
    for first in (0..count).step_by(1000) {
        let mut batch = WriteBatch::default();
        for n in first..(first + 1000).min(count) {
            batch.put((n as u32).to_be_bytes(), document(scattered(n, count)).as_bytes());
        }
        database.write_opt(batch, &no_wal).map_err(io::Error::other)?;
    }
    database.flush().map_err(io::Error::other)?;
    Ok(database)
}

/// Reads every document, sorts the keys in runs of files and merges them into one, which is synced; how many there are.
fn scan_and_sort(database: &DB, folder: &Path) -> io::Result<usize> {
    let (mut keys, mut runs) = (Vec::with_capacity(RUN), Vec::new());
    for entry in database.iterator(IteratorMode::Start) {
        let (record, value) = entry.map_err(io::Error::other)?;
        let score = RawDoc::new(&value).get("score").and_then(|score| score.as_f64()).unwrap_or(0.0);
        let mut key = [0; KEY];
        // None of them is negative: their bits order as they do.
        key[..8].copy_from_slice(&score.to_bits().to_be_bytes());
        key[8..12].copy_from_slice(&record);
        keys.push(key);
        if keys.len() == RUN {
            runs.push(written(&mut keys, folder, runs.len())?);
        }
    }
    runs.push(written(&mut keys, folder, runs.len())?);
    merged(runs, &folder.join("sorted"))
}

/// A sorted run as a file, from its beginning.
fn written(keys: &mut Vec<[u8; KEY]>, folder: &Path, number: usize) -> io::Result<BufReader<File>> {
    keys.sort_unstable();
    let path = folder.join(format!("run{number}"));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
    for key in keys.drain(..) {
        file.write_all(&key)?;
    }
    file.flush()?;
    Ok(BufReader::with_capacity(1 << 20, File::open(path)?))
}

fn merged(mut runs: Vec<BufReader<File>>, into: &Path) -> io::Result<usize> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(into)?);
    let mut heap = BinaryHeap::new();
    for (at, run) in runs.iter_mut().enumerate() {
        heap.extend(next(run)?.map(|key| Reverse((key, at))));
    }
    let mut count = 0;
    while let Some(Reverse((key, at))) = heap.pop() {
        file.write_all(&key)?;
        count += 1;
        heap.extend(next(&mut runs[at])?.map(|key| Reverse((key, at))));
    }
    file.flush()?;
    file.get_ref().sync_data()?;
    Ok(count)
}

fn next(run: &mut BufReader<File>) -> io::Result<Option<[u8; KEY]>> {
    let mut key = [0; KEY];
    match run.read_exact(&mut key) {
        Ok(()) => Ok(Some(key)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}
