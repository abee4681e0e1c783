//! The catalog, index builds, folders.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_bson::doc;
use sheaf_errors::Code;

use super::support::*;
use crate::{CreateCollection, Engine, Options, Write};

#[test]
fn catalog_changes_survive_a_crash_and_a_clean_stop() {
    let (dir, engine) = fresh();
    create(&engine, "db.gone", doc! {});
    create(&engine, "other.x", doc! {});
    create(&engine, "db.view", doc! { "viewOn": "c", "pipeline": [{ "$match": { "a": 1 } }] });
    insert(&engine, "db.gone", &doc! { "_id": 1 }).unwrap();
    insert(&engine, "other.x", &doc! { "_id": 1 }).unwrap();
    engine.drop_collection("db.gone", GO_ON).unwrap();
    rename(&engine, "other.x", "db.y", false).unwrap();
    set_options(&engine, C, doc! { "validator": { "a": 1 } }).unwrap();
    let error = rename(&engine, C, "db.y", false).unwrap_err();
    assert_eq!(error.code(), Code::NAMESPACE_EXISTS);
    let check = |engine: &Engine| {
        let catalog = engine.catalog();
        let names: Vec<&str> = catalog.all().map(|c| c.namespace.as_str()).collect();
        assert_eq!(names, ["db.c", "db.view", "db.y"]);
        assert_eq!(catalog.databases().collect::<Vec<_>>(), ["db", "local"]);
        assert_eq!(catalog.collection("db.view").unwrap().view.as_ref().unwrap().0, "c");
        assert_eq!(catalog.collection(C).unwrap().options, doc! { "validator": { "a": 1 } });
        assert_eq!(all(engine, "db.y").len(), 1);
    };
    check(&engine);
    let copy = crash_copy(dir.path());
    check(&open(copy.path()));
    engine.shutdown(true).unwrap();
    assert!(insert(&engine, C, &doc! { "_id": 1 }).is_err());
    drop(engine);
    let engine = open(dir.path());
    check(&engine);
    assert_eq!(engine.stats().log_appends, 0);
    engine.drop_database("db", &|_| Ok(()), crate::Told::Here, GO_ON).unwrap();
    assert_eq!(engine.catalog().all().count(), 0);
}

#[test]
fn collections_that_belong_together_are_made_in_one_commit() {
    let (dir, engine) = fresh();
    let spec = |options| CreateCollection { options, ..CreateCollection::default() };
    let (plain, view) = (spec(doc! {}), spec(doc! { "viewOn": "made", "pipeline": [] }));
    let before = engine.last_applied().index;
    engine.create_collections(&[("db.made", &plain), ("db.shown", &view)], GO_ON).unwrap();
    assert_eq!(engine.last_applied().index, before + 1);
    let error = engine.create_collections(&[("db.other", &plain), ("db.shown", &view)], GO_ON).unwrap_err();
    assert_eq!(error.code(), Code::NAMESPACE_EXISTS);
    let names = |engine: &Engine| -> Vec<String> {
        engine.catalog().collections("db").map(|one| one.namespace.clone()).collect()
    };
    assert_eq!(names(&engine), [C, "db.made", "db.shown"]);
    let copy = crash_copy(dir.path());
    assert_eq!(names(&open(copy.path())), [C, "db.made", "db.shown"]);
}

#[test]
fn who_drops_a_database_is_told_of_collections_that_come_meanwhile() {
    let (_dir, engine) = fresh();
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 1 }.as_raw()).unwrap();
    // Asked for while the drop waits for the writer.
    let waits = AtomicBool::new(false);
    let meanwhile = || {
        waits.store(true, Ordering::Release);
        Ok(())
    };
    let told = Mutex::new(Vec::new());
    let check = |collections: &[&crate::Collection]| {
        told.lock().unwrap().extend(collections.iter().map(|collection| collection.namespace.clone()));
        Ok(())
    };
    std::thread::scope(|scope| {
        let drop = scope.spawn(|| engine.drop_database("db", &check, crate::Told::Here, &meanwhile));
        while !waits.load(Ordering::Acquire) && !drop.is_finished() {
            std::thread::yield_now();
        }
        create(&engine, "db.late", doc! {});
        unit.commit().unwrap();
        drop.join().unwrap().unwrap();
    });
    let mut told = told.into_inner().unwrap();
    told.sort();
    assert_eq!(told, [C, "db.late"]);
    assert_eq!(engine.catalog().all().count(), 0);
    // Who refuses keeps it.
    create(&engine, C, doc! {});
    let refuse = |_: &[&crate::Collection]| Err(sheaf_errors::Error::new(Code::OUT_OF_DISK_SPACE, "no room"));
    engine.drop_database("db", &refuse, crate::Told::Here, GO_ON).unwrap_err();
    assert!(engine.catalog().collection(C).is_some());
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
}

