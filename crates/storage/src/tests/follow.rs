//! Index builds on members that follow: beside what they apply, through crashes, rollbacks and changes of the primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Error};

use super::apply::state;
use super::member::Member;
use super::support::*;
use crate::oplog;
use crate::{Engine, HookPoint};

const NAME: &str = "a_1";

fn document(n: i32, a: i32) -> DocBuf {
    doc! { "_id": n, "a": [a, a + 100_000], "text": "a text of some length" }
}

fn spec(unique: bool) -> DocBuf {
    index_spec(doc! { "a": 1 }, NAME, doc! { "unique": unique })
}

fn fill(engine: &Engine, from: i32, to: i32) {
    for n in from..to {
        insert(engine, C, &document(n, n)).unwrap();
    }
}

fn put(engine: &Engine, id: i32, a: Option<i32>) {
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, id, a.map(|a| document(id, a)).as_ref()).unwrap();
    unit.commit().unwrap();
}

/// Builds on `engine`; `work` is done once while it builds.
fn build_during(engine: &Engine, unique: bool, work: impl Fn() + Sync) {
    let done = AtomicBool::new(false);
    let interrupt = || {
        let building = engine.catalog().collection(C).unwrap().index(NAME).is_some();
        if building && !done.swap(true, Ordering::AcqRel) {
            work();
        }
        Ok(())
    };
    engine.create_indexes(C, &[spec(unique).as_raw()], &interrupt).unwrap();
    assert!(done.load(Ordering::Acquire));
}

/// What happens during a build: keys go from one document to another, documents come and go.
fn turmoil(engine: &Engine) {
    for n in 0..300 {
        put(engine, n, None);
    }
    for n in 0..100 {
        // A key that another document of the snapshot had.
        put(engine, 1000 + n, Some(n));
        put(engine, 2000 + n, Some(500_000 + n));
        insert(engine, C, &document(-1 - n, -1 - n)).unwrap();
        put(engine, 2000 + n, Some(600_000 + n));
    }
}

/// The first entry from `from` on with a command of this name.
fn entry_of(engine: &Engine, command: &str, from: u64) -> u64 {
    let is = |doc: RawDoc<'_>| {
        let o = doc.get("o").and_then(|o| o.as_doc());
        o.is_some_and(|o| o.element(command).is_some())
    };
    let entries = engine.log_entries(from, u64::MAX, u64::MAX).unwrap();
    entries.iter().find(|entry| oplog::documents(&entry.payload).any(is)).expect("the log has it").index
}

