//! Keys of documents, as MongoDB has them.

use sheaf_bson::{DocBuf, doc, key::Decoder};

use super::{Index, KeySet, KeysBy};

fn index(key: DocBuf, more: DocBuf) -> Index {
    let mut spec = doc! { "v": 2, "key": &key, "name": "i" };
    spec.edit(|w| {
        w.append_all(more.as_raw());
    });
    Index::from_spec(spec.as_raw(), 1, true, None).unwrap()
}

/// The keys as text, one per key.
fn keys(index: &Index, doc: &DocBuf) -> Vec<String> {
    let mut set = KeySet::default();
    index.generate(doc.as_raw(), &mut set).unwrap();
    let components = index.fields.len() + usize::from(index.wildcard_field.is_some());
    set.iter()
        .map(|(key, bits)| {
            let mut decoder = Decoder::new(key, bits);
            let values = (0..components).map(|at| {
                let field = at.min(index.fields.len() - 1);
                let value = decoder.next_value(index.fields[field].1).unwrap();
                let mut text = String::new();
                crate::index::print::value(&mut text, value.as_value());
                text
            });
            values.collect::<Vec<_>>().join(",")
        })
        .collect()
}

#[test]
fn golden() {
    let plain = doc! {};
    let cases: Vec<(DocBuf, DocBuf, Vec<&str>)> = vec![
        (doc! { "a": 1 }, doc! { "a": 5 }, vec!["5"]),
        (doc! { "a": 1 }, doc! { "b": 5 }, vec!["null"]),
        (doc! { "a": 1 }, doc! { "a": [3, 1, 3] }, vec!["1", "3"]),
        (doc! { "a": -1 }, doc! { "a": [3, 1] }, vec!["3", "1"]),
        (doc! { "a": 1 }, doc! { "a": [] }, vec!["undefined"]),
        (doc! { "a": 1 }, doc! { "a": [[1, 2], 3] }, vec!["3", "[ 1, 2 ]"]),
        (doc! { "a.b": 1 }, doc! { "a": [] }, vec!["null"]),
        (
            doc! { "a.b": 1 },
            doc! { "a": [{ "b": 1 }, { "b": [4, 5] }, { "c": 1 }, 7] },
            vec!["null", "1", "4", "5"],
        ),
        (doc! { "a.b": 1 }, doc! { "a": 7 }, vec!["null"]),
        (doc! { "a.b": 1, "c": 1 }, doc! { "a": [{ "b": 1 }, { "b": 2 }], "c": 9 }, vec!["1,9", "2,9"]),
        (doc! { "a.b": 1, "a.c": 1 }, doc! { "a": [{ "b": 1, "c": 2 }, { "b": 3 }] }, vec!["1,2", "3,null"]),
        (doc! { "a.0": 1 }, doc! { "a": [7, 8] }, vec!["7"]),
        (doc! { "a.0.b": 1 }, doc! { "a": [{ "b": 7 }, { "b": 8 }] }, vec!["7"]),
        (doc! { "a.1": 1 }, doc! { "a": [{ "1": 5 }] }, vec!["5"]),
        (doc! { "a": 1, "b": -1 }, doc! { "a": 1 }, vec!["1,null"]),
        (doc! { "": 1 }, doc! { "": 4 }, vec!["4"]),
    ];
    for (pattern, document, expected) in cases {
        assert_eq!(
            keys(&index(pattern.clone(), plain.clone()), &document),
            expected,
            "{pattern:?} of {document:?}"
        );
    }
}

#[test]
fn arrays_side_by_side_are_refused() {
    let index = index(doc! { "a": 1, "b": 1 }, doc! {});
    let error = index.keys(doc! { "a": [1, 2], "b": [3, 4] }.as_raw()).unwrap_err();
    assert_eq!((error.code().0, error.message()), (171, "cannot index parallel arrays [b] [a]"));
}

#[test]
fn ambiguous_numbers_are_refused() {
    let index = index(doc! { "a.0": 1 }, doc! {});
    assert_eq!(index.keys(doc! { "a": [{ "0": 5 }] }.as_raw()).unwrap_err().code().0, 16746);
}

