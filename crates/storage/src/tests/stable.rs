//! Flushes ahead of the commit point: they go on, rollbacks get behind them, crashes lose nothing.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Error};

use super::apply::state;
use super::member::Member;
use super::support::*;
use crate::flush::stable::finish_in_steps;
use crate::{HookPoint, OpTime, Options, Write};

fn copies(folder: &Path) -> Vec<PathBuf> {
    let Ok(items) = std::fs::read_dir(folder.join("stable")) else { return Vec::new() };
    let mut found: Vec<_> = items.map(|item| item.unwrap().path()).collect();
    found.sort();
    found
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A primary with ten documents that are committed and flushed.
fn primary() -> (tempfile::TempDir, Member) {
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    member.lead_in(1);
    create(&member.engine, C, doc! {});
    build(&member.engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    put(&member, 0..10, "committed");
    member.flush();
    member.commit(member.engine.last_applied().index);
    (dir, member)
}

fn put(member: &Member, ids: std::ops::Range<i32>, a: &str) {
    for id in ids {
        insert(&member.engine, C, &doc! { "_id": id, "a": [a, id] }).unwrap();
    }
}

#[test]
fn writes_go_on_while_the_commit_point_stands_still() {
    let (dir, member) = primary();
    let committed = member.engine.last_applied();
    let text = "x".repeat(100_000);
    let (done, is_done) = mpsc::channel();
    let engine = member.engine.clone();
    // Six times what memtables may take.
    std::thread::spawn(move || {
        for id in 100..600 {
            insert(&engine, C, &doc! { "_id": id, "text": &text }).unwrap();
        }
        let _ = done.send(());
    });
    is_done.recv_timeout(Duration::from_secs(120)).expect("writers wait for ever");
    let core = member.engine.core();
    assert!(core.flushes.flushed().index > committed.index);
    assert_eq!(core.flushes.stable(), committed);
    assert_eq!(member.engine.log_tail().unwrap().committed, committed.index);
    assert!(!copies(dir.path()).is_empty());
    assert_eq!(all(&member.engine, C).len(), 510);
    // Majority readers see what they saw, and there is little that compaction must keep for later ones.
    assert_eq!(member.engine.majority_view().map(|view| view.time().0), Some(committed.time));

    // What others copy is what is committed.
    let exported = dir.path().join("exported");
    assert_eq!(member.engine.export_copy(&exported).unwrap().at, committed);

    member.commit(member.engine.last_applied().index);
    eventually("the copies are in the way for ever", || copies(dir.path()).is_empty());
    eventually("the flushed state is the stable one again", || {
        core.flushes.stable() == core.flushes.flushed()
    });
    drop(member);
    let member = Member::open(dir.path());
    assert_eq!(all(&member.engine, C).len(), 510);
    assert_valid(&member.engine, C);
}

#[test]
fn the_log_is_kept_back_to_the_stable_copy_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let small = Options { replica: true, oplog_bytes: 4 << 20, ..options(dir.path()) };
    let member = Member::open_with(small);
    member.lead_in(1);
    create(&member.engine, C, doc! {});
    member.flush();
    let committed = member.engine.last_applied();
    member.commit(committed.index);
    let text = "x".repeat(100_000);
    let mut next = 0;
    let mut fill = || {
        for _ in 0..60 {
            insert(&member.engine, C, &doc! { "_id": next, "text": &text }).unwrap();
            next += 1;
        }
        member.engine.core().flush_ahead().unwrap();
        member.engine.last_applied()
    };
    let ends: Vec<OpTime> = (0..4).map(|_| fill()).collect();
    let first = || member.engine.stats().log_first_index;
    assert!(first() <= committed.index + 1);
    // Of the second copy: it is of the first of these flushes. There is no third, and the commit point passes the second.
    member.commit(ends[1].index);
    fill();
    assert_eq!(member.engine.core().flushes.stable(), ends[0]);
    assert!(first() > committed.index + 1 && first() <= ends[0].index + 1, "{}", first());
    // The next copy was made by that flush.
    member.commit(ends[3].index);
    member.engine.core().catch_up_with_commits().unwrap();
    assert_eq!(member.engine.core().flushes.stable(), ends[3]);
    assert!(first() > ends[0].index + 1);
}

#[test]
fn a_rollback_behind_what_is_flushed() {
    let (dir, member) = primary();
    member.engine.core().flush_ahead().unwrap();
    put(&member, 10..20, "kept");
    let mut unit = member.engine.write(GO_ON);
    change(&mut unit, C, 3, None).unwrap();
    unit.commit().unwrap();
    let keep = member.engine.last_applied();
    let before = state(&member.engine);
    member.engine.core().flush_ahead().unwrap();
    put(&member, 20..30, "lost");
    let mut unit = member.engine.write(GO_ON);
    change(&mut unit, C, 4, Some(&doc! { "_id": 4, "a": "changed" })).unwrap();
    unit.commit().unwrap();
    member.engine.core().flush_ahead().unwrap();
    // The collection is dropped and its data removed; a build brings in files of its own.
    create(&member.engine, "db.other", doc! {});
    build(&member.engine, C, &index_spec(doc! { "b": 1 }, "b_1", doc! {})).unwrap();
    let last = member.engine.last_applied();
    let files = dir.path().join("rollback");
    let saved = member.engine.save_rolled_back(keep.index, last.index, &files).unwrap();
    assert_eq!(saved.documents, 11);
    member.engine.drop_collection(C, GO_ON).unwrap();
    member.engine.core().flush_ahead().unwrap();
    {
        let core = member.engine.core();
        core.definitions.garbage().collect(&core.base.db, core.flushes.flushed().index)
    };

    member.engine.truncate_log(keep.index).unwrap();
    drop(member);
    let mut crashes = vec![crash_copy(dir.path())];
    finish_in_steps(dir.path(), &mut || crashes.push(crash_copy(dir.path()))).unwrap();
    crashes.push(crash_copy(dir.path()));
    assert!(crashes.len() > 5);
    for crash in crashes {
        for term in 2..4 {
            let member = Member::open(crash.path());
            assert!(copies(crash.path()).is_empty() && !crash.path().join("install.stable").exists());
            // Those of the round before come behind it.
            let collections = before.len() - 1;
            assert!(state(&member.engine)[..collections] == before[..collections]);
            assert_valid(&member.engine, C);
            member.lead_in(term);
            create(&member.engine, &format!("db.new{term}"), doc! {});
        }
    }
}

#[test]
fn there_is_no_way_back_behind_what_is_committed() {
    let (dir, member) = primary();
    let committed = member.engine.last_applied().index;
    put(&member, 10..20, "a");
    member.engine.core().flush_ahead().unwrap();
    let error = member.engine.truncate_log(committed - 1).unwrap_err();
    assert_eq!(error.code(), Code::UNRECOVERABLE_ROLLBACK_ERROR);
    assert!(!dir.path().join("install.stable").exists());
}

/// Whatever step a crash comes after, the folder opens with the state that the log has.
#[test]
fn crashes_at_every_step() {
    let (dir, member) = primary();
    let crashes = Arc::new(Mutex::new(Vec::new()));
    let watch = || {
        let (crashes, folder) = (crashes.clone(), dir.path().to_owned());
        Some(Arc::new(move || {
            crashes.lock().push(crash_copy(&folder));
            Ok(())
        }) as crate::Hook)
    };
    let check = |expected: &[(OpTime, Vec<String>)], least: usize| {
        let taken = std::mem::take(&mut *crashes.lock());
        assert!(taken.len() >= least, "{}", taken.len());
        for crash in taken {
            for _ in 0..2 {
                let member = Member::open(crash.path());
                let at = member.engine.last_applied();
                let (_, expected) = expected.iter().find(|(of, _)| *of == at).unwrap();
                assert_eq!(&state(&member.engine), expected);
            }
        }
    };
    let now = || (member.engine.last_applied(), state(&member.engine));
    member.engine.set_hook(HookPoint::StableCopy, watch());
    member.engine.set_hook(HookPoint::Flushed, watch());
    put(&member, 10..20, "a");
    let first = now();
    member.engine.core().flush_ahead().unwrap();
    put(&member, 20..30, "b");
    let second = now();
    member.engine.core().flush_ahead().unwrap();
    check(&[first.clone(), second.clone()], 8);
    // The commit point passes the second copy, then everything.
    member.commit(first.0.index);
    member.engine.core().catch_up_with_commits().unwrap();
    member.commit(second.0.index);
    member.engine.core().catch_up_with_commits().unwrap();
    assert!(copies(dir.path()).is_empty());
    check(std::slice::from_ref(&second), 4);
    put(&member, 30..40, "c");
    member.engine.core().flush_ahead().unwrap();
    let third = now();
    crashes.lock().clear();
    member.engine.truncate_log(second.0.index).unwrap();
    drop(member);
    let member = Member::open(dir.path());
    assert_eq!((member.engine.last_applied(), state(&member.engine)), second);
    check(&[second, third], 2);
}

#[test]
fn a_copy_that_cannot_be_made_holds_flushes_back() {
    let (dir, member) = primary();
    put(&member, 10..20, "a");
    let flushed = member.engine.core().flushes.flushed();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let hook = move || match failing.load(Ordering::Acquire) {
        true => Err(Error::new(Code::OUT_OF_DISK_SPACE, "full")),
        false => Ok(()),
    };
    member.engine.set_hook(HookPoint::StableCopy, Some(Arc::new(hook)));
    assert_eq!(member.engine.core().flush_ahead().unwrap_err().code(), Code::OUT_OF_DISK_SPACE);
    assert_eq!(member.engine.core().flushes.flushed(), flushed);
    assert!(copies(dir.path()).is_empty());
    fails.store(false, Ordering::Release);
    member.engine.core().flush_ahead().unwrap();
    assert_eq!(copies(dir.path()).len(), 1);
}

/// A long start of a member frees memory, too, though nobody knows yet what is committed.
#[test]
fn recovery_flushes_ahead() {
    let (dir, member) = primary();
    let committed = member.engine.last_applied();
    let text = "x".repeat(1_000_000);
    for id in 100..130 {
        insert(&member.engine, C, &doc! { "_id": id, "text": &text }).unwrap();
    }
    let expected = all(&member.engine, C);
    // Back to where only the log has it.
    member.engine.truncate_log(member.engine.last_applied().index).unwrap();
    let crash = crash_copy(dir.path());
    drop(member);
    let member = Member::open(crash.path());
    assert!(all(&member.engine, C) == expected);
    let core = member.engine.core();
    assert!(core.flushes.count() > 0 || core.flushes.flushed().index > committed.index);
    assert_eq!(core.flushes.stable(), committed);
    member.engine.truncate_log(committed.index).unwrap();
    drop(member);
    assert_eq!(Member::open(crash.path()).engine.last_applied(), committed);
}

/// A number between 0 and `n`, from a generator of its own: the seed is all that a failure needs.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn document(id: i32, a: i32) -> DocBuf {
    doc! { "_id": id, "a": [a, a + 1], "b": (a % 5) }
}

