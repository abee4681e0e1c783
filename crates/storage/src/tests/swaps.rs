//! Commands that copy and swap, or depend on what they have read, beside writers: what was acknowledged is there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::doc;
use sheaf_errors::{Code, Error, Result};

use super::member::Member;
use super::support::*;
use crate::definitions::command::drop_command;
use crate::definitions::ddl::Check;
use crate::{CollectionChange, CreateCollection, Engine, HookPoint, Told, Write};

const SIZE: i64 = 1 << 24;
/// Long enough for a write to be acknowledged if nothing holds it back.
const MOMENT: Duration = Duration::from_millis(30);

/// A collection of any kind may be converted.
const ANY: Check<'_> = &|_| Ok(());

fn fill(engine: &Engine, namespace: &str, count: i32) {
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(namespace).unwrap().unwrap();
    for n in 0..count {
        unit.insert(&collection, doc! { "_id": n, "text": "some text" }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
}

fn ids(engine: &Engine, namespace: &str) -> BTreeSet<i32> {
    let view = engine.view().unwrap();
    let Some(collection) = view.collection(namespace) else { return BTreeSet::new() };
    let mut cursor = view.records(collection, crate::Range::ALL, crate::Direction::Forward).unwrap();
    let mut ids = BTreeSet::new();
    while cursor.next().unwrap() {
        let id = cursor.doc().get("_id").and_then(|id| id.as_exact_i64()).unwrap();
        assert!(ids.insert(id as i32), "{id} is there twice");
    }
    ids
}

/// Inserts into the collection, which is made if it is not there, as a `w: 1` client does.
fn insert_or_create(engine: &Engine, namespace: &str, id: i32) -> Result<()> {
    let mut unit = engine.write(GO_ON);
    loop {
        if let Some(collection) = unit.collection(namespace)? {
            unit.insert(&collection, doc! { "_id": id }.as_raw())?;
            return unit.commit().map(|_| ());
        }
        match unit.create_collection(namespace, CreateCollection::default()) {
            Err(error) if error.code() != Code::NAMESPACE_EXISTS => return Err(error),
            _ => {}
        }
    }
}

/// Runs `work` beside writers that insert into these collections; gives the acknowledged ids of each, and which of them
/// were begun when the work had ended.
fn beside_writers(engine: &Engine, namespaces: &[&str], work: impl FnOnce()) -> Vec<Acknowledged> {
    let (over, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let next = AtomicI32::new(1_000_000);
    let acknowledged: Vec<Mutex<Acknowledged>> = namespaces.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for (namespace, acknowledged) in namespaces.iter().zip(&acknowledged) {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Acquire) {
                        let after = ended.load(Ordering::Acquire);
                        let id = next.fetch_add(1, Ordering::AcqRel);
                        insert_or_create(engine, namespace, id).unwrap();
                        let mut acknowledged = acknowledged.lock();
                        acknowledged.all.push(id);
                        if after {
                            acknowledged.after.push(id);
                        }
                    }
                });
            }
        }
        let reached = |of: fn(&Acknowledged) -> usize| acknowledged.iter().all(|one| of(&one.lock()) >= 20);
        while !reached(|one| one.all.len()) {
            std::thread::yield_now();
        }
        work();
        ended.store(true, Ordering::Release);
        while !reached(|one| one.after.len()) {
            std::thread::yield_now();
        }
        over.store(true, Ordering::Release);
    });
    acknowledged.into_iter().map(Mutex::into_inner).collect()
}

#[derive(Default)]
struct Acknowledged {
    all: Vec<i32>,
    after: Vec<i32>,
}

fn assert_there(engine: &Engine, namespace: &str, acknowledged: &[i32]) {
    let there = ids(engine, namespace);
    let lost: Vec<_> = acknowledged.iter().filter(|id| !there.contains(id)).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), acknowledged.len());
    assert_valid(engine, namespace);
}