#[test]
fn sparse_and_partial() {
    let sparse = index(doc! { "a": 1, "b": 1 }, doc! { "sparse": true });
    assert!(keys(&sparse, &doc! { "c": 1 }).is_empty());
    assert_eq!(keys(&sparse, &doc! { "b": 1 }), ["null,1"]);
    assert_eq!(keys(&index(doc! { "a": 1 }, doc! { "sparse": true }), &doc! { "a": () }), ["null"]);
    let partial = index(doc! { "a": 1 }, doc! { "partialFilterExpression": { "a": { "$gt": 5 } } });
    assert!(keys(&partial, &doc! { "a": 5 }).is_empty());
    assert_eq!(keys(&partial, &doc! { "a": 6 }), ["6"]);
}

#[test]
fn hashed() {
    let hashed = index(doc! { "a": "hashed" }, doc! {});
    assert_eq!(keys(&hashed, &doc! { "a": 1 }), keys(&hashed, &doc! { "a": 1.0 }));
    assert_eq!(keys(&hashed, &doc! { "a": 1 }), ["5902408780260971510"]);
    // As the server's other users of the hash have it (`$toHashedIndexKey`, bounds of queries).
    let decimal = sheaf_bson::Decimal128::from_f64_exact(1.5);
    assert_eq!(keys(&hashed, &doc! { "a": decimal }), keys(&hashed, &doc! { "a": 2 }));
    assert_eq!(keys(&hashed, &doc! { "a": 2f64.powi(63) }), keys(&hashed, &doc! { "a": i64::MIN }));
    assert_eq!(hashed.keys(doc! { "a": [1] }.as_raw()).unwrap_err().code().0, 16766);
}

#[test]
fn wildcard() {
    let everything = index(doc! { "$**": 1 }, doc! {});
    let document = doc! { "_id": 1, "a": 1, "b": { "c": [2, { "d": 3 }], "e": {} }, "f": [] };
    assert_eq!(
        keys(&everything, &document),
        ["\"a\",1", "\"b.c\",2", "\"b.c.d\",3", "\"b.e\",{}", "\"f\",undefined"]
    );
    let below = index(doc! { "b.$**": 1 }, doc! {});
    assert_eq!(keys(&below, &document), ["\"b.c\",2", "\"b.c.d\",3", "\"b.e\",{}"]);
    let some = index(doc! { "$**": 1 }, doc! { "wildcardProjection": { "a": 1, "b.e": 1 } });
    assert_eq!(keys(&some, &document), ["\"a\",1", "\"b.e\",{}"]);
    let others = index(doc! { "$**": 1 }, doc! { "wildcardProjection": { "b": 0, "_id": 1 } });
    assert_eq!(keys(&others, &document), ["\"_id\",1", "\"a\",1", "\"f\",undefined"]);
}

#[test]
fn multikey_positions() {
    let index = index(doc! { "a.b.c": 1, "d": 1 }, doc! {});
    let mut set = KeySet::default();
    index.generate(doc! { "a": { "b": [{ "c": [1, 2] }] }, "d": 1 }.as_raw(), &mut set).unwrap();
    assert_eq!(set.arrays.as_slice(), [0b110, 0]);
    assert!(!index.multikey());
    index.multikey.add(&set.arrays);
    assert_eq!(index.multikey_paths(), Some(vec![vec![1, 2], vec![]]));
}

