//! `getLog` and `logRotate`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{getLog: "global" | "startupWarnings" | "*"}`.
pub struct GetLog {
    which: Which,
}

enum Which {
    Names,
    Global,
    StartupWarnings,
}

impl<'a> Command<'a, Request<'a>> for GetLog {
    const NAME: &'static str = "getLog";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "the newest lines of the log",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::GetLog])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let which = match args.own_value() {
            Value::String("*") => Which::Names,
            Value::String("global") => Which::Global,
            Value::String("startupWarnings") => Which::StartupWarnings,
            Value::String(other) => bail!(Code::OPERATION_FAILED, "No log named '{other}'"),
            Value::Null | Value::Undefined => return Err(args.missing("getLog")),
            other => bail!(
                Code::TYPE_MISMATCH,
                "Argument to getLog must be of type String; found {} of type {}",
                sheaf_bson::value_text(other),
                other.type_name()
            ),
        };
        Ok(GetLog { which })
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        let lines = match self.which {
            Which::Names => {
                return Ok(Reply::ok().with_array("names", |names| {
                    names.push("global").push("startupWarnings");
                }));
            }
            Which::Global => crate::log::recent(),
            Which::StartupWarnings => crate::log::startup_warnings(),
        };
        Ok(Reply::ok().with("totalLinesWritten", lines.len() as i32).with_array("log", |log| {
            for line in &lines {
                log.push(line.as_str());
            }
        }))
    }
}

/// `{logRotate: 1 | "server" | "audit"}`.
pub struct LogRotate {
    server: bool,
    audit: bool,
}

impl<'a> Command<'a, Request<'a>> for LogRotate {
    const NAME: &'static str = "logRotate";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "starts a new log file",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::LogRotate])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let rotate = match args.own_value() {
            Value::String("server") => LogRotate { server: true, audit: false },
            Value::String("audit") => LogRotate { server: false, audit: true },
            Value::String(kind) => bail!(Code::NO_SUCH_KEY, "Unknown log type: {kind}"),
            Value::Bool(_) => LogRotate { server: true, audit: true },
            number if number.is_number() => LogRotate { server: true, audit: true },
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'logRotate.logRotate' is the wrong type '{}', expected types '[string, long, int, decimal, double]'",
                other.type_name()
            ),
        };
        args.ignore(&["comment"]);
        Ok(rotate)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        if self.audit && !self.server && op.front.audit.is_none() {
            bail!(Code::NO_SUCH_KEY, "Unknown log type: audit");
        }
        if self.server
            && let Err(error) = crate::log::rotate()
        {
            bail!(Code::FILE_RENAME_FAILED, "Failed to rotate log: {error}");
        }
        if self.audit
            && let Err(error) = op.front.rotate_audit()
        {
            bail!(Code::FILE_RENAME_FAILED, "Failed to rotate audit log: {error}");
        }
        Ok(Reply::ok())
    }
}
