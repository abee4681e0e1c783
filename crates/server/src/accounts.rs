//! Users and roles: documents of `admin.system.users` and `admin.system.roles`, and what was read of them last.
//!
//! What was read is kept until one of the two collections changes, by whatever: a command, an entry that the primary has sent, a
//! rollback. So a change holds for every connection from the next command on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use sheaf_auth::{Account, Feigned, Mechanism, Role, RoleName, Roles, UserDocument, UserName};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_front::access::State;
use sheaf_front::sasl::stored_user;
use sheaf_storage::{Catalog, Changes, Direction, Engine, Range, View};

/// Where users are kept.
pub(crate) const USERS: &str = "admin.system.users";
/// Where the roles are kept that somebody has made.
pub(crate) const ROLES: &str = "admin.system.roles";

/// Most users that are kept in memory; with one more it begins anew.
const KEPT: usize = 10_000;

/// The collections of users and roles, and the numbers of their last changes: a [`State`]'s mark.
#[derive(Default)]
struct Source {
    /// By which catalog; held weakly, it is not another one at the same place, and costs no memory to speak of.
    catalog: Weak<Catalog>,
    collections: [Option<Changes>; 2],
    versions: [u64; 2],
    /// How many there have been before.
    number: u64,
}

impl Source {
    fn is_present(&self, engine: &Engine) -> bool {
        // Each command asks: no iterator, which is not always a comparison of two numbers.
        let ([users, roles], [of_users, of_roles]) = (&self.collections, &self.versions);
        engine.shows(&self.catalog) && version(users) == *of_users && version(roles) == *of_roles
    }
}

#[inline]
fn version(collection: &Option<Changes>) -> u64 {
    collection.as_ref().map_or(0, Changes::version)
}

/// Whether a state that [`KnownAccounts::present`] has told is still the present one.
pub(crate) fn is_still(engine: &Engine, state: &State) -> bool {
    let source = state.mark.as_deref().and_then(|mark| mark.downcast_ref::<Source>());
    source.is_some_and(|source| source.is_present(engine))
}

#[derive(Default)]
struct Kept {
    /// The number of the [`Source`] of which it is.
    state: u64,
    accounts: HashMap<UserName, Arc<Account>, ahash::RandomState>,
    /// Those of whom no user is kept, with the roles that they have.
    guests: HashMap<UserName, Arc<Account>, ahash::RandomState>,
    /// What users are like that there are not.
    feigned: Option<Arc<Feigned>>,
}

/// What was read of users last.
#[derive(Default)]
pub struct KnownAccounts {
    source: RwLock<Arc<Source>>,
    kept: RwLock<Kept>,
    /// Tells this process from an earlier one, which may have counted as far.
    process: OnceLock<[u8; 16]>,
    /// There was a user or a role.
    any: AtomicBool,
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

impl KnownAccounts {
    /// A number that is another one as soon as a user or a role has changed.
    pub fn state(&self, engine: &Engine) -> u64 {
        self.source(engine).number
    }

    /// The present state, for connections to keep.
    pub fn present(&self, engine: &Engine) -> State {
        let source = self.source(engine);
        State { number: source.number, mark: Some(source) }
    }

    fn source(&self, engine: &Engine) -> Arc<Source> {
        {
            let source = self.source.read();
            if source.is_present(engine) {
                return source.clone();
            }
        }
        let mut source = self.source.write();
        let catalog = engine.catalog();
        let found = [USERS, ROLES].map(|name| catalog.collection(name));
        let collections = found.map(|collection| collection.map(|collection| collection.changes()));
        let versions = collections.each_ref().map(version);
        let changed = versions != source.versions || collections != source.collections;
        let number = source.number + u64::from(changed);
        // Whoever removes the last one has been seen before.
        let any = found.iter().flatten().any(|collection| collection.count() > 0);
        self.any.fetch_or(any, Ordering::Relaxed);
        let catalog = Arc::downgrade(&catalog);
        *source = Arc::new(Source { catalog, collections, versions, number });
        source.clone()
    }

