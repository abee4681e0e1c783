//! `killCursors`.

use sheaf_auth::Target;
use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Array};
use crate::command::*;
use crate::dispatch::authorize;
use crate::reply::Reply;
use crate::request::Request;

/// `{killCursors: "users", cursors: [<id>, ...]}`
pub struct KillCursors<'a> {
    collection: &'a str,
    ids: Vec<i64>,
}

impl<'a> Command<'a, Request<'a>> for KillCursors<'a> {
    const NAME: &'static str = "killCursors";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "closes cursors",
        access: Access::None,
        transaction: Transaction::Allowed,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::KillAnyCursor])
            .if_found("a cursor is another user's")]),
        spread: Spread::CursorOwners,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let Array(cursors) = args.required("cursors")?;
        let mut ids = Vec::new();
        for element in cursors.iter() {
            match element.value() {
                Value::Int64(id) => ids.push(id),
                other => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field 'killCursors.cursors.{}' is the wrong type '{}', expected type 'long'",
                    element.key(),
                    other.type_name()
                ),
            }
        }
        Ok(KillCursors { collection, ids })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        let others = |id: &i64| {
            op.role.cursors().info(*id).is_some_and(|info| info.owner.as_ref() != op.rights.user())
        };
        let may_all = || op.rights.may(Target::Collection(op.db, self.collection), &[Action::KillAnyCursor]);
        if self.ids.iter().any(others) && !may_all() {
            return Err(authorize::refused(op));
        }
        let (mut killed, mut not_found) = (Vec::new(), Vec::new());
        for id in self.ids {
            let cursors = op.role.cursors();
            let ours = cursors.info(id).is_some_and(|info| info.namespace == namespace);
            match ours.then(|| cursors.kill(id)).flatten() {
                Some(()) => killed.push(id),
                None => not_found.push(id),
            }
        }
        let list = |ids: Vec<i64>| {
            move |array: &mut sheaf_bson::ArrayWriter<'_, Vec<u8>>| {
                for id in ids {
                    array.push(id);
                }
            }
        };
        Ok(Reply::ok()
            .with_array("cursorsKilled", list(killed))
            .with_array("cursorsNotFound", list(not_found))
            .with_array("cursorsAlive", list(Vec::new()))
            .with_array("cursorsUnknown", list(Vec::new())))
    }
}
