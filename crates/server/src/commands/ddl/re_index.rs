//! `reIndex`.

use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Collection;

use super::{drop_indexes, names};
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{reIndex: "users"}`
pub struct ReIndex<'a> {
    collection: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for ReIndex<'a> {
    const NAME: &'static str = "reIndex";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "builds all indexes of a collection anew",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::ReIndex])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        args.ignore_rest();
        Ok(ReIndex { collection })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        if op.node().options.set_name.is_some() {
            bail!(Code::ILLEGAL_OPERATION, "reIndex is only allowed on a standalone mongod instance.");
        }
        let catalog = op.catalog();
        let collection = names::existing(&catalog, &namespace, &format!("ns does not exist: {namespace}"))?;
        let specs: Vec<DocBuf> = collection.counted_indexes().map(|index| index.spec.clone()).collect();
        rebuild(op, collection)?;
        let count = specs.len() as i32;
        Ok(Reply::ok().with("nIndexesWas", count).with("nIndexes", count).with_array("indexes", |list| {
            for spec in &specs {
                list.push(spec);
            }
        }))
    }
}

/// Builds every index but that on `_id` anew; the old ones stay until all are exchanged at once.
pub fn rebuild(op: &Operation<'_>, collection: &Collection) -> Result<()> {
    // As they are when the build begins: a collMod may have come between.
    let wanted = |now: &Collection| {
        let indexes = now.indexes.iter().filter(|index| index.ready && !drop_indexes::is_id(index));
        Ok(indexes.map(|index| (index.name.clone(), index.spec.clone())).collect())
    };
    let stop = op.interrupter();
    let position = op.engine().rebuild_indexes(&collection.namespace, &wanted, &|| stop.check())?;
    op.note_commit(position);
    Ok(())
}
