//! A running server, spoken to in bytes.
#![allow(clippy::disallowed_methods, reason = "a test sends a message or two")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::{Server, body, message, number};
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_wire::{Compressor, Flags, HEADER_LEN, Header, OpCode, compress, decompress};

#[test]
fn the_handshake_in_both_opcodes() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let hello =
        connection.run(&doc! { "hello": 1, "$db": "admin", "compression": ["zstd", "nonesuch", "snappy"] });
    assert_eq!(number(&hello, "ok"), 1);
    assert_eq!(number(&hello, "maxWireVersion"), 27);
    assert_eq!(hello.as_raw().get("isWritablePrimary").unwrap().as_bool(), Some(true));
    let compression: Vec<_> =
        hello.as_raw().get("compression").unwrap().as_array().unwrap().values().collect();
    assert_eq!(compression.iter().filter_map(Value::as_str).collect::<Vec<_>>(), ["zstd", "snappy"]);

    let mut query = vec![0; HEADER_LEN + 4];
    query.extend_from_slice(b"admin.$cmd\0\0\0\0\0\xFF\xFF\xFF\xFF");
    query.extend_from_slice(doc! { "isMaster": 1, "helloOk": true }.as_bytes());
    let length = query.len() as u32;
    Header { length, request_id: 5, response_to: 0, opcode: OpCode::Query }.write(&mut query);
    connection.send(&query);
    let reply = connection.receive().unwrap();
    let header = Header::parse(&reply).unwrap();
    assert_eq!((header.opcode, header.response_to), (OpCode::Reply, 5));
    assert_eq!(RawDoc::new(&reply[36..]).get("ismaster").unwrap().as_bool(), Some(true));
}

#[test]
fn an_awaitable_hello_waits_and_an_exhaust_one_goes_on() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let first = connection.run(&doc! { "hello": 1, "$db": "admin" });
    let version = first.as_raw().get("topologyVersion").unwrap();
    let waiting = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 150, "$db": "admin" };
    let started = Instant::now();
    connection.send(&message(&waiting, Flags::EXHAUST_ALLOWED));
    for round in 1..=2 {
        let reply = connection.receive().unwrap();
        let flags = u32::from_le_bytes(reply[16..20].try_into().unwrap());
        assert_ne!(flags & Flags::MORE_TO_COME, 0);
        assert!(started.elapsed() >= Duration::from_millis(150 * round), "answered before its time");
    }
}

#[test]
fn replies_follow_the_request_in_form() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let ping = doc! { "ping": 1, "$db": "admin" };
    connection.send(&message(&ping, Flags::CHECKSUM_PRESENT));
    let reply = connection.receive().unwrap();
    assert_ne!(reply[16] & Flags::CHECKSUM_PRESENT as u8, 0);
    assert!(sheaf_wire::checksum_matches(&reply));

    for compressor in [Compressor::Snappy, Compressor::Zlib, Compressor::Zstd] {
        connection.send(&compress(&message(&ping, 0), compressor, 6).unwrap());
        let (reply, how) = decompress(&connection.receive().unwrap()).unwrap();
        assert_eq!((number(&body(&reply), "ok"), how), (1, compressor));
    }

    // Unacknowledged: no answer, whatever becomes of it; the next request is answered.
    connection.send(&message(&doc! { "nonesuch": 1, "$db": "admin" }, Flags::MORE_TO_COME));
    assert_eq!(number(&connection.run(&ping), "ok"), 1);
}

#[test]
fn what_is_malformed_closes_the_connection_or_is_answered() {
    let server = Server::start(|_, _| {});
    let whole = message(&doc! { "ping": 1, "$db": "admin" }, 0);
    let mut closing: Vec<Vec<u8>> = Vec::new();
    for length in [0u32, 15, 48_000_001, u32::MAX] {
        let mut bytes = whole.clone();
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        closing.push(bytes);
    }
    let mut opcode = whole.clone();
    opcode[12..16].copy_from_slice(&2002i32.to_le_bytes());
    closing.push(opcode);
    let mut flags = whole.clone();
    flags[16] = 4;
    closing.push(flags);
    for bytes in closing {
        let mut connection = server.connect();
        connection.send(&bytes);
        assert_eq!(connection.receive(), None, "{bytes:?}");
    }
    let mut connection = server.connect();
    let mut bad_bson = whole.clone();
    bad_bson[21] = 0xFF;
    connection.send(&bad_bson);
    assert_eq!(number(&body(&connection.receive().unwrap()), "ok"), 0);
    assert_eq!(number(&connection.run(&doc! { "ping": 1, "$db": "admin" }), "ok"), 1);
}

