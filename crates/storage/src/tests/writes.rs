//! Plain writes, unique keys, transactions, capped collections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error};

use super::support::*;
use crate::{Cut, Direction, Range, RecordCursor, Statement, Write};

#[test]
fn a_batch_is_one_commit() {
    let (_dir, engine) = fresh();
    let before = engine.stats();
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for n in 0..1000 {
        unit.insert(&collection, doc! { "_id": n, "x": "some text" }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    let after = engine.stats();
    assert_eq!(after.log_appends - before.log_appends, 1);
    assert_eq!(all(&engine, C).len(), 1000);
    assert_eq!(engine.catalog().collection(C).unwrap().count(), 1000);
    assert_valid(&engine, C);
}

#[test]
fn a_failing_document_leaves_the_earlier_ones() {
    let (_dir, engine) = fresh();
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 1 }.as_raw()).unwrap();
    let error = unit.insert(&collection, doc! { "_id": 1.0, "again": true }.as_raw()).unwrap_err();
    assert_eq!(error.code(), Code::DUPLICATE_KEY);
    assert_eq!(
        error.message(),
        "E11000 duplicate key error collection: db.c index: _id_ dup key: { _id: 1.0 }"
    );
    unit.insert(&collection, doc! { "_id": 2 }.as_raw()).unwrap();
    unit.commit().unwrap();
    assert_eq!(all(&engine, C), ["{\"_id\": Int32(1)}", "{\"_id\": Int32(2)}"]);
}

#[test]
fn unique_keys() {
    let (_dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! { "unique": true })).unwrap();
    insert(&engine, C, &doc! { "_id": 1, "a": 1 }).unwrap();
    insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    let error = insert(&engine, C, &doc! { "_id": 3, "a": 1.0 }).unwrap_err();
    assert_eq!(error.message(), "E11000 duplicate key error collection: db.c index: a_1 dup key: { a: 1.0 }");
    let extra = RawDoc::new(error.extra().unwrap());
    assert_eq!(
        format!("{extra:?}"),
        format!("{:?}", doc! { "keyPattern": { "a": 1 }, "keyValue": { "a": 1.0 } })
    );
    // A unique index reads a missing field as null, so a second missing value collides.
    let error = insert(&engine, C, &doc! { "_id": 4 }).unwrap_err();
    assert_eq!(
        error.message(),
        "E11000 duplicate key error collection: db.c index: a_1 dup key: { a: null }"
    );
    // A key given up is free, within one unit too.
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, 1, Some(&doc! { "_id": 1, "a": 5 })).unwrap();
    let collection = unit.collection(C).unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 3, "a": 1 }.as_raw()).unwrap();
    unit.commit().unwrap();
    assert_valid(&engine, C);
}

#[test]
fn the_same_document_twice_in_a_unit() {
    let (_dir, engine) = fresh();
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 1, "n": 0 }.as_raw()).unwrap();
    assert!(change(&mut unit, C, 1, Some(&doc! { "_id": 1, "n": 1 })).unwrap());
    assert!(change(&mut unit, C, 1, None).unwrap());
    assert!(!change(&mut unit, C, 1, None).unwrap());
    unit.commit().unwrap();
    assert!(all(&engine, C).is_empty());
    assert_eq!(engine.catalog().collection(C).unwrap().data_bytes(), 0);
}

#[test]
fn concurrent_increments_are_all_there() {
    let (_dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1, "n": 0 }).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut unit = engine.write(GO_ON);
                    let collection = unit.collection(C).unwrap().unwrap();
                    let key = collection.record_key(1.into()).unwrap();
                    let old = unit.read_for_update(&collection, &key).unwrap().unwrap();
                    let old = RawDoc::new(&old);
                    let Some(Value::Int32(n)) = old.get("n") else { panic!("{old:?}") };
                    let new = doc! { "_id": 1, "n": n + 1 };
                    unit.update(&collection, &key, old, new.as_raw(), None).unwrap();
                    unit.commit().unwrap();
                }
            });
        }
    });
    assert_eq!(all(&engine, C), ["{\"_id\": Int32(1), \"n\": Int32(800)}"]);
}

