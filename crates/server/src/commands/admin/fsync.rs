//! `fsync` and `fsyncUnlock`.

use std::sync::atomic::Ordering;

use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Loose};
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{fsync: 1, lock: bool}`.
pub struct Fsync {
    lock: bool,
}

impl<'a> Command<'a> for Fsync {
    const NAME: &'static str = "fsync";
    const SPEC: Spec =
        Spec::plain().admin_only().may_block().help("writes everything to disk; can hold writes back");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let lock = args.optional::<Loose>("lock")?.is_some_and(|b| b.0);
        args.ignore(&["fsyncLockAcquisitionTimeoutMillis", "async"]);
        Ok(Fsync { lock })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        if !self.lock {
            op.engine().checkpoint()?;
            return Ok(Reply::ok().with("numFiles", 1));
        }
        let stop = op.interrupter();
        let count = op.engine().lock_writes(&|| stop.check())?;
        op.node().fsync_locks.store(count as i64, Ordering::Relaxed);
        Ok(Reply::ok()
            .with("info", "now locked against writes, use db.fsyncUnlock() to unlock")
            .with("lockCount", count as i64)
            .with("seeAlso", "http://dochub.mongodb.org/core/fsynccommand"))
    }
}

/// `{fsyncUnlock: 1}`.
pub struct FsyncUnlock;

impl<'a> Command<'a> for FsyncUnlock {
    const NAME: &'static str = "fsyncUnlock";
    const SPEC: Spec =
        Spec::plain().control().admin_only().may_block().help("lets writes go on after fsync with lock");

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(FsyncUnlock)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        if op.node().fsync_locks.load(Ordering::Relaxed) == 0 {
            bail!(Code::ILLEGAL_OPERATION, "fsyncUnlock called when not locked");
        }
        let left = op.engine().unlock_writes()?;
        op.node().fsync_locks.store(left as i64, Ordering::Relaxed);
        Ok(Reply::ok().with("info", "fsyncUnlock completed").with("lockCount", left as i64))
    }
}
