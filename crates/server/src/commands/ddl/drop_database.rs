//! `dropDatabase`.

use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{dropDatabase: 1}`
pub struct DropDatabase;

impl<'a> Command<'a, Operation<'a>> for DropDatabase {
    const NAME: &'static str = "dropDatabase";
    const SPEC: Spec = Spec::write().may_block().api_v1().help("drops the current database");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let own = args.own_value();
        if own.as_exact_i64() != Some(1) {
            bail!(5255100, "Have to pass 1 as 'dropDatabase' parameter");
        }
        Ok(DropDatabase)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if matches!(op.db(), "admin" | "config" | "local") {
            bail!(Code::ILLEGAL_OPERATION, "Dropping the '{}' database is prohibited.", op.db());
        }
        if !op.engine().catalog().has_database(op.db()) {
            return Ok(Reply::ok());
        }
        let stop = op.interrupter();
        let position = op.engine().drop_database(op.db(), &|| stop.check())?;
        op.note_commit(position);
        op.node().metrics.forget_database(op.db());
        Ok(Reply::ok().with("dropped", op.db()))
    }
}
