//! Transactions over several shards: prepared, decided, restarted, followed, taken back.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, Timestamp, doc};
use sheaf_errors::{Code, Error, Result};

use super::apply::{Follower, state};
use super::member::Member;
use super::support::*;
use crate::{
    Engine, OpTime, Options, Statement, Transaction, TransactionKey, TransactionRecord, TransactionRow, Write,
};

fn lsid() -> DocBuf {
    doc! { "id": "over shards" }
}

fn key(txn_number: i64) -> TransactionKey {
    TransactionKey { lsid: lsid(), txn_number }
}

fn participants() -> DocBuf {
    doc! { "0": "shard0", "1": "shard1" }
}

/// `db.c` with documents 0 to 3 and a unique index on `u`.
fn filled() -> (tempfile::TempDir, Engine) {
    let (dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "u": 1 }, "u_1", doc! { "unique": true })).unwrap();
    for id in 0..4 {
        insert(&engine, C, &doc! { "_id": id, "u": id }).unwrap();
    }
    (dir, engine)
}

/// Changes 1 (its `u` becomes 10), deletes 2, inserts 5, and changes that.
fn written(engine: &Engine, txn_number: i64) -> Transaction {
    let mut txn = engine.begin(Some((lsid(), txn_number))).unwrap();
    change(&mut txn, C, 1, Some(&doc! { "_id": 1, "u": 10 })).unwrap();
    change(&mut txn, C, 2, None).unwrap();
    let collection = txn.collection(C).unwrap().unwrap();
    txn.insert(&collection, doc! { "_id": 5, "u": 5 }.as_raw()).unwrap();
    change(&mut txn, C, 5, Some(&doc! { "_id": 5, "u": 50 })).unwrap();
    txn
}

fn prepare(engine: &Engine, txn_number: i64) -> OpTime {
    written(engine, txn_number).prepare(&participants(), GO_ON).unwrap()
}

fn before() -> Vec<String> {
    (0..4).map(|id| format!("{:?}", doc! { "_id": id, "u": id })).collect()
}

fn after() -> Vec<String> {
    [
        doc! { "_id": 0, "u": 0 },
        doc! { "_id": 1, "u": 10 },
        doc! { "_id": 3, "u": 3 },
        doc! { "_id": 5, "u": 50 },
    ]
    .iter()
    .map(|doc| format!("{doc:?}"))
    .collect()
}

fn conflicts<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.code() == Code::WRITE_CONFLICT)
}

/// A writer that may not wait for long.
fn impatient(engine: &Engine, id: i32, new: Option<DocBuf>) -> Result<bool> {
    let looked = std::sync::atomic::AtomicU32::new(0);
    let give_up = || match looked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "it waits")),
    };
    let mut unit = engine.write(&give_up);
    let changed = change(&mut unit, C, id, new.as_ref());
    drop(unit);
    changed
}

fn waits<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.code() == Code::MAX_TIME_MS_EXPIRED)
}

/// Nothing of the transaction is seen, and nobody else gets at what it has written.
#[track_caller]
fn assert_held(engine: &Engine) {
    assert_eq!(all(engine, C), before());
    assert_valid(engine, C);
    for id in [1, 2] {
        assert!(waits(impatient(engine, id, Some(doc! { "_id": id }))));
    }
    let other = |document: DocBuf| {
        let mut txn = engine.begin(None).unwrap();
        let collection = txn.collection(C).unwrap().unwrap();
        txn.insert(&collection, document.as_raw())
    };
    assert!(conflicts(other(doc! { "_id": 5 })));
    // Keys that come and keys that go are nobody else's to take.
    for u in [1, 2, 5, 10, 50] {
        assert!(conflicts(other(doc! { "_id": 100, "u": u })), "{u}");
    }
    other(doc! { "_id": 100, "u": 60 }).unwrap();
    // DDL waits.
    let dropped = engine.drop_collection(C, &|| Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "it waits")));
    assert!(waits(dropped));
    assert!(impatient(engine, 3, Some(doc! { "_id": 3, "u": 3 })).unwrap());
    assert!(engine.prepared_before(None).is_some());
}

