use sheaf_bson::doc;

use super::*;

/// `{key, name}` and one option.
fn with<'v>(key: DocBuf, option: &str, value: impl Into<Value<'v>>) -> DocBuf {
    doc! { "key": &key, "name": "x" }.with(option, value)
}

#[test]
fn kept_forms() {
    let plain = |key: DocBuf, name: &str| doc! { "v": 2, "key": &key, "name": name };
    let a = || doc! { "a": 1 };
    let cases = [
        (doc! { "key": { "a": 1 }, "name": "a_1" }, plain(a(), "a_1")),
        (doc! { "name": "n", "key": { "a": 1.5, "b": -1 } }, plain(doc! { "a": 1.5, "b": -1 }, "n")),
        (with(a(), "unique", true), plain(a(), "x").with("unique", true)),
        (with(a(), "unique", 1), plain(a(), "x").with("unique", true)),
        (with(a(), "sparse", false), plain(a(), "x")),
        (with(a(), "background", true), plain(a(), "x").with("background", true)),
        (with(a(), "ns", "db.c"), plain(a(), "x")),
        (with(a(), "v", 1.0), doc! { "v": 1, "key": { "a": 1 }, "name": "x" }),
        (with(a(), "expireAfterSeconds", 5.7), plain(a(), "x").with("expireAfterSeconds", 5)),
        (with(a(), "collation", &doc! { "locale": "simple" }), plain(a(), "x")),
        (doc! { "key": { "_id": 1.0 }, "name": "mine" }, plain(doc! { "_id": 1.0 }, "_id_")),
        (
            with(doc! { "a": "hashed" }, "hidden", true),
            plain(doc! { "a": "hashed" }, "x").with("hidden", true),
        ),
        (with(doc! { "a.$id": 1 }, "sparse", true), plain(doc! { "a.$id": 1 }, "x").with("sparse", true)),
    ];
    for (spec, kept) in &cases {
        let normal = normalize(spec.as_raw()).unwrap_or_else(|e| panic!("{spec:?}: {}", e.message()));
        assert_eq!(normal.as_raw(), kept.as_raw());
    }
}

/// Each field of a pattern is compared with those before it, so there must not be many: 300,000 took minutes.
#[test]
fn a_pattern_has_a_most_number_of_fields() {
    let of = |count: usize| DocBuf::build(|out| (0..count).for_each(|n| _ = out.append(&format!("f{n}"), 1)));
    let check = |count| check_key_pattern(of(count).as_raw());
    assert!(check(32).is_ok());
    for count in [33, 300_000] {
        assert_eq!(check(count).unwrap_err().code(), Code(13103));
    }
}

#[test]
fn a_pattern_has_a_most_length_and_each_field_once() {
    let code = |key: DocBuf| check_key_pattern(key.as_raw()).map_err(|error| error.code());
    let long = |length: usize| DocBuf::build(|out| _ = out.append(&"f".repeat(length), 1));
    // A document of one int32 takes eleven bytes besides the name.
    assert_eq!(code(long(2037)), Ok(()));
    assert_eq!(code(long(2038)), Err(Code::CANNOT_CREATE_INDEX));
    assert_eq!(code(doc! { "a": 1, "a": 1 }), Err(Code::BAD_VALUE));
}

