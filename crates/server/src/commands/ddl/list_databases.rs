//! `listDatabases`.

use sheaf_auth::Target;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;
use sheaf_exec::ddl::stats;

use super::listing;
use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::crud::query;
use crate::op::Operation;
use crate::reply::Reply;

/// What the disk gives out at a time.
const BLOCK_BYTES: u64 = 4096;

/// `{listDatabases: 1, filter: {...}, nameOnly: false}`
pub struct ListDatabases<'a> {
    filter: Option<RawDoc<'a>>,
    name_only: bool,
    authorized: Option<bool>,
}

impl<'a> Command<'a, Operation<'a>> for ListDatabases<'a> {
    const NAME: &'static str = "listDatabases";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "lists the databases",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ListDatabases])
            .if_asked("authorizedDatabases: false", |asked| {
                asked.has("authorizedDatabases") && !asked.is_true("authorizedDatabases")
            })]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let filter = args.optional("filter")?;
        let name_only = args.optional::<Loose>("nameOnly")?.is_some_and(|flag| flag.0);
        let authorized = args.optional::<bool>("authorizedDatabases")?;
        Ok(ListDatabases { filter, name_only, authorized })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let mut cx = query::parse_cx(op, None)?.without_now();
        let filter = listing::parse_filter(self.filter, &mut cx)?;
        let catalog = op.catalog();
        let mut databases = Vec::new();
        let mut total = 0;
        let all = op.rights.may(Target::Cluster, &[Action::ListDatabases]);
        let only_own = self.authorized.unwrap_or(!all);
        for name in catalog.databases() {
            op.check_interrupt()?;
            if only_own && !op.rights.reach(name) {
                continue;
            }
            let mut bytes = 0;
            for collection in catalog.collections(name).filter(|_| !self.name_only) {
                op.check_interrupt()?;
                let used = stats::storage_bytes(op.engine(), collection)
                    + stats::index_bytes(op.engine(), collection);
                bytes += used.next_multiple_of(BLOCK_BYTES);
            }
            let entry = DocBuf::build(|doc| {
                doc.append("name", name);
                if !self.name_only {
                    doc.append("sizeOnDisk", bytes as i64);
                    doc.append("empty", false);
                }
            });
            if filter.matches_doc(entry.as_raw())? {
                total += bytes;
                databases.push(entry);
            }
        }
        let reply = Reply::ok().with_array("databases", |list| {
            for entry in &databases {
                list.push(entry);
            }
        });
        if self.name_only {
            return Ok(reply);
        }
        Ok(reply.with("totalSize", total as i64).with("totalSizeMb", (total / (1024 * 1024)) as i64))
    }
}