#[test]
fn a_conversion_loses_nothing_that_is_acknowledged() {
    let (dir, engine) = fresh();
    fill(&engine, C, 3000);
    create(&engine, "db.other", doc! {});
    // A write that comes between the copy and the swap waits, in this collection and no other.
    let (go, goes) = channel();
    let goes = Mutex::new(goes);
    let (done, dones) = channel();
    let dones = Mutex::new(dones);
    let go = Mutex::new(go);
    let hook = move || {
        go.lock().send(()).unwrap();
        assert!(dones.lock().recv_timeout(MOMENT).is_err(), "it was acknowledged in the middle");
        Ok(())
    };
    engine.set_hook(HookPoint::Swap, Some(Arc::new(hook)));
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            goes.lock().recv().unwrap();
            insert(&engine, "db.other", &doc! { "_id": 1 }).unwrap();
            insert(&engine, C, &doc! { "_id": 77 + 3000 }).unwrap();
            let _ = done.send(());
        });
        beside_writers(&engine, &[C], || _ = engine.convert_to_capped(C, SIZE, ANY, GO_ON).unwrap())
    });
    engine.set_hook(HookPoint::Swap, None);
    assert!(engine.catalog().collection(C).unwrap().capped.is_some());
    assert_there(&engine, C, &found[0].all);
    assert_there(&engine, C, &(0..3000).chain([3077]).collect::<Vec<_>>());
    assert_eq!(ids(&engine, "db.other").len(), 1);
    let again = open(crash_copy(dir.path()).path());
    assert_there(&again, C, &found[0].all);
}

#[test]
fn a_copy_has_no_other_writer_before_it_is_whole() {
    let (_dir, engine) = fresh();
    fill(&engine, C, 100);
    let writer = Mutex::new(None);
    let interrupt = || {
        let target = engine.catalog().collection("db.copy").cloned();
        let mut writer = writer.lock();
        if writer.is_none() && target.is_some_and(|target| target.capped.is_some()) {
            let engine = engine.clone();
            let (done, dones) = channel();
            *writer = Some(std::thread::spawn(move || {
                insert(&engine, "db.copy", &doc! { "_id": -1 }).unwrap();
                let _ = done.send(());
            }));
            assert!(dones.recv_timeout(MOMENT).is_err(), "it is in before the copy is whole");
        }
        Ok(())
    };
    engine.clone_as_capped(C, "db.copy", SIZE, &interrupt).unwrap();
    writer.into_inner().unwrap().join().unwrap();
    let documents = all(&engine, "db.copy");
    assert_eq!((documents.len(), documents[100].as_str()), (101, "{\"_id\": Int32(-1)}"));
    // What has the name already is left alone.
    let error = engine.clone_as_capped(C, "db.copy", SIZE, GO_ON).unwrap_err();
    assert_eq!(error.code(), Code::NAMESPACE_EXISTS);
    assert_eq!(all(&engine, "db.copy").len(), 101);
}

/// Ends the operation when it has asked so often.
fn killed_after(count: i32) -> impl Fn() -> Result<()> + Sync {
    let left = AtomicI32::new(count);
    move || match left.fetch_sub(1, Ordering::AcqRel) {
        0 => Err(Error::new(Code::INTERRUPTED, "operation was interrupted")),
        _ => Ok(()),
    }
}

#[test]
fn what_is_ended_in_the_middle_leaves_nothing() {
    let (_dir, engine) = fresh();
    fill(&engine, C, 500);
    for count in [0, 1, 3, 5, 10, 100, 400] {
        let error = engine.convert_to_capped(C, SIZE, ANY, &killed_after(count)).unwrap_err();
        assert_eq!(error.code(), Code::INTERRUPTED);
        let error = engine.clone_as_capped(C, "db.copy", SIZE, &killed_after(count)).unwrap_err();
        assert_eq!(error.code(), Code::INTERRUPTED);
        assert_eq!(engine.catalog().all().count(), 1, "{count}");
        // Nothing is closed any more.
        insert(&engine, C, &doc! { "_id": 1000 + count }).unwrap();
    }
    assert!(engine.catalog().collection(C).unwrap().capped.is_none());
    assert_eq!(ids(&engine, C).len(), 507);
    let full = || Err(Error::new(Code::OUT_OF_DISK_SPACE, "no room"));
    engine.set_hook(HookPoint::Swap, Some(Arc::new(full)));
    assert!(engine.convert_to_capped(C, SIZE, ANY, GO_ON).is_err());
    engine.set_hook(HookPoint::Swap, None);
    assert_eq!(engine.catalog().all().count(), 1);
    engine.convert_to_capped(C, SIZE, ANY, GO_ON).unwrap();
    assert_eq!(ids(&engine, C).len(), 507);
}

