//! Arguments of the commands about sessions, and what their errors say.

mod support;

use sheaf_bson::{Binary, DocBuf, RawDoc, Value, array, doc};
use support::{Server, number};

/// Each command with its database, the error's code (0 for none) and text.
fn check(table: Vec<(DocBuf, i64, &str)>) {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    for (command, code, text) in table {
        let reply = connection.run(&command);
        let got = if number(&reply, "ok") == 1 { 0 } else { number(&reply, "code") };
        assert_eq!(got, code, "{command:?}: {reply:?}");
        if code != 0 {
            assert_eq!(reply.as_raw().get("errmsg").and_then(|v| v.as_str()), Some(text), "{command:?}");
        }
    }
}

#[test]
fn lists_of_sessions() {
    let uuid = |bytes: &'static [u8]| Value::Binary(Binary { subtype: 4, bytes });
    let good = doc! { "id": uuid(&[7; 16]) };
    check(vec![
        (doc! { "killSessions": [&good], "$db": "a" }, 0, ""),
        (doc! { "killSessions": [&good, Value::Null], "more": 1, "$db": "a" }, 0, ""),
        (
            doc! { "killSessions": 1, "$db": "a" },
            14,
            "BSON field 'KillSessionsCmd.killSessions' is the wrong type 'int', expected type 'array'",
        ),
        (
            doc! { "killSessions": Value::Null, "$db": "a" },
            40414,
            "BSON field 'KillSessionsCmd.killSessions' is missing but a required field",
        ),
        (
            doc! { "killSessions": [&good, "x"], "$db": "a" },
            14,
            "BSON field 'KillSessionsCmd.killSessions.1' is the wrong type 'string', expected type 'object'",
        ),
        (
            doc! { "killSessions": [{ "id": Value::Null }], "$db": "a" },
            40414,
            "BSON field 'KillSessionsCmd.killSessions.id' is missing but a required field",
        ),
        (
            doc! { "killSessions": [{ "id": uuid(&[7; 8]) }], "$db": "a" },
            207,
            "uuid must be 16 bytes long, got 8",
        ),
        (
            doc! { "endSessions": [{ "id": 5 }], "$db": "a" },
            14,
            "BSON field 'endSessions.endSessions.id' is the wrong type 'int', expected type 'binData'",
        ),
        (
            doc! { "refreshSessions": [{ "foo": 5 }], "$db": "a" },
            40415,
            "BSON field 'refreshSessions.refreshSessions.foo' is an unknown field.",
        ),
        (
            doc! { "ping": 1, "lsid": {}, "$db": "a" },
            40414,
            "BSON field 'OperationSessionInfo.lsid.id' is missing but a required field",
        ),
        (doc! { "startSession": 1, "unknown": 1, "$db": "a" }, 0, ""),
    ]);
}

#[test]
fn lists_of_users() {
    let users =
        |entry: Value<'_>| doc! { "killAllSessions": Value::Array(array![entry].as_raw()), "$db": "a" };
    let user = |doc: DocBuf| users(Value::Document(doc.as_raw()));
    check(vec![
        (user(doc! { "user": "", "db": "x" }), 0, ""),
        (users(Value::Null), 0, ""),
        (
            users(Value::Bool(true)),
            14,
            "BSON field 'KillAllSessionsCmd.killAllSessions.0' is the wrong type 'bool', expected type 'object'",
        ),
        (
            user(doc! { "user": "x" }),
            40414,
            "BSON field 'KillAllSessionsCmd.killAllSessions.db' is missing but a required field",
        ),
        (
            user(doc! { "user": Value::Null, "db": "x" }),
            40414,
            "BSON field 'KillAllSessionsCmd.killAllSessions.user' is missing but a required field",
        ),
        (
            user(doc! { "user": 1, "db": "x" }),
            14,
            "BSON field 'KillAllSessionsCmd.killAllSessions.user' is the wrong type 'int', expected type 'string'",
        ),
        (
            user(doc! { "user": "x", "db": "x", "z": 1 }),
            40415,
            "BSON field 'KillAllSessionsCmd.killAllSessions.z' is an unknown field.",
        ),
    ]);
}

