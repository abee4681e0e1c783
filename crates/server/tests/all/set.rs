//! A replica set of one member, spoken to in bytes: what a set's member says and refuses.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::{Connection, Server, body, message, number};
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_storage::Write as _;
use sheaf_wire::Flags;

fn uninitiated() -> Server {
    Server::start(|_, options| options.set_name = Some("rs0".to_owned()))
}

/// A set of one whose member is primary.
fn set_of_one() -> Server {
    let server = uninitiated();
    let mut connection = server.connect();
    assert_eq!(number(&connection.run(&doc! { "replSetInitiate": {}, "$db": "admin" }), "ok"), 1);
    await_primary(&mut connection);
    server
}

fn await_primary(connection: &mut Connection) {
    let began = Instant::now();
    while !hello(connection).as_raw().get("isWritablePrimary").unwrap().truthy() {
        assert!(began.elapsed() < Duration::from_secs(30), "no primary");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn hello(connection: &mut Connection) -> DocBuf {
    connection.run(&doc! { "hello": 1, "$db": "admin" })
}

fn code(reply: &DocBuf) -> i64 {
    if number(reply, "ok") == 1 { 0 } else { number(reply, "code") }
}

fn sub<'a>(doc: &'a DocBuf, field: &str) -> RawDoc<'a> {
    doc.as_raw().get(field).and_then(|v| v.as_doc()).unwrap_or_else(|| panic!("{field} in {doc:?}"))
}

#[test]
fn without_a_configuration_nothing_is_written_or_read() {
    let server = uninitiated();
    let mut connection = server.connect();
    let first = hello(&mut connection);
    let info = first.as_raw().get("info").unwrap();
    assert_eq!(info.as_str(), Some("Does not have a valid replica set config"));
    assert!(first.as_raw().get("$clusterTime").is_none());
    for (command, expected) in [
        (doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" }, 10107),
        (doc! { "find": "c", "$db": "t" }, 13435),
        (doc! { "find": "c", "$readPreference": { "mode": "nearest" }, "$db": "t" }, 13436),
        (doc! { "ping": 1, "$db": "admin" }, 0),
        (doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "local" }, 0),
        (doc! { "find": "c", "$db": "local" }, 0),
        (doc! { "replSetGetStatus": 1, "$db": "admin" }, 94),
        (doc! { "replSetGetConfig": 1, "$db": "admin" }, 94),
        (doc! { "replSetStepDown": 60, "$db": "admin" }, 94),
    ] {
        let reply = connection.run(&command);
        assert_eq!(code(&reply), expected, "{command:?}: {reply:?}");
        let tells = reply.as_raw().get("topologyVersion").is_some();
        assert_eq!(tells, [10107, 13435, 13436].contains(&expected), "{reply:?}");
    }
}

#[test]
fn a_set_of_one_shows_itself_as_such() {
    let server = set_of_one();
    let mut connection = server.connect();
    let hello = hello(&mut connection);
    assert_eq!(hello.as_raw().get("setName").unwrap().as_str(), Some("rs0"));
    let me = format!("127.0.0.1:{}", server.node.port.load(Ordering::Relaxed));
    assert_eq!(hello.as_raw().get("primary").unwrap().as_str(), Some(me.as_str()));
    let status = connection.run(&doc! { "replSetGetStatus": 1, "$db": "admin" });
    assert_eq!(number(&status, "myState"), 1);
    let config = connection.run(&doc! { "replSetGetConfig": 1, "$db": "admin" });
    let member = sub(&config, "config").get("members").unwrap().as_array().unwrap().values().next().unwrap();
    assert_eq!(member.as_doc().unwrap().get("host").unwrap().as_str(), Some(me.as_str()));
    assert_eq!(code(&connection.run(&doc! { "replSetInitiate": {}, "$db": "admin" })), 23);
}