/// Browsers and health checks of load balancers get mongod's hint in their own protocol.
#[test]
fn http_is_answered_in_its_own_words() {
    let server = Server::start(|_, _| {});
    for (verb, has_body) in [("GET", true), ("POST", true), ("HEAD", false)] {
        let port = server.node.port.load(Ordering::Relaxed) as u16;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("{verb} / HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{verb}: {answer:?}"));
        assert!(
            head.starts_with("HTTP/1.0 200 OK\r\n") && head.contains("Content-Type: text/plain"),
            "{head}"
        );
        let hint = "It looks like you are trying to access MongoDB over HTTP on the native driver port.";
        assert_eq!(body.contains(hint), has_body, "{verb}: {body}");
        assert!(!has_body || head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    }
}

#[test]
fn a_large_claim_with_little_behind_it_costs_little() {
    let server = Server::start(|_, _| {});
    let before = sheaf_front::system::process_memory().0;
    let mut header = vec![0u8; HEADER_LEN];
    Header { length: 47_000_000, request_id: 1, response_to: 0, opcode: OpCode::Msg }.write(&mut header);
    let connections: Vec<_> = (0..50)
        .map(|_| {
            let mut connection = server.connect();
            connection.send(&header);
            connection
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let grown = sheaf_front::system::process_memory().0.saturating_sub(before);
    assert!(grown < 64 << 20, "50 empty claims took {grown} bytes");
    drop(connections);
}

#[test]
fn a_transaction_that_lives_too_long_is_aborted() {
    let server = Server::start(|options, _| {
        options.parameters.push(("transactionLifetimeLimitSeconds".to_owned(), "1".to_owned()));
    });
    let mut connection = server.connect();
    let lsid = doc! { "id": Value::Binary(sheaf_bson::Binary { subtype: 4, bytes: &[4; 16] }) };
    let command = |start: bool| {
        let command = doc! { "find": "c", "lsid": &lsid, "txnNumber": 1i64, "autocommit": false, "$db": "t" };
        if start { command.with("startTransaction", true) } else { command }
    };
    assert_eq!(number(&connection.run(&command(true)), "ok"), 1);
    server.node.reap_sessions();
    assert_eq!(number(&connection.run(&command(false)), "ok"), 1);
    std::thread::sleep(Duration::from_millis(1100));
    server.node.reap_sessions();
    assert_eq!(number(&connection.run(&command(false)), "code"), 251);
}

#[test]
fn a_fail_point_closes_the_connection() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let data = doc! { "failCommands": ["ping"], "closeConnection": true };
    connection.run(&doc! {
        "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": &data, "$db": "admin"
    });
    connection.send(&message(&doc! { "ping": 1, "$db": "admin" }, 0));
    assert_eq!(connection.receive(), None);
}

#[test]
fn connections_are_limited() {
    let server = Server::start(|options, _| options.max_connections = 2);
    let ping = doc! { "ping": 1, "$db": "admin" };
    let mut first = server.connect();
    let mut second = server.connect();
    assert_eq!((number(&first.run(&ping), "ok"), number(&second.run(&ping), "ok")), (1, 1));
    let mut third = server.connect();
    // The refused connection may be closed before or after the request reaches it.
    let _ = third.stream.write_all(&message(&ping, 0));
    assert_eq!(third.receive(), None);
}

#[test]
fn documents_past_their_time_are_deleted() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let now = server.node.clock.now_millis();
    connection.run(&doc! {
        "insert": "c",
        "documents": [
            { "_id": 1, "at": Value::DateTime(now - 61_000) },
            { "_id": 2, "at": Value::DateTime(now - 1_000) },
            { "_id": 3, "at": "no date" },
            { "_id": 4, "at": [Value::DateTime(now), Value::DateTime(now - 61_000)] },
        ],
        "$db": "t"
    });
    let index = doc! { "v": 2, "key": { "at": 1 }, "name": "at_1", "expireAfterSeconds": 60 };
    server.node.engine().create_indexes("t.c", &[index.as_raw()], &|| Ok(())).unwrap();
    let client = Arc::new(sheaf_front::client::Client::new(0, None, &server.node.memory));
    let runtime = server.runtime.as_ref().unwrap();
    let node = server.node.clone();
    runtime
        .block_on(async move {
            tokio::spawn(
                async move { tokio::task::block_in_place(|| sheaf_server::ttl::pass(&node, &client)) },
            )
            .await
        })
        .unwrap();
    let found = connection.run(&doc! { "find": "c", "projection": { "at": 0 }, "$db": "t" });
    let cursor = found.as_raw().get("cursor").unwrap().as_doc().unwrap();
    assert_eq!(
        cursor.get("firstBatch").unwrap().as_array().unwrap(),
        sheaf_bson::array![{ "_id": 2 }, { "_id": 3 }].as_raw()
    );
}