/// Writes, flushes, commits, crashes and rollbacks in any order.
fn random_walk(seed: u64) {
    let mut dice = Dice(seed);
    let mut dir = tempfile::tempdir().unwrap();
    let mut member = Member::open(dir.path());
    let mut term = 1;
    member.lead_in(term);
    create(&member.engine, C, doc! {});
    // The state after each entry; the commit point.
    let mut states: Vec<(OpTime, Vec<String>)> = Vec::new();
    let mut commit = 0;
    for step in 0..80 {
        let engine = &member.engine;
        match dice.roll(16) {
            0..8 => {
                let (id, a) = (dice.roll(30) as i32, dice.roll(100) as i32);
                let mut unit = engine.write(GO_ON);
                let collection = unit.collection(C).unwrap().unwrap();
                match dice.roll(3) {
                    0 => drop(unit.insert(&collection, document(id, a).as_raw())),
                    1 => _ = change(&mut unit, C, id, Some(&document(id, a))).unwrap(),
                    _ => _ = change(&mut unit, C, id, None).unwrap(),
                }
                drop(unit.commit());
            }
            8 => match dice.roll(4) {
                0 if engine.catalog().collection("db.d").is_some() => {
                    engine.drop_collection("db.d", GO_ON).unwrap();
                    {
                        let core = engine.core();
                        core.definitions.garbage().collect(&core.base.db, core.flushes.flushed().index)
                    };
                }
                0 => create(engine, "db.d", doc! {}),
                1 => drop(drop_indexes(engine, C, &["b_1"])),
                _ => _ = build(engine, C, &index_spec(doc! { "b": 1 }, "b_1", doc! {})).unwrap(),
            },
            9..12 => engine.core().flush_ahead().unwrap(),
            12 => {
                let last = engine.last_applied().index;
                commit += dice.roll(last - commit + 1);
                member.commit(commit);
                engine.core().catch_up_with_commits().unwrap();
            }
            13 => {
                commit = engine.last_applied().index;
                member.commit(commit);
                engine.core().checkpoint().unwrap();
            }
            what => {
                let last = engine.last_applied();
                let known = states.iter().filter(|(at, _)| at.index >= commit.max(1)).count() as u64;
                if what == 14 && known > 0 {
                    let keep = states[states.len() - 1 - dice.roll(known) as usize].0;
                    engine.truncate_log(keep.index).unwrap();
                    states.retain(|(at, _)| at.index <= keep.index);
                }
                let crash = crash_copy(dir.path());
                drop(member);
                dir = crash;
                member = Member::open(dir.path());
                let at = member.engine.last_applied();
                let expected = states.last().filter(|_| what == 14).map_or(last, |(at, _)| *at);
                assert_eq!(at, expected, "seed {seed}, step {step}");
                if let Some((_, expected)) = states.iter().find(|(of, _)| *of == at) {
                    assert!(&state(&member.engine) == expected, "seed {seed}, step {step}: another state");
                }
                assert_valid(&member.engine, C);
                let tail = member.engine.log_tail().unwrap();
                assert!(tail.committed <= commit, "seed {seed}, step {step}: {} > {commit}", tail.committed);
                term += 1;
                member.lead_in(term);
                member.commit(commit.min(at.index));
            }
        }
        let at = member.engine.last_applied();
        if states.last().is_none_or(|(before, _)| before.index < at.index) {
            states.push((at, state(&member.engine)));
        }
    }
}

#[test]
fn any_order_of_flushes_commits_crashes_and_rollbacks() {
    for seed in 0..12 {
        random_walk(seed);
    }
}
