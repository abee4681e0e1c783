//! Reading the log as operations: by time, both ways, while it grows and where it was cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use sheaf_bson::{RawDoc, Timestamp, Value, doc};
use sheaf_errors::Code;

use super::support::*;
use crate::{Engine, OPLOG_NAMESPACE, OplogCursor, Write};

const END: Timestamp = Timestamp(u64::MAX);

fn time(doc: RawDoc<'_>) -> u64 {
    match doc.get("ts") {
        Some(Value::Timestamp(time)) => time.0,
        other => panic!("{other:?}"),
    }
}

fn times(cursor: &mut OplogCursor, until: Timestamp) -> Vec<u64> {
    let mut times = Vec::new();
    while let Some(doc) = cursor.next(until).unwrap() {
        times.push(time(doc));
        assert_eq!(times.last(), Some(&time(cursor.doc())));
    }
    times
}

/// Entries of one and of several operations.
fn some_writes(engine: &Engine, from: i32, count: i32) {
    for n in from..from + count {
        if n % 5 == 0 {
            let mut unit = engine.write(GO_ON);
            let collection = unit.collection(C).unwrap().unwrap();
            for m in 0..4 {
                unit.insert(&collection, doc! { "_id": n * 100 + m }.as_raw()).unwrap();
            }
            unit.commit().unwrap();
        } else {
            insert(engine, C, &doc! { "_id": n * 100 }).unwrap();
        }
    }
}

#[test]
fn operations_are_found_by_time_in_both_directions() {
    let (_dir, engine) = fresh();
    some_writes(&engine, 0, 100);
    let oplog = engine.view().unwrap().oplog().unwrap();
    let all = times(&mut oplog.from_time(Timestamp(0)).unwrap(), END);
    assert_eq!(all.len(), 161);
    assert!(all.is_sorted_by(|a, b| a < b));
    for at in [0, 1, 2, 3, 4, 77, 160] {
        let from = Timestamp(all[at]);
        assert_eq!(times(&mut oplog.from_time(from).unwrap(), END), all[at..], "from operation {at}");
        assert_eq!(
            times(&mut oplog.from_time(Timestamp(0)).unwrap(), from),
            all[..=at],
            "up to operation {at}"
        );
        let mut backward = oplog.backward(from);
        let mut found = Vec::new();
        while let Some(doc) = backward.next().unwrap() {
            found.push(time(doc));
        }
        assert!(found.iter().eq(all[..=at].iter().rev()), "back from operation {at}");
    }
    // A commit's earlier operations come along when its entry is wanted whole.
    let middle = all.len() - 2;
    let whole = times(&mut oplog.from_time(Timestamp(all[middle])).unwrap().whole_entries(), END);
    assert!(whole.ends_with(&all[middle..]) && whole.len() >= all[middle..].len());
    assert!(times(&mut oplog.from_time(END).unwrap(), END).is_empty());
}

#[test]
fn a_cursor_goes_on_with_what_is_committed_later() {
    let (_dir, engine) = fresh();
    let oplog = engine.view().unwrap().oplog().unwrap();
    let mut cursor = oplog.from_time(Timestamp(engine.last_applied().time + 1)).unwrap();
    assert!(cursor.next(END).unwrap().is_none());
    for n in 1..4 {
        some_writes(&engine, n * 10, 3);
        assert_eq!(times(&mut cursor, END).len(), 6, "an entry of four and two of one");
    }
}