#[test]
fn a_waiting_write_can_be_interrupted() {
    let (_dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let mut holder = engine.begin(None).unwrap();
    change(&mut holder, C, 1, Some(&doc! { "_id": 1, "x": 1 })).unwrap();
    let calls = AtomicU32::new(0);
    let interrupt = || {
        if calls.fetch_add(1, Ordering::Relaxed) < 3 {
            return Ok(());
        }
        Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit"))
    };
    let mut unit = engine.write(&interrupt);
    let error = change(&mut unit, C, 1, None).unwrap_err();
    assert_eq!(error.code(), Code::MAX_TIME_MS_EXPIRED);
    drop(unit);
    holder.commit(GO_ON).unwrap();
    assert_eq!(all(&engine, C).len(), 1);
}

#[test]
fn transactions_see_their_snapshot_and_their_own_writes() {
    let (_dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    for n in 0..6 {
        insert(&engine, C, &doc! { "_id": n * 2, "a": n }).unwrap();
    }
    let mut txn = engine.begin(Some((doc! { "id": 7 }, 3))).unwrap();
    insert(&engine, C, &doc! { "_id": 100, "a": 100 }).unwrap();
    let collection = txn.collection(C).unwrap().unwrap();
    txn.insert(&collection, doc! { "_id": 5, "a": 50 }.as_raw()).unwrap();
    txn.insert(&collection, doc! { "_id": 99, "a": -1 }.as_raw()).unwrap();
    change(&mut txn, C, 4, None).unwrap();
    change(&mut txn, C, 6, Some(&doc! { "_id": 6, "a": 60 })).unwrap();
    let view = txn.view().unwrap();
    let ids = |direction| {
        let mut cursor = view.records(&collection, Range::ALL, direction).unwrap();
        let mut out = Vec::new();
        while cursor.next().unwrap() {
            out.push(cursor.doc().get("_id").unwrap().as_exact_i64().unwrap());
        }
        out
    };
    assert_eq!(ids(Direction::Forward), [0, 2, 5, 6, 8, 10, 99]);
    assert_eq!(ids(Direction::Backward), [99, 10, 8, 6, 5, 2, 0]);
    let mut cursor = view.index(collection.index("a_1").unwrap(), Direction::Forward).unwrap();
    let mut by_a = Vec::new();
    while cursor.next().unwrap() {
        let doc = view.get(&collection, cursor.record_key()).unwrap().unwrap();
        by_a.push(doc.as_raw().get("a").unwrap().as_exact_i64().unwrap());
    }
    assert_eq!(by_a, [-1, 0, 1, 4, 5, 50, 60]);
    drop((cursor, view));
    assert_eq!(all(&engine, C).len(), 7);
    txn.commit(GO_ON).unwrap();
    assert_eq!(all(&engine, C).len(), 8);
    assert_valid(&engine, C);
    let record = engine.session_record(doc! { "id": 7 }.as_raw()).unwrap().unwrap();
    assert_eq!((record.txn_number, record.committed), (3, true));
}

#[test]
fn the_first_committer_wins() {
    let (_dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1, "n": 0 }).unwrap();
    let conflict =
        |result: sheaf_errors::Result<bool>| assert_eq!(result.unwrap_err().code(), Code::WRITE_CONFLICT);
    let mut one = engine.begin(None).unwrap();
    let mut two = engine.begin(None).unwrap();
    change(&mut one, C, 1, Some(&doc! { "_id": 1, "n": 1 })).unwrap();
    // Locked by the other.
    conflict(change(&mut two, C, 1, Some(&doc! { "_id": 1, "n": 2 })));
    one.commit(GO_ON).unwrap();
    // Committed after the snapshot.
    conflict(change(&mut two, C, 1, Some(&doc! { "_id": 1, "n": 2 })));
    drop(two);
    // By a plain write, even one that puts the same bytes back.
    let mut three = engine.begin(None).unwrap();
    for n in [5, 1] {
        let mut unit = engine.write(GO_ON);
        change(&mut unit, C, 1, Some(&doc! { "_id": 1, "n": n })).unwrap();
        unit.commit().unwrap();
    }
    conflict(change(&mut three, C, 1, None));
    drop(three);
    let mut four = engine.begin(None).unwrap();
    change(&mut four, C, 1, None).unwrap();
    four.abort();
    assert_eq!(all(&engine, C), ["{\"_id\": Int32(1), \"n\": Int32(1)}"]);
    assert_eq!(engine.stats().open_transactions, 0);
}

#[test]
fn a_transaction_creates_a_collection() {
    let (dir, engine) = fresh();
    let mut txn = engine.begin(None).unwrap();
    txn.create_collection("db.new", crate::CreateCollection::default()).unwrap();
    txn.create_indexes("db.new", &[index_spec(doc! { "a": 1 }, "a_1", doc! {}).as_raw()]).unwrap();
    let collection = txn.collection("db.new").unwrap().unwrap();
    txn.insert(&collection, doc! { "_id": 1, "a": 1 }.as_raw()).unwrap();
    assert!(engine.catalog().collection("db.new").is_none());
    txn.commit(GO_ON).unwrap();
    assert_eq!(all(&engine, "db.new").len(), 1);
    assert_valid(&engine, "db.new");
    let copy = crash_copy(dir.path());
    let engine = open(copy.path());
    assert_eq!(all(&engine, "db.new").len(), 1);
    assert_valid(&engine, "db.new");
}

#[test]
fn capped_collections_stay_within_bounds() {
    let (dir, engine) = fresh();
    create(&engine, "db.capped", doc! { "capped": true, "size": 4096, "max": 5 });
    let numbers = |engine: &crate::Engine, direction| {
        let view = engine.view().unwrap();
        let collection = view.collection("db.capped").unwrap();
        let mut cursor = view.records(collection, Range::ALL, direction).unwrap();
        let mut out = Vec::new();
        while cursor.next().unwrap() {
            out.push(cursor.doc().get("n").unwrap().as_exact_i64().unwrap());
        }
        out
    };
    for n in 0..12 {
        insert(&engine, "db.capped", &doc! { "_id": 100 - n, "n": n }).unwrap();
    }
    assert_eq!(numbers(&engine, Direction::Forward), [7, 8, 9, 10, 11]);
    // One batch that is larger than the collection.
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection("db.capped").unwrap().unwrap();
    for n in 20..40 {
        unit.insert(&collection, doc! { "_id": n * 10, "n": n }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    assert_eq!(numbers(&engine, Direction::Forward), [35, 36, 37, 38, 39]);
    assert_eq!(numbers(&engine, Direction::Backward), [39, 38, 37, 36, 35]);
    let text = "x".repeat(1500);
    for n in 50..60 {
        insert(&engine, "db.capped", &doc! { "_id": n, "n": n, "text": &text }).unwrap();
    }
    assert_eq!(numbers(&engine, Direction::Forward), [58, 59]);
    assert!(insert(&engine, "db.capped", &doc! { "_id": 1, "text": &"x".repeat(5000) }).is_err());
    assert!(insert(&engine, "db.capped", &doc! { "_id": 59, "n": 0 }).is_err());
    assert_valid(&engine, "db.capped");
    let copy = crash_copy(dir.path());
    let again = open(copy.path());
    assert_eq!(numbers(&again, Direction::Forward), [58, 59]);
    assert_valid(&again, "db.capped");
    insert(&again, "db.capped", &doc! { "_id": 70, "n": 70 }).unwrap();
    assert_eq!(numbers(&again, Direction::Forward), [58, 59, 70]);
}

#[test]
fn a_refused_insert_trims_nothing() {
    let (dir, engine) = fresh();
    create(&engine, "db.capped", doc! { "capped": true, "size": 4096, "max": 3 });
    for n in 0..3 {
        insert(&engine, "db.capped", &doc! { "_id": n, "text": &"x".repeat(1000) }).unwrap();
    }
    let left = || all(&engine, "db.capped").len();
    // A duplicate of what stays, and of what would have to go.
    for n in [2, 0] {
        assert_eq!(insert(&engine, "db.capped", &doc! { "_id": n }).unwrap_err().code(), Code::DUPLICATE_KEY);
        assert_eq!(left(), 3, "the refused document {n} has trimmed the collection");
    }
    // In a batch, behind one that is inserted.
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection("db.capped").unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 10 }.as_raw()).unwrap();
    assert!(unit.insert(&collection, doc! { "_id": 10 }.as_raw()).is_err());
    assert!(unit.insert(&collection, doc! { "_id": 2 }.as_raw()).is_err());
    unit.commit().unwrap();
    assert_eq!(left(), 3);
    assert_valid(&engine, "db.capped");
    let copy = crash_copy(dir.path());
    assert_eq!(all(&open(copy.path()), "db.capped").len(), 3);
}

/// Whoever trims finds the oldest record at once: without knowing where it was before, each insert would walk over all that
/// were ever deleted and are still in memory.
#[test]
fn trimming_does_not_walk_over_what_was_trimmed() {
    let (_dir, engine) = fresh();
    create(&engine, "db.capped", doc! { "capped": true, "size": 100_000, "max": 3 });
    for n in 0..500 {
        insert(&engine, "db.capped", &doc! { "_id": n }).unwrap();
    }
    // A search begins where the one before it has found something.
    let catalog = engine.catalog();
    let begins = || {
        let collection = catalog.collection("db.capped").unwrap();
        collection.state.first_key.load(std::sync::atomic::Ordering::Acquire)
    };
    for n in 500..505 {
        let before = begins();
        insert(&engine, "db.capped", &doc! { "_id": n }).unwrap();
        assert!(begins() > before, "a search begins at {before} again");
    }
    assert_eq!(all(&engine, "db.capped").len(), 3);
    assert_valid(&engine, "db.capped");
}

/// One unit may write to several: what it has trimmed of one is not trimmed again when it comes back to it.
#[test]
fn a_unit_trims_two_capped_collections_in_turns() {
    let (_dir, engine) = fresh();
    let names = ["db.one", "db.two"];
    for name in names {
        create(&engine, name, doc! { "capped": true, "size": 100_000, "max": 3 });
        for n in 0..3 {
            insert(&engine, name, &doc! { "_id": n }).unwrap();
        }
    }
    let mut unit = engine.write(GO_ON);
    for n in 3..10 {
        for name in names {
            let collection = unit.collection(name).unwrap().unwrap();
            unit.insert(&collection, doc! { "_id": n }.as_raw()).unwrap();
        }
    }
    unit.commit().unwrap();
    for name in names {
        assert_eq!(all(&engine, name), [7, 8, 9].map(|n| format!("{:?}", doc! { "_id": n }.as_raw())));
        assert_valid(&engine, name);
    }
}

#[test]
fn what_is_trimmed_may_have_changed_since_it_was_seen() {
    let (_dir, engine) = fresh();
    create(&engine, "db.capped", doc! { "capped": true, "size": 100_000, "max": 3 });
    for n in 0..3 {
        insert(&engine, "db.capped", &doc! { "_id": n }).unwrap();
    }
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection("db.capped").unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 3 }.as_raw()).unwrap();
    let mut other = engine.write(GO_ON);
    other.collection("db.capped").unwrap().unwrap();
    let key = 2u64.to_be_bytes();
    let old = other.read_for_update(&collection, &key).unwrap().unwrap();
    let new = doc! { "_id": 1, "text": "longer" };
    other.update(&collection, &key, RawDoc::new(&old), new.as_raw(), None).unwrap();
    other.commit().unwrap();
    unit.insert(&collection, doc! { "_id": 4 }.as_raw()).unwrap();
    unit.commit().unwrap();
    assert_eq!(all(&engine, "db.capped"), [2, 3, 4].map(|n| format!("{:?}", doc! { "_id": n }.as_raw())));
    assert_valid(&engine, "db.capped");
}

