//! Where a statement goes.

use sheaf_bson::{RawDoc, Value};
use sheaf_cluster::Sharded;
use sheaf_errors::{Code, Error, Result};
use sheaf_exec::write::check_document;
use sheaf_server::shard_key::ranges::{is_equality, one_key};
use sheaf_shard::ShardId;
use sheaf_shard::placement::Ranges;
use sheaf_timeseries::{Measurement, TimeseriesOptions, bucket_of};

use super::batch::{Kind, document_of};
use crate::targeting;

/// Where a statement goes.
#[derive(Debug)]
pub enum Aim<'s> {
    /// To one shard, which has all that it may concern.
    One(&'s ShardId),
    /// To each of these, which do with their own documents what it says.
    Each(Vec<&'s ShardId>),
    /// To one of these: it concerns one document, and any of them may have it.
    Anywhere(Vec<&'s ShardId>),
}

/// Finds out where the statements of a batch go.
pub struct Aiming {
    kind: Kind,
    order: Vec<u8>,
}

impl Aiming {
    /// For statements of this kind.
    pub fn new(kind: Kind) -> Self {
        Aiming { kind, order: Vec::new() }
    }

    /// Where this one goes; if it is `measured`, the collection has the buckets of what it is about.
    ///
    /// Errors: those that become the statement's.
    pub fn aim<'s>(
        &mut self,
        statement: RawDoc<'_>,
        measured: bool,
        sharded: &'s Sharded,
    ) -> Result<Aim<'s>> {
        let timeseries = sharded.timeseries.as_ref().filter(|_| measured);
        let flag = |name: &str| statement.get(name).is_some_and(|flag| flag.truthy());
        let first = || statement.iter().next().map_or("", |first| first.key());
        match self.kind {
            Kind::Inserts => self.document(statement, timeseries, sharded),
            Kind::Bulk if first() == "insert" => {
                self.document(document_of(statement).unwrap_or(RawDoc::EMPTY), timeseries, sharded)
            }
            Kind::Deletes => {
                let multi = statement.get("limit").and_then(|limit| limit.as_f64()) != Some(1.0);
                Selection::of(statement, "q").of_measurements(measured).aim(sharded, multi)
            }
            Kind::Updates | Kind::Bulk => {
                let selection = Selection::of(statement, self.kind.filter()).of_measurements(measured);
                match flag("upsert") {
                    true => selection.upsert(sharded, flag("multi")),
                    false => selection.aim(sharded, flag("multi")),
                }
            }
        }
    }

    /// Whether a document can be a measurement of this collection, as far as documents say it.
    pub fn fits(&mut self, document: RawDoc<'_>, sharded: &Sharded) -> bool {
        sharded
            .timeseries
            .as_ref()
            .is_some_and(|timeseries| self.put_measurement(document, timeseries, sharded).is_ok())
    }

    fn put_measurement(
        &mut self,
        document: RawDoc<'_>,
        timeseries: &TimeseriesOptions,
        sharded: &Sharded,
    ) -> Result<()> {
        self.order.clear();
        check_document(document)?;
        let bucket = bucket_of(&Measurement::of(document, timeseries)?, timeseries);
        sharded.pattern().put_order(bucket.as_raw(), &mut self.order)
    }

    /// Documents go where their keys belong, measurements where a bucket would that begins with them. What cannot be a measurement is
    /// refused by any shard, which knows better whether measurements are what the collection has.
    fn document<'s>(
        &mut self,
        document: RawDoc<'_>,
        timeseries: Option<&TimeseriesOptions>,
        sharded: &'s Sharded,
    ) -> Result<Aim<'s>> {
        match timeseries {
            Some(timeseries) => {
                if self.put_measurement(document, timeseries, sharded).is_err() {
                    return Ok(Aim::One(sharded.table.chunks()[0].shard()));
                }
            }
            None => {
                self.order.clear();
                sharded.pattern().put_order(document, &mut self.order)?;
            }
        }
        Ok(Aim::One(sharded.table.chunk_at(&self.order).shard()))
    }
}