#[test]
fn write_concerns_are_answered_at_once_where_they_can_be() {
    let server = set_of_one();
    let mut connection = server.connect();
    let mut insert = |id: i32, concern: DocBuf| {
        let command = doc! {
            "insert": "c", "documents": [{ "_id": id }], "writeConcern": concern.as_raw(), "$db": "t"
        };
        connection.run(&command)
    };
    let fine = insert(1, doc! { "w": "majority", "j": true });
    assert!(fine.as_raw().get("writeConcernError").is_none(), "{fine:?}");
    let two = insert(2, doc! { "w": 2, "wtimeout": 60_000 });
    let error = sub(&two, "writeConcernError");
    assert_eq!((number(&two, "n"), error.get("code").unwrap().as_exact_i64()), (1, Some(100)));
    let used = doc! { "writeConcern": { "w": 2, "wtimeout": 60_000, "provenance": "clientSupplied" } };
    assert_eq!(error.get("errInfo").unwrap().as_doc().unwrap(), used.as_raw());
    let mode = insert(3, doc! { "w": "elsewhere" });
    assert_eq!(sub(&mode, "writeConcernError").get("code").unwrap().as_exact_i64(), Some(79));
}

#[test]
fn times_are_told_and_waited_for() {
    let server = set_of_one();
    let mut connection = server.connect();
    let reply = connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" });
    let Some(Value::Timestamp(wrote)) = reply.as_raw().get("operationTime") else { panic!("{reply:?}") };
    let Some(Value::Timestamp(cluster)) = sub(&reply, "$clusterTime").get("clusterTime") else {
        panic!("{reply:?}")
    };
    assert!(cluster >= wrote);
    // A time that this member has not seen is nobody's; one that a client shows it has.
    let ahead = sheaf_bson::Timestamp(cluster.0 + (5 << 32));
    let read = |time: sheaf_bson::Timestamp, level: &str| {
        doc! { "find": "c", "readConcern": { "level": level, "afterClusterTime": time }, "$db": "t" }
    };
    assert_eq!(code(&connection.run(&read(ahead, "local"))), 72);
    let gossip = doc! { "clusterTime": ahead };
    for level in ["majority", "local"] {
        let found = connection.run(&read(ahead, level).with("$clusterTime", gossip.as_raw()));
        assert_eq!(code(&found), 0, "{found:?}");
        let Some(Value::Timestamp(time)) = found.as_raw().get("operationTime") else { panic!("{found:?}") };
        assert!(time >= ahead, "{found:?}");
    }
    let far = doc! { "clusterTime": sheaf_bson::Timestamp(u64::MAX) };
    assert_eq!(code(&connection.run(&doc! { "ping": 1, "$clusterTime": far.as_raw(), "$db": "t" })), 205);
}

fn told(reply: &DocBuf) -> sheaf_bson::Timestamp {
    let Some(Value::Timestamp(time)) = sub(reply, "$clusterTime").get("clusterTime") else {
        panic!("{reply:?}")
    };
    time
}

