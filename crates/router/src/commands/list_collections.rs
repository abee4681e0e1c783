//! `listCollections`: on the primary shard of the database. What the user may touch this router knows; the shard does not ask.

use sheaf_auth::Target as Touched;
use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::addressed::{Addressed, ShardVersion};
use crate::forward::{self, Body, until_right};
use crate::op::Operation;
use crate::target::Target;

/// `{listCollections: 1, nameOnly: true, authorizedCollections: true}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let own_only = op.body().get("authorizedCollections").is_some_and(|only| only.truthy());
    if !own_only || op.rights.are_everything() {
        return forward::to_database(op, false);
    }
    // All at once: a cursor on the shard would go on with what is not to be seen.
    let body = DocBuf::build(|out| {
        for field in op.body().iter().filter(|field| field.key() != "cursor") {
            out.append_element(field);
        }
        out.append("cursor", doc! { "batchSize": i32::MAX }.as_raw());
    });
    until_right(op, op.db(), || {
        let target = op.target(op.db(), false)?;
        let version = matches!(target, Target::Shard(_)).then_some(ShardVersion::Plain);
        let answer =
            forward::ask(op, &Addressed { target, version }, &Body { db: op.db(), body: body.as_raw() })?;
        let Some(cursor) = answer.reply().get("cursor").and_then(|cursor| cursor.as_doc()) else {
            bail!(Code::INTERNAL_ERROR, "a shard answers listCollections without a cursor");
        };
        if cursor.get("id").and_then(|id| id.as_exact_i64()) != Some(0) {
            bail!(Code::BSON_OBJECT_TOO_LARGE, "the names of the collections are too long for one reply");
        }
        let listed = cursor.get("firstBatch").and_then(|batch| batch.as_array());
        let entries = listed.into_iter().flat_map(|list| list.values()).filter_map(|entry| entry.as_doc());
        let own = entries.filter(|entry| {
            let name = entry.get("name").and_then(|name| name.as_str());
            name.is_some_and(|name| op.rights.may_anything(Touched::Collection(op.db(), name)))
        });
        Ok(Reply::ok().with_document("cursor", |out| {
            out.append("id", 0i64).append("ns", cursor.get_or_missing("ns"));
            let mut batch = out.array("firstBatch");
            own.for_each(|entry| {
                batch.push_raw_document(entry.as_bytes());
            });
        }))
    })
}