#[test]
fn after_a_crash_in_the_middle_the_copy_is_dropped() {
    let (dir, engine) = fresh();
    fill(&engine, C, 500);
    let copy = Arc::new(Mutex::new(None));
    let (path, kept) = (dir.path().to_owned(), copy.clone());
    let hook = move || {
        *kept.lock() = Some(crash_copy(&path));
        Ok(())
    };
    engine.set_hook(HookPoint::Swap, Some(Arc::new(hook)));
    engine.convert_to_capped(C, SIZE, ANY, GO_ON).unwrap();
    engine.set_hook(HookPoint::Swap, None);
    let catalog = engine.catalog();
    assert!(catalog.collection(C).unwrap().options.as_raw().get("temp").is_none());
    engine.drop_temporary_collections(GO_ON).unwrap();
    assert_eq!(ids(&engine, C).len(), 500);
    let copy = copy.lock().take().unwrap();
    let again = open(copy.path());
    assert_eq!(again.catalog().all().count(), 2);
    assert!(again.catalog().collection(C).unwrap().capped.is_none());
    assert_eq!(ids(&again, C).len(), 500);
    again.drop_temporary_collections(GO_ON).unwrap();
    assert_eq!(again.catalog().all().count(), 1);
    again.convert_to_capped(C, SIZE, ANY, GO_ON).unwrap();
    assert_eq!(ids(&again, C).len(), 500);
}

