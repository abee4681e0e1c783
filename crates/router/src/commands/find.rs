//! `find`: on the shards that can have what it looks for. Where these are several, their documents are merged here by the sort; `skip` is
//! done here, and each shard gives no more than the limit wants of all of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_cluster::Sharded;
use sheaf_errors::{Code, Error, Result};
use sheaf_expr::ParseCx;
use sheaf_front::args::{Args, Flag, NonNegative};
use sheaf_front::reply::Reply;
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::sort::{FindSort, SortOn, SortPattern};
use sheaf_rows::{BoxOperator, Limit, Limits, Skip};

use super::views;
use crate::addressed::{Addressed, Placed};
use crate::collation::collator_of;
use crate::cursor::Merged;
use crate::forward::{self, Body};
use crate::gather::{Gather, Order};
use crate::merged::{First, first_batch, link, open};
use crate::op::Operation;
use crate::parameters::obey_settings;
use crate::partial::{self, allows_partial, open_reachable};
use crate::route::until_fresh;
use crate::targeting;

/// The field in which shards tell the sort key of a document whose projection may leave out what it is made of. A client can hardly mean it.
const SORT_KEY: &str = "\u{1}sortKey";

/// `{find: "plants", filter: {...}, ...}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    obey_settings(op, op.body())?;
    let named = op.body().iter().next().and_then(|first| first.value().as_str());
    let Some(collection) = named.filter(|name| !name.is_empty()) else {
        return forward::to_database(op, false);
    };
    let ran = until_fresh(op, op.db(), collection, false, |placed| match placed {
        Placed::Whole(to) if allows_partial(op, op.body()) => {
            partial::to_one(op, to, &op.namespace(collection))
        }
        Placed::Whole(to) => forward::to_one(op, to),
        Placed::Spread(sharded) => {
            let to = targets(op, sharded, "filter")?;
            match &to[..] {
                [only] if !allows_partial(op, op.body()) => forward::to_one(op, only),
                _ => over_shards(op, sharded, &to),
            }
        }
    });
    match ran {
        Err(error) => views::find(op, collection, error),
        ran => ran,
    }
}

/// The shards that can have documents which match this field of the request.
///
/// Errors: `ShardNotFound`; `StaleChunkHistory`; those of asking the config servers.
pub fn targets(op: &Operation<'_>, sharded: &Sharded, filter: &str) -> Result<Vec<Addressed>> {
    let document = |name: &str| op.body().get(name).and_then(|value| value.as_doc());
    let filter = document(filter).unwrap_or(RawDoc::EMPTY);
    owners_of(op, sharded, filter, document("collation"))
}

/// The shards that can have documents which match a filter.
///
/// Errors: `ShardNotFound`; `StaleChunkHistory`; those of asking the config servers.
pub fn owners_of(
    op: &Operation<'_>,
    sharded: &Sharded,
    filter: RawDoc<'_>,
    collation: Option<RawDoc<'_>>,
) -> Result<Vec<Addressed>> {
    let ranges = targeting::ranges_for_filter(sharded, filter, collation);
    op.readers_of(sharded, &ranges)
}

/// A number of documents in the request, read as a shard reads it; 0 if there is none.
///
/// Errors: `TypeMismatch`, 51024.
pub fn number(args: &mut Args<'_>, name: &str) -> Result<u64> {
    Ok(args.optional::<NonNegative>(name)?.map_or(0, |number| number.0 as u64))
}

/// What of the request is done here.
struct Find {
    skip: u64,
    limit: u64,
    batch_size: Option<usize>,
    sort: Option<Arc<SortPattern>>,
    /// Documents come in the order of their distances.
    near: bool,
    single_batch: bool,
    tailable: bool,
    return_key: bool,
    no_timeout: bool,
    /// Whether shards that cannot be reached may be left out.
    partial: bool,
}