#[test]
fn a_client_that_reads_nothing_is_dropped() {
    let server = Server::start(|options, _| options.write_timeout = Duration::from_millis(300));
    let mut connection = server.connect();
    let text = "x".repeat(1 << 20);
    let documents = sheaf_bson::ArrayBuf::build(|array| {
        for id in 0..14 {
            array.document().append("_id", id).append("text", &text);
        }
    });
    let insert = doc! { "insert": "c", "documents": &documents, "$db": "t" };
    assert_eq!(number(&connection.run(&insert), "n"), 14);
    // Far more than the sockets' buffers take.
    for _ in 0..4 {
        connection.send(&message(&doc! { "find": "c", "batchSize": 100, "$db": "t" }, 0));
    }
    let gone = Instant::now() + Duration::from_secs(10);
    while server.node.connection_count() > 0 {
        assert!(Instant::now() < gone, "the connection is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_held_answer_ends_with_its_client_and_lets_others_wait_their_turn() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let first = connection.run(&doc! { "hello": 1, "$db": "admin" });
    let version = first.as_raw().get("topologyVersion").unwrap();
    let waiting = |millis: i32| {
        doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": millis, "$db": "admin" }
    };
    // What is sent meanwhile is answered afterwards, in order.
    connection.send(&message(&waiting(200), 0));
    connection.send(&message(&doc! { "ping": 1, "$db": "admin" }, 0));
    assert!(body(&connection.receive().unwrap()).as_raw().element("maxWireVersion").is_some());
    assert!(body(&connection.receive().unwrap()).as_raw().element("maxWireVersion").is_none());

    connection.send(&message(&waiting(60_000), Flags::EXHAUST_ALLOWED));
    std::thread::sleep(Duration::from_millis(100));
    drop(connection);
    let gone = Instant::now() + Duration::from_secs(5);
    while server.node.connection_count() > 0 {
        assert!(Instant::now() < gone, "the connection is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn first_batch(reply: &DocBuf) -> Vec<DocBuf> {
    let cursor = reply.as_raw().get("cursor").unwrap_or_else(|| panic!("{reply:?}")).as_doc().unwrap();
    let batch = cursor.get("firstBatch").unwrap().as_array().unwrap();
    batch.values().map(|value| DocBuf::from(value.as_doc().unwrap())).collect()
}

#[test]
fn the_profiler_records_what_its_level_and_filter_say() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let mut run = |command: DocBuf| connection.run(&command.with("$db", "t"));
    let insert = |run: &mut dyn FnMut(DocBuf) -> DocBuf, id: i32| {
        assert_eq!(number(&run(doc! { "insert": "c", "documents": [{ "_id": id }] }), "n"), 1);
    };
    insert(&mut run, 1);
    assert_eq!(number(&run(doc! { "profile": 2 }), "was"), 0);
    insert(&mut run, 2);
    run(doc! { "count": "c" });
    assert_eq!(number(&run(doc! { "profile": 0 }), "was"), 2);
    insert(&mut run, 3);
    let seen = first_batch(&run(doc! { "find": "system.profile", "filter": { "ns": "t.c" } }));
    let ops: Vec<_> = seen.iter().map(|entry| entry.as_raw().get("op").unwrap().as_str().unwrap()).collect();
    assert_eq!(ops, ["insert", "command"]);

    run(doc! { "profile": 1, "filter": { "op": "insert", "command.documents._id": { "$gte": 5 } } });
    insert(&mut run, 4);
    insert(&mut run, 5);
    run(doc! { "count": "c" });
    let reply = run(doc! { "profile": -1 });
    assert_eq!(reply.as_raw().get("filter").unwrap().as_doc().unwrap().count(), 2);
    let seen = first_batch(&run(doc! { "find": "system.profile", "filter": { "ns": "t.c" } }));
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(number(&run(doc! { "profile": 1, "filter": { "$nonesuch": 1 } }), "code"), 2);
}

#[test]
fn the_profiler_tells_what_an_operation_failed_with() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let mut run = |command: DocBuf| connection.run(&command.with("$db", "t"));
    run(doc! { "insert": "c", "documents": [{ "_id": 1 }] });
    run(doc! { "profile": 2 });
    let numbers = doc! { "$range": [0, 100_000] };
    let long = doc! { "$reduce": { "input": &numbers, "initialValue": 0, "in": "$$this" } };
    let endless = doc! { "$reduce": { "input": &numbers, "initialValue": 0, "in": &long } };
    let late =
        doc! { "aggregate": "c", "pipeline": [{ "$set": { "a": &endless } }], "cursor": {}, "maxTimeMS": 20 };
    assert_eq!(number(&run(late), "code"), 50);
    run(doc! { "count": "c" });
    run(doc! { "profile": 0 });
    let seen = first_batch(&run(doc! { "find": "system.profile", "filter": { "ns": "t.c" } }));
    let [failed, fine] = &seen[..] else { panic!("{seen:?}") };
    let text = |name: &str| failed.as_raw().get(name).unwrap().as_str().unwrap().to_owned();
    assert_eq!((number(failed, "ok"), number(failed, "errCode")), (0, 50));
    assert_eq!(text("errName"), "MaxTimeMSExpired");
    // Where its time was over, the plan's executor puts words in front, or does not.
    assert!(text("errMsg").ends_with("operation exceeded time limit"), "{}", text("errMsg"));
    assert!(fine.as_raw().get("errCode").is_none() && fine.as_raw().get("ok").is_none(), "{fine:?}");
}

#[test]
fn operations_are_found_by_any_filter_and_stopped() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let ids: Vec<i32> = (0..2000).collect();
    for part in ids.chunks(500) {
        let documents = sheaf_bson::ArrayBuf::build(|array| {
            for id in part {
                array.document().append("_id", *id);
            }
        });
        connection.run(&doc! { "insert": "c", "documents": &documents, "$db": "t" });
    }
    // Two thousand by two thousand comparisons of joined documents: long, unless stopped.
    let endless = doc! {
        "aggregate": "c",
        "pipeline": [
            { "$lookup": { "from": "c", "pipeline": [{ "$match": { "$expr": { "$gte": ["$_id", 0] } } }], "as": "a" } },
            { "$unwind": "$a" },
            { "$lookup": { "from": "c", "pipeline": [{ "$match": { "$expr": { "$gte": ["$_id", 0] } } }], "as": "b" } },
            { "$unwind": "$b" },
            { "$group": { "_id": 0, "n": { "$sum": 1 } } },
        ],
        "cursor": {}, "$db": "t",
    };
    let started = Instant::now();
    let reply = connection.run(&DocBuf::from(endless.as_raw()).with("maxTimeMS", 200));
    assert_eq!(number(&reply, "code"), 50, "{reply:?}");
    assert!(started.elapsed() < Duration::from_millis(1000), "{:?}", started.elapsed());

    connection.send(&message(&endless, 0));
    let mut other = server.connect();
    let find = doc! { "currentOp": 1, "command.aggregate": { "$in": ["c"] }, "ns": "t.c", "$db": "admin" };
    let operation = loop {
        let found = other.run(&find);
        let list = found.as_raw().get("inprog").unwrap().as_array().unwrap();
        if let Some(operation) = list.values().next() {
            break operation.as_doc().unwrap().get("opid").unwrap().as_exact_i64().unwrap();
        }
    };
    let killed = Instant::now();
    other.run(&doc! { "killOp": 1, "op": operation, "$db": "admin" });
    assert_eq!(number(&body(&connection.receive().unwrap()), "code"), 11601);
    assert!(killed.elapsed() < Duration::from_millis(500), "{:?}", killed.elapsed());
}

/// A client that changes nothing relies on what it found, which somebody may have written without `j`.
#[test]
fn a_journaled_write_that_changes_nothing_waits_for_what_is_there() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let (release, released) = std::sync::mpsc::sync_channel::<()>(0);
    let released = std::sync::Mutex::new(released);
    let hook = move || {
        let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(10));
        Ok(())
    };
    connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "test" });
    connection.run(&doc! { "fsync": 1, "$db": "admin" });
    server.node.engine().set_hook(sheaf_storage::HookPoint::Sync, Some(Arc::new(hook)));
    connection.run(&doc! { "insert": "c", "documents": [{ "_id": 2 }], "$db": "test" });
    let concern = doc! { "w": 1, "j": true, "wtimeout": 20 };
    for command in [
        doc! { "delete": "c", "deletes": [{ "q": { "none": 1 }, "limit": 0 }] },
        doc! { "update": "c", "updates": [{ "q": { "none": 1 }, "u": { "$set": { "a": 1 } } }] },
        doc! { "findAndModify": "c", "query": { "none": 1 }, "remove": true },
        doc! { "insert": "c", "documents": [{ "_id": 1 }] },
        doc! { "createIndexes": "c", "indexes": [{ "key": { "_id": 1 }, "name": "_id_" }] },
        doc! { "aggregate": "none", "pipeline": [{ "$merge": "c" }], "cursor": {} },
    ] {
        let reply = connection.run(&command.clone().with("writeConcern", &concern).with("$db", "test"));
        let error = reply.as_raw().get("writeConcernError").and_then(|v| v.as_doc());
        let code = error.and_then(|error| error.get("code")?.as_exact_i64());
        assert_eq!(code, Some(64), "{command:?}: {reply:?}");
    }
    server.node.engine().set_hook(sheaf_storage::HookPoint::Sync, None);
    drop(release);
}

