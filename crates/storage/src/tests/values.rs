//! Large documents in the log's files, through crashes, collection and time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use sheaf_bson::{Binary, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::{Meter, Process};

use super::support::*;
use crate::db::Cf;
use crate::db::values::{Part, Reference};
use crate::keys::full_key;
use crate::{Direction, Engine, Hook, HookPoint, Options, Range, View, Write};

/// A document that compression does not make smaller.
fn large(id: i32, bytes: usize, random: &mut StdRng) -> DocBuf {
    let mut noise = vec![0; bytes];
    random.fill_bytes(&mut noise);
    doc! { "_id": id, "a": id % 7, "noise": Value::Binary(Binary { subtype: 0, bytes: &noise }) }
}

/// With segments of a megabyte, of which few are kept.
fn small_log(path: &Path) -> Options {
    Options { oplog_bytes: 2 << 20, ..options(path) }
}

/// So many segments such a log has at most.
const IN_THE_LOG: usize = 5;

fn files(path: &Path) -> usize {
    let items = std::fs::read_dir(path.join("data")).unwrap();
    items
        .filter(|item| item.as_ref().unwrap().path().extension().is_some_and(|kind| kind == "values"))
        .count()
}

fn insert_all(engine: &Engine, documents: &[DocBuf]) {
    for some in documents.chunks(8) {
        let mut unit = engine.write(GO_ON);
        let collection = unit.collection(C).unwrap().unwrap();
        some.iter().for_each(|document| unit.insert(&collection, document.as_raw()).unwrap());
        unit.commit().unwrap();
    }
}

/// How many records refer to a file.
fn referring(engine: &Engine, ids: impl IntoIterator<Item = i32>) -> usize {
    let view = engine.view().unwrap();
    let collection = view.collection(C).unwrap();
    let refers = |id: &i32| {
        let full = full_key(collection.ident, &collection.record_key((*id).into()).unwrap());
        let found = engine.core().base.db.get_unresolved(Cf::Records, &full).unwrap();
        found.as_deref().and_then(Reference::read).is_some()
    };
    ids.into_iter().filter(refers).count()
}

fn contents(view: &View) -> BTreeMap<i32, Vec<u8>> {
    let collection = view.collection(C).unwrap();
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward).unwrap();
    let mut found = BTreeMap::new();
    while cursor.next().unwrap() {
        let id = cursor.doc().get("_id").and_then(|id| id.as_exact_i64()).unwrap() as i32;
        let by_key = view.get(collection, cursor.key()).unwrap().unwrap();
        assert_eq!(&*by_key, cursor.bytes());
        found.insert(id, cursor.bytes().to_vec());
    }
    found
}

#[test]
fn a_large_document_stays_in_the_log_and_outlives_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! {});
    build(&engine, C, &index_spec(doc! { "a": 1 }, "a_1", doc! {})).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let mut documents: Vec<DocBuf> = (0..300).map(|id| large(id, 16 << 10, &mut random)).collect();
    // Small ones, and those that can be compressed, are RocksDB's.
    documents.push(large(300, 1000, &mut random));
    documents.push(doc! { "_id": 301, "text": &"of words ".repeat(2000) });
    insert_all(&engine, &documents);
    assert_eq!(referring(&engine, 0..302), 300);
    let expected: BTreeMap<i32, Vec<u8>> =
        documents.iter().enumerate().map(|(id, doc)| (id as i32, doc.as_bytes().to_vec())).collect();
    assert_eq!(contents(&engine.view().unwrap()), expected);
    engine.checkpoint().unwrap();
    let [left, copied, ..] = engine.core().base.db.values().figures();
    assert!(left > 300 * (16 << 10) && copied == 0);
    // The log has let go of most.
    assert!(engine.stats().log_bytes < 4 << 20);
    assert!(engine.storage_bytes(engine.catalog().collection(C).unwrap()) > 300 * (16 << 10));
    let copy = crash_copy(dir.path());
    drop(engine);
    for crashed in [copy, dir] {
        let engine = Engine::open(small_log(crashed.path())).unwrap();
        assert_eq!(contents(&engine.view().unwrap()), expected);
        assert_eq!(referring(&engine, 0..302), 300);
        assert_valid(&engine, C);
        // What goes on in the same segment of the log.
        insert_all(&engine, &[large(400, 16 << 10, &mut random)]);
        assert_eq!(contents(&engine.view().unwrap()).len(), 303);
    }
}

