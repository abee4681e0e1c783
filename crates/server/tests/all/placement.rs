//! A shard of one member: what its placements let clients and routers read and write.

use std::time::{Duration, Instant};

use crate::support::{Connection, Server, number};
use sheaf_bson::{ArrayBuf, Binary, DocBuf, DocWriter, RawDoc, Timestamp, Value, doc};
use sheaf_server::options::ClusterRole;
use sheaf_storage::{CreateCollection, Uuid};

const UUID: [u8; 16] = [7; 16];
const STALE: i64 = 13388;

struct Shard {
    // Before the server, whose end it would wait for.
    connection: Connection,
    server: Server,
}

impl Shard {
    fn start() -> Shard {
        let server = Server::start(|_, options| {
            options.set_name = Some("s0".to_owned());
            options.cluster_role = Some(ClusterRole::Shard);
        });
        let mut connection = server.connect();
        let initiated = connection.run(&doc! { "replSetInitiate": {}, "$db": "admin" });
        assert_eq!(number(&initiated, "ok"), 1, "{initiated:?}");
        let began = Instant::now();
        let hello = doc! { "hello": 1, "$db": "admin" };
        while !connection.run(&hello).as_raw().get("isWritablePrimary").unwrap().truthy() {
            assert!(began.elapsed() < Duration::from_secs(30), "no primary");
            std::thread::sleep(Duration::from_millis(5));
        }
        Shard { connection, server }
    }

    fn run(&mut self, command: DocBuf) -> DocBuf {
        self.connection.run(&command)
    }

    fn ok(&mut self, command: DocBuf) -> DocBuf {
        let reply = self.run(command.clone());
        let good = number(&reply, "ok") == 1 && reply.as_raw().get("writeErrors").is_none();
        assert!(good, "{command:?}: {reply:?}");
        reply
    }

    /// The code of the command, or of its first statement that failed.
    fn code(&mut self, command: DocBuf) -> i64 {
        code(&self.run(command))
    }

    /// Sharded by `a`: owned from 0 to 100.
    fn place(&mut self, version: Timestamp) {
        let owned = DocBuf::build(|out| ranges(out, "owned", 0, 100));
        self.place_as(version, &owned);
    }

    /// Sharded by `a`, with these ranges.
    fn place_as(&mut self, version: Timestamp, ranges: &DocBuf) {
        let placement = DocBuf::build(|out| {
            out.append("_id", uuid(&UUID));
            out.append("ns", "t.c").append("key", doc! { "a": 1 }.as_raw()).append("lastmod", version);
            out.append_all(ranges.as_raw());
        });
        let update = doc! { "q": { "_id": uuid(&UUID) }, "u": placement.as_raw(), "upsert": true };
        self.ok(doc! { "update": "placements", "updates": [update.as_raw()], "$db": "config" });
    }

    fn make(&mut self) {
        let spec = CreateCollection { uuid: Some(Uuid::from_bytes(UUID)), ..CreateCollection::default() };
        self.server.node.engine().create_collection("t.c", &spec, &|| Ok(())).unwrap();
    }
}

/// An array of one range.
fn ranges(out: &mut DocWriter<'_, Vec<u8>>, name: &str, min: i32, max: i32) {
    let mut list = out.array(name);
    let mut range = list.document();
    range.append("min", doc! { "a": min }.as_raw()).append("max", doc! { "a": max }.as_raw());
    if name == "leaving" {
        // In 2096: what has left long ago is removed while the test looks at it.
        range.append("since", Value::DateTime(4_000_000_000_000));
    }
}

fn uuid(bytes: &[u8; 16]) -> Value<'_> {
    Value::Binary(Binary { subtype: 4, bytes })
}

fn code(reply: &DocBuf) -> i64 {
    let failed = reply.as_raw().get("writeErrors").and_then(|errors| errors.as_array()?.values().next());
    match failed {
        Some(failed) => failed.as_doc().unwrap().get("code").unwrap().as_exact_i64().unwrap(),
        None if number(reply, "ok") == 1 => 0,
        None => number(reply, "code"),
    }
}

fn with(command: &DocBuf, version: &DocBuf) -> DocBuf {
    DocBuf::build(|out| {
        out.append_all(command.as_raw());
        out.append("shardVersion", version.as_raw());
    })
}

fn sharded(seconds: u32, increment: u32) -> DocBuf {
    doc! { "uuid": uuid(&UUID), "v": Timestamp::new(seconds, increment) }
}

fn unsharded() -> DocBuf {
    doc! { "v": Timestamp(0) }
}