#[test]
fn an_old_view_still_sees_a_dropped_collection() {
    let (_dir, engine) = fresh();
    for n in 0..100 {
        insert(&engine, C, &doc! { "_id": n }).unwrap();
    }
    engine.checkpoint().unwrap();
    let view = engine.view().unwrap();
    engine.drop_collection(C, GO_ON).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    let collection = view.collection(C).unwrap();
    let mut cursor = view.records(collection, crate::Range::ALL, crate::Direction::Forward).unwrap();
    let mut count = 0;
    while cursor.next().unwrap() {
        count += 1;
    }
    assert_eq!(count, 100);
    assert!(engine.catalog().collection(C).is_none());
}

#[test]
fn an_index_is_built_while_others_write() {
    let (dir, engine) = fresh();
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for n in 0..20_000 {
        unit.insert(&collection, doc! { "_id": n, "a": [n % 100, n % 7] }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for start in [0, 10_000] {
            let (engine, done) = (&engine, &done);
            scope.spawn(move || {
                let mut n = start;
                while !done.load(Ordering::Acquire) {
                    let mut unit = engine.write(GO_ON);
                    change(&mut unit, C, n, Some(&doc! { "_id": n, "a": -n })).unwrap();
                    change(&mut unit, C, n + 1, None).unwrap();
                    let collection = unit.collection(C).unwrap().unwrap();
                    let _ = unit.insert(&collection, doc! { "_id": 100_000 + n, "a": n }.as_raw());
                    unit.commit().unwrap();
                    n += 2;
                }
            });
        }
        build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
        done.store(true, Ordering::Release);
    });
    let catalog = engine.catalog();
    let index = catalog.collection(C).unwrap().index("a_1").unwrap().clone();
    assert!(index.ready && index.multikey());
    assert_eq!(index.multikey_paths(), Some(vec![vec![0]]));
    assert_valid(&engine, C);
    // Recovery fills the index again.
    let again = open(crash_copy(dir.path()).path());
    assert_valid(&again, C);
    assert_eq!(
        again.catalog().collection(C).unwrap().index("a_1").unwrap().multikey_paths(),
        Some(vec![vec![0]])
    );
    drop_indexes(&engine, C, &["a_1"]).unwrap();
    assert!(engine.catalog().collection(C).unwrap().index("a_1").is_none());
    assert_valid(&engine, C);
}

#[test]
fn a_failed_build_leaves_nothing() {
    let (_dir, engine) = fresh();
    for n in 0..10 {
        insert(&engine, C, &doc! { "_id": n, "a": n % 9 }).unwrap();
    }
    let spec = index_spec(doc! { "a": 1 }, "a_1", doc! { "unique": true });
    let error = build(&engine, C, &spec).unwrap_err();
    assert_eq!(error.code(), Code::DUPLICATE_KEY);
    assert!(
        error.message().ends_with("E11000 duplicate key error collection: db.c index: a_1 dup key: { a: 0 }"),
        "{error}"
    );
    assert_eq!(engine.catalog().collection(C).unwrap().indexes.len(), 1);
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, 9, None).unwrap();
    unit.commit().unwrap();
    build(&engine, C, &spec).unwrap();
    assert_valid(&engine, C);
    assert!(insert(&engine, C, &doc! { "_id": 50, "a": 3 }).is_err());
}