#[test]
fn what_a_crash_takes_from_memory_is_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let mut random = StdRng::seed_from_u64(2);
    let mut model = BTreeMap::new();
    let mut old: Vec<(View, BTreeMap<i32, Vec<u8>>)> = Vec::new();
    let mut collected = 0;
    for round in 0..60 {
        for _ in 0..60 {
            let id = random.random_range(0..120);
            let bytes = if random.random_bool(0.8) { 9 << 10 } else { 900 };
            let new = large(id, bytes, &mut random);
            let mut unit = engine.write(GO_ON);
            let there = model.contains_key(&id);
            match random.random_range(0..10) {
                0..3 if there => {
                    change(&mut unit, C, id, None).unwrap();
                    model.remove(&id);
                }
                _ if there => {
                    change(&mut unit, C, id, Some(&new)).unwrap();
                    model.insert(id, new.as_bytes().to_vec());
                }
                _ => {
                    let collection = unit.collection(C).unwrap().unwrap();
                    unit.insert(&collection, new.as_raw()).unwrap();
                    model.insert(id, new.as_bytes().to_vec());
                }
            }
            unit.commit().unwrap();
        }
        if round % 4 == 0 {
            old.push((engine.view().unwrap(), model.clone()));
        }
        match round % 9 {
            1 | 4 => engine.checkpoint().unwrap(),
            2 | 6 => {
                engine.core().collect_values().unwrap();
            }
            8 => {
                for (view, expected) in old.drain(..) {
                    assert_eq!(contents(&view), expected, "an older state of round {round}");
                }
                let copy = crash_copy(dir.path());
                let crashed = Engine::open(small_log(copy.path())).unwrap();
                assert_eq!(contents(&crashed.view().unwrap()), model);
                assert_valid(&crashed, C);
                let [_, copied, ..] = engine.core().base.db.values().figures();
                collected += copied;
                drop((engine, crashed));
                engine = Engine::open(small_log(dir.path())).unwrap();
            }
            _ => {}
        }
        assert_eq!(contents(&engine.view().unwrap()), model, "round {round}");
    }
    assert!(collected > 0, "nothing was copied out of a file");
}

#[test]
fn files_go_when_nothing_in_them_is_wanted_and_nobody_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! {});
    create(&engine, "db.other", doc! {});
    let mut random = StdRng::seed_from_u64(3);
    let documents: Vec<DocBuf> = (0..600).map(|id| large(id, 16 << 10, &mut random)).collect();
    insert_all(&engine, &documents);
    engine.checkpoint().unwrap();
    let before = files(dir.path());
    assert!(before > IN_THE_LOG, "{before} files");
    let reader = engine.view().unwrap();
    let mut cursor = reader.records(reader.collection(C).unwrap(), Range::ALL, Direction::Forward).unwrap();
    assert!(cursor.next().unwrap());
    let expected = contents(&reader);
    drop(reader);
    // Four of five go, the rest is copied.
    let mut unit = engine.write(GO_ON);
    (0..600).filter(|id| id % 5 > 0).for_each(|id| assert!(change(&mut unit, C, id, None).unwrap()));
    unit.commit().unwrap();
    engine.checkpoint().unwrap();
    while engine.core().base.db.values().figures()[2] > IN_THE_LOG as u64 {
        engine.core().collect_values().unwrap();
    }
    // A cursor reads on where the view that it came from has gone.
    assert_eq!(files(dir.path()), before);
    let mut count = 1;
    while cursor.next().unwrap() {
        assert_eq!(cursor.bytes(), &expected[&count][..]);
        count += 1;
    }
    assert_eq!(count, 600);
    drop(cursor);
    // The thread that does this beside may be in the middle of it.
    let began = std::time::Instant::now();
    while files(dir.path()) > IN_THE_LOG && began.elapsed() < std::time::Duration::from_secs(20) {
        engine.core().collect_values().unwrap();
    }
    let after = files(dir.path());
    assert!(after <= IN_THE_LOG, "{after} of {before} files are left");
    let kept: BTreeMap<_, _> = expected.into_iter().filter(|(id, _)| id % 5 == 0).collect();
    assert_eq!(contents(&engine.view().unwrap()), kept);
    let copy = crash_copy(dir.path());
    let crashed = Engine::open(small_log(copy.path())).unwrap();
    assert_eq!(contents(&crashed.view().unwrap()), kept);
    assert_valid(&crashed, C);
}

