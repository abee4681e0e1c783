//! `bulkWrite`: each statement goes to the shard that has what it concerns.

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::op::Operation;
use crate::write::{self, Batch, BulkOutcome, Ran};

/// `{bulkWrite: 1, ops: [...], nsInfo: [{ns: "garden.plants"}]}`, against `admin`.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let mut batch = Batch::parse_bulk(args)?;
    batch.add_ids(&op.request.arena);
    let outcome = match write::run::<BulkOutcome>(op, &batch, true)? {
        Ran::Answered(reply) => return Ok(reply),
        Ran::Put(outcome) => outcome,
    };
    let errors_only = op.body().get("errorsOnly").is_some_and(|flag| flag.truthy());
    let mut reply = Reply::ok();
    outcome.write(&mut reply, errors_only)?;
    if let Some(transaction) = &*op.transaction.borrow() {
        transaction.append_token(&mut reply);
    }
    Ok(reply)
}
