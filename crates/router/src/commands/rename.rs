//! `renameCollection`: on the primary shard of the database, within which it has to stay; by the conductor where a sharded collection is
//! concerned.

use sheaf_bson::doc;
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::audit::noted::note;
use sheaf_front::reply::Reply;

use super::conducted::{self, is_sharded};
use crate::forward;
use crate::op::Operation;

/// `{renameCollection: "garden.plants", to: "garden.herbs"}`, against `admin`.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let db_of = |name: &'a str| name.split_once('.').map_or(name, |(db, _)| db);
    let from = db_of(args.own_value().as_str().unwrap_or_default());
    let to = db_of(args.value("to").as_str().unwrap_or(from));
    let (source, new) = (args.own_value(), args.value("to"));
    let names = [source, new];
    let is_one_sharded = || -> Result<bool> {
        for name in names.iter().filter_map(|name| name.as_str()) {
            if is_sharded(op, name)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let renamed = forward::until_right(op, from, || {
        if op.blocking(is_one_sharded)? {
            let body = op.body();
            let reply = op.blocking(|| conducted::ask(op, "_configsvrRenameCollection", source, body))?;
            // The shards are asked by the conductor, which does not know for whom.
            note(op, "renameCollection", Code::OK, || doc! { "old": source, "new": new });
            return Ok(reply);
        }
        if to != from {
            // Whether both live on one shard is not told by what was believed before.
            [from, to].iter().for_each(|db| op.router.directory.forget_database(db));
        }
        let target = op.target(from, false)?;
        if to != from && op.target(to, true)?.name() != target.name() {
            bail!(
                Code::COMMAND_FAILED,
                "Source and destination collections must be on the same database, or on databases with the same primary shard"
            );
        }
        forward::to_plain(op, target)
    })?;
    let both = doc! { "_id": { "$in": [source, new] } };
    op.blocking(|| op.router.end_sampling(&both, &|| op.check_interrupt()));
    Ok(renamed)
}
