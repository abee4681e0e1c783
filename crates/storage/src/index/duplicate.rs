//! MongoDB's error for a key that exists already.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_collation::key_hex;
use sheaf_errors::{Code, Error};

use super::print;

/// `E11000 duplicate key error collection: db.c index: a_1 dup key: { a: 1 }`, with `keyPattern` and `keyValue`, and the
/// `collation` that the keys are made by: their strings are no text then, and shown as their bytes.
pub(super) fn error(
    namespace: &str,
    index: &str,
    pattern: RawDoc<'_>,
    value: RawDoc<'_>,
    collation: Option<RawDoc<'_>>,
) -> Error {
    let value = match collation {
        None => DocBuf::from(value),
        Some(_) => DocBuf::build(|out| {
            for element in value.iter() {
                match element.value() {
                    Value::String(key) => out.append(element.key(), key_hex(key).as_str()),
                    other => out.append(element.key(), other),
                };
            }
        }),
    };
    let mut text = format!("E11000 duplicate key error collection: {namespace} index: {index}");
    if let Some(collation) = collation {
        text.push_str(" collation: ");
        print::value(&mut text, Value::Document(collation));
    }
    text.push_str(" dup key: {");
    for (at, element) in value.as_raw().iter().enumerate() {
        text.push_str(if at == 0 { " " } else { ", " });
        text.push_str(element.key());
        text.push_str(": ");
        print::value(&mut text, element.value());
    }
    text.push_str(" }");
    let mut extra = sheaf_bson::doc! { "keyPattern": pattern, "keyValue": &value };
    if let Some(collation) = collation {
        extra.append("collation", collation);
    }
    Error::new(Code::DUPLICATE_KEY, text).with_extra(extra.into_bytes())
}
