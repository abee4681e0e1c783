//! `compact`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use super::names;
use crate::args::{Args, Loose};
use crate::auto_compact::{LEAST_BYTES, excess_bytes, stored_bytes};
use crate::command::*;
use crate::commands::timeseries::buckets_of;
use crate::op::Operation;
use crate::reply::Reply;

/// `{compact: "users", force: false, dryRun: false}`
pub struct Compact<'a> {
    collection: &'a str,
    dry_run: bool,
    /// Less than this is not worth the work.
    target_bytes: i64,
    /// Whether the client says how much is worth it.
    given: bool,
}

impl<'a> Command<'a, Operation<'a>> for Compact<'a> {
    const NAME: &'static str = "compact";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "gives space of a collection back",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::Compact])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        // A standalone's writes go on while it compacts, so that nothing has to be forced.
        args.optional::<Loose>("force")?;
        let target = args.optional::<i64>("freeSpaceTargetMB")?;
        if let Some(target) = target.filter(|target| *target < 1) {
            bail!(
                Code::BAD_VALUE,
                "BSON field 'freeSpaceTargetMB' value must be >= 1, actual value '{target}'"
            );
        }
        let dry_run = args.optional::<Loose>("dryRun")?.is_some_and(|flag| flag.0);
        Ok(Compact {
            collection,
            dry_run,
            target_bytes: target.unwrap_or(0).min(1 << 40) << 20,
            given: target.is_some(),
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        let engine = op.engine();
        let catalog = engine.catalog();
        let buckets = catalog.collection(&namespace).and_then(|shown| buckets_of(&catalog, shown));
        let collection = match buckets {
            Some(buckets) => buckets,
            None => names::existing(&catalog, &namespace, "collection does not exist")?,
        };
        op.metrics().namespace.replace(Some(namespace));
        let before = stored_bytes(engine, collection);
        let estimate = excess_bytes(engine, collection);
        if self.dry_run {
            return Ok(Reply::ok().with("estimatedBytesFreed", small(estimate)));
        }
        // Files this small are left as they are.
        let too_small = before <= LEAST_BYTES as u64;
        if too_small || (self.given && estimate < self.target_bytes) {
            return Ok(Reply::ok().with("bytesFreed", 0));
        }
        engine.compact(collection)?;
        Ok(Reply::ok()
            .with("bytesFreed", small(before.saturating_sub(stored_bytes(engine, collection)) as i64)))
    }
}

/// A count of bytes is an int32 as long as it fits.
fn small(bytes: i64) -> Value<'static> {
    i32::try_from(bytes).map_or(Value::Int64(bytes), Value::Int32)
}
