//! `isdbgrid`: by this, clients know a router.

use sheaf_errors::Result;
use sheaf_front::args::Args;
use sheaf_front::command::*;
use sheaf_front::front::hostname;
use sheaf_front::reply::Reply;

use super::shards::spec;
use crate::op::Operation;

/// `{isdbgrid: 1}`.
pub struct IsDbGrid;

impl<'a> Command<'a, Operation<'a>> for IsDbGrid {
    const NAME: &'static str = "isdbgrid";
    const SPEC: Spec = Spec {
        secondary: Secondary::Always,
        authentication: Authentication::Required,
        admin_only: false,
        privileges: Privileges::None,
        threads: Threads::Data,
        ..spec(&["isdbGrid"], "tells that this is a router", Access::None)
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(IsDbGrid)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with("isdbgrid", 1.0).with("hostname", &hostname()))
    }
}