#[test]
fn the_files_of_a_dropped_collection_go() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let mut random = StdRng::seed_from_u64(4);
    insert_all(&engine, &(0..400).map(|id| large(id, 16 << 10, &mut random)).collect::<Vec<_>>());
    engine.checkpoint().unwrap();
    engine.drop_collection(C, GO_ON).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    // The keeper and the thread of values do it.
    while files(dir.path()) > IN_THE_LOG {
        assert!(std::time::Instant::now() < deadline, "{} files are left", files(dir.path()));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_damaged_document_is_told_and_its_file_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let mut random = StdRng::seed_from_u64(5);
    let documents: Vec<DocBuf> = (0..600).map(|id| large(id, 16 << 10, &mut random)).collect();
    insert_all(&engine, &documents);
    engine.checkpoint().unwrap();
    let before = files(dir.path());
    drop(engine);
    let path = dir.path().join("data/0000000001.values");
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.windows(64).position(|at| at == &documents[3].as_bytes()[200..264]).unwrap();
    bytes[place] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    let collection = engine.catalog().collection(C).unwrap().clone();
    let key = |id: i32| collection.record_key(id.into()).unwrap();
    let view = engine.view().unwrap();
    let error = view.get(&collection, &key(3)).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), Code::CHECKSUM_MISMATCH);
    assert!(error.message().contains("0000000001.values"), "{error}");
    assert_eq!(&*view.get(&collection, &key(4)).unwrap().unwrap(), documents[4].as_bytes());
    let found = engine.validate(C, true, GO_ON).unwrap();
    assert_eq!((found.records, found.unreadable, &found.corrupt_records), (600, 1, &vec![key(3)]));
    let [text] = &found.errors[..] else { panic!("{found:?}") };
    assert!(
        text.contains("the document of _id 3 cannot be read") && text.contains("0000000001.values"),
        "{text}"
    );
    // Of what follows it in the file nobody can tell what is wanted.
    let mut unit = engine.write(GO_ON);
    (20..600).for_each(|id| assert!(change(&mut unit, C, id, None).unwrap()));
    unit.commit().unwrap();
    engine.checkpoint().unwrap();
    // It is told, by the thread or here, and all others go that the log does not have.
    let values = engine.core().base.db.values();
    let begins = engine.core().durability.log().unwrap().stats().first_index;
    while values.little_wanted(begins, Part(1, 2)).is_some() {
        let _ = engine.core().collect_values();
    }
    assert!(path.is_file());
    drop(view);
    engine.core().collect_values().unwrap();
    let after = files(dir.path());
    assert!(after < before && after <= IN_THE_LOG + 1, "{after} of {before} files are left");
    let view = engine.view().unwrap();
    assert_eq!(&*view.get(&collection, &key(5)).unwrap().unwrap(), documents[5].as_bytes());
}

#[test]
fn a_damaged_document_does_not_keep_counters_from_being_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let mut random = StdRng::seed_from_u64(8);
    let documents: Vec<DocBuf> = (0..4).map(|id| large(id, 16 << 10, &mut random)).collect();
    engine.checkpoint().unwrap();
    insert_all(&engine, &documents);
    super::position::flush_unordered(&engine);
    let counted = |engine: &Engine| {
        let catalog = engine.catalog();
        let collection = catalog.collection(C).unwrap();
        (collection.count(), collection.data_bytes())
    };
    let before = counted(&engine);
    let copy = crash_copy(dir.path());
    let path = copy.path().join("data/0000000001.values");
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.windows(64).position(|at| at == &documents[3].as_bytes()[200..264]).unwrap();
    bytes[place] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let again = Engine::open(small_log(copy.path())).unwrap();
    assert_eq!(counted(&again), before);
    assert_eq!(again.validate(C, true, GO_ON).unwrap().unreadable, 1);
}

#[test]
fn where_files_cannot_have_two_names_documents_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let mut random = StdRng::seed_from_u64(6);
    // In the way of the name that is given next.
    std::fs::create_dir(dir.path().join("data/0000000001.values")).unwrap();
    let documents: Vec<DocBuf> = (0..10).map(|id| large(id, 16 << 10, &mut random)).collect();
    insert_all(&engine, &documents);
    assert_eq!(referring(&engine, 0..10), 0);
    std::fs::remove_dir(dir.path().join("data/0000000001.values")).unwrap();
    insert_all(&engine, &[large(10, 16 << 10, &mut random)]);
    assert_eq!(referring(&engine, 0..11), 1);
    assert_eq!(contents(&engine.view().unwrap()).len(), 11);
}

