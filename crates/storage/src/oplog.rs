//! The payload of log entries: oplog documents, one after another.
//!
//! A document ends in `ts, t, v, wall`, whose values get their bytes when the commit is ordered; they
//! stand at fixed distances from the document's end, so that nothing is parsed for it.

use sheaf_bson::{Binary, DocWriter, RawDoc, Value};
use uuid::Uuid;

use crate::write::Statement;

/// Distances of the values from the end of the document.
const WALL: usize = 9;
const TERM: usize = 34;
const TS: usize = 45;

/// `ts, t, v, wall` and the document's end, before they have their values.
const TAIL: &[u8; 48] =
    b"\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0\x12v\0\x02\0\0\0\0\0\0\0\x09wall\0\0\0\0\0\0\0\0\0";

/// What every operation on a collection has: `ns` and `ui`, as elements.
pub(crate) fn head(namespace: &str, uuid: &Uuid) -> Box<[u8]> {
    let doc = sheaf_bson::doc! { "ns": namespace, "ui": uuid_value(uuid) };
    doc.as_raw().iter().rest().into()
}

/// Like [`write`], for an operation on a document, with the collection's [`head`].
pub(crate) fn write_operation(
    payload: &mut Vec<u8>,
    op: u8,
    head: &[u8],
    statement: Option<&Statement>,
    fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) {
    let mut doc = DocWriter::new(payload);
    if let Some(statement) = statement {
        doc.append("lsid", &statement.lsid).append("txnNumber", statement.txn_number);
    }
    doc.append_raw_elements(&[0x02, b'o', b'p', 0, 2, 0, 0, 0, op, 0]).append_raw_elements(head);
    fill(&mut doc);
    end(&mut doc, statement);
}

fn end(doc: &mut DocWriter<'_, Vec<u8>>, statement: Option<&Statement>) {
    if let Some(statement) = statement {
        doc.append("stmtId", statement.stmt_id);
        if let Some(result) = &statement.result {
            doc.append("retryResult", result);
        }
    }
    doc.append_raw_elements(TAIL);
}

/// Writes one oplog document to the payload; `fill` writes what stands between `ui` and `ts`.
pub(crate) fn write(
    payload: &mut Vec<u8>,
    op: &str,
    namespace: &str,
    uuid: Option<&Uuid>,
    statement: Option<&Statement>,
    fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) {
    let mut doc = DocWriter::new(payload);
    if let Some(statement) = statement {
        doc.append("lsid", &statement.lsid).append("txnNumber", statement.txn_number);
    }
    doc.append("op", op).append("ns", namespace);
    if let Some(uuid) = uuid {
        doc.append("ui", uuid_value(uuid));
    }
    fill(&mut doc);
    end(&mut doc, statement);
}

/// A UUID as BSON has it.
pub(crate) fn uuid_value(uuid: &Uuid) -> Value<'_> {
    Value::Binary(Binary { subtype: 4, bytes: uuid.as_bytes() })
}

/// A UUID back from BSON.
pub(crate) fn value_uuid(value: Option<Value<'_>>) -> Option<Uuid> {
    match value {
        Some(Value::Binary(binary)) if binary.subtype == 4 => Uuid::from_slice(binary.bytes).ok(),
        _ => None,
    }
}

/// Gives every document of the payload its time and term; `next` gives one cluster time after another.
pub(crate) fn stamp(payload: &mut [u8], term: u64, wall: i64, mut next: impl FnMut() -> u64) {
    let mut rest = payload;
    while rest.len() >= 5 {
        let len = i32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        let (doc, after) = rest.split_at_mut(len);
        doc[len - TS..len - TS + 8].copy_from_slice(&next().to_le_bytes());
        doc[len - TERM..len - TERM + 8].copy_from_slice(&(term as i64).to_le_bytes());
        doc[len - WALL..len - WALL + 8].copy_from_slice(&wall.to_le_bytes());
        rest = after;
    }
}

/// Cluster time of a document that [`write`] wrote.
pub(crate) fn time(doc: &[u8]) -> u64 {
    let at = doc.len().checked_sub(TS).and_then(|at| doc[at..].first_chunk::<8>());
    at.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The documents of a payload.
pub(crate) fn documents(payload: &[u8]) -> impl Iterator<Item = RawDoc<'_>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        let len = i32::from_le_bytes(*rest.first_chunk::<4>()?) as usize;
        let (doc, after) = rest.split_at_checked(len)?;
        rest = after;
        Some(RawDoc::new(doc))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    #[test]
    fn stamps_stand_where_the_fields_are() {
        let mut payload = Vec::new();
        for n in 0..3 {
            let uuid = Uuid::from_u128(7);
            let mut other = Vec::new();
            write(&mut other, "i", "db.c", Some(&uuid), None, |d| {
                d.append("o", &doc! { "_id": n });
            });
            let at = payload.len();
            write_operation(&mut payload, b'i', &head("db.c", &uuid), None, |d| {
                d.append("o", &doc! { "_id": n });
            });
            assert_eq!(payload[at..], other);
        }
        let mut time = 100;
        stamp(&mut payload, 5, 1234, || {
            time += 1;
            time
        });
        for (n, doc) in documents(&payload).enumerate() {
            assert_eq!(
                doc.get("ts").map(|v| format!("{v:?}")),
                Some(format!("Timestamp(Timestamp({}))", 101 + n))
            );
            assert!(matches!(doc.get("t"), Some(Value::Int64(5))));
            assert!(matches!(doc.get("v"), Some(Value::Int64(2))));
            assert!(matches!(doc.get("wall"), Some(Value::DateTime(1234))));
            assert_eq!(value_uuid(doc.get("ui")), Some(Uuid::from_u128(7)));
        }
        assert_eq!(documents(&payload).count(), 3);
    }
}
