//! What the commands of users and roles have in their fields.

use sheaf_auth::{Credential, Mechanism, Privilege, RestrictionSet, RoleName, Roles, builtin, prepare};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::sasl;

use crate::accounts::Stored;
use crate::args::{Args, Array, Loose};
use crate::op::Operation;

/// The name that is the command's own value.
pub fn own_name<'a>(args: &mut Args<'a>) -> Result<&'a str> {
    let command = args.command();
    match args.own_value() {
        Value::String(name) => Ok(name),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{command}' is the wrong type '{}', expected type 'string'",
            other.type_name()
        ),
    }
}

/// Roles as they stand in a command: a name is one of the command's database.
#[derive(Clone, Copy)]
pub struct RoleList<'a>(RawDoc<'a>);

impl<'a> RoleList<'a> {
    /// The field, if it is there.
    pub fn optional(args: &mut Args<'a>) -> Result<Option<Self>> {
        Ok(args.optional::<Array<'a>>("roles")?.map(|list| RoleList(list.0)))
    }

    /// A field that must be there, and not be empty.
    pub fn some(args: &mut Args<'a>) -> Result<Self> {
        let list: Array<'a> = args.required("roles")?;
        if list.0.is_empty() {
            bail!(Code::BAD_VALUE, "{} command requires a non-empty \"roles\" array", args.command());
        }
        Ok(RoleList(list.0))
    }

    /// The names.
    ///
    /// Errors: `BadValue`.
    pub fn names(self, db: &str) -> Result<Vec<RoleName>> {
        names(self.0, db)
    }
}

/// The names of roles in a list.
///
/// Errors: `BadValue`.
fn names(list: RawDoc<'_>, db: &str) -> Result<Vec<RoleName>> {
    let mut names = Vec::new();
    for value in list.values() {
        let name = match value {
            Value::String(role) => Some(RoleName::new(role, db)),
            Value::Document(doc) => RoleName::read(doc),
            _ => None,
        };
        match name {
            Some(name) if !name.role.is_empty() && !names.contains(&name) => names.push(name),
            Some(name) if names.contains(&name) => {}
            _ => bail!(Code::BAD_VALUE, "Role names must be either strings or objects"),
        }
    }
    Ok(names)
}

/// Refuses roles that there are not.
///
/// Errors: `RoleNotFound`.
pub fn check_exist(names: &[RoleName], stored: &Stored<'_>) -> Result<()> {
    for name in names {
        if stored.role(name)?.is_none() {
            bail!(Code::ROLE_NOT_FOUND, "Could not find role: {name}");
        }
    }
    Ok(())
}

/// `roles` as documents have it.
pub fn role_array<'n>(names: impl IntoIterator<Item = &'n RoleName>) -> ArrayBuf {
    ArrayBuf::build(|list| names.into_iter().for_each(|name| name.write(&mut list.document())))
}

/// `privileges` of a command.
///
/// Errors: those of [`Privilege::read`].
pub fn privileges(list: RawDoc<'_>) -> Result<Vec<Privilege>> {
    let mut all = Vec::new();
    for value in list.values() {
        match value.as_doc() {
            Some(doc) => all.push(Privilege::read(doc, false)?),
            None => bail!(Code::BAD_VALUE, "Privileges must be documents"),
        }
    }
    Ok(all)
}

/// `authenticationRestrictions`, in the form in which it is kept.
pub struct Restrictions(pub Option<ArrayBuf>);

impl Restrictions {
    /// Reads the field.
    ///
    /// Errors: those of [`RestrictionSet::read`].
    pub fn parse(args: &mut Args<'_>) -> Result<Self> {
        let Some(Array(list)) = args.optional("authenticationRestrictions")? else {
            return Ok(Restrictions(None));
        };
        let set = RestrictionSet::read(list)?;
        Ok(Restrictions(Some(ArrayBuf::build(|out| set.write(out)))))
    }