/// What is defined stays in memory, so all definitions together have a part of it.
#[test]
fn definitions_have_a_part_of_memory() {
    let server = Server::start(|options, _| {
        options.parameters.push(("operationsMemoryBytes".to_owned(), (16 << 20).to_string()));
    });
    let mut connection = server.connect();
    let long = "x".repeat(100_000);
    let filter = doc! { "$or": [{ "a": &long }, { "b": &long }, { "c": &long }] };
    let mut run = |command: DocBuf| {
        let reply = connection.run(&command.with("$db", "test"));
        if number(&reply, "ok") == 1 { 0 } else { number(&reply, "code") }
    };
    // A megabyte in all.
    assert_eq!(run(doc! { "create": "c1", "validator": &filter }), 0);
    let stages = [doc! { "$match": &filter }];
    assert_eq!(run(doc! { "create": "v1", "viewOn": "c1", "pipeline": [&stages[0]] }), 0);
    let index = doc! { "key": { "a": 1 }, "name": "a", "partialFilterExpression": { "a": { "$in": [&long, &long, &long] } } };
    assert_eq!(run(doc! { "createIndexes": "c1", "indexes": [&index] }), 0);
    let another = index.clone().with("expireAfterSeconds", 1);
    assert_eq!(run(doc! { "createIndexes": "c2", "indexes": [&another] }), 146);
    assert_eq!(run(doc! { "create": "c2", "validator": &filter }), 146);
    assert_eq!(run(doc! { "create": "v2", "viewOn": "c1", "pipeline": [&stages[0]] }), 146);
    assert_eq!(run(doc! { "create": "c2" }), 0);
    assert_eq!(run(doc! { "collMod": "c2", "validator": &filter }), 146);
    assert_eq!(run(doc! { "drop": "v1" }), 0);
    assert_eq!(run(doc! { "collMod": "c2", "validator": &filter }), 0);
}

