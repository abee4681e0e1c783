//! `dataSize`.

use std::ops::Bound;
use std::time::Instant;

use sheaf_bson::{DocBuf, RawDoc, Value, document_text, key};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::ddl::index_spec;
use sheaf_storage::{Collection, Cut, Direction, Index, IndexKind, Range, View};

use super::names;
use crate::args::{Args, Loose};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::key_index;

/// `{dataSize: "db.users", keyPattern: {_id: 1}, min: {...}, max: {...}, maxSize, maxObjects, estimate}`
pub struct DataSize<'a> {
    namespace: &'a str,
    key_pattern: Option<RawDoc<'a>>,
    min: Option<RawDoc<'a>>,
    max: Option<RawDoc<'a>>,
    max_size: Option<i64>,
    max_objects: Option<i64>,
    estimate: bool,
}

/// How to come by documents.
enum Walk<'c> {
    /// As records.
    Records(Range),
    /// By an index, from before the first key to before the second.
    Entries(&'c Index, Vec<u8>, Vec<u8>),
}

/// What was counted.
#[derive(Default)]
struct Counted {
    bytes: u64,
    documents: u64,
    max_reached: bool,
}

impl<'a> Command<'a, Operation<'a>> for DataSize<'a> {
    const NAME: &'static str = "dataSize";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "size of a range of a collection's documents",
        access: Access::Read,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::READ,
        privileges: Privileges::Needs(&[Privilege::on(Resource::NamespaceIn("dataSize"), &[Action::Find])]),
        spread: Spread::Owners,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let namespace = match args.own_value() {
            Value::String(name) => name,
            Value::Null | Value::Undefined => {
                bail!(40414, "BSON field 'dataSize.dataSize' is missing but a required field")
            }
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'dataSize.dataSize' is the wrong type '{}', expected type 'string'",
                other.type_name()
            ),
        };
        names::check_full_name(namespace, "dataSize")?;
        Ok(DataSize {
            namespace,
            key_pattern: args.optional("keyPattern")?,
            min: args.optional("min")?,
            max: args.optional("max")?,
            max_size: args.optional("maxSize")?,
            max_objects: args.optional("maxObjects")?,
            estimate: args.optional::<Loose>("estimate")?.is_some_and(|flag| flag.0),
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let started = Instant::now();
        if is_absent(self.min) != is_absent(self.max) {
            bail!(Code::BAD_VALUE, "only one of min or max specified");
        }
        let view = op.view()?;
        op.metrics().namespace.replace(Some(self.namespace.to_owned()));
        if let Some(found) = view.collection(self.namespace) {
            names::refuse_view(found)?;
        }
        let counted = match view.collection(self.namespace) {
            None => Counted::default(),
            Some(collection) => self.count(op, &view, collection)?,
        };
        let mut reply = Reply::ok()
            .with("estimate", self.estimate && self.is_whole())
            .with("size", counted.bytes as i64)
            .with("numObjects", counted.documents as i64);
        if counted.max_reached {
            reply.append("maxReached", true);
        }
        Ok(reply.with("millis", started.elapsed().as_millis() as i64))
    }
}