#[test]
fn a_capped_collection_lets_go_of_whole_files() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    create(&engine, C, doc! { "capped": true, "size": 3 << 20 });
    let mut random = StdRng::seed_from_u64(7);
    let mut last = DocBuf::default();
    for id in 0..1500 {
        last = large(id, 16 << 10, &mut random);
        insert(&engine, C, &last).unwrap();
    }
    engine.checkpoint().unwrap();
    engine.core().collect_values().unwrap();
    engine.core().collect_values().unwrap();
    let [left, copied, ..] = engine.core().base.db.values().figures();
    assert!(left > 1400 * (16 << 10) && copied < left / 10, "{copied} of {left} bytes were copied");
    assert!(files(dir.path()) < 12, "{} files are left", files(dir.path()));
    let view = engine.view().unwrap();
    let mut cursor = view.records(view.collection(C).unwrap(), Range::ALL, Direction::Backward).unwrap();
    assert!(cursor.next().unwrap());
    assert_eq!(cursor.doc(), RawDoc::new(last.as_bytes()));
    drop((cursor, view, engine));
    assert_valid(&Engine::open(small_log(dir.path())).unwrap(), C);
}

/// Inserts large documents until an error comes, which it gives.
fn insert_until_refused(
    engine: &Engine,
    seed: u64,
    source: impl Fn() -> Result<()> + Send + Sync + 'static,
) -> Error {
    let process = Process::new(u64::MAX, u64::MAX);
    let _entered = sheaf_meter::enter(Meter::new(&process, Arc::new(source)));
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        if let Err(error) = insert(engine, C, &large(random.random(), 64 << 10, &mut random)) {
            return error;
        }
    }
}

#[test]
fn who_waits_for_the_disk_can_be_ended_and_goes_when_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(options(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let state = Arc::new(AtomicU8::new(0));
    let hook: Hook = {
        let state = state.clone();
        Arc::new(move || {
            while state.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Error::new(Code::LOG_WRITE_FAILED, "the disk is gone"))
        })
    };
    engine.set_hook(HookPoint::Flush, Some(hook.clone()));
    engine.set_hook(HookPoint::Sync, Some(hook));
    let core = engine.core();
    std::thread::scope(|scope| {
        let killed = Arc::new(AtomicBool::new(false));
        let source = {
            let killed = killed.clone();
            move || match killed.load(Ordering::Acquire) {
                true => Err(Error::new(Code::INTERRUPTED, "operation was interrupted")),
                false => Ok(()),
            }
        };
        let writer = scope.spawn(|| insert_until_refused(&engine, 10, source));
        while !core.durability.is_far_ahead() {
            std::thread::sleep(Duration::from_millis(10));
        }
        killed.store(true, Ordering::Release);
        assert_eq!(writer.join().unwrap().code(), Code::INTERRUPTED);

        let writer = scope.spawn(|| insert_until_refused(&engine, 11, || Ok(())));
        std::thread::sleep(Duration::from_millis(50));
        state.store(1, Ordering::Release);
        assert_eq!(writer.join().unwrap().code(), Code::LOG_WRITE_FAILED);
    });
    // Nobody is asked for what will not come.
    let failed = Instant::now();
    while core.durability.is_wanted() {
        assert!(failed.elapsed() < Duration::from_secs(10), "the sync thread goes round in circles");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn writers_are_not_far_ahead_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(options(dir.path())).unwrap();
    create(&engine, C, doc! {});
    let held = Arc::new(AtomicBool::new(true));
    let hook: Hook = {
        let held = held.clone();
        Arc::new(move || {
            while held.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
    };
    // A flush syncs the log once before it comes to its hook.
    engine.set_hook(HookPoint::Sync, Some(hook.clone()));
    engine.set_hook(HookPoint::Flush, Some(hook));
    // Two generations of memtables.
    let most = engine.core().base.options.log_bytes() * 2;
    assert!(most >= 16 << 20, "{most}");
    let left = || engine.core().base.db.values().figures()[0];
    let ahead = || engine.core().durability.log().unwrap().unsynced_bytes();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut random = StdRng::seed_from_u64(9);
            while left() < 3 * most {
                insert(&engine, C, &large(random.random(), 64 << 10, &mut random)).unwrap();
            }
        });
        // It comes to a stand.
        while ahead() < most {
            assert!(!writer.is_finished(), "a writer was not held");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        let stood = ahead();
        held.store(false, Ordering::Release);
        writer.join().unwrap();
        // With the last that was let.
        assert!(
            (most..most + (66 << 10)).contains(&stood),
            "{stood} bytes were in the log and not on the disk"
        );
    });
}

