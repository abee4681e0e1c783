//! Documents with very many index keys: nothing is done for every pair of them, and everything can be ended.
//!
//! With a quadratic step anywhere these tests take minutes or hours.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use sheaf_bson::{ArrayBuf, DocBuf, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::{Entered, Meter, Process};

use super::apply::{Follower, state};
use super::support::*;
use crate::{Engine, Write};

const KEYS: i32 = 200_000;

fn unique() -> DocBuf {
    index_spec(doc! { "a": 1 }, "a_1", doc! { "unique": true })
}

/// `_id` and an array, in an order that is not sorted.
fn document(id: i32, from: i32, count: i32) -> DocBuf {
    let half = count / 2;
    let values = (0..count).map(|n| from + if n < half { n + half } else { n - half });
    let array = ArrayBuf::build(|out| values.for_each(|value| _ = out.push(value)));
    doc! { "_id": id, "a": &array }
}

fn count_of(engine: &Engine) -> usize {
    index_order(engine, C, "a_1", crate::Direction::Forward).len()
}

fn put(engine: &Engine, id: i32, new: Option<&DocBuf>) -> Result<()> {
    let mut unit = engine.write(GO_ON);
    assert!(change(&mut unit, C, id, new)?);
    unit.commit().map(|_| ())
}

#[test]
fn writes_recovery_and_followers() {
    let (dir, engine) = fresh();
    build(&engine, C, &unique()).unwrap();
    let before = engine.last_applied();
    insert(&engine, C, &document(1, 0, KEYS)).unwrap();
    assert_eq!(count_of(&engine), KEYS as usize);
    // Half of the keys go, half are new.
    put(&engine, 1, Some(&document(1, KEYS / 2, KEYS))).unwrap();
    assert_eq!(insert(&engine, C, &document(2, KEYS + 10, 1)).unwrap_err().code(), Code::DUPLICATE_KEY);
    insert(&engine, C, &document(2, 10, 1)).unwrap();
    // Where a key is another's the whole is refused.
    assert_eq!(put(&engine, 1, Some(&document(1, 10, KEYS))).unwrap_err().code(), Code::DUPLICATE_KEY);
    let mut txn = engine.begin(None).unwrap();
    change(&mut txn, C, 1, Some(&document(1, KEYS, KEYS))).unwrap();
    let collection = txn.collection(C).unwrap().unwrap();
    txn.insert(&collection, document(3, 3 * KEYS, 1000).as_raw()).unwrap();
    txn.commit(GO_ON).unwrap();
    assert_eq!(count_of(&engine), KEYS as usize + 1001);
    assert_valid(&engine, C);
    let copy = crash_copy(dir.path());
    let other = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(other.path());
    follower.follow(&engine, 100);
    assert!(follower.engine.last_applied().index > before.index);
    assert!(state(&follower.engine) == state(&engine));
    assert!(state(&open(copy.path())) == state(&engine));
    put(&engine, 1, None).unwrap();
    assert_eq!(count_of(&engine), 1001);
    assert_valid(&engine, C);
}

#[test]
fn builds_where_such_a_document_comes_in_at_the_end() {
    for unique_index in [true, false] {
        let (dir, engine) = fresh();
        insert(&engine, C, &document(1, 0, KEYS)).unwrap();
        let spec = index_spec(doc! { "a": 1 }, "a_1", doc! { "unique": unique_index });
        // While a transaction is open no generation can be closed: all is left to the last step.
        let txn = parking_lot::Mutex::new(None);
        let (came, asked) = (AtomicBool::new(false), AtomicI32::new(0));
        let interrupt = || {
            let catalog = engine.catalog();
            if catalog.collection(C).unwrap().index("a_1").is_none() {
                return Ok(());
            }
            if !came.swap(true, Ordering::AcqRel) {
                let mut open = engine.begin(None).unwrap();
                open.collection(C).unwrap();
                *txn.lock() = Some(open);
                insert(&engine, C, &document(2, KEYS, KEYS)).unwrap();
                put(&engine, 2, Some(&document(2, 3 * KEYS / 2, KEYS))).unwrap();
            }
            if asked.fetch_add(1, Ordering::AcqRel) == 60 {
                // Who asks may hold what the transaction's end needs.
                let open = txn.lock().take();
                std::thread::spawn(move || drop(open));
            }
            Ok(())
        };
        engine.create_indexes(C, &[spec.as_raw()], &interrupt).unwrap();
        assert!(came.load(Ordering::Acquire));
        assert_eq!(count_of(&engine), 2 * KEYS as usize);
        assert_valid(&engine, C);
        // Recovery and followers settle it, or build it from the documents.
        assert_valid(&open(crash_copy(dir.path()).path()), C);
        let other = tempfile::tempdir().unwrap();
        let mut follower = Follower::open(other.path());
        follower.follow(&engine, 100);
        assert_valid(&follower.engine, C);
    }
}

