use sheaf_bson::{Binary, DocBuf, ObjectId, RawDoc, Timestamp, Value, doc};
use sheaf_errors::Code;

use super::event::{Event, Operation, Origin, events};
use super::split::split;
use super::*;
use crate::namespace::Namespace;

const UUID: [u8; 16] = [7; 16];

fn uuid() -> Value<'static> {
    Value::Binary(Binary { subtype: 4, bytes: &UUID })
}

fn stream(watched: Watched, expanded: bool) -> ChangeStream {
    ChangeStream {
        watched,
        start: Start::Now,
        full_document: FullDocument::Default,
        before_change: BeforeChange::Off,
        expanded,
        raw_description: false,
        migrations: false,
        merged: false,
    }
}

fn collection() -> Watched {
    Watched::Collection("db.c".to_owned())
}

fn run(stream: &ChangeStream, operation: &DocBuf) -> Option<(Event, Option<Event>)> {
    let origin = Origin { time: 0x6000_0000_0000_0002, wall: Value::DateTime(5), transaction: None };
    let operation = Operation::read(operation.as_raw()).expect("an operation");
    assert_eq!(operation.concerns(stream), events(stream, origin, operation).is_some());
    events(stream, origin, operation)
}

/// The event without its token.
fn shown(event: &Event) -> DocBuf {
    DocBuf::build(|out| {
        for field in event.document.as_raw().iter().filter(|field| field.key() != "_id") {
            out.append_element(field);
        }
    })
}

fn single(stream: &ChangeStream, operation: &DocBuf) -> DocBuf {
    let (event, end) = run(stream, operation).expect("an event");
    assert!(end.is_none());
    shown(&event)
}

fn common(kind: &str) -> DocBuf {
    doc! { "operationType": kind, "clusterTime": Timestamp(0x6000_0000_0000_0002), "wallTime": Value::DateTime(5) }
}

#[test]
fn documents() {
    let stream = stream(collection(), false);
    let ns = doc! { "db": "db", "coll": "c" };
    let insert = doc! { "op": "i", "ns": "db.c", "ui": uuid(), "o": { "a": 1, "_id": 5 } };
    let wanted = common("insert").with("fullDocument", &doc! { "a": 1, "_id": 5 }).with("ns", &ns);
    assert_eq!(single(&stream, &insert), wanted.with("documentKey", &doc! { "_id": 5 }));

    let delete = doc! { "op": "d", "ns": "db.c", "ui": uuid(), "o": { "_id": 5 } };
    assert_eq!(
        single(&stream, &delete),
        common("delete").with("ns", &ns).with("documentKey", &doc! { "_id": 5 })
    );

    let replace =
        doc! { "op": "u", "ns": "db.c", "ui": uuid(), "o": { "_id": 5, "$v": 2 }, "o2": { "_id": 5 } };
    let wanted = common("replace").with("fullDocument", &doc! { "_id": 5, "$v": 2 }).with("ns", &ns);
    assert_eq!(single(&stream, &replace), wanted.with("documentKey", &doc! { "_id": 5 }));

    let update = doc! {
        "op": "u", "ns": "db.c", "ui": uuid(), "o2": { "_id": 5 },
        "o": { "$v": 2, "diff": { "d": { "x": false }, "u": { "y": 1 }, "sz": { "a": true, "l": 2 } } }
    };
    let description = doc! {
        "updatedFields": { "y": 1 },
        "removedFields": ["x"],
        "truncatedArrays": [{ "field": "z", "newSize": 2 }]
    };
    let wanted = common("update").with("ns", &ns).with("documentKey", &doc! { "_id": 5 });
    assert_eq!(single(&stream, &update), wanted.with("updateDescription", &description));

    for (namespace, db, all) in [
        ("db.c", true, true),
        ("db.x", true, true),
        ("db.system.js", false, false),
        ("dbx.c", false, true),
        ("admin.c", false, false),
    ] {
        let insert = doc! { "op": "i", "ns": namespace, "o": { "_id": 5 } };
        assert_eq!(run(&stream, &insert).is_some(), namespace == "db.c", "{namespace}");
        let database = self::stream(Watched::Database("db".to_owned()), false);
        assert_eq!(run(&database, &insert).is_some(), db, "{namespace}");
        assert_eq!(run(&self::stream(Watched::Cluster, false), &insert).is_some(), all, "{namespace}");
    }
}

