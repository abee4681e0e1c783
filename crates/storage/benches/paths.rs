//! What each path of the engine costs, beside the same bytes through raw file appends and raw RocksDB.
//!
//! `cargo bench -p sheaf-storage` prints one line per path; `cargo bench -p sheaf-storage -- insert 100000` runs one
//! path so many times, for `perf`. It is a plain program: the numbers are
//! medians of runs that alternate with their floor, so that they can be read as ratios.

use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::Result;
use sheaf_storage::{CreateCollection, Direction, Engine, Options, Range, Write};

const GO_ON: &(dyn Fn() -> Result<()> + Sync) = &|| Ok(());

fn engine(dir: &std::path::Path) -> Engine {
    let engine = Engine::open(Options { cache_bytes: 2 << 30, ..Options::new(dir) }).unwrap();
    engine.create_collection("db.c", &CreateCollection::default(), GO_ON).unwrap();
    engine
}

/// Median nanoseconds per call, in chunks.
fn per_call(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    const CHUNK: usize = 500;
    let mut times = Vec::new();
    let mut n = 0;
    while n < calls {
        let started = Instant::now();
        for _ in 0..CHUNK {
            call(n);
            n += 1;
        }
        times.push(started.elapsed().as_nanos() as f64 / CHUNK as f64);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn report(name: &str, value: f64, unit: &str) {
    println!("{name:<58} {value:>10.2} {unit}");
}

fn small(n: usize) -> DocBuf {
    doc! { "_id": n as i64, "name": "some name or other", "n": (n % 1000) as i32, "tags": ["a", "b"] }
}

fn insert(engine: &Engine, document: &DocBuf) {
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection("db.c").unwrap().unwrap();
    unit.insert(&collection, document.as_raw()).unwrap();
    unit.commit().unwrap();
}

fn single_operations() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let documents: Vec<DocBuf> = (0..200_000).map(small).collect();
    let mut file = File::create(dir.path().join("raw")).unwrap();
    let floor = per_call(50_000, |n| file.write_all(documents[n].as_bytes()).unwrap());
    report("floor: write() of one document", floor / 1000.0, "us");
    report("insert, one per commit", per_call(100_000, |n| insert(&engine, &documents[n])) / 1000.0, "us");
    let catalog = engine.catalog();
    let collection = catalog.collection("db.c").unwrap();
    let keys: Vec<Vec<u8>> =
        (0..100_000i64).map(|n| collection.record_key(((n * 7919) % 100_000).into()).unwrap()).collect();
    let read = per_call(100_000, |n| assert!(engine.get(collection, &keys[n]).unwrap().is_some()));
    report("read by _id, newest state", read / 1000.0, "us");
    let read =
        per_call(100_000, |n| assert!(engine.view().unwrap().get(collection, &keys[n]).unwrap().is_some()));
    report("read by _id, a view each", read / 1000.0, "us");
    let update = per_call(50_000, |n| {
        let mut unit = engine.write(GO_ON);
        let collection = unit.collection("db.c").unwrap().unwrap();
        let old = unit.read_for_update(&collection, &keys[n]).unwrap().unwrap();
        let old = RawDoc::new(&old);
        let new = DocBuf::build(|d| {
            d.append_all(old).append("more", 1);
        });
        unit.update(&collection, &keys[n], old, new.as_raw(), Some(doc! { "i": { "more": 1 } }.as_raw()))
            .unwrap();
        unit.commit().unwrap();
    });
    report("update by _id, one per commit", update / 1000.0, "us");
    scan(&engine, "scan, from memtables");
    engine.checkpoint().unwrap();
    scan(&engine, "scan, from files");
    let read = per_call(100_000, |n| assert!(engine.get(collection, &keys[n]).unwrap().is_some()));
    report("read by _id, from files", read / 1000.0, "us");
    let spec = doc! { "v": 2, "key": { "n": 1 }, "name": "n_1" };
    let started = Instant::now();
    engine.create_indexes("db.c", &[spec.as_raw()], GO_ON).unwrap();
    report("index build per document", started.elapsed().as_nanos() as f64 / 100_000.0 / 1000.0, "us");
    report(
        "insert with one more index",
        per_call(50_000, |n| insert(&engine, &documents[100_000 + n])) / 1000.0,
        "us",
    );
}

fn scan(engine: &Engine, name: &str) {
    let view = engine.view().unwrap();
    let collection = view.collection("db.c").unwrap();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let mut cursor = view.records(collection, Range::ALL, Direction::Forward).unwrap();
        let started = Instant::now();
        let mut count = 0u64;
        let mut bytes = 0;
        while cursor.next().unwrap() {
            count += 1;
            bytes += cursor.doc().len();
        }
        std::hint::black_box(bytes);
        best = best.min(started.elapsed().as_nanos() as f64 / count as f64);
    }
    report(name, best / 1000.0, "us per document");
}

