//! Who leads: `replSetStepDown`, `replSetStepUp`, `replSetAbortPrimaryCatchUp`.

use std::time::{Duration, Instant};

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use super::replica;
use crate::args::{Args, Loose};
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{replSetStepDown: seconds, secondaryCatchUpPeriodSecs: n, force: false}`.
pub struct ReplSetStepDown {
    period_secs: i64,
    catch_up_secs: i64,
    force: bool,
}

/// How long a member that has stepped down stands back, if nobody says.
const STEP_DOWN_SECS: i64 = 60;

/// How long secondaries may catch up, if nobody says and it is not forced.
const CATCH_UP_SECS: i64 = 10;

impl<'a> Command<'a> for ReplSetStepDown {
    const NAME: &'static str = "replSetStepDown";
    const SPEC: Spec = Spec::plain().admin_only().may_block().help("makes another member primary");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let period_secs = match whole(args.own_value()) {
            0 => STEP_DOWN_SECS,
            secs if secs < 0 => bail!(Code::BAD_VALUE, "stepdown period must be a positive integer"),
            secs => secs,
        };
        let force = args.value("force").truthy();
        let catch_up_secs = match args.value("secondaryCatchUpPeriodSecs") {
            Value::Missing if force => 0,
            Value::Missing => CATCH_UP_SECS,
            number if number.is_number() => whole(number),
            other => bail!(
                Code::TYPE_MISMATCH,
                "Expected field \"secondaryCatchUpPeriodSecs\" to have numeric type, but found {}",
                other.type_name()
            ),
        };
        if catch_up_secs < 0 {
            bail!(Code::BAD_VALUE, "secondaryCatchUpPeriodSecs period must be a positive or absent");
        }
        if period_secs < catch_up_secs {
            bail!(Code::BAD_VALUE, "stepdown period must be longer than secondaryCatchUpPeriodSecs");
        }
        args.ignore_rest();
        Ok(ReplSetStepDown { period_secs, catch_up_secs, force })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let text = "Attempting to step down in response to replSetStepDown command";
        crate::log::info("COMMAND", 21579, &op.client().context(), text, None);
        replica.step_down(millis(self.catch_up_secs), millis(self.period_secs), self.force)?;
        Ok(Reply::ok())
    }
}

fn whole(value: Value<'_>) -> i64 {
    value.as_f64().map_or(0, |number| number as i64)
}

fn millis(secs: i64) -> u64 {
    (secs.max(0) as u64).saturating_mul(1000)
}

/// `{replSetStepUp: 1, skipDryRun: false}`.
pub struct ReplSetStepUp;

impl<'a> Command<'a> for ReplSetStepUp {
    const NAME: &'static str = "replSetStepUp";
    const SPEC: Spec = Spec::plain().admin_only().may_block().help("makes this member primary");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.optional::<Loose>("skipDryRun")?;
        args.ignore_rest();
        Ok(ReplSetStepUp)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let patience = replica.with(|core| {
            let config = core.config().map(|config| config.settings.election_timeout_millis);
            core.step_up().map(|()| config.unwrap_or(10_000))
        })?;
        let over = Instant::now() + Duration::from_millis(patience.max(0) as u64);
        while !replica.is_writable() {
            op.check_interrupt()?;
            if Instant::now() >= over {
                bail!(Code::COMMAND_FAILED, "Election failed.");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Reply::ok())
    }
}

/// `{replSetAbortPrimaryCatchUp: 1}`: whoever is elected has all that a majority has, so there is nothing to catch up.
pub struct ReplSetAbortPrimaryCatchUp;

impl<'a> Command<'a> for ReplSetAbortPrimaryCatchUp {
    const NAME: &'static str = "replSetAbortPrimaryCatchUp";
    const SPEC: Spec = Spec::plain().admin_only().help("ends a new primary's catching up");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ReplSetAbortPrimaryCatchUp)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        replica(op)?;
        bail!(Code::ILLEGAL_OPERATION, "The node is not in catch-up mode.")
    }
}
