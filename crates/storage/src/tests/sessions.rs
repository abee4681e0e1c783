//! What is on record of sessions goes when they end: on every member, and for good.

use sheaf_bson::{DocBuf, doc};

use super::member::Member;
use super::support::*;
use crate::{Engine, Statement, Write};

fn lsid(n: i32) -> DocBuf {
    doc! { "id": n }
}

/// Writes some statements of a session.
fn write(engine: &Engine, session: i32) {
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for stmt_id in 0..3 {
        unit.statement(Some(Statement { lsid: lsid(session), txn_number: 5, stmt_id, result: None }));
        unit.insert(&collection, doc! { "_id": session * 10 + stmt_id }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
}

fn is_known(engine: &Engine, session: i32) -> bool {
    let lsid = lsid(session);
    let known = engine.session_record(lsid.as_raw()).unwrap().is_some();
    for stmt_id in 0..3 {
        assert_eq!(engine.statement_result(lsid.as_raw(), 5, stmt_id).unwrap().is_some(), known);
    }
    known
}

#[test]
fn what_was_forgotten_stays_forgotten() {
    let (dir, engine) = fresh();
    (0..4).for_each(|session| write(&engine, session));
    assert!(engine.forget_sessions(&[lsid(1), lsid(9), lsid(3)]).unwrap());
    write(&engine, 3 + 10);
    let check = |engine: &Engine| {
        assert_eq!([0, 1, 2, 3, 13].map(|n| is_known(engine, n)), [true, false, true, false, true]);
    };
    check(&engine);
    check(&open(crash_copy(dir.path()).path()));
    // Also where the records are in files and the deletion is in the log.
    engine.checkpoint().unwrap();
    assert!(engine.forget_sessions(&[lsid(13)]).unwrap());
    assert!(!is_known(&open(crash_copy(dir.path()).path()), 13));
}

#[test]
fn sessions_without_records_cost_no_entry() {
    let (_dir, engine) = fresh();
    write(&engine, 1);
    assert!(engine.forget_sessions(&[lsid(1)]).unwrap());
    let last = engine.last_applied();
    assert!(engine.forget_sessions(&[lsid(1), lsid(2)]).unwrap());
    assert_eq!(engine.last_applied(), last);
}

#[test]
fn locked_writes_leave_records_for_later() {
    let (_dir, engine) = fresh();
    write(&engine, 1);
    engine.lock_writes(GO_ON).unwrap();
    assert!(!engine.forget_sessions(&[lsid(1)]).unwrap());
    engine.unlock_writes().unwrap();
    assert!(engine.forget_sessions(&[lsid(1)]).unwrap());
    assert!(!is_known(&engine, 1));
}

#[test]
fn records_are_listed_page_by_page() {
    let (_dir, engine) = fresh();
    (0..5).for_each(|session| write(&engine, session));
    let first = engine.recorded_sessions(None, 3).unwrap();
    assert_eq!(first, [lsid(0), lsid(1), lsid(2)]);
    let rest = engine.recorded_sessions(first.last().map(DocBuf::as_raw), 3).unwrap();
    assert_eq!(rest, [lsid(3), lsid(4)]);
    assert!(engine.recorded_sessions(rest.last().map(DocBuf::as_raw), 3).unwrap().is_empty());
}

#[test]
fn followers_forget_too() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [primary, secondary] = [0, 1].map(|n: usize| Member::open(dirs[n].path()));
    primary.lead();
    create(&primary.engine, C, doc! {});
    (0..3).for_each(|session| write(&primary.engine, session));
    assert!(primary.engine.forget_sessions(&[lsid(0), lsid(1)]).unwrap());
    // A session may begin anew after it was forgotten, and the same batch brings both.
    let mut unit = primary.engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.statement(Some(Statement { lsid: lsid(0), txn_number: 1, stmt_id: 0, result: None }));
    unit.insert(&collection, doc! { "_id": "anew" }.as_raw()).unwrap();
    unit.commit().unwrap();
    secondary.follow(&primary.engine, primary.engine.last_applied().index);
    for member in [&primary, &secondary] {
        let record = member.engine.session_record(lsid(0).as_raw()).unwrap().unwrap();
        assert_eq!(record.txn_number, 1);
        assert!(member.engine.statement_result(lsid(0).as_raw(), 5, 0).unwrap().is_none());
        assert_eq!([1, 2].map(|n| is_known(&member.engine, n)), [false, true]);
    }
}

/// A transaction of session 50 that stands for a retryable write of session 1: statements 0 to 2.
fn internal(engine: &Engine) -> crate::Transaction {
    let mut txn = engine.begin(Some((lsid(50), 9))).unwrap();
    let collection = txn.collection(C).unwrap().unwrap();
    for stmt_id in 0..3 {
        let result = (stmt_id == 2).then(|| doc! { "n": 7 });
        txn.statement(Some(Statement { lsid: lsid(1), txn_number: 5, stmt_id, result }));
        txn.insert(&collection, doc! { "_id": stmt_id }.as_raw()).unwrap();
    }
    txn.statement(None);
    txn.insert(&collection, doc! { "_id": 3 }.as_raw()).unwrap();
    txn
}

#[track_caller]
fn check_internal(engine: &Engine) {
    assert!(is_known(engine, 1));
    assert_eq!(engine.statement_result(lsid(1).as_raw(), 5, 2).unwrap(), Some(doc! { "n": 7 }));
    let record = |session| engine.session_record(lsid(session).as_raw()).unwrap().unwrap();
    assert_eq!((record(1).txn_number, record(1).committed), (5, false));
    assert_eq!((record(50).txn_number, record(50).committed), (9, true));
    assert_eq!(all(engine, C).len(), 4);
}

#[test]
fn a_transaction_records_the_statements_that_it_stands_for() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [primary, secondary] = [0, 1].map(|n: usize| Member::open(dirs[n].path()));
    primary.lead();
    create(&primary.engine, C, doc! {});
    drop(internal(&primary.engine));
    assert!(!is_known(&primary.engine, 1), "it was not committed");
    internal(&primary.engine).commit(GO_ON).unwrap();
    secondary.follow(&primary.engine, primary.engine.last_applied().index);
    for member in [&primary, &secondary] {
        check_internal(&member.engine);
    }
}

