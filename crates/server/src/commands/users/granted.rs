//! Commands that grant and revoke roles and privileges.

use sheaf_auth::{Privilege, Privileges as Granted, Role, RoleName, UserDocument, UserName};
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::change_role::{check_privileges, check_roles, existing, privilege_array};
use super::fields::{RoleList, check_exist, check_made, own_name, privileges, role_array};
use super::written::{Change, change, with_fields};
use crate::accounts::{ROLES, USERS};
use crate::args::{Args, Array};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

const GRANTS: &str = "grantRole on the database of each role";
const REVOKES: &str = "revokeRole on the database of each role";

/// Roles with others among them, or without.
fn changed(before: &[RoleName], others: &[RoleName], grants: bool) -> Vec<RoleName> {
    let mut roles = before.to_vec();
    roles.retain(|role| grants || !others.contains(role));
    if grants {
        let new: Vec<_> = others.iter().filter(|role| !roles.contains(role)).cloned().collect();
        roles.extend(new);
    }
    roles
}

fn change_user(op: &Operation<'_>, user: &str, roles: RoleList<'_>, grants: bool) -> Result<Reply> {
    let name = UserName::new(user, op.db());
    let roles = roles.names(op.db())?;
    change(op, |stored| {
        let Some(old) = stored.document(USERS, &name.id())? else {
            bail!(Code::USER_NOT_FOUND, "Could not find user \"{}\" for db \"{}\"", name.user, name.db);
        };
        check_exist(&roles, stored)?;
        let before = UserDocument::read(old.as_raw())?.roles;
        let after = role_array(&changed(&before, &roles, grants));
        let fields = [("roles", Some(Value::Array(after.as_raw())))];
        Ok(vec![(USERS, Change::Put(with_fields(old.as_raw(), &fields)))])
    })?;
    Ok(Reply::ok())
}

fn change_role(op: &Operation<'_>, role: &str, roles: RoleList<'_>, grants: bool) -> Result<Reply> {
    let name = RoleName::new(role, op.db());
    let roles = roles.names(op.db())?;
    check_made(&name)?;
    change(op, |stored| {
        let old = existing(&name, stored)?;
        if grants {
            check_roles(&name, &roles, stored)?;
        } else {
            check_exist(&roles, stored)?;
        }
        let before = Role::read(old.as_raw())?.roles;
        let after = role_array(&changed(&before, &roles, grants));
        let fields = [("roles", Some(Value::Array(after.as_raw())))];
        Ok(vec![(ROLES, Change::Put(with_fields(old.as_raw(), &fields)))])
    })?;
    Ok(Reply::ok())
}

fn change_privileges(op: &Operation<'_>, role: &str, list: RawDoc<'_>, grants: bool) -> Result<Reply> {
    let name = RoleName::new(role, op.db());
    check_made(&name)?;
    let list = privileges(list)?;
    if grants {
        check_privileges(&name, &list)?;
    }
    change(op, |stored| {
        let old = existing(&name, stored)?;
        let mut granted: Granted = Role::read(old.as_raw())?.privileges;
        for privilege in list {
            if grants {
                granted.add(privilege);
            } else {
                granted.take(&privilege);
            }
        }
        let all = granted.iter().map(|(resource, actions)| Privilege { resource: resource.clone(), actions });
        let after = privilege_array(all);
        let fields = [("privileges", Some(Value::Array(after.as_raw())))];
        Ok(vec![(ROLES, Change::Put(with_fields(old.as_raw(), &fields)))])
    })?;
    Ok(Reply::ok())
}

macro_rules! of_roles {
    ($($about:literal $type:ident = $name:literal, $help:literal, $needs:expr, $judge:ident, $run:ident, $grants:literal;)*) => {$(
        #[doc = $about]
        pub struct $type<'a> {
            name: &'a str,
            roles: RoleList<'a>,
        }

        impl<'a> Command<'a, Operation<'a>> for $type<'a> {
            const NAME: &'static str = $name;
            const SPEC: Spec = super::spec::changes($help, Privileges::ByCommand($needs, super::rights::$judge));

            fn parse(args: &mut Args<'a>) -> Result<Self> {
                let name = own_name(args)?;
                Ok($type { name, roles: RoleList::some(args)? })
            }

            fn run(self, op: &Operation<'a>) -> Result<Reply> {
                $run(op, self.name, self.roles, $grants)
            }
        }
    )*};
}

of_roles! {
    "`{grantRolesToUser: \"name\", roles: [...]}`." GrantRolesToUser =
        "grantRolesToUser", "gives roles to a user", GRANTS, grant_roles, change_user, true;
    "`{revokeRolesFromUser: \"name\", roles: [...]}`." RevokeRolesFromUser =
        "revokeRolesFromUser", "takes roles from a user", REVOKES, revoke_roles, change_user, false;
    "`{grantRolesToRole: \"name\", roles: [...]}`." GrantRolesToRole =
        "grantRolesToRole", "has a role include others", GRANTS, grant_roles, change_role, true;
    "`{revokeRolesFromRole: \"name\", roles: [...]}`." RevokeRolesFromRole =
        "revokeRolesFromRole", "has a role include others no longer", REVOKES, revoke_roles, change_role, false;
}

macro_rules! of_privileges {
    ($($about:literal $type:ident = $name:literal, $help:literal, $needs:literal, $judge:ident, $grants:literal;)*) => {$(
        #[doc = $about]
        pub struct $type<'a> {
            role: &'a str,
            privileges: RawDoc<'a>,
        }

        impl<'a> Command<'a, Operation<'a>> for $type<'a> {
            const NAME: &'static str = $name;
            const SPEC: Spec = super::spec::changes($help, Privileges::ByCommand($needs, super::rights::$judge));

            fn parse(args: &mut Args<'a>) -> Result<Self> {
                let role = own_name(args)?;
                let Array(privileges) = args.required("privileges")?;
                if privileges.is_empty() {
                    bail!(Code::BAD_VALUE, concat!($name, " command requires a non-empty \"privileges\" array"));
                }
                Ok($type { role, privileges })
            }

            fn run(self, op: &Operation<'a>) -> Result<Reply> {
                change_privileges(op, self.role, self.privileges, $grants)
            }
        }
    )*};
}

of_privileges! {
    "`{grantPrivilegesToRole: \"name\", privileges: [...]}`." GrantPrivilegesToRole =
        "grantPrivilegesToRole", "gives privileges to a role",
        "grantRole on the database of each privilege, which is admin for what belongs to none", grant_privileges, true;
    "`{revokePrivilegesFromRole: \"name\", privileges: [...]}`." RevokePrivilegesFromRole =
        "revokePrivilegesFromRole", "takes privileges from a role",
        "revokeRole on the database of each privilege, which is admin for what belongs to none", revoke_privileges, false;
}
