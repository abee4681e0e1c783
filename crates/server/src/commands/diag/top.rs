//! `top`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{top: 1}`.
pub struct Top;

impl<'a> Command<'a, Operation<'a>> for Top {
    const NAME: &'static str = "top";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "time spent per collection",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Top])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(Top)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let top = op.node().metrics.top.lock();
        let mut namespaces: Vec<_> = top.iter().collect();
        namespaces.sort_by_key(|(name, _)| name.as_str());
        Ok(Reply::ok().with_document("totals", |totals| {
            totals.append("note", "all times in microseconds");
            for (namespace, entry) in namespaces {
                let mut doc = totals.document(namespace);
                let parts = [
                    ("total", entry.total),
                    ("readLock", entry.read_lock),
                    ("writeLock", entry.write_lock),
                    ("queries", entry.queries),
                    ("getmore", entry.getmore),
                    ("insert", entry.insert),
                    ("update", entry.update),
                    ("remove", entry.remove),
                    ("commands", entry.commands),
                ];
                for (name, usage) in parts {
                    doc.document(name).append("time", usage.micros as i64).append("count", usage.ops as i64);
                }
            }
        }))
    }
}
