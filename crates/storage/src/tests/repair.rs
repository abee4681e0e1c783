//! An operation of the log that cannot be applied.

use sheaf_bson::doc;

use super::support::*;
use crate::{Engine, OperationId, repair};

/// A folder whose log changes a document that is not there: one that an entry before it has deleted, and that was taken out
/// of the log since.
fn folder() -> tempfile::TempDir {
    let (dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    engine.checkpoint().unwrap();
    let uuid = engine.catalog().collection(C).unwrap().uuid;
    let mut payload = Vec::new();
    for id in [7, 8] {
        crate::oplog::write(&mut payload, "d", C, Some(&uuid), None, |doc| {
            doc.append("o", &doc! { "_id": id });
        });
    }
    let last = engine.last_applied();
    let mut time = last.time;
    crate::oplog::stamp(&mut payload, last.term, 0, || {
        time += 1;
        time
    });
    let core = engine.core();
    core.durability.log().unwrap().append(last.term, time, &[&payload]).unwrap();
    // As a crash would leave it.
    let copy = crash_copy(dir.path());
    drop(engine);
    copy
}

#[test]
fn what_cannot_be_applied_is_named_and_left_out_when_it_is_named() {
    let dir = folder();
    let error = Engine::open(options(dir.path())).err().expect("the log cannot be applied");
    let text = error.message();
    for part in ["op: d", "ns: db.c", "_id: 7", "does not exist", "sheaf repair"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let seen = repair(options(dir.path()), &[]).unwrap();
    let first = seen.failed.unwrap();
    assert!(seen.skipped.is_empty() && text.contains(&first.id.to_string()), "{text}");
    assert_eq!(first.summary(), "op: d, ns: db.c, _id: 7");
    // Another name is no name.
    let other = OperationId { time: first.id.time + 5, ..first.id };
    assert_eq!(repair(options(dir.path()), &[other]).unwrap().failed.unwrap().id, first.id);
    let second = repair(options(dir.path()), &[first.id]).unwrap().failed.unwrap();
    assert_ne!(second.id, first.id);
    assert!(Engine::open(options(dir.path())).is_err());
    let done = repair(options(dir.path()), &[first.id, second.id]).unwrap();
    assert!(done.failed.is_none());
    assert_eq!(done.skipped.len(), 2);
    let kept = std::fs::read_to_string(dir.path().join("repair.json")).unwrap();
    assert!(kept.contains(&second.id.to_string()) && kept.contains(r#""$numberInt":"8""#), "{kept}");
    let engine = open(dir.path());
    assert_eq!(all(&engine, C).len(), 1);
    insert(&engine, C, &doc! { "_id": 2 }).unwrap();
    assert_valid(&engine, C);
}

/// A folder whose log ends in a transaction of three entries; that in the middle deletes what is not there.
fn folder_with_chain() -> tempfile::TempDir {
    let (dir, engine) = fresh();
    insert(&engine, C, &doc! { "_id": 1 }).unwrap();
    engine.checkpoint().unwrap();
    let uuid = engine.catalog().collection(C).unwrap().uuid;
    let last = engine.last_applied();
    let mut before = None;
    for at in 1..=3u64 {
        let (mut payload, time) = (Vec::new(), last.time + at);
        let operation = if at == 2 { "d" } else { "i" };
        let ui = crate::oplog::uuid_value(&uuid);
        let inner = doc! { "op": operation, "ns": C, "ui": ui, "o": { "_id": 10 + at as i64 } };
        crate::oplog::write_transaction(&mut payload, None, true, |doc| {
            doc.append("o", &doc! { "applyOps": [&inner], "partialTxn": at < 3 });
        });
        crate::oplog::stamp_link(&mut payload, before);
        crate::oplog::stamp(&mut payload, last.term, 0, || time);
        before = Some((last.term, time));
        engine.core().durability.log().unwrap().append(last.term, time, &[&payload]).unwrap();
    }
    let copy = crash_copy(dir.path());
    drop(engine);
    copy
}

#[test]
fn a_transaction_of_several_entries_is_left_out_whole() {
    // Whichever of its entries is named.
    for named in 0..3 {
        let dir = folder_with_chain();
        let failed = repair(options(dir.path()), &[]).unwrap().failed.unwrap();
        assert!(failed.is_of_chain(), "{failed:?}");
        let id =
            |at| OperationId { index: failed.id.index + at - 1, time: failed.id.time + at - 1, ..failed.id };
        let ids = [id(0), id(1), id(2)];
        let done = repair(options(dir.path()), &[ids[named]]).unwrap();
        assert!(done.failed.is_none(), "{:?}", done.failed);
        assert_eq!(done.skipped.iter().map(|skipped| skipped.id).collect::<Vec<_>>(), ids);
        assert_eq!(done.skipped.iter().filter(|skipped| skipped.along).count(), 2);
        let engine = open(dir.path());
        assert_eq!(all(&engine, C).len(), 1);
        assert_valid(&engine, C);
    }
}
