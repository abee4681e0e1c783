//! `internalRenameIfOptionsAndIndexesMatch`: the end of a router's `$out`.

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Result, bail};
use sheaf_exec::database::Shape;
use sheaf_storage::{Collection, Told};

use super::names;
use crate::args::{Args, Documents};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{internalRenameIfOptionsAndIndexesMatch: 1, from, to, collectionOptions, indexes}`: the target may have been made, or changed, since
/// these were looked at.
pub struct RenameIf<'a> {
    from: &'a str,
    to: &'a str,
    options: RawDoc<'a>,
    indexes: Documents<'a>,
}

impl<'a> Command<'a, Operation<'a>> for RenameIf<'a> {
    const NAME: &'static str = "internalRenameIfOptionsAndIndexesMatch";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "renames a collection over one that has these options and indexes",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: INTERNAL,
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let _ = args.own_value();
        Ok(RenameIf {
            from: args.required("from")?,
            to: args.required("to")?,
            options: args.required("collectionOptions")?,
            indexes: args.required_documents("indexes")?,
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        names::check_full_name(self.from, "source")?;
        names::check_full_name(self.to, "target")?;
        names::check_new_name(self.to)?;
        let before = Shape {
            options: DocBuf::from(self.options),
            indexes: self.indexes.iter().map(DocBuf::from).collect(),
        };
        let check = |source: &Collection, target: Option<&Collection>| {
            names::refuse_view(source)?;
            if let Some(target) = target
                && op.placed(target)?.is_some()
            {
                bail!(28769, "{} cannot be sharded", self.to);
            }
            before.check(self.to, target)
        };
        let stop = op.interrupter();
        op.note_commit(op.engine().rename_collection(
            self.from,
            self.to,
            true,
            &check,
            Told::Here,
            &|| stop.check(),
        )?);
        Ok(Reply::ok())
    }
}
