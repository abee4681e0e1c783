//! Which indexes are of use for a shard key, and whether a collection can have it.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::index_spec;
use sheaf_shard::placement::KeyPattern;
use sheaf_storage::{Collection, Index, IndexKind};
use sheaf_timeseries::{TimeseriesOptions, index_for_user, shard_key_index};

/// Whether an index begins with these fields, in this order and way.
pub(super) fn begins_with(index: RawDoc<'_>, key: RawDoc<'_>) -> bool {
    let mut of_index = index.iter();
    key.iter().all(|field| {
        of_index.next().is_some_and(|other| {
            other.key() == field.key() && sheaf_bson::compare(other.value(), field.value()).is_eq()
        })
    })
}

/// Whether an index has the entries of all documents in the order of this shard key.
pub fn is_index_of(index: &Index, key: RawDoc<'_>) -> bool {
    // The entries of `_id` are the records themselves.
    index.kind != IndexKind::Id && begins_with(index.key_pattern(), key) && unfit(index).is_none()
}

/// Why an index that begins with a shard key is none for it.
fn unfit(index: &Index) -> Option<String> {
    let why = if !index.ready {
        "is being built"
    } else if index.multikey() {
        "is multikey"
    } else if index.sparse || index.indexing().is_some() {
        "is sparse"
    } else if index.partial.is_some() {
        "is partial"
    } else if index.hidden {
        "is hidden"
    } else if index.spec.as_raw().get("collation").is_some_and(|collation| !is_simple(collation)) {
        "has a collation"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn is_simple(collation: Value<'_>) -> bool {
    collation.as_doc().and_then(|collation| collation.get("locale")?.as_str()) == Some("simple")
}

/// A shard key that a collection shall have.
pub(super) struct ShardKey<'k> {
    /// Its fields.
    pub pattern: &'k KeyPattern,
    /// Whether it is unique.
    pub unique: bool,
    /// Whether the simple collation was asked for.
    pub simple: bool,
}

impl ShardKey<'_> {
    /// Whether the collection has an index for the key; if not, one can be made.
    ///
    /// Errors: it cannot have the key.
    pub fn check(&self, collection: &Collection) -> Result<bool> {
        let (namespace, key) = (&collection.namespace, sheaf_bson::document_text(self.pattern.document()));
        if collection.is_view() {
            bail!(
                Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                "Namespace {namespace} is a view: views cannot be sharded"
            );
        }
        if collection.capped.is_some() {
            bail!(Code::INVALID_OPTIONS, "can't shard a capped collection: {namespace}");
        }
        let collation = collection.options.as_raw().get("collation").and_then(|collation| collation.as_doc());
        if let Some(collation) = collation.filter(|_| !self.simple) {
            bail!(
                Code::BAD_VALUE,
                "Collection has default collation: {}. Must specify collation {{locale: 'simple'}}",
                sheaf_bson::document_text(collation)
            );
        }
        let clashing = collection.indexes.iter().find(|index| {
            let own = index.key_pattern();
            let is_unique =
                index.unique || index.spec.as_raw().get("prepareUnique").is_some_and(|flag| flag.truthy());
            is_unique && !index_spec::is_id_key(own) && !self.is_prefix_of(own)
        });
        if let Some(index) = clashing {
            bail!(
                Code::INVALID_OPTIONS,
                "can't shard collection '{namespace}' with unique index on {} and proposed shard key {key}. \
                 Uniqueness can't be maintained unless shard key is a prefix",
                sheaf_bson::document_text(index.key_pattern())
            );
        }
        let clustered = collection.options.as_raw().element("clusteredIndex").is_some();
        if clustered && index_spec::is_id_key(self.pattern.document()) {
            return Ok(true);
        }
        let starting: Vec<&Index> = collection
            .indexes
            .iter()
            .map(|index| &**index)
            .filter(|index| self.is_prefix_of(index.key_pattern()))
            .collect();
        let why = starting.iter().map(|index| unfit(index)).collect::<Vec<_>>();
        let useful: Vec<&&Index> =
            starting.iter().zip(&why).filter(|(_, why)| why.is_none()).map(|(index, _)| index).collect();
        if useful.is_empty() {
            if collection.count() == 0 && starting.is_empty() {
                return Ok(false);
            }
            let why: Vec<String> = starting
                .iter()
                .zip(&why)
                .filter_map(|(index, why)| Some(format!("Index {} {}.", index.name, why.as_deref()?)))
                .collect();
            bail!(
                Code::INVALID_OPTIONS,
                "Please create an index that starts with the proposed shard key before sharding the collection. {}",
                why.join(" ")
            );
        }
        let same = |index: &&&&Index| {
            sheaf_bson::compare_docs(index.key_pattern(), self.pattern.document()).is_eq()
                && (index.unique || index_spec::is_id_key(index.key_pattern()))
        };
        if self.unique && !useful.iter().any(|index| same(&index)) {
            bail!(
                Code::INVALID_OPTIONS,
                "can't shard collection {namespace}, {key} index not unique, and unique index explicitly specified"
            );
        }
        Ok(true)
    }

    fn is_prefix_of(&self, index: RawDoc<'_>) -> bool {
        begins_with(index, self.pattern.document())
    }

    /// The specification of the index for the key.
    pub fn spec(&self, collection: &Collection) -> Result<DocBuf> {
        spec_for(self.pattern.document(), collection.options.as_raw(), self.unique)
    }
}

/// The specification of the index for a shard key of a collection with these options.
pub(super) fn spec_for(key: RawDoc<'_>, options: RawDoc<'_>, unique: bool) -> Result<DocBuf> {
    let mut key = DocBuf::from(key);
    let mut shown = key.clone();
    if let Some(measured) = TimeseriesOptions::of_catalog(options) {
        key = shard_key_index(key.as_raw(), &measured);
        // It goes by the name that it would have as a user's.
        shown = index_for_user(key.as_raw(), &measured).unwrap_or_else(|| key.clone());
    }
    let name = index_spec::default_name(shown.as_raw());
    let mut spec = doc! { "v": 2, "key": &key, "name": &name };
    if unique {
        spec.append("unique", true);
    }
    if options.element("collation").is_some() {
        spec.append("collation", doc! { "locale": "simple" }.as_raw());
    }
    index_spec::prepare(spec.as_raw(), None)
}
