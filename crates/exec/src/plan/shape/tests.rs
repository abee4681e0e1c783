use sheaf_bson::{DocBuf, doc};

use super::*;

fn hash(command: &DocBuf) -> Option<String> {
    QueryShape::of("t", command.as_raw()).map(|shape| shape.hash().unwrap())
}

#[test]
fn the_hash_is_mongodbs() {
    // As recorded in the tests of MongoDB 8.
    let command = doc! { "find": "query_settings_cmds", "filter": { "b": 1 } };
    let shape = QueryShape::of("test", command.as_raw()).expect("a query");
    assert_eq!(shape.hash().unwrap(), "7F312F79FC0C37F532CBB024677C8D15641A290DA4F122B05BC5AE077CB314A7");
}

#[test]
fn constants_do_not_count() {
    let one = hash(&doc! { "find": "c", "filter": { "a": 1, "b": { "$in": [1, 2] } } });
    assert_eq!(one.as_ref().map(String::len), Some(64));
    assert_eq!(one, hash(&doc! { "find": "c", "filter": { "a": 2.5, "b": { "$in": [3] } }, "comment": "x" }));
    assert_ne!(one, hash(&doc! { "find": "c", "filter": { "a": "x", "b": { "$in": [1] } } }));
    assert_ne!(one, hash(&doc! { "find": "c", "filter": { "b": 1 } }));
    let sorted = |by: i32| hash(&doc! { "aggregate": "c", "pipeline": [{ "$sort": { "a": by } }] });
    assert_ne!(sorted(1), sorted(-1));
    assert_eq!(hash(&doc! { "count": "c" }), None);
    assert_ne!(hash(&doc! { "find": "d" }), hash(&doc! { "find": "c" }));
}

#[test]
fn people_read_names_of_types() {
    let command = doc! {
        "aggregate": "c",
        "pipeline": [
            { "$lookup": { "from": "i", "localField": "item", "foreignField": "sku", "as": "docs" } },
            { "$match": { "qty": { "$lt": 5 }, "made": { "$in": ["a", "b"] } } },
            { "$count": "low" },
        ],
    };
    let shape = QueryShape::of("t", command.as_raw()).expect("a query");
    let expected = doc! {
        "cmdNs": { "db": "t", "coll": "c" },
        "command": "aggregate",
        "pipeline": [
            { "$lookup": { "from": "i", "as": "docs", "localField": "item", "foreignField": "sku" } },
            { "$match": { "$and": [{ "qty": { "$lt": "?number" } }, { "made": { "$in": "?array<?string>" } }] } },
            { "$group": { "_id": "?null", "low": { "$sum": "?number" } } },
            { "$project": { "low": true, "_id": false } },
        ],
    };
    assert_eq!(shape.to_doc(Constants::TypeNames).unwrap(), expected);
}

#[test]
fn names_of_variables_are_no_constants() {
    let mapped = |name: &str| {
        let stage = doc! { "$project": { "x": { "$map": { "input": "$a", "as": name, "in": 1 } } } };
        hash(&doc! { "aggregate": "c", "pipeline": [&stage] })
    };
    assert!(mapped("one").is_some());
    assert_ne!(mapped("one"), mapped("other"));
}

#[test]
fn what_cannot_be_a_name_has_a_shape_too() {
    for stage in [
        doc! { "$unset": "a\0b" },
        doc! { "$unset": ["a\0b", 1, "c"] },
        doc! { "$count": "a\0b" },
        doc! { "$sortByCount": "$a\0b" },
        doc! { "$unwind": "$a\0b" },
    ] {
        assert!(hash(&doc! { "aggregate": "c", "pipeline": [&stage] }).is_some(), "{stage:?}");
    }
}

/// A command may be 16 MB of conditions, and its operation may have to stop.
#[test]
fn the_shape_of_a_long_command_is_worked_out_no_longer_than_there_is_time() {
    use sheaf_errors::{Code, Error};
    use std::sync::Arc;

    let many = |one: DocBuf| sheaf_bson::ArrayBuf::of(&vec![one; 1000]);
    let fields = DocBuf::build(|out| (0..1000).for_each(|at| _ = out.append(&format!("f{at}"), "$a")));
    let branches = many(doc! { "case": { "$eq": ["$a", 1] }, "then": 1 });
    let commands = [
        doc! { "find": "c", "filter": { "$or": &many(doc! { "a": 1, "b": { "$gt": 1, "$lt": 5 } }) } },
        doc! { "find": "c", "filter": { "a": { "$all": &many(doc! { "$elemMatch": { "b": 1 } }) } } },
        doc! { "find": "c", "filter": fields.as_raw() },
        doc! { "find": "c", "projection": fields.as_raw() },
        doc! { "find": "c", "let": fields.as_raw() },
        doc! { "find": "c", "sort": fields.as_raw() },
        doc! { "find": "c", "min": fields.as_raw() },
        doc! { "distinct": "c", "key": "a", "query": fields.as_raw() },
        doc! { "aggregate": "c", "pipeline": &many(doc! { "$match": { "a": 1 } }) },
        doc! { "aggregate": "c", "pipeline": [{ "$group": fields.as_raw() }] },
        doc! { "aggregate": "c", "pipeline": [{ "$set": { "x": { "$switch": { "branches": &branches } } } }] },
        doc! { "aggregate": "c", "pipeline": [{ "$set": { "x": { "$add": &many(doc! { "$abs": "$a" }) } } }] },
    ];
    let process = sheaf_meter::Process::new(u64::MAX, u64::MAX);
    for command in commands {
        let shape = QueryShape::of("t", command.as_raw()).expect("a query");
        assert_eq!(shape.hash().unwrap().len(), 64);
        let looks = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let seen = looks.clone();
        let source = move || {
            seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Err(Error::new(Code::INTERRUPTED, "operation was interrupted"))
        };
        let _entered = sheaf_meter::enter(sheaf_meter::Meter::new(&process, Arc::new(source)));
        assert_eq!(shape.hash().unwrap_err().code(), Code::INTERRUPTED);
        // Not only at its end.
        assert!(looks.load(std::sync::atomic::Ordering::Relaxed) > 1, "{command:?}");
    }
}