fn wall_secs() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// A member once told its wall clock as the cluster time; a clock that was years ahead for three seconds made the set
/// refuse all drivers for good.
#[test]
fn a_member_tells_the_time_of_entries_and_not_its_clock() {
    let server = set_of_one();
    let mut connection = server.connect();
    let wrote = connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" });
    let until = (told(&wrote).0 >> 32) + 2;
    let began = Instant::now();
    while wall_secs() < until {
        assert!(began.elapsed() < Duration::from_secs(30), "the clock stands still");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Between two looks at the newest entry it may change; the time that is told lies between them.
    let newest = |reply: &DocBuf| match sub(reply, "lastWrite").get("opTime") {
        Some(Value::Document(time)) => match time.get("ts") {
            Some(Value::Timestamp(time)) => time,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let first = hello(&mut connection);
    let later = hello(&mut connection);
    assert!(told(&first) <= newest(&later), "{first:?} {later:?}");
    assert!(newest(&first) <= told(&later), "{first:?} {later:?}");
}

#[test]
fn a_time_that_a_member_has_told_is_never_too_far_in_the_future() {
    let server = set_of_one();
    let mut connection = server.connect();
    let ahead = sheaf_bson::Timestamp((wall_secs() + 2 * 365 * 24 * 60 * 60) << 32 | 1);
    let with = |time: sheaf_bson::Timestamp| {
        let gossip = doc! { "clusterTime": time };
        doc! { "ping": 1, "$clusterTime": gossip.as_raw(), "$db": "admin" }
    };
    assert_eq!(code(&connection.run(&with(ahead))), 205);
    // From another member, whose clock was wrong for a moment.
    server.node.replica().expect("it is a member").observe_time(ahead);
    let hello = hello(&mut connection);
    // A new primary may still write something of its own, later than that.
    assert!(told(&hello) >= ahead, "{hello:?}");
    let pong = connection.run(&with(told(&hello)));
    assert_eq!(code(&pong), 0, "{pong:?}");
    // What the primary has written since, and this member has not heard of.
    let written = sheaf_bson::Timestamp(ahead.0 + (60 << 32));
    assert_eq!(code(&connection.run(&with(written))), 0);
    let beyond = sheaf_bson::Timestamp(ahead.0 + ((2 * 60 * 60) << 32));
    assert_eq!(code(&connection.run(&with(beyond))), 205);
}

#[test]
fn the_lock_against_writes_is_waited_for_as_long_as_asked() {
    let server = set_of_one();
    let mut connection = server.connect();
    assert_eq!(code(&connection.run(&doc! { "create": "c", "$db": "t" })), 0);
    let lock = |millis: i64| {
        doc! { "fsync": 1, "lock": true, "fsyncLockAcquisitionTimeoutMillis": millis, "$db": "admin" }
    };
    // A writer at work: its insert waits to be committed.
    let mut unit = server.node.engine().write(&|| Ok(()));
    let collection = unit.collection("t.c").unwrap().expect("it was made");
    unit.insert(&collection, doc! { "_id": 1 }.as_raw()).unwrap();
    let began = Instant::now();
    let refused = connection.run(&lock(100));
    assert_eq!(code(&refused), 24, "{refused:?}");
    let text = refused.as_raw().get("errmsg").and_then(|v| v.as_str());
    assert_eq!(text, Some("Fsync lock could not be acquired within 100 milliseconds"));
    assert!(began.elapsed() >= Duration::from_millis(100));
    unit.commit().unwrap();
    // Nothing is left of it.
    let inserted = connection.run(&doc! { "insert": "c", "documents": [{ "_id": 2 }], "$db": "t" });
    assert_eq!(code(&inserted), 0, "{inserted:?}");
    assert_eq!(number(&connection.run(&lock(20_000)), "lockCount"), 1);
    assert_eq!(number(&connection.run(&doc! { "fsyncUnlock": 1, "$db": "admin" }), "lockCount"), 0);
    for millis in [Value::Int64(-1), Value::String("soon")] {
        let bad = doc! { "fsync": 1, "lock": true, "$db": "admin" };
        let bad = bad.with("fsyncLockAcquisitionTimeoutMillis", millis);
        assert_ne!(code(&connection.run(&bad)), 0);
    }
}

#[test]
fn the_cluster_time_is_a_variable() {
    let server = set_of_one();
    let mut connection = server.connect();
    let wrote = connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" });
    let time = |reply: &DocBuf| match reply.as_raw().get("operationTime") {
        Some(Value::Timestamp(time)) => time,
        other => panic!("{other:?}"),
    };
    let of_cursor = |reply: &DocBuf| {
        assert_eq!(code(reply), 0, "{reply:?}");
        let batch = sub(reply, "cursor").get("firstBatch").unwrap().as_array().unwrap();
        match batch.values().next().unwrap().as_doc().unwrap().get("t") {
            Some(Value::Timestamp(time)) => time,
            other => panic!("{other:?}"),
        }
    };
    let view = doc! { "create": "v", "viewOn": "c", "pipeline": [{ "$set": { "t": "$$CLUSTER_TIME" } }], "$db": "t" };
    assert_eq!(code(&connection.run(&view)), 0);
    for command in [
        doc! { "find": "c", "projection": { "t": "$$CLUSTER_TIME" }, "$db": "t" },
        doc! { "aggregate": "c", "pipeline": [{ "$project": { "t": "$$CLUSTER_TIME" } }], "cursor": {}, "$db": "t" },
        doc! { "find": "v", "$db": "t" },
    ] {
        assert!(of_cursor(&connection.run(&command)) >= time(&wrote));
    }
    let set = doc! { "update": "c", "updates": [{ "q": {}, "u": [{ "$set": { "t": "$$CLUSTER_TIME" } }] }], "$db": "t" };
    assert_eq!(number(&connection.run(&set), "nModified"), 1);
    let server = Server::start(|_, _| {});
    let alone = doc! { "aggregate": "c", "pipeline": [{ "$project": { "t": "$$CLUSTER_TIME" } }], "cursor": {}, "$db": "t" };
    assert_eq!(code(&server.connect().run(&alone)), 10_071_200);
}

#[test]
fn a_snapshot_outside_transactions_stays_what_it_is() {
    let server = set_of_one();
    let mut connection = server.connect();
    let documents: Vec<DocBuf> = (0..5).map(|id| doc! { "_id": id }).collect();
    let documents = sheaf_bson::ArrayBuf::build(|out| {
        documents.iter().for_each(|doc| {
            out.push(doc.as_raw());
        });
    });
    connection.run(&doc! { "insert": "c", "documents": Value::Array(documents.as_raw()), "$db": "t" });
    let open = doc! { "find": "c", "batchSize": 2, "readConcern": { "level": "snapshot" }, "$db": "t" };
    let first = connection.run(&open);
    let cursor = sub(&first, "cursor");
    let at = cursor.get("atClusterTime").expect("a time");
    connection.run(&doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }], "$db": "t" });
    let more = doc! { "getMore": cursor.get("id").unwrap(), "collection": "c", "$db": "t" };
    let more = connection.run(&more);
    let rest = sub(&more, "cursor");
    assert_eq!(rest.get("nextBatch").unwrap().as_array().unwrap().count(), 3);
    assert!(sheaf_bson::compare(rest.get_or_missing("atClusterTime"), at).is_eq());
    let again = doc! { "find": "c", "readConcern": { "level": "snapshot", "atClusterTime": at }, "$db": "t" };
    let again = connection.run(&again);
    assert_eq!(sub(&again, "cursor").get("firstBatch").unwrap().as_array().unwrap().count(), 5, "{again:?}");
    let now = connection.run(&doc! { "find": "c", "readConcern": { "level": "majority" }, "$db": "t" });
    assert_eq!(sub(&now, "cursor").get("firstBatch").unwrap().as_array().unwrap().count(), 0);
}

