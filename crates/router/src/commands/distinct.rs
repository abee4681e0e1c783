//! `distinct`: what each shard has, each value once, in order.

use std::collections::HashSet;

use sheaf_bson::{MAX_DOCUMENT_SIZE, OwnedValue, Value};
use sheaf_cluster::Sharded;
use sheaf_collation::{compare_by, key_of};
use sheaf_errors::{Result, bail};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use super::find::targets;
use super::views;
use crate::addressed::{Addressed, Placed};
use crate::collation::collator_of;
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::parameters::obey_settings;
use crate::route::until_fresh;

/// `{distinct: "plants", key: "family", query: {...}}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    obey_settings(op, op.body())?;
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
                _ => over_shards(op, sharded, &to),
            }
        }
    });
    match ran {
        Err(error) => views::distinct(op, collection, error),
        ran => ran,
    }
}

fn over_shards(op: &Operation<'_>, sharded: &Sharded, to: &[Addressed]) -> Result<Reply> {
    let collator = collator_of(op.body(), Some(sharded))?;
    let answers = forward::ask_all(op, to, &Body::of(op))?;
    let mut seen = HashSet::<OwnedValue, ahash::RandomState>::default();
    let mut bytes = 0;
    let mut list = Vec::new();
    for answer in &answers {
        let values = answer.reply().get("values").and_then(|values| values.as_array());
        for element in values.into_iter().flat_map(|values| values.iter()) {
            if seen.insert(key_of(collator.as_ref(), element.value())) {
                bytes += element.data().len() + 12;
                list.push(element.value());
            }
        }
    }
    if bytes > MAX_DOCUMENT_SIZE {
        bail!(17217, "distinct too big, 16mb cap");
    }
    list.sort_by(|a, b| compare_by(collator.as_ref(), *a, *b));
    let mut reply = Reply::with_capacity(bytes + 64).with_array("values", |out| {
        for value in list {
            out.push(value);
        }
    });
    if let Some(at) = op.read_at() {
        reply.append("atClusterTime", Value::Timestamp(at));
    }
    Ok(reply)
}