/// What it has written can be written again.
#[track_caller]
fn assert_free(engine: &Engine) {
    assert_valid(engine, C);
    for id in [1, 2] {
        impatient(engine, id, None).unwrap();
    }
    assert_eq!(engine.prepared_before(None), None);
    engine.drop_collection(C, GO_ON).unwrap();
}

#[test]
fn a_commit_shows_all_at_once_and_frees_it() {
    let (_dir, engine) = filled();
    let prepared = prepare(&engine, 1);
    assert_held(&engine);
    let at = Timestamp(prepared.time);
    let row = TransactionRow::Prepared { index: prepared.index, at, participants: participants() };
    assert_eq!(engine.transaction_rows(), vec![(key(1), row)]);
    assert_eq!(engine.prepared_before(Some(at)), Some(key(1)));
    assert_eq!(engine.prepared_before(Some(Timestamp(at.0 - 1))), None);
    let record = engine.session_record(lsid().as_raw()).unwrap().unwrap();
    assert_eq!((record.txn_number, record.committed), (1, false));
    // Far above the clock.
    let commit = Timestamp(at.0 + (100 << 32));
    let committed = engine.commit_prepared(&key(1), commit, GO_ON).unwrap();
    assert!(committed.time > commit.0);
    assert_eq!(all(&engine, C), after());
    let row = TransactionRow::Committed { at: commit, participants: participants(), settled: false };
    assert_eq!(engine.transaction_row(&key(1)), Some(row));
    assert!(engine.session_record(lsid().as_raw()).unwrap().unwrap().committed);
    // Once more is no error, and nothing else can follow.
    engine.commit_prepared(&key(1), commit, GO_ON).unwrap();
    assert_eq!(engine.write_abort(&key(1), GO_ON).unwrap_err().code(), Code::TRANSACTION_COMMITTED);
    assert_free(&engine);
}

/// Who has prepared it commits what it holds, who was started since what the operations say.
#[test]
fn what_is_held_is_what_the_operations_come_to() {
    let (dir, engine) = filled();
    let mut txn = written(&engine, 1);
    let collection = txn.collection(C).unwrap().unwrap();
    // There and gone again, and by way of a key that another has left.
    txn.insert(&collection, doc! { "_id": 6, "u": 6 }.as_raw()).unwrap();
    change(&mut txn, C, 6, None).unwrap();
    change(&mut txn, C, 1, Some(&doc! { "_id": 1, "u": 2 })).unwrap();
    change(&mut txn, C, 1, Some(&doc! { "_id": 1, "u": 10 })).unwrap();
    let prepared = txn.prepare(&participants(), GO_ON).unwrap();
    let copy = crash_copy(dir.path());
    let started = open(copy.path());
    for (engine, holds) in [(&engine, true), (&started, false)] {
        let made = engine.core().commits.transactions().made(&key(1));
        assert_eq!(made.is_some(), holds);
        engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
        assert_eq!(all(engine, C), after());
        assert_valid(engine, C);
        assert_free(engine);
    }
}

#[test]
fn whoever_listens_hears_of_sessions_that_have_ended() {
    let (_dir, engine) = filled();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    engine.on_transaction_record(Arc::new(move |_, record| told.lock().push(record.clone())));
    let prepared = prepare(&engine, 1);
    let ended = || TransactionRecord::SessionsEnded { lsids: vec![lsid()] };
    // What others may ask for is not forgotten.
    assert!(engine.forget_sessions(&[lsid()]).unwrap());
    assert!(!heard.lock().contains(&ended()));
    engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
    engine.write_settled(&[key(1)], GO_ON).unwrap();
    assert!(engine.forget_sessions(&[lsid()]).unwrap());
    assert_eq!(heard.lock().last(), Some(&ended()));
    assert_eq!(engine.transaction_rows(), vec![]);
    // An abort that nobody has prepared is found by who commits alone.
    let mut txn = engine.begin(Some((lsid(), 2))).unwrap();
    change(&mut txn, C, 3, None).unwrap();
    engine.write_abort(&key(2), GO_ON).unwrap();
    assert_eq!(txn.commit(GO_ON).unwrap_err().code(), Code::NO_SUCH_TRANSACTION);
}