#[test]
fn a_waiting_hello_hears_of_a_change_at_once() {
    let server = set_of_one();
    let (mut waiting, mut other) = (server.connect(), server.connect());
    let now = hello(&mut waiting);
    let version = sub(&now, "topologyVersion");
    let wait = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 600_000, "$db": "admin" };
    waiting.send(&message(&wait, Flags::EXHAUST_ALLOWED));
    let down = doc! { "replSetStepDown": 1, "force": true, "$db": "admin" };
    assert_eq!(code(&other.run(&down)), 0);
    let told = body(&waiting.receive().unwrap());
    assert!(!told.as_raw().get("isWritablePrimary").unwrap().truthy(), "{told:?}");
    let counter = |doc: RawDoc<'_>| doc.get("counter").unwrap().as_exact_i64().unwrap();
    assert!(counter(sub(&told, "topologyVersion")) > counter(version));
    // The same request goes on being answered, with every change.
    await_primary(&mut other);
    let mut last = told;
    while !last.as_raw().get("isWritablePrimary").unwrap().truthy() {
        let next = body(&waiting.receive().unwrap());
        let counters = [&last, &next].map(|reply| counter(sub(reply, "topologyVersion")));
        assert!(counters[0] < counters[1], "{counters:?}");
        last = next;
    }
    let ahead = doc! {
        "processId": version.get("processId").unwrap(), "counter": counter(version) + 1000
    };
    let wrong = doc! { "hello": 1, "topologyVersion": ahead.as_raw(), "maxAwaitTimeMS": 1, "$db": "admin" };
    assert_eq!(code(&other.run(&wrong)), 31382);
}