#[test]
fn the_log_is_a_collection_of_the_catalog_that_wakes_with_every_commit() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (dir, engine) = fresh();
    let catalog = engine.catalog();
    let log = catalog.collection(OPLOG_NAMESPACE).unwrap();
    assert!(log.is_oplog() && log.capped.is_some() && catalog.all().all(|c| !c.is_oplog()));
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    let seen = log.version();
    assert!(!log.on_change(seen, waker.clone()));
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert!(log.on_change(seen, waker), "it has changed already");
    engine.view().unwrap().oplog().unwrap().count().unwrap();
    assert_eq!(log.count(), 2);
    insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    engine.view().unwrap().oplog().unwrap().count().unwrap();
    assert_eq!(log.count(), 3);
    for error in [
        engine.drop_collection(OPLOG_NAMESPACE, GO_ON).unwrap_err(),
        rename(&engine, OPLOG_NAMESPACE, "db.x", false).unwrap_err(),
        engine.drop_database("local", &|_| Ok(()), crate::Told::Here, GO_ON).unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::ILLEGAL_OPERATION);
    }
    drop(engine);
    let engine = open(dir.path());
    assert!(engine.catalog().collection(OPLOG_NAMESPACE).is_some());
    assert_eq!(
        times(&mut engine.view().unwrap().oplog().unwrap().from_time(Timestamp(0)).unwrap(), END).len(),
        3
    );
}

#[test]
fn what_was_removed_is_said_to_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(crate::Options { oplog_bytes: 16 << 20, ..options(dir.path()) }).unwrap();
    create(&engine, C, doc! {});
    let view = engine.view().unwrap();
    assert_eq!(view.oplog().unwrap().oldest().unwrap(), None, "nothing was removed yet");
    let mut behind = view.oplog().unwrap().from_time(Timestamp(0)).unwrap();
    assert!(behind.next(END).unwrap().is_some());
    let text = "x".repeat(1 << 20);
    for n in 0..60 {
        insert(&engine, C, &doc! { "_id": n, "text": &text }).unwrap();
    }
    engine.checkpoint().unwrap();
    let oplog = engine.view().unwrap().oplog().unwrap();
    let oldest = oplog.oldest().unwrap().expect("the oldest operations are gone");
    assert_eq!(times(&mut oplog.from_time(oldest).unwrap(), END).first(), Some(&oldest.0));
    let lost = loop {
        match behind.next(END) {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert!(lost.is_none_or(|error| error.code() == Code::CAPPED_POSITION_LOST));
}

#[test]
fn documents_before_changes_are_in_the_log_where_they_are_kept() {
    let (_dir, engine) = fresh();
    create(&engine, "db.kept", doc! { "changeStreamPreAndPostImages": { "enabled": true } });
    for namespace in [C, "db.kept"] {
        insert(&engine, namespace, &doc! { "_id": 1, "a": 1 }).unwrap();
        let mut unit = engine.write(GO_ON);
        change(&mut unit, namespace, 1, Some(&doc! { "_id": 1, "a": 2 })).unwrap();
        change(&mut unit, namespace, 1, None).unwrap();
        unit.commit().unwrap();
    }
    let mut txn = engine.begin(None).unwrap();
    let kept = txn.collection("db.kept").unwrap().unwrap();
    txn.insert(&kept, doc! { "_id": 2 }.as_raw()).unwrap();
    change(&mut txn, "db.kept", 2, None).unwrap();
    txn.commit(GO_ON).unwrap();
    let mut cursor = engine.view().unwrap().oplog().unwrap().from_time(Timestamp(0)).unwrap();
    let mut found = Vec::new();
    while let Some(doc) = cursor.next(END).unwrap() {
        let inner = doc.get("o").and_then(|o| o.as_doc()?.get("applyOps")?.as_array());
        let operations: Vec<_> = match inner {
            Some(list) => list.values().filter_map(|v| v.as_doc()).collect(),
            None => vec![doc],
        };
        for operation in operations {
            let before = operation.get("preImage").and_then(|before| before.as_doc());
            found.extend(before.map(|before| format!("{before:?}")));
        }
    }
    let wanted = [doc! { "_id": 1, "a": 1 }, doc! { "_id": 1, "a": 2 }, doc! { "_id": 2 }];
    assert_eq!(found, wanted.map(|doc| format!("{:?}", doc.as_raw())));
}