#[test]
fn refused() {
    let a = || doc! { "a": 1 };
    let key = |key: DocBuf| doc! { "key": &key, "name": "x" };
    let wildcard = || doc! { "$**": 1 };
    let filter = doc! { "b": { "$exists": true } };
    let bad_filter = doc! { "b": { "$regex": "x" } };
    let projection = doc! { "a": 1 };
    let mixed = doc! { "a": 1, "b": 0 };
    let empty = doc! {};
    let cannot = Code::CANNOT_CREATE_INDEX;
    let cases = [
        (doc! { "name": "x" }, Code::FAILED_TO_PARSE),
        (doc! { "key": { "a": 1 } }, Code::FAILED_TO_PARSE),
        (doc! { "key": 1, "name": "x" }, Code::TYPE_MISMATCH),
        (doc! { "key": { "a": 1 }, "name": 1 }, Code::TYPE_MISMATCH),
        (doc! { "key": { "a": 1 }, "name": "" }, cannot),
        (doc! { "key": { "a": 1 }, "name": "*" }, Code::BAD_VALUE),
        (doc! { "key": { "a": 1 }, "name": "_id_" }, Code::BAD_VALUE),
        (key(doc! {}), cannot),
        (key(doc! { "a": 0 }), cannot),
        (key(doc! { "a": f64::NAN }), cannot),
        (key(doc! { "a": true }), cannot),
        (key(doc! { "a": () }), cannot),
        (key(doc! { "a": "" }), cannot),
        (key(doc! { "a": "unheard" }), cannot),
        (key(doc! { "a": "2dsphere" }).with("2dsphereIndexVersion", 9), cannot),
        (key(doc! { "a": "2dsphere" }).with("coarsestIndexedLevel", -1), Code(16747)),
        (key(doc! { "a": "2d" }).with("bits", 33), Code(72)),
        (key(doc! { "b": 1, "a": "2d" }), Code(16801)),
        (key(doc! { "": 1 }), cannot),
        (key(doc! { "a..b": 1 }), cannot),
        (key(doc! { "a.": 1 }), cannot),
        (key(doc! { "$a": 1 }), cannot),
        (key(doc! { "a": 1, "b": 1, "a": -1 }), Code::BAD_VALUE),
        (key(doc! { "a": "hashed", "b": "hashed" }), Code(31303)),
        (key(doc! { "$**": 1, "a.$**": 1 }), Code(7246201)),
        (key(doc! { "a": "wildcard" }), Code(7246202)),
        (key(doc! { "a": 1, "$**": 1 }), cannot),
        (key(doc! { "a.b": 1, "a.$**": 1 }), Code(7246204)),
        (with(doc! { "a": 1, "$**": 1 }, "wildcardProjection", &doc! { "b": 0 }), Code(7246209)),
        (with(doc! { "a": 1, "$**": 1 }, "wildcardProjection", &doc! { "a": 1 }), Code(7246208)),
        (with(wildcard(), "wildcardProjection", &doc! { "a": { "b": 1, "c": 0 } }), Code(31254)),
        (with(wildcard(), "wildcardProjection", &doc! { "a": 1, "a.b": 0 }), Code(31249)),
        (with(wildcard(), "wildcardProjection", &doc! { "a": "1" }), Code(51271)),
        (with(wildcard(), "v", 1), cannot),
        (with(a(), "weights", &doc! { "a": 1 }), cannot),
        (key(doc! { "$**": "hashed" }), cannot),
        (with(doc! { "a": "hashed" }, "unique", true), Code(16764)),
        (with(wildcard(), "unique", true), cannot),
        (with(wildcard(), "sparse", true), cannot),
        (with(wildcard(), "expireAfterSeconds", 1), cannot),
        (with(wildcard(), "wildcardProjection", &empty), Code::FAILED_TO_PARSE),
        (with(wildcard(), "wildcardProjection", &mixed), Code(31254)),
        (with(doc! { "a.$**": 1 }, "wildcardProjection", &projection), Code::FAILED_TO_PARSE),
        (with(a(), "wildcardProjection", &projection), Code::BAD_VALUE),
        (with(a(), "v", 0), cannot),
        (with(a(), "v", 3), cannot),
        (with(a(), "v", "2"), Code::TYPE_MISMATCH),
        (with(a(), "unique", "yes"), Code::TYPE_MISMATCH),
        (with(a(), "surprise", 1), Code::INVALID_INDEX_SPECIFICATION_OPTION),
        (with(a(), "partialFilterExpression", 1), Code::TYPE_MISMATCH),
        (with(a(), "partialFilterExpression", &bad_filter), cannot),
        (with(a(), "partialFilterExpression", &filter).with("sparse", true), cannot),
        (with(a(), "expireAfterSeconds", "1"), cannot),
        (with(a(), "expireAfterSeconds", -1), cannot),
        (with(a(), "expireAfterSeconds", f64::NAN), cannot),
        (with(a(), "expireAfterSeconds", 1i64 << 31), cannot),
        (with(doc! { "a": 1, "b": 1 }, "expireAfterSeconds", 1), cannot),
        (with(doc! { "_id": 1 }, "expireAfterSeconds", 1), Code::INVALID_INDEX_SPECIFICATION_OPTION),
        (with(doc! { "_id": 1 }, "hidden", true), Code::INVALID_INDEX_SPECIFICATION_OPTION),
        (with(doc! { "_id": 1 }, "unique", true), Code::INVALID_INDEX_SPECIFICATION_OPTION),
        (key(doc! { "_id": -1 }), Code::BAD_VALUE),
        (with(a(), "collation", &empty), Code::BAD_VALUE),
        (with(a(), "collation", &doc! { "locale": "nowhere" }), Code::BAD_VALUE),
    ];
    for (spec, code) in &cases {
        match normalize(spec.as_raw()) {
            Ok(kept) => panic!("{spec:?} was accepted as {kept:?}"),
            Err(error) => assert_eq!(error.code(), *code, "{spec:?}: {}", error.message()),
        }
    }
}

