//! `holdSnapshots`: transactions of a router that take long will read here as of their times.

use std::time::Duration;

use sheaf_bson::{Timestamp, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::read;
use crate::reply::Reply;

/// How long a state is held for; a router says every second which ones it still needs.
const HELD: Duration = Duration::from_secs(3);

/// `{holdSnapshots: 1, times: [...]}`.
pub struct HoldSnapshots {
    times: Vec<Timestamp>,
}

impl<'a> Command<'a, Operation<'a>> for HoldSnapshots {
    const NAME: &'static str = "holdSnapshots";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "keeps the states at these times for some seconds",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: INTERNAL,
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        let Some(times) = args.body().get("times").and_then(|times| times.as_array()) else {
            bail!(Code::FAILED_TO_PARSE, "holdSnapshots names its times");
        };
        let times = times.values().filter_map(|time| match time {
            Value::Timestamp(time) => Some(time),
            _ => None,
        });
        Ok(HoldSnapshots { times: times.collect() })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        for time in &self.times {
            // Who asks for one that is gone already is told so when he reads.
            if let Err(error) = read::hold(op, *time, HELD) {
                tracing::debug!(%error, ?time, "a state is not held");
            }
        }
        Ok(Reply::ok())
    }
}
