//! What a document must be to be stored.

use sheaf_bson::{DocBuf, MAX_DOCUMENT_SIZE, ObjectId, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_query::stored_id::dollar_field;

/// Checks a document for insertion and gives it the form in which it is stored: `_id` first (made if there is
/// none), empty timestamps at the top level filled in. `None`: it can be stored as it is.
///
/// Errors: `BSONObjectTooLarge`, `BadValue`, `DollarPrefixedFieldName`.
pub fn prepare_insert(
    doc: RawDoc<'_>,
    new_id: &dyn Fn() -> ObjectId,
    timestamp: Timestamp,
) -> Result<Option<DocBuf>> {
    let mut id_at = None;
    let mut empty_timestamp = false;
    for (at, element) in doc.iter().enumerate() {
        if element.key_bytes() == b"_id" {
            if id_at.is_some() {
                bail!(Code::BAD_VALUE, "can't have multiple _id fields in one document");
            }
            id_at = Some(at);
            check_id(element.value())?;
        } else if element.kind() == sheaf_bson::Type::Timestamp && element.data() == [0; 8] {
            empty_timestamp = true;
        }
    }
    check_document(doc)?;
    if id_at == Some(0) && !empty_timestamp {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(doc.len() + 32);
    let mut out = sheaf_bson::DocWriter::new(&mut bytes);
    match doc.element("_id") {
        Some(id) => out.append_element(id),
        None => out.append("_id", Value::ObjectId(new_id())),
    };
    for element in doc.iter().filter(|element| element.key_bytes() != b"_id") {
        match element.value() {
            Value::Timestamp(Timestamp(0)) => out.append(element.key(), timestamp),
            _ => out.append_element(element),
        };
    }
    drop(out);
    Ok(Some(DocBuf::from_bytes(bytes)))
}

/// Checks a document that a pipeline has made, with its `_id`, before it is stored as a new one.
///
/// Errors: `BSONObjectTooLarge`, and those for what cannot be an `_id`.
pub fn check_made(doc: RawDoc<'_>) -> Result<()> {
    check_document(doc)?;
    doc.get("_id").map_or(Ok(()), check_id)
}

/// Checks the size of a document to be stored.
///
/// Errors: `BSONObjectTooLarge`.
pub fn check_document(doc: RawDoc<'_>) -> Result<()> {
    if doc.len() > MAX_DOCUMENT_SIZE {
        bail!(
            Code::BSON_OBJECT_TOO_LARGE,
            "object to insert too large. size in bytes: {}, max size: {MAX_DOCUMENT_SIZE}",
            doc.len()
        );
    }
    Ok(())
}

fn check_id(id: Value<'_>) -> Result<()> {
    match id {
        Value::Array(_) => bail!(Code::INVALID_ID_FIELD, "can't use an array for _id"),
        Value::Undefined => bail!(Code::INVALID_ID_FIELD, "can't use a undefined for _id"),
        Value::Regex(_) => bail!(Code::INVALID_ID_FIELD, "can't use a regex for _id"),
        Value::Document(inner) => match dollar_field(inner) {
            Some(bad) => bail!(
                Code::DOLLAR_PREFIXED_FIELD_NAME,
                "_id fields may not contain '$'-prefixed fields: {bad} is not valid for storage."
            ),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}