#[test]
fn commands() {
    let plain = stream(collection(), false);
    let expanded = stream(collection(), true);
    let database = stream(Watched::Database("db".to_owned()), true);
    let command = |o: &DocBuf| doc! { "op": "c", "ns": "db.$cmd", "ui": uuid(), "o": o };
    let ns = doc! { "db": "db", "coll": "c" };
    let expanded_common = |kind: &str| {
        doc! {
            "operationType": kind, "clusterTime": Timestamp(0x6000_0000_0000_0002),
            "collectionUUID": uuid(), "wallTime": Value::DateTime(5), "ns": &ns
        }
    };
    let spec = doc! { "v": 2, "key": { "a": 1 }, "name": "a_1" };

    let create = command(&doc! { "create": "c", "idIndex": &spec });
    assert!(run(&plain, &create).is_none(), "only expanded events show creation");
    assert_eq!(
        single(&expanded, &create),
        expanded_common("create")
            .with("operationDescription", &doc! { "idIndex": &spec })
            .with("nsType", "collection")
    );
    let described = doc! { "indexes": [&spec] };
    for o in [
        doc! { "createIndexes": "c", "v": 2, "key": { "a": 1 }, "name": "a_1" },
        doc! { "commitIndexBuild": "c", "indexBuildUUID": uuid(), "indexes": [&spec] },
    ] {
        let wanted = expanded_common("createIndexes").with("operationDescription", &described);
        assert_eq!(single(&expanded, &command(&o)), wanted);
    }
    let start = doc! { "startIndexBuild": "c", "indexBuildUUID": uuid(), "indexes": [&spec] };
    assert!(run(&expanded, &command(&start)).is_none());
    let dropped = command(&doc! { "dropIndexes": "c", "index": "a_1" }).with("o2", &spec);
    assert_eq!(
        single(&expanded, &dropped),
        expanded_common("dropIndexes").with("operationDescription", &described)
    );
    let modify = command(&doc! { "collMod": "c", "validator": { "a": 1 } })
        .with("o2", &doc! { "collectionOptions_old": { "capped": true } });
    assert_eq!(
        single(&expanded, &modify),
        expanded_common("modify")
            .with("operationDescription", &doc! { "validator": { "a": 1 } })
            .with("stateBeforeChange", &doc! { "collectionOptions": { "capped": true } })
    );

    let drop = command(&doc! { "drop": "c" });
    let (event, end) = run(&plain, &drop).expect("a drop");
    assert_eq!(shown(&event), common("drop").with("ns", &ns));
    let end = end.expect("a collection's stream ends with the collection");
    assert_eq!(shown(&end), common("invalidate"));
    assert!(end.invalidates && end.token.from_invalidate && event.token < end.token);
    assert!(run(&database, &drop).is_some_and(|(_, end)| end.is_none()));

    let all = doc! { "op": "c", "ns": "db.$cmd", "o": { "dropDatabase": 1 } };
    assert!(run(&plain, &all).is_none());
    let (event, end) = run(&database, &all).expect("the database is dropped");
    assert_eq!(shown(&event), common("dropDatabase").with("ns", &doc! { "db": "db" }));
    assert!(end.is_some());
    assert!(run(&stream(Watched::Cluster, false), &all).is_some_and(|(_, end)| end.is_none()));
}

#[test]
fn renames() {
    let rename = doc! {
        "op": "c", "ns": "db.$cmd", "ui": uuid(),
        "o": { "renameCollection": "db.c", "to": "other.d", "stayTemp": false, "dropTarget": uuid() }
    };
    let to = doc! { "db": "other", "coll": "d" };
    let (event, end) = run(&stream(collection(), false), &rename).expect("a rename");
    assert!(end.is_some());
    let wanted = DocBuf::build(|out| {
        out.append("to", &to)
            .append_all(common("rename").as_raw())
            .append("ns", &doc! { "db": "db", "coll": "c" });
    });
    assert_eq!(shown(&event), wanted);
    let target = stream(Watched::Collection("other.d".to_owned()), true);
    let (event, end) = run(&target, &rename).expect("the target's stream sees it too");
    assert!(end.is_some());
    let description = event.document.as_raw().get("operationDescription").and_then(|v| v.as_doc());
    assert_eq!(description.map(DocBuf::from), Some(doc! { "to": &to, "dropTarget": uuid() }));
    assert!(run(&stream(Watched::Database("third".to_owned()), false), &rename).is_none());
}

