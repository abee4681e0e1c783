//! `usersInfo` and `rolesInfo`, on a server that has no users yet.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{usersInfo: ...}`.
pub struct UsersInfo;

impl<'a> Command<'a, Operation<'a>> for UsersInfo {
    const NAME: &'static str = "usersInfo";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "describes users",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::ViewUser])
            .if_found("others are asked about than the user itself")]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(UsersInfo)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_array("users", |_| {}))
    }
}

/// `{rolesInfo: ...}`.
pub struct RolesInfo;

impl<'a> Command<'a, Operation<'a>> for RolesInfo {
    const NAME: &'static str = "rolesInfo";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "describes roles",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::ViewRole])
            .if_found("others are asked about than the user's own roles")]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(RolesInfo)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_array("roles", |_| {}))
    }
}
