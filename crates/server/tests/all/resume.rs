//! Finds that go on where others have ended, by what these have told.

use crate::support::{Connection, Server};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, doc};

/// A batch: its documents' ids, the token and the cursor.
fn batch(reply: &DocBuf) -> (Vec<i64>, DocBuf, i64) {
    let cursor = reply.as_raw().get("cursor").and_then(|cursor| cursor.as_doc()).expect("a cursor");
    let documents = cursor.get("firstBatch").or(cursor.get("nextBatch")).and_then(|batch| batch.as_array());
    let id = |document: RawDoc<'_>| document.get("_id").and_then(|id| id.as_exact_i64()).expect("an id");
    let ids = documents.expect("a batch").values().filter_map(|one| one.as_doc()).map(id).collect();
    let token = cursor.get("postBatchResumeToken").and_then(|token| token.as_doc()).expect("a token");
    (ids, DocBuf::from(token), cursor.get("id").and_then(|id| id.as_exact_i64()).expect("its number"))
}

fn find(connection: &mut Connection, collection: &str, more: DocBuf) -> DocBuf {
    let find =
        doc! { "find": collection, "hint": { "$natural": 1 }, "$_requestResumeToken": true, "$db": "t" };
    connection.run(&DocBuf::build(|out| {
        out.append_all(find.as_raw());
        out.append_all(more.as_raw());
    }))
}

fn code(reply: &DocBuf) -> Option<i64> {
    reply.as_raw().get("code").and_then(|code| code.as_exact_i64())
}

fn filled(collections: &[DocBuf]) -> (Server, Connection) {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    for create in collections {
        connection.run(create);
        let name = create.as_raw().iter().next().and_then(|first| first.value().as_str()).expect("a name");
        let documents =
            ArrayBuf::of(&(1..=6).map(|id| doc! { "_id": id, "even": id % 2 == 0 }).collect::<Vec<_>>());
        let insert = DocBuf::build(|out| {
            out.append("insert", name).append("documents", &documents).append("$db", "t");
        });
        connection.run(&insert);
    }
    (server, connection)
}

#[test]
fn a_find_goes_on_behind_the_record_that_a_token_names() {
    let capped = doc! { "create": "capped", "capped": true, "size": 100_000, "$db": "t" };
    let (_server, mut connection) = filled(&[doc! { "create": "plain", "$db": "t" }, capped]);
    for name in ["plain", "capped"] {
        let (ids, token, cursor) = batch(&find(&mut connection, name, doc! { "batchSize": 2 }));
        assert_eq!(ids, [1, 2], "{name}");
        let more = doc! { "getMore": cursor, "collection": name, "batchSize": 1, "$db": "t" };
        let (ids, later, _) = batch(&connection.run(&more));
        assert_eq!(ids, [3], "{name}");
        for (from, token, expected) in [
            ("$_resumeAfter", &token, &[3, 4, 5, 6][..]),
            ("$_startAt", &token, &[2, 3, 4, 5, 6]),
            ("$_resumeAfter", &later, &[4, 5, 6]),
        ] {
            let (ids, last, _) = batch(&find(&mut connection, name, doc! { (from): token }));
            assert_eq!(ids, expected, "{name}, {from}");
            // All is read: there is nothing to go on with.
            assert_eq!(last, doc! { "$recordId": () }, "{name}");
            assert_eq!(code(&find(&mut connection, name, doc! { "$_resumeAfter": &last })), Some(211));
        }
        // A limit ends a read before its end, even with the last document.
        let (ids, last, _) = batch(&find(&mut connection, name, doc! { "limit": 6 }));
        assert_eq!(ids.len(), 6, "{name}");
        let (ids, none, _) = batch(&find(&mut connection, name, doc! { "$_resumeAfter": &last }));
        assert_eq!((ids, none), (Vec::new(), doc! { "$recordId": () }), "{name}");
        let even = doc! { "filter": { "even": true }, "$_resumeAfter": &token };
        assert_eq!(batch(&find(&mut connection, name, even)).0, [4, 6], "{name}");
        let fresh = doc! { "batchSize": 0 };
        let (_, none, _) = batch(&find(&mut connection, name, fresh));
        let all = batch(&find(&mut connection, name, doc! { "$_startAt": &none })).0;
        assert_eq!(all, [1, 2, 3, 4, 5, 6], "{name}");
    }
}

#[test]
fn a_tailable_cursor_always_has_a_place_to_go_on_from() {
    let capped = doc! { "create": "capped", "capped": true, "size": 100_000, "$db": "t" };
    let (_server, mut connection) = filled(&[capped]);
    let (ids, last, _) = batch(&find(&mut connection, "capped", doc! { "tailable": true }));
    assert_eq!(ids.len(), 6);
    assert_ne!(last, doc! { "$recordId": () });
}

#[test]
fn a_pipeline_of_filters_goes_on_like_a_find() {
    let (_server, mut connection) = filled(&[doc! { "create": "plain", "$db": "t" }]);
    let mut aggregate = |pipeline: &ArrayBuf, batch_size: i32, more: DocBuf| {
        let command = DocBuf::build(|out| {
            out.append("aggregate", "plain").append("pipeline", pipeline);
            out.append("cursor", &doc! { "batchSize": batch_size });
            out.append("hint", &doc! { "$natural": 1 }).append("$_requestResumeToken", true);
            out.append_all(more.as_raw()).append("$db", "t");
        });
        connection.run(&command)
    };
    let none = ArrayBuf::default();
    let even =
        ArrayBuf::of(&[doc! { "$match": { "even": true } }, doc! { "$match": { "_id": { "$gt": 2 } } }]);
    let (ids, token, cursor) = batch(&aggregate(&none, 2, doc! {}));
    assert_eq!(ids, [1, 2]);
    assert_ne!(cursor, 0);
    assert_eq!(batch(&aggregate(&none, 9, doc! { "$_resumeAfter": &token })).0, [3, 4, 5, 6]);
    assert_eq!(batch(&aggregate(&none, 9, doc! { "$_startAt": &token })).0, [2, 3, 4, 5, 6]);
    assert_eq!(batch(&aggregate(&even, 9, doc! { "$_resumeAfter": &token })).0, [4, 6]);
    let other = ArrayBuf::of(&[doc! { "$limit": 1 }]);
    assert_eq!(code(&aggregate(&other, 9, doc! {})), Some(115));
}

#[test]
fn the_record_has_to_be_there_unless_any_later_one_will_do() {
    let (_server, mut connection) = filled(&[doc! { "create": "plain", "$db": "t" }]);
    let (_, token, _) = batch(&find(&mut connection, "plain", doc! { "limit": 2 }));
    connection.run(&doc! { "delete": "plain", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }], "$db": "t" });
    assert_eq!(code(&find(&mut connection, "plain", doc! { "$_resumeAfter": &token })), Some(211));
    assert_eq!(batch(&find(&mut connection, "plain", doc! { "$_startAt": &token })).0, [3, 4, 5, 6]);
}
