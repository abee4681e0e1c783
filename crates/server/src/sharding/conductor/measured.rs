//! `shardCollection` of time-series collections: what is sharded are their buckets, by the key that stands for the one that was asked for.

use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::placement::KeyPattern;
use sheaf_storage::Interrupt;
use sheaf_timeseries::{TimeseriesOptions, buckets_namespace, shard_key_for_buckets, split_buckets};

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

    /// What this version does not do to time-series collections that are sharded, by their own name or that of their buckets.
    ///
    /// Errors: `NotImplemented`.
    pub(super) fn refuse_measured(&self, namespace: &str) -> Result<()> {
        let (db, name) = namespace.split_once('.').unwrap_or((namespace, ""));
        let buckets = match split_buckets(namespace) {
            Some(_) => namespace.to_owned(),
            None => buckets_namespace(db, name),
        };
        if self.entry(&buckets)?.is_some() {
            bail!(
                Code::NOT_IMPLEMENTED,
                "Sharded time-series collections get neither another shard key nor another place: {namespace}"
            );
        }
        Ok(())
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
