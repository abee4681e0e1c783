//! A user: what is stored of it, and what its roles come to.

use std::net::IpAddr;

use sheaf_bson::{DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::name::{RoleName, UserName};
use crate::resolve::{Resolved, Roles, read_names, resolve};
use crate::restriction::{RestrictionSet, met};
use crate::scram::{Credential, Mechanism};

/// A document of `admin.system.users`.
#[derive(Clone, Debug)]
pub struct UserDocument {
    /// Its name.
    pub name: UserName,
    /// `userId`, by which a user is told from a later one of the same name.
    pub id: Option<[u8; 16]>,
    /// What it can prove itself with.
    pub credentials: Vec<(Mechanism, Credential)>,
    /// The roles that it was granted.
    pub roles: Vec<RoleName>,
    /// From where it may come.
    pub restrictions: RestrictionSet,
}

impl UserDocument {
    /// Reads a document.
    ///
    /// Errors: `UnsupportedFormat` for what is no user.
    pub fn read(doc: RawDoc<'_>) -> Result<Self> {
        let Some(name) = UserName::read(doc) else {
            bail!(Code::UNSUPPORTED_FORMAT, "User document needs 'user' and 'db' fields that are strings");
        };
        let id = match doc.get("userId") {
            Some(Value::Binary(id)) => id.bytes.try_into().ok(),
            _ => None,
        };
        let mut credentials = Vec::new();
        if let Some(Value::Document(kept)) = doc.get("credentials") {
            for mechanism in Mechanism::ALL {
                let Some(Value::Document(kept)) = kept.get(mechanism.name()) else { continue };
                match Credential::read(mechanism, kept) {
                    Some(credential) => credentials.push((mechanism, credential)),
                    None => bail!(
                        Code::UNSUPPORTED_FORMAT,
                        "Credential of user {name} for {} is malformed",
                        mechanism.name()
                    ),
                }
            }
        }
        let restrictions = match doc.get("authenticationRestrictions") {
            Some(Value::Array(list)) => RestrictionSet::read(list)?,
            _ => RestrictionSet::default(),
        };
        Ok(UserDocument { name, id, credentials, roles: read_names(doc.get("roles"))?, restrictions })
    }

    /// What it proves itself with by this mechanism.
    pub fn credential(&self, mechanism: Mechanism) -> Option<&Credential> {
        self.credentials.iter().find(|(of, _)| *of == mechanism).map(|(_, credential)| credential)
    }
}

/// A user with everything that its roles come to.
#[derive(Clone, Debug)]
pub struct Account {
    /// What is stored of it.
    pub user: UserDocument,
    /// What its roles come to.
    pub resolved: Resolved,
}

impl Account {
    /// The user of this document with these roles.
    ///
    /// Errors: those of documents that are none.
    pub fn read(doc: RawDoc<'_>, roles: &dyn Roles) -> Result<Self> {
        let user = UserDocument::read(doc)?;
        let mut resolved = resolve(&user.roles, roles)?;
        if !user.restrictions.is_empty() {
            resolved.restrictions.push(user.restrictions.clone());
        }
        Ok(Account { user, resolved })
    }

    /// Whether it may come from there.
    pub fn may_come(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        met(&self.resolved.restrictions, client, server)
    }

    /// Writes name and database.
    pub fn write_name(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        self.user.name.write(doc);
    }
}