#[test]
fn tailing_a_capped_collection() {
    struct Flag(AtomicU32);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (_dir, engine) = fresh();
    create(&engine, "db.t", doc! { "capped": true, "size": 100_000, "max": 3 });
    insert(&engine, "db.t", &doc! { "_id": 1 }).unwrap();
    let view = engine.view().unwrap();
    let collection = view.collection("db.t").unwrap().clone();
    let mut cursor = view.records(&collection, Range::ALL, Direction::Forward).unwrap();
    assert!(cursor.next().unwrap() && !cursor.next().unwrap());
    let position = cursor.save();
    let seen = collection.version();
    let flag = Arc::new(Flag(AtomicU32::new(0)));
    assert!(!collection.on_change(seen, flag.clone().into()));
    insert(&engine, "db.t", &doc! { "_id": 2 }).unwrap();
    assert_eq!(flag.0.load(Ordering::SeqCst), 1);
    assert!(collection.on_change(seen, flag.clone().into()));
    let view = engine.view().unwrap();
    let restore = |view| RecordCursor::restore(view, &collection, Range::ALL, Direction::Forward, &position);
    let mut cursor = restore(&view).unwrap();
    assert!(cursor.next().unwrap());
    assert_eq!(cursor.doc(), doc! { "_id": 2 }.as_raw());
    assert!(!cursor.next().unwrap());
    for n in 3..6 {
        insert(&engine, "db.t", &doc! { "_id": n }).unwrap();
    }
    let lost = restore(&engine.view().unwrap()).err().unwrap();
    assert_eq!(lost.code(), Code::CAPPED_POSITION_LOST);
}

