//! Transactions of several entries: all of it or nothing, wherever it is cut.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, Timestamp, Value, doc};
use sheaf_errors::{Code, Error, Result};

use super::member::Member;
use super::support::*;
use crate::{Engine, HookPoint, OpTime, Options, Write};

/// Documents of a large transaction, and into how many entries they go.
const DOCS: i32 = 10;
const ENTRIES: u64 = 5;

fn small_entries(path: &Path) -> Options {
    Options { transaction_entry_bytes: 2500, ..options(path) }
}

fn lsid() -> DocBuf {
    doc! { "id": "large" }
}

/// Inserts documents from `first` on, in one transaction.
fn transact(engine: &Engine, first: i32) -> Result<OpTime> {
    let mut transaction = engine.begin(Some((lsid(), i64::from(first))))?;
    let collection = transaction.collection(C)?.expect("there is a collection");
    let pad = "x".repeat(1000);
    for n in 0..DOCS {
        transaction.insert(&collection, doc! { "_id": first + n, "pad": pad.as_str() }.as_raw())?;
    }
    transaction.commit(GO_ON)
}

fn ids(engine: &Engine) -> Vec<i32> {
    let view = engine.view().unwrap();
    let collection = view.collection(C).unwrap();
    let mut cursor = view.records(collection, crate::Range::ALL, crate::Direction::Forward).unwrap();
    let mut ids = Vec::new();
    while cursor.next().unwrap() {
        ids.push(cursor.doc().get("_id").and_then(|id| id.as_exact_i64()).unwrap() as i32);
    }
    ids
}

/// `count` documents from `first` on, and these.
fn with(first: i32, more: &[i32]) -> Vec<i32> {
    let mut all: Vec<i32> = (first..first + DOCS).chain(more.iter().copied()).collect();
    all.sort_unstable();
    all
}

/// Whether the session's record tells of a commit.
fn is_committed(engine: &Engine) -> bool {
    engine.session_record(lsid().as_raw()).unwrap().is_some_and(|record| record.committed)
}

/// Calls `work` at the `nth` append from now on.
fn at_append(engine: &Engine, nth: usize, work: impl Fn() -> Result<()> + Send + Sync + 'static) {
    let count = AtomicUsize::new(0);
    let hook = move || if count.fetch_add(1, Ordering::AcqRel) + 1 == nth { work() } else { Ok(()) };
    engine.set_hook(HookPoint::Append, Some(Arc::new(hook)));
}

fn alone() -> (tempfile::TempDir, Engine) {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_entries(dir.path())).unwrap();
    create(&engine, C, doc! {});
    (dir, engine)
}

#[test]
fn entries_of_a_large_transaction_name_each_other() {
    let (dir, engine) = alone();
    let before = engine.last_applied();
    let at = transact(&engine, 0).unwrap();
    assert_eq!(at.index, before.index + ENTRIES);
    assert_eq!(engine.last_applied(), at);
    let oplog = engine.view().unwrap().oplog().unwrap();
    let mut cursor = oplog.from_time(Timestamp(before.time + 1)).unwrap();
    let mut previous = (0, -1i64);
    let mut operations = 0;
    for n in 1..=ENTRIES {
        let entry = DocBuf::from(cursor.next(Timestamp(at.time)).unwrap().unwrap());
        let link = entry.as_raw().get("prevOpTime").and_then(|v| v.as_doc()).unwrap();
        assert_eq!(DocBuf::from(link), doc! { "ts": Timestamp(previous.0), "t": previous.1 });
        let o = entry.as_raw().get("o").and_then(|v| v.as_doc()).unwrap();
        operations += o.get("applyOps").and_then(|v| v.as_array()).unwrap().count() as i64;
        assert_eq!(o.get("partialTxn").is_some(), n < ENTRIES);
        assert_eq!(o.get("count").and_then(|v| v.as_exact_i64()), (n == ENTRIES).then_some(i64::from(DOCS)));
        let Some(Value::Timestamp(ts)) = entry.as_raw().get("ts") else { panic!("no time") };
        previous = (ts.0, at.term as i64);
        if n == ENTRIES {
            assert_eq!(ts.0, at.time);
            assert_eq!(oplog.transaction_before(entry.as_raw()).unwrap().len() as u64, ENTRIES - 1);
        }
    }
    assert_eq!(operations, i64::from(DOCS));
    assert!(cursor.next(Timestamp(u64::MAX)).unwrap().is_none());
    for engine in [&engine, &open(crash_copy(dir.path()).path())] {
        assert_eq!(ids(engine), with(0, &[]));
        assert!(is_committed(engine));
        assert_eq!(insert(engine, C, &doc! { "_id": 50 }).unwrap().index, at.index + 1);
    }
}

