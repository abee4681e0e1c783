//! The payload of log entries: oplog documents, one after another.
//!
//! A document ends in `ts, t, v, wall`, whose values get their bytes when the commit is ordered; they
//! stand at fixed distances from the document's end, so that nothing is parsed for it.
//!
//! - [`entry`]: an entry with its place in the log;
//! - [`operation`]: one of its documents, read;
//! - [`statement`]: the retryable write that an operation belongs to;
//! - [`skipped`]: operations that cannot be applied, or are left out;
//! - [`damaged`]: damage of the log.

pub(crate) mod damaged;
mod entry;
mod operation;
pub(crate) mod skipped;
mod statement;
mod transaction;

use sheaf_bson::{Binary, ClusterTime, DocWriter, RawDoc, Value};
use uuid::Uuid;

use crate::critical::must;
pub use entry::LogEntry;
pub(crate) use entry::log_error;
pub(crate) use operation::Operation;
pub use statement::Statement;
pub use transaction::{TransactionKey, TransactionRecord};
pub(crate) use transaction::{collections_of, write_abort, write_ceiling, write_commit, write_settled};

/// Distances of the values from the end of the document.
const WALL: usize = 9;
const TERM: usize = 34;
const TS: usize = 45;

/// `ts, t, v, wall` and the document's end, before they have their values.
const TAIL: &[u8; 48] =
    b"\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0\x12v\0\x02\0\0\0\0\0\0\0\x09wall\0\0\0\0\0\0\0\0\0";

/// What stands before [`TAIL`] in the entries of a transaction that has several: where the entry before it is.
const LINK: &[u8; 40] = b"\x03prevOpTime\0\x1c\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0\0";

/// Its distance from the end of the document, and those of its values.
const LINK_AT: usize = LINK.len() + TAIL.len() + 1;
const LINK_TS: usize = LINK_AT - 20;
const LINK_TERM: usize = LINK_AT - 31;

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
    operation(payload, op, head, statement, fill, |doc| end(doc, statement, false));
}

/// The same as an element of `applyOps`, without times. A transaction that stands for a retryable write of another session has its
/// statement with each operation.
pub(crate) fn write_inner(
    payload: &mut Vec<u8>,
    op: u8,
    head: &[u8],
    statement: Option<&Statement>,
    fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) {
    operation(payload, op, head, statement, fill, |doc| end_statement(doc, statement));
}

fn operation(
    payload: &mut Vec<u8>,
    op: u8,
    head: &[u8],
    statement: Option<&Statement>,
    fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
    end: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) {
    let mut doc = DocWriter::new(payload);
    if let Some(statement) = statement {
        doc.append("lsid", &statement.lsid).append("txnNumber", statement.txn_number);
    }
    doc.append_raw_elements(&[0x02, b'o', b'p', 0, 2, 0, 0, 0, op, 0]).append_raw_elements(head);
    fill(&mut doc);
    end(&mut doc);
}

/// Writes the oplog document of a transaction; of one of several, with a link to the one before it, which [`stamp_link`]
/// fills. `fill` writes `o`.
pub(crate) fn write_transaction(
    payload: &mut Vec<u8>,
    statement: Option<&Statement>,
    linked: bool,
    fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) {
    let mut doc = DocWriter::new(payload);
    if let Some(statement) = statement {
        doc.append("lsid", &statement.lsid).append("txnNumber", statement.txn_number);
    }
    doc.append("op", "c").append("ns", "admin.$cmd");
    fill(&mut doc);
    end(&mut doc, statement, linked);
}

fn end_statement(doc: &mut DocWriter<'_, Vec<u8>>, statement: Option<&Statement>) {
    if let Some(statement) = statement {
        doc.append("stmtId", statement.stmt_id);
        if let Some(result) = &statement.result {
            doc.append("retryResult", result);
        }
    }
}

