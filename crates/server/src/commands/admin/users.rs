//! Users, roles and authentication, on a server that runs without them.

use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

macro_rules! without_users {
    ($(#[$doc:meta])* $type:ident, $name:literal, $answer:expr) => {
        $(#[$doc])*
        pub struct $type;

        impl<'a> Command<'a, Operation<'a>> for $type {
            const NAME: &'static str = $name;
            const SPEC: Spec = Spec::plain().help("this server has no users");

            fn parse(args: &mut Args<'a>) -> Result<Self> {
                args.ignore_rest();
                Ok($type)
            }

            fn run(self, _: &Operation<'a>) -> Result<Reply> {
                $answer
            }
        }
    };
}

without_users!(
    /// `{usersInfo: ...}`.
    UsersInfo, "usersInfo", Ok(Reply::ok().with_array("users", |_| {}))
);
without_users!(
    /// `{rolesInfo: ...}`.
    RolesInfo, "rolesInfo", Ok(Reply::ok().with_array("roles", |_| {}))
);
without_users!(
    /// `{logout: 1}`.
    Logout, "logout", Ok(Reply::ok())
);
without_users!(
    /// `{saslStart: 1, ...}`.
    SaslStart, "saslStart", bail!(Code::AUTHENTICATION_FAILED, "Authentication failed.")
);
without_users!(
    /// `{saslContinue: 1, ...}`.
    SaslContinue, "saslContinue", bail!(Code::PROTOCOL_ERROR, "No SASL session state found")
);
without_users!(
    /// `{authenticate: 1, ...}`.
    Authenticate, "authenticate", bail!(Code::AUTHENTICATION_FAILED, "Authentication failed.")
);