#[test]
fn defaults_are_set_and_used() {
    let server = set_of_one();
    let mut connection = server.connect();
    let implicit = connection.run(&doc! { "getDefaultRWConcern": 1, "$db": "admin" });
    assert_eq!(sub(&implicit, "defaultWriteConcern"), doc! { "w": "majority", "wtimeout": 0 }.as_raw());
    for (set, expected) in [
        (doc! { "setDefaultRWConcern": 1 }, 2),
        (doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": 0 } }, 2),
        (doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "wtimeout": 100 } }, 2),
        (doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": Value::Null } }, 79),
        (doc! { "setDefaultRWConcern": 1, "defaultReadConcern": { "level": "snapshot" } }, 2),
        (doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": 1, "wtimeout": 5 } }, 0),
        (doc! { "setDefaultRWConcern": 1, "defaultReadConcern": { "level": "majority" } }, 0),
        (doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": {} }, 20),
    ] {
        let reply = connection.run(&set.clone().with("$db", "admin"));
        assert_eq!(code(&reply), expected, "{set:?}: {reply:?}");
    }
    let custom = connection.run(&doc! { "getDefaultRWConcern": 1, "$db": "admin" });
    assert_eq!(sub(&custom, "defaultWriteConcern"), doc! { "w": 1, "wtimeout": 5 }.as_raw());
    assert_eq!(sub(&custom, "defaultReadConcern"), doc! { "level": "majority" }.as_raw());
    assert_eq!(custom.as_raw().get("defaultWriteConcernSource").unwrap().as_str(), Some("global"));
}

/// The default level once reached streams as if their clients had asked for it, which refused every new one.
#[test]
fn a_default_read_concern_is_not_one_of_change_streams() {
    let server = set_of_one();
    let mut connection = server.connect();
    let open = doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "t" };
    for level in ["local", "available", "majority"] {
        let set = doc! { "setDefaultRWConcern": 1, "defaultReadConcern": { "level": level }, "$db": "admin" };
        assert_eq!(code(&connection.run(&set)), 0, "{level}");
        let opened = connection.run(&open);
        assert_eq!(code(&opened), 0, "{level}: {opened:?}");
        let id = sub(&opened, "cursor").get("id").and_then(|id| id.as_exact_i64()).unwrap();
        let insert = doc! { "insert": "c", "documents": [{ "by": level }], "$db": "t" };
        assert_eq!(code(&connection.run(&insert)), 0);
        let more = doc! { "getMore": id, "collection": "c", "maxTimeMS": 60_000, "$db": "t" };
        let batch = connection.run(&more);
        let events = sub(&batch, "cursor").get("nextBatch").unwrap().as_array().unwrap();
        assert_eq!(events.count(), 1, "{level}: {batch:?}");
        let mut asked = |concern: &str, wanted: i64| {
            let concern = doc! { "level": concern };
            let reply = connection.run(&open.clone().with("readConcern", &concern));
            assert_eq!(code(&reply), wanted, "{reply:?}");
        };
        asked("majority", 0);
        asked("local", 72);
        asked("available", 72);
    }
}

#[test]
fn a_primary_that_steps_down_drops_transactions_and_nothing_else() {
    let server = set_of_one();
    let mut connection = server.connect();
    connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }], "$db": "t" });
    let open = connection.run(&doc! { "find": "c", "batchSize": 1, "$db": "t" });
    let cursor = sub(&open, "cursor").get("id").unwrap();
    let session = sheaf_bson::Binary { subtype: 4, bytes: &[7; 16] };
    let in_transaction = |command: DocBuf, number: i64| {
        let lsid = doc! { "id": Value::Binary(session) };
        let command = command.with("lsid", lsid.as_raw()).with("txnNumber", number);
        command.with("autocommit", false)
    };
    let begin = doc! { "insert": "c", "documents": [{ "_id": 3 }], "$db": "t", "startTransaction": true };
    assert_eq!(code(&connection.run(&in_transaction(begin, 1))), 0);
    assert_eq!(code(&connection.run(&doc! { "replSetStepDown": 1, "force": true, "$db": "admin" })), 0);
    let refused = connection.run(&doc! { "insert": "c", "documents": [{ "_id": 9 }], "$db": "t" });
    assert_eq!(code(&refused), 10107);
    let more = connection.run(&doc! { "getMore": cursor, "collection": "c", "$db": "t" });
    assert_eq!(code(&more), 0, "{more:?}");
    await_primary(&mut connection);
    let gone = doc! { "commitTransaction": 1, "$db": "admin" };
    let gone = connection.run(&in_transaction(gone, 1));
    assert_eq!(code(&gone), 251, "{gone:?}");
    let count = connection.run(&doc! { "count": "c", "$db": "t" });
    assert_eq!(number(&count, "n"), 2);
}

