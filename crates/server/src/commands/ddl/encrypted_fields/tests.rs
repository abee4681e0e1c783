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

#[test]
fn domains() {
    let with =
        |kind: &str, queries: DocBuf| code(&[field(1, "a").with("bsonType", kind).with("queries", &queries)]);
    let range = |trim: i32| doc! { "queryType": "range", "trimFactor": trim };
    assert_eq!(with("int", range(1_000_000)), 8574000);
    assert_eq!(with("int", range(32)), 8574000);
    assert_eq!(with("int", range(31)), 9203504);
    assert_eq!(with("int", range(17)), 9203508);
    assert_eq!(with("int", range(6)), 0);
    assert_eq!(with("date", range(64)), 8574000);
    assert_eq!(with("double", range(64)), 8574000);
    assert_eq!(with("decimal", range(128)), 8574000);
    // 0 to 15 takes four bits.
    assert_eq!(with("long", range(3).with("min", 0i64).with("max", 15i64)), 0);
    assert_eq!(with("long", range(4).with("min", 0i64).with("max", 15i64)), 8574000);
    assert_eq!(with("int", range(1).with("precision", 2)), 8574113);
    assert_eq!(with("int", doc! { "queryType": "equality", "trimFactor": 1 }), 8574104);
    let double = |min: f64, max: f64, precision: i32| {
        with("double", doc! { "queryType": "range", "min": min, "max": max, "precision": precision })
    };
    assert_eq!(double(-1.25, 1.25, 2), 0);
    assert_eq!(double(-1.255, 1.25, 2), 6966805);
    assert_eq!(double(-1.25, 1.255, 2), 6966806);
    assert_eq!(double(-1e18, 1e18, 4), 9157100);
    let decimal = |min: &str, max: &str, precision: i32| {
        let end = |text: &str| Value::Decimal128(text.parse().unwrap());
        let query = doc! { "queryType": "range", "precision": precision };
        with("decimal", query.with("min", end(min)).with("max", end(max)))
    };
    assert_eq!(decimal("0.10", "0.20", 1), 0);
    assert_eq!(decimal("0.11", "0.20", 1), 6966807);
    assert_eq!(decimal("0.10", "0.21", 1), 6966808);
    assert_eq!(decimal("0", "1E+33", 10), 9157101);
}

#[test]
fn searches_in_text() {
    let with = |queries: DocBuf| code(&[field(1, "a").with("bsonType", "string").with("queries", &queries)]);
    let text = |kind: &str| {
        doc! {
            "queryType": kind, "strMinQueryLength": 1, "strMaxQueryLength": 5, "caseSensitive": true,
            "diacriticSensitive": true
        }
    };
    assert_eq!(with(text("suffixPreview")), 0);
    assert_eq!(with(text("suffixPreview").with("strMaxLength", 3)), 0);
    assert_eq!(with(text("substringPreview")), 9783407);
    assert_eq!(with(text("substringPreview").with("strMaxLength", 3)), 9783408);
    assert_eq!(with(doc! { "queryType": "substringPreview" }), 9783402);
    let both = |one: DocBuf, other: DocBuf| {
        let list = ArrayBuf::of([one, other].iter());
        code(&[field(1, "a").with("bsonType", "string").with("queries", &list)])
    };
    let other = || {
        doc! { "queryType": "prefixPreview", "strMinQueryLength": 1, "strMaxQueryLength": 5 }
    };
    let prefix =
        |cases: bool, marks: bool| other().with("caseSensitive", cases).with("diacriticSensitive", marks);
    assert_eq!(both(text("suffixPreview"), prefix(true, true)), 0);
    assert_eq!(both(text("suffixPreview"), prefix(true, true).with("contention", 8)), 0);
    assert_eq!(both(text("suffixPreview"), prefix(false, true)), 9783409);
    assert_eq!(both(text("suffixPreview"), prefix(true, false)), 9783410);
    assert_eq!(both(text("suffixPreview"), prefix(true, true).with("contention", 4)), 9783411);
}
