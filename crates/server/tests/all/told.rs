//! What the profiler, the slow log and `serverStatus` tell of operations that have ended.

use sheaf_bson::{ArrayBuf, DocBuf, doc};
use sheaf_wire::{REPLY_HEAD, finish_msg};

use super::support::{Connection, Server, body, number};

fn list(docs: &[DocBuf]) -> ArrayBuf {
    ArrayBuf::build(|list| {
        for one in docs {
            list.push(one);
        }
    })
}

fn run(connection: &mut Connection, command: DocBuf) -> DocBuf {
    connection.run(&command.with("$db", "told"))
}

fn values(reply: &DocBuf) -> Vec<String> {
    let cursor = reply.as_raw().get("cursor").and_then(|cursor| cursor.as_doc());
    let batch = cursor.and_then(|cursor| cursor.get("firstBatch")).and_then(|batch| batch.as_array());
    let batch = batch.unwrap_or_else(|| panic!("{reply:?}"));
    batch.values().map(|entry| sheaf_bson::document_text(entry.as_doc().unwrap())).collect()
}

/// Five documents and an index.
fn fill(connection: &mut Connection) {
    let documents: Vec<_> = (0..5).map(|id| doc! { "_id": id, "a": id % 2, "b": -id }).collect();
    assert_eq!(number(&run(connection, doc! { "insert": "c", "documents": &list(&documents) }), "n"), 5);
    let index = doc! { "key": { "a": 1 }, "name": "a_1" };
    run(connection, doc! { "createIndexes": "c", "indexes": &list(&[index]) });
}

/// The profiler's entries of what `work` does, without what is another at every time.
fn profiled(connection: &mut Connection, work: impl FnOnce(&mut Connection)) -> Vec<String> {
    run(connection, doc! { "profile": 2 });
    work(connection);
    run(connection, doc! { "profile": 0 });
    let hidden = [
        "_id",
        "ts",
        "client",
        "millis",
        "locks",
        "numYield",
        "allUsers",
        "user",
        "responseLength",
        "queryShapeHash",
        "protocol",
        "errMsg",
        "planCacheShapeHash",
        "queryHash",
        "planCacheKey",
        "planningTimeMicros",
        "execStats",
    ];
    let hidden = DocBuf::build(|out| {
        for name in hidden {
            out.append(name, 0);
        }
    });
    let seen = run(
        connection,
        doc! { "find": "system.profile", "filter": { "ns": { "$ne": "told.system.profile" }, "command.profile": { "$exists": false } }, "projection": &hidden },
    );
    run(connection, doc! { "drop": "system.profile" });
    values(&seen)
}