#[test]
fn convert_to_capped_keeps_the_newest() {
    let (_dir, engine) = fresh();
    for n in 0..100 {
        insert(&engine, C, &doc! { "_id": n, "text": "0123456789" }).unwrap();
    }
    engine.convert_to_capped(C, 500, &|_| Ok(()), GO_ON).unwrap();
    let documents = all(&engine, C);
    assert!(documents.len() > 5 && documents.len() < 20, "{}", documents.len());
    assert!(documents.last().unwrap().contains("Int32(99)"));
    assert!(engine.catalog().collection(C).unwrap().capped.is_some());
    assert_eq!(engine.catalog().all().count(), 1);
    assert_valid(&engine, C);
}

#[test]
fn a_writer_that_waits_for_ddl_gets_the_new_definition() {
    let (_dir, engine) = fresh();
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 1, "a": 1 }.as_raw()).unwrap();
    std::thread::scope(|scope| {
        let ddl = scope.spawn(|| build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!ddl.is_finished());
        let late = scope.spawn(|| insert(&engine, C, &doc! { "_id": 2, "a": 2 }).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        unit.commit().unwrap();
        late.join().unwrap();
        ddl.join().unwrap();
    });
    assert_eq!(index_order(&engine, C, "a_1", crate::Direction::Forward).len(), 2);
    assert_valid(&engine, C);
}

#[test]
fn fsync_lock_holds_writes_back() {
    let (_dir, engine) = fresh();
    assert_eq!(engine.lock_writes(GO_ON).unwrap(), 1);
    assert_eq!(engine.lock_writes(GO_ON).unwrap(), 2);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| insert(&engine, C, &doc! { "_id": 1 }).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!writer.is_finished());
        assert_eq!(engine.unlock_writes().unwrap(), 1);
        assert_eq!(engine.unlock_writes().unwrap(), 0);
        writer.join().unwrap();
    });
    assert!(engine.unlock_writes().is_err());
}

#[test]
fn folders_that_cannot_be_opened() {
    let error = |options: Options| Engine::open(options).err().unwrap().code();
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(error(Options::new(dir.path().join("missing"))), Code::NON_EXISTENT_PATH);
    let engine = open(dir.path());
    assert_eq!(error(Options::new(dir.path())), Code::DB_PATH_IN_USE);
    drop(engine);
    std::fs::write(dir.path().join("sheaf.format"), "99\n").unwrap();
    assert_eq!(error(Options::new(dir.path())), Code::MUST_UPGRADE);
}

#[test]
fn specs_that_nobody_can_keep() {
    let (_dir, engine) = fresh();
    let text = index_spec(doc! { "a": "text" }, "a_text", doc! {});
    assert_eq!(build(&engine, C, &text).unwrap_err().code(), Code::CANNOT_CREATE_INDEX);
    assert_eq!(build(&engine, "db.none", &text).unwrap_err().code(), Code::NAMESPACE_NOT_FOUND);
    let mut txn = engine.begin(None).unwrap();
    create(&engine, "db.capped", doc! { "capped": true, "size": 100 });
    drop(txn);
    txn = engine.begin(None).unwrap();
    let error = txn.collection("db.capped").map(|_| ()).unwrap_err();
    assert_eq!(error.code(), Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION);
}

#[test]
fn databases_differ_by_more_than_case() {
    let (_dir, engine) = fresh();
    let spec = crate::CreateCollection::default();
    let differs = |error: sheaf_errors::Error| error.code() == Code::DATABASE_DIFFER_CASE;
    assert!(differs(engine.create_collection("DB.x", &spec, GO_ON).unwrap_err()));
    assert!(differs(rename(&engine, C, "Db.x", false).unwrap_err()));
    assert!(differs(
        engine
            .begin(None)
            .unwrap()
            .create_collection("dB.x", crate::CreateCollection::default())
            .unwrap_err()
    ));
    // Neither knows of the other before one is committed.
    let [mut first, mut second] = [engine.begin(None).unwrap(), engine.begin(None).unwrap()];
    first.create_collection("new.x", crate::CreateCollection::default()).unwrap();
    second.create_collection("NEW.x", crate::CreateCollection::default()).unwrap();
    first.commit(GO_ON).unwrap();
    assert!(differs(second.commit(GO_ON).unwrap_err()));
    engine.create_collection("new.y", &spec, GO_ON).unwrap();
}