/// One command of each kind that names the collection.
fn commands() -> Vec<DocBuf> {
    vec![
        doc! { "find": "c", "filter": { "_id": 1 }, "$db": "t" },
        doc! { "find": "c", "filter": { "a": { "$gt": 0 } }, "$db": "t" },
        doc! { "aggregate": "c", "pipeline": [], "cursor": {}, "$db": "t" },
        doc! { "count": "c", "$db": "t" },
        doc! { "distinct": "c", "key": "a", "$db": "t" },
        doc! { "explain": { "find": "c" }, "$db": "t" },
        doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }], "$db": "t" },
        doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "b": 1 } } }], "$db": "t" },
        doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "b": 1 } }, "multi": true }], "$db": "t" },
        doc! { "findAndModify": "c", "query": { "a": 1 }, "update": { "$set": { "b": 2 } }, "$db": "t" },
        doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }], "$db": "t" },
        doc! { "delete": "c", "deletes": [{ "q": { "a": 1 }, "limit": 0 }], "$db": "t" },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "b": 1 }, "name": "b" }], "$db": "t" },
        doc! { "collMod": "c", "validationLevel": "moderate", "$db": "t" },
        doc! { "listIndexes": "c", "$db": "t" },
        doc! { "dropIndexes": "c", "index": "b", "$db": "t" },
    ]
}

/// One command of each kind that changes what a collection is.
fn definitions() -> Vec<DocBuf> {
    vec![
        doc! { "createIndexes": "c", "indexes": [{ "key": { "b": 1 }, "name": "b" }], "$db": "t" },
        doc! { "collMod": "c", "validationLevel": "moderate", "$db": "t" },
        doc! { "dropIndexes": "c", "index": "z", "$db": "t" },
        doc! { "renameCollection": "t.c", "to": "t.d", "$db": "admin" },
        doc! { "convertToCapped": "c", "size": 4096, "$db": "t" },
        doc! { "drop": "c", "$db": "t" },
    ]
}

/// What the conductor of a change over all shards has closed, or a move of the database, nobody else changes.
#[test]
fn what_is_closed_is_not_changed_behind_the_conductor_s_back() {
    const CONFLICTING: i64 = 117;
    const STALE_DATABASE: i64 = 249;
    let mut shard = Shard::start();
    shard.make();
    for key in ["a", "z"] {
        let index = doc! { "key": { (key): 1 }, "name": key };
        shard.ok(doc! { "createIndexes": "c", "indexes": [index.as_raw()], "$db": "t" });
    }
    let drop_database = || doc! { "dropDatabase": 1, "$db": "t" };
    shard.place_as(Timestamp(1), &doc! { "owned": &ArrayBuf::new() });
    for command in definitions() {
        assert_eq!(shard.code(command.clone()), CONFLICTING, "closed: {command:?}");
        if command.as_raw().get("renameCollection").is_none() {
            assert_eq!(shard.code(with(&command, &unsharded())), STALE, "a router: {command:?}");
        }
    }
    assert_eq!(shard.code(drop_database()), CONFLICTING);
    shard.ok(doc! { "delete": "placements", "deletes": [{ "q": {}, "limit": 0 }], "$db": "config" });
    let home = |state: &str| {
        let update = doc! { "q": { "_id": "t" }, "u": { "_id": "t", "state": state }, "upsert": true };
        doc! { "update": "databaseHomes", "updates": [update.as_raw()], "$db": "config" }
    };
    shard.ok(home("leaving"));
    for command in definitions() {
        assert_eq!(shard.code(command.clone()), CONFLICTING, "leaving: {command:?}");
        if command.as_raw().get("renameCollection").is_none() {
            assert_eq!(shard.code(with(&command, &unsharded())), STALE_DATABASE, "a router: {command:?}");
        }
    }
    assert_eq!(shard.code(drop_database()), CONFLICTING);
    shard.ok(home("here"));
    for command in definitions().drain(..3) {
        shard.ok(command);
    }
    shard.ok(doc! { "drop": "c", "$db": "t" });
    shard.ok(drop_database());
}

