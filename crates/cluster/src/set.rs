//! A replica set as a client knows it: its members, who leads it, and which of them may answer a request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rand::seq::IndexedRandom;
use sheaf_bson::DocBuf;
use sheaf_client::Role;
use sheaf_client::pool::Pool;
use sheaf_errors::{Code, Error, Result, bail};

use crate::address::SetAddress;
use crate::monitor;
use crate::preference::{Mode, Preference};

/// How long a request waits for a member that may answer it.
pub(crate) const SELECTION: Duration = Duration::from_secs(20);

/// How often who waits asks whether it should.
const ASK: Duration = Duration::from_millis(50);

/// Connections to one member that are kept for the next request.
const KEPT: usize = 2048;

/// The most members that a set may have; who tells of more is not believed.
const MOST_MEMBERS: usize = 50;

/// What a member has said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    pub role: Role,
    pub tags: DocBuf,
    pub config_server: bool,
}

/// A replica set as a client knows it. Its members are watched for as long as it lives.
pub struct ReplicaSet {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
    /// Connections to its members.
    pub(crate) pool: Pool,
}

#[derive(Default)]
struct State {
    /// `None`: it does not answer, or has not yet.
    members: BTreeMap<String, Option<Member>>,
    /// The last election that was heard of: nobody goes back to an older primary.
    newest: Option<[u8; 12]>,
    primary: Option<String>,
    /// Members whose monitors are to ask anew: somebody has found that they do not answer.
    doubted: BTreeSet<String>,
    /// Why a member is not watched.
    unwatched: Option<String>,
}

