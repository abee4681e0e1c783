//! `validate`: records against indexes, counters, BSON and key order.

use ahash::RandomState;
use sheaf_bson::json::{Style, value_to_json};
use sheaf_bson::key::Decoder;
use sheaf_bson::{DocBuf, MAX_DEPTH, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};

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
/// So many steps are taken between two looks whether somebody has ended the operation.
const STEPS: u64 = 1024;

/// A set of index entries, whatever their order, in a few bytes: where two are equal, so are the sets.
#[derive(Clone, Copy, Default, PartialEq)]
struct Digest {
    count: u64,
    /// The sum of their hashes.
    sum: u64,
}

impl Digest {
    fn add(&mut self, hasher: &RandomState, key: &[u8], record_key: &[u8], type_bits: &[u8]) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(hasher.hash_one((key, record_key, type_bits)));
    }
}

/// Checks one collection on one state. `full` also looks at the form of each index entry.
///
/// Entries are compared as sets first, which reads everything once and in its order; only the entries of an index in which something is
/// wrong are looked up one by one, for what that is.
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
    let hasher = RandomState::new();
    let mut expected = vec![Digest::default(); collection.indexes.len()];
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
    let mut keys = KeySet::default();
    let mut last = Vec::new();
    while next_readable(&mut cursor, &mut |key, error| note_unreadable(collection, key, error, &mut found))? {
        if found.records.is_multiple_of(STEPS) {
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
        for (index, expected) in collection.indexes.iter().zip(&mut expected) {
            // The order of the records is the index of their `_id`s.
            if index.kind == IndexKind::Id || !index.ready {
                continue;
            }
            index.generate(cursor.doc(), &mut keys)?;
            sheaf_meter::tick(STEP_COST * keys.len() as u32)?;
            keys.iter().for_each(|(key, type_bits)| expected.add(&hasher, key, cursor.key(), type_bits));
        }
    }
    for (index, expected) in collection.indexes.iter().zip(expected) {
        let mut count = found.records;
        if index.kind != IndexKind::Id {
            let there = read_entries(view, index, full, &hasher, interrupt, &mut found)?;
            if index.ready && there != expected {
                find_missing(view, collection, index, interrupt, &mut found)?;
                // Whether an entry is of a document that cannot be read, nobody knows.
                if found.unreadable == 0 {
                    find_extra(view, collection, index, interrupt, &mut found)?;
                }
            }
            count = there.count;
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
    // Nor how large that is.
    if found.unreadable == 0 {
        check_counters(view, collection, counters, &mut found);
    }
    Ok(found)
}

/// Moves to the next record whose document can be read; `skip` is told of the others. One that is in a damaged file of values must not keep the rest
/// from being looked at.
fn next_readable(cursor: &mut RecordCursor, skip: &mut dyn FnMut(&[u8], &Error)) -> Result<bool> {
    let mut next = cursor.next();
    while let Err(error) = &next
        && let Some(key) = cursor.unreadable().map(<[u8]>::to_vec)
    {
        skip(&key, error);
        // The next longer key is the first one behind it.
        next = cursor.seek(&[&key[..], &[0]].concat());
    }
    next
}

fn note_unreadable(collection: &Collection, key: &[u8], error: &Error, found: &mut Validation) {
    found.records += 1;
    found.unreadable += 1;
    let id = Decoder::new(key, &[]).next_value(false).filter(|_| collection.capped.is_none());
    let id = id.map(|id| format!(" of _id {}", value_to_json(id.as_value(), Style::Relaxed)));
    found.error(format!("the document{} cannot be read: {}", id.unwrap_or_default(), error.message()));
    if found.corrupt_records.len() < ENTRIES_MAX {
        found.corrupt_records.push(key.to_vec());
    }
}

fn is_whole(record: &[u8]) -> bool {
    matches!(sheaf_bson::validate(record, MAX_DEPTH * 2), Ok(len) if len == record.len())
}

/// Whether a record can be read at all.
fn check_record(collection: &Collection, key: &[u8], bytes: &[u8], found: &mut Validation) -> bool {
    if !is_whole(bytes) {
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

/// The entries that an index has; `full` looks at the form of each.
fn read_entries(
    view: &View,
    index: &Index,
    full: bool,
    hasher: &RandomState,
    interrupt: Interrupt<'_>,
    found: &mut Validation,
) -> Result<Digest> {
    let mut cursor = view.index(index, Direction::Forward)?;
    let mut more = cursor.seek(Cut::Before(&[]))?;
    let mut there = Digest::default();
    while more {
        if there.count.is_multiple_of(STEPS) {
            interrupt()?;
        }
        sheaf_meter::tick(STEP_COST)?;
        there.add(hasher, cursor.key(), cursor.record_key(), cursor.type_bits());
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
    Ok(there)
}

/// Looks for entries that documents should have and have not.
fn find_missing(
    view: &View,
    collection: &Collection,
    index: &Index,
    interrupt: Interrupt<'_>,
    found: &mut Validation,
) -> Result<()> {
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
    let mut keys = KeySet::default();
    let mut full = Vec::new();
    let mut seen = 0u64;
    while next_readable(&mut cursor, &mut |_, _| ())? {
        if seen.is_multiple_of(STEPS) {
            interrupt()?;
        }
        seen += 1;
        if !is_whole(cursor.bytes()) {
            continue;
        }
        index.generate(cursor.doc(), &mut keys)?;
        for (key, type_bits) in keys.iter() {
            sheaf_meter::tick(LOOKUP_COST)?;
            entry_key(index, key, cursor.key(), &mut full);
            let is_there = view.get_full(Cf::Indexes, &full)?.is_some_and(|value| {
                let parts = entry_parts(index.unique, &full, &value);
                parts.record_key == cursor.key() && parts.type_bits == type_bits
            });
            if is_there {
                continue;
            }
            found.missing_count += 1;
            found.inconsistent(index);
            if found.missing.len() < ENTRIES_MAX {
                let mut id = DocBuf::new();
                id.append("_id", cursor.doc().get_or_missing("_id"));
                found.missing.push(Inconsistency {
                    index: index.name.clone(),
                    record_key: cursor.key().to_vec(),
                    id: Some(id),
                    key: key_document(index, key, type_bits),
                });
            }
        }
    }
    Ok(())
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
        if seen.is_multiple_of(STEPS) {
            interrupt()?;
        }
        sheaf_meter::tick(STEP_COST)?;
        let keys = known.keys_of(cursor.record_key(), |keys| {
            let record = view.get(collection, cursor.record_key())?;
            match record.filter(|record| is_whole(record)) {
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
