//! Copies of a member's data, and taking them into use.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_bson::doc;

use super::apply::{Follower, state};
use super::support::*;
use crate::recovery::install::install_in_steps;
use crate::{Engine, Options, install_at_next_open};

fn document(id: i32) -> sheaf_bson::DocBuf {
    // Large values have files of their own.
    let text = "x".repeat(if id % 10 == 0 { 20_000 } else { 10 });
    doc! { "_id": id, "a": [id, { "b": (id % 7) }], "text": &text }
}

fn source() -> (tempfile::TempDir, Engine) {
    let (dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a.b": 1 }, "a.b_1", doc! {})).unwrap();
    create(&engine, "db.capped", doc! { "capped": true, "size": 4096 });
    for id in 0..200 {
        insert(&engine, C, &document(id)).unwrap();
        insert(&engine, "db.capped", &doc! { "_id": id }).unwrap();
    }
    create(&engine, "local.own", doc! {});
    insert(&engine, "local.own", &doc! { "_id": 1 }).unwrap();
    create(&engine, "db.system.profile", doc! { "capped": true, "size": 4096 });
    (dir, engine)
}

/// As another member fetches it.
fn fetch(from: &Path, files: &[(String, u64)], to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for (name, size) in files {
        assert_eq!(std::fs::copy(from.join(name), to.join(name)).unwrap(), *size);
    }
}

#[test]
fn a_copy_is_the_flushed_state_and_follows_on() {
    let (dir, engine) = source();
    let exported = dir.path().join("sync-source").join("1");
    let stop = AtomicBool::new(false);
    let copied = std::thread::scope(|scope| {
        // Under load: what is not in the copy is in the log behind it.
        scope.spawn(|| {
            let mut id = 1000;
            while !stop.load(Ordering::Acquire) {
                insert(&engine, C, &document(id)).unwrap();
                id += 1;
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        let copied = engine.export_copy(&exported).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        stop.store(true, Ordering::Release);
        copied
    });
    assert!(copied.at < engine.last_applied() && copied.at.index > 200);
    assert!(copied.files.iter().any(|(name, _)| name.ends_with(".blob")));

    // The target has data and a log of its own, which go.
    let target = tempfile::tempdir().unwrap();
    let old = open(target.path());
    create(&old, "old.data", doc! {});
    insert(&old, "old.data", &doc! { "_id": 1 }).unwrap();
    drop(old);
    let copy = target.path().join("sync").join("files");
    fetch(&exported, &copied.files, &copy);
    install_at_next_open(target.path(), &copy).unwrap();
    let mut follower = Follower::open(target.path());
    assert_eq!(follower.engine.last_applied(), copied.at);
    let names: Vec<String> = follower.engine.catalog().all().map(|c| c.namespace.clone()).collect();
    assert_eq!(names, [C, "db.capped"]);
    let tail = follower.engine.log_tail().unwrap();
    assert_eq!(tail.start, (copied.at.term, copied.at.index));
    assert_eq!((tail.last, tail.runs.len()), (copied.at, 0));
    for round in 0..3 {
        follower.follow(&engine, 100);
        let theirs: Vec<String> = state(&engine)
            .into_iter()
            .filter(|row| !row.contains("local.own") && !row.contains("profile"))
            .collect();
        let ours = state(&follower.engine);
        assert!(ours.iter().all(|row| theirs.contains(row)), "round {round}");
        assert_valid(&follower.engine, C);
        if round == 1 {
            follower.flush();
        }
        insert(&engine, C, &document(100_000 + round)).unwrap();
        drop(follower);
        follower = Follower::open(target.path());
    }
    // The source goes on whatever becomes of the copy.
    std::fs::remove_dir_all(&exported).unwrap();
    drop(engine);
    assert_valid(&open(dir.path()), C);
}

#[test]
fn a_crash_while_it_is_taken_into_use() {
    let (dir, engine) = source();
    let exported = dir.path().join("sync-source").join("1");
    let copied = engine.export_copy(&exported).unwrap();
    let target = tempfile::tempdir().unwrap();
    let old = open(target.path());
    create(&old, "old.data", doc! {});
    insert(&old, "old.data", &doc! { "_id": 1 }).unwrap();
    drop(old);
    let copy = target.path().join("sync").join("files");
    fetch(&exported, &copied.files, &copy);
    // Not yet decided: the old data.
    let undecided = crash_copy(target.path());
    assert_eq!(all(&open(undecided.path()), "old.data").len(), 1);
    install_at_next_open(target.path(), &copy).unwrap();
    let mut crashes = vec![crash_copy(target.path())];
    install_in_steps(target.path(), &mut || crashes.push(crash_copy(target.path()))).unwrap();
    crashes.push(crash_copy(target.path()));
    assert!(crashes.len() > 6);
    for crash in crashes {
        for _ in 0..2 {
            let engine = Engine::open(Options { replica: true, ..options(crash.path()) }).unwrap();
            assert_eq!(engine.last_applied(), copied.at);
            let names: Vec<String> = engine.catalog().all().map(|c| c.namespace.clone()).collect();
            assert_eq!(names, [C, "db.capped"]);
            assert_eq!(all(&engine, C).len(), 200);
        }
    }
}

#[test]
fn a_copy_with_an_index_under_way() {
    let (dir, engine) = fresh();
    for id in 0..2000 {
        insert(&engine, C, &document(id)).unwrap();
    }
    let stop = AtomicBool::new(false);
    let mut copies = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut id = 0;
            while !stop.load(Ordering::Acquire) {
                let mut unit = engine.write(GO_ON);
                change(&mut unit, C, id % 2000, Some(&document(id % 2000))).unwrap();
                unit.commit().unwrap();
                id += 7;
            }
        });
        let builder = scope.spawn(|| {
            build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
            build(&engine, C, &index_spec(doc! { "_id": 1, "a.b": 1 }, "u", doc! { "unique": true }))
                .unwrap();
        });
        while !builder.is_finished() {
            let exported = dir.path().join("sync-source").join(copies.len().to_string());
            copies.push((engine.export_copy(&exported).unwrap(), exported));
        }
        stop.store(true, Ordering::Release);
    });
    assert!(!copies.is_empty());
    let theirs = state(&engine);
    for (copied, exported) in copies.iter().rev().take(6) {
        let target = tempfile::tempdir().unwrap();
        let copy = target.path().join("sync");
        fetch(exported, &copied.files, &copy);
        install_at_next_open(target.path(), &copy).unwrap();
        let mut follower = Follower::open(target.path());
        // Opened once more before it follows: nothing of the index is lost by that.
        drop(follower);
        follower = Follower::open(target.path());
        follower.follow(&engine, 200);
        assert!(theirs == state(&follower.engine), "a copy at {:?}", copied.at);
        assert_valid(&follower.engine, C);
    }
}

#[test]
fn the_log_stays_while_it_is_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { oplog_bytes: 2 << 20, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    let text = "x".repeat(100_000);
    let fill = |from: i32| {
        for id in from..from + 100 {
            insert(&engine, C, &doc! { "_id": id, "text": &text }).unwrap();
        }
        engine.checkpoint().unwrap();
        engine.stats().log_first_index
    };
    let first = fill(0);
    assert!(first > 50);
    let pins = [engine.pin_log(), engine.pin_log()];
    let pinned = engine.last_applied().index;
    assert!((first..=pinned + 1).contains(&fill(1000)));
    let [one, other] = pins;
    drop(one);
    assert!(fill(2000) <= pinned + 1);
    drop(other);
    assert!(fill(3000) > pinned + 100);
}

#[test]
fn a_copy_that_is_not_there_is_refused() {
    let (dir, _engine) = fresh();
    assert!(install_at_next_open(dir.path(), &dir.path().join("sync")).is_err());
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(install_at_next_open(dir.path(), elsewhere.path()).is_err());
}
