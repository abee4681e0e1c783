//! Indexes: what the catalog knows of one, and the keys that documents have in it.

mod accesses;
mod cache;
mod coverage;
mod duplicate;
mod entry;
mod geo;
mod key_set;
mod keys;
mod marks;
mod print;
pub(crate) mod side;
#[cfg(test)]
mod tests;
mod text;
mod wildcard;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_bson::key::{Decoder, TypeBits, encode};
use sheaf_bson::{Bump, DocBuf, RawDoc, Value, hashed_index_value};
use sheaf_collation::{Collator, SharedCollator};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_geo::Indexing;
use sheaf_query::matcher::Matcher;
use sheaf_text::TextSpec;

use crate::critical::must;
pub use accesses::Accesses;
pub(crate) use cache::KeyCache;
use coverage::Coverage;
pub(crate) use entry::{entry_key, entry_value};
use geo::Geo;
pub(crate) use key_set::KeySet;
pub(crate) use marks::{KeysBy, index_entries};
pub(crate) use side::{Side, side_ident};

/// How an index makes keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// `_id` of a collection that is not capped: no entries exist, the records themselves are in this order.
    Id,
    /// Ascending and descending fields, one or more.
    Btree,
    /// One hashed field (others may be plain).
    Hashed,
    /// A `$**` field (others may be plain).
    Wildcard,
    /// `2d` or `2dsphere` fields (others may be plain).
    Geo,
    /// The words of texts (other fields may be plain).
    Text,
}

/// One index.
pub struct Index {
    /// Its name.
    pub name: String,
    /// Prefix of its entries; never used again after a drop.
    pub ident: u32,
    /// How it makes keys.
    pub kind: IndexKind,
    /// As `listIndexes` shows it.
    pub spec: DocBuf,
    /// `(path, descending)` per field; hashed fields are ascending.
    pub fields: Vec<(String, bool)>,
    /// Whether a key may belong to one document only.
    pub unique: bool,
    /// Whether documents that have none of the fields are left out.
    pub sparse: bool,
    /// Whether the planner must not use it.
    pub hidden: bool,
    /// False while it is being built.
    pub ready: bool,
    /// Of a TTL index.
    pub expire_after_seconds: Option<f64>,
    /// `partialFilterExpression`.
    pub partial: Option<DocBuf>,
    pub(crate) partial_filter: Option<Matcher>,
    pub(crate) hashed_field: Option<usize>,
    pub(crate) wildcard_field: Option<usize>,
    pub(crate) coverage: Coverage,
    pub(crate) geo: Option<Geo>,
    /// Of a text index: what it is about.
    pub text: Option<TextSpec>,
    /// By which strings stand in its keys, if not by their bytes. An index of a time when no collation counted has none,
    /// whatever its specification says.
    pub collator: Option<SharedCollator>,
    /// Shared by all catalog versions of the index.
    pub(crate) multikey: Arc<Multikey>,
    /// Uses of it; shared by all catalog versions too.
    pub accesses: Arc<Accesses>,
    /// Whether new duplicates are refused though the index is not unique (`collMod`'s way to a unique one).
    pub(crate) prepare_unique: bool,
    /// Being built to take the place of the ready index of this name.
    pub(crate) replaces: bool,
    /// Where writers leave their changes while it is being built.
    pub(crate) side: Arc<Side>,
}

/// Per field, the path components that are arrays in some document, as bits. Bits are set when a
/// writer prepares such a document and never cleared, so a reader may see one too many, never one too few.
pub(crate) struct Multikey(Box<[AtomicU64]>);

impl Multikey {
    pub fn new(masks: Vec<u64>) -> Self {
        Multikey(masks.into_iter().map(AtomicU64::new).collect())
    }

    pub fn masks(&self) -> Vec<u64> {
        self.0.iter().map(|mask| mask.load(Ordering::Acquire)).collect()
    }

    pub fn add(&self, masks: &[u64]) {
        debug_assert_eq!(self.0.len(), masks.len(), "fields of an index and of a document's keys");
        for (mask, add) in self.0.iter().zip(masks) {
            if *add != 0 && mask.load(Ordering::Acquire) & add != *add {
                mask.fetch_or(*add, Ordering::AcqRel);
            }
        }
    }

    fn any(&self) -> bool {
        self.0.iter().any(|mask| mask.load(Ordering::Acquire) != 0)
    }
}

impl Index {
    /// Reads a spec (`{v, key, name, unique, sparse, partialFilterExpression, ...}`) that the command has checked.
    pub(crate) fn from_spec(
        spec: RawDoc<'_>,
        ident: u32,
        ready: bool,
        masks: Option<Vec<u64>>,
    ) -> Result<Index> {
        Index::with_keys(KeysBy::Spec, spec, ident, ready, masks)
    }

