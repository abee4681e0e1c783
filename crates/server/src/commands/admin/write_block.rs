//! `setUserWriteBlockMode`.

use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{setUserWriteBlockMode: 1, global: true}`
pub struct SetUserWriteBlockMode;

impl<'a> Command<'a, Operation<'a>> for SetUserWriteBlockMode {
    const NAME: &'static str = "setUserWriteBlockMode";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "stops or allows writes of users",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::SetUserWriteBlockMode])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.required::<bool>("global")?;
        let reason: Option<&str> = args.optional("reason")?;
        const REASONS: [&str; 3] =
            ["Unspecified", "ClusterToClusterMigrationInProgress", "DiskUseThresholdExceeded"];
        if let Some(other) = reason.filter(|reason| !REASONS.contains(reason)) {
            bail!(
                Code::BAD_VALUE,
                "Enumeration value '{other}' for field 'setUserWriteBlockMode.reason' is not a valid value."
            );
        }
        Ok(SetUserWriteBlockMode)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if op.node().options.set_name.is_none() {
            bail!(Code::ILLEGAL_OPERATION, "setUserWriteBlockMode cannot be run on standalones");
        }
        bail!(Code::COMMAND_NOT_SUPPORTED, "setUserWriteBlockMode is not supported by this server")
    }
}