/// 16 KB documents in batches of 256: the engine against raw append plus raw RocksDB, alternating.
fn batches() {
    const BATCHES: usize = 60;
    let payload: String =
        (0..16_000u32).map(|n| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 27) as u8 % 26)).collect();
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let raw_dir = tempfile::tempdir().unwrap();
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    options.set_write_buffer_size(2 << 30);
    let db = rocksdb::DB::open(&options, raw_dir.path().join("db")).unwrap();
    let mut no_wal = rocksdb::WriteOptions::default();
    no_wal.disable_wal(true);
    let mut file = File::create(raw_dir.path().join("raw")).unwrap();
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for batch in 0..BATCHES {
        let documents: Vec<DocBuf> =
            (0..256).map(|n| doc! { "_id": (batch * 256 + n) as i64, "text": &payload }).collect();
        let bytes: usize = documents.iter().map(|d| d.as_bytes().len()).sum();
        let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
        let started = Instant::now();
        let mut whole = Vec::with_capacity(bytes);
        let mut writes = rocksdb::WriteBatch::default();
        for (n, document) in documents.iter().enumerate() {
            whole.extend_from_slice(document.as_bytes());
            writes.put(((batch * 256 + n) as u64).to_be_bytes(), document.as_bytes());
        }
        file.write_all(&whole).unwrap();
        db.write_opt(writes, &no_wal).unwrap();
        floor.push(speed(started.elapsed()));
        let started = Instant::now();
        let mut unit = engine.write(GO_ON);
        let collection = unit.collection("db.c").unwrap().unwrap();
        unit.reserve(bytes);
        for document in &documents {
            unit.insert(&collection, document.as_raw()).unwrap();
        }
        unit.commit().unwrap();
        ours.push(speed(started.elapsed()));
    }
    ours.sort_by(f64::total_cmp);
    floor.sort_by(f64::total_cmp);
    let (ours, floor) = (ours[BATCHES / 2], floor[BATCHES / 2]);
    report("floor: 256 x 16 KB, raw append + raw RocksDB", floor, "MB/s");
    report("256 x 16 KB inserts in one commit", ours, "MB/s");
    report("  of the floor", ours / floor * 100.0, "%");
}

/// Waiting for the sync, one client, against write + fdatasync.
fn durable() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let mut file = File::create(dir.path().join("raw")).unwrap();
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for n in 0..300 {
        let document = small(n);
        let started = Instant::now();
        file.write_all(document.as_bytes()).unwrap();
        file.sync_data().unwrap();
        floor.push(started.elapsed().as_micros() as f64);
        let started = Instant::now();
        insert(&engine, &document);
        engine.wait_durable(engine.last_applied().index, GO_ON).unwrap();
        ours.push(started.elapsed().as_micros() as f64);
    }
    ours.sort_by(f64::total_cmp);
    floor.sort_by(f64::total_cmp);
    report("floor: write + fdatasync", floor[150], "us");
    report("durable insert, one client", ours[150], "us");
}

/// One path so many times: the difference of two counts under `perf stat -e instructions:u` is free of noise.
fn alone(path: &str, count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let documents: Vec<DocBuf> = (0..if path == "batch" { 0 } else { count.max(1000) }).map(small).collect();
    let update = |document: &DocBuf, round: i32| {
        let mut unit = engine.write(GO_ON);
        let collection = unit.collection("db.c").unwrap().unwrap();
        let key = collection.record_key(document.as_raw().get("_id").unwrap()).unwrap();
        let old = unit.read_for_update(&collection, &key).unwrap().unwrap();
        let new = DocBuf::build(|d| {
            d.append_all(RawDoc::new(document.as_bytes())).append("more", round);
        });
        let diff = doc! { "u": { "more": round } };
        unit.update(&collection, &key, RawDoc::new(&old), new.as_raw(), Some(diff.as_raw())).unwrap();
        unit.commit().unwrap();
    };
    match path {
        "insert" => documents.iter().for_each(|document| insert(&engine, document)),
        "durable" => documents.iter().for_each(|document| {
            insert(&engine, document);
            engine.on_durable(engine.last_applied().index, Box::new(|result| result.unwrap()));
        }),
        "update" => {
            documents[..1000].iter().for_each(|document| insert(&engine, document));
            (0..count).for_each(|n| update(&documents[n % 1000], n as i32));
        }
        "batch" => {
            let text = "some text that is neither short nor long ".repeat(400);
            for batch in 0..count {
                let mut unit = engine.write(GO_ON);
                let collection = unit.collection("db.c").unwrap().unwrap();
                unit.reserve(256 * (text.len() + 40));
                for n in 0..256 {
                    let document = doc! { "_id": (batch * 256 + n) as i64, "text": &text };
                    unit.insert(&collection, document.as_raw()).unwrap();
                }
                unit.commit().unwrap();
            }
        }
        other => panic!("no path {other}: insert, durable, update, batch"),
    }
}

fn main() {
    if std::env::args().any(|arg| arg == "--test" || arg == "--list") {
        return;
    }
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [path, count] = &args[..] {
        return alone(path, count.parse().unwrap());
    }
    single_operations();
    batches();
    durable();
}
