//! `refreshSessions`, `endSessions` and `killSessions` with its kin: a router keeps little of a session; the shards keep the rest.

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::forward;
use crate::op::Operation;

/// `{endSessions: [...]}` and the like: all shards are told.
pub fn end<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    forward::to_all_shards(op).map(|_| Reply::ok())
}