#[test]
fn a_session_has_one_turn_at_a_time() {
    let (_dir, engine) = fresh();
    let transactions = engine.core().commits.transactions();
    let turn = transactions.try_turn(lsid().as_raw());
    assert!(turn.is_some());
    assert!(transactions.try_turn(lsid().as_raw()).is_none());
    assert!(transactions.try_turn(doc! { "id": "another" }.as_raw()).is_some());
    // Who has asked in vain has not taken it away either.
    assert!(transactions.try_turn(lsid().as_raw()).is_none());
    drop(turn);
    assert!(transactions.try_turn(lsid().as_raw()).is_some());
}

#[test]
fn a_drop_of_the_collection_waits_for_the_decision() {
    let (_dir, engine) = filled();
    let prepared = prepare(&engine, 1);
    std::thread::scope(|scope| {
        let looked = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let look = {
            let looked = looked.clone();
            move || {
                looked.store(true, std::sync::atomic::Ordering::Release);
                Ok(())
            }
        };
        let engine = &engine;
        let dropping = scope.spawn(move || engine.drop_collection(C, &look));
        while !looked.load(std::sync::atomic::Ordering::Acquire) {
            std::thread::yield_now();
        }
        engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
        dropping.join().unwrap().unwrap();
    });
    assert!(all(&engine, C).is_empty());
}

#[test]
fn an_abort_leaves_nothing() {
    let (_dir, engine) = filled();
    prepare(&engine, 1);
    engine.write_abort(&key(1), GO_ON).unwrap();
    assert_eq!(all(&engine, C), before());
    assert_eq!(engine.transaction_row(&key(1)), Some(TransactionRow::Aborted));
    let error = engine.commit_prepared(&key(1), Timestamp(u64::MAX / 2), GO_ON).unwrap_err();
    assert_eq!(error.code(), Code::NO_SUCH_TRANSACTION);
    engine.write_abort(&key(1), GO_ON).unwrap();
    assert_free(&engine);
}

#[test]
fn what_was_aborted_unheard_of_is_never_prepared() {
    let (dir, engine) = filled();
    let txn = written(&engine, 3);
    engine.write_abort(&key(3), GO_ON).unwrap();
    assert_eq!(txn.prepare(&participants(), GO_ON).unwrap_err().code(), Code::NO_SUCH_TRANSACTION);
    let older = written(&engine, 2).prepare(&participants(), GO_ON).unwrap_err();
    assert_eq!(older.code(), Code::TRANSACTION_TOO_OLD);
    assert_eq!(all(&engine, C), before());
    drop(engine);
    let engine = open(dir.path());
    let again = written(&engine, 3).prepare(&participants(), GO_ON).unwrap_err();
    assert_eq!(again.code(), Code::NO_SUCH_TRANSACTION);
    // It is no transaction's business to make a collection, or to have no session.
    assert!(engine.begin(None).unwrap().prepare(&participants(), GO_ON).is_err());
    let mut txn = engine.begin(Some((lsid(), 4))).unwrap();
    txn.create_collection("db.new", crate::CreateCollection::default()).unwrap();
    let refused = txn.prepare(&participants(), GO_ON).unwrap_err();
    assert_eq!(refused.code(), Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION);
    assert_free(&engine);
}

/// Opens the folder after a crash, with everything in the log only or all of it flushed.
fn each_crash(dir: &Path, engine: &Engine, check: impl Fn(&Engine)) {
    check(&open(crash_copy(dir).path()));
    engine.checkpoint().unwrap();
    let flushed = crash_copy(dir);
    check(&open(flushed.path()));
    // Again, behind the first one's own work.
    let reopened = open(flushed.path());
    check(&reopened);
    reopened.shutdown(true).unwrap();
    drop(reopened);
    check(&open(flushed.path()));
}