#[test]
fn index_cursors_go_both_ways_and_go_on_in_newer_views() {
    let (_dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    for n in 0..10 {
        insert(&engine, C, &doc! { "_id": n, "a": n / 2 }).unwrap();
    }
    let forward = index_order(&engine, C, "a_1", Direction::Forward);
    let mut backward = index_order(&engine, C, "a_1", Direction::Backward);
    backward.reverse();
    assert_eq!(forward, backward);
    let view = engine.view().unwrap();
    let collection = view.collection(C).unwrap();
    let index = collection.index("a_1").unwrap();
    let key = |n: i32| index.keys(doc! { "a": n }.as_raw()).unwrap().remove(0);
    let id = |cursor: &crate::IndexCursor| {
        view.get(collection, cursor.record_key())
            .unwrap()
            .unwrap()
            .as_raw()
            .get("_id")
            .unwrap()
            .as_exact_i64()
            .unwrap()
    };
    let mut cursor = view.index(index, Direction::Forward).unwrap();
    assert!(cursor.seek(Cut::Before(&key(2))).unwrap());
    assert_eq!(id(&cursor), 4);
    assert!(cursor.seek(Cut::After(&key(2))).unwrap());
    assert_eq!(id(&cursor), 6);
    let mut back = view.index(index, Direction::Backward).unwrap();
    assert!(back.seek(Cut::After(&key(2))).unwrap());
    assert_eq!(id(&back), 5);
    assert!(back.seek(Cut::Before(&key(2))).unwrap());
    assert_eq!(id(&back), 3);
    assert_eq!(cursor.key(), key(3));
    let position = cursor.save();
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, 6, None).unwrap();
    unit.commit().unwrap();
    let newer = engine.view().unwrap();
    let mut cursor = crate::IndexCursor::restore(&newer, index, Direction::Forward, &position).unwrap();
    assert!(cursor.next().unwrap());
    assert_eq!(id(&cursor), 7);
}