#[test]
fn a_retried_find_and_modify_asks_for_what_is_on_record() {
    let server = set_of_one();
    let mut connection = server.connect();
    let lsid = doc! { "id": Value::Binary(sheaf_bson::Binary { subtype: 4, bytes: &[7; 16] }) };
    let mut run = |txn: i64, command: DocBuf| {
        let command = command.with("lsid", &lsid).with("txnNumber", txn).with("$db", "t");
        connection.run(&command)
    };
    let update = |id: i32| {
        doc! { "findAndModify": "c", "query": { "_id": id }, "update": { "$inc": { "a": 1 } } }
    };
    let remove = |id: i32| doc! { "findAndModify": "c", "query": { "_id": id }, "remove": true };
    let value = |reply: &DocBuf| sub(reply, "value").get("a").and_then(|a| a.as_exact_i64());

    let upsert = update(1).with("upsert", true);
    assert_eq!(code(&run(1, upsert.clone())), 0);
    assert_eq!(code(&run(1, upsert)), 0);
    assert_eq!(code(&run(1, update(1))), 40608);

    assert_eq!(value(&run(2, update(1))), Some(1));
    assert_eq!(code(&run(2, update(1).with("new", true))), 40611);
    let again = run(2, update(1));
    assert_eq!((value(&again), number(&again, "retriedStmtId")), (Some(1), 0));
    assert!(again.as_raw().get("image").is_none(), "{again:?}");

    assert_eq!(value(&run(3, update(1).with("new", true))), Some(3));
    assert_eq!(code(&run(3, update(1))), 40612);
    assert_eq!(code(&run(3, remove(1))), 40612);
    assert_eq!(value(&run(3, update(1).with("new", true))), Some(3));

    assert_eq!(value(&run(4, remove(1))), Some(3));
    assert_eq!(code(&run(4, update(1))), 40606);
    assert_eq!(value(&run(4, remove(1))), Some(3));

    assert_eq!(code(&run(5, doc! { "insert": "c", "documents": [{ "_id": 2 }] })), 0);
    assert_eq!(code(&run(5, update(2))), 217);
}

#[test]
fn a_lookup_has_no_change_stream_within() {
    let server = set_of_one();
    let mut connection = server.connect();
    let stage = doc! { "$lookup": { "from": "c", "as": "x", "pipeline": [{ "$changeStream": {} }] } };
    let command = doc! { "aggregate": "c", "pipeline": [&stage], "cursor": {}, "$db": "t" };
    assert_eq!(code(&connection.run(&command)), 51047);
}

#[test]
fn a_transaction_writes_to_no_capped_collection_and_tails_none() {
    let server = set_of_one();
    let mut connection = server.connect();
    assert_eq!(code(&connection.run(&doc! { "create": "c", "capped": true, "size": 4096, "$db": "t" })), 0);
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }], "$db": "t" };
    assert_eq!(code(&connection.run(&insert)), 0);
    let lsid = doc! { "id": Value::Binary(sheaf_bson::Binary { subtype: 4, bytes: &[8; 16] }) };
    let mut txn = 0i64;
    let mut alone = |command: DocBuf| {
        txn += 1;
        let command = command.with("lsid", &lsid).with("txnNumber", txn).with("$db", "t");
        let reply = connection.run(&command.with("autocommit", false).with("startTransaction", true));
        let errors = reply.as_raw().get("writeErrors").and_then(|errors| errors.as_array());
        let first = errors.and_then(|errors| errors.values().next()?.as_doc()?.get("code")?.as_exact_i64());
        first.unwrap_or_else(|| code(&reply))
    };
    let same = doc! { "$set": { "a": 1 } };
    assert_eq!(
        alone(doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": same.as_raw() }),
        263,
        "nothing changes by it"
    );
    assert_eq!(alone(doc! { "findAndModify": "c", "query": { "_id": 2 }, "remove": true }), 263);
    assert_eq!(alone(doc! { "update": "c", "updates": [{ "q": { "_id": 2 }, "u": same.as_raw() }] }), 263);
    assert_eq!(alone(doc! { "delete": "c", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] }), 263);
    assert_eq!(alone(doc! { "find": "c", "tailable": true }), 72);
    assert_eq!(alone(doc! { "find": "c" }), 0);
}

/// The document without what differs from run to run.
fn masked(doc: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in
            doc.iter().filter(|field| !matches!(field.key(), "_id" | "clusterTime" | "wallTime" | "pipeline"))
        {
            match field.value() {
                Value::Binary(_) => out.append(field.key(), "uuid"),
                Value::Document(inner) => out.append(field.key(), &masked(inner)),
                _ => out.append_element(field),
            };
        }
    })
}

