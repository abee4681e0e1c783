//! `planCacheSetFilter`, `planCacheListFilters`, `planCacheClearFilters`: index filters, kept in memory by each server.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::shape;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// All filters together take no more than this part of the memory that operations have.
const SHARE: u64 = 16;

const NEEDS: &[Privilege] = &[Privilege::on(Resource::Collection, &[Action::PlanCacheIndexFilter])];

/// What the three say of themselves, but for the sentence of help.
const fn spec(help: &'static str) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(NEEDS),
        spread: Spread::Owners,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    }
}

/// `{planCacheSetFilter: "users", query, sort, projection, collation, indexes: ["name_1", {age: 1}]}`
pub struct PlanCacheSetFilter<'a> {
    collection: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for PlanCacheSetFilter<'a> {
    const NAME: &'static str = "planCacheSetFilter";
    const SPEC: Spec = spec("names the indexes that queries of a shape may use");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        args.ignore_rest();
        Ok(PlanCacheSetFilter { collection })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some(collection) = shape::collection(op, self.collection)? else {
            bail!(Code::BAD_VALUE, "no such collection")
        };
        let indexes = indexes(op.body())?;
        let shape = shape::required(op, op.body())?;
        let filter = DocBuf::build(|out| {
            out.append_all(shape.shown.as_raw());
            let mut list = out.array("indexes");
            // Key patterns first, then names, each once.
            let mut seen: Vec<Value<'_>> = Vec::new();
            for wants_name in [false, true] {
                for index in indexes.values().filter(|index| index.as_str().is_some() == wants_name) {
                    if !seen.iter().any(|known| sheaf_bson::compare(*known, index).is_eq()) {
                        seen.push(index);
                        list.push(index);
                    }
                }
            }
        });
        let view = op.engine().view()?;
        let exists = |uuid: &sheaf_storage::Uuid| view.catalog().by_uuid(uuid).is_some();
        let share = op.node().memory.limit() / SHARE;
        match view.plans().set_filter(collection.uuid, shape.hash, filter, share, exists) {
            Ok(()) => Ok(Reply::ok()),
            Err(bytes) => bail!(
                Code::EXCEEDED_MEMORY_LIMIT,
                "The index filters of all collections would take {bytes} bytes of memory, more than their share of {share}"
            ),
        }
    }
}

/// `indexes`: names and key patterns.
fn indexes(body: RawDoc<'_>) -> Result<RawDoc<'_>> {
    let list = match body.get("indexes") {
        None => bail!(Code::BAD_VALUE, "required field indexes missing"),
        Some(Value::Array(list)) => list,
        Some(_) => bail!(Code::BAD_VALUE, "required field indexes must be an array"),
    };
    if list.is_empty() {
        bail!(Code::BAD_VALUE, "required field indexes must contain at least one index");
    }
    for index in list.values() {
        match index {
            Value::Document(pattern) if pattern.is_empty() => {
                bail!(Code::BAD_VALUE, "index specification cannot be empty")
            }
            Value::Document(_) | Value::String(_) => {}
            _ => bail!(Code::BAD_VALUE, "each item in indexes must be an object or string"),
        }
    }
    Ok(list)
}

/// `{planCacheListFilters: "users"}`
pub struct PlanCacheListFilters<'a> {
    collection: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for PlanCacheListFilters<'a> {
    const NAME: &'static str = "planCacheListFilters";
    const SPEC: Spec = spec("lists a collection's index filters");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        args.ignore_rest();
        Ok(PlanCacheListFilters { collection })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let found = shape::collection(op, self.collection)?;
        let view = op.engine().view()?;
        let filters = found.map_or_else(Vec::new, |found| view.plans().filters(found.uuid));
        Ok(Reply::ok().with_array("filters", |out| {
            for filter in &filters {
                out.push_raw_document(filter.as_bytes());
            }
        }))
    }
}

/// `{planCacheClearFilters: "users", query, sort, projection, collation}`
pub struct PlanCacheClearFilters<'a> {
    collection: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for PlanCacheClearFilters<'a> {
    const NAME: &'static str = "planCacheClearFilters";
    const SPEC: Spec = spec("takes index filters back: of one shape, or all of a collection");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        args.ignore_rest();
        Ok(PlanCacheClearFilters { collection })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        // Where there is no collection there are no filters, whatever else the command says.
        let Some(collection) = shape::collection(op, self.collection)? else { return Ok(Reply::ok()) };
        let view = op.engine().view()?;
        let shape = shape::named(op, op.body())?.map(|shape| shape.hash);
        view.plans().clear_filters(collection.uuid, shape);
        Ok(Reply::ok())
    }
}
