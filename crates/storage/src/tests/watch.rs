//! Who watches a collection is told of all that becomes visible in it.

use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, Timestamp, Value, doc};

use super::support::*;
use crate::keys::put_id_key;
use crate::{Engine, Statement, Touched, TransactionKey, Uuid, Write};

fn uuid(engine: &Engine) -> Uuid {
    engine.catalog().collection(C).unwrap().uuid
}

fn record(engine: &Engine, id: i32) -> Touched {
    let mut key = Vec::new();
    put_id_key(Value::Int32(id), &mut key).unwrap();
    Touched::Record { collection: uuid(engine), key: key.into() }
}

fn watch(engine: &Engine) -> Arc<Mutex<Vec<Touched>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    engine.watch(&[uuid(engine)], Some(Arc::new(move |touched: Vec<Touched>| told.lock().extend(touched))));
    seen
}

fn statement(number: i64, stmt_id: i32) -> Statement {
    Statement {
        lsid: doc! { "id": "s" },
        txn_number: number,
        stmt_id,
        result: Some(doc! { "n": 1, "times": stmt_id }),
    }
}

#[test]
fn units_and_transactions_are_told() {
    let (_dir, engine) = fresh();
    create(&engine, "db.other", doc! {});
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let seen = watch(&engine);
    insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    insert(&engine, "db.other", &doc! { "_id": 3 }).unwrap();
    let mut unit = engine.write(GO_ON);
    unit.statement(Some(statement(4, 0)));
    change(&mut unit, C, 1, None).unwrap();
    unit.commit().unwrap();
    let session = || Touched::Session(doc! { "id": "s" }.as_bytes().into());
    assert_eq!(std::mem::take(&mut *seen.lock()), [record(&engine, 2), session(), record(&engine, 1)]);
    let mut transaction = engine.begin(None).unwrap();
    change(&mut transaction, C, 2, Some(&doc! { "_id": 2, "a": 1 })).unwrap();
    assert!(seen.lock().is_empty(), "nothing is visible yet");
    transaction.commit(GO_ON).unwrap();
    assert_eq!(std::mem::take(&mut *seen.lock()), [record(&engine, 2)]);
    engine.watch(&[], None);
    insert(&engine, C, &doc! { "_id": 4 }).unwrap();
    assert!(seen.lock().is_empty());
}

#[test]
fn what_was_prepared_is_told_when_it_commits() {
    let (_dir, engine) = fresh();
    let engine = &engine;
    let key = TransactionKey { lsid: doc! { "id": "t" }, txn_number: 1 };
    let mut transaction = engine.begin(Some((key.lsid.clone(), 1))).unwrap();
    let collection = transaction.collection(C).unwrap().unwrap();
    transaction.insert(&collection, doc! { "_id": 1 }.as_raw()).unwrap();
    let at = transaction.prepare(&doc! { "0": "a", "1": "b" }, GO_ON).unwrap();
    let seen = watch(engine);
    assert!(seen.lock().is_empty());
    engine.commit_prepared(&key, Timestamp(at.time), GO_ON).unwrap();
    assert_eq!(std::mem::take(&mut *seen.lock()), [record(engine, 1)]);
}

#[test]
fn statements_of_another_shard_are_answered_also_after_a_crash() {
    let (dir, engine) = fresh();
    let lsid = doc! { "id": "s" };
    engine.put_statements(C, &[statement(4, 0), statement(4, 1)], GO_ON).unwrap();
    engine.put_statements(C, &[statement(3, 0)], GO_ON).unwrap();
    engine.put_statements("db.second", &[statement(4, 2)], GO_ON).unwrap();
    let check = |engine: &Engine| {
        let known = engine.session_statements(lsid.as_raw(), C).unwrap();
        let known: Vec<(i64, i32)> = known.iter().map(|one| (one.txn_number, one.stmt_id)).collect();
        assert_eq!(known, [(4, 0), (4, 1)]);
        assert!(engine.session_statements(lsid.as_raw(), "db.other").unwrap().is_empty());
        let about = engine.statements_about(lsid.as_raw(), &["db.third", "db.second", C]).unwrap();
        let about: Vec<(usize, i32)> = about.iter().map(|(place, one)| (*place, one.stmt_id)).collect();
        assert_eq!(about, [(2, 0), (2, 1), (1, 2)]);
        let result = engine.statement_result(lsid.as_raw(), 4, 1).unwrap();
        assert_eq!(result, Some(doc! { "n": 1, "times": 1 }));
        assert_eq!(engine.statement_result(lsid.as_raw(), 3, 0).unwrap(), None::<DocBuf>);
    };
    check(&engine);
    let crashed = crash_copy(dir.path());
    check(&open(crashed.path()));
}
