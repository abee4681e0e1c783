//! `shutdown`.

use std::time::{Duration, Instant};

use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Loose};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{shutdown: 1, force: bool, timeoutSecs: n}`. A primary first hands the lead over; see [`crate::shutdown`].
pub struct Shutdown {
    force: bool,
    timeout_secs: i64,
}

/// How long secondaries may catch up, and operations under way may take to end, if nobody says.
const TIMEOUT_SECS: i64 = 15;

/// How long a member that goes down does not stand for election.
const STEP_DOWN_MILLIS: u64 = 120_000;

impl<'a> Command<'a, Operation<'a>> for Shutdown {
    const NAME: &'static str = "shutdown";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "stops the server",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Shutdown])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::ControlMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let force = args.optional::<Loose>("force")?.is_some_and(|force| force.0);
        let timeout_secs = args.optional::<i64>("timeoutSecs")?.unwrap_or(TIMEOUT_SECS);
        if timeout_secs < 0 {
            bail!(Code(51024), "BSON field 'timeoutSecs' value must be >= 0, actual value '{timeout_secs}'");
        }
        Ok(Shutdown { force, timeout_secs })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        crate::log::info(
            "COMMAND",
            crate::log::ids::SHUTDOWN_COMMAND,
            &op.client().context(),
            "Shutdown command received",
            None,
        );
        let began = Instant::now();
        if let Some(replica) = op.node().replica().filter(|replica| replica.is_writable()) {
            let millis = self.timeout_secs as u64 * 1000;
            let alone = replica.with(|core| core.config().is_none_or(|config| config.members.len() == 1));
            let stepped_down = match alone {
                true => Ok(()),
                false => replica.step_down(millis, millis.max(STEP_DOWN_MILLIS), false),
            };
            // Who has lost the lead meanwhile has nothing to hand over.
            if let Err(error) = stepped_down
                && error.code() != Code::NOT_WRITABLE_PRIMARY
                && !self.force
            {
                return Err(error);
            }
        }
        let limit = Duration::from_secs(self.timeout_secs as u64).saturating_sub(began.elapsed());
        let node = op.node().clone();
        tokio::spawn(async move {
            node.become_quiet(limit).await;
            node.begin_shutdown();
        });
        Ok(Reply::ok())
    }
}
