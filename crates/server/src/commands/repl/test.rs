//! `replSetTest`, which there is only with test commands.

use std::time::{Duration, Instant};

use sheaf_bson::Timestamp;
use sheaf_errors::{Code, Result, bail};
use sheaf_repl::MemberState;

use super::membership::{enabled, replica};
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetTest: 1, waitForMemberState: state, timeoutMillis: n}`, or `{replSetTest: 1,
/// getLastStableRecoveryTimestamp: 1}`; without these it asks whether there is a set.
pub struct ReplSetTest {
    wait: Option<(i64, i64)>,
    flushed: bool,
}

/// How often the state is looked at.
const STEP: Duration = Duration::from_millis(5);

impl<'a> Command<'a, Operation<'a>> for ReplSetTest {
    const NAME: &'static str = "replSetTest";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "waits for what tests wait for",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: true,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Internal])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let wait = match args.optional::<i64>("waitForMemberState")? {
            Some(state) => Some((state, args.optional::<i64>("timeoutMillis")?.unwrap_or(0))),
            None => None,
        };
        let flushed = !args.value("getLastStableRecoveryTimestamp").is_missing();
        args.ignore_rest();
        Ok(ReplSetTest { wait, flushed })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if self.flushed {
            enabled(op)?;
            let time = Timestamp(op.engine().last_flushed().time);
            return Ok(Reply::ok().with("lastStableRecoveryTimestamp", time));
        }
        let Some((state, patience)) = self.wait else { return replica(op).map(|_| Reply::ok()) };
        let Some(wanted) = u8::try_from(state).ok().and_then(MemberState::from_number) else {
            bail!(Code::BAD_VALUE, "Not a valid replica set member state: {state}");
        };
        let replica = enabled(op)?;
        let until = Instant::now() + Duration::from_millis(patience.max(0) as u64);
        loop {
            let now = replica.role().state;
            if now == wanted {
                return Ok(Reply::ok());
            }
            op.check_interrupt()?;
            if Instant::now() >= until {
                let (wanted, now) = (wanted.name(), now.name());
                bail!(
                    Code::EXCEEDED_TIME_LIMIT,
                    "Timed out waiting for state to become {wanted}. Current state is {now}"
                );
            }
            std::thread::sleep(STEP);
        }
    }
}
