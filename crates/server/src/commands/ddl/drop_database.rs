//! `dropDatabase`.

use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Collection;

use crate::args::Args;
use crate::audited;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{dropDatabase: 1}`
pub struct DropDatabase;

impl<'a> Command<'a, Operation<'a>> for DropDatabase {
    const NAME: &'static str = "dropDatabase";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "drops the current database",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::DropDatabase])]),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let own = args.own_value();
        if own.as_exact_i64() != Some(1) {
            bail!(5255100, "Have to pass 1 as 'dropDatabase' parameter");
        }
        Ok(DropDatabase)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        // A server by itself can do without `config`; the storage keeps `local`, where the oplog is.
        let is_needed = op.node().options.set_name.is_some() && matches!(op.db(), "config" | "local");
        if op.db() == "admin" || is_needed {
            bail!(Code::ILLEGAL_OPERATION, "Dropping the '{}' database is prohibited.", op.db());
        }
        let stop = op.interrupter();
        let told = op.told_of_drop(op.db())?;
        // Whoever moves the database to another shard has this turn while it closes it.
        let _turn = op.node().ddl_turns.take(op.db(), &|| stop.check())?;
        if let Some(sharding) = op.node().sharding() {
            sharding.note_drop(op.db());
        }
        if !op.catalog().has_database(op.db()) {
            return Ok(Reply::ok());
        }
        let dropping = audited::Dropping::of(op);
        let check = |collections: &[&Collection]| {
            collections.iter().try_for_each(|collection| op.check_open(collection))?;
            dropping.begin(collections)
        };
        let position = op.engine().drop_database(op.db(), &check, told, &|| stop.check())?;
        op.note_commit(position);
        dropping.done();
        op.node().metrics.forget_database(op.db());
        Ok(Reply::ok().with("dropped", op.db()))
    }
}
