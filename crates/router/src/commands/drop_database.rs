//! `dropDatabase`: the conductor drops its sharded collections, the database on all shards, and its place in the directory.

use sheaf_bson::{Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::audit::noted::note;
use sheaf_front::reply::Reply;

use super::conducted;
use crate::op::Operation;

/// `{dropDatabase: 1}`.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    if args.own_value().as_exact_i64() != Some(1) {
        bail!(5255100, "Have to pass 1 as 'dropDatabase' parameter");
    }
    let body = op.body();
    let reply = op.blocking(|| conducted::ask(op, "_configsvrDropDatabase", Value::String(op.db()), body))?;
    // The shards are asked by the conductor, which does not know for whom.
    note(op, "dropDatabase", Code::OK, || doc! { "ns": op.db() });
    op.router.directory.forget_database(op.db());
    let of_database = doc! { "_id": { "$gte": &format!("{}.", op.db()), "$lt": &format!("{}/", op.db()) } };
    op.blocking(|| op.router.end_sampling(&of_database, &|| op.check_interrupt()));
    Ok(reply)
}