#[test]
fn a_crash_between_entries_leaves_nothing() {
    let (dir, engine) = alone();
    for nth in 1..=ENTRIES as usize {
        let copy: Arc<Mutex<Option<tempfile::TempDir>>> = Arc::default();
        let (made, from) = (copy.clone(), dir.path().to_owned());
        at_append(&engine, nth, move || {
            *made.lock() = Some(crash_copy(&from));
            Ok(())
        });
        let first = nth as i32 * 100;
        let before = ids(&engine);
        transact(&engine, first).unwrap();
        engine.set_hook(HookPoint::Append, None);
        let copy = copy.lock().take().unwrap();
        // What follows in the log is no part of it; and a second crash changes nothing.
        let mut expected = before;
        for n in 0..2 {
            let crashed = Engine::open(small_entries(copy.path())).unwrap();
            assert_eq!(ids(&crashed), expected, "entry {nth}");
            insert(&crashed, C, &doc! { "_id": 10_000 + n }).unwrap();
            expected.push(10_000 + n);
        }
        let crashed = Engine::open(small_entries(copy.path())).unwrap();
        transact(&crashed, first).unwrap();
        crashed.checkpoint().unwrap();
        transact(&crashed, 5000).unwrap();
        assert_eq!(ids(&crashed).len(), expected.len() + 2 * DOCS as usize);
        assert_eq!(ids(&open(crash_copy(copy.path()).path())), ids(&crashed));
    }
}

#[test]
fn a_full_disk_between_entries_leaves_nothing() {
    let (dir, engine) = alone();
    for nth in 1..=ENTRIES as usize {
        at_append(&engine, nth, || Err(Error::new(Code::OUT_OF_DISK_SPACE, "no room")));
        let before = ids(&engine);
        assert_eq!(transact(&engine, nth as i32 * 100).unwrap_err().code(), Code::OUT_OF_DISK_SPACE);
        engine.set_hook(HookPoint::Append, None);
        assert_eq!(ids(&engine), before);
        let check = || assert_eq!(ids(&open(crash_copy(dir.path()).path())), ids(&engine));
        check();
        insert(&engine, C, &doc! { "_id": nth as i32 }).unwrap();
        check();
        transact(&engine, nth as i32 * 100).unwrap();
        check();
        if nth == 2 {
            engine.checkpoint().unwrap();
        }
    }
    assert_eq!(ids(&engine).len(), ENTRIES as usize * (DOCS as usize + 1));
}

struct Pair {
    dirs: [tempfile::TempDir; 2],
    primary: Member,
    /// Where the collection was created.
    begin: OpTime,
}

fn pair() -> Pair {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let primary = Member::open_with(small_entries(dirs[0].path()));
    primary.lead();
    create(&primary.engine, C, doc! {});
    let begin = primary.engine.last_applied();
    Pair { dirs, primary, begin }
}

#[test]
fn followers_see_all_or_nothing_also_across_restarts() {
    let Pair { dirs, primary, begin } = pair();
    transact(&primary.engine, 0).unwrap();
    assert_eq!(ids(&primary.engine), with(0, &[]));
    insert(&primary.engine, C, &doc! { "_id": 77 }).unwrap();
    let mut follower = Member::open(dirs[1].path());
    follower.follow(&primary.engine, begin.index);
    for n in 1..ENTRIES {
        follower.follow(&primary.engine, begin.index + n);
        assert_eq!(follower.engine.last_applied().index, begin.index + n);
        assert!(ids(&follower.engine).is_empty() && !is_committed(&follower.engine));
        assert!(!follower.try_flush(), "a flush would lose the beginning");
        if n % 2 == 0 {
            drop(follower);
            follower = Member::open(dirs[1].path());
            assert!(ids(&follower.engine).is_empty());
        }
    }
    follower.follow(&primary.engine, begin.index + ENTRIES);
    assert_eq!(ids(&follower.engine), with(0, &[]));
    assert!(is_committed(&follower.engine));
    follower.catch_up(&primary.engine);
    follower.flush();
    drop(follower);
    assert_eq!(ids(&Member::open(dirs[1].path()).engine), with(0, &[77]));
    // The primary itself, from its log.
    drop(primary);
    assert_eq!(ids(&Member::open(dirs[0].path()).engine), with(0, &[77]));
}

