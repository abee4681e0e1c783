//! Users as a router knows them: those of the config servers.
//!
//! What was read is believed as long as the config servers say that no user and no role has changed since. They are asked by the first
//! command after each second, so a change holds everywhere within that; here at once, if it came by this router.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_auth::{Account, Feigned, Role, RoleName, Roles, UserDocument, UserName};
use sheaf_bson::{DocBuf, Value, doc};
use sheaf_cluster::first_batch;
use sheaf_errors::{Code, Error, Result};
use sheaf_front::access::{Accounts, State};
use sheaf_front::reactor::give_way;
use sheaf_front::sasl::stored_user;

use crate::router::Router;

/// For so long nobody asks whether users or roles have changed.
const FRESH: Duration = Duration::from_secs(1);

/// For so long what was read is believed while the config servers do not answer, as in MongoDB.
const BELIEVED: Duration = Duration::from_secs(30);

/// How long the config servers may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long they may take where there is something to believe meanwhile, and for how long nobody asks again when they have taken longer.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// Most users that are kept in memory; with one more it begins anew.
const KEPT: usize = 10_000;

#[derive(Default)]
struct Kept {
    /// What the config servers have said of the state of users and roles, and when.
    generation: Option<DocBuf>,
    asked: Option<Instant>,
    /// When they have not answered last.
    missed: Option<Instant>,
    /// How many generations there have been before.
    state: u64,
    /// How often it was doubted that nothing has changed.
    doubts: u64,
    accounts: HashMap<UserName, Arc<Account>, ahash::RandomState>,
    /// Those of whom no user is kept, with the roles that they have.
    guests: HashMap<UserName, Arc<Account>, ahash::RandomState>,
    /// What users are like that there are not.
    feigned: Option<Arc<Feigned>>,
}

/// What was read of users last.
#[derive(Default)]
pub struct KnownAccounts {
    kept: Mutex<Kept>,
    /// One asks at a time.
    asking: Mutex<()>,
    /// There was a user or a role.
    any: AtomicBool,
}

impl KnownAccounts {
    /// Users or roles may have changed: the next command asks.
    pub fn doubt(&self) {
        let mut kept = self.kept.lock();
        kept.asked = None;
        kept.doubts += 1;
    }
}

/// Roles that somebody has made, asked for one by one.
struct Remote<'r>(&'r Router);

impl Roles for Remote<'_> {
    fn made(&self, name: &RoleName) -> Result<Option<Role>> {
        let found = self.0.first_of("system.roles", &doc! { "_id": &name.id() })?;
        found.map(|document| Role::read(document.as_raw())).transpose()
    }
}

impl Router {
    fn ask_config(&self, command: &DocBuf) -> Result<DocBuf> {
        self.ask_config_within(PATIENCE, command)
    }

    fn ask_config_within(&self, patience: Duration, command: &DocBuf) -> Result<DocBuf> {
        let began = Instant::now();
        let go_on = || {
            if self.is_shutting_down() {
                return Err(sheaf_front::front::shutting_down_error());
            }
            match began.elapsed() < patience {
                true => Ok(()),
                false => Err(Error::new(Code::NETWORK_TIMEOUT, "the config servers do not answer in time")),
            }
        };
        // Whoever logs in may be on a thread that serves others.
        give_way(true, || self.directory.run("admin", command, true, &go_on))
    }

    fn first_of(&self, collection: &str, filter: &DocBuf) -> Result<Option<DocBuf>> {
        let find = doc! { "find": collection, "filter": filter.as_raw(), "limit": 1, "singleBatch": true };
        Ok(first_batch(self.ask_config(&find)?.as_raw()).pop())
    }

    /// What the config servers say of the state of users and roles, if that is not older than [`FRESH`].
    fn generation(&self) -> Result<DocBuf> {
        let known = |fresh: Duration| {
            let kept = self.accounts.kept.lock();
            kept.generation.clone().filter(|_| kept.asked.is_some_and(|asked| asked.elapsed() < fresh))
        };
        if let Some(generation) = known(FRESH) {
            return Ok(generation);
        }
        let _turn = give_way(true, || self.accounts.asking.lock());
        if let Some(generation) = known(FRESH) {
            return Ok(generation);
        }
        // Who hangs is not waited for by each command, as long as there is something to believe.
        let believed = known(BELIEVED);
        let missed = self.accounts.kept.lock().missed;
        if let Some(generation) = &believed
            && missed.is_some_and(|missed| missed.elapsed() < SHORT_PATIENCE)
        {
            return Ok(generation.clone());
        }
        let patience = if believed.is_some() { SHORT_PATIENCE } else { PATIENCE };
        let (asked, doubts) = (Instant::now(), self.accounts.kept.lock().doubts);
        let told = match self.ask_config_within(patience, &doc! { "_getUserCacheGeneration": 1 }) {
            Ok(told) => told,
            Err(error) => {
                self.accounts.kept.lock().missed = Some(Instant::now());
                return known(BELIEVED).ok_or(error);
            }
        };
        let generation = doc! { "generation": told.as_raw().get_or_missing("cacheGeneration") };
        let mut kept = self.accounts.kept.lock();
        if kept.generation.as_ref() != Some(&generation) {
            kept.accounts.clear();
            kept.guests.clear();
            kept.feigned = None;
            kept.state += 1;
        }
        kept.generation = Some(generation.clone());
        kept.missed = None;
        // Who has doubted meanwhile may have changed what this answer does not know yet.
        kept.asked = (kept.doubts == doubts).then_some(asked);
        Ok(generation)
    }
}

