//! Flushes that no checkpoint has ordered, and a crash after them.

use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_bson::doc;

use super::member::Member;
use super::support::*;
use crate::{Engine, TransactionKey, Write};

/// A flush as RocksDB begins one by itself, to its end.
pub fn flush_unordered(engine: &Engine) {
    let db = &engine.core().base.db;
    let failed = db.events().failed_flushes();
    db.flush().unwrap();
    while !db.flush_ended(failed).unwrap() {
        std::thread::yield_now();
    }
}

/// What a crash now leaves is opened, is whole, and is what was there.
fn assert_survives_a_crash(dir: &std::path::Path, engine: &Engine, names: &[&str]) {
    let copy = crash_copy(dir);
    for _ in 0..2 {
        let again = open(copy.path());
        for name in names {
            assert_eq!(all(&again, name), all(engine, name));
            let (was, is) = (engine.catalog(), again.catalog());
            let (was, is) = (was.collection(name).unwrap(), is.collection(name).unwrap());
            assert_eq!((is.count(), is.data_bytes()), (was.count(), was.data_bytes()), "{name}");
            assert_valid(&again, name);
        }
        // Numbers are not given twice, and it can be written to.
        create(&again, "db.fresh", doc! {});
        insert(&again, "db.fresh", &doc! { "_id": 1 }).unwrap();
        assert_valid(&again, "db.fresh");
        again.drop_collection("db.fresh", GO_ON).unwrap();
    }
}

fn delete(engine: &Engine, namespace: &str, id: i32) {
    let mut unit = engine.write(GO_ON);
    assert!(change(&mut unit, namespace, id, None).unwrap());
    unit.commit().unwrap();
}

#[test]
fn compact_then_a_crash() {
    let (dir, engine) = fresh();
    create(&engine, "db.other", doc! {});
    for name in [C, "db.other"] {
        insert(&engine, name, &doc! { "_id": 1 }).unwrap();
    }
    engine.checkpoint().unwrap();
    for name in [C, "db.other"] {
        delete(&engine, name, 1);
        insert(&engine, name, &doc! { "_id": 2 }).unwrap();
    }
    let collection = engine.catalog().collection(C).unwrap().clone();
    engine.compact(&collection).unwrap();
    assert_survives_a_crash(dir.path(), &engine, &[C, "db.other"]);
    delete(&engine, C, 2);
    assert_survives_a_crash(dir.path(), &engine, &[C, "db.other"]);
}

#[test]
fn a_flush_that_nobody_ordered_is_a_prefix_of_the_log() {
    let (dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    for n in 0..10 {
        insert(&engine, C, &doc! { "_id": n, "a": n }).unwrap();
    }
    engine.checkpoint().unwrap();
    // What only checkpoints write: counters, multikey bits, numbers of collections.
    delete(&engine, C, 3);
    insert(&engine, C, &doc! { "_id": 20, "a": [1, 2, 3] }).unwrap();
    create(&engine, "db.second", doc! {});
    create(&engine, "db.capped", doc! { "capped": true, "size": 100_000 });
    build(&engine, "db.second", &index_spec(doc! { "b": 1 }, "b_1", doc! {})).unwrap();
    insert(&engine, "db.second", &doc! { "_id": 1, "b": [4, 5] }).unwrap();
    insert(&engine, "db.capped", &doc! { "_id": 1 }).unwrap();
    let names = [C, "db.second", "db.capped"];
    flush_unordered(&engine);
    assert_survives_a_crash(dir.path(), &engine, &names);
    delete(&engine, C, 4);
    insert(&engine, "db.capped", &doc! { "_id": 2 }).unwrap();
    assert_survives_a_crash(dir.path(), &engine, &names);
    flush_unordered(&engine);
    flush_unordered(&engine);
    engine.drop_collection("db.second", GO_ON).unwrap();
    flush_unordered(&engine);
    assert_survives_a_crash(dir.path(), &engine, &[C, "db.capped"]);
    engine.checkpoint().unwrap();
    delete(&engine, C, 5);
    assert_survives_a_crash(dir.path(), &engine, &[C, "db.capped"]);
}

/// A group of commits is one entry and several batches: a flush may come between them.
#[test]
fn a_flush_in_the_middle_of_an_entry() {
    let (dir, engine) = fresh();
    for round in 0..12 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (engine, done) = (&engine, &done);
                scope.spawn(move || {
                    let mut n = (thread * 100 + round) * 1_000_000;
                    while !done.load(Ordering::Acquire) {
                        insert(engine, C, &doc! { "_id": n, "text": "some text" }).unwrap();
                        if n % 3 == 0 {
                            delete(engine, C, n);
                        }
                        n += 1;
                    }
                });
            }
            for _ in 0..3 {
                flush_unordered(&engine);
            }
            done.store(true, Ordering::Release);
        });
        assert_survives_a_crash(dir.path(), &engine, &[C]);
        if round % 4 == 3 {
            engine.checkpoint().unwrap();
        }
    }
}

