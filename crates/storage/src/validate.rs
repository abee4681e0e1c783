//! `validate`: records against indexes, counters, BSON and key order.

use sheaf_bson::{MAX_DEPTH, RawDoc};
use sheaf_errors::{Code, Result, bail};

use crate::catalog::{Collection, id_key};
use crate::cursor::{Cut, Direction, Range};
use crate::db::Cf;
use crate::index::{Index, IndexKind, KeySet};
use crate::keys::{entry_key, entry_parts};
use crate::options::Interrupt;
use crate::view::View;

/// What `validate` found.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// Records seen.
    pub records: u64,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Documents that are no valid BSON.
    pub invalid_documents: u64,
    /// What is wrong; empty: the collection is valid.
    pub errors: Vec<String>,
    /// What is odd but harmless.
    pub warnings: Vec<String>,
    /// `(index name, keys)` in catalog order.
    pub keys_per_index: Vec<(String, u64)>,
}

/// More errors than this are only counted.
const ERRORS_MAX: usize = 20;

impl Validation {
    fn error(&mut self, text: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(text);
        }
    }
}

/// Checks one collection on one state. `full` also reads each index from end to end.
pub(crate) fn validate(
    view: &View,
    namespace: &str,
    full: bool,
    interrupt: Interrupt<'_>,
) -> Result<Validation> {
    let Some(collection) = view.collection(namespace) else {
        bail!(Code::NAMESPACE_NOT_FOUND, "Collection '{namespace}' does not exist to validate.");
    };
    if collection.is_view() {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Cannot validate a view");
    }
    let mut found = Validation::default();
    let counters = (collection.count(), collection.data_bytes());
    let mut expected = vec![0u64; collection.indexes.len()];
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
    let mut keys = KeySet::default();
    let mut last = Vec::new();
    while cursor.next()? {
        if found.records.is_multiple_of(1024) {
            interrupt()?;
        }
        check_record(collection, cursor.key(), cursor.bytes(), &mut found);
        if found.records > 0 && last.as_slice() >= cursor.key() {
            found.error("records are out of order".to_owned());
        }
        last.clear();
        last.extend_from_slice(cursor.key());
        found.records += 1;
        found.bytes += cursor.bytes().len() as u64;
        for (at, index) in collection.indexes.iter().enumerate() {
            expected[at] += check_entries(view, index, cursor.key(), cursor.doc(), &mut keys, &mut found)?;
        }
    }
    for (at, index) in collection.indexes.iter().enumerate() {
        let count = if index.kind == IndexKind::Id {
            found.records
        } else {
            count_entries(view, index, full, &mut found)?
        };
        if index.ready && count != expected[at] {
            found.error(format!(
                "index '{}' has {count} entries where the documents have {} keys",
                index.name, expected[at]
            ));
        }
        found.keys_per_index.push((index.name.clone(), count));
    }
    check_counters(view, counters, &mut found);
    Ok(found)
}

fn check_record(collection: &Collection, key: &[u8], bytes: &[u8], found: &mut Validation) {
    match sheaf_bson::validate(bytes, MAX_DEPTH * 2) {
        Ok(len) if len == bytes.len() => {}
        Ok(_) => {
            found.invalid_documents += 1;
            found.error("a record has bytes behind its document".to_owned());
        }
        Err(error) => {
            found.invalid_documents += 1;
            found.error(format!("a record is not valid BSON: {}", error.message()));
        }
    }
    if collection.capped.is_none() && id_key(RawDoc::new(bytes)).is_ok_and(|id| id != key) {
        found.error("a record's key is not that of its _id".to_owned());
    }
}

/// Looks up each of the document's keys; returns how many there are.
fn check_entries(
    view: &View,
    index: &Index,
    record_key: &[u8],
    doc: RawDoc<'_>,
    keys: &mut KeySet,
    found: &mut Validation,
) -> Result<u64> {
    if index.kind == IndexKind::Id {
        return Ok(1);
    }
    if !index.ready {
        return Ok(0);
    }
    index.generate(doc, keys)?;
    let mut full = Vec::new();
    for (key, type_bits) in keys.iter() {
        entry_key(index, key, record_key, &mut full);
        let right = match view.get_full(Cf::Indexes, &full)? {
            None => false,
            Some(value) => {
                let parts = entry_parts(index.unique, &full, &value);
                parts.record_key == record_key && parts.type_bits == type_bits
            }
        };
        if !right {
            found.error(format!(
                "index '{}' lacks the entry of a document: {:?}",
                index.name,
                doc.get("_id")
            ));
        }
    }
    Ok(keys.len() as u64)
}

fn count_entries(view: &View, index: &Index, full: bool, found: &mut Validation) -> Result<u64> {
    let mut cursor = view.index(index, Direction::Forward)?;
    let mut more = cursor.seek(Cut::Before(&[]))?;
    let mut count = 0;
    while more {
        count += 1;
        if full {
            let components: usize = index.fields.len() + usize::from(index.wildcard_field.is_some());
            let mut rest = cursor.key();
            for at in 0..components {
                let field = if index.wildcard_field.is_some_and(|w| at > w) { at - 1 } else { at };
                let len = sheaf_bson::key::component_len(rest, index.fields[field].1);
                rest = len.and_then(|len| rest.get(len..)).unwrap_or(&[0xFF]);
            }
            if !rest.is_empty() {
                found.error(format!("index '{}' has an entry that is no key", index.name));
            }
        }
        more = cursor.next()?;
    }
    Ok(count)
}

/// Counters are compared when no commit came between, else they are of another state.
fn check_counters(view: &View, (docs, bytes): (u64, u64), found: &mut Validation) {
    let still = view.at.core.last.lock().time == view.at.time;
    if still && (docs, bytes) != (found.records, found.bytes) {
        found.error(format!(
            "the collection counts {docs} documents and {bytes} bytes where there are {} and {}",
            found.records, found.bytes
        ));
    }
}
