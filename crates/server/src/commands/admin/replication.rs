//! Commands that ask about replication and clusters, on a node that has neither.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

macro_rules! refused {
    ($(#[$doc:meta])* $type:ident, $name:literal, $code:expr, $text:literal) => {
        $(#[$doc])*
        pub struct $type;

        impl<'a> Command<'a> for $type {
            const NAME: &'static str = $name;
            const SPEC: Spec = Spec::plain().admin_only().help("only on replica set members");

            fn parse(args: &mut Args<'a>) -> Result<Self> {
                args.ignore_rest();
                Ok($type)
            }

            fn run(self, _: &OpContext<'a>) -> Result<Reply> {
                bail!($code, $text)
            }
        }
    };
}

refused!(
    /// `{replSetGetStatus: 1}`.
    ReplSetGetStatus, "replSetGetStatus", Code::NO_REPLICATION_ENABLED, "not running with --replSet"
);
refused!(
    /// `{replSetGetConfig: 1}`.
    ReplSetGetConfig, "replSetGetConfig", Code::NO_REPLICATION_ENABLED, "not running with --replSet"
);
refused!(
    /// `{replSetInitiate: ...}`.
    ReplSetInitiate, "replSetInitiate", Code::NO_REPLICATION_ENABLED,
    "This node was not started with replication enabled."
);
refused!(
    /// `{setDefaultRWConcern: 1}`.
    SetDefaultRwConcern, "setDefaultRWConcern", Code::NOT_A_REPLICA_SET,
    "'setDefaultRWConcern' is not supported on standalone nodes."
);

/// `{getDefaultRWConcern: 1}`: a standalone has no defaults of its own.
pub struct GetDefaultRwConcern;

impl<'a> Command<'a> for GetDefaultRwConcern {
    const NAME: &'static str = "getDefaultRWConcern";
    const SPEC: Spec = Spec::plain().admin_only().help("default read and write concerns");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["inMemory"]);
        Ok(GetDefaultRwConcern)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        if op.node().options.set_name.is_none() {
            bail!(Code::NOT_A_REPLICA_SET, "'getDefaultRWConcern' is not supported on standalone nodes.");
        }
        Ok(Reply::ok().with_fields(|doc| {
            doc.document("defaultReadConcern").append("level", "local");
            doc.document("defaultWriteConcern").append("w", "majority").append("wtimeout", 0);
            doc.append("defaultWriteConcernSource", "implicit");
            doc.append("defaultReadConcernSource", "implicit");
            doc.append("localUpdateWallClockTime", Value::DateTime(op.now_millis()));
        }))
    }
}

/// `{features: 1}`.
pub struct Features;

impl<'a> Command<'a> for Features {
    const NAME: &'static str = "features";
    const SPEC: Spec = Spec::plain().help("what this build can do");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["oidReset"]);
        Ok(Features)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let machine = op.node().process_id.0;
        let machine = i32::from_le_bytes([machine[4], machine[5], machine[6], 0]);
        Ok(Reply::ok().with("oidMachine", machine))
    }
}

/// `{validateDBMetadata: 1, apiParameters: {...}}`: no stored definition here breaks the stable API.
pub struct ValidateDbMetadata;

impl<'a> Command<'a> for ValidateDbMetadata {
    const NAME: &'static str = "validateDBMetadata";
    const SPEC: Spec = Spec::plain().help("checks stored definitions against an API version");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let parameters: RawDoc<'a> = args.required("apiParameters")?;
        if parameters.get("version").and_then(|v| v.as_str()).is_none() {
            bail!(40414, "BSON field 'APIParamsForCmd.version' is missing but a required field");
        }
        args.ignore(&["db", "collection", "collections"]);
        Ok(ValidateDbMetadata)
    }

    fn run(self, _: &OpContext<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_array("apiVersionErrors", |_| {}))
    }
}

/// `{getFreeMonitoringStatus: 1}`: gone from MongoDB since 7.0.4, still asked for by older shells.
pub struct GetFreeMonitoringStatus;

impl<'a> Command<'a> for GetFreeMonitoringStatus {
    const NAME: &'static str = "getFreeMonitoringStatus";
    const SPEC: Spec = Spec::plain().admin_only().help("free monitoring does not exist any more");

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(GetFreeMonitoringStatus)
    }

    fn run(self, _: &OpContext<'a>) -> Result<Reply> {
        Ok(Reply::ok().with("state", "disabled"))
    }
}