/// What the log may lose in a power failure must not be in files.
#[test]
fn a_flush_that_nobody_ordered_waits_for_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let day = std::time::Duration::from_secs(86_400);
    let engine =
        Engine::open(crate::Options { journal_commit_interval: day, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    let at = insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    assert!(engine.durable_index() < at.index);
    flush_unordered(&engine);
    assert!(engine.durable_index() >= at.index);
}

#[test]
fn without_a_log_counters_are_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let bare =
        |path: &std::path::Path| Engine::open(crate::Options { journal: false, ..options(path) }).unwrap();
    let engine = bare(dir.path());
    create(&engine, C, doc! {});
    engine.checkpoint().unwrap();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    flush_unordered(&engine);
    let again = bare(crash_copy(dir.path()).path());
    assert_eq!(again.catalog().collection(C).unwrap().count(), 1);
    assert_valid(&again, C);
}

/// What the set may take back must not be in files, the end of the process is no reason either.
#[test]
fn a_flush_that_nobody_ordered_does_not_pass_when_the_process_ends() {
    for orderly in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let member = Member::open(dir.path());
        member.lead();
        create(&member.engine, C, doc! {});
        let kept = member.engine.last_applied();
        member.commit(kept.index);
        assert!(member.engine.core().try_checkpoint().unwrap());
        insert(&member.engine, C, &doc! { "_id": 1 }).unwrap();
        let core = member.engine.core();
        core.base.db.flush().unwrap();
        // It has come to the gate, and stands there.
        while !core.base.db.events().is_held() {
            std::thread::yield_now();
        }
        if orderly {
            member.engine.shutdown(true).unwrap();
        }
        drop(member);
        // RocksDB's thread lets go of it last.
        let path = dir.path().join("data");
        let db = loop {
            match crate::db::Db::open(&path, &options(dir.path())) {
                Ok(db) => break db,
                Err(error) => assert!(error.message().contains("lock hold"), "{error}"),
            }
            std::thread::yield_now();
        };
        let held = crate::commit::Position::read(&db).unwrap().unwrap();
        assert_eq!(held.at, kept, "orderly: {orderly}");
    }
}

/// Commits go on until a checkpoint holds the pipeline, and what came since it has synced the log goes into the files, too.
#[test]
fn a_checkpoint_among_commits_writes_nothing_that_the_log_may_lose() {
    let dir = tempfile::tempdir().unwrap();
    let day = std::time::Duration::from_secs(86_400);
    let engine =
        Engine::open(crate::Options { journal_commit_interval: day, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0.. {
                insert(&engine, C, &doc! { "_id": id }).unwrap();
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..20 {
            // It stops the process where the files would get ahead.
            engine.checkpoint().unwrap();
            assert!(engine.durable_index() >= engine.last_flushed().index);
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// The commit of a prepared transaction names no documents, and counts them all the same.
#[test]
fn a_flush_between_a_prepare_and_a_commit() {
    let (dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let key = TransactionKey { lsid: doc! { "id": 1 }, txn_number: 1 };
    let mut txn = engine.begin(Some((key.lsid.clone(), 1))).unwrap();
    let collection = txn.collection(C).unwrap().unwrap();
    for id in 2..6 {
        txn.insert(&collection, doc! { "_id": id, "a": [1, 2] }.as_raw()).unwrap();
    }
    let prepared = txn.prepare(&doc! { "0": "a" }, GO_ON).unwrap();
    flush_unordered(&engine);
    let copy = crash_copy(dir.path());
    assert_eq!(open(copy.path()).prepared_before(None), Some(key.clone()));
    engine.checkpoint().unwrap();
    engine.commit_prepared(&key, sheaf_bson::Timestamp(prepared.time), GO_ON).unwrap();
    assert_survives_a_crash(dir.path(), &engine, &[C]);
    flush_unordered(&engine);
    assert_survives_a_crash(dir.path(), &engine, &[C]);
}
