use sheaf_bson::doc;

use super::*;

#[test]
fn kept_forms() {
    let validator = doc! { "a": { "$gt": 1 } };
    let collation = doc! { "locale": "en" };
    let clustered = doc! { "key": { "_id": 1 }, "unique": true };
    let cases = [
        (CollectionOptions::default(), doc! {}),
        (
            CollectionOptions { capped: true, size: Some(4096), max: Some(10), ..Default::default() },
            doc! { "capped": true, "size": 4096, "max": 10 },
        ),
        (
            CollectionOptions { capped: true, size: Some(1 << 40), ..Default::default() },
            doc! { "capped": true, "size": 1i64 << 40 },
        ),
        (
            CollectionOptions { validator: Some(validator.as_raw()), ..Default::default() },
            doc! { "validator": &validator, "validationLevel": "strict", "validationAction": "error" },
        ),
        (
            CollectionOptions { view_on: Some("c"), ..Default::default() },
            doc! { "viewOn": "c", "pipeline": [] },
        ),
        (
            CollectionOptions {
                clustered_index: Some(Value::Document(clustered.as_raw())),
                expire_after_seconds: Some(Value::Int32(5)),
                ..Default::default()
            },
            doc! {
                "clusteredIndex": { "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true },
                "expireAfterSeconds": 5i64
            },
        ),
    ];
    for (options, kept) in &cases {
        assert_eq!(options.normalize().unwrap().as_raw(), kept.as_raw());
    }
    let options = CollectionOptions { collation: Some(collation.as_raw()), ..Default::default() };
    let kept = options.normalize().unwrap();
    let full = kept.as_raw().get("collation").and_then(|v| v.as_doc()).unwrap();
    assert!(matches!(full.get("strength"), Some(Value::Int32(3))), "every field of a collation is filled in");
    let id = options.id_index().unwrap().unwrap();
    assert_eq!(id.as_raw().get("collation").and_then(|v| v.as_doc()), Some(full));
}

#[test]
fn refused() {
    let empty = doc! {};
    let not_id = doc! { "key": { "a": 1 }, "unique": true };
    let not_unique = doc! { "key": { "_id": 1 }, "unique": false };
    let clustered = doc! { "key": { "_id": 1 }, "unique": true };
    let engine = doc! { "inMemory": {} };
    let base = CollectionOptions::default();
    let cases = [
        (CollectionOptions { capped: true, ..base }, Code::INVALID_OPTIONS),
        (CollectionOptions { size: Some(1), ..base }, Code::INVALID_OPTIONS),
        (CollectionOptions { max: Some(1), ..base }, Code::INVALID_OPTIONS),
        (CollectionOptions { capped: true, size: Some(-1), ..base }, Code::BAD_VALUE),
        (CollectionOptions { capped: true, size: Some(i64::MAX), ..base }, Code::BAD_VALUE),
        (CollectionOptions { capped: true, size: Some(1), max: Some(1 << 31), ..base }, Code::BAD_VALUE),
        (CollectionOptions { pipeline: Some(empty.as_raw()), ..base }, Code::INVALID_OPTIONS),
        (CollectionOptions { view_on: Some(""), ..base }, Code::BAD_VALUE),
        (CollectionOptions { view_on: Some("c"), capped: true, ..base }, Code::INVALID_OPTIONS),
        (CollectionOptions { validation_level: Some("hard"), ..base }, Code::BAD_VALUE),
        (CollectionOptions { validation_action: Some("shout"), ..base }, Code::BAD_VALUE),
        (CollectionOptions { storage_engine: Some(engine.as_raw()), ..base }, Code::INVALID_OPTIONS),
        (CollectionOptions { pre_and_post_images: Some(empty.as_raw()), ..base }, Code(40414)),
        (CollectionOptions { expire_after_seconds: Some(Value::Int32(1)), ..base }, Code::INVALID_OPTIONS),
        (CollectionOptions { clustered_index: Some(Value::Bool(true)), ..base }, Code(5979703)),
        (CollectionOptions { clustered_index: Some(Value::Document(empty.as_raw())), ..base }, Code(40414)),
        (
            CollectionOptions { clustered_index: Some(Value::Document(not_unique.as_raw())), ..base },
            Code(5979700),
        ),
        (
            CollectionOptions { clustered_index: Some(Value::Document(not_id.as_raw())), ..base },
            Code::INVALID_INDEX_SPECIFICATION_OPTION,
        ),
        (
            CollectionOptions {
                clustered_index: Some(Value::Document(clustered.as_raw())),
                capped: true,
                size: Some(1),
                ..base
            },
            Code(6049200),
        ),
    ];
    for (options, code) in &cases {
        assert_eq!(options.normalize().expect_err("must be refused").code(), *code, "{options:?}");
    }
}

#[test]
fn comparing() {
    let plain = doc! { "validator": { "a": 1 } };
    let spelled = doc! { "validationAction": "error", "validator": { "a": 1 }, "validationLevel": "strict" };
    let other = doc! { "validator": { "a": 2 } };
    assert!(same_options(plain.as_raw(), spelled.as_raw()));
    assert!(!same_options(plain.as_raw(), other.as_raw()));
    assert!(!same_options(plain.as_raw(), RawDoc::EMPTY));
    assert!(!same_options(RawDoc::EMPTY, plain.as_raw()));
}

#[test]
fn changing() {
    let options = doc! { "a": 1, "b": 2, "c": 3 };
    let changes = [("b", Value::Missing), ("c", Value::Int32(4)), ("d", Value::Int32(5))];
    let changed = with_changes(options.as_raw(), &changes);
    assert_eq!(changed.as_raw(), doc! { "a": 1, "c": 4, "d": 5 }.as_raw());
}