/// An operation that is killed when it has been asked so often whether it may go on.
fn killed_after(count: i32) -> Entered {
    let left = AtomicI32::new(count);
    let source = move || match left.fetch_sub(1, Ordering::AcqRel) {
        // It stays killed.
        ..=0 => Err(Error::new(Code::INTERRUPTED, "operation was interrupted")),
        _ => Ok(()),
    };
    sheaf_meter::enter(Meter::new(&Process::new(u64::MAX, u64::MAX), Arc::new(source)))
}

#[test]
fn all_of_it_can_be_ended() {
    let (_dir, engine) = fresh();
    build(&engine, C, &unique()).unwrap();
    insert(&engine, C, &document(1, 0, KEYS)).unwrap();
    let refused = |what: &str, work: &dyn Fn() -> Result<()>| {
        // In the key generation, the sorting, the taking of locks or the look-ups.
        for count in [0, 10, 300, 2000, 4000] {
            let entered = killed_after(count);
            let done = work();
            drop(entered);
            assert_eq!(done.expect_err(what).code(), Code::INTERRUPTED, "{what} after {count}");
        }
        assert_eq!(count_of(&engine), KEYS as usize);
        assert_eq!(engine.catalog().collection(C).unwrap().indexes.len(), 2);
    };
    refused("insert", &|| insert(&engine, C, &document(2, KEYS, KEYS)).map(|_| ()));
    refused("update", &|| put(&engine, 1, Some(&document(1, KEYS, KEYS))));
    refused("validate", &|| engine.validate(C, true, GO_ON).map(|_| ()));
    for count in [0, 10, 100] {
        let entered = killed_after(count);
        assert_eq!(put(&engine, 1, None).unwrap_err().code(), Code::INTERRUPTED);
        let other = index_spec(doc! { "a": -1 }, "a_-1", doc! {});
        assert_eq!(build(&engine, C, &other).unwrap_err().code(), Code::INTERRUPTED);
        let rename = index_spec(doc! { "$**": 1 }, "$**_1", doc! {});
        assert_eq!(build(&engine, C, &rename).unwrap_err().code(), Code::INTERRUPTED);
        drop(entered);
        assert_eq!(engine.catalog().collection(C).unwrap().indexes.len(), 2);
    }
    // No lock is left.
    insert(&engine, C, &document(2, KEYS, 10)).unwrap();
    put(&engine, 1, None).unwrap();
    assert_eq!(count_of(&engine), 10);
    assert_valid(&engine, C);
}

#[test]
fn a_compound_wildcard_index_of_a_wide_document() {
    let (_dir, engine) = fresh();
    let spec = index_spec(doc! { "$**": 1, "z": 1 }, "a_1", doc! { "wildcardProjection": { "z": 0 } });
    build(&engine, C, &spec).unwrap();
    let wide = DocBuf::build(|out| {
        out.append("_id", 1);
        for n in 0..KEYS / 2 {
            out.append(&format!("f{n}"), n);
        }
        out.append("z", 1);
    });
    insert(&engine, C, &wide).unwrap();
    assert_eq!(count_of(&engine), KEYS as usize / 2);
}

/// A document whose keys are many times as large as it is.
#[test]
fn keys_are_counted_as_the_operations_memory() {
    let (_dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1, "b": 1 }, "a_1", doc! {})).unwrap();
    let mut bomb = document(1, 0, 100_000);
    bomb.append("b", &*"x".repeat(1 << 20));
    let process = Process::new(64 << 20, 32 << 20);
    let entered = sheaf_meter::enter(Meter::new(&process, Arc::new(|| Ok(()))));
    assert_eq!(insert(&engine, C, &bomb).unwrap_err().code(), Code::EXCEEDED_MEMORY_LIMIT);
    insert(&engine, C, &document(2, 0, 100_000)).unwrap();
    drop(entered);
    assert_eq!(process.used(), 0);
    assert_valid(&engine, C);
}

#[test]
fn thousands_of_collections() {
    let (dir, engine) = fresh();
    for n in 0..2000 {
        create(&engine, &format!("many.c{n}"), doc! {});
    }
    assert_eq!(open(crash_copy(dir.path()).path()).catalog().collections("many").count(), 2000);
    // It can be ended before it is done, and is done whole or not at all.
    let entered = killed_after(5);
    assert_eq!(
        engine.drop_database("many", &|_| Ok(()), crate::Told::Here, GO_ON).unwrap_err().code(),
        Code::INTERRUPTED
    );
    drop(entered);
    assert_eq!(engine.catalog().collections("many").count(), 2000);
    engine.drop_database("many", &|_| Ok(()), crate::Told::Here, GO_ON).unwrap();
    assert_eq!(engine.catalog().all().count(), 1);
    assert_eq!(open(crash_copy(dir.path()).path()).catalog().all().count(), 1);
}