/// Documents that are read ahead, with others among them: small ones, one that is read alone, ones that were changed or removed.
fn for_scans(engine: &Engine) -> BTreeMap<i32, Vec<u8>> {
    create(engine, C, doc! {});
    let mut random = StdRng::seed_from_u64(9);
    let mut documents: Vec<DocBuf> = (0..600)
        .map(|id| {
            let bytes = match id {
                150..170 => 100,
                250 => 400 << 10,
                400.. if id % 3 == 0 => 200,
                _ => 9000 + id as usize * 5,
            };
            large(id, bytes, &mut random)
        })
        .collect();
    insert_all(engine, &documents);
    let put = |id: i32, new: Option<&DocBuf>| {
        let mut unit = engine.write(GO_ON);
        assert!(change(&mut unit, C, id, new).unwrap());
        unit.commit().unwrap();
    };
    for id in (0..600).step_by(41) {
        documents[id] = large(id as i32, if id % 2 == 0 { 12 << 10 } else { 50 }, &mut random);
        put(id as i32, Some(&documents[id]));
    }
    documents.retain(|document| {
        let id = document.as_raw().get("_id").and_then(|id| id.as_exact_i64()).unwrap() as i32;
        let stays = id % 23 != 5;
        if !stays {
            put(id, None);
        }
        stays
    });
    let id =
        |document: &DocBuf| document.as_raw().get("_id").and_then(|id| id.as_exact_i64()).unwrap() as i32;
    documents.iter().map(|document| (id(document), document.as_bytes().to_vec())).collect()
}

#[test]
fn a_scan_that_reads_ahead_gives_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    let expected = for_scans(&engine);
    let view = engine.view().unwrap();
    let collection = view.collection(C).unwrap();
    assert!(contents(&view) == expected);
    // In pieces, and from places that are behind where the iterator has been.
    let mut random = StdRng::seed_from_u64(10);
    let all = || view.records(collection, Range::ALL, Direction::Forward).unwrap();
    for _ in 0..20 {
        let (mut cursor, mut found) = (all(), BTreeMap::new());
        loop {
            let steps = random.random_range(1..200);
            let went = (0..steps).take_while(|_| {
                let more = cursor.next().unwrap();
                if more {
                    let id = cursor.doc().get("_id").and_then(|id| id.as_exact_i64()).unwrap() as i32;
                    assert!(found.insert(id, cursor.bytes().to_vec()).is_none(), "{id} came twice");
                }
                more
            });
            if went.count() < steps {
                break;
            }
            if random.random() {
                let position = cursor.save();
                let restored = crate::RecordCursor::restore(
                    &view,
                    collection,
                    Range::ALL,
                    Direction::Forward,
                    &position,
                );
                cursor = restored.unwrap();
            } else {
                let key = cursor.key().to_vec();
                assert!(cursor.seek(&key).unwrap());
                assert_eq!(cursor.key(), key);
            }
        }
        assert!(found == expected);
    }
    // The other way.
    let mut cursor = view.records(collection, Range::ALL, Direction::Backward).unwrap();
    for bytes in expected.values().rev() {
        assert!(cursor.next().unwrap() && cursor.bytes() == bytes);
    }
    assert!(!cursor.next().unwrap());
}

#[test]
fn a_scan_that_reads_ahead_comes_as_far_as_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(small_log(dir.path())).unwrap();
    let expected = for_scans(&engine);
    let bad = 121;
    let view = engine.view().unwrap();
    let collection = view.collection(C).unwrap();
    let full = full_key(collection.ident, &collection.record_key(bad.into()).unwrap());
    let found = engine.core().base.db.get_unresolved(Cf::Records, &full).unwrap().unwrap();
    let reference = Reference::read(&found).unwrap();
    let path = dir.path().join(format!("data/{:010}.values", reference.file));
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"?", u64::from(reference.offset) + 3000).unwrap();
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward).unwrap();
    for (id, bytes) in expected.range(..bad) {
        assert!(cursor.next().unwrap() && cursor.bytes() == bytes, "{id}");
    }
    assert_eq!(cursor.next().map(drop).unwrap_err().code(), Code::CHECKSUM_MISMATCH);
    assert_eq!(cursor.unreadable(), Some(&full[4..]));
    // And goes on behind it.
    for (id, bytes) in expected.range(bad + 1..) {
        assert!(cursor.next().unwrap() && cursor.bytes() == bytes, "{id}");
    }
    assert!(!cursor.next().unwrap());
}
