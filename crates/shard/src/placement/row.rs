//! A shard's placement as it is stored: a document of `config.placements`.

use sheaf_bson::{RawDoc, Value, document_text};
use sheaf_errors::{Error, Result};

use super::{KeyPattern, KeyRange, Ranges, ShardPlacement, Version};

/// What a shard's document of a sharded collection says: `{_id: <UUID>, ns, key, unique, lastmod, owned, receiving, leaving}`, where the
/// last three are arrays of `{min, max}`; what of `leaving` is being removed has `removing`.
#[derive(Clone, Debug)]
pub struct CollectionPlacement {
    /// The collection's name.
    pub ns: String,
    /// Its shard key.
    pub pattern: KeyPattern,
    /// Whether no two documents have the same key.
    pub unique: bool,
    /// Whether it stays in one piece: the key is one that nobody has chosen, and asks nothing of indexes.
    pub unsplittable: bool,
    /// What the shard has of it.
    pub placement: ShardPlacement,
}

impl CollectionPlacement {
    /// Reads a document of `config.placements`.
    ///
    /// Errors: `BadValue`, if it is none.
    pub fn parse(document: RawDoc<'_>) -> Result<Self> {
        let broken =
            || Error::bad_value(format!("no placement of a collection: {}", document_text(document)));
        let uuid = match document.get("_id") {
            Some(Value::Binary(id)) => <[u8; 16]>::try_from(id.bytes).map_err(|_| broken())?,
            _ => return Err(broken()),
        };
        let (Some(Value::String(ns)), Some(Value::Document(key)), Some(Value::Timestamp(lastmod))) =
            (document.get("ns"), document.get("key"), document.get("lastmod"))
        else {
            return Err(broken());
        };
        let pattern = KeyPattern::parse(key)?;
        let those = |name: &str, those: &dyn Fn(&Value<'_>) -> bool| -> Result<Ranges> {
            let Some(list) = document.get(name) else { return Ok(Ranges::default()) };
            let list = list.as_array().ok_or_else(broken)?;
            let ranges =
                list.values().filter(those).map(|range| range_of(&pattern, range).ok_or_else(broken)?);
            Ok(Ranges::new(ranges.collect::<Result<Vec<_>>>()?))
        };
        let ranges = |name: &str| those(name, &|_| true);
        // What was received in vain nobody could read; it goes at once.
        let is_being_removed = |range: &Value<'_>| {
            range
                .as_doc()
                .is_some_and(|range| range.get("removing").is_some() || range.get("since").is_none())
        };
        let version = Version { uuid, lastmod };
        let placement = ShardPlacement {
            version,
            owned: ranges("owned")?,
            receiving: ranges("receiving")?,
            leaving: ranges("leaving")?,
            removing: those("leaving", &is_being_removed)?,
        };
        let unique = document.get("unique").is_some_and(|unique| unique.truthy());
        let unsplittable = document.get("unsplittable").is_some_and(|flag| flag.truthy());
        Ok(CollectionPlacement { ns: ns.to_owned(), pattern, unique, unsplittable, placement })
    }
}

/// The range that `{min, max}` is.
fn range_of(pattern: &KeyPattern, range: Value<'_>) -> Option<Result<KeyRange>> {
    let range = range.as_doc()?;
    let (min, max) = (range.get("min")?.as_doc()?, range.get("max")?.as_doc()?);
    let bounds = pattern.key(min).and_then(|min| Ok((min, pattern.key(max)?)));
    Some(bounds.map(|(min, max)| {
        let is_last = max == pattern.max();
        KeyRange::new(&min, &max, is_last)
    }))
}
