//! Collections named by their UUIDs.

use crate::support::{Server, number};
use sheaf_bson::{DocBuf, OwnedValue, doc};

fn errmsg(reply: &DocBuf) -> String {
    reply.as_raw().get("errmsg").and_then(|text| text.as_str()).unwrap_or_default().to_owned()
}

#[test]
fn reads_name_a_collection_by_its_uuid() {
    let server = Server::start(|_, _| {});
    let mut client = server.connect();
    let insert =
        doc! { "insert": "plants", "documents": [{ "_id": 1, "a": 5 }, { "_id": 2, "a": 6 }], "$db": "t" };
    assert_eq!(number(&client.run(&insert), "n"), 2);
    let listed = client.run(&doc! { "listCollections": 1, "$db": "t" });
    let uuid = listed
        .as_raw()
        .get("cursor")
        .and_then(|cursor| cursor.as_doc())
        .and_then(|cursor| cursor.get("firstBatch"))
        .and_then(|batch| batch.as_array())
        .and_then(|batch| batch.values().next())
        .and_then(|collection| collection.as_doc())
        .and_then(|collection| collection.get("info"))
        .and_then(|info| info.as_doc())
        .and_then(|info| info.get("uuid"))
        .map(OwnedValue::from)
        .expect("a collection has a UUID");

    let find = DocBuf::new().with("find", &uuid).with("filter", &doc! { "a": 6 }).with("$db", "t");
    let found = client.run(&find);
    let cursor = found.as_raw().get("cursor").and_then(|cursor| cursor.as_doc()).expect("a cursor");
    assert_eq!(cursor.get("ns").and_then(|ns| ns.as_str()), Some("t.plants"));
    assert_eq!(
        cursor.get("firstBatch").and_then(|batch| batch.as_array()).map(|batch| batch.count()),
        Some(1)
    );
    let count =
        DocBuf::new().with("count", &uuid).with("query", &doc! { "a": { "$gt": 5 } }).with("$db", "t");
    assert_eq!(number(&client.run(&count), "n"), 1);
    let distinct = DocBuf::new().with("distinct", &uuid).with("key", "a").with("$db", "t");
    let values = client.run(&distinct);
    assert_eq!(
        values.as_raw().get("values").and_then(|list| list.as_array()).map(|list| list.count()),
        Some(2)
    );

    // The UUID is of another database's collection.
    let elsewhere = client.run(&DocBuf::new().with("find", &uuid).with("$db", "u"));
    assert_eq!(number(&elsewhere, "code"), 26, "{elsewhere:?}");
    assert!(errmsg(&elsewhere).contains("resolved nss: t.plants"), "{elsewhere:?}");
    // Who writes names its collection.
    let insert = DocBuf::new().with("insert", &uuid).with("documents", &doc! {}).with("$db", "t");
    assert_eq!(number(&client.run(&insert), "code"), 73);
}
