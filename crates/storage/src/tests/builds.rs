//! Index builds: beside writers, through crashes, with duplicates that come and go.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;
use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Result};

use super::support::*;
use crate::{Collection, Direction, Engine, Write};

/// Runs `work` once, in the middle of a build: when it reads its snapshot and writers may do as they like.
struct During<'e, F: Fn()> {
    engine: &'e Engine,
    namespace: &'e str,
    done: AtomicBool,
    work: F,
}

impl<F: Fn()> During<'_, F> {
    fn interrupt(&self) -> Result<()> {
        let catalog = self.engine.catalog();
        let building = catalog
            .collection(self.namespace)
            .is_some_and(|c| !c.replacements.is_empty() || c.indexes.iter().any(|index| !index.ready));
        if building && !self.done.swap(true, Ordering::AcqRel) {
            (self.work)();
        }
        Ok(())
    }
}

fn build_during(engine: &Engine, spec: &DocBuf, work: impl Fn() + Sync) -> Result<()> {
    let during = During { engine, namespace: C, done: AtomicBool::new(false), work };
    let result = engine.create_indexes(C, &[spec.as_raw()], &|| during.interrupt());
    assert!(during.done.load(Ordering::Acquire), "the build was over before its middle");
    result.map(|_| ())
}

/// Documents `from..to`, whose `a` is `f(n)`.
fn fill(engine: &Engine, from: i32, to: i32, a: impl Fn(i32) -> i32) {
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for n in from..to {
        unit.insert(&collection, doc! { "_id": n, "a": a(n) }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
}

fn put(engine: &Engine, id: i32, a: i32) {
    let mut unit = engine.write(GO_ON);
    if !change(&mut unit, C, id, Some(&doc! { "_id": id, "a": a })).unwrap() {
        let collection = unit.collection(C).unwrap().unwrap();
        unit.insert(&collection, doc! { "_id": id, "a": a }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
}

fn delete(engine: &Engine, id: i32) {
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, id, None).unwrap();
    unit.commit().unwrap();
}

fn unique() -> DocBuf {
    index_spec(doc! { "a": 1 }, "a_1", doc! { "unique": true })
}

fn entries(engine: &Engine) -> usize {
    index_order(engine, C, "a_1", Direction::Forward).len()
}

#[test]
fn what_is_larger_than_memory_is_spilled_and_recovery_does_not_build_again() {
    let (dir, engine) = fresh();
    const COUNT: i32 = 120_000;
    fill(&engine, 0, COUNT, |n| n.wrapping_mul(7919) % 10_007);
    engine.checkpoint().unwrap();
    let spilled = AtomicU32::new(0);
    let interrupt = || {
        let folders = std::fs::read_dir(dir.path().join("builds")).into_iter().flatten().flatten();
        let runs = folders.flat_map(|f| std::fs::read_dir(f.path()).into_iter().flatten().flatten());
        let count = runs.filter(|f| f.path().extension().is_some_and(|e| e == "run")).count();
        spilled.fetch_max(count as u32, Ordering::Relaxed);
        Ok(())
    };
    let specs = [index_spec(doc! { "a": 1 }, "a_1", doc! {}), index_spec(doc! { "b": 1 }, "b_1", doc! {})];
    engine.create_indexes(C, &[specs[0].as_raw(), specs[1].as_raw()], &interrupt).unwrap();
    assert!(spilled.load(Ordering::Relaxed) > 1, "nothing was spilled");
    assert_eq!(std::fs::read_dir(dir.path().join("builds")).unwrap().count(), 0);
    assert_eq!(entries(&engine), COUNT as usize);
    assert_valid(&engine, C);
    let again = open(crash_copy(dir.path()).path());
    // 240,000 entries made again would be in memory now.
    assert!(again.stats().memtable_bytes < 4 << 20, "{}", again.stats().memtable_bytes);
    assert_eq!(entries(&again), COUNT as usize);
    assert_valid(&again, C);
}

#[test]
fn a_build_that_waits_for_a_long_write_lets_others_in() {
    let (_dir, engine) = fresh();
    fill(&engine, 0, 20, |n| n);
    std::thread::scope(|scope| {
        let mut long = engine.write(GO_ON);
        let collection = long.collection(C).unwrap().unwrap();
        long.insert(&collection, doc! { "_id": 100, "a": 0 }.as_raw()).unwrap();
        let built = scope.spawn(|| build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})));
        for id in 200..230 {
            put(&engine, id, id);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!built.is_finished(), "the build did not wait");
        long.commit().unwrap();
        built.join().unwrap().unwrap();
    });
    assert_eq!(entries(&engine), 51);
    assert_valid(&engine, C);
}

