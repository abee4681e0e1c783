//! `dbStats`.

use sheaf_errors::Result;
use sheaf_exec::ddl::stats;

use super::coll_stats;
use crate::args::{Args, Loose};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{dbStats: 1, scale: 1, freeStorage: 0}`
pub struct DbStats {
    scale: i64,
    free_storage: bool,
}

impl<'a> Command<'a, Operation<'a>> for DbStats {
    const NAME: &'static str = "dbStats";
    const SPEC: Spec = Spec {
        aliases: &["dbstats"],
        help: "figures about a database",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::DbStats])]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let scale = coll_stats::scale(args.value("scale"), Self::NAME)?;
        let free_storage = args.optional::<Loose>("freeStorage")?.is_some_and(|flag| flag.0);
        Ok(DbStats { scale, free_storage })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let engine = op.engine();
        let catalog = engine.catalog();
        let (mut collections, mut views, mut objects, mut indexes) = (0i64, 0i64, 0u64, 0i64);
        let (mut data, mut storage, mut index_bytes) = (0u64, 0u64, 0u64);
        for collection in catalog.collections(op.db()) {
            op.check_interrupt()?;
            if collection.is_view() {
                views += 1;
                continue;
            }
            collections += 1;
            objects += collection.count();
            indexes += collection.counted_indexes().count() as i64;
            data += collection.data_bytes();
            storage += stats::storage_bytes(engine, collection);
            index_bytes += stats::index_bytes(engine, collection);
        }
        let scaled = |bytes: u64| bytes as f64 / self.scale as f64;
        let mut reply = Reply::ok();
        reply.append("db", op.db());
        reply.append("collections", collections).append("views", views).append("objects", objects as i64);
        // An integer where it is none: MongoDB divides only when there is something to divide.
        reply.append("avgObjSize", if objects == 0 { 0.0 } else { data as f64 / objects as f64 });
        reply.append("dataSize", scaled(data)).append("storageSize", scaled(storage));
        if self.free_storage {
            reply.append("freeStorageSize", 0.0);
        }
        reply.append("indexes", indexes).append("indexSize", scaled(index_bytes));
        if self.free_storage {
            reply.append("indexFreeStorageSize", 0.0);
        }
        reply.append("totalSize", scaled(storage + index_bytes));
        if self.free_storage {
            reply.append("totalFreeStorageSize", 0.0);
        }
        reply.append("scaleFactor", self.scale);
        if let Some((used, total)) = file_system(&op.node().options.dbpath) {
            reply.append("fsUsedSize", scaled(used)).append("fsTotalSize", scaled(total));
        }
        Ok(reply)
    }
}

/// Bytes used and bytes in all of the file system that holds the data.
fn file_system(path: &std::path::Path) -> Option<(u64, u64)> {
    let total = fs4::total_space(path).ok()?;
    let free = fs4::free_space(path).ok()?;
    Some((total.saturating_sub(free), total))
}
