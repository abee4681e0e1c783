//! `currentOp`.

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;

use crate::args::{Args, Loose};
use crate::command::*;
use crate::operations;
use crate::reply::Reply;
use crate::request::Request;

/// `{currentOp: 1, $all: bool, $ownOps: bool, <filter>}`.
pub struct CurrentOp<'a> {
    all: bool,
    own: bool,
    filter: Vec<sheaf_bson::Element<'a>>,
}

impl<'a> Command<'a, Request<'a>> for CurrentOp<'a> {
    const NAME: &'static str = "currentOp";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "operations under way",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Inprog])
            .if_asked("not $ownOps", |asked| !asked.is_true("$ownOps"))]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let all = args.optional::<Loose>("$all")?.is_some_and(|b| b.0);
        let own = args.optional::<Loose>("$ownOps")?.is_some_and(|b| b.0);
        args.ignore(&["$truncateOps"]);
        let filter = args
            .body()
            .iter()
            .skip(1)
            .filter(|f| !f.key().starts_with('$') && !crate::generic::is_generic(f.key_bytes()))
            .collect();
        args.ignore_rest();
        Ok(CurrentOp { all, own, filter })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let filter = DocBuf::build(|doc| {
            for field in &self.filter {
                doc.append_element(*field);
            }
        });
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new())?;
        let mut matching = Vec::new();
        let own = operations::under_way(op.front, op.role.cursors(), self.all);
        for operation in own.into_iter().chain(op.role.operations(op)?) {
            if self.own && !operations::is_of(operation.as_raw(), &op.rights) {
                continue;
            }
            if matcher.matches_doc(operation.as_raw())? {
                matching.push(operation);
            }
        }
        let reply = Reply::ok().with_array("inprog", |inprog| {
            matching.iter().for_each(|operation| {
                inprog.push_raw_document(operation.as_bytes());
            });
        });
        if !op.role.is_locked() {
            return Ok(reply);
        }
        let info = "use db.fsyncUnlock() to terminate the fsync write/snapshot lock";
        Ok(reply.with("fsyncLock", true).with("info", info))
    }
}
