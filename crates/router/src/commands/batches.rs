//! `insert`, `update` and `delete`.

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::op::Operation;
use crate::write::{self, Batch, Kind, Outcome, Ran};

/// `{insert: "plants", documents: [...], ordered: true}`: each document goes to the shard that owns its key.
pub fn insert<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let mut batch = Batch::parse(args, op, Kind::Inserts)?;
    batch.add_ids(&op.request.arena);
    run(op, &batch)
}

/// `{update: "plants", updates: [{q, u, multi, upsert}], ordered: true}`.
pub fn update<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let mut batch = Batch::parse(args, op, Kind::Updates)?;
    batch.add_sample_ids(op);
    run(op, &batch)
}

/// `{delete: "plants", deletes: [{q, limit}], ordered: true}`.
pub fn delete<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    run(op, &Batch::parse(args, op, Kind::Deletes)?)
}

fn run(op: &Operation<'_>, batch: &Batch<'_>) -> Result<Reply> {
    match write::run::<Outcome>(op, batch, batch.kind != Kind::Deletes)? {
        Ran::Answered(reply) => Ok(reply),
        Ran::Put(outcome) => {
            let mut reply = Reply::ok();
            outcome.write(&mut reply, batch.kind == Kind::Updates, op.part);
            if let Some(transaction) = &*op.transaction.borrow() {
                transaction.append_token(&mut reply);
            }
            Ok(reply)
        }
    }
}
