//! `validate` on data that was changed behind the engine's back.

use rocksdb::WriteBatch;
use sheaf_bson::doc;

use super::support::*;
use crate::catalog::Collection;
use crate::db::Cf;
use crate::index::entry_key;
use crate::read::view::View;

/// Changes what is on disk behind the engine's back.
fn tamper(engine: &crate::Engine, change: impl FnOnce(&View, &Collection, &mut WriteBatch)) {
    let view = engine.view().unwrap();
    let mut batch = WriteBatch::default();
    change(&view, view.collection(C).unwrap(), &mut batch);
    view.at.published.db.write(batch).unwrap();
}

fn indexed() -> (tempfile::TempDir, crate::Engine) {
    let (dir, engine) = fresh();
    build(&engine, C, &index_spec(doc! { "a": 1, "b": -1 }, "a_1_b_-1", doc! {})).unwrap();
    for n in 0..5 {
        insert(&engine, C, &doc! { "_id": n, "a": n * 10, "b": "x" }).unwrap();
    }
    assert_valid(&engine, C);
    (dir, engine)
}

#[test]
fn a_missing_entry_is_named() {
    let (_dir, engine) = indexed();
    tamper(&engine, |view, collection, batch| {
        let index = collection.index("a_1_b_-1").unwrap();
        let record = collection.record_key(2.into()).unwrap();
        let key = index.keys(doc! { "_id": 2, "a": 20, "b": "x" }.as_raw()).unwrap().remove(0);
        let mut full = Vec::new();
        entry_key(index, &key, &record, &mut full);
        batch.delete_cf(view.at.published.db.cf(Cf::Indexes), full);
    });
    let found = engine.validate(C, false, GO_ON).unwrap();
    assert_eq!((found.missing_count, found.extra_count), (1, 0));
    let entry = &found.missing[0];
    assert_eq!(entry.index, "a_1_b_-1");
    assert_eq!(entry.id.as_ref().unwrap(), &doc! { "_id": 2 });
    assert_eq!(entry.key, doc! { "a": 20, "b": "x" });
    assert!(!found.is_valid());
    assert_eq!(
        found.index_errors[0].1, "Index with name 'a_1_b_-1' has inconsistencies.",
        "{:?}",
        found.index_errors
    );
    assert_eq!(found.warnings, ["Detected 1 missing index entries."]);
}

#[test]
fn an_entry_in_the_place_of_another_is_named() {
    let (_dir, engine) = indexed();
    tamper(&engine, |view, collection, batch| {
        let index = collection.index("a_1_b_-1").unwrap();
        let record = collection.record_key(2.into()).unwrap();
        let entry = |a: i32| {
            let key = index.keys(doc! { "_id": 2, "a": a, "b": "x" }.as_raw()).unwrap().remove(0);
            let mut full = Vec::new();
            entry_key(index, &key, &record, &mut full);
            full
        };
        let value = view.get_full(Cf::Indexes, &entry(20)).unwrap().unwrap();
        batch.delete_cf(view.at.published.db.cf(Cf::Indexes), entry(20));
        batch.put_cf(view.at.published.db.cf(Cf::Indexes), entry(21), &*value);
    });
    let found = engine.validate(C, false, GO_ON).unwrap();
    assert_eq!((found.missing_count, found.extra_count), (1, 1), "as many entries as keys, but not the same");
    assert_eq!(
        (&found.missing[0].key, &found.extra[0].key),
        (&doc! { "a": 20, "b": "x" }, &doc! { "a": 21, "b": "x" })
    );
}

#[test]
fn an_extra_entry_is_named() {
    let (_dir, engine) = indexed();
    tamper(&engine, |view, collection, batch| {
        let record = collection.record_key(3.into()).unwrap();
        let mut full = Vec::new();
        crate::keys::prefixed(collection.ident, &record, &mut full);
        batch.delete_cf(view.at.published.db.cf(Cf::Records), full);
    });
    let found = engine.validate(C, false, GO_ON).unwrap();
    assert_eq!((found.missing_count, found.extra_count), (0, 1));
    assert_eq!(found.extra[0].key, doc! { "a": 30, "b": "x" });
    assert!(found.extra[0].id.is_none());
    assert!(found.errors.iter().any(|text| text.starts_with("fast count (5)")), "{:?}", found.errors);
}

#[test]
fn a_corrupt_record_is_named() {
    let (_dir, engine) = indexed();
    let mut record = Vec::new();
    tamper(&engine, |view, collection, batch| {
        record = collection.record_key(1.into()).unwrap();
        let mut full = Vec::new();
        crate::keys::prefixed(collection.ident, &record, &mut full);
        batch.put_cf(view.at.published.db.cf(Cf::Records), full, [9, 0, 0, 0, 1]);
    });
    let found = engine.validate(C, false, GO_ON).unwrap();
    assert_eq!(found.corrupt_records, [record]);
    assert_eq!(found.invalid_documents, 1);
    assert!(found.errors.contains(&"Detected one or more invalid documents. See logs.".to_owned()));
    assert_eq!(found.extra_count, 1, "its index entry has no document any more");
}