#[test]
fn requests_are_compared_with_what_is_owned() {
    let mut shard = Shard::start();
    shard.make();
    for command in commands() {
        assert_eq!(shard.code(with(&command, &sharded(1, 0))), STALE, "not sharded: {command:?}");
    }
    for command in commands() {
        assert_eq!(shard.code(with(&command, &unsharded())), 0, "{command:?}");
    }
    shard.place(Timestamp::new(3, 1));
    let other = doc! { "uuid": uuid(&[8; 16]), "v": Timestamp::new(3, 1) };
    for version in [unsharded(), sharded(0, 0), sharded(2, 0), sharded(4, 0), other] {
        for command in commands() {
            let reply = shard.run(with(&command, &version));
            assert_eq!(code(&reply), STALE, "{version:?} {command:?}: {reply:?}");
        }
    }
    for command in commands() {
        assert_eq!(shard.code(with(&command, &sharded(3, 1))), 0, "{command:?}");
    }
    for command in commands() {
        assert_eq!(shard.code(command.clone()), 0, "without a version: {command:?}");
    }
    let reply = shard.run(with(&commands()[0], &sharded(2, 0)));
    let reply = reply.as_raw();
    assert_eq!(reply.get("codeName").unwrap().as_str(), Some("StaleConfig"));
    assert_eq!(reply.get("ns").unwrap().as_str(), Some("t.c"));
    assert!(matches!(reply.get("vReceived"), Some(Value::Timestamp(v)) if v == Timestamp::new(2, 0)));
    assert!(matches!(reply.get("vWanted"), Some(Value::Timestamp(v)) if v == Timestamp::new(3, 1)));
}

#[test]
fn what_is_not_here_is_not_owned() {
    let mut shard = Shard::start();
    let nowhere = |command: &str| doc! { (command): "c", "$db": "t" };
    assert_eq!(shard.code(with(&nowhere("find"), &sharded(0, 0))), 0);
    assert_eq!(shard.code(with(&nowhere("find"), &sharded(1, 0))), STALE);
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" };
    assert_eq!(shard.code(with(&insert, &sharded(0, 0))), STALE, "it would make the collection");
    assert_eq!(shard.code(with(&insert, &unsharded())), 0);
    assert_eq!(shard.code(with(&nowhere("find"), &sharded(0, 0))), STALE, "another of this name is here");
    let malformed = doc! { "uuid": 1, "v": Timestamp(0) };
    assert_eq!(shard.code(with(&nowhere("find"), &malformed)), 9);
}

#[test]
fn only_what_is_owned_is_written() {
    let mut shard = Shard::start();
    shard.make();
    shard.place(Timestamp::new(1, 0));
    let insert = |a: i32| doc! { "insert": "c", "documents": [{ "_id": a, "a": a }], "$db": "t" };
    assert_eq!(shard.code(insert(5)), 0);
    for version in [None, Some(sharded(1, 0))] {
        let with =
            |command: &DocBuf| version.as_ref().map_or(command.clone(), |version| with(command, version));
        assert_eq!(shard.code(with(&insert(100))), STALE);
        assert_eq!(shard.code(with(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" })), STALE);
        let array = doc! { "insert": "c", "documents": [{ "_id": 1, "a": [1] }], "$db": "t" };
        assert_eq!(shard.code(with(&array)), 61);
    }
    let bulk = doc! {
        "bulkWrite": 1,
        "ops": [{ "insert": 0, "document": { "_id": 6, "a": 6 } }, { "insert": 0, "document": { "_id": 700, "a": 700 } }],
        "nsInfo": [{ "ns": "t.c", "shardVersion": sharded(1, 0).as_raw() }],
        "$db": "admin"
    };
    assert_eq!(number(&shard.ok(bulk), "nInserted"), 1);
    let update = |u: DocBuf, more: DocBuf| {
        let one = DocBuf::build(|out| {
            out.append("q", doc! { "a": 5 }.as_raw()).append("u", u.as_raw()).append_all(more.as_raw());
        });
        doc! { "update": "c", "updates": [one.as_raw()], "$db": "t" }
    };
    let mut retryable = {
        let mut number = 0i64;
        move |command: DocBuf| {
            number += 1;
            DocBuf::build(|out| {
                out.append_all(command.as_raw());
                out.append("lsid", doc! { "id": uuid(&[1; 16]) }.as_raw()).append("txnNumber", number);
            })
        }
    };
    let set = |a: i32| doc! { "$set": { "a": a } };
    assert_eq!(shard.code(update(set(6), doc! {})), 20, "neither retryable nor in a transaction");
    assert_eq!(shard.code(update(set(6), doc! { "multi": true })), 72);
    assert_eq!(shard.code(retryable(update(doc! { "$set": { "a": [1] } }, doc! {}))), 54);
    let leaves = shard.run(retryable(update(set(500), doc! {})));
    assert_eq!(code(&leaves), 283);
    let failed = leaves.as_raw().get("writeErrors").unwrap().as_array().unwrap().values().next().unwrap();
    let (before, after) =
        (field(failed.as_doc().unwrap(), "preImage"), field(failed.as_doc().unwrap(), "postImage"));
    assert_eq!((before, after), (doc! { "_id": 5, "a": 5 }, doc! { "_id": 5, "a": 500 }));
    assert_eq!(shard.code(retryable(update(set(7), doc! {}))), 0);
    let left = shard.ok(doc! { "find": "c", "filter": {}, "sort": { "_id": 1 }, "$db": "t" });
    let batch = field(left.as_raw(), "cursor");
    let batch = batch.as_raw().get("firstBatch").unwrap().as_array().unwrap();
    let left: Vec<DocBuf> = batch.values().map(|doc| DocBuf::from(doc.as_doc().unwrap())).collect();
    assert_eq!(left, [doc! { "_id": 5, "a": 7 }, doc! { "_id": 6, "a": 6 }]);
}

fn field(doc: RawDoc<'_>, name: &str) -> DocBuf {
    DocBuf::from(
        doc.get(name).and_then(|value| value.as_doc()).unwrap_or_else(|| panic!("{name} in {doc:?}")),
    )
}

#[test]
fn statements_before_a_stale_one_stand() {
    let mut shard = Shard::start();
    shard.make();
    shard.place(Timestamp::new(1, 0));
    let insert = doc! {
        "insert": "c", "ordered": false, "$db": "t",
        "documents": [{ "_id": 1, "a": 1 }, { "_id": 2, "a": 200 }, { "_id": 3, "a": 3 }]
    };
    let reply = shard.run(with(&insert, &sharded(1, 0)));
    assert_eq!((number(&reply, "n"), code(&reply)), (1, STALE), "{reply:?}");
    assert_eq!(number(&shard.ok(doc! { "count": "c", "query": {}, "$db": "t" }), "n"), 1);
}

/// Documents 0 to 9 by `_id` and `a`, of which the shard owns those below 5: the others are being received, or leave.
fn half_owned(mark: &str) -> Shard {
    let mut shard = Shard::start();
    shard.make();
    let documents: Vec<DocBuf> = (0..10).map(|n| doc! { "_id": n, "a": n, "b": n % 3 }).collect();
    let insert = DocBuf::build(|out| {
        out.append("insert", "c");
        let mut list = out.array("documents");
        documents.iter().for_each(|document| _ = list.push(document));
        drop(list);
        out.append("$db", "t");
    });
    shard.ok(insert);
    let indexes = doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }, { "key": { "b": 1 }, "name": "b" }], "$db": "t" };
    shard.ok(indexes);
    let marks = DocBuf::build(|out| {
        ranges(out, "owned", 0, 5);
        ranges(out, mark, 5, 100);
    });
    shard.place_as(Timestamp::new(2, 0), &marks);
    shard
}