#[test]
fn duplicates_that_go_during_the_build_do_no_harm() {
    // Which of the two documents of the snapshot goes, or gets another key.
    type Work = fn(&Engine);
    let works: [Work; 5] = [
        |engine| delete(engine, 1000),
        |engine| delete(engine, 2000),
        |engine| put(engine, 1000, -1),
        |engine| {
            delete(engine, 2000);
            delete(engine, 1000);
            put(engine, 3000, 5);
        },
        |engine| {
            put(engine, 1000, 6);
            put(engine, 4001, 7);
            put(engine, 4000, 7);
            delete(engine, 4001);
            put(engine, 4001, 8);
        },
    ];
    for (at, work) in works.iter().enumerate() {
        let (dir, engine) = fresh();
        fill(&engine, 0, 2001, |n| if n % 1000 == 0 && n > 0 { 5 } else { 10 + n });
        if at % 2 == 0 {
            engine.checkpoint().unwrap();
        }
        build_during(&engine, &unique(), || work(&engine)).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_valid(&engine, C);
        assert_eq!(entries(&engine), all(&engine, C).len(), "{at}");
        let again = open(crash_copy(dir.path()).path());
        assert_valid(&again, C);
        let error = insert(&again, C, &doc! { "_id": -1, "a": 11 }).unwrap_err();
        assert_eq!(error.code(), Code::DUPLICATE_KEY);
        // A flush behind the build, and again.
        engine.checkpoint().unwrap();
        assert_valid(&open(crash_copy(dir.path()).path()), C);
    }
}

#[test]
fn duplicates_that_stay_fail_the_build() {
    type Work = fn(&Engine);
    let works: [Work; 4] = [
        |_| {},
        |engine| put(engine, 1000, 6),
        |engine| {
            delete(engine, 1000);
            put(engine, 1000, 5);
        },
        |engine| {
            delete(engine, 2000);
            put(engine, 9000, 5);
        },
    ];
    for (at, work) in works.iter().enumerate() {
        let (dir, engine) = fresh();
        fill(&engine, 0, 2001, |n| match n {
            1000 | 2000 => 5,
            7 => 6,
            n => 10 + n,
        });
        let error = build_during(&engine, &unique(), || work(&engine)).unwrap_err();
        assert_eq!(error.code(), Code::DUPLICATE_KEY, "{at}");
        assert!(error.message().starts_with("Index build failed: "), "{error}");
        assert!(error.extra().is_some(), "{at}: keyPattern and keyValue are missing");
        let engines = [open(crash_copy(dir.path()).path()), engine];
        for engine in engines {
            assert_eq!(engine.catalog().collection(C).unwrap().indexes.len(), 1);
            assert_valid(&engine, C);
        }
    }
}

#[test]
fn a_build_drains_what_many_writers_leave() {
    let (dir, engine) = fresh();
    fill(&engine, 0, 3000, |n| n);
    // More than is drained while writers are kept out, beside a transaction that stays open for a while.
    let holder = Mutex::new(None);
    build_during(&engine, &unique(), || {
        for n in 0..5000 {
            put(&engine, n, 10_000 + n);
        }
        let mut txn = engine.begin(None).unwrap();
        change(&mut txn, C, 7, Some(&doc! { "_id": 7, "a": -7 })).unwrap();
        let (keep, drop) = std::sync::mpsc::channel::<()>();
        *holder.lock() = Some(keep);
        std::thread::spawn(move || {
            let _ = drop.recv_timeout(std::time::Duration::from_millis(150));
            txn.commit(GO_ON).unwrap();
        });
    })
    .unwrap();
    assert_eq!(entries(&engine), 5000);
    assert_valid(&engine, C);
    let again = open(crash_copy(dir.path()).path());
    assert_eq!(entries(&again), 5000);
    assert_valid(&again, C);
}