#[test]
fn index_filters_have_a_part_of_memory() {
    let server = Server::start(|options, _| {
        options.parameters.push(("operationsMemoryBytes".to_owned(), (16 << 20).to_string()));
    });
    let mut connection = server.connect();
    let mut run = |command: DocBuf| {
        let reply = connection.run(&command.with("$db", "test"));
        if number(&reply, "ok") == 1 { 0 } else { number(&reply, "code") }
    };
    assert_eq!(run(doc! { "create": "c" }), 0);
    let filter = |shape: usize| {
        let name = format!("f{shape}{}", "x".repeat(200_000));
        let query = DocBuf::new().with(&name, 1);
        doc! { "planCacheSetFilter": "c", "query": &query, "indexes": ["a"] }
    };
    let taken = (0..20).filter(|shape| run(filter(*shape)) == 0).count();
    assert_eq!(taken, 5, "a megabyte in all");
    assert_eq!(run(filter(20)), 146);
    assert_eq!(run(filter(0)), 0, "it is there");
    assert_eq!(run(doc! { "planCacheClearFilters": "c" }), 0);
    assert_eq!(run(filter(20)), 0);
}

#[test]
fn wtimeout_ends_the_wait_for_a_slow_disk() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let insert = |id: i32, millis: i32| {
        let concern = doc! { "w": 1, "j": true, "wtimeout": millis };
        doc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": &concern, "$db": "test" }
    };
    let reply = connection.run(&insert(1, 50));
    assert!(reply.as_raw().get("writeConcernError").is_none(), "{reply:?}");
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let hook = move || {
        let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(10));
        Ok(())
    };
    server.node.engine().set_hook(sheaf_storage::HookPoint::Sync, Some(Arc::new(hook)));
    let reply = connection.run(&insert(2, 50));
    assert_eq!(number(&reply, "n"), 1);
    let error = reply.as_raw().get("writeConcernError").and_then(|v| v.as_doc()).unwrap();
    assert_eq!(error.get("code").and_then(|v| v.as_exact_i64()), Some(64));
    assert_eq!(error.get("errmsg").and_then(|v| v.as_str()), Some("waiting for replication timed out"));
    // The disk goes on: so do the waits.
    server.node.engine().set_hook(sheaf_storage::HookPoint::Sync, None);
    drop(release);
    let reply = connection.run(&insert(3, 10_000));
    assert!(reply.as_raw().get("writeConcernError").is_none(), "{reply:?}");
}