    /// The user of this name as it is now.
    ///
    /// Errors: those of reading users and roles.
    pub fn find(&self, engine: &Engine, name: &UserName) -> Result<Option<Arc<Account>>> {
        // Before the data: what changes in between is read again next time.
        let state = self.state(engine);
        {
            let kept = self.kept.read();
            if kept.state == state
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
        if kept.state != state || kept.accounts.len() >= KEPT {
            *kept = Kept { state, ..Kept::default() };
        }
        kept.accounts.insert(name.clone(), account.clone());
        Ok(Some(account))
    }

    /// The user of this name, whatever was read before; for one that there is not another one is read.
    ///
    /// Errors: those of reading users.
    pub fn look_up(
        &self,
        engine: &Engine,
        name: &UserName,
        feigned: &Feigned,
    ) -> Result<Option<UserDocument>> {
        let view = engine.view()?;
        let document = Stored(&view).document(USERS, &name.id())?;
        Ok(stored_user(document.as_ref().map(DocBuf::as_raw), name, feigned))
    }

    /// What users are like that there are not; `None` where there is no collection of users.
    ///
    /// Errors: those of reading users.
    pub fn feigned(&self, engine: &Engine) -> Result<Option<Arc<Feigned>>> {
        // Before the data: what changes in between is read again next time.
        let state = self.state(engine);
        {
            let kept = self.kept.read();
            if kept.state == state
                && let Some(feigned) = &kept.feigned
            {
                return Ok(Some(feigned.clone()));
            }
        }
        let view = engine.view()?;
        let Some(collection) = view.collection(USERS) else { return Ok(None) };
        let mut feigned = Feigned::of_collection(collection.uuid.as_bytes());
        let mut seen = 0;
        Stored(&view).each(USERS, &mut |user| {
            feigned.add(user);
            seen += 1;
            Ok(seen < Feigned::ENOUGH)
        })?;
        let feigned = Arc::new(feigned);
        let mut kept = self.kept.write();
        if kept.state != state {
            *kept = Kept { state, ..Kept::default() };
        }
        kept.feigned = Some(feigned.clone());
        Ok(Some(feigned))
    }

    /// Somebody of whom no user is kept, with these roles as they are now.
    ///
    /// Errors: those of reading roles.
    pub fn with_roles(&self, engine: &Engine, name: &UserName, roles: &[RoleName]) -> Result<Arc<Account>> {
        // Before the data: what changes in between is read again next time.
        let state = self.state(engine);
        {
            let kept = self.kept.read();
            let guest = kept.guests.get(name).filter(|guest| guest.user.roles == roles);
            if kept.state == state
                && let Some(account) = guest
            {
                return Ok(account.clone());
            }
        }
        let view = engine.view()?;
        let account = Arc::new(Account::of_roles(name.clone(), roles, &Stored(&view))?);
        let mut kept = self.kept.write();
        if kept.state != state || kept.guests.len() >= KEPT {
            *kept = Kept { state, ..Kept::default() };
        }
        kept.guests.insert(name.clone(), account.clone());
        Ok(account)
    }

    /// The same for others to compare: no two members, and no member before and after a restart, say the same.
    pub fn generation(&self, engine: &Engine) -> ObjectId {
        let process = self.process.get_or_init(rand::random);
        let state = self.state(engine).to_le_bytes();
        // It tells states apart, and hides nothing.
        let hash = Mechanism::Sha256.hmac(process, &state);
        ObjectId(std::array::from_fn(|at| hash[at]))
    }

    /// Whether there is no user and no role, and has been none since the start: who has removed the last one is not the first one's friend.
    ///
    /// Errors: those of reading them.
    pub fn is_empty(&self, engine: &Engine) -> Result<bool> {
        if self.any.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let view = engine.view()?;
        let mut any = false;
        for namespace in [USERS, ROLES] {
            Stored(&view).each(namespace, &mut |_| {
                any = true;
                Ok(false)
            })?;
        }
        self.any.fetch_or(any, Ordering::Relaxed);
        Ok(!any)
    }
}
