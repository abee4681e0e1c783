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
