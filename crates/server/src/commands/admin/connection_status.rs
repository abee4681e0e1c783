//! `connectionStatus` and `whatsmyuri`.

use sheaf_errors::Result;

use crate::args::{Args, Loose};
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{connectionStatus: 1, showPrivileges: bool}`.
pub struct ConnectionStatus {
    show_privileges: bool,
}

impl<'a> Command<'a, Operation<'a>> for ConnectionStatus {
    const NAME: &'static str = "connectionStatus";
    const SPEC: Spec = Spec::plain().control().api_v1().help("who this connection is");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let show_privileges = args.optional::<Loose>("showPrivileges")?.is_some_and(|b| b.0);
        Ok(ConnectionStatus { show_privileges })
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_document("authInfo", |doc| {
            let _ = doc.array("authenticatedUsers");
            let _ = doc.array("authenticatedUserRoles");
            if self.show_privileges {
                let _ = doc.array("authenticatedUserPrivileges");
            }
        }))
    }
}

/// `{whatsmyuri: 1}`.
pub struct WhatsMyUri;

impl<'a> Command<'a, Operation<'a>> for WhatsMyUri {
    const NAME: &'static str = "whatsmyuri";
    const SPEC: Spec = Spec::plain().control().help("the address from which this connection comes");

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(WhatsMyUri)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with("you", &op.client().remote_text()))
    }
}