#[test]
fn a_new_primary_never_commits_half_a_chain() {
    let Pair { dirs, primary, begin } = pair();
    transact(&primary.engine, 0).unwrap();
    for n in 1..ENTRIES {
        let dir = tempfile::tempdir().unwrap();
        let next = Member::open_with(small_entries(dir.path()));
        next.follow(&primary.engine, begin.index + n);
        next.lead();
        insert(&next.engine, C, &doc! { "_id": 1000 }).unwrap();
        transact(&next.engine, 2000).unwrap();
        assert_eq!(ids(&next.engine), with(2000, &[1000]));
        next.flush();
        insert(&next.engine, C, &doc! { "_id": 1001 }).unwrap();
        let other = tempfile::tempdir().unwrap();
        let follower = Member::open(other.path());
        follower.catch_up(&next.engine);
        assert_eq!(ids(&follower.engine), with(2000, &[1000, 1001]));
        drop(next);
        assert_eq!(ids(&Member::open(dir.path()).engine), with(2000, &[1000, 1001]));
    }
    drop(dirs);
}

#[test]
fn a_primary_that_loses_its_lead_within_a_chain_commits_nothing() {
    for again in [false, true] {
        for nth in 1..ENTRIES as usize {
            let Pair { dirs, primary, .. } = pair();
            let change = primary.change_of_lead(again);
            at_append(&primary.engine, nth, move || {
                change();
                Ok(())
            });
            let code = transact(&primary.engine, 0).unwrap_err().code();
            let expected =
                if again { Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE } else { Code::NOT_WRITABLE_PRIMARY };
            assert_eq!(code, expected, "entry {nth}");
            primary.engine.set_hook(HookPoint::Append, None);
            assert!(ids(&primary.engine).is_empty());
            primary.lead();
            insert(&primary.engine, C, &doc! { "_id": 500 }).unwrap();
            transact(&primary.engine, 0).unwrap();
            primary.flush();
            let follower = Member::open(dirs[1].path());
            follower.catch_up(&primary.engine);
            assert_eq!(ids(&follower.engine), with(0, &[500]));
            assert_eq!(ids(&primary.engine), with(0, &[500]));
        }
    }
}

#[test]
fn a_rollback_that_cuts_a_chain_saves_all_of_it() {
    let (_dir, engine) = alone();
    let keep = engine.last_applied();
    let at = transact(&engine, 0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let saved = engine.save_rolled_back(keep.index + 2, at.index, folder.path()).unwrap();
    assert_eq!(saved.documents, DOCS as u64);
}

#[test]
fn a_transaction_has_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { transaction_bytes: 20_000, ..small_entries(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    assert_eq!(transact(&engine, 0).unwrap_err().code(), Code::TRANSACTION_TOO_LARGE);
    assert!(ids(&engine).is_empty());
    assert_eq!(engine.stats().open_transactions, 0);
}

#[test]
fn memory_of_transactions_counts() {
    let (_dir, engine) = alone();
    let process = sheaf_meter::Process::new(1 << 20, 200 << 10);
    let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
    let mut transaction = engine.begin(None).unwrap();
    let collection = transaction.collection(C).unwrap().unwrap();
    let pad = "x".repeat(10_000);
    let mut n = 0;
    let error = loop {
        n += 1;
        let found = transaction.insert(&collection, doc! { "_id": n, "pad": pad.as_str() }.as_raw());
        if let Err(error) = found {
            break error;
        }
        assert!(n < 100, "nobody counts");
    };
    assert_eq!(error.code(), Code::TRANSACTION_TOO_LARGE);
    assert!((4..8).contains(&n), "{n}");
    drop(transaction);
    assert_eq!(process.used(), 0);
}

#[test]
fn copies_that_cursors_keep_count_as_memory() {
    let (_dir, engine) = alone();
    let process = sheaf_meter::Process::new(100 << 20, 1 << 20);
    let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
    let mut transaction = engine.begin(None).unwrap();
    let collection = transaction.collection(C).unwrap().unwrap();
    let pad = "x".repeat(10_000);
    let mut write = |n: i32| {
        transaction.insert(&collection, doc! { "_id": n, "pad": pad.as_str() }.as_raw())?;
        transaction.view()
    };
    // Views that go again cost nothing in the end.
    for n in 0..20 {
        write(n).unwrap();
    }
    let mut kept = Vec::new();
    let error = loop {
        match write(100 + kept.len() as i32) {
            Ok(view) => kept.push(view),
            Err(error) => break error,
        }
        assert!(kept.len() < 20, "nobody counts");
    };
    assert_eq!(error.code(), Code::TRANSACTION_TOO_LARGE);
}