/// Which documents a statement is about.
#[derive(Clone, Copy)]
pub struct Selection<'d> {
    filter: RawDoc<'d>,
    collation: Option<RawDoc<'d>>,
    sorted: bool,
    /// Whether the filter is one of measurements.
    measured: bool,
}

impl<'d> Selection<'d> {
    /// What a statement says, with its filter in this field.
    pub fn of(statement: RawDoc<'d>, filter: &str) -> Self {
        let document = |name: &str| statement.get(name).and_then(|value| value.as_doc());
        Selection {
            filter: document(filter).unwrap_or(RawDoc::EMPTY),
            collation: document("collation"),
            sorted: document("sort").is_some_and(|sort| !sort.is_empty()),
            measured: false,
        }
    }

    /// The same of measurements, if `measured`, whose buckets the collection has.
    #[must_use]
    pub fn of_measurements(self, measured: bool) -> Self {
        Selection { measured, ..self }
    }

    /// The keys that documents may have which are meant.
    fn ranges(&self, sharded: &Sharded) -> Ranges {
        match self.measured {
            true => targeting::ranges_for_measurements(sharded, self.filter, self.collation),
            false => targeting::ranges_for_filter(sharded, self.filter, self.collation),
        }
    }

    /// Where a statement goes that changes what is there: all of it with `multi`, otherwise one document.
    ///
    /// Errors: those of the filter.
    pub fn aim<'s>(&self, sharded: &'s Sharded, multi: bool) -> Result<Aim<'s>> {
        let ranges = self.ranges(sharded);
        let mut shards: Vec<&ShardId> = targeting::owners(sharded, &ranges).into_iter().collect();
        if shards.len() > 1 {
            // An `_id` is one document's, wherever that is; measurements may share theirs.
            let by_id = || !self.sorted && !self.measured && is_id(self.filter.get_or_missing("_id"));
            return Ok(if multi || by_id() { Aim::Each(shards) } else { Aim::Anywhere(shards) });
        }
        shards
            .pop()
            .map(Aim::One)
            .ok_or_else(|| Error::new(Code::SHARD_NOT_FOUND, "No shard owns the collection"))
    }

    /// Where a statement goes that inserts a document if it finds none.
    ///
    /// Errors: `ShardKeyNotFound`, with `multi` where the filter does not name one key; those of the filter.
    pub fn upsert<'s>(&self, sharded: &'s Sharded, multi: bool) -> Result<Aim<'s>> {
        if self.measured {
            // Any shard refuses it.
            return self.aim(sharded, true);
        }
        if let Some(owner) = self.owner(sharded)? {
            return Ok(Aim::One(owner));
        }
        if multi && !sharded.unsplittable {
            return Err(Error::new(
                Code::SHARD_KEY_NOT_FOUND,
                "Failed to target upsert by query :: could not extract exact shard key",
            ));
        }
        Ok(match self.aim(sharded, multi)? {
            Aim::Each(shards) => Aim::Anywhere(shards),
            aim => aim,
        })
    }

    /// The owner of the one key that the filter names, if it names one.
    fn owner<'s>(&self, sharded: &'s Sharded) -> Result<Option<&'s ShardId>> {
        let simple = targeting::compares_bytes(sharded.default_collation.as_ref(), self.collation);
        let Some(ranges) = one_key(self.filter, sharded.pattern(), simple) else { return Ok(None) };
        Ok(sharded.table.owners(&ranges, None)?.first().copied())
    }
}

/// Whether a filter's `_id` is one value.
fn is_id(value: Value<'_>) -> bool {
    is_equality(value).is_some_and(|value| !value.is_missing())
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn an_id_is_one_value() {
        assert!(is_id(Value::Int32(5)) && is_id(Value::Document(doc! { "a": 1 }.as_raw())));
        assert!(!is_id(Value::Missing) && !is_id(Value::Document(doc! { "$gt": 1 }.as_raw())));
    }
}
