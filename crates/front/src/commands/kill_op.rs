//! `killOp`.

use sheaf_auth::Target;
use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::dispatch::authorize;
use crate::reply::Reply;
use crate::request::Request;

/// `{killOp: 1, op: n}`.
pub struct KillOp {
    op_id: i64,
}

impl<'a> Command<'a, Request<'a>> for KillOp {
    const NAME: &'static str = "killOp";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "stops an operation",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[
            Privilege::on(Resource::Cluster, &[Action::Killop]).if_found("the operation is another user's")
        ]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let value = args.value("op");
        let op_id = match (value, value.as_exact_i64()) {
            (Value::Missing, _) => bail!(Code::NO_SUCH_KEY, "Did not provide \"op\" field"),
            (_, Some(n)) if i32::try_from(n).is_ok() => n,
            (_, Some(n)) => bail!(26823, "invalid op : {n}. Op ID cannot be represented with 32 bits"),
            (number, None) if number.is_number() => bail!(
                Code::BAD_VALUE,
                "Expected field \"op\" to have a value exactly representable as a 64-bit integer, but got op: {}",
                sheaf_bson::value_text(number)
            ),
            (other, None) => bail!(
                Code::TYPE_MISMATCH,
                "\"op\" had the wrong type. Expected number, found {}",
                other.type_name()
            ),
        };
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(KillOp { op_id })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        for client in op.front.clients() {
            if client.current.lock().op_id as i32 == self.op_id as i32 {
                let own = client.access.lock().user() == op.rights.user();
                if !own && !op.rights.may(Target::Cluster, &[Action::Killop]) {
                    return Err(authorize::refused(op));
                }
                client.kill();
            }
        }
        // MongoDB answers alike whether or not there was such an operation.
        Ok(Reply::ok().with("info", "attempting to kill op"))
    }
}
