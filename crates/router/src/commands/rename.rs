//! `renameCollection`: on the primary shard of the database, within which it has to stay.

use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::forward::{self, Body};
use crate::op::Operation;

/// `{renameCollection: "garden.plants", to: "garden.herbs"}`, against `admin`.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let db_of = |name: &'a str| name.split_once('.').map_or(name, |(db, _)| db);
    let from = db_of(args.own_value().as_str().unwrap_or_default());
    let to = db_of(args.value("to").as_str().unwrap_or(from));
    let target = op.target(from, false)?;
    if to != from && op.target(to, true)?.name() != target.name() {
        bail!(
            Code::COMMAND_FAILED,
            "Source and destination collections must be on the same database, or on databases with the same primary shard"
        );
    }
    let answer = forward::ask(op, &target, &Body { db: op.db(), body: op.body(), without: &[] })?;
    forward::reply(op, &target, &answer)
}