#[test]
fn an_update_that_lost_its_document_while_it_waited_is_done_on_the_new_one() {
    let server = Server::start(|_, _| {});
    let (mut holder, mut waiter, mut other) = (server.connect(), server.connect(), server.connect());
    let index = doc! { "key": { "u": 1 }, "name": "u_1", "unique": true };
    holder.run(&doc! { "createIndexes": "c", "indexes": [&index], "$db": "test" });
    holder.run(&doc! { "insert": "c", "documents": [{ "_id": 1, "u": 1, "n": 0 }], "$db": "test" });
    let id = Value::Binary(sheaf_bson::Binary { subtype: 4, bytes: &[7; 16] });
    let session = doc! { "id": id };
    // A transaction has the key that the update wants.
    let reply = holder.run(&doc! {
        "insert": "c", "documents": [{ "_id": 100, "u": 5 }], "lsid": &session, "txnNumber": 1i64,
        "startTransaction": true, "autocommit": false, "$db": "test"
    });
    assert_eq!(number(&reply, "n"), 1, "{reply:?}");
    let update = |change: DocBuf| {
        let update = doc! { "q": { "_id": 1 }, "u": &change };
        doc! { "update": "c", "updates": [&update], "$db": "test" }
    };
    let waits = || server.node.engine().stats().lock_waits;
    let before = waits();
    waiter.send(&message(&update(doc! { "$set": { "u": 5 }, "$inc": { "n": 1 } }), 0));
    let deadline = Instant::now() + Duration::from_secs(20);
    while waits() == before {
        assert!(Instant::now() < deadline, "the update does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    let reply = other.run(&update(doc! { "$inc": { "n": 10 } }));
    assert_eq!(number(&reply, "nModified"), 1, "{reply:?}");
    let end = doc! {
        "abortTransaction": 1, "lsid": &session, "txnNumber": 1i64, "autocommit": false, "$db": "admin"
    };
    assert_eq!(number(&holder.run(&end), "ok"), 1);
    let reply = body(&waiter.receive().unwrap());
    assert_eq!(number(&reply, "nModified"), 1, "{reply:?}");
    let found = other.run(&doc! { "find": "c", "filter": { "_id": 1 }, "$db": "test" });
    let cursor = found.as_raw().get("cursor").and_then(|v| v.as_doc()).unwrap();
    let batch = cursor.get("firstBatch").and_then(|v| v.as_array()).unwrap();
    let document = batch.values().next().and_then(|v| v.as_doc()).unwrap();
    assert_eq!(format!("{document:?}"), format!("{:?}", doc! { "_id": 1, "u": 5, "n": 11 }));
}