impl Accounts for Router {
    fn state(&self) -> Option<State> {
        let kept = self.accounts.kept.lock();
        let is_fresh = kept.asked.is_some_and(|asked| asked.elapsed() < FRESH);
        is_fresh.then_some(State { number: kept.state, mark: None })
    }

    fn is_still(&self, _: &State) -> bool {
        false
    }

    fn account(&self, name: &UserName) -> Result<Option<Arc<Account>>> {
        // Before the user: what changes in between is read again next time.
        let generation = self.generation()?;
        if let Some(account) = self.accounts.kept.lock().accounts.get(name) {
            return Ok(Some(account.clone()));
        }
        let Some(document) = self.first_of("system.users", &doc! { "_id": &name.id() })? else {
            return Ok(None);
        };
        self.accounts.any.store(true, Ordering::Relaxed);
        let account = Arc::new(Account::read(document.as_raw(), &Remote(self))?);
        let mut kept = self.accounts.kept.lock();
        if kept.generation.as_ref() == Some(&generation) {
            if kept.accounts.len() >= KEPT {
                kept.accounts.clear();
            }
            kept.accounts.insert(name.clone(), account.clone());
        }
        Ok(Some(account))
    }

    fn looked_up(&self, name: &UserName, feigned: &Feigned) -> Result<Option<UserDocument>> {
        let document = self.first_of("system.users", &doc! { "_id": &name.id() })?;
        Ok(stored_user(document.as_ref().map(DocBuf::as_raw), name, feigned))
    }

    fn feigned(&self) -> Result<Option<Arc<Feigned>>> {
        let generation = self.generation()?;
        if let Some(feigned) = &self.accounts.kept.lock().feigned {
            return Ok(Some(feigned.clone()));
        }
        let list = doc! { "listCollections": 1, "filter": { "name": "system.users" } };
        let users = first_batch(self.ask_config(&list)?.as_raw());
        let uuid = users.first().and_then(|users| users.as_raw().get("info")?.as_doc()?.get("uuid"));
        let Some(Value::Binary(uuid)) = uuid else { return Ok(None) };
        let mut feigned = Feigned::of_collection(uuid.bytes);
        let projection = doc! { "customData": 0 };
        let some = Feigned::ENOUGH as i32;
        let find = doc! {
            "find": "system.users", "projection": projection.as_raw(), "limit": some, "batchSize": some,
            "singleBatch": true,
        };
        for user in first_batch(self.ask_config(&find)?.as_raw()) {
            feigned.add(user.as_raw());
        }
        let feigned = Arc::new(feigned);
        let mut kept = self.accounts.kept.lock();
        if kept.generation.as_ref() == Some(&generation) {
            kept.feigned = Some(feigned.clone());
        }
        Ok(Some(feigned))
    }

    fn with_roles(&self, name: &UserName, roles: &[RoleName]) -> Result<Arc<Account>> {
        let generation = self.generation()?;
        let guest = self.accounts.kept.lock().guests.get(name).cloned();
        if let Some(account) = guest.filter(|guest| guest.user.roles == roles) {
            return Ok(account);
        }
        let account = Arc::new(Account::of_roles(name.clone(), roles, &Remote(self))?);
        let mut kept = self.accounts.kept.lock();
        if kept.generation.as_ref() == Some(&generation) {
            if kept.guests.len() >= KEPT {
                kept.guests.clear();
            }
            kept.guests.insert(name.clone(), account.clone());
        }
        Ok(account)
    }

    fn is_empty(&self) -> Result<bool> {
        if self.accounts.any.load(Ordering::Relaxed) {
            return Ok(false);
        }
        for collection in ["system.users", "system.roles"] {
            if self.first_of(collection, &doc! {})?.is_some() {
                self.accounts.any.store(true, Ordering::Relaxed);
                return Ok(false);
            }
        }
        Ok(true)
    }
}
