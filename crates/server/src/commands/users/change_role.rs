//! `createRole` and `updateRole`.

use sheaf_auth::{Privilege, Privileges as Granted, RoleName, builtin, closes_circle};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::fields::{
    Restrictions, RoleList, check_db, check_exist, check_made, own_name, privileges, role_array,
};
use super::written::{Change, change, with_fields};
use crate::accounts::{ROLES, Stored};
use crate::args::{Args, Array};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{createRole: "name", privileges: [...], roles: [...]}`.
pub struct CreateRole<'a> {
    role: &'a str,
    privileges: RawDoc<'a>,
    roles: RoleList<'a>,
    restrictions: Restrictions,
}

impl<'a> Command<'a, Operation<'a>> for CreateRole<'a> {
    const NAME: &'static str = "createRole";
    const SPEC: Spec = super::spec::changes(
        "adds a role to the database",
        Privileges::ByCommand(
            "createRole on the database; grantRole on the database of each role and of each privilege, which is admin for what belongs to none; setAuthenticationRestriction on the database, if there are any",
            super::rights::create_role,
        ),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let role = own_name(args)?;
        let Array(privileges) = args.required("privileges")?;
        let Some(roles) = RoleList::optional(args)? else {
            bail!(40414, "BSON field 'createRole.roles' is missing but a required field");
        };
        Ok(CreateRole { role, privileges, roles, restrictions: Restrictions::parse(args)? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let name = RoleName::new(self.role, op.db());
        check_db(op.db(), "roles")?;
        if self.role.is_empty() {
            bail!(Code::BAD_VALUE, "Role name must be non-empty");
        }
        if op.db() == "$external" {
            bail!(Code::BAD_VALUE, "Cannot create roles in the $external database");
        }
        if builtin::is_built_in(&name) {
            bail!(Code::BAD_VALUE, "Cannot create roles with the same name as a built-in role");
        }
        let roles = self.roles.names(op.db())?;
        let granted = privileges(self.privileges)?;
        check_privileges(&name, &granted)?;
        let document = DocBuf::build(|doc| {
            doc.append("_id", &name.id());
            name.write(doc);
            doc.append("privileges", Value::Array(privilege_array(granted).as_raw()));
            doc.append("roles", Value::Array(role_array(&roles).as_raw()));
            if let Some(restrictions) = self.restrictions.kept() {
                doc.append("authenticationRestrictions", restrictions);
            }
        });
        change(op, |stored| {
            check_roles(&name, &roles, stored)?;
            if stored.document(ROLES, &name.id())?.is_some() {
                bail!(51002, "Role \"{name}\" already exists");
            }
            Ok(vec![(ROLES, Change::Put(document))])
        })?;
        Ok(Reply::ok())
    }
}

/// `privileges` as documents have it: those on the same resource are one.
pub fn privilege_array(granted: impl IntoIterator<Item = Privilege>) -> ArrayBuf {
    let all: Granted = granted.into_iter().collect();
    ArrayBuf::build(|list| all.write(list))
}

/// Refuses roles that this one cannot include.
///
/// Errors: `RoleNotFound`, `InvalidRoleModification`.
pub fn check_roles(name: &RoleName, roles: &[RoleName], stored: &Stored<'_>) -> Result<()> {
    for other in roles {
        if other == name {
            bail!(Code::INVALID_ROLE_MODIFICATION, "Cannot grant role {name} to itself.");
        }
        if name.db != "admin" && other.db != name.db {
            bail!(
                Code::INVALID_ROLE_MODIFICATION,
                "Roles on the '{}' database cannot be granted roles from other databases",
                name.db
            );
        }
    }
    check_exist(roles, stored)?;
    for other in roles {
        if closes_circle(name, other, stored)? {
            bail!(
                Code::INVALID_ROLE_MODIFICATION,
                "Granting {other} to {name} would introduce a cycle in the role graph."
            );
        }
    }
    Ok(())
}

/// Refuses privileges that a role cannot have.
///
/// Errors: `InvalidRoleModification`.
pub fn check_privileges(name: &RoleName, granted: &[Privilege]) -> Result<()> {
    if name.db != "admin" && granted.iter().any(|privilege| !privilege.resource.is_of(&name.db)) {
        bail!(
            Code::INVALID_ROLE_MODIFICATION,
            "Roles on the '{}' database cannot be granted privileges that target other databases or the cluster",
            name.db
        );
    }
    Ok(())
}

/// `{updateRole: "name", ...}`: each field that is given takes the place of the old one.
pub struct UpdateRole<'a> {
    role: &'a str,
    privileges: Option<RawDoc<'a>>,
    roles: Option<RoleList<'a>>,
    restrictions: Restrictions,
}

impl<'a> Command<'a, Operation<'a>> for UpdateRole<'a> {
    const NAME: &'static str = "updateRole";
    const SPEC: Spec = super::spec::changes(
        "changes a role of the database",
        Privileges::ByCommand(
            "revokeRole on every database, as it takes away what was there; grantRole on the database of each role and of each privilege, which is admin for what belongs to none; setAuthenticationRestriction on the database, if there are any",
            super::rights::update_role,
        ),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let role = own_name(args)?;
        let privileges = args.optional::<Array<'a>>("privileges")?.map(|list| list.0);
        let roles = RoleList::optional(args)?;
        let restrictions = Restrictions::parse(args)?;
        if privileges.is_none() && roles.is_none() && restrictions.0.is_none() {
            bail!(Code::BAD_VALUE, "Must specify at least one field to update in updateRole");
        }
        Ok(UpdateRole { role, privileges, roles, restrictions })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let name = RoleName::new(self.role, op.db());
        check_made(&name)?;
        let roles = self.roles.map(|roles| roles.names(op.db())).transpose()?;
        let granted = self.privileges.map(privileges).transpose()?;
        check_privileges(&name, granted.as_deref().unwrap_or_default())?;
        change(op, |stored| {
            let old = existing(&name, stored)?;
            check_roles(&name, roles.as_deref().unwrap_or_default(), stored)?;
            let granted = granted.map(privilege_array);
            let roles = roles.as_ref().map(role_array);
            let mut fields: Vec<(&str, Option<Value<'_>>)> = Vec::new();
            for (field, list) in [("privileges", &granted), ("roles", &roles)] {
                if let Some(list) = list {
                    fields.push((field, Some(Value::Array(list.as_raw()))));
                }
            }
            if self.restrictions.0.is_some() {
                fields.push(("authenticationRestrictions", self.restrictions.kept()));
            }
            Ok(vec![(ROLES, Change::Put(with_fields(old.as_raw(), &fields)))])
        })?;
        Ok(Reply::ok())
    }
}

/// The document of a role that must be there.
///
/// Errors: `RoleNotFound`.
pub fn existing(name: &RoleName, stored: &Stored<'_>) -> Result<DocBuf> {
    match stored.document(ROLES, &name.id())? {
        Some(document) => Ok(document),
        None => bail!(Code::ROLE_NOT_FOUND, "Could not find role: {name}"),
    }
}
