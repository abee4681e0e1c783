//! The documents of `config.placements`: their name, their `_id`, and the lists of ranges in them.

use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_shard::placement::{CLOSED, KeyPattern};

/// What the shard owns of each sharded collection.
pub const PLACEMENTS: &str = "config.placements";

/// Whether a placement is closed.
pub(super) fn is_closed(placement: &DocBuf) -> bool {
    matches!(placement.as_raw().get("lastmod"), Some(Value::Timestamp(CLOSED)))
}

/// A UUID as documents have it.
pub(super) fn uuid_value(uuid: &[u8; 16]) -> Value<'_> {
    Value::Binary(Binary { subtype: 4, bytes: uuid })
}

/// The collection of a placement.
pub(super) fn uuid_of(placement: RawDoc<'_>) -> Option<[u8; 16]> {
    match placement.get("_id")? {
        Value::Binary(Binary { subtype: 4, bytes }) => bytes.try_into().ok(),
        _ => None,
    }
}

/// The ranges of one of a placement's lists.
pub(super) fn ranges_of<'d>(placement: &'d DocBuf, name: &str) -> impl Iterator<Item = RawDoc<'d>> {
    let list = placement.as_raw().get(name).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    list.values().filter_map(|range| range.as_doc())
}

/// The placement with what was leaving before: its documents are still there. The ends of those ranges get the fields that the shard key
/// has now, if it was refined.
///
/// Errors: `BadValue`, if an end is none of the key of before.
pub(super) fn with_leaving(placement: &DocBuf, before: &DocBuf) -> Result<DocBuf> {
    let key = |of: &DocBuf| {
        KeyPattern::parse(of.as_raw().get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY))
    };
    let (now, before_that) = (key(placement)?, key(before)?);
    let refined = |range: RawDoc<'_>| {
        if now.fields().len() == before_that.fields().len() {
            return Ok(DocBuf::from(range));
        }
        let mut changed = DocBuf::new();
        for field in range.iter() {
            match (field.key(), field.value().as_doc()) {
                ("min" | "max", Some(end)) => {
                    let end = before_that.key(end)?.refined(&before_that, &now)?;
                    changed.append(field.key(), end.document());
                }
                _ => _ = changed.edit(|out| _ = out.append_element(field)),
            }
        }
        Ok(changed)
    };
    let leaving = ranges_of(before, "leaving").map(refined).collect::<Result<Vec<_>>>()?;
    Ok(with_list(placement, "leaving", &leaving))
}

/// The placement with another list of this name.
fn with_list(placement: &DocBuf, name: &str, list: &[DocBuf]) -> DocBuf {
    DocBuf::build(|out| {
        for field in placement.as_raw().iter() {
            if field.key() != name {
                out.append_element(field);
                continue;
            }
            let mut array = out.array(name);
            list.iter().for_each(|range| _ = array.push(range.as_raw()));
        }
    })
}

/// A UUID that a command names.
pub(super) fn uuid_in(body: RawDoc<'_>, name: &str) -> Option<[u8; 16]> {
    match body.get(name)? {
        Value::Binary(Binary { subtype: 4, bytes }) => bytes.try_into().ok(),
        _ => None,
    }
}
