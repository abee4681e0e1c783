//! Taking back the end of the log.

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::Code;

use super::apply::{Follower, state};
use super::support::*;
use crate::Write;

fn read(path: &std::path::Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = &bytes[..];
    let mut out = Vec::new();
    while !rest.is_empty() {
        let len = i32::from_le_bytes(*rest.first_chunk().unwrap()) as usize;
        out.push(format!("{:?}", RawDoc::new(&rest[..len])));
        rest = &rest[len..];
    }
    out
}

fn text(documents: &[DocBuf]) -> Vec<String> {
    documents.iter().map(|doc| format!("{doc:?}")).collect()
}

#[test]
fn what_is_lost_is_saved_and_the_rest_is_as_it_was() {
    let (dir, engine) = fresh();
    let folder = tempfile::tempdir().unwrap();
    create(&engine, "db.capped", doc! { "capped": true, "size": 4096 });
    for id in 0..6 {
        insert(&engine, C, &doc! { "_id": id, "a": 1 }).unwrap();
    }
    engine.checkpoint().unwrap();
    insert(&engine, C, &doc! { "_id": 6, "a": 1 }).unwrap();
    let before = state(&engine);
    let keep = engine.last_applied();
    // From here on it is lost.
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, 1, Some(&doc! { "_id": 1, "a": 2 })).unwrap();
    change(&mut unit, C, 2, None).unwrap();
    unit.commit().unwrap();
    let mut txn = engine.begin(None).unwrap();
    change(&mut txn, C, 3, Some(&doc! { "_id": 3, "a": "x" })).unwrap();
    change(&mut txn, C, 6, Some(&doc! { "_id": 6, "a": "x" })).unwrap();
    txn.commit(GO_ON).unwrap();
    insert(&engine, C, &doc! { "_id": 9 }).unwrap();
    insert(&engine, "db.capped", &doc! { "_id": "c" }).unwrap();
    create(&engine, "db.new", doc! {});
    insert(&engine, "db.new", &doc! { "_id": 1 }).unwrap();
    create(&engine, "db.gone", doc! {});
    insert(&engine, "db.gone", &doc! { "_id": 1 }).unwrap();
    engine.drop_collection("db.gone", GO_ON).unwrap();
    // It is changed once more before it is lost.
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, 1, Some(&doc! { "_id": 1, "a": 3 })).unwrap();
    unit.commit().unwrap();
    let last = engine.last_applied();

    // What an attempt that a full disk has ended leaves.
    let uuid = engine.catalog().collection(C).unwrap().uuid.to_string();
    std::fs::create_dir_all(folder.path().join("rollback").join(&uuid)).unwrap();
    std::fs::write(folder.path().join("rollback").join(&uuid).join("removed.1.0.bson.part"), "x").unwrap();

    let saved = engine.save_rolled_back(keep.index, last.index, &folder.path().join("rollback")).unwrap();
    assert_eq!((saved.documents, saved.files.len()), (6, 3));
    assert_eq!(saved.operations, [4, 4, 1, 3]);
    let file_of = |namespace: &str| {
        let uuid = engine.catalog().collection(namespace).unwrap().uuid;
        let mut files = std::fs::read_dir(folder.path().join("rollback").join(uuid.to_string())).unwrap();
        let path = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none());
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("removed.20") && name.ends_with(".bson"), "{name}");
        path
    };
    let changed = [
        doc! { "_id": 1, "a": 3 },
        doc! { "_id": 3, "a": "x" },
        doc! { "_id": 6, "a": "x" },
        doc! { "_id": 9 },
    ];
    assert_eq!(read(&file_of(C)), text(&changed));
    assert_eq!(read(&file_of("db.capped")), text(&[doc! { "_id": "c" }]));
    assert_eq!(read(&file_of("db.new")), text(&[doc! { "_id": 1 }]));

    engine.truncate_log(keep.index).unwrap();
    assert_eq!(insert(&engine, C, &doc! { "_id": 50 }).unwrap_err().code(), Code::LOG_WRITE_FAILED);
    drop(engine);
    for _ in 0..2 {
        let engine = open(dir.path());
        assert_eq!(engine.last_applied(), keep);
        assert_eq!(state(&engine), before);
    }
    let engine = open(dir.path());
    assert_eq!(insert(&engine, C, &doc! { "_id": 10 }).unwrap().index, keep.index + 1);
    drop(engine);
    assert_eq!(all(&open(dir.path()), C).len(), 8);
}

/// However many documents are taken back: their keys are gathered in parts, and each is saved once.
#[test]
fn many_documents_are_saved_in_parts() {
    let (_dir, engine) = fresh();
    let keep = engine.last_applied().index;
    for round in 0..3 {
        let mut unit = engine.write(GO_ON);
        for id in 0..200 {
            let doc = doc! { "_id": id, "round": round };
            if round == 0 {
                let collection = unit.collection(C).unwrap().unwrap();
                unit.insert(&collection, doc.as_raw()).unwrap();
            } else {
                change(&mut unit, C, id, Some(&doc)).unwrap();
            }
        }
        unit.commit().unwrap();
    }
    let last = engine.last_applied().index;
    let whole = tempfile::tempdir().unwrap();
    let expected = engine.save_rolled_back(keep, last, whole.path()).unwrap();
    assert_eq!((expected.documents, expected.files.len()), (200, 1));
    for keys_bytes in [1, 1000, 20_000] {
        let parts = tempfile::tempdir().unwrap();
        let saved = engine.core().save_rolled_back(keep, last, parts.path(), keys_bytes).unwrap();
        assert_eq!((saved.documents, saved.files.len()), (200, 1));
        assert_eq!(saved.operations, [200, 400, 0, 0]);
        let sorted = |path: &std::path::Path| {
            let mut text = read(path);
            text.sort();
            text
        };
        assert_eq!(sorted(&saved.files[0]), sorted(&expected.files[0]));
    }
}

#[test]
fn nothing_to_take_back_and_too_much() {
    let (_dir, engine) = fresh();
    let folder = tempfile::tempdir().unwrap();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    let last = engine.last_applied().index;
    assert_eq!(engine.save_rolled_back(last, last, folder.path()).unwrap(), Default::default());
    engine.checkpoint().unwrap();
    let error = engine.truncate_log(last - 1).unwrap_err();
    assert_eq!(error.code(), Code::UNRECOVERABLE_ROLLBACK_ERROR);
}

#[test]
fn a_member_rolls_back_and_follows_on() {
    let (_dir, primary) = fresh();
    let other = tempfile::tempdir().unwrap();
    for id in 0..5 {
        insert(&primary, C, &doc! { "_id": id }).unwrap();
    }
    let mut follower = Follower::open(other.path());
    follower.follow(&primary, 2);
    follower.flush();
    insert(&primary, C, &doc! { "_id": 5 }).unwrap();
    follower.follow(&primary, 2);
    let keep = follower.engine.last_applied().index;
    drop(follower);
    let alone = open(other.path());
    for id in 100..110 {
        insert(&alone, C, &doc! { "_id": id }).unwrap();
    }
    alone.truncate_log(keep).unwrap();
    drop(alone);
    insert(&primary, C, &doc! { "_id": 6 }).unwrap();
    let mut follower = Follower::open(other.path());
    assert_eq!(follower.engine.last_applied().index, keep);
    follower.follow(&primary, 1);
    assert_eq!(state(&primary), state(&follower.engine));
    drop(follower);
    assert_eq!(state(&primary), state(&Follower::open(other.path()).engine));
}
