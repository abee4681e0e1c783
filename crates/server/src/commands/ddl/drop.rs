//! `drop`.

use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, Uuid};
use sheaf_timeseries::BUCKETS_PREFIX;

use super::{names, views};
use crate::args::Args;
use crate::audited;
use crate::command::*;
use crate::commands::timeseries::drop_buckets;
use crate::op::Operation;
use crate::reply::Reply;

/// Whether a collection below `system.` may be dropped (`isDroppableSystemCollection`): without others nobody could log in any more.
fn is_droppable(db: &str, collection: &str) -> bool {
    match collection {
        "system.js" | "system.profile" | views::NAME => true,
        "system.sessions" | "system.preimages" => db == "config",
        "system.keys" => db == "admin",
        "system.healthlog" | "system.collections_to_restore" => db == "local",
        _ => collection.starts_with("system.resharding.") || collection.starts_with(BUCKETS_PREFIX),
    }
}

/// `{drop: "users"}`
pub struct Drop<'a> {
    collection: &'a str,
    uuid: Option<Uuid>,
}

impl<'a> Command<'a, Operation<'a>> for Drop<'a> {
    const NAME: &'static str = "drop";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "drops a collection",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::DropCollection])]),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        Ok(Drop { collection, uuid: args.optional("collectionUUID")? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        if self.collection == "system.profile" && op.node().profiling.of(op.db()).level > 0 {
            bail!(Code::ILLEGAL_OPERATION, "turn off profiling before dropping system.profile collection");
        }
        if self.collection.starts_with("system.") && !is_droppable(op.db(), self.collection) {
            bail!(Code::ILLEGAL_OPERATION, "can't drop system collection {namespace}");
        }
        let catalog = op.catalog();
        if self.collection == views::NAME && catalog.collections(op.db()).any(|one| one.is_timeseries()) {
            bail!(
                Code::COMMAND_FAILED,
                "cannot drop collection {namespace} when time-series collections are present."
            );
        }
        names::check_uuid(&catalog, &namespace, self.uuid)?;
        let Some(collection) = catalog.collection(&namespace) else {
            // Since MongoDB 7.0 it is no error that there is nothing to drop.
            audited::dropped(op, &namespace, Code::NAMESPACE_NOT_FOUND);
            return Ok(Reply::ok());
        };
        let indexes = collection.counted_indexes().count() as i32;
        let (view, timeseries) = (collection.is_view(), collection.is_timeseries());
        let told = op.told_of_drop(op.db())?;
        let stop = op.interrupter();
        let interrupt = || stop.check();
        let _turn = match view || self.collection == views::NAME {
            true => Some(views::turn(op.node(), &interrupt)?),
            false => None,
        };
        if self.collection == views::NAME {
            views::drop_all(op.engine(), op.db(), &interrupt)?;
        }
        // The measurements first: a view without them does no harm, and what a crash left of them would be found again.
        if timeseries {
            drop_buckets(op, &namespace)?;
        }
        // Asked again when nothing can change any more.
        let check = |now: &Collection| {
            names::check_uuid(&op.catalog(), &namespace, self.uuid)?;
            op.check_plain(now)?;
            if now.is_view() != view {
                bail!(
                    Code::CONFLICTING_OPERATION_IN_PROGRESS,
                    "{namespace} was replaced while it was to be dropped"
                );
            }
            Ok(())
        };
        match op.engine().drop_collection_if(&namespace, &check, told, &interrupt) {
            Ok(position) => op.note_commit(position),
            // Somebody else was faster.
            Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => return Ok(Reply::ok()),
            Err(error) => return Err(error),
        }
        audited::dropped(op, &namespace, Code::OK);
        op.node().metrics.forget(&namespace);
        let mut reply = Reply::ok();
        if view {
            op.note_commit(views::follow(op.engine(), &namespace, &interrupt)?);
        } else {
            reply.append("nIndexesWas", indexes);
        }
        Ok(reply.with("ns", &namespace))
    }
}
