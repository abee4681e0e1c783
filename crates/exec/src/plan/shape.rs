//! The hash that tells queries of one shape (`queryShapeHash`): commands that differ in their constants only have the same one.

use sha2::{Digest, Sha256};
use sheaf_bson::{RawDoc, Value};

/// Fields of a command whose values are a part of its shape as they are.
const LITERAL: &[&str] = &["sort", "projection", "hint", "collation", "key"];
/// Those of which the constants do not count.
const ABSTRACT: &[&str] = &["filter", "query", "pipeline", "min", "max", "let"];
/// Those of which it counts only whether they are there.
const NAMED: &[&str] =
    &["skip", "limit", "returnKey", "showRecordId", "tailable", "awaitData", "allowDiskUse"];
/// Stages whose numbers and flags say what becomes of fields.
const SHAPING: &[&str] =
    &["$sort", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith"];

/// The hash of a `find`, `distinct` or `aggregate` on a namespace; `None` for other commands, which have no shape.
pub fn query_shape_hash(namespace: &str, command: RawDoc<'_>) -> Option<String> {
    let name = command.iter().next()?.key();
    if !matches!(name, "find" | "distinct" | "aggregate") {
        return None;
    }
    let mut shape = Vec::new();
    put_text(name, &mut shape);
    put_text(namespace, &mut shape);
    for known in LITERAL {
        if let Some(value) = command.get(known) {
            put_text(known, &mut shape);
            put(value, true, &mut shape);
        }
    }
    for known in ABSTRACT {
        if let Some(value) = command.get(known).filter(|value| !is_empty(*value)) {
            put_text(known, &mut shape);
            put(value, false, &mut shape);
        }
    }
    for known in NAMED.iter().filter(|known| command.get(known).is_some()) {
        put_text(known, &mut shape);
    }
    Some(Sha256::digest(&shape).iter().map(|byte| format!("{byte:02X}")).collect())
}

fn is_empty(value: Value<'_>) -> bool {
    matches!(value, Value::Document(part) if part.is_empty())
}

fn put_text(text: &str, shape: &mut Vec<u8>) {
    shape.extend_from_slice(text.as_bytes());
    shape.push(0);
}

fn put(value: Value<'_>, literal: bool, shape: &mut Vec<u8>) {
    match value {
        Value::Document(fields) => {
            shape.push(b'{');
            for field in fields.iter() {
                put_text(field.key(), shape);
                put(field.value(), literal || SHAPING.contains(&field.key()), shape);
            }
            shape.push(b'}');
        }
        // A list of constants is one constant, however many there are.
        Value::Array(items) => {
            shape.push(b'[');
            let mut last = Vec::new();
            for item in items.values() {
                let mut one = Vec::new();
                put(item, literal, &mut one);
                if literal || one != last {
                    shape.extend_from_slice(&one);
                }
                last = one;
            }
            shape.push(b']');
        }
        // A path is no constant.
        Value::String(path) if path.starts_with('$') => put_text(path, shape),
        constant if literal => put_text(&sheaf_bson::value_text(constant), shape),
        constant => {
            let kind = if constant.is_number() { "number" } else { constant.type_name() };
            put_text(kind, shape);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::{DocBuf, doc};

    #[test]
    fn constants_do_not_count() {
        let of = |command: DocBuf| query_shape_hash("t.c", command.as_raw());
        let one = of(doc! { "find": "c", "filter": { "a": 1, "b": { "$in": [1, 2] } } });
        assert_eq!(one.as_ref().map(String::len), Some(64));
        assert_eq!(
            one,
            of(doc! { "find": "c", "filter": { "a": 2.5, "b": { "$in": [3] } }, "comment": "x" })
        );
        assert_ne!(one, of(doc! { "find": "c", "filter": { "a": "x", "b": { "$in": [1] } } }));
        assert_ne!(one, of(doc! { "find": "c", "filter": { "b": 1 } }));
        let sorted = |by: i32| of(doc! { "aggregate": "c", "pipeline": [{ "$sort": { "a": by } }] });
        assert_ne!(sorted(1), sorted(-1));
        assert_eq!(of(doc! { "count": "c" }), None);
        assert_ne!(query_shape_hash("t.d", doc! { "find": "c" }.as_raw()), of(doc! { "find": "c" }));
    }
}
