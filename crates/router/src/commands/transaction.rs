//! `commitTransaction` and `abortTransaction`.

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::op::Operation;
use crate::transaction;

/// `{commitTransaction: 1, recoveryToken: {...}}`.
pub fn commit<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    transaction::commit(op)
}

/// `{abortTransaction: 1}`.
pub fn abort<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    transaction::abort(op)
}
