//! Durability: what survives what.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_bson::doc;
use sheaf_errors::Code;

use super::support::*;
use crate::{Engine, Options, Write};

#[test]
fn waiting_for_the_sync() {
    let (_dir, engine) = fresh();
    let at = insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    engine.wait_durable(at.index, GO_ON).unwrap();
    assert!(engine.durable_index() >= at.index);
    let at = insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    engine.on_durable(at.index, Box::new(move |result| sender.send(result.is_ok()).unwrap()));
    assert!(receiver.recv_timeout(std::time::Duration::from_secs(5)).unwrap());
    assert!(engine.durable_index() >= at.index);
    // In the background, without anybody asking.
    let at = insert(&engine, C, &doc! { "_id": 3 }).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while engine.durable_index() < at.index {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn many_waiters_share_syncs() {
    let (_dir, engine) = fresh();
    let before = engine.stats().log_syncs;
    let slowest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (engine, slowest) = (&engine, &slowest);
            scope.spawn(move || {
                for n in 0..25 {
                    let at = insert(engine, C, &doc! { "_id": thread * 1000 + n }).unwrap();
                    engine.wait_durable(at.index, GO_ON).unwrap();
                    slowest.fetch_max(at.index, Ordering::Relaxed);
                }
            });
        }
    });
    let syncs = engine.stats().log_syncs - before;
    assert!(syncs < 200, "{syncs} syncs for 200 commits of 8 clients");
    assert_valid(&engine, C);
}

#[test]
fn flushes_and_recovery_meet() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = open(dir.path());
    create(&opened, C, doc! {});
    build(&opened, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    let mut copies = Vec::new();
    for round in 0..6 {
        for n in 0..50 {
            insert(&opened, C, &doc! { "_id": round * 100 + n, "a": [n, n + 1] }).unwrap();
        }
        let mut unit = opened.write(GO_ON);
        change(&mut unit, C, round * 100 + 3, None).unwrap();
        change(&mut unit, C, round * 100 + 4, Some(&doc! { "_id": round * 100 + 4, "a": 0 })).unwrap();
        unit.commit().unwrap();
        if round % 2 == 0 {
            opened.checkpoint().unwrap();
        }
        let expected = all(&opened, C);
        let copy = crash_copy(dir.path());
        let engine = open(copy.path());
        assert_eq!(all(&engine, C), expected);
        assert_valid(&engine, C);
        // Crash during the recovery's own work, so to say: recover again.
        drop(engine);
        opened = open(copy.path());
        assert_eq!(all(&opened, C), expected);
        drop(opened);
        copies.push(copy);
        opened = open(dir.path());
        assert_eq!(all(&opened, C), expected);
        assert_valid(&opened, C);
    }
}

#[test]
fn the_log_is_kept_as_long_as_it_is_needed_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { oplog_bytes: 4 << 20, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    let text = "x".repeat(10_000);
    for n in 0..1500 {
        insert(&engine, C, &doc! { "_id": n, "text": &text }).unwrap();
    }
    // 15 MB; memory may have asked for a flush before this one.
    engine.checkpoint().unwrap();
    assert!(engine.stats().log_bytes < 7 << 20, "{}", engine.stats().log_bytes);
    drop(engine);
    assert_eq!(all(&open(dir.path()), C).len(), 1500);
}

#[test]
fn without_a_journal_a_flush_makes_writes_last() {
    let dir = tempfile::tempdir().unwrap();
    let bare = |path: &std::path::Path| Engine::open(Options { journal: false, ..options(path) }).unwrap();
    let engine = bare(dir.path());
    create(&engine, C, doc! {});
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    engine.checkpoint().unwrap();
    insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    let copy = crash_copy(dir.path());
    assert_eq!(all(&bare(copy.path()), C).len(), 1);
    drop(engine);
    // With a journal again, and back.
    let engine = open(dir.path());
    insert(&engine, C, &doc! { "_id": 3 }).unwrap();
    drop(engine);
    let engine = bare(dir.path());
    assert_eq!(all(&engine, C).len(), 2);
    insert(&engine, C, &doc! { "_id": 4 }).unwrap();
    drop(engine);
    assert_eq!(all(&open(dir.path()), C).len(), 2);
}

