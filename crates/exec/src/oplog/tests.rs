use sheaf_bson::{DocBuf, RawDoc, Timestamp, doc};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;

use super::scan::Times;
use super::shown;
use crate::plan::FilterPart;

fn shown_o(o: DocBuf) -> DocBuf {
    let entry = doc! { "op": "c", "ns": "db.$cmd", "o": &o, "ts": Timestamp(1) };
    shown(entry.as_raw()).expect("commands are always brought into form")
}

fn field(doc: &DocBuf, name: &str) -> DocBuf {
    DocBuf::from(doc.as_raw().get(name).and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY))
}

#[test]
fn commands() {
    let id = doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" };
    let a = doc! { "v": 2, "key": { "a": 1 }, "name": "a_1" };
    let entries =
        |spec: &DocBuf, ready: bool| doc! { "indexes": [{ "spec": spec, "ident": 3, "ready": ready }] };
    for (stored, wanted) in [
        (
            doc! { "create": "c", "capped": true, "size": 4096, "sheaf": &entries(&id, true) },
            doc! { "create": "c", "capped": true, "size": 4096, "idIndex": &id },
        ),
        (
            doc! { "createIndexes": "c", "sheaf": &entries(&a, true) },
            doc! { "createIndexes": "c", "v": 2, "key": { "a": 1 }, "name": "a_1" },
        ),
        (
            doc! { "dropIndexes": "c", "indexes": ["a_1"], "sheaf": &entries(&a, true) },
            doc! { "dropIndexes": "c", "index": "a_1" },
        ),
        (doc! { "drop": "c", "sheaf": { "numRecords": 2i64 } }, doc! { "drop": "c" }),
        (doc! { "dropDatabase": 1 }, doc! { "dropDatabase": 1 }),
        (
            doc! {
                "collMod": "c",
                "options": { "capped": true, "validator": { "a": 1 } },
                "indexes": {},
                "sheaf": { "options": { "capped": true }, "indexes": {} },
            },
            doc! { "collMod": "c", "validator": { "a": 1 } },
        ),
        (
            doc! {
                "collMod": "c",
                "indexes": { "a_1": { "v": 2, "name": "a_1", "expireAfterSeconds": 5 } },
                "sheaf": { "options": {}, "indexes": { "a_1": { "v": 2, "name": "a_1", "expireAfterSeconds": 1 } } },
            },
            doc! { "collMod": "c", "index": { "name": "a_1", "expireAfterSeconds": 5 } },
        ),
        (
            doc! {
                "collMod": "c",
                "indexes": { "a_1": { "v": 2, "name": "a_1" } },
                "sheaf": {
                    "options": {}, "indexes": { "a_1": { "v": 2, "name": "a_1", "hidden": true } },
                    "asked": { "index": { "name": "a_1", "hidden": false }, "validator": {} },
                    "indexBefore": { "hidden": true },
                },
            },
            doc! { "collMod": "c", "index": { "name": "a_1", "hidden": false }, "validator": {} },
        ),
        (
            doc! {
                "collMod": "v",
                "options": { "viewOn": "c", "pipeline": [], "timeseries": {} },
                "indexes": {},
                "sheaf": { "options": { "viewOn": "b", "pipeline": [] }, "indexes": {} },
            },
            doc! { "collMod": "v", "viewOn": "c", "pipeline": [] },
        ),
    ] {
        assert_eq!(field(&shown_o(stored), "o"), wanted);
    }
    let dropped = shown_o(doc! { "drop": "c", "sheaf": { "numRecords": 2i64 } });
    assert_eq!(field(&dropped, "o2"), doc! { "numRecords": 2i64 });
    let build = field(&shown_o(doc! { "createIndexes": "c", "sheaf": &entries(&a, false) }), "o");
    assert_eq!(
        build.as_raw().iter().map(|e| e.key()).collect::<Vec<_>>(),
        ["startIndexBuild", "indexBuildUUID", "indexes"]
    );
}

#[test]
fn documents_lose_what_only_storage_needs() {
    let plain = doc! { "op": "d", "ns": "db.c", "o": { "_id": 1 }, "ts": Timestamp(1) };
    assert!(shown(plain.as_raw()).is_none(), "updates and deletes are shown as they lie in the log");
    let capped = doc! { "op": "i", "ns": "db.c", "o": { "a": 2, "_id": 1 }, "rid": 4i64, "ts": Timestamp(1) };
    assert_eq!(
        shown(capped.as_raw()),
        Some(
            doc! { "op": "i", "ns": "db.c", "o": { "a": 2, "_id": 1 }, "o2": { "_id": 1 }, "ts": Timestamp(1) }
        )
    );
    let inner =
        doc! { "op": "u", "ns": "db.c", "o": { "a": 1 }, "o2": { "_id": 1 }, "preImage": { "_id": 1 } };
    let transaction = doc! {
        "lsid": { "id": 1 }, "txnNumber": 1i64, "op": "c", "ns": "admin.$cmd",
        "o": { "applyOps": [&inner] }, "stmtId": -1, "ts": Timestamp(1)
    };
    assert_eq!(
        shown(transaction.as_raw()).expect("a transaction"),
        doc! {
            "lsid": { "id": 1 }, "txnNumber": 1i64, "op": "c", "ns": "admin.$cmd",
            "o": { "applyOps": [{ "op": "u", "ns": "db.c", "o": { "a": 1 }, "o2": { "_id": 1 } }] },
            "ts": Timestamp(1), "prevOpTime": { "ts": Timestamp(0), "t": -1i64 }
        }
    );
}

#[test]
fn bounds_on_ts() {
    let t = |n| Timestamp(n);
    for (filter, low, high) in [
        (doc! {}, 0, u64::MAX),
        (doc! { "ts": t(5) }, 5, 5),
        (doc! { "ts": { "$gte": t(5), "$lt": t(9) } }, 5, 8),
        (doc! { "op": "i", "ts": { "$gt": t(5) } }, 6, u64::MAX),
        (doc! { "ts": { "$gte": 5 } }, 0, u64::MAX),
        (doc! { "$or": [{ "ts": t(5) }, { "op": "n" }] }, 0, u64::MAX),
        (doc! { "ts.x": t(5) }, 0, u64::MAX),
    ] {
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).expect("a good filter");
        let part = FilterPart::whole(std::sync::Arc::new(matcher));
        assert_eq!(Times::of(Some(&part)), Times { low, high }, "{filter:?}");
    }
}
