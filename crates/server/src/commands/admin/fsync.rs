//! `fsync` and `fsyncUnlock`.

use std::time::{Duration, Instant};

use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Loose, NonNegative};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{fsync: 1, lock: bool}`.
pub struct Fsync {
    lock: bool,
    /// How long to wait for the writers that are at work.
    patience: Duration,
}

/// `fsyncLockAcquisitionTimeoutMillis`, if it is not given.
const PATIENCE_MILLIS: i64 = 90_000;

impl<'a> Command<'a, Operation<'a>> for Fsync {
    const NAME: &'static str = "fsync";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "writes everything to disk; can hold writes back",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Fsync])]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let lock = args.optional::<Loose>("lock")?.is_some_and(|b| b.0);
        let millis = args.optional::<NonNegative>("fsyncLockAcquisitionTimeoutMillis")?;
        args.ignore(&["async"]);
        let patience = Duration::from_millis(millis.map_or(PATIENCE_MILLIS, |millis| millis.0) as u64);
        Ok(Fsync { lock, patience })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if !self.lock {
            op.engine().checkpoint()?;
            return Ok(Reply::ok().with("numFiles", 1));
        }
        let stop = op.interrupter();
        let until = Instant::now() + self.patience;
        let count = op.engine().lock_writes(&|| {
            stop.check()?;
            if Instant::now() >= until {
                let millis = self.patience.as_millis();
                bail!(Code::LOCK_TIMEOUT, "Fsync lock could not be acquired within {millis} milliseconds");
            }
            Ok(())
        })?;
        Ok(Reply::ok()
            .with("info", "now locked against writes, use db.fsyncUnlock() to unlock")
            .with("lockCount", count as i64)
            .with("seeAlso", "http://dochub.mongodb.org/core/fsynccommand"))
    }
}

/// `{fsyncUnlock: 1}`.
pub struct FsyncUnlock;

impl<'a> Command<'a, Operation<'a>> for FsyncUnlock {
    const NAME: &'static str = "fsyncUnlock";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "lets writes go on after fsync with lock",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Unlock])]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::ControlMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(FsyncUnlock)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let left = op.engine().unlock_writes()?;
        Ok(Reply::ok().with("info", "fsyncUnlock completed").with("lockCount", left as i64))
    }
}