#[test]
fn each_statement_has_an_entry() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    let set = doc! { "$set": { "z": 1 } };
    let updates = list(&[
        doc! { "q": { "_id": 3 }, "u": &set },
        doc! { "multi": true, "q": { "b": { "$lt": -2 } }, "u": &set },
        doc! { "q": { "a": 1 }, "u": &set, "multi": true, "hint": "a_1" },
        doc! { "q": { "_id": 9 }, "u": { "$inc": { "n": 1 } }, "upsert": true },
        doc! { "q": {}, "u": &set, "sort": { "b": 1 } },
        doc! { "q": { "b": -4 }, "u": { "$push": { "a": 1 } } },
    ]);
    let told = profiled(&mut connection, |connection| {
        let reply =
            run(connection, doc! { "update": "c", "updates": &updates, "comment": "why", "ordered": false });
        assert_eq!(number(&reply, "n"), 7, "{reply:?}");
    });
    let wanted = [
        r#"{ op: "update", ns: "told.c", command: { q: { _id: 3 }, u: { $set: { z: 1 } }, multi: false, upsert: false, comment: "why" }, keysExamined: 1, docsExamined: 1, nMatched: 1, nModified: 1, nUpserted: 0, queryFramework: "classic", planSummary: "EXPRESS_IXSCAN { _id: 1 },EXPRESS_UPDATE" }"#,
        r#"{ op: "update", ns: "told.c", command: { q: { b: { $lt: -2 } }, u: { $set: { z: 1 } }, multi: true, upsert: false, comment: "why" }, keysExamined: 0, docsExamined: 5, nMatched: 2, nModified: 1, nUpserted: 0, queryFramework: "classic", planSummary: "COLLSCAN" }"#,
        r#"{ op: "update", ns: "told.c", command: { q: { a: 1 }, u: { $set: { z: 1 } }, hint: "a_1", multi: true, upsert: false, comment: "why" }, keysExamined: 2, docsExamined: 2, nMatched: 2, nModified: 1, nUpserted: 0, queryFramework: "classic", planSummary: "IXSCAN { a: 1 }" }"#,
        r#"{ op: "update", ns: "told.c", command: { q: { _id: 9 }, u: { $inc: { n: 1 } }, multi: false, upsert: true, comment: "why" }, keysExamined: 0, docsExamined: 0, nMatched: 0, nModified: 0, nUpserted: 1, keysInserted: 2, queryFramework: "classic", planSummary: "IDHACK" }"#,
        r#"{ op: "update", ns: "told.c", command: { q: {}, u: { $set: { z: 1 } }, multi: false, upsert: false, sort: { b: 1 }, comment: "why" }, keysExamined: 0, docsExamined: 6, hasSortStage: true, nMatched: 1, nModified: 1, nUpserted: 0, queryFramework: "classic", planSummary: "COLLSCAN" }"#,
        r#"{ op: "update", ns: "told.c", command: { q: { b: -4 }, u: { $push: { a: 1 } }, multi: false, upsert: false, comment: "why" }, keysExamined: 0, docsExamined: 5, queryFramework: "classic", ok: 0, errName: "BadValue", errCode: 2, planSummary: "COLLSCAN" }"#,
    ];
    assert_eq!(told, wanted, "{told:#?}");

    let deletes = list(&[
        doc! { "q": { "_id": 3 }, "limit": 1.0 },
        doc! { "q": { "b": -4 }, "limit": 0, "collation": { "locale": "en" } },
        doc! { "q": { "a": 1 }, "limit": 1 },
    ]);
    let told = profiled(&mut connection, |connection| {
        assert_eq!(number(&run(connection, doc! { "delete": "c", "deletes": &deletes }), "n"), 3);
    });
    let wanted = [
        r#"{ op: "remove", ns: "told.c", command: { q: { _id: 3 }, limit: 1 }, keysExamined: 1, docsExamined: 1, ndeleted: 1, keysDeleted: 2, queryFramework: "classic", planSummary: "EXPRESS_IXSCAN { _id: 1 },EXPRESS_DELETE" }"#,
        r#"{ op: "remove", ns: "told.c", command: { q: { b: -4 }, limit: 0, collation: { locale: "en" } }, keysExamined: 0, docsExamined: 5, ndeleted: 1, keysDeleted: 2, queryFramework: "classic", planSummary: "COLLSCAN" }"#,
        r#"{ op: "remove", ns: "told.c", command: { q: { a: 1 }, limit: 1 }, keysExamined: 1, docsExamined: 1, ndeleted: 1, keysDeleted: 2, queryFramework: "classic", planSummary: "IXSCAN { a: 1 }" }"#,
    ];
    assert_eq!(told, wanted, "{told:#?}");
}

#[test]
fn other_operations_tell_what_they_looked_at() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    let told = profiled(&mut connection, |connection| {
        run(connection, doc! { "distinct": "c", "key": "b" });
        run(connection, doc! { "distinct": "c", "key": "a" });
        let change = doc! { "$set": { "b": 7 } };
        run(
            connection,
            doc! { "findAndModify": "c", "query": { "a": 1 }, "sort": { "b": 1 }, "update": &change },
        );
        run(connection, doc! { "findAndModify": "c", "query": { "_id": 1 }, "remove": true });
        run(connection, doc! { "insert": "c", "documents": &list(&[doc! { "_id": 2 }]) });
    });
    let wanted = [
        r#"{ op: "command", ns: "told.c", command: { distinct: "c", key: "b", $db: "told" }, keysExamined: 0, docsExamined: 5, queryFramework: "classic", planSummary: "COLLSCAN" }"#,
        r#"{ op: "command", ns: "told.c", command: { distinct: "c", key: "a", $db: "told" }, keysExamined: 2, docsExamined: 0, queryFramework: "classic", planSummary: "DISTINCT_SCAN { a: 1 }" }"#,
        r#"{ op: "command", ns: "told.c", command: { findAndModify: "c", query: { a: 1 }, sort: { b: 1 }, update: { $set: { b: 7 } }, $db: "told" }, keysExamined: 2, docsExamined: 2, hasSortStage: true, nMatched: 1, nModified: 1, nUpserted: 0, queryFramework: "classic", planSummary: "IXSCAN { a: 1 }" }"#,
        r#"{ op: "command", ns: "told.c", command: { findAndModify: "c", query: { _id: 1 }, remove: true, $db: "told" }, keysExamined: 1, docsExamined: 1, ndeleted: 1, keysDeleted: 2, queryFramework: "classic", planSummary: "EXPRESS_IXSCAN { _id: 1 },EXPRESS_DELETE" }"#,
        r#"{ op: "insert", ns: "told.c", command: { insert: "c", documents: [ { _id: 2 } ], $db: "told" }, ninserted: 0, ok: 0, errName: "DuplicateKey", errCode: 11000 }"#,
    ];
    assert_eq!(told, wanted, "{told:#?}");
}