#[test]
fn transactions() {
    let stream = stream(collection(), false);
    let entry = doc! { "lsid": { "id": 1 }, "txnNumber": 3i64, "op": "c" };
    let inner = doc! { "op": "d", "ns": "db.c", "ui": uuid(), "o": { "_id": 5 } };
    let operation = Operation::read(inner.as_raw()).expect("an operation");
    let of = |index| {
        let transaction = Some((entry.as_raw(), index));
        let origin = Origin { time: 9, wall: Value::DateTime(5), transaction };
        events(&stream, origin, operation).expect("an event").0
    };
    let keys: Vec<_> = of(1).document.as_raw().iter().map(|field| field.key().to_owned()).collect();
    assert_eq!(
        keys,
        ["txnNumber", "lsid", "_id", "operationType", "clusterTime", "wallTime", "ns", "documentKey"]
    );
    assert!(of(1).token < of(2).token && of(2).token.op_index == 2);
}

#[test]
fn descriptions() {
    for (delta, updated, removed, truncated, ambiguous) in [
        (doc! { "u": { "a": 1 }, "i": { "b": 2 } }, doc! { "a": 1, "b": 2 }, doc! {}, doc! {}, doc! {}),
        (doc! { "d": { "a.b": false } }, doc! {}, doc! { "0": "a.b" }, doc! {}, doc! { "a.b": ["a.b"] }),
        (
            doc! { "sa": { "sb": { "d": { "c": false }, "u": { "d": 1 } } } },
            doc! { "a.b.d": 1 },
            doc! { "0": "a.b.c" },
            doc! {},
            doc! {},
        ),
        (
            doc! { "sa": { "a": true, "u1": 5, "s2": { "u": { "x": 6 } } } },
            doc! { "a.1": 5, "a.2.x": 6 },
            doc! {},
            doc! {},
            doc! { "a.1": ["a", 1], "a.2.x": ["a", 2, "x"] },
        ),
        (doc! { "sa": { "u": { "1": 5 } } }, doc! { "a.1": 5 }, doc! {}, doc! {}, doc! { "a.1": ["a", "1"] }),
        (doc! { "u": { "1": 5 } }, doc! { "1": 5 }, doc! {}, doc! {}, doc! {}),
        (
            doc! { "sa": { "a": true, "l": 3, "u2": 1 } },
            doc! { "a.2": 1 },
            doc! {},
            doc! { "0": { "field": "a", "newSize": 3 } },
            doc! { "a.2": ["a", 2] },
        ),
    ] {
        let found = DocBuf::build(|out| Description::of(delta.as_raw()).write(out, true));
        let wanted = doc! {
            "updatedFields": &updated,
            "removedFields": Value::Array(removed.as_raw()),
            "truncatedArrays": Value::Array(truncated.as_raw()),
            "disambiguatedPaths": &ambiguous,
        };
        assert_eq!(found, wanted, "{delta:?}");
    }
}

#[test]
fn tokens() {
    let mark = ResumeToken::high_water_mark(0x63515EAC_00000002);
    assert_eq!(mark.to_doc(), doc! { "_data": "8263515EAC000000022B0429296E1404" });
    let id = doc! { "_id": ObjectId([1; 12]) };
    let event = |time, index, key: &DocBuf| {
        ResumeToken::of_event(time, index, Some(UUID), "insert", Some(("documentKey", key.as_raw())))
    };
    let first = event(0x63515EAC_00000002, 0, &id);
    assert_eq!(
        first.to_doc(),
        doc! {
            "_data": "8263515EAC000000022B042C0100296E5A100407070707070707070707070707070707463C6F7065726174696F6E54797065003C696E736572740046646F63756D656E744B65790046645F69640064010101010101010101010101000004"
        }
    );
    let keys = [
        doc! { "_id": 5 },
        doc! { "_id": -70000i64 },
        doc! { "_id": "a\0b" },
        doc! { "_id": 1.5 },
        doc! { "_id": { "a": [1, "x"], "b": Value::Null } },
        doc! { "_id": true },
        doc! { "_id": Value::DateTime(-1) },
        doc! { "_id": Timestamp(4) },
        doc! { "_id": uuid() },
        doc! { "_id": Value::MinKey },
    ];
    for key in &keys {
        let token = event(5, 300, key);
        assert_eq!(
            ResumeToken::parse(token.to_doc().as_raw()).expect("it can be read back"),
            token,
            "{key:?}"
        );
        let fragment = token.invalidated().with_fragment(128);
        assert_eq!(ResumeToken::parse(fragment.to_doc().as_raw()).expect("it can be read back"), fragment);
    }
    let in_order = [
        event(4, 7, &id),
        ResumeToken::high_water_mark(5),
        event(5, 0, &id),
        event(5, 0, &id).invalidated(),
        event(5, 1, &id),
        event(5, 127, &id),
        event(5, 128, &id),
        event(5, 40_000, &id),
        event(5, 40_000, &id).with_fragment(0),
        event(5, 40_000, &id).with_fragment(1),
        ResumeToken::high_water_mark(6),
    ];
    let texts: Vec<String> = in_order
        .iter()
        .map(|token| {
            token.to_doc().as_raw().get("_data").and_then(|v| v.as_str()).unwrap_or_default().to_owned()
        })
        .collect();
    assert!(texts.is_sorted(), "{texts:#?}");
    assert!(in_order.is_sorted());
}

