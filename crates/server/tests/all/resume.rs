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
            // Behind the last one is nothing, and that is where the next find would begin, too.
            let (ids, same, _) = batch(&find(&mut connection, name, doc! { "$_resumeAfter": &last }));
            assert_eq!((ids, same), (Vec::new(), last), "{name}");
        }
        let even = doc! { "filter": { "even": true }, "$_resumeAfter": &token };
        assert_eq!(batch(&find(&mut connection, name, even)).0, [4, 6], "{name}");
        let fresh = doc! { "batchSize": 0 };
        let (_, none, _) = batch(&find(&mut connection, name, fresh));
        let all = batch(&find(&mut connection, name, doc! { "$_resumeAfter": &none })).0;
        assert_eq!(all, [1, 2, 3, 4, 5, 6], "{name}");
    }
}

#[test]
fn the_record_has_to_be_there_unless_any_later_one_will_do() {
    let (_server, mut connection) = filled(&[doc! { "create": "plain", "$db": "t" }]);
    let (_, token, _) = batch(&find(&mut connection, "plain", doc! { "limit": 2 }));
    connection.run(&doc! { "delete": "plain", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }], "$db": "t" });
    assert_eq!(code(&find(&mut connection, "plain", doc! { "$_resumeAfter": &token })), Some(211));
    assert_eq!(batch(&find(&mut connection, "plain", doc! { "$_startAt": &token })).0, [3, 4, 5, 6]);
}
