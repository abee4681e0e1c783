//! What an `_id` may not have in it.

use sheaf_bson::{RawDoc, Value};

/// The first field within an `_id`, at any depth, that begins with a dollar sign and is none of a reference (`$ref`, `$id`,
/// `$db` at the beginning of a document).
pub fn dollar_field<'a>(id: RawDoc<'a>) -> Option<&'a str> {
    let mut after_reference = reference_fields(id);
    for element in id.iter() {
        if after_reference > 0 {
            after_reference -= 1;
        } else if element.key().starts_with('$') {
            return Some(element.key());
        }
        let inner = match element.value() {
            Value::Document(inner) | Value::Array(inner) => inner,
            _ => continue,
        };
        if let Some(bad) = dollar_field(inner) {
            return Some(bad);
        }
    }
    None
}

/// How many fields at the beginning of a document are those of a reference.
fn reference_fields(doc: RawDoc<'_>) -> usize {
    let mut fields = doc.iter();
    let named = |name: &str, field: Option<sheaf_bson::Element<'_>>, text: bool| {
        field.is_some_and(|field| field.key() == name && (!text || matches!(field.value(), Value::String(_))))
    };
    match (named("$ref", fields.next(), true), named("$id", fields.next(), false)) {
        (true, true) if named("$db", fields.next(), true) => 3,
        (true, true) => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::dollar_field;

    #[test]
    fn dollars_are_found_at_any_depth_but_in_references() {
        assert_eq!(dollar_field(doc! { "a": { "b": { "$c": 1 } } }.as_raw()), Some("$c"));
        assert_eq!(dollar_field(doc! { "a": [{ "$c": 1 }] }.as_raw()), Some("$c"));
        assert_eq!(dollar_field(doc! { "a": 1, "b$": 2 }.as_raw()), None);
        assert_eq!(dollar_field(doc! { "$ref": "c", "$id": 1 }.as_raw()), None);
        assert_eq!(dollar_field(doc! { "$ref": "c", "$id": 1, "$db": "d", "x": 1 }.as_raw()), None);
        assert_eq!(dollar_field(doc! { "$ref": "c", "$id": 1, "$db": 5 }.as_raw()), Some("$db"));
        assert_eq!(dollar_field(doc! { "$ref": 5, "$id": 1 }.as_raw()), Some("$ref"));
        assert_eq!(dollar_field(doc! { "$ref": "c", "x": 1, "$id": 1 }.as_raw()), Some("$ref"));
    }
}