    /// As [`Index::from_spec`] of an index whose keys may be those of an earlier version.
    pub(crate) fn with_keys(
        keys: KeysBy,
        spec: RawDoc<'_>,
        ident: u32,
        ready: bool,
        masks: Option<Vec<u64>>,
    ) -> Result<Index> {
        let Some(Value::Document(pattern)) = spec.get("key") else {
            bail!(Code::CANNOT_CREATE_INDEX, "index specification has no key pattern");
        };
        let Some(Value::String(name)) = spec.get("name") else {
            bail!(Code::CANNOT_CREATE_INDEX, "index specification has no name");
        };
        let name = name.to_owned();
        let flag = |field: &str| spec.get(field).is_some_and(|v| v.truthy());
        let mut fields = Vec::new();
        let mut hashed_field = None;
        let mut wildcard_field = None;
        let mut text = None;
        for (at, element) in pattern.iter().enumerate() {
            match element.value() {
                Value::String("hashed") => hashed_field = Some(at),
                Value::String("text") => text = Some(TextSpec::read(spec)?),
                Value::String(other) if !sheaf_geo::is_geo_kind(other) => {
                    bail!(Code::CANNOT_CREATE_INDEX, "Unknown index plugin '{other}'")
                }
                _ => {}
            }
            if element.key() == "$**" || element.key().ends_with(".$**") {
                wildcard_field = Some(at);
            }
            let descending = element.value().as_f64().is_some_and(|n| n < 0.0);
            fields.push((element.key().to_owned(), descending));
        }
        let geo = Geo::of_spec(spec)?;
        let collator = match spec.get("collation").and_then(|v| v.as_doc()) {
            Some(collation) if keys == KeysBy::Spec => Collator::parse(collation)?,
            _ => None,
        };
        let kind = match (wildcard_field, hashed_field) {
            (Some(_), _) => IndexKind::Wildcard,
            (None, Some(_)) => IndexKind::Hashed,
            (None, None) if geo.is_some() => IndexKind::Geo,
            (None, None) if text.is_some() => IndexKind::Text,
            (None, None) => IndexKind::Btree,
        };
        let partial = spec.get("partialFilterExpression").and_then(|v| v.as_doc()).map(DocBuf::from);
        let partial_filter = match &partial {
            Some(filter) => {
                // It stays as long as the index: whoever has it read first must not pay for it. The command has seen that
                // it is small (`Matcher::parse_lasting`).
                let _nobody_pays = sheaf_meter::shield();
                let mut cx = ParseCx::new().with_collator(collator.clone());
                Some(Matcher::parse(filter.as_raw(), &mut cx)?)
            }
            None => None,
        };
        let projection = spec.get("wildcardProjection").and_then(|v| v.as_doc());
        let coverage =
            wildcard_field.map_or_else(Coverage::default, |at| Coverage::new(&fields[at].0, projection));
        if let Some(masks) = masks.as_ref().filter(|masks| masks.len() != fields.len()) {
            // To take them for none would be to forget which fields have arrays.
            bail!(
                Code::INTERNAL_ERROR,
                "index {name} has {} fields, and the catalog knows of arrays in {}",
                fields.len(),
                masks.len()
            );
        }
        let masks = masks.unwrap_or_else(|| vec![0; fields.len()]);
        Ok(Index {
            name,
            ident,
            kind,
            fields,
            unique: flag("unique"),
            sparse: flag("sparse"),
            hidden: flag("hidden"),
            ready,
            expire_after_seconds: spec.get("expireAfterSeconds").and_then(|v| v.as_f64()),
            partial,
            partial_filter,
            hashed_field,
            wildcard_field,
            coverage,
            geo,
            text,
            collator,
            multikey: Arc::new(Multikey::new(masks)),
            accesses: Arc::default(),
            prepare_unique: flag("prepareUnique"),
            replaces: false,
            side: Arc::default(),
            spec: spec.into(),
        })
    }

    /// The same index with another spec or state; entries and multikey knowledge stay.
    pub(crate) fn changed(&self, spec: RawDoc<'_>, ready: bool) -> Result<Index> {
        must!(ready || !self.ready, "index {} is ready, and is to be built", self.name);
        let mut index = Index::with_keys(KeysBy::of(self), spec, self.ident, ready, None)?;
        index.multikey = self.multikey.clone();
        index.accesses = self.accesses.clone();
        index.side = self.side.clone();
        index.replaces = self.replaces && !ready;
        if self.is_of_id() {
            index.kind = self.kind;
            index.unique = self.unique;
        }
        Ok(index)
    }

    /// Whether it is what a collection has of the start: the index on `_id`, by whatever name.
    pub(crate) fn is_of_id(&self) -> bool {
        self.kind == IndexKind::Id || self.name == "_id_" || self.spec.as_raw().get("clustered").is_some()
    }

    /// Whether a writer may take only keys that no other document has.
    pub(crate) fn guards_keys(&self) -> bool {
        self.ready && self.kind != IndexKind::Id && (self.unique || self.prepare_unique)
    }