#[test]
fn without_a_journal_a_build_is_there_from_the_next_flush() {
    let dir = tempfile::tempdir().unwrap();
    let bare =
        |path: &std::path::Path| Engine::open(crate::Options { journal: false, ..options(path) }).unwrap();
    let engine = bare(dir.path());
    create(&engine, C, doc! {});
    fill(&engine, 0, 3000, |n| n);
    build_during(&engine, &unique(), || put(&engine, 1, -1)).unwrap();
    let indexes = |engine: &Engine| engine.catalog().collection(C).unwrap().indexes.len();
    let copy = crash_copy(dir.path());
    let again = bare(copy.path());
    assert_eq!(indexes(&again), 1);
    assert_valid(&again, C);
    build(&again, C, &unique()).unwrap();
    assert_valid(&again, C);
    engine.checkpoint().unwrap();
    let again = bare(crash_copy(dir.path()).path());
    assert_eq!((indexes(&again), entries(&again)), (2, 3000));
    assert_valid(&again, C);
}

#[test]
fn documents_that_cannot_be_indexed_may_go() {
    let (_dir, engine) = fresh();
    fill(&engine, 0, 2000, |n| n);
    insert(&engine, C, &doc! { "_id": -1, "a": [1, 2], "b": [3, 4] }).unwrap();
    let spec = index_spec(doc! { "a": 1, "b": 1 }, "a_1", doc! {});
    let error = build_during(&engine, &spec, || {}).unwrap_err();
    assert_eq!(error.code(), Code::CANNOT_INDEX_PARALLEL_ARRAYS);
    build_during(&engine, &spec, || put(&engine, -1, 7)).unwrap();
    assert_eq!(entries(&engine), 2001);
    assert_valid(&engine, C);
}

#[test]
fn an_index_is_exchanged_in_one_commit() {
    let (dir, engine) = fresh();
    fill(&engine, 0, 3000, |n| n);
    let spec = index_spec(doc! { "a": 1 }, "a_1", doc! {});
    build(&engine, C, &spec).unwrap();
    let as_unique = |_: &Collection| Ok(vec![("a_1".to_owned(), unique())]);
    let copy = Mutex::new(None);
    let middle = || {
        put(&engine, 1, -1);
        put(&engine, 5000, 1);
        assert!(!engine.catalog().collection(C).unwrap().index("a_1").unwrap().unique);
        assert_valid(&engine, C);
        *copy.lock() = Some(crash_copy(dir.path()));
        delete(&engine, 2);
    };
    let during = AtomicBool::new(false);
    let interrupt = || {
        let building = !engine.catalog().collection(C).unwrap().replacements.is_empty();
        if building && !during.swap(true, Ordering::AcqRel) {
            middle();
        }
        Ok(())
    };
    engine.rebuild_indexes(C, &as_unique, &interrupt).unwrap();
    let check = |engine: &Engine, unique: bool| {
        let catalog = engine.catalog();
        let collection = catalog.collection(C).unwrap();
        assert_eq!(collection.indexes.len(), 2);
        assert!(collection.replacements.is_empty());
        assert_eq!(collection.index("a_1").unwrap().unique, unique);
        assert_eq!(entries(engine), all(engine, C).len());
        assert_valid(engine, C);
    };
    check(&engine, true);
    check(&open(crash_copy(dir.path()).path()), true);
    // A crash in the middle leaves the old index.
    let copy = copy.into_inner().unwrap();
    let again = open(copy.path());
    check(&again, false);
    again.rebuild_indexes(C, &as_unique, GO_ON).unwrap();
    check(&again, true);
    again.checkpoint().unwrap();
    check(&open(crash_copy(copy.path()).path()), true);
    // With a duplicate it stays as it was.
    let (_dir, engine) = fresh();
    fill(&engine, 0, 10, |n| n % 9);
    build(&engine, C, &spec).unwrap();
    let error = engine.rebuild_indexes(C, &as_unique, GO_ON).unwrap_err();
    assert_eq!(error.code(), Code::DUPLICATE_KEY);
    check(&engine, false);
}

