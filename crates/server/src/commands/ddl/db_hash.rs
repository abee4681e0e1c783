//! `dbHash`.

use std::time::Instant;

use md5::{Digest, Md5};
use sheaf_bson::{Binary, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, Cut, Direction, Range, View};
use sheaf_timeseries::BUCKETS_PREFIX;

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{dbHash: 1, collections: ["users"]}`
pub struct DbHash<'a> {
    only: Vec<&'a str>,
}

impl<'a> Command<'a, Operation<'a>> for DbHash<'a> {
    const NAME: &'static str = "dbHash";
    const SPEC: Spec = Spec {
        aliases: &["dbhash"],
        help: "checksums of a database's collections",
        access: Access::Read,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::READ,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::DbHash])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let mut only = Vec::new();
        // A list that is none is not there, as in MongoDB.
        if let Value::Array(names) = args.value("collections") {
            for name in names.values() {
                match name {
                    Value::String(name) => only.push(name),
                    _ => bail!(Code::BAD_VALUE, "collections entries have to be strings"),
                }
            }
        }
        args.ignore_rest();
        Ok(DbHash { only })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let started = Instant::now();
        let view = op.view()?;
        let wanted = |collection: &Collection| {
            let name = collection.name();
            let system = name.starts_with("system.")
                && !matches!(name, "system.js" | "system.views")
                && !name.starts_with(BUCKETS_PREFIX);
            let named = self.only.is_empty() || self.only.contains(&collection.name());
            !collection.is_view() && !system && named
        };
        let collections: Vec<_> = view.catalog().collections(op.db()).filter(|c| wanted(c)).collect();
        let mut hashes = Vec::with_capacity(collections.len());
        let mut all = Md5::new();
        for collection in &collections {
            let hash = hash_collection(op, &view, collection)?;
            all.update(hash.as_bytes());
            hashes.push(hash);
        }
        let mut reply = Reply::ok().with("host", &op.node().host_and_port());
        reply.fill(|doc| {
            let mut out = doc.document("collections");
            for (collection, hash) in collections.iter().zip(&hashes) {
                out.append(collection.name(), hash);
            }
            drop(out);
            let mut out = doc.array("capped");
            for collection in collections.iter().filter(|collection| collection.capped.is_some()) {
                out.push(collection.name());
            }
            drop(out);
            let mut out = doc.document("uuids");
            for collection in &collections {
                let uuid = Value::Binary(Binary { subtype: 4, bytes: collection.uuid.as_bytes() });
                out.append(collection.name(), uuid);
            }
        });
        Ok(reply.with("md5", &hex(&all.finalize())).with("timeMillis", started.elapsed().as_millis() as i32))
    }
}

/// MD5 of the documents' bytes in the order of `_id`.
fn hash_collection(op: &Operation<'_>, view: &View, collection: &Collection) -> Result<String> {
    let mut hash = Md5::new();
    let mut seen = 0u64;
    let mut pause = || {
        seen += 1;
        if seen.is_multiple_of(256) { op.check_interrupt() } else { Ok(()) }
    };
    match collection.indexes.first().filter(|_| collection.capped.is_some()) {
        // Records of a capped collection are in the order of insertion.
        Some(by_id) => {
            let mut cursor = view.index(by_id, Direction::Forward)?;
            let mut more = cursor.seek(Cut::Before(&[]))?;
            while more {
                pause()?;
                if let Some(doc) = view.get(collection, cursor.record_key())? {
                    hash.update(&*doc);
                }
                more = cursor.next()?;
            }
        }
        None => {
            let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
            while cursor.next()? {
                pause()?;
                hash.update(cursor.bytes());
            }
        }
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
