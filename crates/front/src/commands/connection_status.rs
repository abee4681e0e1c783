//! `connectionStatus` and `whatsmyuri`.

use sheaf_errors::Result;

use crate::args::{Args, Loose};
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{connectionStatus: 1, showPrivileges: bool}`.
pub struct ConnectionStatus {
    show_privileges: bool,
}

impl<'a> Command<'a, Request<'a>> for ConnectionStatus {
    const NAME: &'static str = "connectionStatus";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "who this connection is",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let show_privileges = args.optional::<Loose>("showPrivileges")?.is_some_and(|b| b.0);
        Ok(ConnectionStatus { show_privileges })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let account = crate::sasl::account(op)?;
        Ok(Reply::ok().with_document("authInfo", |doc| {
            let mut users = doc.array("authenticatedUsers");
            if let Some(account) = &account {
                account.user.name.write(&mut users.document());
            }
            drop(users);
            let mut roles = doc.array("authenticatedUserRoles");
            for role in account.iter().flat_map(|account| &account.resolved.roles) {
                role.write(&mut roles.document());
            }
            drop(roles);
            if self.show_privileges {
                let mut privileges = doc.array("authenticatedUserPrivileges");
                if let Some(account) = &account {
                    account.resolved.privileges.write(&mut privileges);
                }
            }
        }))
    }
}

/// `{whatsmyuri: 1}`.
pub struct WhatsMyUri;

impl<'a> Command<'a, Request<'a>> for WhatsMyUri {
    const NAME: &'static str = "whatsmyuri";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "the address from which this connection comes",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(WhatsMyUri)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        Ok(Reply::ok().with("you", &op.client().remote_text()))
    }
}