#[test]
fn collations_are_inherited() {
    let collation = doc! { "locale": "fr" };
    let spec = doc! { "key": { "a": 1 }, "name": "x" };
    let has = |spec: &DocBuf| {
        let prepared = prepare(spec.as_raw(), Some(collation.as_raw())).unwrap();
        prepared
            .as_raw()
            .get("collation")
            .and_then(|v| v.as_doc())
            .and_then(|c| c.get("locale")?.as_str())
            .map(str::to_owned)
    };
    assert_eq!(has(&spec).as_deref(), Some("fr"));
    assert_eq!(has(&spec.clone().with("collation", &doc! { "locale": "simple" })), None);
    assert_eq!(has(&spec.clone().with("collation", &doc! { "locale": "de" })).as_deref(), Some("de"));
    let error = prepare(doc! { "key": { "a": 0 }, "name": "x" }.as_raw(), None).unwrap_err();
    assert!(
        error.message().starts_with("Error in specification { key: { a: 0 }, name: \"x\" } :: caused by :: "),
        "{}",
        error.message()
    );
}

#[test]
fn relations() {
    let base = doc! { "v": 2, "key": { "a": 1 }, "name": "a_1" };
    let relation = |new: DocBuf| relate(new.as_raw(), base.as_raw()).map_err(|error| error.code());
    assert_eq!(relation(base.clone()), Ok(Relation::Same));
    assert_eq!(relation(base.clone().with("hidden", true)), Ok(Relation::Same));
    assert_eq!(relation(doc! { "v": 2, "key": { "b": 1 }, "name": "b_1" }), Ok(Relation::Different));
    assert_eq!(relation(doc! { "v": 2, "key": { "a": -1 }, "name": "a_-1" }), Ok(Relation::Different));
    assert_eq!(
        relation(doc! { "v": 2, "key": { "b": 1 }, "name": "a_1" }),
        Err(Code::INDEX_KEY_SPECS_CONFLICT)
    );
    assert_eq!(relation(base.clone().with("unique", true)), Err(Code::INDEX_KEY_SPECS_CONFLICT));
    assert_eq!(relation(base.clone().with("expireAfterSeconds", 1)), Err(Code::INDEX_OPTIONS_CONFLICT));
    assert_eq!(
        relation(doc! { "v": 2, "key": { "a": 1 }, "name": "other" }),
        Err(Code::INDEX_OPTIONS_CONFLICT)
    );
    let other_filter = doc! { "v": 2, "key": { "a": 1 }, "name": "p", "partialFilterExpression": { "b": 1 } };
    assert_eq!(relation(other_filter), Ok(Relation::Different));
}

#[test]
fn names() {
    for (key, name) in [
        (doc! { "a": 1, "b.c": -1 }, "a_1_b.c_-1"),
        (doc! { "a": 1.0 }, "a_1"),
        (doc! { "a": "hashed" }, "a_hashed"),
        (doc! { "$**": 1i64 }, "$**_1"),
    ] {
        assert_eq!(default_name(key.as_raw()), name);
    }
}

/// They are compiled when the index is read, and kept as long as it stands.
#[test]
fn a_partial_filter_has_few_patterns() {
    let spec = |count: usize| {
        DocBuf::build(|out| {
            out.document("key").append("a", 1);
            out.append("name", "x");
            let mut filter = out.document("partialFilterExpression");
            let mut operators = filter.document("b");
            let mut list = operators.array("$in");
            for n in 0..count {
                let pattern = format!("^{n}a*b");
                list.push(Value::Regex(sheaf_bson::Regex { pattern: &pattern, options: "" }));
            }
        })
    };
    let process = sheaf_meter::Process::new(64 << 20, 64 << 20);
    let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
    let many = normalize(spec(20_000).as_raw()).unwrap_err();
    assert_eq!(many.code(), Code::EXCEEDED_MEMORY_LIMIT);
    normalize(spec(100).as_raw()).unwrap();
}