#[test]
fn retryable_statements_are_remembered() {
    let (dir, engine) = fresh();
    let lsid: DocBuf = doc! { "id": "session" };
    let statement = |stmt_id, result| Statement { lsid: lsid.clone(), txn_number: 5, stmt_id, result };
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for n in 0..3 {
        unit.statement(Some(statement(n, (n == 2).then(|| doc! { "n": 1, "value": "found" }))));
        unit.insert(&collection, doc! { "_id": n }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    let check = |engine: &crate::Engine| {
        assert_eq!(engine.session_record(lsid.as_raw()).unwrap().unwrap().txn_number, 5);
        let result = |txn, stmt| engine.statement_result(lsid.as_raw(), txn, stmt).unwrap();
        assert_eq!(result(5, 0), Some(doc! { "n": 1 }));
        assert_eq!(result(5, 2), Some(doc! { "n": 1, "value": "found" }));
        assert_eq!(result(5, 3), None);
        assert_eq!(result(4, 0), None);
    };
    check(&engine);
    check(&open(crash_copy(dir.path()).path()));
}

#[test]
fn many_changes_are_several_commits() {
    let (dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    let appends = || engine.stats().log_appends;
    let before = appends();
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for n in 0..9000 {
        unit.insert(&collection, doc! { "_id": n, "a": n }.as_raw()).unwrap();
    }
    // A document and a key of an index each.
    assert_eq!(appends() - before, 2);
    unit.commit().unwrap();
    assert_eq!(appends() - before, 3);
    let mut unit = engine.write(GO_ON);
    for n in 0..9000 {
        change(&mut unit, C, n, None).unwrap();
    }
    unit.commit().unwrap();
    assert_eq!(appends() - before, 6);
    assert_valid(&engine, C);
    assert!(all(&open(crash_copy(dir.path()).path()), C).is_empty());
}
