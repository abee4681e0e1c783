use sheaf_bson::{ArrayBuf, Binary, DocBuf, doc};

use super::*;

fn field(key: u8, path: &str) -> DocBuf {
    let bytes = [key; 16];
    DocBuf::new().with("keyId", Value::Binary(Binary { subtype: 4, bytes: &bytes })).with("path", path)
}

fn code(fields: &[DocBuf]) -> i32 {
    let list = ArrayBuf::of(fields.iter());
    check(doc! { "fields": &list }.as_raw()).map_or_else(|error| error.code().0, |()| 0)
}

#[test]
fn fields_beside_each_other() {
    assert_eq!(code(&[field(1, "a"), field(2, "b.c")]), 0);
    assert_eq!(code(&[field(1, "a"), field(1, "b")]), 6338401);
    assert_eq!(code(&[field(1, "a"), field(2, "a")]), 6338402);
    assert_eq!(code(&[field(1, "a"), field(2, "a.b")]), 6338403);
    assert_eq!(code(&[field(1, "")]), 6316402);
    assert_eq!(code(&[field(1, "_id.x")]), 6316403);
}

#[test]
fn queries_and_types() {
    let with =
        |kind: &str, queries: DocBuf| code(&[field(1, "a").with("bsonType", kind).with("queries", &queries)]);
    assert_eq!(with("string", doc! { "queryType": "equality" }), 0);
    assert_eq!(with("double", doc! { "queryType": "equality" }), 6338405);
    assert_eq!(with("int", doc! { "queryType": "range", "min": 1, "max": 5 }), 0);
    assert_eq!(with("int", doc! { "queryType": "range", "min": 5, "max": 5 }), 6720005);
    assert_eq!(with("int", doc! { "queryType": "range", "min": 5i64 }), 7018200);
    assert_eq!(with("double", doc! { "queryType": "range", "min": 1.0, "max": 2.0 }), 6967100);
    assert_eq!(with("string", doc! { "queryType": "range" }), 6775201);
    assert_eq!(with("string", doc! { "queryType": "suffixPreview" }), 9783402);
    assert_eq!(with("int", doc! { "queryType": "range", "sparsity": 1.5 }), 9);
    assert_eq!(with("int", doc! { "queryType": "range", "sparsity": 0 }), 2);
    assert_eq!(with("null", doc! { "queryType": "equality" }), 6338405);
    assert_eq!(code(&[field(1, "a").with("bsonType", "null")]), 6338406);
    assert_eq!(code(&[field(1, "a").with("queries", &doc! { "queryType": "equality" })]), 6412601);
    assert_eq!(code(&[field(1, "a").with("queries", ())]), 14);
    assert_eq!(code(&[field(1, "a").with("queries", &ArrayBuf::of(std::iter::empty::<i32>()))]), 9783412);
}
