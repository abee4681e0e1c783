//! `replSetResizeOplog`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use super::membership::enabled;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetResizeOplog: 1, size: megabytes, minRetentionHours: hours}`.
pub struct ReplSetResizeOplog {
    megabytes: Option<f64>,
    min_retention_hours: Option<f64>,
}

/// The smallest log of a member, in megabytes.
const MEGABYTES_MIN: f64 = 990.0;

/// The largest: a petabyte.
const MEGABYTES_MAX: f64 = 1024.0 * 1024.0 * 1024.0;

impl<'a> Command<'a, Operation<'a>> for ReplSetResizeOplog {
    const NAME: &'static str = "replSetResizeOplog";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "changes how much log this member keeps",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetResizeOplog])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let mut bounded = |name: &'static str, least: f64, most: f64| -> Result<Option<f64>> {
            let shown = match args.value(name) {
                Value::Missing | Value::Null => return Ok(None),
                value if value.is_number() => value,
                other => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field 'replSetResizeOplog.{name}' is the wrong type '{}', expected types '[long, int, decimal, double]'",
                    other.type_name()
                ),
            };
            let number = shown.as_f64().unwrap_or(f64::NAN);
            if number < least || number.is_nan() {
                bail!(Code(51024), "BSON field '{name}' value must be >= {least}, actual value '{number}'");
            }
            if number > most {
                bail!(Code(51024), "BSON field '{name}' value must be <= {most}, actual value '{number}'");
            }
            Ok(Some(number))
        };
        let megabytes = bounded("size", MEGABYTES_MIN, MEGABYTES_MAX)?;
        let min_retention_hours = bounded("minRetentionHours", 0.0, f64::INFINITY)?;
        if megabytes.is_none() && min_retention_hours.is_none() {
            bail!(Code::INVALID_OPTIONS, "Either 'size' or 'minRetentionHours' must be specified");
        }
        Ok(ReplSetResizeOplog { megabytes, min_retention_hours })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        enabled(op)?;
        let megabytes = self.megabytes.map(|megabytes| (megabytes * f64::from(1 << 20)) as u64);
        let stop = op.interrupter();
        crate::oplog_size::change(op.node(), megabytes, self.min_retention_hours, &|| stop.check())?;
        Ok(Reply::ok())
    }
}
