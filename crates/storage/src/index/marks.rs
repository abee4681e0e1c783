//! Indexes in catalog documents and in the log, with a mark that says how their keys are made.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc};
use sheaf_collation::data_version;
use sheaf_errors::{Code, Result, bail};

use super::Index;

/// How keys are made: the only way there is so far.
const KEY_VERSION: i64 = 1;
/// The mark of keys in which strings stand as they are. All indexes had it before collations counted in keys, those with a
/// collation too: such an index goes on with its keys, and serves queries without a collation, until it is built anew.
const BYTES: &str = "none";

/// What strings are in an index's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeysBy {
    /// What the specification says.
    Spec,
    /// Their bytes, also if the specification has a collation.
    Bytes,
}

impl KeysBy {
    /// Those of an index.
    pub fn of(index: &Index) -> KeysBy {
        if index.collator.is_some() { KeysBy::Spec } else { KeysBy::Bytes }
    }

    /// Reads the mark of an index in a catalog document or in the log. An entry without a mark is of the time before there was
    /// one. Collated keys are marked with the version of the data that they were made with.
    ///
    /// Errors: `MustUpgrade` if this version makes them otherwise. Keys of two kinds in one index would give wrong results.
    pub fn read(namespace: &str, entry: RawDoc<'_>) -> Result<KeysBy> {
        let Some(keys) = entry.get("keys").and_then(|v| v.as_doc()) else { return Ok(KeysBy::Bytes) };
        let version = keys.get("version").and_then(|v| v.as_exact_i64()).unwrap_or(0);
        let collation = keys.get("collation").and_then(|v| v.as_str()).unwrap_or("");
        let spec = entry.get("spec").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
        match (version, collation) {
            (KEY_VERSION, BYTES) => return Ok(KeysBy::Bytes),
            (KEY_VERSION, made_by) if made_by == data_version(locale(spec)) => return Ok(KeysBy::Spec),
            _ => {}
        }
        let name = spec.get("name").and_then(|v| v.as_str()).unwrap_or_default();
        bail!(
            Code::MUST_UPGRADE,
            "index {name} of {namespace} has keys of version {version} with collation '{collation}', which this version cannot \
             make: open the folder with the version that made it, and drop the index there or stay with it"
        )
    }
}

/// The locale of a specification's collation.
fn locale(spec: RawDoc<'_>) -> &str {
    let collation = spec.get("collation").and_then(|v| v.as_doc());
    collation.and_then(|collation| collation.get("locale")).and_then(|v| v.as_str()).unwrap_or_default()
}

/// An index's catalog entry.
pub(crate) fn index_entry(index: &Index) -> DocBuf {
    let collation = if index.collator.is_some() { data_version(locale(index.spec.as_raw())) } else { BYTES };
    let mut entry = sheaf_bson::doc! {
        "spec": &index.spec,
        "ident": i64::from(index.ident),
        "ready": index.ready,
        "keys": { "version": KEY_VERSION, "collation": collation }
    };
    if index.replaces {
        entry.append("replaces", true);
    }
    entry
}

/// All entries, for the collection's catalog document.
pub(crate) fn index_entries<'i>(indexes: impl IntoIterator<Item = &'i Arc<Index>>) -> ArrayBuf {
    ArrayBuf::build(|array| {
        for index in indexes {
            array.push(&index_entry(index));
        }
    })
}
