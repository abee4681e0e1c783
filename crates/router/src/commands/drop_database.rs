//! `dropDatabase`: on its primary shard, then in the directory, then on the shard once more: what was on its way there meanwhile would
//! lie there unseen, and be seen again if the database came back. Wherever this ends before that, nothing of it does harm.

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
    let body = Body { db: op.db(), body: op.body(), without: &[] };
    let answer = forward::ask(op, &target, &body)?;
    if matches!(target, Target::Shard(_)) {
        op.blocking(|| op.router.directory.remove_database(op.db(), &go_on))?;
        forward::ask(op, &target, &body)?;
    }
    forward::reply(op, &target, &answer)
}