fn documents(reply: &DocBuf) -> Vec<DocBuf> {
    let cursor = field(reply.as_raw(), "cursor");
    let batch = cursor.as_raw().get("firstBatch").unwrap().as_array().unwrap();
    batch.values().map(|doc| DocBuf::from(doc.as_doc().unwrap())).collect()
}

#[test]
fn what_is_not_owned_is_not_seen() {
    for mark in ["receiving", "leaving"] {
        let mut shard = half_owned(mark);
        let mut found = |command: DocBuf| documents(&shard.ok(with(&command, &sharded(2, 0)))).len();
        for (find, expected) in [
            (doc! { "find": "c", "$db": "t" }, 5),
            (doc! { "find": "c", "filter": { "_id": 3 }, "$db": "t" }, 1),
            (doc! { "find": "c", "filter": { "_id": 7 }, "$db": "t" }, 0),
            (doc! { "find": "c", "filter": { "_id": 7, "b": 1 }, "$db": "t" }, 0),
            (doc! { "find": "c", "filter": { "a": { "$gte": 3 } }, "$db": "t" }, 2),
            (doc! { "find": "c", "filter": { "b": 0 }, "projection": { "b": 1, "_id": 0 }, "$db": "t" }, 2),
            (doc! { "find": "c", "filter": { "$or": [{ "a": 4 }, { "b": 1 }] }, "$db": "t" }, 2),
            (doc! { "find": "c", "sort": { "b": -1 }, "limit": 7, "$db": "t" }, 5),
            (
                doc! { "find": "c", "filter": { "b": { "$gte": 0 } }, "returnKey": true, "hint": "b", "$db": "t" },
                5,
            ),
            (
                doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": "$b" } }], "cursor": {}, "$db": "t" },
                3,
            ),
            (
                doc! { "aggregate": "c", "pipeline": [{ "$sample": { "size": 10 } }], "cursor": {}, "$db": "t" },
                5,
            ),
            (
                doc! { "aggregate": "c", "pipeline": [{ "$match": { "a": { "$gt": 4 } } }], "cursor": {}, "$db": "t" },
                0,
            ),
        ] {
            assert_eq!(found(find.clone()), expected, "{mark} {find:?}");
        }
        let joined = doc! {
            "aggregate": 1, "cursor": {}, "$db": "t",
            "pipeline": [
                { "$documents": [{ "x": 4 }, { "x": 6 }] },
                { "$lookup": { "from": "c", "localField": "x", "foreignField": "a", "as": "found" } },
                { "$match": { "found": { "$size": 1 } } }
            ]
        };
        assert_eq!(documents(&shard.ok(joined)).len(), 1);
        for (query, expected) in [(doc! {}, 5), (doc! { "b": 1 }, 2), (doc! { "a": { "$gt": 2 } }, 2)] {
            let count = doc! { "count": "c", "query": query.as_raw(), "$db": "t" };
            assert_eq!(number(&shard.ok(count), "n"), expected, "{query:?}");
        }
        let stats = doc! { "aggregate": "c", "pipeline": [{ "$collStats": { "count": {} } }], "cursor": {}, "$db": "t" };
        assert_eq!(number(&documents(&shard.ok(stats))[0], "count"), 5);
        let distinct = shard.ok(doc! { "distinct": "c", "key": "a", "$db": "t" });
        assert_eq!(distinct.as_raw().get("values").unwrap().as_array().unwrap().count(), 5);
        let explain = doc! { "explain": { "find": "c", "filter": { "b": 1 } }, "verbosity": "executionStats", "$db": "t" };
        let explained = shard.ok(explain);
        let stats = field(field(explained.as_raw(), "executionStats").as_raw(), "executionStages");
        assert_eq!(stats.as_raw().get("stage").unwrap().as_str(), Some("SHARDING_FILTER"), "{stats:?}");
        assert_eq!(number(&stats, "chunkSkips"), 1);
        // When the marks are off, so is the filter.
        let owned = DocBuf::build(|out| ranges(out, "owned", 0, 100));
        shard.place_as(Timestamp::new(3, 0), &owned);
        assert_eq!(number(&shard.ok(doc! { "count": "c", "$db": "t" }), "n"), 10);
        assert_eq!(documents(&shard.ok(doc! { "find": "c", "filter": { "_id": 7 }, "$db": "t" })).len(), 1);
    }
}