    /// The field as it is kept; an empty list is none.
    pub fn kept(&self) -> Option<Value<'_>> {
        self.0.as_ref().filter(|list| !list.as_raw().is_empty()).map(|list| Value::Array(list.as_raw()))
    }
}

/// `pwd`, `digestPassword` and `mechanisms`.
pub struct Password<'a> {
    password: Option<&'a str>,
    /// Whether the server makes the digest that `SCRAM-SHA-1` uses.
    digest: bool,
    /// The mechanisms that were asked for.
    pub mechanisms: Option<Vec<Mechanism>>,
}

impl<'a> Password<'a> {
    /// Reads the fields.
    ///
    /// Errors: `BadValue`.
    pub fn parse(args: &mut Args<'a>) -> Result<Self> {
        let password: Option<&str> = args.optional("pwd")?;
        let digest = args.optional::<Loose>("digestPassword")?.is_none_or(|flag| flag.0);
        let mechanisms = match args.optional::<Array<'_>>("mechanisms")? {
            None => None,
            Some(Array(list)) if list.is_empty() => {
                bail!(Code::BAD_VALUE, "mechanisms field must not be empty")
            }
            Some(Array(list)) => Some(list.values().map(mechanism).collect::<Result<Vec<_>>>()?),
        };
        if password == Some("") {
            bail!(Code::BAD_VALUE, "Password cannot be empty");
        }
        Ok(Password { password, digest, mechanisms })
    }

    /// Whether there is one.
    pub fn is_given(&self) -> bool {
        self.password.is_some()
    }

    /// What is kept of it, for these mechanisms or those that the server has. Takes a while.
    ///
    /// Errors: `BadValue` for a password that a mechanism cannot use.
    pub fn credentials(&self, op: &Operation<'_>, user: &str) -> Result<DocBuf> {
        let password = self.password.expect("asked only where there is one");
        let parameters = &op.front.parameters;
        let mut mechanisms = self.mechanisms.clone().unwrap_or_else(|| sasl::enabled(parameters));
        mechanisms.sort_unstable();
        mechanisms.dedup();
        let mut credentials = DocBuf::new();
        for mechanism in mechanisms {
            let prepared = match (mechanism, self.digest) {
                (_, true) => prepare(mechanism, user, password)?,
                (Mechanism::Sha1, false) => password.to_owned(),
                (Mechanism::Sha256, false) => {
                    bail!(Code::BAD_VALUE, "Use of SCRAM-SHA-256 requires undigested passwords")
                }
            };
            let mut salt = vec![0; mechanism.salt_bytes()];
            rand::Rng::fill_bytes(&mut rand::rng(), &mut salt);
            let iterations = sasl::iterations(parameters, mechanism);
            let credential = op.blocking(|| Credential::derive(mechanism, &prepared, salt, iterations));
            credentials.edit(|doc| credential.write(&mut doc.document(mechanism.name())));
        }
        Ok(credentials)
    }
}

fn mechanism(name: Value<'_>) -> Result<Mechanism> {
    let name = name.as_str().unwrap_or_default();
    match Mechanism::from_name(name) {
        Some(mechanism) => Ok(mechanism),
        None => bail!(Code::BAD_VALUE, "Unknown auth mechanism '{name}'"),
    }
}

/// Refuses databases that have no users or roles of their own.
///
/// Errors: `BadValue`.
pub fn check_db(db: &str, what: &str) -> Result<()> {
    if db == "local" {
        bail!(Code::BAD_VALUE, "Cannot create {what} in the local database");
    }
    Ok(())
}

/// Refuses to change a role that every server has.
///
/// Errors: `InvalidRoleModification`.
pub fn check_made(name: &RoleName) -> Result<()> {
    if builtin::is_built_in(name) {
        bail!(Code::INVALID_ROLE_MODIFICATION, "{name} is a built-in role and cannot be modified");
    }
    Ok(())
}