impl ReplicaSet {
    /// The set at this address. Nothing is asked before its members have answered; who needs one waits.
    pub fn new(address: &SetAddress) -> Arc<ReplicaSet> {
        let members = address.hosts.iter().map(|host| (host.clone(), None)).collect();
        let set = Arc::new(ReplicaSet {
            name: address.name.clone(),
            state: Mutex::new(State { members, ..State::default() }),
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

    /// A member that may answer, "host:port". `go_on` is asked now and then while there is none.
    ///
    /// Errors: `FailedToSatisfyReadPreference` after 20 seconds; those of `go_on`.
    pub fn select(
        &self,
        preference: &Preference<'_>,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<String> {
        let began = Instant::now();
        let mut state = self.state.lock();
        loop {
            if let Some(host) = state.select(preference) {
                return Ok(host);
            }
            if began.elapsed() >= SELECTION {
                let why = state.unwatched.as_ref().map_or(String::new(), |why| format!(" ({why})"));
                bail!(
                    Code::FAILED_TO_SATISFY_READ_PREFERENCE,
                    "Could not find host matching read preference {{ mode: \"{}\" }} for set {}{why}",
                    preference.mode.name(),
                    self.name
                );
            }
            self.changed.wait_for(&mut state, ASK);
            parking_lot::MutexGuard::unlocked(&mut state, &mut *go_on)?;
        }
    }

    /// A member has said what it is.
    pub(crate) fn heard(self: &Arc<Self>, host: &str, member: Member) {
        let mut state = self.state.lock();
        let new = state.heard(&self.name, host, member);
        self.changed.notify_all();
        drop(state);
        new.iter().for_each(|host| monitor::start(self, host));
    }

    /// A member does not answer, or says that it cannot do what it was asked for.
    pub(crate) fn lost(&self, host: &str) {
        let mut state = self.state.lock();
        if let Some(member) = state.members.get_mut(host) {
            *member = None;
        }
        if state.primary.as_deref() == Some(host) {
            state.primary = None;
        }
        state.doubted.insert(host.to_owned());
        drop(state);
        self.pool.forget(host);
    }

    /// Whether a member's monitor is to ask anew; told once.
    pub(crate) fn is_doubted(&self, host: &str) -> bool {
        self.state.lock().doubted.remove(host)
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

impl State {
    /// Takes in what a member says; gives the members that were not known before.
    fn heard(&mut self, set: &str, host: &str, member: Member) -> Vec<String> {
        if member.role.set.as_deref() != Some(set) {
            // Another set's, or one that was not initiated yet.
            self.members.insert(host.to_owned(), None);
            return Vec::new();
        }
        let mut new = Vec::new();
        let is_new = member.role.election >= self.newest;
        if member.role.primary && is_new {
            self.newest = member.role.election;
            self.primary = Some(host.to_owned());
            let told = member.role.hosts.iter().chain(&member.role.passives).take(MOST_MEMBERS);
            let told: Vec<String> = told.cloned().collect();
            self.members.retain(|known, _| told.contains(known) || known == host);
            new = told.into_iter().filter(|told| !self.members.contains_key(told)).collect();
        } else if self.primary.as_deref() == Some(host) {
            self.primary = None;
        }
        for host in &new {
            self.members.insert(host.clone(), None);
        }
        self.members.insert(host.to_owned(), Some(member));
        // Before there is a primary, members tell of each other, too.
        if self.primary.is_none() {
            let told = self.members.values().flatten().flat_map(|member| &member.role.hosts);
            let unknown: Vec<String> =
                told.filter(|told| !self.members.contains_key(*told)).cloned().collect();
            for host in unknown {
                if self.members.insert(host.clone(), None).is_none() {
                    new.push(host);
                }
            }
        }
        new
    }

    fn select(&self, preference: &Preference<'_>) -> Option<String> {
        let primary = self.primary.clone();
        let secondaries = || self.pick(preference, |_, member| member.role.secondary);
        match preference.mode {
            Mode::Primary => primary,
            Mode::PrimaryPreferred => primary.or_else(secondaries),
            Mode::Secondary => secondaries(),
            Mode::SecondaryPreferred => secondaries().or(primary),
            Mode::Nearest => self
                .pick(preference, |host, member| member.role.secondary || primary.as_deref() == Some(host)),
        }
    }

    fn pick(&self, preference: &Preference<'_>, may: impl Fn(&str, &Member) -> bool) -> Option<String> {
        let there: Vec<(&str, &Member)> = self
            .members
            .iter()
            .filter_map(|(host, member)| Some((host.as_str(), member.as_ref()?)))
            .filter(|(host, member)| may(host, member))
            .collect();
        let there: Vec<&(&str, &Member)> = there.iter().collect();
        let tagged = preference.tagged(&there, |(_, member)| member.tags.as_raw());
        tagged.choose(&mut rand::rng()).map(|(host, _)| (*host).to_owned())
    }
}

/// `ShardNotFound`.
pub(crate) fn shard_not_found(name: &str) -> Error {
    Error::new(Code::SHARD_NOT_FOUND, format!("Shard {name} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(election: u8, hosts: &[&str]) -> Member {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let (set, election) = (Some("x".to_owned()), Some([election; 12]));
        Member { role: Role { primary: true, set, hosts, election, ..Role::default() }, ..Member::default() }
    }

    fn secondary() -> Member {
        let set = Some("x".to_owned());
        Member { role: Role { secondary: true, set, ..Role::default() }, ..Member::default() }
    }

    fn selected(state: &State, mode: Mode) -> Option<String> {
        let preference = sheaf_bson::doc! { "mode": mode.name() };
        state.select(&Preference::of(Some(preference.as_raw())))
    }

    #[test]
    fn the_newest_primary_says_who_belongs_to_the_set() {
        let mut state = State::default();
        state.members.insert("seed:1".to_owned(), None);
        assert_eq!(state.heard("x", "seed:1", primary(1, &["a:1", "b:1", "seed:1"])), ["a:1", "b:1"]);
        assert_eq!(selected(&state, Mode::Primary).unwrap(), "seed:1");
        assert_eq!(selected(&state, Mode::Secondary), None);
        state.heard("x", "a:1", secondary());
        assert_eq!(selected(&state, Mode::Secondary).unwrap(), "a:1");
        assert!(state.heard("x", "b:1", primary(2, &["a:1", "b:1"])).is_empty());
        assert_eq!(selected(&state, Mode::Primary).unwrap(), "b:1");
        assert!(!state.members.contains_key("seed:1"));
        state.heard("x", "a:1", primary(1, &["a:1"]));
        assert_eq!(selected(&state, Mode::Primary).unwrap(), "b:1", "an older primary counts for nothing");
    }

    #[test]
    fn another_set_s_member_is_none_of_ours() {
        let mut state = State::default();
        state.members.insert("a:1".to_owned(), None);
        state.heard("y", "a:1", primary(1, &["a:1"]));
        assert_eq!(selected(&state, Mode::Nearest), None);
    }
}
