//! Whether what another member has sent can be an entry of the log.
//!
//! What stands in the log is applied, here and at every start; an entry that cannot be read would end the process each time.
//! So each one is read as a whole before it gets there. Whether it fits the data that it changes only its application shows.

use sheaf_bson::{MAX_DEPTH, RawDoc};

use crate::definitions::command::Command;
use crate::oplog::{self, Operation};

/// An operation wraps what it is about: a transaction's list, the operation, `o`, and for an update the parts of its `diff`.
/// All that a primary takes must be well below it: what its followers refuse, they refuse for good.
const MAX_ENTRY_DEPTH: usize = 3 * MAX_DEPTH;

/// Checks the payload of an entry of this term and cluster time. An empty one is what begins a term.
///
/// Errors: what is wrong with it.
pub fn check_entry(term: u64, time: u64, payload: &[u8]) -> Result<(), String> {
    let mut rest = payload;
    let mut before = 0;
    while !rest.is_empty() {
        let len = rest.first_chunk::<4>().map_or(0, |len| i32::from_le_bytes(*len));
        let split = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len)).filter(|_| len >= 5);
        let Some((bytes, after)) = split else { return Err(format!("an operation of {len} bytes")) };
        sheaf_bson::validate(bytes, MAX_ENTRY_DEPTH)
            .map_err(|error| format!("an operation is no BSON: {error}"))?;
        let doc = RawDoc::new(bytes);
        let fields = Operation::read(doc);
        check_operation(&fields, false).map_err(|why| format!("{why}: {}", shown(doc)))?;
        let stamped = oplog::time(bytes);
        let of_term = fields.term.is_some_and(|of| of as u64 == term);
        if fields.time != stamped || !of_term || stamped <= before {
            return Err(format!("an operation has not the time or term that it must have: {}", shown(doc)));
        }
        before = stamped;
        rest = after;
    }
    match payload.is_empty() || before == time {
        true => Ok(()),
        false => Err(format!("its last operation is of time {before}, the entry of {time}")),
    }
}

/// As much of it as a line of the log may have.
fn shown(doc: RawDoc<'_>) -> String {
    format!("{doc:?}").chars().take(400).collect()
}

fn check_operation(fields: &Operation<'_>, inner: bool) -> Result<(), &'static str> {
    let doc = fields.doc;
    match fields.op {
        Some("n") => fields.record().map(|_| ()),
        Some("i" | "u" | "d") => {
            let mut key = Vec::new();
            if oplog::value_uuid(fields.uuid).is_none() {
                return Err("an operation names no collection");
            }
            if doc.get("o").and_then(|v| v.as_doc()).is_none() || fields.put_record_key(&mut key).is_err() {
                return Err("an operation names no document");
            }
            Ok(())
        }
        Some("c") => match fields.operations() {
            Some(operations) if !inner => {
                fields.record()?;
                let array = fields.o.iter().next().and_then(|first| first.value().as_array());
                let count = array.map_or(0, |array| array.values().count());
                if count != operations.count() {
                    return Err("a transaction holds what is no operation");
                }
                let inner = array.into_iter().flat_map(|array| array.values()).filter_map(|v| v.as_doc());
                inner.into_iter().try_for_each(|doc| check_operation(&Operation::read(doc), true))
            }
            Some(_) => Err("a transaction holds another"),
            None if fields.record()?.is_some() => Ok(()),
            None => Command::from_oplog(doc).map(|_| ()).ok_or("an unreadable command"),
        },
        _ => Err("an unknown operation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::support::{GO_ON, all, change, fresh, insert};
    use crate::write::Write;
    use sheaf_bson::{DocBuf, MAX_STORED_DEPTH, doc};
    use sheaf_errors::Code;

    const C: &str = "db.c";

    #[test]
    fn what_the_log_has_is_accepted_and_each_change_of_it_is_not_believed() {
        let (_dir, engine) = fresh();
        insert(&engine, "db.c", &doc! { "_id": 1, "text": "a" }).unwrap();
        engine.write_noop(doc! { "msg": "nothing" }.as_raw(), GO_ON).unwrap();
        let entries = engine.log_entries(1, 100, 1 << 20).unwrap();
        assert!(entries.len() >= 3);
        for entry in &entries {
            check_entry(entry.term, entry.time, &entry.payload).unwrap();
            assert!(check_entry(entry.term + 1, entry.time, &entry.payload).is_err());
            assert!(check_entry(entry.term, entry.time + 1, &entry.payload).is_err());
            for cut in 1..entry.payload.len() {
                assert!(check_entry(entry.term, entry.time, &entry.payload[..cut]).is_err());
            }
        }
        let insert =
            entries.iter().find(|e| RawDoc::new(&e.payload).get("op").unwrap().as_str() == Some("i"));
        let insert = insert.unwrap();
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut payload = insert.payload.to_vec();
            change(&mut payload);
            check_entry(insert.term, insert.time, &payload)
        };
        let position = |name: &[u8]| insert.payload.windows(name.len()).position(|w| w == name).unwrap();
        let op = position(b"\x02op\0\x02\0\0\0i\0") + 8;
        assert!(with(&|payload| payload[op] = b'z').unwrap_err().contains("unknown operation"));
        let ui = position(b"\x05ui\0");
        assert!(with(&|payload| payload[ui + 1] = b'x').unwrap_err().contains("no collection"));
        let o = position(b"\x03o\0");
        assert!(with(&|payload| payload[o + 1] = b'x').unwrap_err().contains("no document"));
        // Any other change may or may not be seen, but nothing panics.
        for at in 0..insert.payload.len() {
            for bit in 0..8 {
                let _ = with(&|payload| payload[at] ^= 1 << bit);
            }
        }
        check_entry(7, 1, b"").unwrap();
    }

    /// What a primary takes its followers take: the deepest documents, in a transaction too, and none that is deeper.
    #[test]
    fn the_deepest_documents_are_accepted() {
        fn nested(id: i32, levels: usize) -> DocBuf {
            let inner = (2..levels).fold(DocBuf::new(), |inner, _| doc! { "a": &inner });
            doc! { "_id": id, "a": &inner }
        }
        let (_dir, engine) = fresh();
        insert(&engine, C, &nested(1, MAX_STORED_DEPTH)).unwrap();
        assert_eq!(insert(&engine, C, &nested(2, MAX_STORED_DEPTH + 1)).unwrap_err().code(), Code::OVERFLOW);
        insert(&engine, C, &doc! { "_id": 3 }).unwrap();
        insert(&engine, C, &doc! { "_id": 4 }).unwrap();
        let mut txn = engine.begin(None).unwrap();
        let collection = txn.collection(C).unwrap().unwrap();
        txn.insert(&collection, nested(5, MAX_STORED_DEPTH).as_raw()).unwrap();
        assert!(txn.insert(&collection, nested(6, MAX_STORED_DEPTH + 1).as_raw()).is_err());
        change(&mut txn, C, 3, Some(&nested(3, MAX_STORED_DEPTH))).unwrap();
        assert!(change(&mut txn, C, 4, Some(&nested(4, MAX_STORED_DEPTH + 1))).is_err());
        txn.commit(GO_ON).unwrap();
        assert_eq!(all(&engine, C).len(), 4);
        for entry in engine.log_entries(1, 100, 1 << 20).unwrap() {
            check_entry(entry.term, entry.time, &entry.payload).unwrap();
        }
    }
}