impl DataSize<'_> {
    fn count(&self, op: &Operation<'_>, view: &View, collection: &Collection) -> Result<Counted> {
        if self.is_whole() && self.max_size.is_none() && self.max_objects.is_none() {
            return Ok(Counted {
                bytes: collection.data_bytes(),
                documents: collection.count(),
                max_reached: false,
            });
        }
        let average = collection.data_bytes().checked_div(collection.count()).unwrap_or(0);
        let mut counted = Counted::default();
        let mut take = |bytes: &dyn Fn() -> Result<u64>| {
            if counted.documents.is_multiple_of(256) {
                op.check_interrupt()?;
            }
            counted.documents += 1;
            counted.bytes += if self.estimate { average } else { bytes()? };
            let over = |limit: Option<i64>, n: u64| limit.is_some_and(|limit| limit > 0 && n > limit as u64);
            counted.max_reached =
                over(self.max_size, counted.bytes) || over(self.max_objects, counted.documents);
            Ok::<bool, Error>(!counted.max_reached)
        };
        match self.walk(collection)? {
            Walk::Records(range) => {
                let mut cursor = view.records(collection, range, Direction::Forward)?;
                while cursor.next()? && take(&|| Ok(cursor.bytes().len() as u64))? {}
            }
            Walk::Entries(index, low, high) => {
                let mut cursor = view.index(index, Direction::Forward)?;
                let mut found = cursor.seek(Cut::Before(&low))?;
                while found && cursor.key() < high.as_slice() {
                    let bytes = || {
                        let document = view.get(collection, cursor.record_key())?;
                        Ok(document.map_or(0, |document| document.as_raw().as_bytes().len() as u64))
                    };
                    found = take(&bytes)? && cursor.next()?;
                }
            }
        }
        Ok(counted)
    }

    /// Whether no bounds are given: empty ones count as none.
    fn is_whole(&self) -> bool {
        is_absent(self.min) && is_absent(self.max)
    }

    /// How to come by the documents from `min` to before `max`.
    fn walk<'c>(&self, collection: &'c Collection) -> Result<Walk<'c>> {
        let (Some(min), Some(max)) = (self.min, self.max) else { return Ok(Walk::Records(Range::ALL)) };
        if self.is_whole() {
            return Ok(Walk::Records(Range::ALL));
        }
        // Without a pattern it is that of the bound's fields.
        let inferred = DocBuf::build(|pattern| {
            for field in min.iter() {
                pattern.append(field.key(), 1);
            }
        });
        let pattern = self.key_pattern.filter(|_| !is_absent(self.key_pattern)).unwrap_or(inferred.as_raw());
        let by_id = index_spec::is_id_key(pattern);
        if by_id && collection.capped.is_none() {
            let key = |bound: RawDoc<'_>| {
                check_bound(bound, pattern)?;
                bound.get("_id").map_or(Ok(Vec::new()), |id| collection.record_key(id))
            };
            return Ok(Walk::Records(Range {
                lower: Bound::Included(key(min)?),
                upper: Bound::Excluded(key(max)?),
            }));
        }
        // Records of a capped collection are in the order of insertion, so that its index on `_id` has entries.
        let fits =
            |index: &Index| (by_id && index.kind == IndexKind::Id) || key_index::is_index_of(index, pattern);
        let index = collection.indexes.iter().find(|index| fits(index));
        let Some(index) = index else {
            bail!(Code::OPERATION_FAILED, "couldn't find valid index containing key pattern")
        };
        Ok(Walk::Entries(index, entry_key(index, min)?, entry_key(index, max)?))
    }
}

fn is_absent(document: Option<RawDoc<'_>>) -> bool {
    document.is_none_or(|document| document.iter().next().is_none())
}

/// What stands before all entries of an index whose values are from a bound on; a bound may have fewer fields than the index.
fn entry_key(index: &Index, bound: RawDoc<'_>) -> Result<Vec<u8>> {
    check_bound(bound, index.key_pattern())?;
    let mut bytes = Vec::new();
    for (of_bound, of_index) in bound.iter().zip(index.key_pattern().iter()) {
        let descending = of_index.value().as_f64().is_some_and(|order| order < 0.0);
        key::encode_bound(of_bound.value(), descending, &mut bytes);
    }
    Ok(bytes)
}

/// Whether the fields of a bound are the first ones of an index.
fn check_bound(bound: RawDoc<'_>, pattern: RawDoc<'_>) -> Result<()> {
    let mut of_pattern = pattern.iter();
    for field in bound.iter() {
        let (bound_text, pattern_text) = (document_text(bound), document_text(pattern));
        match of_pattern.next() {
            None => bail!(16649, "keyPattern {pattern_text} shorter than bound {bound_text}"),
            Some(other) if other.key() != field.key() => bail!(
                16634,
                "field names of bound {bound_text} do not match those of keyPattern {pattern_text}"
            ),
            Some(_) => {}
        }
    }
    Ok(())
}
