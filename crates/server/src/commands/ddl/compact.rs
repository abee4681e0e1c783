//! `compact`.

use sheaf_errors::Result;
use sheaf_exec::ddl::stats;

use super::names;
use crate::args::{Args, Loose};
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{compact: "users", force: false, dryRun: false}`
pub struct Compact<'a> {
    collection: &'a str,
    dry_run: bool,
}

impl<'a> Command<'a> for Compact<'a> {
    const NAME: &'static str = "compact";
    const SPEC: Spec = Spec::plain().may_block().help("gives space of a collection back");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        args.optional::<Loose>("force")?;
        args.optional::<i64>("freeSpaceTargetMB")?;
        let dry_run = args.optional::<Loose>("dryRun")?.is_some_and(|flag| flag.0);
        Ok(Compact { collection, dry_run })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        let engine = op.engine();
        let catalog = engine.catalog();
        let collection = names::existing(&catalog, &namespace, "collection does not exist")?;
        op.metrics().namespace.replace(Some(namespace));
        let bytes = || engine.storage_bytes(collection) + stats::index_bytes(engine, collection);
        let before = bytes();
        if self.dry_run {
            // What compaction would free is known only once it has run; the excess over plain data is a bound.
            let estimate = before.saturating_sub(collection.data_bytes());
            return Ok(Reply::ok().with("estimatedBytesFreed", estimate as i64));
        }
        engine.compact(collection)?;
        Ok(Reply::ok().with("bytesFreed", before.saturating_sub(bytes()) as i64))
    }
}
