//! Who leads: `replSetStepDown`, `replSetStepUp`, `replSetAbortPrimaryCatchUp`.

use std::time::{Duration, Instant};

use sheaf_bson::Value;
use sheaf_errors::{Code, Error, Result, bail};

use super::membership::replica;
use crate::args::{Args, Loose};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetStepDown: seconds, secondaryCatchUpPeriodSecs: n, force: false}`.
pub struct ReplSetStepDown<'a> {
    period: Value<'a>,
    catch_up: Value<'a>,
    force: bool,
}

/// How long a member that has stepped down stands back, if nobody says.
const STEP_DOWN_SECS: i64 = 60;

/// How long secondaries may catch up, if nobody says and it is not forced.
const CATCH_UP_SECS: i64 = 10;

impl<'a> Command<'a, Operation<'a>> for ReplSetStepDown<'a> {
    const NAME: &'static str = "replSetStepDown";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "makes another member primary",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetStateChange])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let step_down = ReplSetStepDown {
            period: args.own_value(),
            catch_up: args.value("secondaryCatchUpPeriodSecs"),
            force: args.value("force").truthy(),
        };
        args.ignore_rest();
        Ok(step_down)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let (period_secs, catch_up_secs) = self.times()?;
        let text = "Attempting to step down in response to replSetStepDown command";
        crate::log::info("COMMAND", crate::log::ids::STEPPING_DOWN, &op.client().context(), text, None);
        let stepped_down = replica.step_down(millis(catch_up_secs), millis(period_secs), self.force);
        stepped_down.map_err(|error| dated(error, op.now_millis()))?;
        Ok(Reply::ok())
    }
}

impl ReplSetStepDown<'_> {
    /// For how many seconds this member stands back, and for how many the others may catch up.
    fn times(&self) -> Result<(i64, i64)> {
        let period_secs = match whole(self.period) {
            0 => STEP_DOWN_SECS,
            secs if secs < 0 => bail!(Code::BAD_VALUE, "stepdown period must be a positive integer"),
            secs => secs,
        };
        let catch_up_secs = match self.catch_up {
            Value::Missing if self.force => 0,
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
        Ok((period_secs, catch_up_secs))
    }
}

/// mongod says until when nobody had caught up.
fn dated(error: Error, now_millis: i64) -> Error {
    if error.code() != Code::EXCEEDED_TIME_LIMIT {
        return error;
    }
    let date = crate::log::date::iso_date(now_millis);
    let text = error.message().replace("the end of the catch up period", &date);
    Error::new(error.code(), text)
}

fn whole(value: Value<'_>) -> i64 {
    value.as_f64().map_or(0, |number| number as i64)
}

fn millis(secs: i64) -> u64 {
    (secs.max(0) as u64).saturating_mul(1000)
}

/// `{replSetStepUp: 1, skipDryRun: false}`.
pub struct ReplSetStepUp;

impl<'a> Command<'a, Operation<'a>> for ReplSetStepUp {
    const NAME: &'static str = "replSetStepUp";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "makes this member primary",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetStateChange])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.optional::<Loose>("skipDryRun")?;
        args.ignore_rest();
        Ok(ReplSetStepUp)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
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

impl<'a> Command<'a, Operation<'a>> for ReplSetAbortPrimaryCatchUp {
    const NAME: &'static str = "replSetAbortPrimaryCatchUp";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "ends a new primary's catching up",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetStateChange])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ReplSetAbortPrimaryCatchUp)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        replica(op)?;
        bail!(Code::ILLEGAL_OPERATION, "The node is not in catch-up mode.")
    }
}