    /// `{a: 1, b: -1}`.
    pub fn key_pattern(&self) -> RawDoc<'_> {
        let pattern = self.spec.as_raw().get("key").and_then(|v| v.as_doc());
        pattern.expect("an index is made of a specification with a key pattern")
    }

    /// How it makes keys of geometries, if it is an index of them.
    pub fn indexing(&self) -> Option<&Indexing> {
        self.geo.as_ref().map(|geo| &geo.indexing)
    }

    /// Whether a field of it is a geometry.
    pub fn is_geo_field(&self, at: usize) -> bool {
        self.geo.as_ref().is_some_and(|geo| geo.fields[at])
    }

    /// Whether some document has several keys in it.
    pub fn multikey(&self) -> bool {
        self.multikey.any()
    }

    /// Per field, the positions of path components that are arrays in some document; `None` when
    /// that is not known (wildcard).
    pub fn multikey_paths(&self) -> Option<Vec<Vec<usize>>> {
        if self.kind == IndexKind::Wildcard {
            return None;
        }
        let positions = |mask: u64| (0..64).filter(|bit| mask >> bit & 1 == 1).collect();
        Some(self.multikey.masks().into_iter().map(positions).collect())
    }

    /// The index's keys of a document, memcomparable, for explain, validate and tests.
    pub fn keys(&self, doc: RawDoc<'_>) -> Result<Vec<Vec<u8>>> {
        if self.kind == IndexKind::Id {
            return Ok(vec![crate::keys::id_key(doc)?]);
        }
        let mut set = KeySet::default();
        self.generate(doc, &mut set)?;
        Ok(set.iter().map(|(key, _)| key.to_vec()).collect())
    }

    /// Appends a value as it stands in a key: its strings by the collation, if the index has one.
    #[inline]
    pub(crate) fn put_value(
        &self,
        value: Value<'_>,
        descending: bool,
        bytes: &mut Vec<u8>,
        bits: &mut TypeBits,
    ) {
        match &self.collator {
            None => encode(value, descending, bytes, bits),
            Some(collator) => encode(collator.key(value, &Bump::new()), descending, bytes, bits),
        }
    }

    /// The hash by which a value stands in a hashed field.
    #[inline]
    pub(crate) fn hash(&self, value: Value<'_>) -> i64 {
        match &self.collator {
            None => hashed_index_value(value),
            Some(collator) => hashed_index_value(collator.key(value, &Bump::new())),
        }
    }

    /// MongoDB's error for a key that exists already.
    pub(crate) fn duplicate(&self, namespace: &str, key: &[u8], type_bits: &[u8]) -> Error {
        let mut decoder = Decoder::new(key, type_bits);
        let value = DocBuf::build(|doc| {
            for (at, (path, descending)) in self.fields.iter().enumerate() {
                if Some(at) == self.wildcard_field {
                    let path = decoder.next_value(*descending);
                    let name = path
                        .as_ref()
                        .and_then(|p| p.as_value().as_str())
                        .unwrap_or(path_name(&self.fields[at].0));
                    let name = name.to_owned();
                    decoder.next_into(*descending, doc, &name);
                } else if decoder.next_into(*descending, doc, path).is_none() {
                    break;
                }
            }
        });
        duplicate::error(namespace, &self.name, self.key_pattern(), value.as_raw(), self.shown_collation())
    }

    /// MongoDB's error for an `_id` that a record has already.
    pub(crate) fn duplicate_id(&self, namespace: &str, id: Value<'_>) -> Error {
        let arena = Bump::new();
        let id = self.collator.as_ref().map_or(id, |collator| collator.key(id, &arena));
        let (pattern, value) = (sheaf_bson::doc! { "_id": 1 }, sheaf_bson::doc! { "_id": id });
        duplicate::error(namespace, &self.name, pattern.as_raw(), value.as_raw(), self.shown_collation())
    }

    /// The collation that its keys are made by, as the specification has it.
    fn shown_collation(&self) -> Option<RawDoc<'_>> {
        self.collator.as_ref()?;
        self.spec.as_raw().get("collation").and_then(|v| v.as_doc())
    }
}

/// Tells what an error of [`Index::generate`] is about: given back if the operation is to end, `Ok` if the document is to blame.
pub(crate) fn ends_operation(error: Error) -> Result<()> {
    sheaf_meter::check()?;
    match error.code() {
        Code::EXCEEDED_MEMORY_LIMIT | Code::MAX_TIME_MS_EXPIRED | Code::INTERRUPTED => Err(error),
        _ => Ok(()),
    }
}

fn path_name(path: &str) -> &str {
    path
}

/// The spec of the `_id` index that every collection has.
pub(crate) fn id_index_spec() -> DocBuf {
    sheaf_bson::doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" }
}
