//! `bulkWrite`: each statement goes to the shard that has what it concerns.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_front::args::{Args, NonNegative};
use sheaf_front::reply::Reply;

use crate::op::Operation;
use crate::write::{self, Batch, BulkOutcome, Ran};

/// `{bulkWrite: 1, ops: [...], nsInfo: [{ns: "garden.plants"}]}`, against `admin`.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let mut size = None;
    if let Some(cursor) = args.optional::<RawDoc<'a>>("cursor")? {
        let mut options = Args::of_part("bulkWrite.cursor", cursor)?;
        size = options.optional::<NonNegative>("batchSize")?.map(|size| size.0 as usize);
        options.finish()?;
    }
    let mut batch = Batch::parse_bulk(args, op)?;
    batch.add_ids(&op.request.arena);
    batch.add_sample_ids(op);
    let outcome = match write::run::<BulkOutcome>(op, &batch, true)? {
        Ran::Answered(reply) => return Ok(reply),
        Ran::Put(outcome) => outcome,
    };
    let errors_only = op.body().get("errorsOnly").is_some_and(|flag| flag.truthy());
    outcome.reply(op, errors_only, size)
}