#[test]
fn every_step_survives_a_crash() {
    let (dir, engine) = filled();
    let prepared = prepare(&engine, 1);
    let at = Timestamp(prepared.time + 7);
    each_crash(dir.path(), &engine, assert_held);
    let rows = engine.transaction_rows();
    each_crash(dir.path(), &engine, |engine| assert_eq!(engine.transaction_rows(), rows));
    for decide in [true, false] {
        let copy = crash_copy(dir.path());
        let engine = open(copy.path());
        let expected = if decide {
            engine.commit_prepared(&key(1), at, GO_ON).unwrap();
            after()
        } else {
            engine.write_abort(&key(1), GO_ON).unwrap();
            before()
        };
        let rows = engine.transaction_rows();
        each_crash(copy.path(), &engine, |engine| {
            assert_eq!(all(engine, C), expected);
            assert_eq!(engine.transaction_rows(), rows);
            assert_eq!(engine.prepared_before(None), None);
            assert_valid(engine, C);
        });
        let crashed = crash_copy(copy.path());
        assert_free(&open(crashed.path()));
    }
    // Prepared in the files, decided in the log.
    engine.checkpoint().unwrap();
    engine.commit_prepared(&key(1), at, GO_ON).unwrap();
    engine.write_settled(&[key(1)], GO_ON).unwrap();
    engine.write_ceiling(Timestamp(99), GO_ON).unwrap();
    engine.write_ceiling(Timestamp(77), GO_ON).unwrap();
    let rows = engine.transaction_rows();
    each_crash(dir.path(), &engine, |engine| {
        assert_eq!(all(engine, C), after());
        assert_eq!(engine.transaction_rows(), rows);
        assert_eq!(engine.ceiling(), Timestamp(99));
        assert_valid(engine, C);
    });
}

#[test]
fn rows_go_when_nobody_will_ask() {
    let (dir, engine) = filled();
    let numbers = |engine: &Engine| -> Vec<i64> {
        engine.transaction_rows().iter().map(|(key, _)| key.txn_number).collect()
    };
    let commit = |number: i64| {
        let mut txn = engine.begin(Some((lsid(), number))).unwrap();
        change(&mut txn, C, 1, Some(&doc! { "_id": 1, "n": number })).unwrap();
        let at = txn.prepare(&participants(), GO_ON).unwrap();
        engine.commit_prepared(&key(number), Timestamp(at.time), GO_ON).unwrap();
    };
    commit(1);
    commit(2);
    assert_eq!(numbers(&engine), [1, 2]);
    // What is not settled stays, with its session.
    assert!(engine.forget_sessions(&[lsid()]).unwrap());
    assert_eq!(numbers(&engine), [1, 2]);
    engine.write_settled(&[key(1), key(77)], GO_ON).unwrap();
    assert_eq!(numbers(&engine), [2]);
    engine.write_settled(&[key(2)], GO_ON).unwrap();
    assert_eq!(numbers(&engine), [2]);
    engine.write_abort(&key(3), GO_ON).unwrap();
    assert_eq!(numbers(&engine), [3]);
    commit(4);
    assert_eq!(numbers(&engine), [4]);
    engine.write_settled(&[key(4)], GO_ON).unwrap();
    // A retryable write of the session takes its number, and the outcome stays known.
    let mut unit = engine.write(GO_ON);
    unit.statement(Some(Statement { lsid: lsid(), txn_number: 5, stmt_id: 0, result: None }));
    change(&mut unit, C, 0, None).unwrap();
    unit.commit().unwrap();
    assert_eq!(numbers(&engine), [4]);
    assert_eq!(engine.session_record(lsid().as_raw()).unwrap().unwrap().txn_number, 5);
    let copy = crash_copy(dir.path());
    assert_eq!(numbers(&open(copy.path())), [4]);
    assert!(engine.forget_sessions(&[lsid()]).unwrap());
    assert_eq!(numbers(&engine), [] as [i64; 0]);
    assert_eq!(numbers(&open(crash_copy(dir.path()).path())), [] as [i64; 0]);
}

