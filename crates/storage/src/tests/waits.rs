//! Who waits for the disk, and for whom.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheaf_bson::{RawDoc, doc};
use sheaf_errors::{Code, Error};

use super::support::*;
use crate::{Engine, HookPoint, Options, Write};

const PATIENCE: Duration = Duration::from_secs(10);

/// An engine that syncs only when it is asked to.
fn lazy() -> (tempfile::TempDir, Engine) {
    let dir = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(86_400);
    let engine = Engine::open(Options { journal_commit_interval: day, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    (dir, engine)
}

/// Makes every sync tell that it has come, and wait for a word.
fn slow_syncs(engine: &Engine) -> (std::sync::mpsc::Receiver<()>, Sender<()>) {
    let (came, comes) = channel();
    let (go, goes) = channel();
    let ends = Mutex::new((came, goes));
    engine.set_hook(
        HookPoint::Sync,
        Some(Arc::new(move || {
            let ends = ends.lock().unwrap();
            let _ = ends.0.send(());
            let _ = ends.1.recv_timeout(PATIENCE);
            Ok(())
        })),
    );
    (comes, go)
}

#[test]
fn a_lone_waiter_syncs_on_its_own_thread() {
    let (_dir, engine) = lazy();
    let before = engine.stats().log_syncs;
    let own = std::thread::current().id();
    for n in 0..3 {
        let at = insert(&engine, C, &doc! { "_id": n }).unwrap();
        assert!(engine.durable_index() < at.index);
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        engine.on_durable(
            at.index,
            Box::new(move |result| {
                result.unwrap();
                flag.store(std::thread::current().id() == own, Ordering::Release);
            }),
        );
        assert!(done.load(Ordering::Acquire), "it was not done here and now");
        assert!(engine.durable_index() >= at.index);
    }
    assert_eq!(engine.stats().log_syncs - before, 3);
}

#[test]
fn who_comes_during_a_sync_is_told_when_it_is_covered() {
    let (_dir, engine) = lazy();
    let (comes, go) = slow_syncs(&engine);
    std::thread::scope(|scope| {
        let first = insert(&engine, C, &doc! { "_id": 1 }).unwrap();
        let (engine, index) = (&engine, first.index);
        let lone = scope.spawn(move || engine.wait_durable(index, GO_ON));
        comes.recv_timeout(PATIENCE).unwrap();
        let second = insert(engine, C, &doc! { "_id": 2 }).unwrap();
        let (done, waiting) = channel();
        engine.on_durable(second.index, Box::new(move |result| done.send(result.is_ok()).unwrap()));
        assert!(waiting.try_recv().is_err());
        go.send(()).unwrap();
        lone.join().unwrap().unwrap();
        // Whether the first sync covered it or not, the thread that syncs for the others goes next.
        go.send(()).unwrap();
        assert!(waiting.recv_timeout(PATIENCE).unwrap());
        assert!(engine.durable_index() >= second.index);
    });
    engine.set_hook(HookPoint::Sync, None);
}

#[test]
fn a_waiter_with_a_time_limit_does_not_sync_itself() {
    let (_dir, engine) = lazy();
    let (comes, go) = slow_syncs(&engine);
    let at = insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let (done, waiting) = channel();
    // Returns, though the sync hangs.
    engine.on_durable_later(at.index, Box::new(move |result| done.send(result.is_ok()).unwrap()));
    comes.recv_timeout(PATIENCE).unwrap();
    assert!(waiting.try_recv().is_err());
    go.send(()).unwrap();
    assert!(waiting.recv_timeout(PATIENCE).unwrap());
    engine.set_hook(HookPoint::Sync, None);
}

#[test]
fn a_failed_sync_is_told_to_all_who_wait_and_ends_writes() {
    let (dir, engine) = lazy();
    let at = insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let failing = || Err(Error::new(Code::LOG_WRITE_FAILED, "the disk is gone"));
    engine.set_hook(HookPoint::Sync, Some(Arc::new(failing)));
    let (done, waiting) = channel();
    engine.on_durable_later(at.index, Box::new(move |result| done.send(result).unwrap()));
    assert!(waiting.recv_timeout(PATIENCE).unwrap().is_err());
    engine.set_hook(HookPoint::Sync, None);
    assert_eq!(engine.wait_durable(at.index, GO_ON).unwrap_err().code(), Code::LOG_WRITE_FAILED);
    assert_eq!(insert(&engine, C, &doc! { "_id": 2 }).unwrap_err().code(), Code::LOG_WRITE_FAILED);
    assert_eq!(all(&engine, C).len(), 1);
    drop(engine);
    assert_eq!(all(&open(dir.path()), C).len(), 1);
}

#[test]
fn a_flush_without_room_is_an_error_and_may_succeed_later() {
    let (dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let stuck = || Err(Error::new(Code::OUT_OF_DISK_SPACE, "no room"));
    engine.set_hook(HookPoint::Flush, Some(Arc::new(stuck)));
    let error = engine.checkpoint().unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_DISK_SPACE, "{error}");
    assert_eq!(engine.stats().flushes, 0);
    // The log still takes writes, and nothing is let go of that a recovery needs.
    insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    assert_eq!(all(&open(crash_copy(dir.path()).path()), C).len(), 2);
    engine.set_hook(HookPoint::Flush, None);
    engine.checkpoint().unwrap();
    insert(&engine, C, &doc! { "_id": 3 }).unwrap();
    assert_eq!(all(&engine, C).len(), 3);
    assert_eq!(all(&open(crash_copy(dir.path()).path()), C).len(), 3);
}

#[test]
fn the_last_flush_may_fail_as_the_log_has_everything() {
    let (dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let stuck = || Err(Error::new(Code::OUT_OF_DISK_SPACE, "no room"));
    engine.set_hook(HookPoint::Flush, Some(Arc::new(stuck)));
    let left_out = engine.shutdown(true).unwrap().unwrap();
    assert_eq!(left_out.code(), Code::OUT_OF_DISK_SPACE, "{left_out}");
    assert_eq!(engine.stats().flushes, 0);
    drop(engine);
    assert_eq!(all(&open(dir.path()), C).len(), 1);
}

#[test]
fn a_plain_write_that_lost_its_record_meanwhile_must_look_again() {
    let (_dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "u": 1 }, "u_1", doc! { "unique": true })).unwrap();
    insert(&engine, C, &doc! { "_id": 1, "u": 1, "n": 0 }).unwrap();
    // A transaction has the key that the update wants to take.
    let holder = Mutex::new(Some(engine.begin(None).unwrap()));
    {
        let mut holder = holder.lock().unwrap();
        let txn = holder.as_mut().unwrap();
        let collection = txn.collection(C).unwrap().unwrap();
        txn.insert(&collection, doc! { "_id": 100, "u": 5 }.as_raw()).unwrap();
    }
    let waits = AtomicU32::new(0);
    let interrupt = || {
        // The first wait: whoever waits holds nothing, so another may change the record.
        if waits.fetch_add(1, Ordering::AcqRel) == 0 {
            let mut unit = engine.write(GO_ON);
            assert!(change(&mut unit, C, 1, Some(&doc! { "_id": 1, "u": 1, "n": 10 })).unwrap());
            unit.commit().unwrap();
            drop(holder.lock().unwrap().take());
        }
        Ok(())
    };
    let mut unit = engine.write(&interrupt);
    assert!(unit.retries_conflicts());
    let collection = unit.collection(C).unwrap().unwrap();
    let key = collection.record_key(1.into()).unwrap();
    let mut attempt = |expected: i32| {
        let old = unit.read_for_update(&collection, &key).unwrap().unwrap();
        let old = RawDoc::new(&old);
        assert_eq!(old.get("n").unwrap().as_exact_i64(), Some(i64::from(expected)));
        unit.update(&collection, &key, old, doc! { "_id": 1, "u": 5, "n": (expected + 1) }.as_raw(), None)
    };
    assert_eq!(attempt(0).unwrap_err().code(), Code::WRITE_CONFLICT);
    attempt(10).unwrap();
    unit.commit().unwrap();
    assert_eq!(all(&engine, C), ["{\"_id\": Int32(1), \"u\": Int32(5), \"n\": Int32(11)}"]);
    assert_valid(&engine, C);
}

/// Who asks for figures and who begins a transaction take the same two locks.
#[test]
fn figures_are_told_while_transactions_begin() {
    let (_dir, engine) = lazy();
    let over = Arc::new(AtomicBool::new(false));
    let (told, done) = channel();
    let asking = {
        let (engine, over) = (engine.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                let _ = engine.stats();
            }
        })
    };
    let beginning = engine.clone();
    std::thread::spawn(move || {
        for _ in 0..20_000 {
            drop(beginning.begin(None).unwrap());
        }
        let _ = told.send(());
    });
    assert!(done.recv_timeout(6 * PATIENCE).is_ok(), "both wait for each other");
    over.store(true, Ordering::Release);
    asking.join().unwrap();
}