#[test]
fn the_slow_log_shows_statements_that_came_beside_the_command() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    run(&mut connection, doc! { "profile": 0, "slowms": 0 });
    let statement = doc! { "q": { "b": -4 }, "u": { "$set": { "z": "beside" } } };
    let mut bytes = vec![0; REPLY_HEAD];
    bytes.extend_from_slice(doc! { "update": "c", "$db": "told" }.as_bytes());
    bytes.push(1);
    bytes.extend_from_slice(&(4 + 8 + statement.as_bytes().len() as i32).to_le_bytes());
    bytes.extend_from_slice(b"updates\0");
    bytes.extend_from_slice(statement.as_bytes());
    finish_msg(&mut bytes, 78, 0, 0);
    connection.send(&bytes);
    assert_eq!(number(&body(&connection.receive().unwrap()), "nModified"), 1);
    let reply = connection.run(&doc! { "getLog": "global", "$db": "admin" });
    let lines = reply.as_raw().get("log").unwrap().as_array().unwrap();
    let lines: Vec<_> = lines.values().map(|line| line.as_str().unwrap().to_owned()).collect();
    let line = lines.iter().find(|line| line.contains("\"beside\"")).unwrap_or_else(|| panic!("{lines:?}"));
    for part in [
        r#""c":"WRITE""#,
        r#""type":"update""#,
        r#""ns":"told.c""#,
        r#""command":{"q":{"b":-4},"u":{"$set":{"z":"beside"}},"multi":false,"upsert":false},"planSummary":"COLLSCAN","keysExamined":0,"docsExamined":5,"nMatched":1,"nModified":1,"nUpserted":0,"planCacheShapeHash":"#,
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    let whole = |line: &&String| line.contains(r#""command":{"update":"c","$db":"told"}"#);
    let line = lines.iter().find(whole).unwrap_or_else(|| panic!("{lines:?}"));
    assert!(line.contains(r#""ns":"told.$cmd""#) && !line.contains("nMatched"), "{line}");
    assert!(line.contains(r#""workingMillis":"#), "{line}");
}

/// The profiler's entries of what `work` does, whole.
fn whole_entries(connection: &mut Connection, work: impl FnOnce(&mut Connection)) -> Vec<DocBuf> {
    run(connection, doc! { "profile": 2 });
    work(connection);
    run(connection, doc! { "profile": 0 });
    let own = doc! { "ns": { "$ne": "told.system.profile" }, "command.profile": { "$exists": false } };
    let seen = run(connection, doc! { "find": "system.profile", "filter": &own });
    run(connection, doc! { "drop": "system.profile" });
    let cursor = seen.as_raw().get("cursor").and_then(|cursor| cursor.as_doc()).unwrap();
    let batch = cursor.get("firstBatch").and_then(|batch| batch.as_array()).unwrap();
    batch.values().map(|entry| DocBuf::from(entry.as_doc().unwrap())).collect()
}

/// The value at a path, as text; nothing: there is none.
fn text_at(document: &DocBuf, path: &str) -> String {
    let mut at = sheaf_bson::Value::Document(document.as_raw());
    for name in path.split('.') {
        match at.as_doc().or(at.as_array()).and_then(|part| part.get(name)) {
            Some(found) => at = found,
            None => return String::new(),
        }
    }
    sheaf_bson::value_text(at)
}

/// The names of the stages of a plan, the top one first.
fn stages(entry: &DocBuf, path: &str) -> Vec<String> {
    let path = |depth: usize| format!("{path}{}.stage", ".inputStage".repeat(depth));
    (0..)
        .map(|depth| text_at(entry, &path(depth)).replace('"', ""))
        .take_while(|name| !name.is_empty())
        .collect()
}

#[test]
fn plans_have_the_names_that_explain_gives_them() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    run(
        &mut connection,
        doc! { "createIndexes": "c", "indexes": &list(&[doc! { "key": { "a": 1, "b": 1 }, "name": "ab" }]) },
    );
    run(&mut connection, doc! { "create": "v", "viewOn": "c", "pipeline": &list(&[]) });
    let filter = doc! { "a": 1, "b": { "$lt": 0 } };
    let pipeline = list(&[
        doc! { "$match": &filter },
        doc! { "$lookup": { "from": "c", "localField": "b", "foreignField": "b", "as": "j" } },
    ]);
    let change = doc! { "$set": { "z": 1 } };
    let find = doc! { "find": "c", "filter": &filter, "sort": { "_id": -1 }, "batchSize": 1 };
    let commands = [
        (find.clone(), vec!["SORT", "FETCH", "IXSCAN"]),
        (doc! { "count": "c", "query": { "a": 1 } }, vec!["COUNT", "COUNT_SCAN"]),
        (doc! { "distinct": "c", "key": "b", "query": { "z": 7 } }, vec!["COLLSCAN"]),
        (doc! { "aggregate": "c", "pipeline": &pipeline, "cursor": {} }, vec!["FETCH", "IXSCAN"]),
        (doc! { "aggregate": "v", "pipeline": &pipeline, "cursor": {} }, vec!["FETCH", "IXSCAN"]),
        (
            doc! { "findAndModify": "c", "query": &filter, "update": &change },
            vec!["UPDATE", "FETCH", "IXSCAN"],
        ),
        (
            doc! { "update": "c", "updates": &list(&[doc! { "q": &filter, "u": &change, "multi": true }]) },
            vec!["UPDATE", "FETCH", "IXSCAN"],
        ),
        (
            doc! { "delete": "c", "deletes": &list(&[doc! { "q": { "z": 9 }, "limit": 0 }]) },
            vec!["BATCHED_DELETE", "COLLSCAN"],
        ),
    ];
    for (command, plan) in commands {
        let explained = run(&mut connection, doc! { "explain": &command, "verbosity": "queryPlanner" });
        let planner = ["queryPlanner", "stages.0.$cursor.queryPlanner"]
            .into_iter()
            .find(|path| !text_at(&explained, path).is_empty())
            .unwrap_or_else(|| panic!("{explained:?}"));
        let entries = whole_entries(&mut connection, |connection| _ = run(connection, command.clone()));
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        for name in ["queryHash", "planCacheShapeHash", "planCacheKey"] {
            let explained = text_at(&explained, &format!("{planner}.{name}"));
            assert_eq!(text_at(entry, name), explained, "{name} of {command:?}");
        }
        assert_eq!(text_at(entry, "queryFramework"), r#""classic""#);
        assert_eq!(stages(entry, "execStats"), plan, "{entry:?}");
        let written = matches!(plan[0], "UPDATE" | "BATCHED_DELETE");
        assert_eq!(text_at(entry, "planningTimeMicros").is_empty(), written, "{entry:?}");
    }

    // By `_id` there is nothing to be planned.
    let entries = whole_entries(&mut connection, |connection| {
        run(connection, doc! { "find": "c", "filter": { "_id": 1 } });
    });
    assert_eq!(text_at(&entries[0], "planSummary"), r#""EXPRESS_IXSCAN { _id: 1 }""#);
    assert_eq!(text_at(&entries[0], "planCacheKey"), "");

    // A batch later it is the query of the command that has opened the cursor.
    let entries = whole_entries(&mut connection, |connection| {
        let reply = run(connection, find.clone());
        let id = reply.as_raw().get("cursor").and_then(|cursor| cursor.as_doc()?.get("id")?.as_exact_i64());
        run(connection, doc! { "getMore": id.unwrap(), "collection": "c" });
    });
    let [first, later] = &entries[..] else { panic!("{entries:?}") };
    for name in ["planCacheKey", "planSummary", "queryShapeHash"] {
        assert_eq!(text_at(first, name), text_at(later, name));
        assert!(!text_at(later, name).is_empty(), "{name}: {later:?}");
    }
    assert_eq!(text_at(later, "originatingCommand.find"), r#""c""#);
    assert_eq!(stages(later, "execStats"), ["SORT", "FETCH", "IXSCAN"]);

    // Where there are several plans, it tells whether they had to be tried.
    let two = doc! { "find": "c", "filter": { "a": 1, "b": -1 } };
    let entries = whole_entries(&mut connection, |connection| {
        for _ in 0..2 {
            run(connection, two.clone());
        }
    });
    let from = |entry: &DocBuf| ["fromMultiPlanner", "fromPlanCache"].map(|name| text_at(entry, name));
    assert_eq!(from(&entries[0]), ["true", ""], "{entries:?}");
    assert_eq!(from(&entries[1]), ["", "true"], "{entries:?}");
}

#[test]
fn each_operation_of_a_bulk_write_has_an_entry_where_it_writes() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    let ops = list(&[
        doc! { "insert": 0, "document": { "_id": 20, "a": 9 } },
        doc! { "insert": 0, "document": { "_id": 21, "a": 9 } },
        doc! { "insert": 1, "document": { "_id": 1 } },
        doc! { "update": 0, "filter": { "a": 9 }, "updateMods": { "$set": { "b": 1 } }, "multi": true },
        doc! { "delete": 0, "filter": { "_id": 20 } },
        doc! { "insert": 0, "document": { "_id": 21 } },
    ]);
    let told = profiled(&mut connection, |connection| {
        let namespaces = list(&[doc! { "ns": "told.c" }, doc! { "ns": "other.d" }]);
        let command = doc! { "bulkWrite": 1, "ops": &ops, "nsInfo": &namespaces, "$db": "admin" };
        assert_eq!(number(&connection.run(&command), "nErrors"), 1);
    });
    let wanted = [
        r#"{ op: "bulkWrite", ns: "told.c", command: { insert: 0, documents: [ { _id: 20, a: 9 }, { _id: 21, a: 9 } ] }, ninserted: 2, keysInserted: 4 }"#,
        r#"{ op: "bulkWrite", ns: "told.c", command: { update: 0, filter: { a: 9 }, updateMods: { $set: { b: 1 } }, multi: true }, keysExamined: 2, docsExamined: 2, nMatched: 2, nModified: 2, nUpserted: 0, queryFramework: "classic", planSummary: "IXSCAN { a: 1 }" }"#,
        r#"{ op: "bulkWrite", ns: "told.c", command: { delete: 0, filter: { _id: 20 } }, keysExamined: 1, docsExamined: 1, ndeleted: 1, keysDeleted: 2, queryFramework: "classic", planSummary: "IDHACK" }"#,
        r#"{ op: "bulkWrite", ns: "told.c", command: { insert: 0, documents: [ { _id: 21 } ] }, ninserted: 0, ok: 0, errName: "DuplicateKey", errCode: 11000 }"#,
    ];
    assert_eq!(told, wanted, "{told:#?}");
}

/// A figure of `metrics`.
fn metric(connection: &mut Connection, part: &str, name: &str) -> i64 {
    let status = connection.run(&doc! { "serverStatus": 1, "$db": "admin" });
    let metrics = status.as_raw().get("metrics").and_then(|metrics| metrics.as_doc());
    let part = metrics.and_then(|metrics| metrics.get(part)).and_then(|part| part.as_doc());
    part.and_then(|part| part.get(name)).and_then(|figure| figure.as_exact_i64()).unwrap()
}

#[test]
fn sorts_and_what_writes_find_are_counted() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    let by = doc! { "b": 1 };
    let steps = [
        (doc! { "find": "c", "sort": &by }, 1, 0, 0, 5),
        (doc! { "find": "c", "sort": { "a": 1 } }, 0, 0, 0, 5),
        (doc! { "aggregate": "c", "pipeline": &list(&[doc! { "$sort": &by }]), "cursor": {} }, 1, 0, 0, 5),
        (
            doc! {
                "aggregate": "c", "cursor": {},
                "pipeline": &list(&[doc! { "$group": { "_id": "$b" } }, doc! { "$sort": { "_id": 1 } }]),
            },
            1,
            0,
            0,
            5,
        ),
        (
            doc! {
                "update": "c",
                "updates": &list(&[doc! { "q": {}, "u": { "$set": { "a": 0 } }, "sort": &by }, doc! { "q": { "_id": 1 }, "u": {} }]),
            },
            1,
            2,
            0,
            6,
        ),
        (doc! { "findAndModify": "c", "sort": &by, "update": { "$set": { "x": 1 } } }, 1, 1, 0, 5),
        (doc! { "findAndModify": "c", "query": { "_id": 2 }, "remove": true }, 0, 0, 1, 1),
        (doc! { "delete": "c", "deletes": &list(&[doc! { "q": { "b": -3 }, "limit": 0 }]) }, 0, 0, 1, 4),
        (doc! { "distinct": "c", "key": "b" }, 0, 0, 0, 3),
    ];
    for (command, sorts, updated, deleted, docs) in steps {
        let figures = |connection: &mut Connection| {
            [
                metric(connection, "operation", "scanAndOrder"),
                metric(connection, "document", "updated"),
                metric(connection, "document", "deleted"),
                metric(connection, "queryExecutor", "scannedObjects"),
            ]
        };
        let before = figures(&mut connection);
        let reply = run(&mut connection, command.clone());
        assert_eq!(reply.as_raw().get("ok").and_then(|ok| ok.as_f64()), Some(1.0), "{reply:?}");
        let after = figures(&mut connection);
        let grown: Vec<_> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        assert_eq!(grown, [sorts, updated, deleted, docs], "{command:?}");
    }
}

/// The number at a path of `serverStatus`.
fn status(connection: &mut Connection, path: &str) -> i64 {
    let status = connection.run(&doc! { "serverStatus": 1, "$db": "admin" });
    text_at(&status, path).parse().unwrap_or_else(|_| panic!("{path}"))
}

/// How much figures of `serverStatus` grow while `work` is done.
fn grown<const N: usize>(
    connection: &mut Connection,
    paths: [&str; N],
    work: impl FnOnce(&mut Connection),
) -> [i64; N] {
    let before = paths.map(|path| status(connection, path));
    work(connection);
    let after = paths.map(|path| status(connection, path));
    std::array::from_fn(|at| after[at] - before[at])
}

#[test]
fn server_status_counts_what_plans_and_cursors_come_to() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    let scans = ["total", "nonTailable"].map(|name| format!("metrics.queryExecutor.collectionScans.{name}"));
    let scans = [&*scans[0], &*scans[1]];
    run(&mut connection, doc! { "create": "capped", "capped": true, "size": 4096 });
    run(&mut connection, doc! { "insert": "capped", "documents": &list(&[doc! { "x": 1 }]) });
    let all = grown(&mut connection, scans, |connection| {
        run(connection, doc! { "find": "c", "filter": { "b": 1 } });
        run(connection, doc! { "find": "c", "filter": { "a": 1 } });
        run(connection, doc! { "find": "capped", "tailable": true });
    });
    assert_eq!(all, [2, 1]);

    let sorts = ["totalBytesSorted", "totalKeysSorted"].map(|name| format!("metrics.query.sort.{name}"));
    let all = grown(&mut connection, [&*sorts[0], &*sorts[1]], |connection| {
        run(connection, doc! { "find": "c", "sort": { "b": 1 }, "projection": { "b": 1 } });
        let stages = list(&[doc! { "$group": { "_id": "$a" } }, doc! { "$sort": { "_id": 1 } }]);
        run(connection, doc! { "aggregate": "c", "pipeline": &stages, "cursor": {} });
        let change = doc! { "$set": { "z": 1 } };
        run(connection, doc! { "findAndModify": "c", "sort": { "b": 1 }, "update": &change });
    });
    assert_eq!(all[1], 5 + 2 + 5);
    assert!(all[0] > 12 * 10, "{all:?}");

    run(
        &mut connection,
        doc! { "createIndexes": "c", "indexes": &list(&[doc! { "key": { "a": 1, "b": 1 }, "name": "ab" }]) },
    );
    let cache = ["classic.hits", "classic.misses", "totalQueryShapes"];
    let cache = cache.map(|name| format!("metrics.query.planCache.{name}"));
    let all = grown(&mut connection, [&*cache[0], &*cache[1], &*cache[2]], |connection| {
        for _ in 0..3 {
            run(connection, doc! { "find": "c", "filter": { "a": 1, "b": -1 } });
        }
    });
    assert_eq!(all, [2, 1, 1]);

    let cursors =
        ["moreThanOneBatch", "lifespan.lessThan1Second"].map(|name| format!("metrics.cursor.{name}"));
    let all = grown(&mut connection, [&*cursors[0], &*cursors[1]], |connection| {
        for more in [true, false] {
            let reply = run(connection, doc! { "find": "c", "batchSize": 2 });
            let id = text_at(&reply, "cursor.id").parse::<i64>().unwrap();
            match more {
                true => _ = run(connection, doc! { "getMore": id, "collection": "c" }),
                false => {
                    let ids = ArrayBuf::build(|ids| _ = ids.push(id));
                    run(connection, doc! { "killCursors": "c", "cursors": &ids });
                }
            }
        }
    });
    assert_eq!(all, [1, 2]);
}

#[test]
fn server_status_counts_operations_and_their_parts() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    fill(&mut connection);
    let ops = list(&[
        doc! { "insert": 0, "document": { "_id": 20 } },
        doc! { "insert": 0, "document": { "_id": 21 } },
        doc! { "update": 0, "filter": { "_id": 20 }, "updateMods": { "$set": { "b": 1 } } },
        doc! { "delete": 0, "filter": { "_id": 20 } },
    ]);
    let bulk =
        doc! { "bulkWrite": 1, "ops": &ops, "nsInfo": &list(&[doc! { "ns": "told.c" }]), "$db": "admin" };
    let counters = ["insert", "update", "delete", "command"].map(|name| format!("opcounters.{name}"));
    let counters = counters.each_ref().map(|name| &**name);
    let all = grown(&mut connection, counters, |connection| _ = connection.run(&bulk));
    // `command` has the calls of serverStatus: three after its own, and three up to its own.
    assert_eq!(all, [2, 1, 1, 4]);

    let stages =
        ["$match", "$lookup", "$facet", "$count"].map(|name| format!("metrics.aggStageCounters.{name}"));
    let stages = stages.each_ref().map(|name| &**name);
    let pipeline = list(&[
        doc! { "$match": { "a": 1 } },
        doc! { "$lookup": { "from": "c", "pipeline": &list(&[doc! { "$match": {} }]), "as": "j" } },
        doc! { "$facet": { "x": &list(&[doc! { "$count": "n" }]), "y": &list(&[doc! { "$match": {} }]) } },
    ]);
    let all = grown(&mut connection, stages, |connection| {
        run(connection, doc! { "aggregate": "c", "pipeline": &pipeline, "cursor": {} });
    });
    assert_eq!(all, [3, 1, 1, 1]);

    let parts =
        ["update.pipeline", "update.arrayFilters", "findAndModify.pipeline", "aggregate.allowDiskUseTrue"];
    let parts = parts.map(|name| format!("metrics.commands.{name}"));
    let parts = parts.each_ref().map(|name| &**name);
    let change = list(&[doc! { "$set": { "z": 1 } }]);
    run(&mut connection, doc! { "findAndModify": "c", "update": &change });
    run(&mut connection, doc! { "update": "c", "updates": &list(&[doc! { "q": {}, "u": &change }]) });
    let all = grown(&mut connection, parts, |connection| {
        run(connection, doc! { "findAndModify": "c", "update": &change });
        let filters = list(&[doc! { "e": 1 }]);
        let filtered = doc! { "q": {}, "u": { "$set": { "l.$[e]": 1 } }, "arrayFilters": &filters };
        let updates = list(&[doc! { "q": {}, "u": &change }, filtered]);
        run(connection, doc! { "update": "c", "updates": &updates });
        run(
            connection,
            doc! { "aggregate": "c", "pipeline": &list(&[]), "cursor": {}, "allowDiskUse": true },
        );
    });
    assert_eq!(all, [1, 1, 1, 1]);

    let expired = ["metrics.operation.killedDueToMaxTimeMSExpired"];
    let slow = doc! { "find": "c", "filter": { "$where": "for (;;) ; return true" }, "maxTimeMS": 5 };
    let all = grown(&mut connection, expired, |connection| {
        assert_eq!(number(&run(connection, slow), "code"), 50);
    });
    assert_eq!(all, [1]);
}
