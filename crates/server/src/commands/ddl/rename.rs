//! `renameCollection`.

use sheaf_auth::Target;
use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};
use sheaf_front::access::Rights;
use sheaf_storage::{Collection, Told, Uuid};

use super::names;
use crate::args::{Args, Loose};
use crate::audited;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

fn may_rename(asked: Asked<'_>, rights: &Rights) -> bool {
    // What cannot be parsed fails.
    let Ok(RenameCollection { from, to, drop_target, .. }) = parsed(asked) else { return true };
    let may = |namespace: &str, actions: &[Action]| rights.may(Target::of_namespace(namespace), actions);
    if drop_target && !may(to, &[Action::DropCollection]) {
        return false;
    }
    let ((from_db, _), (to_db, _)) = (names::split(from), names::split(to));
    if from_db == to_db {
        // Nobody reads under the new name what could not be read under the old one.
        let [reads_old, reads_new] = [from, to].map(|namespace| may(namespace, &[Action::Find]));
        return (reads_old || !reads_new)
            && rights.may(Target::Database(from_db), &[Action::RenameCollectionSameDb]);
    }
    may(from, &[Action::Find, Action::DropCollection]) && may(to, &[Action::Insert, Action::CreateIndex])
}

/// `{renameCollection: "db.from", to: "db.to", dropTarget: false}`
pub struct RenameCollection<'a> {
    from: &'a str,
    to: &'a str,
    drop_target: bool,
    uuid: Option<Uuid>,
}

impl<'a> Command<'a, Operation<'a>> for RenameCollection<'a> {
    const NAME: &'static str = "renameCollection";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "renames a collection",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::ByCommand(
            "within a database renameCollectionSameDB on it, and find on the old collection or not on the new one; else find and dropCollection on the old, insert and createIndex on the new; dropCollection on the new with dropTarget",
            may_rename,
        ),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let from = args.own()?;
        let to = args.required("to")?;
        // A UUID says which collection may be dropped.
        let drop_target = match args.value("dropTarget") {
            Value::Binary(binary) if binary.subtype == 4 => true,
            _ => args.optional::<Loose>("dropTarget")?.is_some_and(|flag| flag.0),
        };
        args.optional::<bool>("stayTemp")?;
        Ok(RenameCollection { from, to, drop_target, uuid: args.optional("collectionUUID")? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let RenameCollection { from, to, drop_target, uuid } = self;
        // A dollar is refused as MongoDB does it, below.
        names::check_full_name(&from.replace('$', "_"), "source")?;
        names::check_full_name(&to.replace('$', "_"), "target")?;
        if from == to {
            bail!(Code::ILLEGAL_OPERATION, "Can't rename a collection to itself");
        }
        check_renamable(from, "source")?;
        check_renamable(to, "target")?;
        names::check_new_name(to)?;
        let catalog = op.catalog();
        names::check_uuid(&catalog, from, uuid)?;
        let Some(source) = catalog.collection(from) else {
            bail!(Code::NAMESPACE_NOT_FOUND, "Source collection {from} does not exist");
        };
        refuse_system(source)?;
        match catalog.collection(to) {
            Some(target) if target.is_view() => {
                bail!(Code::NAMESPACE_EXISTS, "a view already exists with that name: {to}")
            }
            Some(_) if !drop_target => bail!(Code::NAMESPACE_EXISTS, "target namespace exists"),
            _ => {}
        }
        let stop = op.interrupter();
        // Asked again when nothing can change any more.
        let check = |source: &Collection, target: Option<&Collection>| {
            refuse_system(source)?;
            op.check_plain(source)?;
            target.map_or(Ok(()), |target| op.check_plain(target))?;
            names::check_uuid(&op.catalog(), from, uuid)
        };
        let position =
            op.engine().rename_collection(from, to, drop_target, &check, Told::Here, &|| stop.check())?;
        op.note_commit(position);
        if catalog.collection(to).is_some() {
            audited::dropped(op, to, Code::OK);
        }
        audited::renamed(op, from, to);
        op.metrics().namespace.replace(Some(from.to_owned()));
        Ok(Reply::ok())
    }
}

/// The server's own collections keep their names.
///
/// Errors: `IllegalOperation`.
pub(crate) fn check_renamable(namespace: &str, what: &str) -> Result<()> {
    let (db, collection) = names::split(namespace);
    let oplog = db == "local" && collection.starts_with("oplog.");
    if namespace.contains('$') || oplog || collection.starts_with("system.") {
        bail!(
            Code::ILLEGAL_OPERATION,
            "error with {what} namespace: Invalid namespace specified '{namespace}'"
        );
    }
    Ok(())
}

/// Errors: `CommandNotSupportedOnView`, `IllegalOperation` for what is the server's own.
fn refuse_system(source: &Collection) -> Result<()> {
    let from = &source.namespace;
    if source.is_view() {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "cannot rename view: {from}");
    }
    if source.name().starts_with("system.") && source.name() != "system.js" {
        bail!(Code::ILLEGAL_OPERATION, "error with source namespace: Invalid system namespace: {from}");
    }
    Ok(())
}
