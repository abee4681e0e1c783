//! `dataSize`.

use std::ops::Bound;
use std::time::Instant;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::index_spec;
use sheaf_storage::{Collection, Direction, Range, View};

use super::names;
use crate::args::{Args, Loose};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

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
        if self.min.is_some() != self.max.is_some() {
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
            .with("estimate", self.estimate && self.min.is_none())
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
        let whole = self.min.is_none() && self.max_size.is_none() && self.max_objects.is_none();
        if whole {
            return Ok(Counted {
                bytes: collection.data_bytes(),
                documents: collection.count(),
                max_reached: false,
            });
        }
        let average = collection.data_bytes().checked_div(collection.count()).unwrap_or(0);
        let mut counted = Counted::default();
        let mut cursor = view.records(collection, self.range(collection)?, Direction::Forward)?;
        while cursor.next()? {
            if counted.documents.is_multiple_of(256) {
                op.check_interrupt()?;
            }
            counted.documents += 1;
            counted.bytes += if self.estimate { average } else { cursor.bytes().len() as u64 };
            let over = |limit: Option<i64>, n: u64| limit.is_some_and(|limit| limit > 0 && n > limit as u64);
            if over(self.max_size, counted.bytes) || over(self.max_objects, counted.documents) {
                counted.max_reached = true;
                break;
            }
        }
        Ok(counted)
    }

    /// Records from `min` to before `max`.
    fn range(&self, collection: &Collection) -> Result<Range> {
        let (Some(min), Some(max)) = (self.min, self.max) else { return Ok(Range::ALL) };
        let pattern = self
            .key_pattern
            .map_or(index_spec::is_id_key(min) || min.element("_id").is_some(), index_spec::is_id_key);
        if !pattern || collection.capped.is_some() {
            bail!(Code::OPERATION_FAILED, "couldn't find valid index containing key pattern");
        }
        let key = |bound: RawDoc<'_>| collection.record_key(bound.get("_id").unwrap_or(Value::Null));
        Ok(Range { lower: Bound::Included(key(min)?), upper: Bound::Excluded(key(max)?) })
    }
}