fn wait(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait_filled(member: &Member) {
    let core = member.engine.core();
    let catalog = member.engine.catalog();
    let ident = catalog.collection(C).unwrap().index(NAME).unwrap().ident;
    wait("the files are in", || core.definitions.builds().is_filled(ident));
}

fn is_ready(engine: &Engine) -> bool {
    engine.catalog().collection(C).unwrap().index(NAME).is_some_and(|index| index.ready)
}

fn assert_same_data(left: &Engine, right: &Engine) {
    assert!(state(left) == state(right), "{:?} and {:?}", left.last_applied(), right.last_applied());
    assert_valid(right, C);
}

/// A primary that has built an index in turmoil, and the entries that announced and ended the build.
fn built(unique: bool) -> (tempfile::TempDir, Engine, u64, u64) {
    let (dir, primary) = fresh();
    fill(&primary, 0, 3000);
    build_during(&primary, unique, || turmoil(&primary));
    fill(&primary, 9000, 9010);
    let begin = entry_of(&primary, "startIndexBuild", 1);
    let end = entry_of(&primary, "commitIndexBuild", 1);
    assert!(end > begin + 600, "the turmoil is between");
    (dir, primary, begin, end)
}

#[test]
fn a_member_builds_while_it_follows() {
    for unique in [false, true] {
        let (_dir, primary, begin, end) = built(unique);
        // Files are in before anything else, or in the middle, or hardly before the end.
        for files_at in [begin, begin + 300, end - 1] {
            let other = tempfile::tempdir().unwrap();
            let member = Member::open(other.path());
            member.follow(&primary, files_at);
            wait_filled(&member);
            member.follow(&primary, end - 1);
            assert!(!is_ready(&member.engine));
            member.follow(&primary, end);
            assert!(is_ready(&member.engine));
            member.follow(&primary, u64::MAX - 1);
            assert_same_data(&primary, &member.engine);
            wait("the thread ends", || member.engine.core().definitions.builds().count() == 0);
            drop(member);
            assert_same_data(&primary, &Member::open(other.path()).engine);
        }
        // All at once: the end waits for the files.
        let other = tempfile::tempdir().unwrap();
        let member = Member::open(other.path());
        member.follow(&primary, u64::MAX - 1);
        assert_same_data(&primary, &member.engine);
    }
}

#[test]
fn a_build_survives_crashes_wherever_they_are() {
    for unique in [false, true] {
        let (_dir, primary, begin, end) = built(unique);
        for (crash_at, flush_at, files) in [
            (begin, 0, false),
            (begin, begin, true),
            (begin + 300, begin - 1, true),
            (begin + 300, begin + 100, false),
            (end - 1, begin + 100, true),
            (end - 1, end - 1, true),
            (end, begin + 100, true),
            (end, end, true),
        ] {
            let other = tempfile::tempdir().unwrap();
            let member = Member::open(other.path());
            if flush_at > 0 {
                member.follow(&primary, flush_at);
                if files && flush_at >= begin && flush_at < end {
                    wait_filled(&member);
                }
                member.flush();
            }
            member.follow(&primary, crash_at);
            if files && crash_at < end {
                wait_filled(&member);
            }
            // Twice: the second time with what the first start has begun.
            let first = crash_copy(other.path());
            let again = Member::open(first.path());
            if crash_at < end {
                wait_filled(&again);
                again.follow(&primary, (crash_at + 50).min(end - 1));
            }
            let second = crash_copy(first.path());
            drop(again);
            for copy in [first, second] {
                let member = Member::open(copy.path());
                member.follow(&primary, u64::MAX - 1);
                assert_same_data(&primary, &member.engine);
                member.flush();
                drop(member);
                assert_same_data(&primary, &Member::open(copy.path()).engine);
            }
        }
    }
}

#[test]
fn files_that_show_what_a_rollback_takes_back_are_not_used() {
    let (_dir, primary, begin, _) = built(false);
    let expected = state(&primary);
    let last = primary.last_applied().index;
    let ghost = insert(&primary, C, &document(77_777, 77_777)).unwrap().index;
    let mut ghost = primary.log_entries(ghost, ghost + 1, u64::MAX).unwrap();
    let other = tempfile::tempdir().unwrap();
    let member = Member::open(other.path());
    // Files come in when the announcement is durable. It is not, until this is released.
    let held = Arc::new(parking_lot::Mutex::new(()));
    let (guard, hold) = (held.lock(), held.clone());
    let hook = move || {
        drop(hold.lock());
        Ok(())
    };
    member.engine.set_hook(HookPoint::Sync, Some(Arc::new(hook)));
    member.follow(&primary, begin);
    member.flush();
    // An entry that nobody else has. A restart with it begins the build anew.
    ghost[0].index = begin + 1;
    member.take(ghost);
    let copy = crash_copy(other.path());
    drop(guard);
    drop(member);
    let member = Member::open(copy.path());
    assert!(all(&member.engine, C).iter().any(|document| document.contains("77777")));
    wait_filled(&member);
    member.engine.truncate_log(begin).unwrap();
    drop(member);
    let member = Member::open(copy.path());
    for mut entry in primary.log_entries(begin + 1, last + 1, u64::MAX).unwrap() {
        entry.term += 1;
        member.take(vec![entry]);
    }
    assert!(is_ready(&member.engine));
    assert_valid(&member.engine, C);
    assert!(state(&member.engine) == expected);
}

#[test]
fn an_aborted_build_leaves_nothing() {
    let (_dir, primary) = fresh();
    fill(&primary, 0, 3000);
    let other = tempfile::tempdir().unwrap();
    let member = Member::open(other.path());
    let interrupt = || Err(Error::new(Code::INTERRUPTED, "operation was interrupted"));
    let go_wrong = AtomicBool::new(false);
    let late = || if go_wrong.load(Ordering::Acquire) { interrupt() } else { Ok(()) };
    for end in ["abort", "dropIndexes", "drop"] {
        let from = primary.last_applied().index + 1;
        let work = || match end {
            "abort" => go_wrong.store(true, Ordering::Release),
            "dropIndexes" => _ = drop_indexes(&primary, C, &[NAME]).unwrap(),
            _ => _ = primary.drop_collection(C, GO_ON).unwrap(),
        };
        let done = AtomicBool::new(false);
        let during = || {
            let catalog = primary.catalog();
            let building = catalog.collection(C).is_some_and(|c| c.index(NAME).is_some());
            if building && !done.swap(true, Ordering::AcqRel) {
                work();
            }
            late()
        };
        primary.create_indexes(C, &[spec(false).as_raw()], &during).unwrap_err();
        go_wrong.store(false, Ordering::Release);
        member.follow(&primary, entry_of(&primary, "startIndexBuild", from));
        wait_filled(&member);
        member.follow(&primary, u64::MAX - 1);
        wait("the thread ends", || member.engine.core().definitions.builds().count() == 0);
        assert!(state(&primary) == state(&member.engine), "{end}");
    }
}

#[test]
fn a_new_primary_ends_the_build_that_it_has_followed() {
    for unique in [false, true] {
        let (_dir, primary, begin, end) = built(unique);
        for (lead_at, files) in [(begin, false), (begin + 300, true), (end - 1, true)] {
            let other = tempfile::tempdir().unwrap();
            let member = Member::open(other.path());
            member.follow(&primary, lead_at);
            if files {
                wait_filled(&member);
            }
            member.lead();
            member.engine.abort_orphaned_builds().unwrap();
            // Writers go on; and who wants the same index waits for it.
            for n in 0..50 {
                put(&member.engine, 700 + n, Some(5_000_000 + n));
            }
            build(&member.engine, C, &spec(unique)).unwrap();
            assert!(is_ready(&member.engine));
            assert_valid(&member.engine, C);
            // Another one follows the new primary, through a crash.
            let third = tempfile::tempdir().unwrap();
            let follower = Member::open(third.path());
            follower.follow(&member.engine, begin + 200);
            let copy = crash_copy(third.path());
            for follower in [follower, Member::open(copy.path())] {
                follower.follow(&member.engine, u64::MAX - 1);
                assert_same_data(&member.engine, &follower.engine);
            }
        }
    }
}

#[test]
fn a_primary_that_loses_its_office_goes_on_building() {
    let (_dir, source) = fresh();
    fill(&source, 0, 3000);
    for ends_itself in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let member = Member::open(dir.path());
        member.follow(&source, u64::MAX - 1);
        member.lead();
        let interrupt = || {
            let building = member.engine.catalog().collection(C).unwrap().index(NAME).is_some();
            if building {
                member.step_down();
                return Err(Error::new(
                    Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
                    "operation was interrupted",
                ));
            }
            Ok(())
        };
        let error = member.engine.create_indexes(C, &[spec(true).as_raw()], &interrupt).unwrap_err();
        assert_eq!(error.code(), Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
        wait_filled(&member);
        assert!(!is_ready(&member.engine));
        if ends_itself {
            member.lead();
            wait("the index is ready", || is_ready(&member.engine));
        } else {
            // Another one that has the announcement leads, and ends the build.
            let other = tempfile::tempdir().unwrap();
            let next = Member::open(other.path());
            next.follow(&member.engine, u64::MAX - 1);
            next.lead();
            turmoil(&next.engine);
            wait("the index is ready", || is_ready(&next.engine));
            member.follow(&next.engine, u64::MAX - 1);
            assert_same_data(&next.engine, &member.engine);
        }
        assert_valid(&member.engine, C);
        assert!(is_ready(&member.engine));
    }
}

#[test]
fn a_set_of_one_ends_after_a_restart_what_it_has_begun() {
    let (_dir, source) = fresh();
    fill(&source, 0, 3000);
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    member.follow(&source, u64::MAX - 1);
    member.lead();
    let copy = parking_lot::Mutex::new(None);
    build_during(&member.engine, true, || {
        put(&member.engine, 5, Some(-5));
        *copy.lock() = Some(crash_copy(dir.path()));
    });
    let copy = copy.into_inner().unwrap();
    let again = Member::open(copy.path());
    assert!(!is_ready(&again.engine));
    again.lead();
    again.engine.abort_orphaned_builds().unwrap();
    wait("the index is ready", || is_ready(&again.engine));
    assert_valid(&again.engine, C);
}

/// What a primary has built on is taken back, in whole or in part, and with it the build's own entries or not.
#[test]
fn a_primary_has_built_on_what_a_rollback_takes_back() {
    for unique in [false, true] {
        let (_dir, source) = fresh();
        fill(&source, 0, 2000);
        let dir = tempfile::tempdir().unwrap();
        let member = Member::open(dir.path());
        member.follow(&source, u64::MAX - 1);
        member.flush();
        let before = member.engine.last_applied().index;
        member.lead();
        // Nobody else has any of this.
        fill(&member.engine, 50_000, 50_100);
        put(&member.engine, 7, Some(60_000));
        build_during(&member.engine, unique, || turmoil(&member.engine));
        fill(&member.engine, 51_000, 51_010);
        let begin = entry_of(&member.engine, "startIndexBuild", 1);
        let end = entry_of(&member.engine, "commitIndexBuild", 1);
        for keep in [before, before + 50, begin, begin + 100, end - 1, end] {
            let copy = crash_copy(dir.path());
            let rolled = open_and_truncate(copy.path(), keep);
            let other = tempfile::tempdir().unwrap();
            let next = Member::open(other.path());
            next.follow(&member.engine, keep);
            next.lead();
            fill(&next.engine, 80_000, 80_050);
            if keep < begin {
                build(&next.engine, C, &spec(unique)).unwrap();
            }
            wait("the index is ready", || is_ready(&next.engine));
            rolled.follow(&next.engine, u64::MAX - 1);
            assert_same_data(&next.engine, &rolled.engine);
            drop(rolled);
            assert_same_data(&next.engine, &Member::open(copy.path()).engine);
        }
    }
}

fn open_and_truncate(path: &std::path::Path, keep: u64) -> Member {
    let member = Member::open(path);
    member.engine.truncate_log(keep).unwrap();
    drop(member);
    let member = Member::open(path);
    assert_eq!(member.engine.last_applied().index, keep);
    member
}
