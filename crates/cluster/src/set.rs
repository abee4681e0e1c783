//! A replica set as a client knows it: its members, who leads it, and which of them may answer a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sheaf_client::Membership;
use sheaf_client::dial::is_without_address;
use sheaf_client::pool::Pool;
use sheaf_errors::{Code, Error, Result, bail};

use crate::address::SetAddress;
use crate::members::{Member, Members, Unreached};
use crate::monitor;
use crate::preference::Preference;

/// How long a request waits for a member that may answer it.
pub const SELECTION: Duration = Duration::from_secs(20);

/// Who waits for a member of a shard for so long asks whether that is still a shard; and again each time that this has passed.
const LOOK: Duration = Duration::from_secs(1);

/// How long a member may take for its answer after another one has become primary; the second time twice that.
const WITH_SUSPECTS: Duration = Duration::from_millis(400);

/// How often who waits asks whether it should.
const ASK: Duration = Duration::from_millis(50);

/// Connections to one member that are kept for the next request.
const KEPT: usize = 2048;

/// Whether whoever waits goes on waiting.
pub type GoOn<'q> = &'q dyn Fn() -> Result<()>;

/// Has the directory read the shards anew, if nobody has since that moment.
pub(crate) type Look = Box<dyn Fn(Instant, GoOn<'_>) + Send + Sync>;

/// A replica set as a client knows it. Its members are watched for as long as it lives.
pub struct ReplicaSet {
    name: String,
    /// Of a shard that a directory has told of.
    look: Option<Look>,
    /// As what its members are dialled.
    pub(crate) membership: Membership,
    state: Mutex<Members>,
    changed: Condvar,
    /// Connections to its members.
    pub(crate) pool: Pool,
}

impl ReplicaSet {
    /// The set at this address. Nothing is asked before its members have answered; who needs one waits.
    pub fn new(address: &SetAddress, membership: &Membership) -> Arc<ReplicaSet> {
        ReplicaSet::with(address, membership, None)
    }

    /// The same of a shard; who waits for one of its members in vain has the directory looked at.
    pub(crate) fn of_shard(address: &SetAddress, membership: &Membership, look: Look) -> Arc<ReplicaSet> {
        ReplicaSet::with(address, membership, Some(look))
    }

    fn with(address: &SetAddress, membership: &Membership, look: Option<Look>) -> Arc<ReplicaSet> {
        let members = address.hosts.iter().map(|host| (host.clone(), None)).collect();
        let set = Arc::new(ReplicaSet {
            name: address.name.clone(),
            look,
            membership: membership.clone(),
            state: Mutex::new(Members { members, ..Members::default() }),
            changed: Condvar::new(),
            pool: Pool::keeping(KEPT),
        });
        address.hosts.iter().for_each(|host| monitor::start(&set, host));
        set
    }

    /// The set's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The set's name and the members that it has told of.
    pub fn address(&self) -> SetAddress {
        let hosts = self.state.lock().members.keys().cloned().collect();
        SetAddress { name: self.name.clone(), hosts }
    }

    /// Whether its members serve as config servers; `None` as long as nobody has answered.
    pub fn is_config(&self) -> Option<bool> {
        let state = self.state.lock();
        state.members.values().flatten().next().map(|member| member.config_server)
    }

    /// Whether a member of the set has answered last; if none has, what is known of each address.
    pub fn what_is_missing(&self) -> Option<String> {
        let state = self.state.lock();
        if state.members.values().any(Option::is_some) {
            return None;
        }
        let said = |host: &String| match state.strangers.get(host) {
            Some(Some(set)) => format!("{host} is a member of the set '{set}'"),
            Some(None) => format!("{host} answers, and is a member of no set"),
            None => match state.unreached.get(host) {
                Some(unreached) => format!("{host} cannot be reached ({})", unreached.why),
                None => format!("{host} does not answer"),
            },
        };
        Some(state.members.keys().map(said).collect::<Vec<_>>().join(", "))
    }

    /// A member that may answer, "host:port". `go_on` is asked now and then while there is none.
    ///
    /// Errors: `ShardNotFound`, if it is no shard any more; `FailedToSatisfyReadPreference` after 20 seconds; those of `go_on`.
    pub fn select(&self, preference: &Preference<'_>, go_on: GoOn<'_>) -> Result<String> {
        self.select_until(preference, Instant::now() + SELECTION, go_on)
    }

    /// The same, with a patience that somebody else has begun to have.
    ///
    /// Errors: as [`select`](Self::select), when the time has come.
    pub(crate) fn select_until(
        &self,
        preference: &Preference<'_>,
        until: Instant,
        go_on: GoOn<'_>,
    ) -> Result<String> {
        let mut looked = Instant::now();
        let mut state = self.state.lock();
        loop {
            if state.has_left {
                return Err(shard_not_found(&self.name));
            }
            if let Some(host) = state.select(preference) {
                return Ok(host);
            }
            if Instant::now() >= until {
                let first = || state.unreached.iter().next();
                let unreached = || first().map(|(host, unreached)| format!("{host}: {}", unreached.why));
                let why = state.unwatched.clone().or_else(unreached);
                let why = why.map_or(String::new(), |why| format!(" ({why})"));
                bail!(
                    Code::FAILED_TO_SATISFY_READ_PREFERENCE,
                    "Could not find host matching read preference {{ mode: \"{}\" }} for set {}{why}",
                    preference.mode.name(),
                    self.name
                );
            }
            self.changed.wait_for(&mut state, ASK);
            parking_lot::MutexGuard::unlocked(&mut state, || {
                if let Some(look) = &self.look
                    && looked.elapsed() >= LOOK
                {
                    look(looked, go_on);
                    looked = Instant::now();
                }
                go_on()
            })?;
        }
    }

    /// Whether somebody is known who may answer: nobody would wait for one.
    pub fn can_answer(&self, preference: &Preference<'_>) -> bool {
        self.state.lock().select(preference).is_some()
    }

    /// The set that a member has said to belong to, which is another one; `None` as long as a member of this one has answered.
    pub fn stranger(&self) -> Option<(String, String)> {
        self.state.lock().stranger()
    }

    /// It is no shard any more: whoever waits for one of its members gives up, and nobody begins to.
    pub(crate) fn leave(&self) {
        self.state.lock().has_left = true;
        self.changed.notify_all();
    }

    /// A member has said what it is.
    pub(crate) fn heard(self: &Arc<Self>, host: &str, member: Member) {
        let mut state = self.state.lock();
        let new = state.heard(&self.name, host, member);
        self.changed.notify_all();
        drop(state);
        new.iter().for_each(|host| monitor::start(self, host));
    }

    /// A member has not answered in time: it says nothing, and its connections stand. Whoever waits for it there waits in vain, unless it
    /// is only suspected, and was busy: then it answers the next time.
    pub(crate) fn missed(&self, host: &str) {
        let mut state = self.state.lock();
        if state.is_silent(host) {
            *state.silences.entry(host.to_owned()).or_default() += 1;
        }
    }

    /// How long a member has for an answer, of which this is the usual time.
    pub(crate) fn patience(&self, host: &str, usual: Duration) -> Duration {
        let state = self.state.lock();
        match (state.suspected.contains(host), state.missed.contains(host)) {
            (true, false) => WITH_SUSPECTS,
            (true, true) => 2 * WITH_SUSPECTS,
            (false, _) => usual,
        }
    }

    /// How often a member was found to say nothing.
    pub(crate) fn silences(&self, host: &str) -> u64 {
        self.state.lock().silences.get(host).copied().unwrap_or(0)
    }

    /// A member does not answer, or says that it cannot do what it was asked for.
    pub(crate) fn lost(&self, host: &str) {
        let mut state = self.state.lock();
        if let Some(member) = state.members.get_mut(host) {
            *member = None;
        }
        state.strangers.remove(host);
        if state.primary.as_deref() == Some(host) {
            state.primary = None;
        }
        state.doubted.insert(host.to_owned());
        drop(state);
        self.pool.forget(host);
    }

    /// A member could not be connected to.
    pub(crate) fn unreached(&self, host: &str, why: &sheaf_client::Error) {
        let mut state = self.state.lock();
        if state.members.contains_key(host) {
            let nowhere = matches!(why, sheaf_client::Error::Io(error) if is_without_address(error));
            state.unreached.insert(host.to_owned(), Unreached { why: why.to_string(), nowhere });
        }
    }

    /// Whether no name of a member leads to an address: who waits for one waits for somebody to mend that.
    pub fn leads_nowhere(&self) -> bool {
        let state = self.state.lock();
        let nowhere = |host: &String| state.unreached.get(host).is_some_and(|unreached| unreached.nowhere);
        state.members.keys().all(nowhere)
    }

    /// Whether a member's monitor is to ask anew; told once.
    pub(crate) fn is_doubted(&self, host: &str) -> bool {
        self.state.lock().doubted.remove(host)
    }

    /// Somebody waits for a member's answer for long: it is to prove that it is there, unless it has had to just now.
    pub(crate) fn awaited(&self, host: &str) {
        self.state.lock().awaited(host, Instant::now());
    }

    /// Whether a member is to prove that it is there; told once.
    pub(crate) fn has_to_prove(&self, host: &str) -> bool {
        self.state.lock().awaited.remove(host)
    }

    /// A member has said that it is not primary any more; until it is heard again, nobody takes it for that.
    pub(crate) fn stepped_down(&self, host: &str) {
        let mut state = self.state.lock();
        if state.primary.as_deref() == Some(host) {
            state.primary = None;
            if let Some(Some(member)) = state.members.get_mut(host) {
                member.role.primary = false;
            }
        }
    }

    pub(crate) fn unwatched(&self, error: &std::io::Error) {
        self.state.lock().unwatched = Some(error.to_string());
    }

    pub(crate) fn is_watched(&self, host: &str) -> bool {
        self.state.lock().members.contains_key(host)
    }

    /// Waits, for a change at the longest.
    pub(crate) fn pause(&self, time: Duration) {
        self.changed.wait_for(&mut self.state.lock(), time);
    }
}

/// `ShardNotFound`.
pub(crate) fn shard_not_found(name: &str) -> Error {
    Error::new(Code::SHARD_NOT_FOUND, format!("Shard {name} not found"))
}