#[test]
fn what_is_not_owned_is_not_changed() {
    let mut shard = half_owned("leaving");
    let update = |q: DocBuf, multi: bool| {
        let one = doc! { "q": q.as_raw(), "u": { "$set": { "z": 1 } }, "multi": multi };
        doc! { "update": "c", "updates": [one.as_raw()], "$db": "t" }
    };
    assert_eq!(number(&shard.ok(update(doc! {}, true)), "n"), 5);
    assert_eq!(number(&shard.ok(update(doc! { "a": { "$gte": 4 } }, true)), "n"), 1);
    for q in [doc! { "_id": 7 }, doc! { "a": 7 }, doc! { "b": 1, "a": 7 }] {
        assert_eq!(number(&shard.ok(update(q.clone(), false)), "n"), 0, "{q:?}");
    }
    let modify = doc! { "findAndModify": "c", "query": { "a": { "$gt": 3 } }, "sort": { "a": -1 }, "remove": true, "$db": "t" };
    assert_eq!(number(&field(shard.ok(modify).as_raw(), "value"), "_id"), 4);
    // In a transaction, where the first that is found has to do.
    let in_transaction = DocBuf::build(|out| {
        out.append("delete", "c");
        out.array("deletes").push(&doc! { "q": { "a": { "$gt": 2 } }, "limit": 1 });
        out.append("lsid", doc! { "id": uuid(&[3; 16]) }.as_raw()).append("txnNumber", 1i64);
        out.append("autocommit", false).append("startTransaction", true).append("$db", "t");
    });
    assert_eq!(number(&shard.ok(in_transaction), "n"), 1);
    let commit = DocBuf::build(|out| {
        out.append("commitTransaction", 1);
        out.append("lsid", doc! { "id": uuid(&[3; 16]) }.as_raw()).append("txnNumber", 1i64);
        out.append("autocommit", false).append("$db", "admin");
    });
    shard.ok(commit);
    let delete = doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }], "$db": "t" };
    assert_eq!(number(&shard.ok(delete), "n"), 3);
    let catalog = shard.server.node.engine().catalog();
    assert_eq!(catalog.collection("t.c").unwrap().count(), 5, "what leaves is not removed by users");
}