#[test]
fn followers_have_rows_and_tell_of_records() {
    let (_dir, engine) = filled();
    let heard = |engine: &Engine| {
        let heard: Arc<Mutex<Vec<(OpTime, TransactionRecord)>>> = Arc::default();
        let list = heard.clone();
        engine.on_transaction_record(Arc::new(move |at, record| list.lock().push((at, record.clone()))));
        heard
    };
    let told = heard(&engine);
    let prepared = prepare(&engine, 1);
    insert(&engine, C, &doc! { "_id": 7 }).unwrap();
    engine.commit_prepared(&key(1), Timestamp(prepared.time + 3), GO_ON).unwrap();
    engine.write_ceiling(Timestamp(1 << 40), GO_ON).unwrap();
    engine.write_settled(&[key(1)], GO_ON).unwrap();
    let mut alone = engine.begin(Some((lsid(), 2))).unwrap();
    change(&mut alone, C, 7, None).unwrap();
    alone.commit(GO_ON).unwrap();
    engine.write_abort(&key(3), GO_ON).unwrap();
    let told = told.lock();
    assert_eq!(told.len(), 6);
    assert_eq!(told[4].1, TransactionRecord::Alone { key: key(2) });
    for chunk in [1, 2, 100] {
        let folder = tempfile::tempdir().unwrap();
        let mut follower = Follower::open(folder.path());
        let followed = heard(&follower.engine);
        follower.follow(&engine, chunk);
        assert_eq!(*followed.lock(), *told, "in units of {chunk}");
        assert_eq!(follower.engine.transaction_rows(), engine.transaction_rows());
        assert!(state(&follower.engine) == state(&engine));
        assert_valid(&follower.engine, C);
    }
}

#[test]
fn a_new_primary_holds_what_the_old_one_prepared() {
    let (_dir, engine) = filled();
    let ends: [fn(&Engine, OpTime); 2] = [
        |engine, at| assert!(engine.commit_prepared(&key(1), Timestamp(at.time), GO_ON).is_ok()),
        |engine, _| assert!(engine.write_abort(&key(1), GO_ON).is_ok()),
    ];
    let prepared = prepare(&engine, 1);
    for (decide, expected) in ends.into_iter().zip([after(), before()]) {
        let folder = tempfile::tempdir().unwrap();
        let member = Member::open(folder.path());
        member.follow(&engine, prepared.index - 1);
        // It has led before, and somebody there has the same locks, and the collection's gate closed.
        member.lead();
        let stale = written(&member.engine, 9);
        member.step_down();
        member.catch_up(&engine);
        member.lead();
        drop(stale);
        assert_held(&member.engine);
        decide(&member.engine, prepared);
        assert_eq!(all(&member.engine, C), expected);
        assert_free(&member.engine);
    }
}

