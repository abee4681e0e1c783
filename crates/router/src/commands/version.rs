//! `getShardVersion`: what this router believes of a database or collection.

use sheaf_bson::{Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::command::*;
use sheaf_front::reply::Reply;

use super::shards;
use crate::op::Operation;

/// `{getShardVersion: "garden.plants", fullMetadata: true}`, or of a database.
pub struct GetShardVersion<'a> {
    namespace: &'a str,
    full: bool,
}

/// Chunks are shown as far as a reply holds them.
const SHOWN_MAX: usize = 16 << 20;

impl<'a> Command<'a, Operation<'a>> for GetShardVersion<'a> {
    const NAME: &'static str = "getShardVersion";
    const SPEC: Spec = Spec {
        concerns: Concerns::NONE,
        ..shards::spec(&[], "tells by which version the router knows a collection", Access::None)
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Value::String(namespace) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'getShardVersion.getShardVersion' is the wrong type '{}', expected type 'string'",
                args.own_value().type_name()
            );
        };
        let full = args.value("fullMetadata").truthy();
        args.ignore_rest();
        Ok(GetShardVersion { namespace, full })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        op.blocking(|| match self.namespace.split_once('.') {
            None => of_database(op, self.namespace),
            Some(_) => self.of_collection(op),
        })
    }
}

fn of_database(op: &Operation<'_>, db: &str) -> Result<Reply> {
    sheaf_front::args::check_db_name(db)?;
    let found = op.router.directory.find("databases", &doc! { "_id": db }, &|| op.check_interrupt())?;
    let Some(entry) = found.first() else {
        bail!(Code::NAMESPACE_NOT_FOUND, "database {db} not found");
    };
    let entry = entry.as_raw();
    Ok(Reply::ok()
        .with("primaryShard", entry.get_or_missing("primary"))
        .with("version", entry.get_or_missing("version")))
}

impl GetShardVersion<'_> {
    fn of_collection(&self, op: &Operation<'_>) -> Result<Reply> {
        let known = op.router.directory.collection(self.namespace, &|| op.check_interrupt())?;
        let Some(sharded) = &known.sharded else {
            bail!(Code::NAMESPACE_NOT_SHARDED, "Collection {} is not sharded.", self.namespace);
        };
        let entry = op
            .router
            .directory
            .find("collections", &doc! { "_id": self.namespace }, &|| op.check_interrupt())?;
        let epoch =
            entry.first().map_or(Value::Missing, |entry| entry.as_raw().get_or_missing("lastmodEpoch"));
        let mut reply = Reply::ok()
            .with("version", sharded.table.version().lastmod)
            .with("versionEpoch", epoch)
            .with("versionTimestamp", sharded.timestamp);
        if !self.full {
            return Ok(reply);
        }
        let chunks = sharded.table.chunks();
        let ends = |chunk: &sheaf_shard::placement::Chunk| {
            chunk.min.document().as_bytes().len() + chunk.max.document().as_bytes().len() + 32
        };
        if chunks.iter().map(ends).sum::<usize>() > SHOWN_MAX {
            reply.append("exceededSize", true);
            return Ok(reply);
        }
        Ok(reply.with_array("chunks", |list| {
            for chunk in chunks {
                let mut ends = list.array();
                ends.push(chunk.min.document());
                ends.push(chunk.max.document());
            }
        }))
    }
}