#[test]
fn a_conversion_keeps_the_options() {
    let (_dir, engine) = fresh();
    let collation = doc! { "locale": "simple" };
    let spec = CreateCollection {
        options: doc! { "validator": { "a": 1 }, "collation": &collation },
        id_index: Some(doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_", "collation": &collation }),
        ..CreateCollection::default()
    };
    engine.create_collection("db.x", &spec, GO_ON).unwrap();
    build(&engine, "db.x", &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    engine.convert_to_capped("db.x", 4096, ANY, GO_ON).unwrap();
    let catalog = engine.catalog();
    let collection = catalog.collection("db.x").unwrap();
    let expected = doc! { "capped": true, "size": 4096i64, "validator": { "a": 1 }, "collation": &collation };
    assert_eq!(collection.options, expected);
    assert_eq!(collection.indexes.len(), 1);
    assert!(collection.indexes[0].spec.as_raw().get("collation").is_some());
}

#[test]
fn what_others_have_ordered_meanwhile_ends_a_conversion() {
    let (_dir, other) = fresh();
    fill(&other, C, 50);
    let dir = tempfile::tempdir().unwrap();
    let member = Arc::new(Member::open(dir.path()));
    member.follow(&other, u64::MAX - 1);
    member.lead();
    let (hooked, source) = (member.clone(), other.clone());
    let others_copy = Mutex::new(None);
    let hook = move || {
        // Another member has led meanwhile, whose entries come past the gate.
        let dir = tempfile::tempdir().unwrap();
        let next = Member::open(dir.path());
        next.follow(&source, u64::MAX - 1);
        next.follow(&hooked.engine, u64::MAX - 1);
        next.lead();
        insert(&next.engine, C, &doc! { "_id": 5000 }).unwrap();
        hooked.step_down();
        std::thread::scope(|scope| {
            scope.spawn(|| hooked.follow(&next.engine, u64::MAX - 1));
        });
        hooked.lead();
        *others_copy.lock() = Some(dir);
        Ok(())
    };
    member.engine.set_hook(HookPoint::Swap, Some(Arc::new(hook)));
    let error = member.engine.convert_to_capped(C, SIZE, ANY, GO_ON).unwrap_err();
    assert_eq!(error.code(), Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE, "{error}");
    member.engine.set_hook(HookPoint::Swap, None);
    assert_eq!(ids(&member.engine, C).len(), 51);
    member.engine.drop_temporary_collections(GO_ON).unwrap();
    assert_eq!(member.engine.catalog().all().count(), 1);
    member.engine.convert_to_capped(C, SIZE, ANY, GO_ON).unwrap();
    assert_eq!(ids(&member.engine, C).len(), 51);
}

#[test]
fn a_renaming_loses_nothing_that_is_acknowledged() {
    let (_dir, engine) = fresh();
    fill(&engine, C, 100);
    let found = beside_writers(&engine, &[C], || {
        rename(&engine, C, "db.next", false).unwrap();
        rename(&engine, "db.next", "elsewhere.last", true).unwrap();
    });
    // Some went with the collection, some into a new one of the old name.
    let mut there = ids(&engine, C);
    there.append(&mut ids(&engine, "elsewhere.last"));
    assert!(found[0].all.iter().all(|id| there.contains(id)), "{} of {}", there.len(), found[0].all.len());
    assert_valid(&engine, C);
    assert_valid(&engine, "elsewhere.last");
}

#[test]
fn what_is_written_after_a_replacement_is_there() {
    let (_dir, engine) = fresh();
    create(&engine, "db.new", doc! {});
    fill(&engine, "db.new", 100);
    let found = beside_writers(&engine, &[C], || _ = rename(&engine, "db.new", C, true).unwrap());
    assert_there(&engine, C, &found[0].after);
    assert_there(&engine, C, &(0..100).collect::<Vec<_>>());
}

#[test]
fn a_renaming_asks_when_nothing_can_change_any_more() {
    let (_dir, engine) = fresh();
    create(&engine, "db.new", doc! {});
    let refuse = |_: &crate::Collection, _: Option<&crate::Collection>| -> Result<()> {
        Err(Error::new(Code::COMMAND_FAILED, "indexes changed"))
    };
    let error = engine.rename_collection("db.new", C, true, &refuse, crate::Told::Here, GO_ON).unwrap_err();
    assert_eq!(error.code(), Code::COMMAND_FAILED);
    create(&engine, "db.view", doc! { "viewOn": "c", "pipeline": [{ "$match": { "a": 1 } }] });
    assert_eq!(rename(&engine, "db.new", "db.view", true).unwrap_err().code(), Code::NAMESPACE_EXISTS);
    assert_eq!(engine.catalog().all().count(), 3);
    // A target that comes while the source is being closed is dropped, too.
    let mut txn = engine.begin(None).unwrap();
    let collection = txn.collection("db.new").unwrap().unwrap();
    txn.insert(&collection, doc! { "_id": 1 }.as_raw()).unwrap();
    let (waits, waiting) = channel();
    let waits = Mutex::new(waits);
    let interrupt = || {
        let _ = waits.lock().send(());
        Ok(())
    };
    std::thread::scope(|scope| {
        let engine = &engine;
        scope.spawn(move || {
            waiting.recv().unwrap();
            create(engine, "db.target", doc! {});
            fill(engine, "db.target", 3);
            txn.commit(GO_ON).unwrap();
        });
        engine
            .rename_collection("db.new", "db.target", true, &|_, _| Ok(()), crate::Told::Here, &interrupt)
            .unwrap();
    });
    assert_eq!(ids(&engine, "db.target"), BTreeSet::from([1]));
}

#[test]
fn drops_beside_writers() {
    let (_dir, engine) = fresh();
    let found = beside_writers(&engine, &[C, "db.d", "db.e"], || {
        for _ in 0..5 {
            engine.drop_collection(C, GO_ON).unwrap();
            while engine.catalog().collection(C).is_none() {
                std::thread::yield_now();
            }
            engine.drop_database("db", &|_| Ok(()), crate::Told::Here, GO_ON).unwrap();
            while engine.catalog().collections("db").count() < 3 {
                std::thread::yield_now();
            }
        }
    });
    for (namespace, acknowledged) in [C, "db.d", "db.e"].iter().zip(&found) {
        assert_there(&engine, namespace, &acknowledged.after);
    }
}

/// Each holds one gate and might wait for the other's.
#[test]
fn drops_of_databases_and_conversions_end() {
    let (_dir, engine) = fresh();
    for round in 0..15 {
        for name in ["db.a", "db.tmp", "db.z"] {
            insert_or_create(&engine, name, round).unwrap();
            fill(&engine, name, round);
        }
        std::thread::scope(|scope| {
            for name in ["db.a", "db.z"] {
                let engine = &engine;
                scope.spawn(move || drop(engine.convert_to_capped(name, SIZE, ANY, GO_ON)));
            }
            scope.spawn(|| drop(rename(&engine, "db.z", "db.a", true)));
            scope.spawn(|| drop(rename(&engine, "db.a", "db.z", true)));
            scope.spawn(|| engine.drop_database("db", &|_| Ok(()), crate::Told::Here, GO_ON).unwrap());
        });
        engine.drop_database("db", &|_| Ok(()), crate::Told::Here, GO_ON).unwrap();
        assert_eq!(engine.catalog().all().count(), 0);
    }
}

#[test]
fn changes_of_options_are_made_to_what_is_there() {
    let (_dir, engine) = fresh();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let engine = &engine;
            scope.spawn(move || {
                for n in 0..20 {
                    let change = |now: &crate::Collection| {
                        let mut options = now.options.clone();
                        options.append(&format!("option{thread}x{n}"), true);
                        Ok(CollectionChange { options: Some(options), ..CollectionChange::default() })
                    };
                    engine.coll_mod(C, &change, GO_ON).unwrap();
                }
            });
        }
    });
    assert_eq!(engine.catalog().collection(C).unwrap().options.as_raw().iter().count(), 60);
}

