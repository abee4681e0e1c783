//! `createUser` and `updateUser`.

use sheaf_auth::{UserDocument, UserName};
use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::sasl;

use super::fields::{Password, Restrictions, RoleList, check_db, check_exist, own_name, role_array};
use super::written::{Change, change, with_fields};
use crate::accounts::USERS;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{createUser: "name", pwd: ..., roles: [...]}`.
pub struct CreateUser<'a> {
    user: &'a str,
    password: Password<'a>,
    custom_data: Option<RawDoc<'a>>,
    roles: RoleList<'a>,
    restrictions: Restrictions,
}

impl<'a> Command<'a, Operation<'a>> for CreateUser<'a> {
    const NAME: &'static str = "createUser";
    const SPEC: Spec = super::spec::changes(
        "adds a user to the database",
        Privileges::ByCommand(
            "createUser on the database; grantRole on the database of each role; setAuthenticationRestriction on the database, if there are any",
            super::rights::create_user,
        ),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let user = own_name(args)?;
        let password = Password::parse(args)?;
        let custom_data = args.optional("customData")?;
        let Some(roles) = RoleList::optional(args)? else {
            bail!(40414, "BSON field 'createUser.roles' is missing but a required field");
        };
        Ok(CreateUser { user, password, custom_data, roles, restrictions: Restrictions::parse(args)? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let name = UserName::new(self.user, op.db());
        self.check(op.db())?;
        if op.db() == "$external" && sasl::is_reserved(op, self.user) {
            bail!(
                Code::BAD_VALUE,
                "Cannot create an x.509 user with a subjectname that would be recognized as an internal cluster member"
            );
        }
        let roles = self.roles.names(op.db())?;
        let credentials = if op.db() == "$external" {
            DocBuf::new().with("external", true)
        } else {
            self.password.credentials(op, self.user)?
        };
        let id = *uuid::Uuid::new_v4().as_bytes();
        let document = DocBuf::build(|doc| {
            doc.append("_id", &name.id());
            doc.append("userId", Value::Binary(Binary { subtype: 4, bytes: &id }));
            name.write(doc);
            doc.append("credentials", &credentials);
            if let Some(data) = self.custom_data {
                doc.append("customData", data);
            }
            doc.append("roles", Value::Array(role_array(&roles).as_raw()));
            if let Some(restrictions) = self.restrictions.kept() {
                doc.append("authenticationRestrictions", restrictions);
            }
        });
        change(op, |stored| {
            check_exist(&roles, stored)?;
            if stored.document(USERS, &name.id())?.is_some() {
                bail!(51003, "User \"{name}\" already exists");
            }
            Ok(vec![(USERS, Change::Put(document))])
        })?;
        Ok(Reply::ok())
    }
}

impl CreateUser<'_> {
    fn check(&self, db: &str) -> Result<()> {
        check_db(db, "users")?;
        if self.user.is_empty() {
            bail!(Code::BAD_VALUE, "Username cannot be empty");
        }
        if self.user.contains('\0') {
            bail!(Code::BAD_VALUE, "Username cannot contain NULL characters");
        }
        match (db == "$external", self.password.is_given()) {
            (true, true) => bail!(
                Code::BAD_VALUE,
                "Cannot set the password for users defined on the '$external' database"
            ),
            (false, false) => bail!(
                Code::BAD_VALUE,
                "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db"
            ),
            _ => Ok(()),
        }
    }
}

/// `{updateUser: "name", ...}`: each field that is given takes the place of the old one.
pub struct UpdateUser<'a> {
    user: &'a str,
    password: Password<'a>,
    custom_data: Option<RawDoc<'a>>,
    roles: Option<RoleList<'a>>,
    restrictions: Restrictions,
}

impl<'a> Command<'a, Operation<'a>> for UpdateUser<'a> {
    const NAME: &'static str = "updateUser";
    const SPEC: Spec = super::spec::changes(
        "changes a user of the database",
        Privileges::ByCommand(
            "changePassword (or changeOwnPassword) and changeCustomData (or changeOwnCustomData) on the database, as the fields ask for it; for roles revokeRole on every database and grantRole on the database of each role; setAuthenticationRestriction on the database, if there are any",
            super::rights::update_user,
        ),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let user = own_name(args)?;
        let password = Password::parse(args)?;
        let custom_data = args.optional("customData")?;
        let roles = RoleList::optional(args)?;
        let restrictions = Restrictions::parse(args)?;
        let nothing = !password.is_given()
            && password.mechanisms.is_none()
            && custom_data.is_none()
            && roles.is_none()
            && restrictions.0.is_none();
        if nothing {
            bail!(Code::BAD_VALUE, "Must specify at least one field to update in updateUser");
        }
        Ok(UpdateUser { user, password, custom_data, roles, restrictions })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let name = UserName::new(self.user, op.db());
        let roles = self.roles.map(|roles| roles.names(op.db())).transpose()?;
        if self.password.is_given() && op.db() == "$external" {
            bail!(Code::BAD_VALUE, "Cannot set the password for users defined on the '$external' database");
        }
        let given = self.password.is_given();
        let credentials = given.then(|| self.password.credentials(op, self.user)).transpose()?;
        change(op, |stored| {
            let Some(old) = stored.document(USERS, &name.id())? else {
                bail!(Code::USER_NOT_FOUND, "User {name} not found");
            };
            check_exist(roles.as_deref().unwrap_or_default(), stored)?;
            let credentials = match credentials {
                Some(credentials) => Some(credentials),
                None => self.fewer_mechanisms(old.as_raw())?,
            };
            let roles = roles.as_ref().map(role_array);
            let mut fields: Vec<(&str, Option<Value<'_>>)> = Vec::new();
            if let Some(credentials) = &credentials {
                fields.push(("credentials", Some(Value::Document(credentials.as_raw()))));
            }
            if let Some(data) = self.custom_data {
                fields.push(("customData", Some(Value::Document(data))));
            }
            if let Some(roles) = &roles {
                fields.push(("roles", Some(Value::Array(roles.as_raw()))));
            }
            if self.restrictions.0.is_some() {
                fields.push(("authenticationRestrictions", self.restrictions.kept()));
            }
            Ok(vec![(USERS, Change::Put(with_fields(old.as_raw(), &fields)))])
        })?;
        Ok(Reply::ok())
    }
}

impl UpdateUser<'_> {
    /// The credentials that are left of a user whose password stays: new ones cannot be made without it.
    fn fewer_mechanisms(&self, old: RawDoc<'_>) -> Result<Option<DocBuf>> {
        let Some(wanted) = &self.password.mechanisms else { return Ok(None) };
        let user = UserDocument::read(old)?;
        if wanted.iter().any(|mechanism| !user.has(*mechanism)) {
            bail!(Code::BAD_VALUE, "mechanisms field must be a subset of previously set mechanisms");
        }
        Ok(Some(DocBuf::build(|doc| {
            for (mechanism, credential) in user.credentials.iter().filter(|(of, _)| wanted.contains(of)) {
                credential.write(&mut doc.document(mechanism.name()));
            }
        })))
    }
}
