//! Time-series collections that are sharded. What is sharded, and what the directory knows, are their buckets: commands that change such a
//! collection run as commands about its buckets, with a word that its measurements are meant. Reads need none of that: the database's
//! primary shard has the view, and answers what that stands on.

use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, Element, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::args::Args;
use sheaf_front::generic::is_generic;
use sheaf_front::reply::Reply;
use sheaf_timeseries::{BUCKETS_PREFIX, split_buckets};

use super::{RunOnRouter, conducted, owners};
use crate::op::Operation;
use crate::route::other_namespace;

/// The commands that run about buckets. A `bulkWrite` names several collections, each of which it looks up itself.
const CHANGE: &[&str] = &[
    "insert",
    "update",
    "delete",
    "findAndModify",
    "bulkWrite",
    "createIndexes",
    "dropIndexes",
    "listIndexes",
    "collMod",
    "collStats",
    "validate",
    "explain",
];

/// Of those that can be explained, the ones that run about buckets.
const EXPLAINED: &[&str] = &["update", "delete", "findAndModify", "findandmodify"];

/// For so long a command begins anew whose collection turns out to be sharded, or not to be any more.
const PATIENCE: Duration = Duration::from_secs(20);

/// From one attempt to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs a command, about the buckets if it names a time-series collection whose buckets are sharded.
///
/// Errors: those of the command, and of asking the config servers.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>, run: RunOnRouter) -> Result<Reply> {
    if !CHANGE.contains(&op.command.name) {
        return run(args, op);
    }
    let began = Instant::now();
    let mut as_it_came = Some(args);
    loop {
        op.rewritten.set(about_buckets(op)?);
        let done = match as_it_came.take().filter(|_| op.rewritten.get().is_none()) {
            Some(args) => run(args, op),
            None => run(&mut args_of(op)?, op),
        };
        match done {
            Err(error) if has_turned(&error) && began.elapsed() < PATIENCE && !op.in_transaction() => {
                op.check_interrupt()?;
                op.corrected.set(true);
                op.blocking(|| std::thread::sleep(PAUSE));
            }
            done => return done,
        }
    }
}

/// Whether a command has found that buckets have become sharded, or are not any more, before it has done anything.
fn has_turned(error: &Error) -> bool {
    error.code() == Code::STALE_CONFIG
        && other_namespace(error).is_some_and(|namespace| split_buckets(&namespace).is_some())
}

/// The command about buckets, if it has to be.
fn about_buckets<'a>(op: &Operation<'a>) -> Result<Option<RawDoc<'a>>> {
    let body = op.request.body();
    let first = body.iter().next();
    let explained = match op.command.name {
        "bulkWrite" => return Ok(None),
        "explain" => match first.and_then(|first| first.value().as_doc()) {
            Some(inner) if inner.iter().next().is_some_and(|named| EXPLAINED.contains(&named.key())) => {
                Some(inner)
            }
            _ => return Ok(None),
        },
        _ => None,
    };
    let named = explained.unwrap_or(body).iter().next().and_then(|named| named.value().as_str());
    let Some(name) = named else { return Ok(None) };
    if !op.buckets_are_sharded(op.db(), name)? {
        return Ok(None);
    }
    let rewritten = match explained {
        Some(inner) => DocBuf::build(|out| {
            out.append("explain", &naming_buckets(inner, name));
            body.iter().skip(1).for_each(|field| _ = out.append_element(field));
        }),
        None => naming_buckets(body, name),
    };
    Ok(Some(RawDoc::new(op.request.arena.alloc_slice_copy(rewritten.as_bytes()))))
}

/// A command on measurements as one about their buckets.
fn naming_buckets(command: RawDoc<'_>, name: &str) -> DocBuf {
    DocBuf::build(|out| {
        for (at, field) in command.iter().enumerate() {
            match (at, field.key()) {
                (0, key) => _ = out.append(key, format!("{BUCKETS_PREFIX}{name}").as_str()),
                (_, "isTimeseriesNamespace") => {}
                _ => _ = out.append_element(field),
            }
        }
        out.append("isTimeseriesNamespace", true);
    })
}

/// `collMod`: what buckets span is changed by the conductor, as routers have to know it; the rest on each shard.
pub fn coll_mod<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let body = op.body();
    let flag = |name: &str| body.get(name).is_some_and(|flag| flag.truthy());
    let spans = body.get("timeseries").filter(|_| flag("isTimeseriesNamespace") && !flag("dryRun"));
    let (Some(spans), Some(buckets)) = (spans, args.own_value().as_str()) else {
        return owners::change(args, op);
    };
    let buckets = op.namespace(buckets);
    let asked = doc! { "collMod": buckets.as_str(), "timeseries": spans };
    let changed =
        op.blocking(|| conducted::ask(op, "_configsvrCollMod", Value::String(&buckets), asked.as_raw()))?;
    let rest = DocBuf::build(|out| {
        body.iter()
            .filter(|field| field.key() != "timeseries")
            .for_each(|field| _ = out.append_element(field));
    });
    let own = |field: &Element<'_>| !is_generic(field.key_bytes()) && field.key() != "isTimeseriesNamespace";
    if rest.as_raw().iter().filter(own).count() == 1 {
        return Ok(changed);
    }
    op.rewritten.set(Some(RawDoc::new(op.request.arena.alloc_slice_copy(rest.as_bytes()))));
    owners::change(&mut args_of(op)?, op)
}

fn args_of<'a>(op: &Operation<'a>) -> Result<Args<'a>> {
    let body = op.body();
    let own = body.iter().filter(|field| !is_generic(field.key_bytes()));
    Args::new(op.command.name, body, own.map(|field| (field, false)).collect(), op.request.sequences)
}