impl Find {
    fn parse(op: &Operation<'_>, sharded: &Sharded) -> Result<Find> {
        let args = &mut Args::of_document("find", op.body())?;
        let skip = number(args, "skip")?;
        let limit = number(args, "limit")?;
        let batch_size = args.optional::<NonNegative>("batchSize")?.map(|size| size.0 as usize);
        let sort = match args.optional::<RawDoc<'_>>("sort")?.map(FindSort::parse).transpose()? {
            Some(FindSort::Pattern(pattern)) => {
                let collator = collator_of(op.body(), Some(sharded))?;
                Some(Arc::new(pattern.with_collator(collator.as_ref())))
            }
            Some(FindSort::None | FindSort::Natural(_)) | None => None,
        };
        let mut flag =
            |name: &str| -> Result<bool> { Ok(args.optional::<Flag>(name)?.is_some_and(|flag| flag.0)) };
        Ok(Find {
            skip,
            limit,
            batch_size,
            near: sort.is_none() && is_near(op)?,
            sort,
            single_batch: flag("singleBatch")?,
            tailable: flag("tailable")?,
            return_key: flag("returnKey")?,
            no_timeout: flag("noCursorTimeout")?,
            partial: flag("allowPartialResults")? && !op.in_transaction(),
        })
    }

    /// How many documents leave here; `None`: as many as there are.
    fn wanted(&self) -> Option<u64> {
        let limit = Some(self.limit).filter(|limit| *limit > 0);
        let batch = self.batch_size.filter(|_| self.single_batch).map(|size| size as u64);
        match (limit, batch) {
            (Some(limit), Some(batch)) => Some(limit.min(batch)),
            (limit, batch) => limit.or(batch),
        }
    }

    /// How the rows of shards are merged, and the projection that they get for it.
    fn order(&self, projection: Option<RawDoc<'_>>) -> Result<(Order, Option<DocBuf>)> {
        if self.near {
            let distance = Arc::new(SortPattern::parse(doc! { "distance": 1 }.as_raw())?);
            return Ok((Order::ByLast(distance), Some(with_sort_key(projection.unwrap_or(RawDoc::EMPTY)))));
        }
        let Some(sort) = self.sort.clone() else { return Ok((Order::None, None)) };
        let Some(projection) = projection.filter(|projection| !projection.is_empty()) else {
            return Ok((Order::By(sort), None));
        };
        if keeps(projection, &sort) {
            return Ok((Order::By(sort), None));
        }
        Ok((Order::ByLast(sort), Some(with_sort_key(projection))))
    }

    /// The request for each shard.
    fn for_shards(&self, op: &Operation<'_>, projection: Option<&DocBuf>) -> DocBuf {
        let wanted = self.wanted().and_then(|wanted| wanted.checked_add(self.skip));
        let wanted = wanted.and_then(|wanted| i64::try_from(wanted).ok()).filter(|wanted| *wanted > 0);
        let is_ours = |name: &str| match name {
            "skip" | "limit" | "singleBatch" => true,
            "projection" => projection.is_some(),
            _ => false,
        };
        DocBuf::build(|out| {
            for field in op.body().iter().filter(|field| !is_ours(field.key())) {
                out.append_element(field);
            }
            if let Some(wanted) = wanted {
                out.append("limit", wanted);
            }
            if let Some(projection) = projection {
                out.append("projection", projection.as_raw());
            }
        })
    }
}

/// The projection of shards, which has the sort key last.
fn with_sort_key(projection: RawDoc<'_>) -> DocBuf {
    DocBuf::from(projection).with(SORT_KEY, doc! { "$meta": "sortKey" }.as_raw())
}

/// Whether the filter asks for the order of distances, which stands in for a sort.
fn is_near(op: &Operation<'_>) -> Result<bool> {
    let Some(filter) = op.body().get("filter").and_then(|filter| filter.as_doc()) else { return Ok(false) };
    // What cannot be read the shards refuse.
    Ok(Matcher::parse(filter, &mut ParseCx::new()).is_ok_and(|matcher| matcher.root().near().is_some()))
}

/// Whether documents have what they are sorted by when they come out of this projection.
fn keeps(projection: RawDoc<'_>, sort: &SortPattern) -> bool {
    let parsed = Projection::parse(projection, Mode::Find, &mut ParseCx::new());
    let Some(paths) = parsed.ok().and_then(|parsed| parsed.included_paths()) else { return false };
    sort.parts().iter().all(|part| match &part.on {
        SortOn::Path(path) => paths.iter().any(|kept| kept == path.dotted()),
        SortOn::Meta(_) => false,
    })
}

fn over_shards(op: &Operation<'_>, sharded: &Sharded, to: &[Addressed]) -> Result<Reply> {
    let find = Find::parse(op, sharded)?;
    if find.tailable {
        // No sharded collection is capped: that is what any of them says.
        return forward::to_one(op, &to[0]);
    }
    if find.return_key && find.sort.is_some() {
        let text = "This version does not sort what returnKey gives over several shards";
        return Err(Error::new(Code::COMMAND_NOT_SUPPORTED, text));
    }
    let projection = op.body().get("projection").and_then(|projection| projection.as_doc());
    let (order, projection) = find.order(projection)?;
    let body = find.for_shards(op, projection.as_ref());
    op.metrics().namespace.replace(Some(sharded.ns.to_string()));
    let body = Body { db: op.db(), body: body.as_raw() };
    let (remotes, left_out) = match find.partial {
        true => {
            let (remotes, partial) = open_reachable(op, to, &body)?;
            (remotes, Some(Arc::new(AtomicBool::new(partial))))
        }
        false => (open(op, to, &body)?, None),
    };
    let link = link(op);
    let gather = Gather::new(link.clone(), remotes, order);
    let mut run: BoxOperator = match &left_out {
        Some(left_out) => Box::new(gather.leaving_out(left_out.clone())),
        None => Box::new(gather),
    };
    if find.skip > 0 {
        run = Box::new(Skip::new(run, find.skip));
    }
    if let Some(wanted) = find.wanted() {
        run = Box::new(Limit::new(run, wanted));
    }
    let limits = Limits { now_millis: op.now_millis(), ..Limits::default() };
    let first = First { size: find.batch_size, single: find.single_batch, no_timeout: find.no_timeout };
    let merged = Merged::new(run, link, limits);
    let merged = match left_out {
        Some(left_out) => merged.that_may_be_partial(left_out),
        None => merged,
    };
    first_batch(op, &sharded.ns, merged, first)
}
