//! When sessions end, and what goes with them.

use std::time::Duration;

use crate::support::{Connection, Server, body, message, number};
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_server::session::{Leftovers, LogicalSessionId};
use sheaf_storage::{Statement, Write};

fn id(n: u8) -> LogicalSessionId {
    LogicalSessionId::new([n; 16])
}

fn lsid(n: u8) -> DocBuf {
    id(n).document()
}

/// From here on a session is idle at once.
fn shorten(server: &Server) {
    let data = doc! { "millis": 0 };
    let mode = Value::String("alwaysOn");
    server.node.fail_points.configure("shortSessionTimeout", mode, data.as_raw()).unwrap();
}

fn insert(connection: &mut Connection, session: u8, id: i32) -> DocBuf {
    let command = doc! {
        "insert": "c", "documents": [{ "_id": id }], "$db": "t", "lsid": &lsid(session), "txnNumber": 1i64,
    };
    connection.run(&command)
}

/// Whether an insert that was repeated has been executed again, and so met its own document.
fn is_executed_anew(reply: &DocBuf) -> bool {
    assert_eq!(number(reply, "ok"), 1, "{reply:?}");
    number(reply, "n") == 0
}

#[test]
fn an_ended_session_is_forgotten_with_its_records() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    (1..=3).for_each(|n| assert_eq!(number(&insert(&mut connection, n, i32::from(n)), "n"), 1));
    assert!(!is_executed_anew(&insert(&mut connection, 1, 1)));
    connection.run(&doc! { "endSessions": [&lsid(1)], "$db": "admin" });
    assert!(is_executed_anew(&insert(&mut connection, 1, 1)));
    server.node.reap_sessions();
    assert!(!is_executed_anew(&insert(&mut connection, 2, 2)));
    shorten(&server);
    server.node.reap_sessions();
    assert_eq!(server.node.sessions.count(), 0);
    assert!(server.node.engine().recorded_sessions(None, 9).unwrap().is_empty());
    assert!(is_executed_anew(&insert(&mut connection, 2, 2)));
    // With nothing to forget nothing is written.
    server.node.reap_sessions();
    let last = server.node.engine().last_applied();
    server.node.reap_sessions();
    assert_eq!(server.node.engine().last_applied(), last);
}

#[test]
fn records_of_an_earlier_run_go_after_a_full_timeout() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    connection.run(&doc! { "insert": "c", "documents": [{ "_id": 0 }], "$db": "t" });
    let go_on = || Ok(());
    let mut unit = server.node.engine().write(&go_on);
    let collection = unit.collection("t.c").unwrap().unwrap();
    for n in 1..=2u8 {
        unit.statement(Some(Statement { lsid: lsid(n), txn_number: 1, stmt_id: 0, result: None }));
        unit.insert(&collection, doc! { "_id": i32::from(n) }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    // One of them is used again.
    assert!(!is_executed_anew(&insert(&mut connection, 2, 2)));
    let mut leftovers = Leftovers::default();
    leftovers.forget(&server.node);
    assert_eq!(server.node.engine().recorded_sessions(None, 9).unwrap().len(), 2);
    shorten(&server);
    leftovers.forget(&server.node);
    assert_eq!(server.node.engine().recorded_sessions(None, 9).unwrap(), [lsid(2)]);
    assert!(is_executed_anew(&insert(&mut connection, 1, 1)));
    server.node.reap_sessions();
    assert!(server.node.engine().recorded_sessions(None, 9).unwrap().is_empty());
}

#[test]
fn an_open_transaction_keeps_its_session() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let within = |command: DocBuf, first: bool| {
        let mut command = command;
        command.edit(|out| {
            out.append("lsid", &lsid(5)).append("txnNumber", 1i64).append("autocommit", false);
            if first {
                out.append("startTransaction", true);
            }
        });
        command
    };
    connection.run(&doc! { "create": "c", "$db": "t" });
    let insert = |n: i32| doc! { "insert": "c", "documents": [{ "_id": n }], "$db": "t" };
    assert_eq!(number(&connection.run(&within(insert(1), true)), "n"), 1);
    shorten(&server);
    server.node.reap_sessions();
    assert_eq!(number(&connection.run(&within(insert(2), false)), "n"), 1);
    server.node.reap_sessions();
    let commit = doc! { "commitTransaction": 1, "$db": "admin" };
    assert_eq!(number(&connection.run(&within(commit, false)), "ok"), 1);
    server.node.reap_sessions();
    assert!(server.node.sessions.get(id(5)).is_none());
}

#[test]
fn an_operation_under_way_keeps_its_session() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    connection.run(&doc! { "create": "c", "capped": true, "size": 4096, "$db": "t" });
    connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" });
    let find = doc! { "find": "c", "tailable": true, "awaitData": true, "$db": "t", "lsid": &lsid(6) };
    let reply = connection.run(&find);
    let cursor = number_in(&reply, "cursor", "id");
    let mut other = server.connect();
    other.run(&doc! { "ping": 1, "$db": "t", "lsid": &lsid(7) });
    let more = doc! {
        "getMore": cursor, "collection": "c", "maxTimeMS": 60_000, "$db": "t", "lsid": &lsid(6),
    };
    connection.send(&message(&more, 0));
    let waits = || {
        server.node.clients().iter().any(|client| client.parked.load(std::sync::atomic::Ordering::Relaxed))
    };
    while !waits() {
        std::thread::sleep(Duration::from_millis(2));
    }
    shorten(&server);
    server.node.reap_sessions();
    assert!(server.node.sessions.get(id(6)).is_some());
    assert!(server.node.sessions.get(id(7)).is_none());
    other.run(&doc! { "insert": "c", "documents": [{ "_id": 2 }], "$db": "t" });
    let reply = body(&connection.receive().unwrap());
    assert_eq!(number(&reply, "ok"), 1, "{reply:?}");
    // The cursor is idle now: it does not time out by itself, but goes with its session.
    server.node.cursors.expire(Duration::ZERO, false);
    assert_eq!(server.node.cursors.counts().open, 1);
    // Its use by the getMore counts to the millisecond after it.
    let began = std::time::Instant::now();
    while server.node.sessions.get(id(6)).is_some() {
        assert!(began.elapsed() < Duration::from_secs(60), "the session stays");
        server.node.reap_sessions();
    }
    assert_eq!(server.node.cursors.counts().open, 0);
}

#[test]
fn cursors_outside_sessions_time_out() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let two = doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }], "$db": "t" };
    connection.run(&two);
    let open = |more: DocBuf| {
        let mut find = doc! { "find": "c", "batchSize": 1, "$db": "t" };
        find.edit(|out| {
            out.append_all(more.as_raw());
        });
        find
    };
    connection.run(&open(doc! {}));
    connection.run(&open(doc! { "noCursorTimeout": true }));
    connection.run(&open(doc! { "lsid": &lsid(1) }));
    assert_eq!(server.node.cursors.counts().open, 3);
    server.node.cursors.expire(Duration::ZERO, false);
    assert_eq!(server.node.cursors.counts().open, 2);
    server.node.cursors.expire(Duration::ZERO, true);
    assert_eq!(server.node.cursors.counts().open, 1);
}

fn number_in(reply: &DocBuf, outer: &str, name: &str) -> i64 {
    let inner = reply.as_raw().get(outer).and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
    match inner.get(name) {
        Some(Value::Int64(n)) => n,
        other => panic!("{other:?}"),
    }
}
