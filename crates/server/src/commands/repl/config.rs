//! `replSetGetConfig` and `replSetReconfig`.

use std::time::{Duration, Instant};

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_repl::config::ReplSetConfig;

use super::replica;
use crate::args::{Args, Loose};
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{replSetGetConfig: 1, commitmentStatus: false}`.
pub struct ReplSetGetConfig {
    commitment_status: bool,
}

impl<'a> Command<'a> for ReplSetGetConfig {
    const NAME: &'static str = "replSetGetConfig";
    const SPEC: Spec = Spec::plain().admin_only().help("configuration of the replica set");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let commitment_status = args.optional::<Loose>("commitmentStatus")?.is_some_and(|flag| flag.0);
        args.ignore_rest();
        Ok(ReplSetGetConfig { commitment_status })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let mut reply = Reply::ok();
        let mut result = Ok(());
        reply.fill(|doc| result = replica.with(|core| core.write_config(doc, self.commitment_status)));
        result.map(|()| reply)
    }
}

/// `{replSetReconfig: config, force: false}`.
pub struct ReplSetReconfig<'a> {
    config: RawDoc<'a>,
    force: bool,
}

/// How often it is asked whether a majority has the new configuration.
const STEP: Duration = Duration::from_millis(5);

impl<'a> Command<'a> for ReplSetReconfig<'a> {
    const NAME: &'static str = "replSetReconfig";
    const SPEC: Spec = Spec::plain().admin_only().may_block().help("changes the replica set's configuration");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Value::Document(config) = args.own_value() else {
            bail!(Code::BAD_VALUE, "no configuration specified");
        };
        let force = args.value("force").truthy();
        args.ignore_rest();
        Ok(ReplSetReconfig { config, force })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let config = ReplSetConfig::parse(self.config)?;
        self.check_default(op, &config)?;
        let me = replica.find_me(&config);
        replica.reconfig(config, self.force, me)?;
        if !self.force {
            self.wait_for_majority(op)
                .map_err(|error| error.context("Reconfig finished but failed to propagate to a majority"))?;
        }
        Ok(Reply::ok())
    }
}

impl ReplSetReconfig<'_> {
    /// Nobody's writes shall wait for less than before without somebody saying so.
    fn check_default(&self, op: &OpContext<'_>, new: &ReplSetConfig) -> Result<()> {
        let Some(old) = replica(op)?.with(|core| core.config().cloned()) else { return Ok(()) };
        let same = old.implicit_default_is_majority() == new.implicit_default_is_majority();
        if same || op.node().defaults.current(op.node()).is_custom_write() {
            return Ok(());
        }
        bail!(
            Code::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE,
            "Reconfig attempted to install a config that would change the implicit default write concern. Use the setDefaultRWConcern command to set a cluster-wide write concern and try the reconfig again."
        )
    }

    fn wait_for_majority(&self, op: &OpContext<'_>) -> Result<()> {
        let replica = replica(op)?;
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let (committed, primary) = replica.with(|core| (core.config_committed(), core.check_primary()));
            if committed {
                return Ok(());
            }
            primary?;
            op.check_interrupt()?;
            if Instant::now() >= patience {
                return Err(Error::new(Code::EXCEEDED_TIME_LIMIT, "operation exceeded time limit"));
            }
            std::thread::sleep(STEP);
        }
    }
}
