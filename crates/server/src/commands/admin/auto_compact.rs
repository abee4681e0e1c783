//! `autoCompact`.

use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::compaction::Wish;
use crate::op::Operation;
use crate::reply::Reply;

/// What has to be free of a collection's files in megabytes, unless the client says it.
const TARGET_MB: i64 = 20;

/// `{autoCompact: true, freeSpaceTargetMB: 20, runOnce: false}`
pub struct AutoCompact {
    on: bool,
    wish: Wish,
}

impl<'a> Command<'a, Operation<'a>> for AutoCompact {
    const NAME: &'static str = "autoCompact";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "compacts collections in the background, or ends that",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Compact])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let on = args.own()?;
        let target = args.optional::<i64>("freeSpaceTargetMB")?;
        if let Some(target) = target.filter(|target| *target < 1) {
            bail!(
                Code::BAD_VALUE,
                "BSON field 'freeSpaceTargetMB' value must be >= 1, actual value '{target}'"
            );
        }
        let run_once = args.optional::<bool>("runOnce")? == Some(true);
        let target_bytes = target.unwrap_or(TARGET_MB).min(1 << 40) << 20;
        Ok(AutoCompact { on, wish: Wish { target_bytes, run_once } })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if self.on {
            op.node().auto_compact.start(self.wish)?;
        } else {
            op.node().auto_compact.stop();
        }
        Ok(Reply::ok())
    }
}
