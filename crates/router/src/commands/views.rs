//! Views on sharded collections. A shard that is asked for one answers what the view is; then the router runs the view's pipeline, and what
//! was asked of it, on the collection below.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Error, Result};
use sheaf_front::args::{Args, Flag, NonNegative};
use sheaf_front::reply::Reply;

use super::aggregate::run_here;
use super::find::number;
use crate::merged::First;
use crate::op::Operation;
use crate::view::{View, command, view_named};

/// Runs a find that was refused with this error because it is on a view.
///
/// Errors: this one, if it is another.
pub fn find(op: &Operation<'_>, name: &str, error: Error) -> Result<Reply> {
    let view = view_named(op, name, error)?;
    let args = &mut Args::of_document("find", op.body())?;
    let mut stages = Vec::new();
    for (field, stage) in [("filter", "$match"), ("sort", "$sort")] {
        if let Some(document) = args.optional::<RawDoc<'_>>(field)?.filter(|document| !document.is_empty()) {
            stages.push(DocBuf::new().with(stage, document));
        }
    }
    for (field, stage) in [("skip", "$skip"), ("limit", "$limit")] {
        let number = number(args, field)?;
        if number > 0 {
            stages.push(DocBuf::new().with(stage, number as i64));
        }
    }
    if let Some(projection) = args.optional::<RawDoc<'_>>("projection")?.filter(|given| !given.is_empty()) {
        stages.push(DocBuf::new().with("$project", projection));
    }
    let flag = |args: &mut Args<'_>, name: &str| -> Result<bool> {
        Ok(args.optional::<Flag>(name)?.is_some_and(|flag| flag.0))
    };
    let first = First {
        size: args.optional::<NonNegative>("batchSize")?.map(|size| size.0 as usize),
        single: flag(args, "singleBatch")?,
        no_timeout: flag(args, "noCursorTimeout")?,
    };
    run_here(op, command(op, &view, &stages).as_raw(), &view.namespace, first)
}

/// Counts what was refused with this error because it is on a view.
///
/// Errors: this one, if it is another.
pub fn count(op: &Operation<'_>, name: &str, error: Error) -> Result<Reply> {
    let view = view_named(op, name, error)?;
    let args = &mut Args::of_document("count", op.body())?;
    let query = args.optional::<RawDoc<'_>>("query")?.unwrap_or(RawDoc::EMPTY);
    let mut stages = vec![doc! { "$match": query }];
    let skip = number(args, "skip")?;
    if skip > 0 {
        stages.push(doc! { "$skip": skip as i64 });
    }
    if let Some(limit) = args.optional::<i64>("limit")? {
        stages.push(doc! { "$limit": limit.unsigned_abs() as i64 });
    }
    stages.push(doc! { "$count": "n" });
    let counted = only(op, &view, &stages)?;
    let n = counted.as_ref().and_then(|counted| counted.as_raw().get("n")?.as_exact_i64()).unwrap_or(0);
    Ok(match i32::try_from(n) {
        Ok(n) => Reply::ok().with("n", n),
        Err(_) => Reply::ok().with("n", n),
    })
}

/// Gives the distinct values that were refused with this error because they are a view's.
///
/// Errors: this one, if it is another.
pub fn distinct(op: &Operation<'_>, name: &str, error: Error) -> Result<Reply> {
    let view = view_named(op, name, error)?;
    let args = &mut Args::of_document("distinct", op.body())?;
    let key: &str = args.required("key")?;
    let query = args.optional::<RawDoc<'_>>("query")?.unwrap_or(RawDoc::EMPTY);
    let mut stages = vec![doc! { "$match": query }];
    let ends = key.match_indices('.').map(|(at, _)| at).chain([key.len()]);
    for end in ends {
        let path = format!("${}", &key[..end]);
        stages.push(doc! { "$unwind": { "path": path.as_str(), "preserveNullAndEmptyArrays": true } });
    }
    stages.push(
        DocBuf::new().with("$match", DocBuf::new().with(key, doc! { "$exists": true }.as_raw()).as_raw()),
    );
    let path = format!("${key}");
    stages.push(doc! { "$group": { "_id": Value::Null, "values": { "$addToSet": path.as_str() } } });
    let found = only(op, &view, &stages)?;
    let values = found.as_ref().and_then(|found| found.as_raw().get("values")?.as_array());
    Ok(Reply::ok().with_array("values", |out| {
        values.into_iter().flat_map(|values| values.values()).for_each(|value| _ = out.push(value));
    }))
}

/// The one document that these stages give.
fn only(op: &Operation<'_>, view: &View, stages: &[DocBuf]) -> Result<Option<DocBuf>> {
    let first = First { single: true, ..First::default() };
    let reply = run_here(op, command(op, view, stages).as_raw(), &view.namespace, first)?;
    let body = DocBuf::build(|out| {
        for element in sheaf_bson::Iter::over(reply.elements()) {
            out.append_element(element);
        }
    });
    Ok(sheaf_cluster::first_batch(body.as_raw()).into_iter().next())
}
