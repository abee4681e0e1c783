//! Users and roles: documents of `admin.system.users` and `admin.system.roles`, and what was read of them last.
//!
//! What was read is kept until one of the two collections changes, by whatever: a command, an entry that the primary has sent, a
//! rollback. So a change holds for every connection from the next command on.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use sheaf_auth::{Account, Mechanism, Role, RoleName, Roles, UserName};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_storage::{Direction, Engine, Range, Uuid, View};

/// Where users are kept.
pub(crate) const USERS: &str = "admin.system.users";
/// Where the roles are kept that somebody has made.
pub(crate) const ROLES: &str = "admin.system.roles";

/// Most users that are kept in memory; with one more it begins anew.
const KEPT: usize = 10_000;

/// The collections as they were when something was read.
type Source = [Option<(Uuid, u64)>; 2];

#[derive(Default)]
struct Kept {
    source: Source,
    accounts: HashMap<UserName, Arc<Account>, ahash::RandomState>,
    /// Those of whom no user is kept, with the roles that they have.
    guests: HashMap<UserName, Arc<Account>, ahash::RandomState>,
}

/// What was read of users last.
#[derive(Default)]
pub struct KnownAccounts {
    kept: RwLock<Kept>,
    /// Whoever changes users or roles by a command holds this: circles of roles are looked for in what is there.
    pub(crate) turn: Mutex<()>,
}

/// Users and roles as they are in one state of the data.
pub(crate) struct Stored<'v>(pub &'v View);

impl Stored<'_> {
    /// The document of this `_id`.
    pub fn document(&self, namespace: &str, id: &str) -> Result<Option<DocBuf>> {
        let Some(collection) = self.0.collection(namespace) else { return Ok(None) };
        let found = self.0.get(collection, &collection.record_key(Value::String(id))?)?;
        Ok(found.map(|found| DocBuf::from(found.as_raw())))
    }

    /// Shows every document, as long as `each` wants more.
    pub fn each(&self, namespace: &str, each: &mut dyn FnMut(RawDoc<'_>) -> Result<bool>) -> Result<()> {
        let Some(collection) = self.0.collection(namespace) else { return Ok(()) };
        let mut cursor = self.0.records(collection, Range::ALL, Direction::Forward)?;
        while cursor.next()? {
            if !each(cursor.doc())? {
                break;
            }
        }
        Ok(())
    }
}

impl Roles for Stored<'_> {
    fn made(&self, name: &RoleName) -> Result<Option<Role>> {
        self.document(ROLES, &name.id())?.map(|doc| Role::read(doc.as_raw())).transpose()
    }
}

fn source(engine: &Engine) -> Source {
    let catalog = engine.catalog();
    [USERS, ROLES].map(|name| catalog.collection(name).map(|found| (found.uuid, found.version())))
}

impl KnownAccounts {
    /// The user of this name as it is now.
    ///
    /// Errors: those of reading users and roles.
    pub fn find(&self, engine: &Engine, name: &UserName) -> Result<Option<Arc<Account>>> {
        // Before the data: what changes in between is read again next time.
        let source = source(engine);
        if source[0].is_none() {
            return Ok(None);
        }
        {
            let kept = self.kept.read();
            if kept.source == source
                && let Some(account) = kept.accounts.get(name)
            {
                return Ok(Some(account.clone()));
            }
        }
        let view = engine.view()?;
        let stored = Stored(&view);
        let Some(document) = stored.document(USERS, &name.id())? else { return Ok(None) };
        let account = Arc::new(Account::read(document.as_raw(), &stored)?);
        let mut kept = self.kept.write();
        if kept.source != source || kept.accounts.len() >= KEPT {
            *kept = Kept { source, ..Kept::default() };
        }
        kept.accounts.insert(name.clone(), account.clone());
        Ok(Some(account))
    }

    /// Somebody of whom no user is kept, with these roles as they are now.
    ///
    /// Errors: those of reading roles.
    pub fn with_roles(&self, engine: &Engine, name: &UserName, roles: &[RoleName]) -> Result<Arc<Account>> {
        // Before the data: what changes in between is read again next time.
        let source = source(engine);
        {
            let kept = self.kept.read();
            let guest = kept.guests.get(name).filter(|guest| guest.user.roles == roles);
            if kept.source == source
                && let Some(account) = guest
            {
                return Ok(account.clone());
            }
        }
        let view = engine.view()?;
        let account = Arc::new(Account::of_roles(name.clone(), roles, &Stored(&view))?);
        let mut kept = self.kept.write();
        if kept.source != source || kept.guests.len() >= KEPT {
            *kept = Kept { source, ..Kept::default() };
        }
        kept.guests.insert(name.clone(), account.clone());
        Ok(account)
    }

    /// A number that is another one as soon as a user or a role has changed.
    pub fn generation(engine: &Engine) -> ObjectId {
        let mut bytes = Vec::new();
        for (uuid, version) in source(engine).into_iter().flatten() {
            bytes.extend_from_slice(uuid.as_bytes());
            bytes.extend_from_slice(&version.to_le_bytes());
        }
        // It tells states apart, and hides nothing.
        let hash = Mechanism::Sha256.hmac(b"users and roles", &bytes);
        ObjectId(std::array::from_fn(|at| hash[at]))
    }

    /// Whether there is no user and no role.
    ///
    /// Errors: those of reading them.
    pub fn is_empty(engine: &Engine) -> Result<bool> {
        let view = engine.view()?;
        let mut any = false;
        for namespace in [USERS, ROLES] {
            Stored(&view).each(namespace, &mut |_| {
                any = true;
                Ok(false)
            })?;
        }
        Ok(!any)
    }
}
