//! `validate`: records against indexes, counters, BSON and key order.

use sheaf_bson::json::{Style, value_to_json};
use sheaf_bson::key::Decoder;
use sheaf_bson::{DocBuf, MAX_DEPTH, RawDoc};
use sheaf_errors::{Code, Result, bail};

use crate::catalog::Collection;
use crate::db::Cf;
use crate::index::entry_key;
use crate::index::{Index, IndexKind, KeyCache, KeySet};
use crate::keys::{entry_parts, id_key};
use crate::options::Interrupt;
use crate::read::cursor::{Cut, Direction, Range, RecordCursor};
use crate::read::view::View;

/// What `validate` found.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// Records seen.
    pub records: u64,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Documents that cannot be read.
    pub unreadable: u64,
    /// Documents that are no valid BSON.
    pub invalid_documents: u64,
    /// Their record keys, as far as they are kept.
    pub corrupt_records: Vec<Vec<u8>>,
    /// What is wrong; empty: the collection is valid.
    pub errors: Vec<String>,
    /// What is odd but harmless.
    pub warnings: Vec<String>,
    /// `(index name, keys)` in catalog order.
    pub keys_per_index: Vec<(String, u64)>,
    /// `(index name, what is wrong with it)`.
    pub index_errors: Vec<(String, String)>,
    /// Entries that documents should have and have not, as far as they are kept.
    pub missing: Vec<Inconsistency>,
    /// How many those are.
    pub missing_count: u64,
    /// Entries that no document has, as far as they are kept.
    pub extra: Vec<Inconsistency>,
    /// How many those are.
    pub extra_count: u64,
}

/// An index entry that is missing, or one too many.
#[derive(Clone, Debug)]
pub struct Inconsistency {
    /// The index's name.
    pub index: String,
    /// The record that it is about.
    pub record_key: Vec<u8>,
    /// `{_id: ...}` of the document of a missing entry.
    pub id: Option<DocBuf>,
    /// The entry's key, with the names of the key pattern.
    pub key: DocBuf,
}

/// More errors than this are only counted.
const ERRORS_MAX: usize = 20;
/// More entries than this are only counted.
const ENTRIES_MAX: usize = 1000;

impl Validation {
    /// Whether nothing is wrong.
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty() && self.index_errors.is_empty()
    }

    fn error(&mut self, text: String) {
        if self.errors.len() < ERRORS_MAX && !self.errors.contains(&text) {
            self.errors.push(text);
        }
    }

    fn index_error(&mut self, index: &Index, text: String) {
        let known = self.index_errors.iter().any(|(name, known)| *name == index.name && *known == text);
        if !known && self.index_errors.len() < ERRORS_MAX {
            self.index_errors.push((index.name.clone(), text));
        }
    }

    fn inconsistent(&mut self, index: &Index) {
        self.index_error(index, format!("Index with name '{}' has inconsistencies.", index.name));
    }
}

/// An entry's key with the names of its index's key pattern.
fn key_document(index: &Index, key: &[u8], type_bits: &[u8]) -> DocBuf {
    let mut decoder = Decoder::new(key, type_bits);
    DocBuf::build(|out| {
        for (at, (path, descending)) in index.fields.iter().enumerate() {
            // What does not decode ends the key; the index has an error of its own for it.
            if index.wildcard_field == Some(at) && decoder.next_into(false, out, "$_path").is_none() {
                return;
            }
            if decoder.next_into(*descending, out, path).is_none() {
                return;
            }
        }
    })
}

/// What a look at a key costs, and a step of a cursor, in the meter's units.
const LOOKUP_COST: u32 = 40;
const STEP_COST: u32 = 4;

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
    while next_readable(collection, &mut cursor, &mut found)? {
        if found.records.is_multiple_of(1024) {
            interrupt()?;
        }
        sheaf_meter::tick(8 + (cursor.bytes().len() / 64) as u32)?;
        let good = check_record(collection, cursor.key(), cursor.bytes(), &mut found);
        if found.records > 0 && last.as_slice() >= cursor.key() {
            found.error("records are out of order".to_owned());
        }
        last.clear();
        last.extend_from_slice(cursor.key());
        found.records += 1;
        found.bytes += cursor.bytes().len() as u64;
        if !good {
            continue;
        }
        for (at, index) in collection.indexes.iter().enumerate() {
            expected[at] += check_entries(view, index, cursor.key(), cursor.doc(), &mut keys, &mut found)?;
        }
    }
    for (at, index) in collection.indexes.iter().enumerate() {
        interrupt()?;
        let count = if index.kind == IndexKind::Id {
            found.records
        } else {
            count_entries(view, index, full, &mut found)?
        };
        let lacking = found.missing.iter().filter(|entry| entry.index == index.name).count() as u64;
        // Where all keys of all documents are there, only a different number can tell of others.
        let differs = lacking > 0 || (count != expected[at] && found.unreadable == 0);
        if index.ready && differs && index.kind != IndexKind::Id {
            find_extra(view, collection, index, interrupt, &mut found)?;
        }
        found.keys_per_index.push((index.name.clone(), count));
    }
    for (what, count, listed) in [
        ("missing", found.missing_count, found.missing.len()),
        ("extra", found.extra_count, found.extra.len()),
    ] {
        if count > 0 {
            found.warnings.push(format!("Detected {count} {what} index entries."));
        }
        if count > listed as u64 {
            found.errors.push(format!(
                "Not all {what} index entry inconsistencies are listed due to size limitations."
            ));
        }
    }
    // How large what cannot be read is, nobody knows.
    if found.unreadable == 0 {
        check_counters(view, collection, counters, &mut found);
    }
    Ok(found)
}

