//! The documents of `config.placements`: their name, their `_id`, and the lists of ranges in them.

use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
use sheaf_shard::placement::CLOSED;

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

/// What is leaving, as a placement has it.
pub(super) fn leaving_of(placement: &DocBuf) -> Vec<DocBuf> {
    ranges_of(placement, "leaving").map(DocBuf::from).collect()
}

/// The placement with another list of this name.
pub(super) fn with_list(placement: &DocBuf, name: &str, list: &[DocBuf]) -> DocBuf {
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
