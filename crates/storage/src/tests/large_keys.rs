//! Large keys: they stand in a batch several times, so what a write or a start has in memory is a multiple of its entries.

use std::sync::Arc;

use sheaf_bson::{DocBuf, doc};
use sheaf_meter::{Meter, Process};

use super::support::*;
use crate::{Engine, Options, Write};

const KEY_BYTES: usize = 400 << 10;

/// `_id` and `a` are large keys.
fn document(n: usize) -> DocBuf {
    let key = |mark: char| format!("{n:06}{}", mark.to_string().repeat(KEY_BYTES));
    doc! { "_id": key('k').as_str(), "a": key('a').as_str() }
}

fn with_index() -> (tempfile::TempDir, Engine) {
    let (dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    (dir, engine)
}

#[test]
fn what_is_pending_is_counted_and_bounded() {
    let (_dir, engine) = with_index();
    let process = Process::new(100 << 20, 100 << 20);
    let _entered = sheaf_meter::enter(Meter::new(&process, Arc::new(|| Ok(()))));
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    let mut most = 0;
    for n in 0..20 {
        unit.insert(&collection, document(n).as_raw()).unwrap();
        // The document, its key, and the index's entry with two keys and one again as its value; and the log's.
        assert_eq!(unit.has_pending(), process.used() >= 7 * KEY_BYTES as u64, "{}", process.used());
        most = most.max(process.used());
    }
    // Half of the 8 MB that memtables have here, less the document that went beyond.
    assert!(((2 << 20)..=(4 << 20)).contains(&most), "{most}");
    unit.commit().unwrap();
    assert_eq!(process.used(), 0);
    assert_eq!(all(&engine, C).len(), 20);
    assert_valid(&engine, C);
}

#[test]
fn where_there_is_no_memory_for_it_it_is_committed() {
    let (_dir, engine) = with_index();
    let process = Process::new(2 << 20, 2 << 20);
    let _entered = sheaf_meter::enter(Meter::new(&process, Arc::new(|| Ok(()))));
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for n in 0..5 {
        unit.insert(&collection, document(n).as_raw()).unwrap();
        assert!(!unit.has_pending());
    }
    assert_eq!(process.used(), 0);
    unit.commit().unwrap();
    assert_eq!(all(&engine, C).len(), 5);
}

#[test]
fn recovery_keeps_to_the_memory_of_memtables() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { cache_bytes: 256 << 20, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    let before = engine.stats().flushes;
    for n in 0..8 {
        insert(&engine, C, &document(n)).unwrap();
    }
    let stats = engine.stats();
    assert_eq!(stats.flushes, before, "all of it is in the log and in memtables only");
    assert!(stats.memtable_bytes > 16 << 20, "{}", stats.memtable_bytes);
    let copy = crash_copy(dir.path());
    // 8 MB of memtables, and 6.4 MB of documents that take three times that.
    let again = open(copy.path());
    let stats = again.stats();
    assert!(stats.flushes >= 1 && stats.memtable_bytes < 16 << 20, "{stats:?}");
    assert_eq!(all(&again, C).len(), 8);
    assert_valid(&again, C);
}

/// An `_id` that begins like all others.
fn alike(n: usize) -> DocBuf {
    doc! { "_id": format!("{}{n:06}", "k".repeat(KEY_BYTES)).as_str() }
}

/// Table files of records: how many there are, and the most keys that one has.
fn record_files(engine: &Engine) -> (usize, u64) {
    let files = engine.core().base.db.raw().live_files().unwrap();
    let counts: Vec<u64> = files
        .iter()
        .filter(|file| file.column_family_name == "records")
        .map(|file| file.num_entries)
        .collect();
    (counts.len(), counts.iter().copied().max().unwrap_or(0))
}

#[test]
fn a_file_of_keys_that_begin_alike_is_full_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { cache_bytes: 256 << 20, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    let count = 400;
    for n in 0..count {
        insert(&engine, C, &alike(n)).unwrap();
    }
    let view = engine.view().unwrap();
    engine.compact(view.collection(C).unwrap()).unwrap();
    // Compressed they are a megabyte; what a file's index has of them uncompressed is 64 MB, and two more blocks.
    let (files, most) = record_files(&engine);
    assert!(files >= 2 && most * KEY_BYTES as u64 <= 72 << 20, "{files} files, {most} keys in one");
    assert_eq!(all(&engine, C).len(), count);
    assert_valid(&engine, C);
}

#[test]
fn long_keys_are_refused_where_those_of_files_take_too_much() {
    let (dir, engine) = with_index();
    // Every flush makes a file of records and one of the index, with two keys of the document and two entries of its two.
    let mut n = 0;
    let refused = loop {
        if let Err(error) = insert(&engine, C, &document(n)) {
            break error;
        }
        engine.checkpoint().unwrap();
        n += 1;
        assert!(n < 20);
    };
    assert_eq!(refused.code(), sheaf_errors::Code::EXCEEDED_MEMORY_LIMIT, "{refused}");
    assert!(engine.core().flushes.file_key_bytes() >= 8 << 20);
    // So are those of an index, and in a transaction.
    let short = |n: i32| doc! { "_id": n, "a": "short" };
    let long = |n: i32| doc! { "_id": n, "a": "a".repeat(KEY_BYTES).as_str() };
    assert!(insert(&engine, C, &long(0)).is_err());
    insert(&engine, C, &short(1)).unwrap();
    let mut unit = engine.write(GO_ON);
    assert!(change(&mut unit, C, 1, Some(&long(1))).is_err());
    drop(unit);
    let mut transaction = engine.begin(None).unwrap();
    let collection = transaction.collection(C).unwrap().unwrap();
    assert!(transaction.insert(&collection, long(2).as_raw()).is_err());
    transaction.abort();
    // A start knows it, too.
    drop(engine);
    let engine = open(dir.path());
    assert!(insert(&engine, C, &long(0)).is_err());
    // And so does who would build an index of them.
    let refused = build(&engine, C, &index_spec(doc! { "a": -1 }, "a_-1", doc! {})).unwrap_err();
    assert_eq!(refused.code(), sheaf_errors::Code::EXCEEDED_MEMORY_LIMIT, "{refused}");
    // What is there can be deleted, and then there is room again.
    for n in 0..n {
        let mut unit = engine.write(GO_ON);
        let collection = unit.collection(C).unwrap().unwrap();
        let old = document(n);
        let key = collection.record_key(old.as_raw().get("_id").unwrap()).unwrap();
        unit.delete(&collection, &key, old.as_raw()).unwrap();
        unit.commit().unwrap();
    }
    let view = engine.view().unwrap();
    engine.compact(view.collection(C).unwrap()).unwrap();
    insert(&engine, C, &long(0)).unwrap();
    assert_valid(&engine, C);
}

#[test]
fn an_index_of_long_keys_that_begin_alike_is_built_in_several_files() {
    let (_dir, engine) = fresh();
    let keys = 60;
    for n in 0..keys {
        let key = format!("{}{n:06}", "a".repeat(KEY_BYTES));
        insert(&engine, C, &doc! { "_id": n, "a": key.as_str() }).unwrap();
    }
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    let files = engine.core().base.db.raw().live_files().unwrap();
    let counts: Vec<u64> = files
        .iter()
        .filter(|file| file.column_family_name == "indexes")
        .map(|file| file.num_entries)
        .collect();
    // And the mark of the build.
    assert!((keys as u64..=keys as u64 + 1).contains(&counts.iter().sum()), "{counts:?}");
    assert!(counts.iter().all(|count| *count <= 42), "{counts:?}");
    assert_valid(&engine, C);
}
