//! Commands about time-series collections: what is sharded, and what gets another key or place, are their buckets, by the key that stands
//! for the one that was asked for.

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::KeyPattern;
use sheaf_storage::Interrupt;
use sheaf_timeseries::{TimeseriesOptions, buckets_namespace, shard_key_for_buckets};

use super::shard_collection::ShardCollection;
use super::{Conductor, db_of};
use crate::sharding::participants::name;

impl Conductor {
    /// What is asked, of the buckets of a time-series collection that is there or is to be made; `None` for another collection.
    ///
    /// Errors: `InvalidOptions`, where the collection is another one; those of the key; those of the database's primary shard.
    pub(super) fn of_buckets(
        &self,
        asked: &ShardCollection,
        go_on: Interrupt<'_>,
    ) -> Result<Option<ShardCollection>> {
        let namespace = asked.namespace.as_str();
        let db = db_of(namespace);
        let told = self.tell(&self.primary_shard(db)?, &doc! { (name::DESCRIBE): namespace }, go_on)?;
        let wanted = asked.timeseries.clone().map(checked).transpose()?;
        let options = match (TimeseriesOptions::of_catalog(told.as_raw()), wanted) {
            (None, None) => return Ok(None),
            (None, Some(_)) if is_there(&told) => {
                bail!(Code::INVALID_OPTIONS, "{namespace} is not a time-series collection")
            }
            (Some(known), Some(wanted)) if known != wanted => bail!(
                Code::INVALID_OPTIONS,
                "the 'timeseries' spec provided must match that of exists '{namespace}' collection"
            ),
            (Some(options), _) | (None, Some(options)) => options,
        };
        if asked.unique {
            bail!(Code::INVALID_OPTIONS, "Unique indexes are not supported on time-series collections");
        }
        let key = shard_key_for_buckets(asked.pattern.document(), &options)?;
        Ok(Some(ShardCollection {
            namespace: buckets_namespace(db, &namespace[db.len() + 1..]),
            pattern: KeyPattern::parse(key.as_raw())?,
            unique: false,
            simple: asked.simple,
            presplit: asked.presplit,
            timeseries: Some(options),
        }))
    }

    /// What a command is about that names a collection.
    ///
    /// Errors: `BadValue`, where the directory's entry cannot be read.
    pub(super) fn named(&self, namespace: &str) -> Result<Named> {
        let plain = || Named { namespace: namespace.to_owned(), measured: None };
        if self.entry(namespace)?.is_some() {
            return Ok(plain());
        }
        let (db, name) = namespace.split_once('.').unwrap_or((namespace, ""));
        let buckets = buckets_namespace(db, name);
        let Some(entry) = self.entry(&buckets)? else { return Ok(plain()) };
        let measured = TimeseriesOptions::of_entry(entry.document.as_raw())?;
        Ok(Named { namespace: buckets, measured })
    }

    /// The same of a collection that the directory need not know: its database's primary shard is asked.
    ///
    /// Errors: as [`named`](Self::named); `NamespaceNotFound` without a database; those of the shard.
    pub(super) fn named_anywhere(&self, namespace: &str, go_on: Interrupt<'_>) -> Result<Named> {
        let named = self.named(namespace)?;
        if named.measured.is_some() || self.entry(&named.namespace)?.is_some() {
            return Ok(named);
        }
        let db = db_of(namespace);
        let told = self.tell(&self.primary_shard(db)?, &doc! { (name::DESCRIBE): namespace }, go_on)?;
        match TimeseriesOptions::of_catalog(told.as_raw()) {
            None => Ok(named),
            measured => Ok(Named { namespace: buckets_namespace(db, &namespace[db.len() + 1..]), measured }),
        }
    }
}

/// A collection that a command names, as the directory has it: the buckets of a time-series collection.
#[derive(PartialEq, Debug)]
pub(super) struct Named {
    /// The directory's name for it.
    pub namespace: String,
    /// What it measures, if the command has named the measurements.
    pub measured: Option<TimeseriesOptions>,
}

impl Named {
    /// The shard key that stands for the one that a user has named.
    ///
    /// Errors: 5914000, 5914001, 880031.
    pub fn key(&self, key: RawDoc<'_>) -> Result<DocBuf> {
        match &self.measured {
            Some(options) => shard_key_for_buckets(key, options),
            None => Ok(DocBuf::from(key)),
        }
    }
}

fn checked(options: TimeseriesOptions) -> Result<TimeseriesOptions> {
    options.check_fields()?;
    options.resolve()
}

/// Whether the shard has described anything.
fn is_there(told: &DocBuf) -> bool {
    ["isView", "uuid"].iter().any(|field| told.as_raw().get(field).is_some())
}