#[test]
fn a_log_that_is_not_there_is_missed() {
    let (dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    engine.checkpoint().unwrap();
    insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    let copy = crash_copy(dir.path());
    drop(engine);
    std::fs::remove_dir_all(copy.path().join("log")).unwrap();
    for _ in 0..2 {
        let error = Engine::open(options(copy.path())).map(drop).unwrap_err();
        assert_eq!(error.code(), Code::CHECKSUM_MISMATCH);
        assert!(
            error.message().contains("the log is missing") && error.message().contains("--cut-log"),
            "{error}"
        );
    }
    // A repair begins it anew, without what was in it alone.
    crate::cut_log(options(copy.path())).unwrap();
    let engine = open(copy.path());
    assert_eq!(all(&engine, C).len(), 1);
    insert(&engine, C, &doc! { "_id": 3 }).unwrap();
    drop(engine);
    assert_eq!(all(&open(copy.path()), C).len(), 2);
}

#[test]
fn a_folder_around_a_data_folder_is_none() {
    let outer = tempfile::tempdir().unwrap();
    let data = outer.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let engine = open(&data);
    create(&engine, C, doc! {});
    drop(engine);
    let error = Engine::open(options(outer.path())).map(drop).unwrap_err();
    assert!(error.message().contains(&data.display().to_string()), "{error}");
    let names: Vec<_> =
        std::fs::read_dir(outer.path()).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(names, ["data"], "nothing was made");
    std::fs::remove_file(data.join("sheaf.format")).unwrap();
    assert!(Engine::open(options(&data)).is_err(), "not all of one");
}

#[test]
fn after_a_failed_disk_reads_go_on() {
    let (_dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    engine.shutdown(false).unwrap();
    let error = insert(&engine, C, &doc! { "_id": 2 }).unwrap_err();
    assert_eq!(error.code(), Code::LOG_WRITE_FAILED);
    assert_eq!(all(&engine, C).len(), 1);
}

#[test]
fn concurrent_commits_form_groups_and_keep_their_order() {
    let (dir, engine) = fresh();
    let engine = Arc::new(engine);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let engine = engine.clone();
            scope.spawn(move || {
                let mut last = 0;
                for n in 0..200 {
                    let mut unit = engine.write(GO_ON);
                    let collection = unit.collection(C).unwrap().unwrap();
                    unit.insert(&collection, doc! { "_id": thread * 1000 + n }.as_raw()).unwrap();
                    let at = unit.commit().unwrap();
                    assert!(at.time > last);
                    last = at.time;
                    // What is committed is visible to its writer.
                    let key = collection.record_key((thread * 1000 + n).into()).unwrap();
                    assert!(engine.get(&collection, &key).unwrap().is_some());
                }
            });
        }
    });
    assert_eq!(all(&engine, C).len(), 1600);
    assert!(engine.stats().log_appends <= 1601);
    let again = open(crash_copy(dir.path()).path());
    assert_eq!(all(&again, C).len(), 1600);
    assert_eq!(again.catalog().collection(C).unwrap().count(), 1600);
}

#[test]
fn a_checkpoint_gets_its_turn_under_load() {
    let (dir, engine) = fresh();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, done) = (&engine, &done);
            scope.spawn(move || {
                let mut n = 0;
                while !done.load(Ordering::Acquire) {
                    insert(engine, C, &doc! { "_id": thread * 10_000_000 + n }).unwrap();
                    n += 1;
                }
            });
        }
        for _ in 0..20 {
            engine.checkpoint().unwrap();
        }
        done.store(true, Ordering::Release);
    });
    let expected = all(&engine, C).len();
    assert_valid(&engine, C);
    drop(engine);
    let engine = open(dir.path());
    assert_eq!(all(&engine, C).len(), expected);
    assert_valid(&engine, C);
}