#[test]
fn a_stale_transaction_cannot_be_prepared() {
    let (_dir, engine) = filled();
    let folder = tempfile::tempdir().unwrap();
    let member = Member::open(folder.path());
    member.catch_up(&engine);
    member.lead();
    let stale = written(&member.engine, 9);
    member.step_down();
    prepare(&engine, 1);
    member.catch_up(&engine);
    member.lead();
    let error = stale.prepare(&participants(), GO_ON).unwrap_err();
    assert_eq!(error.code(), Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
    assert_held(&member.engine);
}

#[test]
fn a_rollback_takes_back_what_was_prepared_and_decided() {
    let (dir, engine) = filled();
    engine.checkpoint().unwrap();
    let start = engine.last_applied();
    let prepared = prepare(&engine, 1);
    engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
    let last = engine.last_applied();
    for keep in [start.index, prepared.index] {
        let copy = crash_copy(dir.path());
        let engine = open(copy.path());
        let folder = copy.path().join("rollback");
        let saved = engine.save_rolled_back(keep, last.index, &folder).unwrap();
        // 1 and 5 as they are now; 2 has gone.
        assert_eq!((saved.documents, saved.operations), (2, [1, 2, 1, 0]));
        engine.truncate_log(keep).unwrap();
        drop(engine);
        let engine = open(copy.path());
        if keep == prepared.index {
            assert_held(&engine);
            engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
            assert_eq!(all(&engine, C), after());
        } else {
            assert_eq!(all(&engine, C), before());
            assert!(engine.transaction_rows().is_empty());
        }
        assert_free(&engine);
    }
    // What was only prepared has changed nothing, so that there is nothing to be saved.
    let (copy, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let keep = engine.last_applied().index;
    let mut txn = engine.begin(Some((lsid(), 1))).unwrap();
    change(&mut txn, C, 1, Some(&doc! { "_id": 1, "a": 1 })).unwrap();
    let prepared = txn.prepare(&participants(), GO_ON).unwrap();
    let saved = engine.save_rolled_back(keep, prepared.index, &copy.path().join("rollback")).unwrap();
    assert_eq!(saved.documents, 0);
}

#[test]
fn large_transactions_are_prepared_as_chains() {
    let dir = tempfile::tempdir().unwrap();
    let options = |path: &Path| Options { transaction_entry_bytes: 2500, ..options(path) };
    let engine = Engine::open(options(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let pad = "x".repeat(1000);
    let mut txn = engine.begin(Some((lsid(), 1))).unwrap();
    let collection = txn.collection(C).unwrap().unwrap();
    for id in 0..10 {
        txn.insert(&collection, doc! { "_id": id, "pad": pad.as_str() }.as_raw()).unwrap();
    }
    let first = engine.last_applied().index + 1;
    let prepared = txn.prepare(&participants(), GO_ON).unwrap();
    assert_eq!(prepared.index, first + 4);
    assert!(all(&engine, C).is_empty());
    let folder = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(folder.path());
    follower.follow(&engine, 3);
    assert!(state(&follower.engine) == state(&engine));
    let crashed = crash_copy(dir.path());
    let engine = Engine::open(options(crashed.path())).unwrap();
    assert!(all(&engine, C).is_empty());
    engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
    assert_eq!(all(&engine, C).len(), 10);
    follower.follow(&engine, 3);
    assert_eq!(all(&follower.engine, C).len(), 10);
    assert_valid(&follower.engine, C);
}

#[test]
fn the_log_keeps_a_prepare_until_its_commit_is_settled() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options { oplog_bytes: 16 << 20, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let mut txn = engine.begin(Some((lsid(), 1))).unwrap();
    change(&mut txn, C, 1, Some(&doc! { "_id": 1, "a": 1 })).unwrap();
    let prepared = txn.prepare(&participants(), GO_ON).unwrap();
    let pad = "x".repeat(1 << 20);
    let mut id = 10;
    let mut fill = |engine: &Engine| {
        for _ in 0..40 {
            id += 1;
            insert(engine, C, &doc! { "_id": id, "pad": pad.as_str() }).unwrap();
        }
        engine.checkpoint().unwrap();
        engine.stats().log_first_index
    };
    assert!(fill(&engine) <= prepared.index);
    engine.shutdown(true).unwrap();
    drop(engine);
    let engine = Engine::open(Options { oplog_bytes: 16 << 20, ..options(dir.path()) }).unwrap();
    assert!(fill(&engine) <= prepared.index);
    engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
    assert!(fill(&engine) <= prepared.index);
    engine.write_settled(&[key(1)], GO_ON).unwrap();
    assert!(fill(&engine) > prepared.index);
}

#[test]
fn a_copy_has_what_is_prepared() {
    let (dir, engine) = filled();
    let prepared = prepare(&engine, 1);
    let exported = dir.path().join("exported");
    let copied = engine.export_copy(&exported).unwrap();
    let target = tempfile::tempdir().unwrap();
    let files = target.path().join("sync").join("files");
    std::fs::create_dir_all(&files).unwrap();
    for (name, _) in &copied.files {
        std::fs::copy(exported.join(name), files.join(name)).unwrap();
    }
    crate::install_at_next_open(target.path(), &files).unwrap();
    let member = Member::open(target.path());
    assert_eq!(member.engine.last_applied(), copied.at);
    engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
    member.catch_up(&engine);
    assert_eq!(all(&member.engine, C), after());
    // Its log has not what was prepared: nothing is in the way of a rollback.
    let last = member.engine.last_applied().index;
    let saved = member.engine.save_rolled_back(copied.at.index, last, &target.path().join("lost")).unwrap();
    assert_eq!(saved.documents, 0);
}

#[test]
fn decisions_wait_for_locked_writes() {
    let (_dir, engine) = filled();
    let prepared = prepare(&engine, 1);
    engine.lock_writes(GO_ON).unwrap();
    let gone = || Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "it waits"));
    assert!(waits(engine.commit_prepared(&key(1), Timestamp(prepared.time), &gone)));
    assert!(waits(engine.write_abort(&key(1), &gone)));
    engine.unlock_writes().unwrap();
    assert_held(&engine);
    engine.commit_prepared(&key(1), Timestamp(prepared.time), GO_ON).unwrap();
    assert_free(&engine);
}
