//! `shutdown`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Loose};
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{shutdown: 1, force: bool, timeoutSecs: n}`. What the server has to hand over first, its role knows.
pub struct Shutdown {
    force: bool,
    timeout_secs: i64,
}

/// How long secondaries may catch up, and operations under way may take to end, if nobody says.
const TIMEOUT_SECS: i64 = 15;

impl<'a> Command<'a, Request<'a>> for Shutdown {
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

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        crate::log::info(
            "COMMAND",
            crate::log::ids::SHUTDOWN_COMMAND,
            &op.client().context(),
            "Shutdown command received",
            None,
        );
        let began = Instant::now();
        op.role.step_down(Duration::from_secs(self.timeout_secs as u64), self.force)?;
        let limit = Duration::from_secs(self.timeout_secs as u64).saturating_sub(began.elapsed());
        let (quiet, front) = (op.role.become_quiet(limit), Arc::clone(op.front));
        tokio::spawn(async move {
            quiet.await;
            front.begin_shutdown();
        });
        Ok(Reply::ok())
    }
}
