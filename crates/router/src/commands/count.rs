//! `count`: what each shard has of it, together.

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use super::find::{number, targets};
use super::views;
use crate::addressed::{Addressed, Placed};
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::route::until_fresh;

/// `{count: "plants", query: {...}, skip: 5, limit: 10}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let named = op.body().iter().next().and_then(|first| first.value().as_str());
    let Some(collection) = named.filter(|name| !name.is_empty()) else {
        return forward::to_database(op, false);
    };
    let ran = until_fresh(op, op.db(), collection, false, |placed| match placed {
        Placed::Whole(to) => forward::to_one(op, to),
        Placed::Spread(sharded) => {
            let to = targets(op, sharded, "query")?;
            match &to[..] {
                [only] => forward::to_one(op, only),
                _ => over_shards(op, &to),
            }
        }
    });
    match ran {
        Err(error) => views::count(op, collection, error),
        ran => ran,
    }
}

fn over_shards(op: &Operation<'_>, to: &[Addressed]) -> Result<Reply> {
    let args = &mut Args::of_document("count", op.body())?;
    // A negative limit is as good as a positive one.
    let limit = args.optional::<i64>("limit")?.map_or(0, i64::unsigned_abs);
    let skip = number(args, "skip")?;
    let body = DocBuf::build(|out| {
        let is_ours = |name: &str| matches!(name, "skip" | "limit");
        for field in op.body().iter().filter(|field| !is_ours(field.key())) {
            out.append_element(field);
        }
        let wanted = limit.checked_add(skip).and_then(|wanted| i64::try_from(wanted).ok());
        if let Some(wanted) = wanted.filter(|_| limit > 0) {
            out.append("limit", wanted);
        }
    });
    let answers = forward::ask_all(op, to, &Body { db: op.db(), body: body.as_raw() })?;
    let counted = answers.iter().map(|answer| answer.reply().get("n").and_then(|n| n.as_exact_i64()));
    let all: u64 = counted.map(|n| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)).sum();
    let left = all.saturating_sub(skip);
    let n = if limit > 0 { left.min(limit) } else { left };
    Ok(match i32::try_from(n) {
        Ok(n) => Reply::ok().with("n", n),
        Err(_) => Reply::ok().with("n", n as i64),
    })
}