#[test]
fn ends_of_transactions_that_were_not_begun() {
    let mut table = Vec::new();
    for name in ["commitTransaction", "abortTransaction"] {
        let outside = format!("{name} must be run within a transaction").leak();
        let unknown = format!("BSON field '{name}.foo' is an unknown field.").leak();
        table.push((doc! { (name): 1, "$db": "admin" }, 125, &*outside));
        table.push((doc! { (name): "x", "recoveryToken": {}, "$db": "admin" }, 125, &*outside));
        table.push((
            doc! { (name): 1, "writeConcern": { "w": 0, "j": true }, "$db": "admin" },
            125,
            &*outside,
        ));
        table.push((doc! { (name): 1, "foo": 1, "$db": "admin" }, 40415, &*unknown));
        for (w, mode) in [(Value::String("tag"), "tag"), (Value::Null, "")] {
            let text = format!(
                "cannot use non-majority 'w' mode {mode} when a host is not a member of a replica set"
            );
            let text = &*text.leak();
            let command = doc! { (name): 1, "writeConcern": { "w": w }, "$db": "admin" };
            table.push((command, 2, text));
        }
    }
    check(table);
}

#[test]
fn stages_that_transactions_do_not_cover() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" });
    let lsid = doc! { "id": Value::Binary(Binary { subtype: 4, bytes: &[6; 16] }) };
    for (at, name) in ["$changeStream", "$collStats", "$indexStats", "$listLocalSessions", "$out", "$merge"]
        .into_iter()
        .enumerate()
    {
        let argument = if matches!(name, "$out" | "$merge") {
            Value::String("d")
        } else {
            Value::Document(RawDoc::EMPTY)
        };
        let reply = connection.run(&doc! {
            "aggregate": "c", "pipeline": [{ (name): argument }], "cursor": {}, "$db": "t",
            "lsid": &lsid, "txnNumber": at as i64, "autocommit": false, "startTransaction": true,
        });
        assert_eq!(number(&reply, "code"), 263, "{name}");
        let text = format!("Stage not supported inside of a multi-document transaction: {name}");
        assert_eq!(reply.as_raw().get("errmsg").and_then(|v| v.as_str()), Some(text.as_str()));
    }
}

#[test]
fn what_a_fail_point_holds_back_for_too_long_has_no_effect() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    connection.run(&doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "t" });
    connection.run(&doc! {
        "configureFailPoint": "failCommand", "mode": { "times": 1 }, "$db": "admin",
        "data": { "failCommands": ["delete"], "blockConnection": true, "blockTimeMS": 50 },
    });
    let delete =
        doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }], "maxTimeMS": 10, "$db": "t" };
    assert_eq!(number(&connection.run(&delete), "code"), 50);
    assert_eq!(number(&connection.run(&doc! { "count": "c", "$db": "t" }), "n"), 1);
}

#[test]
fn search_needs_a_service() {
    let indexes = "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires additional configuration. Please connect to Atlas or an AtlasCLI local deployment to enable. For more information on how to connect, see https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs.";
    let search = "Using $search and $vectorSearch aggregation stages requires additional configuration. Please connect to Atlas or an AtlasCLI local deployment to enable. For more information on how to connect, see https://dochub.mongodb.org/core/atlas-cli-deploy-local-reqs.";
    check(vec![
        (doc! { "createSearchIndexes": "c", "indexes": [], "$db": "a" }, 31082, indexes),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$listSearchIndexes": {} }], "cursor": {}, "$db": "a" },
            31082,
            indexes,
        ),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$vectorSearch": {} }], "cursor": {}, "$db": "a" },
            31082,
            search,
        ),
    ]);
}