#[test]
fn bad_tokens() {
    for (token, code) in [
        (doc! {}, 40647),
        (doc! { "_data": 5 }, 40647),
        (doc! { "_data": "8" }, Code::FAILED_TO_PARSE.0),
        (doc! { "_data": "zz" }, Code::FAILED_TO_PARSE.0),
        (doc! { "_data": "" }, 40649),
        (doc! { "_data": "00" }, 50811),
        (doc! { "_data": "3C6100" }, 40650),
        (doc! { "_data": "8263515EAC00000002" }, 40650),
        (doc! { "_data": "8263515EAC000000" }, Code::OVERFLOW.0),
        (doc! { "_data": "8263515EAC000000022B0629296E1404" }, 50795),
        (doc! { "_data": "8263515EAC000000022B0429296E1404", "_typeBits": 1 }, 40648),
    ] {
        let error = ResumeToken::parse(token.as_raw()).expect_err("a bad token");
        assert_eq!(error.code().0, code, "{token:?}");
    }
}

#[test]
fn tokens_need_no_end() {
    let token =
        ResumeToken::of_event(5, 0, Some(UUID), "insert", Some(("documentKey", doc! { "_id": 1 }.as_raw())));
    let doc = token.to_doc();
    let text = doc.as_raw().get("_data").and_then(|v| v.as_str()).expect("a text");
    let parse = |text: &str| ResumeToken::parse(doc! { "_data": text }.as_raw());
    for same in [text.to_lowercase(), text[..text.len() - 2].into(), format!("{text}FF"), format!("{text}00")]
    {
        assert_eq!(parse(&same).expect("the same position"), token, "{same}");
    }
    let error = parse(&text[..text.len() - 4]).expect_err("it ends within the object");
    assert_eq!(error.code(), Code::OVERFLOW);
}