#[test]
fn dropping_what_is_being_built_ends_the_build() {
    let (_dir, engine) = fresh();
    fill(&engine, 0, 3000, |n| n);
    let drop_index = || _ = drop_indexes(&engine, C, &["a_1"]).unwrap();
    let error = build_during(&engine, &unique(), drop_index).unwrap_err();
    assert_eq!(error.code(), Code::INDEX_BUILD_ABORTED);
    assert_eq!(engine.catalog().collection(C).unwrap().indexes.len(), 1);
    let error =
        build_during(&engine, &unique(), || _ = engine.drop_collection(C, GO_ON).unwrap()).unwrap_err();
    assert_eq!(error.code(), Code::INDEX_BUILD_ABORTED);
    assert!(engine.catalog().collection(C).is_none());
}

#[test]
fn prepared_for_unique_it_refuses_new_duplicates() {
    let (_dir, engine) = fresh();
    fill(&engine, 0, 10, |n| n % 9);
    let spec = index_spec(doc! { "a": 1 }, "a_1", doc! { "prepareUnique": true });
    build(&engine, C, &spec).unwrap();
    // The old duplicates, 0 and 9, may stay and change otherwise.
    let mut unit = engine.write(GO_ON);
    assert!(change(&mut unit, C, 9, Some(&doc! { "_id": 9, "a": 0, "more": 1 })).unwrap());
    unit.commit().unwrap();
    let error = insert(&engine, C, &doc! { "_id": 20, "a": 3 }).unwrap_err();
    assert_eq!(error.message(), "E11000 duplicate key error collection: db.c index: a_1 dup key: { a: 3 }");
    let mut unit = engine.write(GO_ON);
    let error = change(&mut unit, C, 1, Some(&doc! { "_id": 1, "a": 5 })).unwrap_err();
    assert_eq!(error.code(), Code::DUPLICATE_KEY);
    drop(unit);
    let mut txn = engine.begin(None).unwrap();
    let collection = txn.collection(C).unwrap().unwrap();
    txn.insert(&collection, doc! { "_id": 30, "a": 30 }.as_raw()).unwrap();
    let error = txn.insert(&collection, doc! { "_id": 31, "a": 30 }.as_raw()).unwrap_err();
    assert_eq!(error.code(), Code::DUPLICATE_KEY);
    txn.commit(GO_ON).unwrap();
    // Within one unit too, where the first is not in the database yet.
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 40, "a": 40 }.as_raw()).unwrap();
    assert!(unit.insert(&collection, doc! { "_id": 41, "a": 40 }.as_raw()).is_err());
    unit.commit().unwrap();
    assert_valid(&engine, C);
}

#[derive(Clone, Debug)]
enum Step {
    Put(i32, i32),
    Delete(i32),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..40i32, 0..60i32).prop_map(|(id, a)| Step::Put(id, a)),
        3 => (0..40i32).prop_map(Step::Delete),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 0..60)
}

fn run(engine: &Engine, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Put(id, a) => put(engine, *id, *a),
            Step::Delete(id) => delete(engine, *id),
            Step::Flush => engine.checkpoint().unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever happens before and meanwhile: the build succeeds if and only if the keys are unique in the end, and the
    /// index is right, also after a crash.
    #[test]
    fn a_unique_build_is_about_the_end(before in steps(), meanwhile in steps(), after in steps()) {
        let (dir, engine) = fresh();
        fill(&engine, 1000, 3000, |n| n);
        run(&engine, &before);
        let result = build_during(&engine, &unique(), || run(&engine, &meanwhile));
        let mut keys: Vec<String> =
            all(&engine, C).iter().map(|doc| doc.split("\"a\"").nth(1).unwrap().to_owned()).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        prop_assert_eq!(result.is_ok(), keys.len() == count, "{:?}", result);
        assert_valid(&engine, C);
        if result.is_err() {
            run(&engine, &after);
        }
        let copy = crash_copy(dir.path());
        drop(engine);
        let engine = open(copy.path());
        prop_assert_eq!(engine.catalog().collection(C).unwrap().indexes.len(), if result.is_ok() { 2 } else { 1 });
        assert_valid(&engine, C);
    }
}