#[test]
fn changes_of_definitions_are_told_as_they_were_asked_for() {
    let server = set_of_one();
    let mut connection = server.connect();
    let mut run = |command: DocBuf| {
        let reply = connection.run(&command.with("$db", "t"));
        assert_eq!(code(&reply), 0, "{reply:?}");
        reply
    };
    run(doc! { "create": "c" });
    let a = doc! { "key": { "a": 1 }, "name": "a", "expireAfterSeconds": 3600 };
    run(doc! { "createIndexes": "c", "indexes": [&a, { "key": { "b": 1 }, "name": "b" }] });
    let watch = doc! { "$changeStream": { "showExpandedEvents": true } };
    let opened = run(doc! { "aggregate": 1, "pipeline": [&watch], "cursor": {} });
    let id = sub(&opened, "cursor").get("id").and_then(|id| id.as_exact_i64()).unwrap();

    let of_b = |field: &str, value: bool| {
        let index = doc! { "name": "b" }.with(field, value);
        doc! { "collMod": "c", "index": &index }
    };
    run(doc! { "collMod": "c", "index": { "keyPattern": { "a": 1 }, "expireAfterSeconds": 5 } });
    run(of_b("hidden", true));
    run(of_b("hidden", true));
    run(of_b("hidden", false));
    run(of_b("prepareUnique", true));
    run(of_b("unique", true));
    run(of_b("forceNonUnique", true));
    run(doc! { "collMod": "c", "validator": { "x": 1 }, "validationLevel": "moderate" });
    run(doc! { "collMod": "c", "validator": {} });
    run(doc! { "collMod": "c" });
    run(doc! { "create": "v", "viewOn": "c", "pipeline": [] });
    run(doc! { "collMod": "v", "viewOn": "w", "pipeline": [] });
    run(doc! { "drop": "v" });
    run(doc! { "create": "m", "timeseries": { "timeField": "t" } });
    run(doc! { "collMod": "m", "timeseries": { "granularity": "minutes" } });

    let modified = |description: DocBuf, before: DocBuf| {
        doc! {
            "operationType": "modify", "collectionUUID": "uuid", "ns": { "db": "t", "coll": "c" },
            "operationDescription": &description, "stateBeforeChange": &before
        }
    };
    let of_index = |change: DocBuf, before: DocBuf| {
        let state = doc! { "collectionOptions": { "uuid": "uuid" }, "indexOptions": &before };
        modified(doc! { "index": &change }, state)
    };
    let plain = doc! { "collectionOptions": { "uuid": "uuid" } };
    let validated = doc! { "uuid": "uuid", "validator": { "x": 1 }, "validationLevel": "moderate", "validationAction": "error" };
    let loose = doc! { "uuid": "uuid", "validationLevel": "moderate", "validationAction": "error" };
    let of_other = |kind: &str, name: &str, more: DocBuf| {
        let mut event = doc! { "operationType": kind, "ns": { "db": "t", "coll": name } };
        event.edit(|out| _ = out.append_all(more.as_raw()));
        event
    };
    let view = |on: &str| doc! { "operationDescription": { "viewOn": on } };
    let wanted = [
        of_index(doc! { "name": "a", "expireAfterSeconds": 5i64 }, doc! { "expireAfterSeconds": 3600i64 }),
        of_index(doc! { "name": "b", "hidden": true }, doc! { "hidden": false }),
        modified(doc! {}, plain.clone()),
        of_index(doc! { "name": "b", "hidden": false }, doc! { "hidden": true }),
        of_index(doc! { "name": "b", "prepareUnique": true }, doc! { "prepareUnique": false }),
        of_index(doc! { "name": "b", "unique": true }, doc! {}),
        of_index(doc! { "name": "b", "forceNonUnique": true }, doc! {}),
        modified(doc! { "validator": { "x": 1 }, "validationLevel": "moderate" }, plain),
        modified(doc! { "validator": {} }, doc! { "collectionOptions": &validated }),
        modified(doc! {}, doc! { "collectionOptions": &loose }),
        of_other("create", "v", view("c").with("nsType", "view")),
        of_other("modify", "v", view("w")),
        of_other("drop", "v", doc! {}),
        of_other("create", "m", view("system.buckets.m").with("nsType", "timeseries")),
        of_other("modify", "m", view("system.buckets.m")),
    ];
    let mut events = Vec::new();
    while events.len() < wanted.len() {
        let more = run(doc! { "getMore": id, "collection": "$cmd.aggregate", "maxTimeMS": 1000 });
        let batch = sub(&more, "cursor").get("nextBatch").and_then(|batch| batch.as_array()).unwrap();
        assert!(!batch.is_empty(), "no more than {events:#?}");
        events.extend(batch.values().filter_map(|event| event.as_doc()).map(masked));
    }
    for (event, wanted) in events.iter().zip(&wanted) {
        assert_eq!(event, wanted);
    }
    assert_eq!(events.len(), wanted.len(), "{events:#?}");
}