#[test]
fn arguments() {
    let parse = |db: &str, collection: &str, pipeline: &DocBuf| {
        let namespace = Namespace::new(db, collection);
        crate::Pipeline::parse(pipeline.as_raw(), &namespace, &mut sheaf_expr::ParseCx::new())
    };
    let mark = ResumeToken::high_water_mark(5).to_doc();
    let of_event = ResumeToken::of_event(5, 0, None, "dropDatabase", None).to_doc();
    let invalidated = ResumeToken::of_event(5, 0, Some(UUID), "drop", None).invalidated().to_doc();
    let one = |spec: DocBuf| doc! { "0": { "$changeStream": &spec } };
    for (db, collection, pipeline, code) in [
        ("db", "c", one(doc! {}), 0),
        ("db", "", one(doc! { "fullDocument": "updateLookup", "showExpandedEvents": true }), 0),
        ("admin", "", one(doc! { "allChangesForCluster": true, "startAtOperationTime": Timestamp(5) }), 0),
        ("db", "c", one(doc! { "resumeAfter": &mark, "fullDocumentBeforeChange": "required" }), 0),
        ("db", "c", one(doc! { "startAfter": &invalidated }), 0),
        ("db", "c", one(doc! { "resumeAfter": &invalidated }), Code::INVALID_RESUME_TOKEN.0),
        ("db", "c", one(doc! { "resumeAfter": &of_event }), Code::INVALID_RESUME_TOKEN.0),
        ("db", "", one(doc! { "resumeAfter": &of_event }), 0),
        ("db", "c", one(doc! { "resumeAfter": &mark, "startAfter": &mark }), 50865),
        ("db", "c", one(doc! { "resumeAfter": &mark, "startAtOperationTime": Timestamp(5) }), 40674),
        ("db", "c", one(doc! { "allChangesForCluster": true }), Code::INVALID_OPTIONS.0),
        ("admin", "", one(doc! {}), Code::INVALID_NAMESPACE.0),
        ("local", "c", one(doc! {}), Code::INVALID_NAMESPACE.0),
        ("db", "system.js", one(doc! {}), Code::INVALID_NAMESPACE.0),
        ("db", "c", one(doc! { "x": 1 }), 40415),
        ("db", "c", one(doc! { "fullDocument": "all" }), Code::BAD_VALUE.0),
        ("db", "c", one(doc! { "fullDocument": 1 }), Code::TYPE_MISMATCH.0),
        ("db", "c", one(doc! { "startAtOperationTime": 1 }), Code::TYPE_MISMATCH.0),
        ("db", "c", doc! { "0": { "$changeStream": 1 } }, 6188500),
        ("db", "c", doc! { "0": { "$match": {} }, "1": { "$changeStream": {} } }, 40602),
        (
            "db",
            "c",
            doc! { "0": { "$changeStream": {} }, "1": { "$group": { "_id": 1 } } },
            Code::ILLEGAL_OPERATION.0,
        ),
        ("db", "c", doc! { "0": { "$changeStream": {} }, "1": { "$match": {} }, "2": { "$unset": "a" } }, 0),
        ("db", "c", doc! { "0": { "$changeStreamSplitLargeEvent": {} } }, Code::ILLEGAL_OPERATION.0),
        (
            "db",
            "c",
            doc! { "0": { "$changeStream": {} }, "1": { "$changeStreamSplitLargeEvent": { "a": 1 } } },
            7182800,
        ),
        (
            "db",
            "c",
            doc! { "0": { "$changeStream": {} }, "1": { "$changeStreamSplitLargeEvent": {} }, "2": { "$match": {} } },
            7182802,
        ),
    ] {
        let found = parse(db, collection, &pipeline).map_or_else(|error| error.code().0, |_| 0);
        assert_eq!(found, code, "{db}.{collection} {pipeline:?}");
    }
}

#[test]
fn large_events_are_split() {
    let token = ResumeToken::of_event(5, 0, Some(UUID), "update", None);
    let (long, longer) = ("x".repeat(700), "y".repeat(900));
    let event = doc! { "_id": &token.to_doc(), "a": &longer, "b": &long, "c": 1, "d": 2 };
    let fragments = split(event.as_raw(), 1400).expect("every field fits");
    assert_eq!(fragments.len(), 2);
    let part = |at: usize, name: &str| fragments[at].as_raw().get(name).is_some();
    assert!(part(0, "b") && part(0, "c") && part(0, "d") && part(1, "a"));
    for (at, fragment) in fragments.iter().enumerate() {
        assert!(fragment.as_bytes().len() <= 1400);
        let about = fragment.as_raw().get("splitEvent").and_then(|v| v.as_doc()).map(DocBuf::from);
        assert_eq!(about, Some(doc! { "fragment": at as i32 + 1, "of": 2 }));
        let id = fragment.as_raw().get("_id").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
        let found = ResumeToken::parse(id).expect("a token");
        assert_eq!((found.without_fragment(), found.fragment), (token.clone(), Some(at as u64)));
    }
    let error = split(event.as_raw(), 900).expect_err("a field that is too large for any fragment");
    assert_eq!(error.code(), Code::BSON_OBJECT_TOO_LARGE);
}

#[test]
fn another_shard_key_is_no_event() {
    let hidden = "db.system.resharding.7f6a";
    for (from, to) in [(hidden, "db.c"), ("db.c", hidden)] {
        let rename = doc! {
            "op": "c", "ns": "db.$cmd", "ui": uuid(), "o": { "renameCollection": from, "to": to, "dropTarget": uuid() }
        };
        for watched in [collection(), Watched::Database("db".to_owned()), Watched::Cluster] {
            assert!(run(&stream(watched, true), &rename).is_none(), "{from} -> {to}");
        }
    }
}
