//! A user: what is stored of it, and what its roles come to.

use std::net::IpAddr;
use std::sync::Arc;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::held::Held;
use crate::keys::MEMBER_USER;
use crate::name::{RoleName, UserName};
use crate::resolve::{Resolved, Role, Roles, read_names, resolve};
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

    /// What it proves itself with by this mechanism; more than one, which then have their salt in common, only that of members.
    pub fn credentials(&self, mechanism: Mechanism) -> impl Iterator<Item = &Credential> {
        self.credentials.iter().filter(move |(of, _)| *of == mechanism).map(|(_, credential)| credential)
    }

    /// Whether it can prove itself by this mechanism.
    pub fn has(&self, mechanism: Mechanism) -> bool {
        self.credentials(mechanism).next().is_some()
    }
}

/// By what sessions name a user (`uid`).
pub fn user_digest(name: &UserName) -> [u8; 32] {
    let hash = Mechanism::Sha256.hash(name.to_string().as_bytes());
    std::array::from_fn(|at| hash[at])
}

fn shown(resolved: &Resolved) -> Arc<DocBuf> {
    Arc::new(DocBuf::build(|list| {
        for (at, role) in resolved.roles.iter().enumerate() {
            let mut entry = list.document(&at.to_string());
            entry.append("_id", &role.id());
            role.write(&mut entry);
        }
    }))
}

/// Where nobody has made any.
struct NoRoles;

impl Roles for NoRoles {
    fn made(&self, _: &RoleName) -> Result<Option<Role>> {
        Ok(None)
    }
}

/// A user with everything that its roles come to.
#[derive(Clone, Debug)]
pub struct Account {
    /// What is stored of it.
    pub user: UserDocument,
    /// What its roles come to.
    pub resolved: Resolved,
    held: Held,
    digest: [u8; 32],
    /// As `$$USER_ROLES` shows them: an array of `{_id, role, db}`.
    roles_shown: Arc<DocBuf>,
    /// No document makes a user a member.
    is_member: bool,
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
        Ok(Account::new(user, resolved, false))
    }

    /// A user of whom no document is kept: somebody else says who it is, and which roles it has.
    ///
    /// Errors: those of reading roles.
    pub fn of_roles(name: UserName, direct: &[RoleName], roles: &dyn Roles) -> Result<Self> {
        let resolved = resolve(direct, roles)?;
        let restrictions = RestrictionSet::default();
        let user =
            UserDocument { name, id: None, credentials: Vec::new(), roles: direct.to_vec(), restrictions };
        Ok(Account::new(user, resolved, false))
    }

    /// The members of the deployment: one user, with these credentials, that may do everything.
    pub fn of_members(credentials: Vec<(Mechanism, Credential)>) -> Self {
        let (user, db) = MEMBER_USER;
        let (name, role) = (UserName::new(user, db), RoleName::new(user, "admin"));
        let roles = vec![role];
        let resolved = resolve(&roles, &NoRoles).expect("a built-in role is not read");
        let user =
            UserDocument { name, id: None, credentials, roles, restrictions: RestrictionSet::default() };
        Account::new(user, resolved, true)
    }

    fn new(user: UserDocument, resolved: Resolved, is_member: bool) -> Self {
        let (held, roles_shown) = (Held::new(&resolved.privileges), shown(&resolved));
        let digest = user_digest(&user.name);
        Account { user, resolved, held, digest, roles_shown, is_member }
    }

    /// By what sessions name it.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// What it may do, by where.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Whether it is [that](Account::of_members) of the members.
    pub fn is_member(&self) -> bool {
        self.is_member
    }

    /// Its roles as `$$USER_ROLES` shows them.
    pub fn roles_shown(&self) -> &Arc<DocBuf> {
        &self.roles_shown
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
