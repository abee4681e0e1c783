//! Keys of text indexes: one per word of a document, made of the word and how much it says, between the plain fields.

use sheaf_bson::key::encode;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_text::TextSpec;
use smallvec::SmallVec;

use super::{Index, KeySet};

/// What making a key costs, as the meter counts.
const MAKE: u32 = 6;

pub(super) fn generate(index: &Index, spec: &TextSpec, doc: RawDoc<'_>, out: &mut KeySet) -> Result<()> {
    let terms = spec.terms(doc)?;
    if terms.is_empty() {
        return Ok(());
    }
    let mut plain: SmallVec<[Value<'_>; 4]> = SmallVec::new();
    for (path, _) in &index.fields {
        plain.push(match path.as_str() {
            "_fts" | "_ftsx" => Value::Missing,
            path => plain_value(doc, path)?,
        });
    }
    for (word, score) in &terms {
        sheaf_meter::tick(MAKE)?;
        out.push(|bytes, bits| {
            for ((path, descending), plain) in index.fields.iter().zip(&plain) {
                let value = match path.as_str() {
                    "_fts" => Value::String(word),
                    "_ftsx" => Value::Double(*score),
                    _ => *plain,
                };
                encode(value, *descending, bytes, bits);
            }
        })?;
    }
    Ok(())
}

/// The value of a field beside the words; null if it is missing.
fn plain_value<'d>(doc: RawDoc<'d>, path: &str) -> Result<Value<'d>> {
    let mut value = Value::Document(doc);
    for name in path.split('.') {
        value = match value {
            Value::Document(inner) => inner.get_or_missing(name),
            _ => Value::Missing,
        };
        if matches!(value, Value::Array(_)) {
            bail!(
                Code::CANNOT_BUILD_INDEX_KEYS,
                "Field '{path}' of text index contains an array in document: {}",
                sheaf_bson::document_text(doc)
            );
        }
    }
    Ok(if value.is_missing() { Value::Null } else { value })
}