fn end(doc: &mut DocWriter<'_, Vec<u8>>, statement: Option<&Statement>, linked: bool) {
    end_statement(doc, statement);
    if linked {
        doc.append_raw_elements(LINK);
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
    end(&mut doc, statement, false);
}

/// Writes that an operation of the same commit was this statement's, too: an entry without an operation.
pub(crate) fn note_statement(payload: &mut Vec<u8>, namespace: &str, statement: &Statement) {
    write(payload, "n", namespace, None, Some(statement), |doc| {
        doc.append("o", &sheaf_bson::doc! { "msg": "a statement of the operation before" });
    });
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

/// What documents that are committed together are stamped with.
pub(crate) struct Stamps {
    /// Time of day in milliseconds.
    wall: i64,
    /// The first cluster time of the microsecond in which it was read.
    first: ClusterTime,
}

impl Stamps {
    /// At so many microseconds since the epoch.
    pub fn at(micros: u64) -> Stamps {
        Stamps { wall: (micros / 1000) as i64, first: ClusterTime::from_micros(micros) }
    }

    /// The next cluster time: above this one, which is the highest that is known, and not behind the time of day.
    pub fn after(&self, time: u64) -> u64 {
        let next = ClusterTime::from_bits(time).successor().max(self.first).bits();
        must!(next > time, "cluster time {next} follows {time}");
        next
    }

    /// Gives every document of the payload its time and term; `time` is the highest that is known, and moves on.
    pub fn stamp(&self, payload: &mut [u8], term: u64, time: &mut u64) {
        stamp(payload, term, self.wall, || {
            *time = self.after(*time);
            *time
        });
    }
}

/// Gives every document of the payload its time and term; `next` gives one cluster time after another.
pub(crate) fn stamp(payload: &mut [u8], term: u64, wall: i64, mut next: impl FnMut() -> u64) {
    let mut rest = payload;
    while rest.len() >= 5 {
        let len = i32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        must!(
            TAIL.len() < len && len <= rest.len(),
            "an operation of {len} bytes, of {} that are left",
            rest.len()
        );
        let (doc, after) = rest.split_at_mut(len);
        doc[len - TS..len - TS + 8].copy_from_slice(&next().to_le_bytes());
        doc[len - TERM..len - TERM + 8].copy_from_slice(&(term as i64).to_le_bytes());
        doc[len - WALL..len - WALL + 8].copy_from_slice(&wall.to_le_bytes());
        rest = after;
    }
    must!(rest.is_empty(), "{} bytes behind the last operation of a commit", rest.len());
}

/// An entry's place among those of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Cluster time of the entry before it. `None`: it is the first.
    pub previous: Option<u64>,
    /// Whether more follow.
    pub partial: bool,
}

/// The link of an entry's payload; `None` if it is not one of several of a transaction.
pub(crate) fn link(payload: &[u8]) -> Option<Link> {
    link_of(documents(payload).next()?)
}

/// [`link`] of a document.
pub(crate) fn link_of(doc: RawDoc<'_>) -> Option<Link> {
    let bytes = doc.as_bytes();
    let at = bytes.len().checked_sub(LINK_AT)?;
    // What a client stores can look like it, but does not stand there as a field.
    if !bytes[at..].starts_with(&LINK[..12]) || doc.get("op").and_then(|op| op.as_str()) != Some("c") {
        return None;
    }
    let Some(Value::Timestamp(previous)) = doc.get("prevOpTime")?.as_doc()?.get("ts") else { return None };
    let partial = doc.get("o")?.as_doc()?.get("partialTxn").is_some_and(|partial| partial.truthy());
    Some(Link { previous: (previous.0 != 0).then_some(previous.0), partial })
}

/// Fills the link of a document that [`write_transaction`] wrote with one: term and cluster time of the entry before it.
pub(crate) fn stamp_link(doc: &mut [u8], previous: Option<(u64, u64)>) {
    let (term, time) = previous.map_or((-1, 0), |(term, time)| (term as i64, time));
    let len = doc.len();
    assert!(doc[len - LINK_AT..].starts_with(&LINK[..12]), "the document has no link");
    doc[len - LINK_TS..len - LINK_TS + 8].copy_from_slice(&time.to_le_bytes());
    doc[len - LINK_TERM..len - LINK_TERM + 8].copy_from_slice(&term.to_le_bytes());
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
    fn stamps_are_above_what_is_known_and_not_behind_the_time_of_day() {
        let second = 1_700_000_000u64;
        let stamps = Stamps::at(second * 1_000_000 + 250);
        let first = second << 32 | 250 << 11;
        // An ordinal of an older server's within the same second; then one after another.
        assert_eq!(stamps.after(second << 32 | 57), first);
        assert_eq!((stamps.after(first), stamps.after(first + 1)), (first + 1, first + 2));
        // The clock was set back, or another member's is ahead.
        assert_eq!(stamps.after((second + 3600) << 32 | 9), (second + 3600) << 32 | 10);
        // What a client has made up.
        assert_eq!(stamps.after(second << 32 | u64::from(u32::MAX)), (second + 1) << 32);
    }

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

    #[test]
    fn links_are_fields_of_entries_and_nothing_that_looks_like_them() {
        let mut payload = Vec::new();
        write_transaction(&mut payload, None, true, |doc| {
            doc.append("o", &doc! { "applyOps": [{ "op": "i" }], "partialTxn": true });
        });
        stamp_link(&mut payload, None);
        assert_eq!(link(&payload), Some(Link { previous: None, partial: true }));
        stamp_link(&mut payload, Some((3, 77)));
        stamp(&mut payload, 5, 1234, || 78);
        let doc = documents(&payload).next().unwrap();
        let previous = doc.get("prevOpTime").and_then(|v| v.as_doc()).unwrap();
        assert_eq!(
            format!("{previous:?}"),
            format!("{:?}", doc! { "ts": sheaf_bson::Timestamp(77), "t": 3i64 })
        );
        assert_eq!(link(&payload), Some(Link { previous: Some(77), partial: true }));
        // A client's document that ends in the same bytes.
        let mut forged = Vec::new();
        let head = LINK[..LINK.len() - 12].to_vec();
        let bytes = sheaf_bson::Binary { subtype: 0, bytes: &head };
        write(&mut forged, "i", "db.c", None, None, |d| {
            d.append("o", &doc! { "_id": 1, "b": Value::Binary(bytes), "t": 7i64 });
        });
        assert!(forged[forged.len() - LINK_AT..].starts_with(&LINK[..12]));
        assert_eq!(link(&forged), None);
    }
}
