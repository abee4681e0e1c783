//! Commands that ask about replication and clusters, on a node that has neither.

use sheaf_bson::{RawDoc, Timestamp, Value, doc};
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

/// `{replSetGetStatus: 1}`: a set of one, whose member is always primary.
pub struct ReplSetGetStatus;

impl<'a> Command<'a> for ReplSetGetStatus {
    const NAME: &'static str = "replSetGetStatus";
    const SPEC: Spec = Spec::plain().admin_only().help("state of the replica set");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["initialSync"]);
        Ok(ReplSetGetStatus)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let name = set_name(op, "not running with --replSet")?;
        let applied = op.engine().last_applied();
        let date = Value::DateTime(((applied.time >> 32) * 1000) as i64);
        let optime = doc! { "ts": Timestamp(applied.time), "t": TERM };
        Ok(Reply::ok().with_fields(|doc| {
            doc.append("set", name);
            doc.append("date", Value::DateTime(op.now_millis()));
            doc.append("myState", 1);
            doc.append("term", TERM);
            doc.append("syncSourceHost", "").append("syncSourceId", -1);
            doc.append("heartbeatIntervalMillis", 2000i64);
            for count in [
                "majorityVoteCount",
                "writeMajorityCount",
                "votingMembersCount",
                "writableVotingMembersCount",
            ] {
                doc.append(count, 1);
            }
            {
                let mut times = doc.document("optimes");
                times.append("lastCommittedOpTime", &optime).append("lastCommittedWallTime", date);
                times.append("readConcernMajorityOpTime", &optime).append("appliedOpTime", &optime);
                times.append("lastAppliedWallTime", date);
            }
            let mut members = doc.array("members");
            let mut member = members.document();
            member.append("_id", 0).append("name", &op.node().member_address());
            member.append("health", 1.0).append("state", 1).append("stateStr", "PRIMARY");
            member.append("uptime", op.node().started.elapsed().as_secs() as i32);
            member.append("optime", &optime).append("optimeDate", date);
            member.append("lastAppliedWallTime", date);
            member.append("syncSourceHost", "").append("syncSourceId", -1).append("infoMessage", "");
            member.append("configVersion", 1).append("configTerm", TERM as i32);
            member.append("self", true).append("lastHeartbeatMessage", "");
        }))
    }
}

/// `{replSetGetConfig: 1}`.
pub struct ReplSetGetConfig;

impl<'a> Command<'a> for ReplSetGetConfig {
    const NAME: &'static str = "replSetGetConfig";
    const SPEC: Spec = Spec::plain().admin_only().help("configuration of the replica set");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["commitmentStatus"]);
        Ok(ReplSetGetConfig)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let name = set_name(op, "not running with --replSet")?;
        Ok(Reply::ok().with_document("config", |config| {
            config.append("_id", name).append("version", 1).append("term", TERM as i32);
            {
                let mut members = config.array("members");
                let mut member = members.document();
                member.append("_id", 0).append("host", &op.node().member_address());
                member.append("arbiterOnly", false).append("buildIndexes", true).append("hidden", false);
                member.append("priority", 1);
                let _ = member.document("tags");
                member.append("secondaryDelaySecs", 0i64).append("votes", 1);
            }
            config.append("protocolVersion", 1i64);
            config.append("writeConcernMajorityJournalDefault", true);
            let mut settings = config.document("settings");
            settings.append("chainingAllowed", true).append("heartbeatIntervalMillis", 2000);
            settings.append("heartbeatTimeoutSecs", 10).append("electionTimeoutMillis", 10_000);
            let _ = settings.document("getLastErrorModes");
        }))
    }
}

/// `{replSetInitiate: ...}`: `--replSet` alone makes the set of one.
pub struct ReplSetInitiate;

impl<'a> Command<'a> for ReplSetInitiate {
    const NAME: &'static str = "replSetInitiate";
    const SPEC: Spec = Spec::plain().admin_only().help("makes a replica set");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ReplSetInitiate)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        set_name(op, "This node was not started with replication enabled.")?;
        bail!(Code::ALREADY_INITIALIZED, "already initialized")
    }
}

/// The only term there is: a set of one holds no elections.
const TERM: i64 = 1;

fn set_name<'a>(op: &OpContext<'a>, otherwise: &str) -> Result<&'a str> {
    match &op.node().options.set_name {
        Some(name) => Ok(name),
        None => bail!(Code::NO_REPLICATION_ENABLED, "{otherwise}"),
    }
}

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