#[test]
fn an_index_that_is_built_anew_is_not_changed_meanwhile() {
    let (_dir, engine) = fresh();
    fill(&engine, C, 3000);
    let spec = index_spec(doc! { "_id": 1, "text": 1 }, "i", doc! {});
    build(&engine, C, &spec).unwrap();
    let hidden = index_spec(doc! { "_id": 1, "text": 1 }, "i", doc! { "hidden": true });
    let hide = |_: &crate::Collection| {
        Ok(CollectionChange {
            index_specs: vec![("i".to_owned(), hidden.clone())],
            ..CollectionChange::default()
        })
    };
    let tried = AtomicBool::new(false);
    let interrupt = || {
        let building = !engine.catalog().collection(C).unwrap().replacements.is_empty();
        if building && !tried.swap(true, Ordering::AcqRel) {
            let error = engine.coll_mod(C, &hide, GO_ON).unwrap_err();
            assert_eq!(error.code(), Code::BACKGROUND_OPERATION_IN_PROGRESS_FOR_NAMESPACE);
        }
        Ok(())
    };
    // As the index is when the build begins.
    let same = |now: &crate::Collection| {
        Ok(now.indexes.iter().map(|index| (index.name.clone(), index.spec.clone())).collect())
    };
    engine.rebuild_indexes(C, &same, &interrupt).unwrap();
    assert!(tried.load(Ordering::Acquire));
    engine.coll_mod(C, &hide, GO_ON).unwrap();
    engine.rebuild_indexes(C, &same, GO_ON).unwrap();
    assert!(engine.catalog().collection(C).unwrap().index("i").unwrap().hidden);
}

#[test]
fn changes_of_indexes_and_validators_beside_writers() {
    let (_dir, engine) = fresh();
    fill(&engine, C, 2000);
    let found = beside_writers(&engine, &[C], || {
        let spec = index_spec(doc! { "text": 1 }, "text_1", doc! {});
        for n in 0..3 {
            build(&engine, C, &spec).unwrap();
            set_options(&engine, C, doc! { "validator": { "a": n } }).unwrap();
            let same = |_: &crate::Collection| Ok(vec![("text_1".to_owned(), spec.clone())]);
            engine.rebuild_indexes(C, &same, GO_ON).unwrap();
            drop_indexes(&engine, C, &["text_1"]).unwrap();
        }
    });
    assert_there(&engine, C, &found[0].all);
}

#[test]
fn local_and_replicated_names_are_not_exchanged() {
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    member.lead();
    create(&member.engine, C, doc! {});
    create(&member.engine, "local.c", doc! {});
    for (from, to) in [(C, "local.d"), ("local.c", "db.d"), (C, "db.system.profile")] {
        assert_eq!(rename(&member.engine, from, to, true).unwrap_err().code(), Code::ILLEGAL_OPERATION);
    }
}

#[test]
#[should_panic(expected = "is changed while its gate is open")]
fn a_swap_needs_the_proof_of_a_closed_gate() {
    let (_dir, engine) = fresh();
    let catalog = engine.catalog();
    let command = drop_command(catalog.collection(C).unwrap());
    let _ = engine.core().run_commands(&[command], &[]);
}

#[test]
#[should_panic(expected = "without a pass through its gate")]
fn a_write_needs_a_pass() {
    let (_dir, engine) = fresh();
    let collection = engine.catalog().collection(C).unwrap().clone();
    let _ = engine.write(GO_ON).insert(&collection, doc! { "_id": 1 }.as_raw());
}

#[test]
fn renames_do_not_wait_for_each_other() {
    let (_dir, engine) = fresh();
    let until = Instant::now() + Duration::from_secs(60);
    let go_on = || match Instant::now() < until {
        true => Ok(()),
        false => Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "nobody goes on")),
    };
    let names = ["db.a", "db.b", "db.c"];
    std::thread::scope(|scope| {
        for me in 0..6 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..400 {
                    // Names change while it is waited for the first of two collections.
                    let (from, to) = (names[(me + round) % 3], names[(me + round + 1 + round % 2) % 3]);
                    match engine.rename_collection(from, to, true, &|_, _| Ok(()), Told::Here, &go_on) {
                        Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => {
                            insert_or_create(engine, from, (me * 1000 + round) as i32).unwrap();
                        }
                        done => _ = done.unwrap(),
                    }
                }
            });
        }
    });
}
