//! `dropDatabase`: on its primary shard, then in the directory.

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::forward::{self, Body};
use crate::op::Operation;
use crate::target::Target;

/// `{dropDatabase: 1}`.
pub fn run<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let go_on = || op.check_interrupt();
    let target = op.target(op.db(), false)?;
    let answer = forward::ask(op, &target, &Body { db: op.db(), body: op.body(), without: &[] })?;
    if matches!(target, Target::Shard(_)) {
        op.blocking(|| op.router.directory.remove_database(op.db(), &go_on))?;
    }
    forward::reply(op, &target, &answer)
}