#[test]
fn keys_that_this_version_cannot_make_are_refused() {
    let index = index(doc! { "a": 1 }, doc! { "collation": { "locale": "de" } });
    let entry = super::marks::index_entry(&index);
    assert_eq!(KeysBy::read("db.c", entry.as_raw()).unwrap(), KeysBy::Spec);
    // Keys by the rules of POSIX are told from those that were made for it by the rules of en_US.
    let posix = doc! { "collation": { "locale": "en_US_POSIX" } };
    let posix = super::marks::index_entry(&self::index(doc! { "a": 1 }, posix));
    assert_eq!(KeysBy::read("db.c", posix.as_raw()).unwrap(), KeysBy::Spec);
    let spec = posix.as_raw().get_or_missing("spec");
    let keys = doc! { "version": 1i64, "collation": "icu4x-2.4.0" };
    let before = DocBuf::new().with("spec", spec).with("ident", 1i64).with("ready", true).with("keys", &keys);
    assert_eq!(KeysBy::read("db.c", before.as_raw()).unwrap_err().code(), sheaf_errors::Code::MUST_UPGRADE);
    // As written before there were marks.
    let unmarked = doc! { "spec": &index.spec, "ident": 1i64, "ready": true };
    assert_eq!(KeysBy::read("db.c", unmarked.as_raw()).unwrap(), KeysBy::Bytes);
    for keys in [
        doc! { "version": 2i64, "collation": "none" },
        doc! { "version": 1i64, "collation": "icu4x-1.5.0" },
        doc! { "version": 1i64, "collation": "icu 78" },
        doc! { "version": 1i64 },
    ] {
        let entry = doc! { "spec": &index.spec, "ident": 1i64, "ready": true, "keys": &keys };
        let error = KeysBy::read("db.c", entry.as_raw()).unwrap_err();
        assert_eq!(error.code(), sheaf_errors::Code::MUST_UPGRADE);
        assert!(error.message().contains("index i of") && error.message().contains("db.c"), "{error}");
    }
}

#[test]
fn strings_stand_by_the_collation() {
    let collation = doc! { "locale": "en", "strength": 2 };
    let collated = index(doc! { "a": 1, "b": -1 }, doc! { "collation": &collation });
    let of = |index: &Index, doc: DocBuf| index.keys(doc.as_raw()).unwrap();
    let same = of(&collated, doc! { "a": "Rye", "b": ["x", { "s": "Y" }] });
    assert_eq!(same, of(&collated, doc! { "a": "rYE", "b": [{ "s": "y" }, "X", "x"] }));
    assert_ne!(same, of(&collated, doc! { "a": "ryé", "b": ["x", { "s": "Y" }] }));
    // Names are no strings.
    assert_ne!(same, of(&collated, doc! { "a": "Rye", "b": ["x", { "S": "Y" }] }));
    // What holds none is as in any index.
    let plain = index(doc! { "a": 1, "b": -1 }, doc! {});
    let numbers = doc! { "a": 1.5, "b": [(), { "n": 2 }, true] };
    assert_eq!(of(&collated, numbers.clone()), of(&plain, numbers));
    let hashed = index(doc! { "a": "hashed" }, doc! { "collation": &collation });
    assert_eq!(of(&hashed, doc! { "a": "Rye" }), of(&hashed, doc! { "a": "rye" }));
    let wildcard = index(doc! { "$**": 1 }, doc! { "collation": &collation });
    assert_eq!(of(&wildcard, doc! { "x": "Rye" }), of(&wildcard, doc! { "x": "rye" }));
    assert_ne!(of(&wildcard, doc! { "x": "Rye" }), of(&wildcard, doc! { "X": "Rye" }));
    let filter = doc! { "q": "Yes" };
    let partial =
        index(doc! { "a": 1 }, doc! { "collation": &collation, "partialFilterExpression": &filter });
    assert_eq!(of(&partial, doc! { "a": 1, "q": "YES" }).len(), 1);
}

#[test]
fn an_index_of_before_keeps_its_keys() {
    let spec =
        doc! { "v": 2, "key": { "a": 1 }, "name": "i", "collation": { "locale": "en", "strength": 2 } };
    let old = Index::with_keys(KeysBy::Bytes, spec.as_raw(), 1, true, None).unwrap();
    let plain = index(doc! { "a": 1 }, doc! {});
    let doc = doc! { "a": "Rye" };
    assert!(old.collator.is_none());
    assert_eq!(old.keys(doc.as_raw()).unwrap(), plain.keys(doc.as_raw()).unwrap());
    // Whatever happens to it, it is marked as what it is.
    for index in [old.changed(spec.as_raw(), true).unwrap(), old] {
        let entry = super::marks::index_entry(&index);
        assert_eq!(KeysBy::read("db.c", entry.as_raw()).unwrap(), KeysBy::Bytes);
    }
}
