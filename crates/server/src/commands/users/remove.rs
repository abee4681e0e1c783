//! Commands that remove users and roles.

use sheaf_auth::{RoleName, UserName};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::change_role::existing;
use super::fields::{check_made, own_name, role_array};
use super::written::{Change, Changes, change, with_fields};
use crate::accounts::{ROLES, Stored, USERS};
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{dropUser: "name"}`.
pub struct DropUser<'a>(&'a str);

impl<'a> Command<'a, Operation<'a>> for DropUser<'a> {
    const NAME: &'static str = "dropUser";
    const SPEC: Spec = super::spec::changes(
        "removes a user of the database",
        Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::DropUser])]),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(DropUser(own_name(args)?))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let name = UserName::new(self.0, op.db());
        change(op, |stored| {
            if stored.document(USERS, &name.id())?.is_none() {
                bail!(Code::USER_NOT_FOUND, "User '{name}' not found");
            }
            Ok(vec![(USERS, Change::Remove(name.id()))])
        })?;
        Ok(Reply::ok())
    }
}

/// `{dropAllUsersFromDatabase: 1}`.
pub struct DropAllUsers;

impl<'a> Command<'a, Operation<'a>> for DropAllUsers {
    const NAME: &'static str = "dropAllUsersFromDatabase";
    const SPEC: Spec = super::spec::changes(
        "removes all users of the database",
        Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::DropUser])]),
    );

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(DropAllUsers)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let mut count = 0;
        change(op, |stored| {
            let mut changes = Changes::new();
            stored.each(USERS, &mut |user| {
                if let Some(name) = UserName::read(user).filter(|name| name.db == op.db()) {
                    changes.push((USERS, Change::Remove(name.id())));
                }
                Ok(true)
            })?;
            count = changes.len() as i32;
            Ok(changes)
        })?;
        Ok(Reply::ok().with("n", count))
    }
}

/// `{dropRole: "name"}`.
pub struct DropRole<'a>(&'a str);

impl<'a> Command<'a, Operation<'a>> for DropRole<'a> {
    const NAME: &'static str = "dropRole";
    const SPEC: Spec = super::spec::changes(
        "removes a role of the database, and takes it from all who have it",
        Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::DropRole])]),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(DropRole(own_name(args)?))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let name = RoleName::new(self.0, op.db());
        check_made(&name)?;
        change(op, |stored| {
            existing(&name, stored)?;
            without(stored, std::slice::from_ref(&name))
        })?;
        Ok(Reply::ok())
    }
}

/// `{dropAllRolesFromDatabase: 1}`.
pub struct DropAllRoles;

impl<'a> Command<'a, Operation<'a>> for DropAllRoles {
    const NAME: &'static str = "dropAllRolesFromDatabase";
    const SPEC: Spec = super::spec::changes(
        "removes all roles of the database that somebody has made, and takes them from all who have them",
        Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::DropRole])]),
    );

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(DropAllRoles)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let mut count = 0;
        change(op, |stored| {
            let mut names = Vec::new();
            stored.each(ROLES, &mut |role| {
                names.extend(RoleName::read(role).filter(|name| name.db == op.db()));
                Ok(true)
            })?;
            count = names.len() as i32;
            without(stored, &names)
        })?;
        Ok(Reply::ok().with("n", count))
    }
}

/// What is to change so that these roles are gone.
fn without(stored: &Stored<'_>, gone: &[RoleName]) -> Result<Changes> {
    let mut changes = Changes::new();
    for namespace in [USERS, ROLES] {
        stored.each(namespace, &mut |document| {
            if namespace == ROLES && RoleName::read(document).is_some_and(|name| gone.contains(&name)) {
                return Ok(true);
            }
            if let Some(changed) = without_roles(document, gone) {
                changes.push((namespace, Change::Put(changed)));
            }
            Ok(true)
        })?;
    }
    changes.extend(gone.iter().map(|name| (ROLES, Change::Remove(name.id()))));
    Ok(changes)
}

/// The document of a user or a role without these roles; `None` if it has none of them.
fn without_roles(document: RawDoc<'_>, gone: &[RoleName]) -> Option<DocBuf> {
    let Some(Value::Array(list)) = document.get("roles") else { return None };
    let all: Vec<_> = list.values().filter_map(|role| role.as_doc().and_then(RoleName::read)).collect();
    let left = role_array(all.iter().filter(|name| !gone.contains(name)));
    let changed = all.iter().any(|name| gone.contains(name));
    changed.then(|| with_fields(document, &[("roles", Some(Value::Array(left.as_raw())))]))
}
