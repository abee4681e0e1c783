//! `bulkWrite`: on the shard where all of its namespaces are.

use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::forward::{self, Body};
use crate::op::Operation;
use crate::target::Target;

/// `{bulkWrite: 1, ops: [...], nsInfo: [{ns: "garden.plants"}]}`, against `admin`.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let namespaces = args.required_documents("nsInfo")?;
    let mut target: Option<Target> = None;
    for info in namespaces.iter() {
        let namespace = info.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
        let db = namespace.split_once('.').map_or(namespace, |(db, _)| db);
        sheaf_front::args::check_db_name(db)?;
        let this = op.target(db, true)?;
        if target.as_ref().is_some_and(|target| target.name() != this.name()) {
            bail!(
                Code::COMMAND_NOT_SUPPORTED,
                "This version runs a bulkWrite only where all of its databases are on one shard"
            );
        }
        target = Some(this);
    }
    // Without a namespace there is an error to be had from any of them.
    let target = match target {
        Some(target) => target,
        None => op.target(op.db(), false)?,
    };
    let answer = forward::ask(op, &target, &Body { db: op.db(), body: op.body(), without: &[] })?;
    forward::reply(op, &target, &answer)
}