/// Moves to the next record whose document can be read. Others are noted: one that is in a damaged file of values must not keep the rest from
/// being looked at.
fn next_readable(collection: &Collection, cursor: &mut RecordCursor, found: &mut Validation) -> Result<bool> {
    let mut next = cursor.next();
    while let Err(error) = &next
        && let Some(key) = cursor.unreadable().map(<[u8]>::to_vec)
    {
        found.records += 1;
        found.unreadable += 1;
        let id = Decoder::new(&key, &[]).next_value(false).filter(|_| collection.capped.is_none());
        let id = id.map(|id| format!(" of _id {}", value_to_json(id.as_value(), Style::Relaxed)));
        found.error(format!("the document{} cannot be read: {}", id.unwrap_or_default(), error.message()));
        // The next longer key is the first one behind it.
        next = cursor.seek(&[&key[..], &[0]].concat());
        if found.corrupt_records.len() < ENTRIES_MAX {
            found.corrupt_records.push(key);
        }
    }
    next
}

/// Whether a record can be read at all.
fn check_record(collection: &Collection, key: &[u8], bytes: &[u8], found: &mut Validation) -> bool {
    let whole = matches!(sheaf_bson::validate(bytes, MAX_DEPTH * 2), Ok(len) if len == bytes.len());
    if !whole {
        found.invalid_documents += 1;
        if found.corrupt_records.len() < ENTRIES_MAX {
            found.corrupt_records.push(key.to_vec());
        }
        found.error("Detected one or more invalid documents. See logs.".to_owned());
        return false;
    }
    if collection.capped.is_none() && id_key(RawDoc::new(bytes)).is_ok_and(|id| id != key) {
        found.error("a record's key is not that of its _id".to_owned());
    }
    true
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
        sheaf_meter::tick(LOOKUP_COST)?;
        entry_key(index, key, record_key, &mut full);
        let right = match view.get_full(Cf::Indexes, &full)? {
            None => false,
            Some(value) => {
                let parts = entry_parts(index.unique, &full, &value);
                parts.record_key == record_key && parts.type_bits == type_bits
            }
        };
        if !right {
            found.missing_count += 1;
            found.inconsistent(index);
            if found.missing.len() < ENTRIES_MAX {
                let mut id = DocBuf::new();
                id.append("_id", doc.get_or_missing("_id"));
                found.missing.push(Inconsistency {
                    index: index.name.clone(),
                    record_key: record_key.to_vec(),
                    id: Some(id),
                    key: key_document(index, key, type_bits),
                });
            }
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
        sheaf_meter::tick(STEP_COST)?;
        if full {
            let components: usize = index.fields.len() + usize::from(index.wildcard_field.is_some());
            let mut rest = cursor.key();
            for at in 0..components {
                let field = if index.wildcard_field.is_some_and(|w| at > w) { at - 1 } else { at };
                let len = sheaf_bson::key::component_len(rest, index.fields[field].1);
                rest = len.and_then(|len| rest.get(len..)).unwrap_or(&[0xFF]);
            }
            if !rest.is_empty() {
                found.index_error(index, format!("Index '{}' has an entry that is no key.", index.name));
            }
        }
        more = cursor.next()?;
    }
    Ok(count)
}

/// Looks for entries that no document has.
fn find_extra(
    view: &View,
    collection: &Collection,
    index: &Index,
    interrupt: Interrupt<'_>,
    found: &mut Validation,
) -> Result<()> {
    let mut cursor = view.index(index, Direction::Forward)?;
    let mut more = cursor.seek(Cut::Before(&[]))?;
    let mut known = KeyCache::default();
    let mut seen = 0u64;
    while more {
        seen += 1;
        if seen.is_multiple_of(1024) {
            interrupt()?;
        }
        sheaf_meter::tick(STEP_COST)?;
        let keys = known.keys_of(cursor.record_key(), |keys| {
            let record = view.get(collection, cursor.record_key())?;
            match record.filter(|bytes| sheaf_bson::validate(bytes, MAX_DEPTH * 2).is_ok()) {
                Some(doc) => index.generate(doc.as_raw(), keys).map(|()| true),
                None => Ok(false),
            }
        })?;
        if !keys.is_some_and(|keys| keys.contains_exactly(cursor.key(), cursor.type_bits())) {
            found.extra_count += 1;
            found.inconsistent(index);
            if found.extra.len() < ENTRIES_MAX {
                found.extra.push(Inconsistency {
                    index: index.name.clone(),
                    record_key: cursor.record_key().to_vec(),
                    id: None,
                    key: key_document(index, cursor.key(), cursor.type_bits()),
                });
            }
        }
        more = cursor.next()?;
    }
    Ok(())
}

/// Counters are compared when no commit came between, else they are of another state.
fn check_counters(view: &View, collection: &Collection, counters: (u64, u64), found: &mut Validation) {
    let still = view.at.published.last().time == view.at.time;
    if still && counters.0 != found.records {
        found.error(format!(
            "fast count ({}) does not match number of records ({}) for collection '{}'",
            counters.0, found.records, collection.namespace
        ));
    }
    if still && counters.1 != found.bytes {
        found.error(format!(
            "the collection counts {} bytes where its records have {}",
            counters.1, found.bytes
        ));
    }
}
