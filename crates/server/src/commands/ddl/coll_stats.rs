//! `collStats`.

use std::sync::Arc;

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::stats;
use sheaf_rows::{Cx, Limits};
use sheaf_storage::Collection;

use crate::args::{Args, safe_i64};
use crate::command::*;
use crate::commands::timeseries::measured_buckets;
use crate::op::Operation;
use crate::reply::Reply;

/// How many documents of a collection belong to other shards.
fn orphans(op: &Operation<'_>, collection: &Arc<Collection>) -> Result<u64> {
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let limits = Limits { now_millis: op.now_millis(), ..Limits::default() };
    sheaf_exec::database::orphans(collection, &op.reads(op.view()?), &mut Cx::new(limits, &interrupt))
}

/// `{collStats: "users", scale: 1}`
pub struct CollStats<'a> {
    collection: &'a str,
    scale: i64,
}

/// Reads `scale`.
///
/// Errors: `TypeMismatch`, `BadValue` if it is not positive.
pub fn scale(value: Value<'_>, command: &str) -> Result<i64> {
    if value.is_nullish() {
        return Ok(1);
    }
    match safe_i64(value) {
        Some(scale) if scale >= 1 => Ok(scale),
        Some(scale) => {
            bail!(Code::BAD_VALUE, "BSON field 'scale' value must be >= 1, actual value '{scale}'")
        }
        None => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.scale' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            value.type_name()
        ),
    }
}

impl<'a> Command<'a, Operation<'a>> for CollStats<'a> {
    const NAME: &'static str = "collStats";
    const SPEC: Spec = Spec {
        aliases: &["collstats"],
        help: "figures about a collection",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::CollStats])]),
        spread: Spread::Owners,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        args.ignore(&[
            "verbose",
            "waitForLock",
            "numericOnly",
            "indexDetails",
            "queryExecStats",
            "isTimeseriesNamespace",
        ]);
        Ok(CollStats { collection, scale: scale(args.value("scale"), Self::NAME)? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        // An insert over several shards is acknowledged when it is decided.
        op.engine().wait_for_decisions();
        let catalog = op.catalog();
        let collection = catalog.collection(&namespace);
        if let Some(buckets) = collection.and_then(|shown| measured_buckets(op, &catalog, shown)) {
            op.check_behind(buckets)?;
            return Ok(Reply::ok().with("ns", &namespace).with_fields(|doc| {
                stats::write_bucket_stats(doc, buckets, &op.node().open_buckets);
                stats::write_storage_stats(doc, op.engine(), Some(buckets), 0, self.scale);
            }));
        }
        if let Some(view) = collection.filter(|collection| collection.is_view()) {
            bail!(
                Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                "Namespace {} is a view, not a collection",
                view.namespace
            );
        }
        let orphans = match collection {
            Some(collection) => orphans(op, collection)?,
            None => 0,
        };
        let collection = collection.map(|collection| &**collection);
        Ok(Reply::ok()
            .with("ns", &namespace)
            .with_fields(|doc| stats::write_storage_stats(doc, op.engine(), collection, orphans, self.scale)))
    }
}