/// Needs a small file system of its own: `SHEAF_SMALL_DISK=/mnt/small cargo test -p sheaf-storage full_disk -- --ignored`
/// (for instance `mount -t tmpfs -o size=24m none /mnt/small`).
#[test]
#[ignore = "needs a small file system, named by SHEAF_SMALL_DISK"]
fn a_full_disk_stops_writes_and_nothing_else() {
    let path =
        std::path::PathBuf::from(std::env::var_os("SHEAF_SMALL_DISK").expect("SHEAF_SMALL_DISK is set"));
    let ballast = path.join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let engine = open(&path);
    create(&engine, C, doc! {});
    let text = "x".repeat(100_000);
    let mut written = 0;
    let error = loop {
        match insert(&engine, C, &doc! { "_id": written, "text": &text }) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 100_000, "the disk is not small");
    };
    assert_eq!(error.code(), Code::OUT_OF_DISK_SPACE, "{error}");
    assert_eq!(all(&engine, C).len(), written as usize);
    // Still full, still the same error, still readable.
    let error = insert(&engine, C, &doc! { "_id": -1, "text": &text }).unwrap_err();
    assert_eq!(error.code(), Code::OUT_OF_DISK_SPACE, "{error}");
    // With room again writes go on, without a restart and after one.
    std::fs::remove_file(ballast).unwrap();
    insert(&engine, C, &doc! { "_id": written, "text": &text }).unwrap();
    written += 1;
    drop(engine);
    let engine = open(&path);
    assert_eq!(all(&engine, C).len(), written as usize);
    assert_valid(&engine, C);
}

#[test]
fn a_torn_end_of_the_manifest_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    create(&engine, C, doc! {});
    for n in 0..3 {
        insert(&engine, C, &doc! { "_id": n }).unwrap();
        engine.checkpoint().unwrap();
    }
    insert(&engine, C, &doc! { "_id": 3 }).unwrap();
    let crashed = crash_copy(dir.path());
    let data = crashed.path().join("data");
    let manifest = data.join(std::fs::read_to_string(data.join("CURRENT")).unwrap().trim_end());
    let mut bytes = std::fs::read(&manifest).unwrap();
    let end = bytes.len();
    bytes[end - 4..].fill(0);
    std::fs::write(&manifest, &bytes).unwrap();
    let engine = open(crashed.path());
    assert_eq!(all(&engine, C).len(), 4);
    assert_valid(&engine, C);
}

#[test]
fn a_long_end_of_the_log_with_everything_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    create(&engine, C, doc! {});
    engine.checkpoint().unwrap();
    let text = "x".repeat(600);
    let insert_some = |first: i32| {
        let mut unit = engine.write(GO_ON);
        let collection = unit.collection(C).unwrap().unwrap();
        for n in first..first + 8000 {
            unit.insert(&collection, doc! { "_id": n, "a": n % 100, "text": &text }.as_raw()).unwrap();
        }
        unit.commit().unwrap();
    };
    let change_some = |first: i32| {
        let mut unit = engine.write(GO_ON);
        for n in (first..first + 8000).rev().step_by(400) {
            change(&mut unit, C, n, Some(&doc! { "_id": n, "a": -n })).unwrap();
        }
        change(&mut unit, C, first + 7998, None).unwrap();
        unit.commit().unwrap();
    };
    // A build flushes, so the first of these are not replayed: what follows the last one is.
    for round in 0..2 {
        let first = round * 10_000;
        insert_some(first);
        change_some(first);
        insert_some(first + 100_000);
        build(&engine, C, &index_spec(doc! { "a": 1, "_id": round }, &format!("a_{round}"), doc! {}))
            .unwrap();
        insert_some(first + 200_000);
        rename(&engine, C, "db.other", false).unwrap();
        rename(&engine, "db.other", C, false).unwrap();
    }
    // Each of these needs what was inserted right before it, which may be on its way to the memtables.
    for round in 0..3 {
        insert_some(1_000_000 + round * 10_000);
        change_some(1_000_000 + round * 10_000);
    }
    let expected = all(&engine, C);
    let again = open(crash_copy(dir.path()).path());
    assert!(again.last_applied().index == engine.last_applied().index);
    assert_eq!(all(&again, C).len(), expected.len());
    assert!(all(&again, C) == expected);
    assert_eq!(again.catalog().collection(C).unwrap().count(), expected.len() as u64);
    assert_valid(&again, C);
}