#[test]
fn statements_of_a_prepared_transaction_are_there_with_its_commit() {
    let (dir, engine) = fresh();
    let key = crate::TransactionKey { lsid: lsid(50), txn_number: 9 };
    let at = internal(&engine).prepare(&doc! { "0": "a" }, GO_ON).unwrap();
    assert!(!is_known(&engine, 1));
    engine.commit_prepared(&key, sheaf_bson::Timestamp(at.time), GO_ON).unwrap();
    check_internal(&engine);
    check_internal(&open(crash_copy(dir.path()).path()));
}

#[test]
fn commits_without_rows_are_found_in_the_records() {
    let (dir, engine) = fresh();
    write(&engine, 1);
    for (session, number) in [(1, 6), (2, 3), (3, 8)] {
        let mut txn = engine.begin(Some((lsid(session), number))).unwrap();
        let collection = txn.collection(C).unwrap().unwrap();
        txn.insert(&collection, doc! { "_id": 1000 + session }.as_raw()).unwrap();
        txn.commit(GO_ON).unwrap();
    }
    // What came later of the session is no transaction.
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.statement(Some(Statement { lsid: lsid(3), txn_number: 9, stmt_id: 0, result: None }));
    unit.insert(&collection, doc! { "_id": 2000 }.as_raw()).unwrap();
    unit.commit().unwrap();
    let check = |engine: &Engine| {
        let found = engine.lone_commits().unwrap();
        let found: Vec<_> = found.into_iter().map(|key| (key.lsid, key.txn_number)).collect();
        assert_eq!(found, [(lsid(1), 6), (lsid(2), 3)]);
    };
    check(&engine);
    check(&open(crash_copy(dir.path()).path()));
}
