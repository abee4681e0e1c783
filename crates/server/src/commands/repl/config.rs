//! `replSetGetConfig` and `replSetReconfig`.

use std::time::{Duration, Instant};

use sheaf_bson::{Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::audit::noted::{note, room_of};
use sheaf_repl::config::{ConfigVersion, ReplSetConfig};

use super::membership::replica;
use crate::args::{Args, Loose};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetGetConfig: 1, commitmentStatus: false}`.
pub struct ReplSetGetConfig {
    commitment_status: bool,
}

impl<'a> Command<'a, Operation<'a>> for ReplSetGetConfig {
    const NAME: &'static str = "replSetGetConfig";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "configuration of the replica set",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetGetConfig])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let commitment_status = args.optional::<Loose>("commitmentStatus")?.is_some_and(|flag| flag.0);
        args.ignore_rest();
        Ok(ReplSetGetConfig { commitment_status })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let mut reply = Reply::ok();
        let mut result = Ok(());
        reply.fill(|doc| result = replica.with(|core| core.write_config(doc, self.commitment_status)));
        result.map(|()| reply)
    }
}

/// `{replSetReconfig: config, force: false}`.
pub struct ReplSetReconfig<'a> {
    config: Value<'a>,
    force: bool,
}

/// `CurrentConfigNotCommittedYet`.
const CURRENT_CONFIG_NOT_COMMITTED_YET: Code = Code(308);

/// How often it is asked whether a majority has the new configuration.
const STEP: Duration = Duration::from_millis(5);

impl<'a> Command<'a, Operation<'a>> for ReplSetReconfig<'a> {
    const NAME: &'static str = "replSetReconfig";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "changes the replica set's configuration",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetConfigure])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let config = args.own_value();
        let force = args.value("force").truthy();
        args.ignore_rest();
        Ok(ReplSetReconfig { config, force })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let Value::Document(config) = self.config else {
            bail!(Code::BAD_VALUE, "no configuration specified");
        };
        if !self.force {
            wait_until_settled(op)?;
        }
        let config = ReplSetConfig::parse(config)?;
        // Who may not do it at all is told so.
        if self.force || replica.is_writable() {
            check_defaults(op, &config)?;
        }
        let me = replica.find_me(&config);
        let old = replica.with(|core| core.config().map(|config| config.to_document()));
        // What is kept has more fields than what was given.
        let both = [old.clone().unwrap_or_default(), config.to_document()];
        both.iter().try_for_each(|shown| room_of(op, shown.as_raw()))?;
        let installed = replica.reconfig(config, self.force, me)?;
        note(op, "replSetReconfig", Code::OK, || {
            let new = replica.with(|core| core.config().map(|config| config.to_document()));
            doc! { "old": old.unwrap_or_default().as_raw(), "new": new.unwrap_or_default().as_raw() }
        });
        if !self.force {
            wait_for_majority(op, installed)
                .map_err(|error| error.context("Reconfig finished but failed to propagate to a majority"))?;
        }
        Ok(Reply::ok())
    }
}

/// The configuration before it must be the set's.
///
/// Errors: `CurrentConfigNotCommittedYet` when `maxTimeMS` is over.
fn wait_until_settled(op: &Operation<'_>) -> Result<()> {
    let replica = replica(op)?;
    // A member that is not primary is refused later, in its own words.
    while replica.with(|core| core.commitment_status()).is_ok_and(|settled| !settled) {
        op.check_interrupt().map_err(|error| {
            let code = if error.code() == Code::MAX_TIME_MS_EXPIRED {
                CURRENT_CONFIG_NOT_COMMITTED_YET
            } else {
                error.code()
            };
            Error::new(code, error.message()).context("New config is rejected")
        })?;
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// What the set's writes wait for by default must not change without somebody saying so, and must stay possible.
fn check_defaults(op: &Operation<'_>, new: &ReplSetConfig) -> Result<()> {
    let Some(old) = replica(op)?.with(|core| core.config().cloned()) else { return Ok(()) };
    let current = op.node().default_concerns();
    if !current.is_custom_write() {
        if old.implicit_default_is_majority() != new.implicit_default_is_majority() {
            bail!(
                Code::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE,
                "Reconfig attempted to install a config that would change the implicit default write concern. Use the setDefaultRWConcern command to set a cluster-wide write concern and try the reconfig again."
            );
        }
    } else if sheaf_repl::write_concern::check_satisfiable(new, &current.write().for_set()).is_err() {
        bail!(
            Code::NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE,
            "May not remove custom write concern definition from config while it is in use as the default write concern. Change the default write concern to a non-conflicting setting and try the reconfig again."
        );
    }
    Ok(())
}

/// A majority must have it, too, before the client hears that it is done.
fn wait_for_majority(op: &Operation<'_>, installed: ConfigVersion) -> Result<()> {
    let replica = replica(op)?;
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        let (committed, primary) =
            replica.with(|core| (core.config_was_committed(installed), core.check_primary()));
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
