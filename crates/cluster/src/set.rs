//! A replica set as a client knows it: its members, who leads it, and which of them may answer a request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rand::seq::IndexedRandom;
use sheaf_bson::DocBuf;
use sheaf_client::dial::is_without_address;
use sheaf_client::pool::Pool;
use sheaf_client::{Membership, Role};
use sheaf_errors::{Code, Error, Result, bail};

use crate::address::SetAddress;
use crate::monitor;
use crate::preference::{Mode, Preference};

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

/// The most members that a set may have; who tells of more is not believed.
const MOST_MEMBERS: usize = 50;

/// What a member has said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    pub role: Role,
    pub tags: DocBuf,
    pub config_server: bool,
    /// `lastWriteDate`, in milliseconds, and when it was heard.
    pub last_write: Option<(i64, Instant)>,
    /// How long it takes to answer.
    pub round_trip: Option<Duration>,
}

/// How often a member tells its state when nothing changes: for so long what is known of it may have been out of date.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);

/// So often a member has to prove at the most that it is there.
const PROOF: Duration = Duration::from_secs(5);

/// Of a round trip that is measured anew, so much counts.
const NEWEST_COUNTS: f64 = 0.2;

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
    /// Members that were not heard since another one has become primary: their monitors are less patient.
    suspected: BTreeSet<String>,
    /// Suspected members that have not answered once: they are asked again.
    missed: BTreeSet<String>,
    /// Members that are to prove that they are there, since somebody has waited for them for some time.
    awaited: BTreeSet<String>,
    /// When a member had to prove it last.
    proved: BTreeMap<String, Instant>,
    /// How often a member was found to say nothing at all, with its connections open.
    silences: BTreeMap<String, u64>,
    /// Members that have said last that they belong to another set, and to which one.
    strangers: BTreeMap<String, Option<String>>,
    /// Members that could not be connected to, and why.
    unreached: BTreeMap<String, Unreached>,
    /// Why a member is not watched.
    unwatched: Option<String>,
    /// It is no shard any more.
    has_left: bool,
}

/// Why a member could not be connected to.
struct Unreached {
    why: String,
    /// Its name leads to no address.
    nowhere: bool,
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

impl State {
    /// Takes in what a member says; gives the members that were not known before.
    fn heard(&mut self, set: &str, host: &str, member: Member) -> Vec<String> {
        self.unreached.remove(host);
        if member.role.set.as_deref() != Some(set) {
            // Another set's, or one that was not initiated yet.
            self.members.insert(host.to_owned(), None);
            self.strangers.insert(host.to_owned(), member.role.set);
            return Vec::new();
        }
        self.strangers.remove(host);
        self.suspected.remove(host);
        self.missed.remove(host);
        let mut new = Vec::new();
        let is_new = member.role.election >= self.newest;
        if member.role.primary && is_new {
            if member.role.election > self.newest {
                self.suspect_leaders(host);
            }
            self.newest = member.role.election;
            self.primary = Some(host.to_owned());
            let told = member.role.hosts.iter().chain(&member.role.passives).take(MOST_MEMBERS);
            let told: Vec<String> = told.cloned().collect();
            self.members.retain(|known, _| told.contains(known) || known == host);
            self.unreached.retain(|known, _| told.contains(known));
            new = told.into_iter().filter(|told| !self.members.contains_key(told)).collect();
        } else if self.primary.as_deref() == Some(host) {
            self.primary = None;
        }
        for host in &new {
            self.members.insert(host.clone(), None);
        }
        self.members.insert(host.to_owned(), Some(self.averaged(host, member)));
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

    /// Whether a member that has not answered in time is silent: one that is only suspected gets another chance.
    fn is_silent(&mut self, host: &str) -> bool {
        if self.suspected.contains(host) && self.missed.insert(host.to_owned()) {
            return false;
        }
        self.missed.remove(host);
        self.suspected.remove(host);
        true
    }

    /// A member is waited for.
    fn awaited(&mut self, host: &str, now: Instant) {
        let lately = self.proved.get(host).is_some_and(|proved| now.duration_since(*proved) < PROOF);
        if self.members.contains_key(host) && !lately {
            self.proved.insert(host.to_owned(), now);
            self.awaited.insert(host.to_owned());
        }
    }

    /// There is a new primary. Who was one says so now, unless it is gone: then what it was asked will never be answered, though nothing
    /// else tells that.
    fn suspect_leaders(&mut self, new: &str) {
        let leads = |member: &Option<Member>| member.as_ref().is_none_or(|member| member.role.primary);
        let others = self.members.iter().filter(|(host, member)| *host != new && leads(member));
        for host in others.map(|(host, _)| host.clone()).collect::<Vec<_>>() {
            self.doubted.insert(host.clone());
            self.suspected.insert(host);
        }
    }

    /// The member with its round trips so far.
    fn averaged(&self, host: &str, member: Member) -> Member {
        let before = self.members.get(host).and_then(|known| known.as_ref()?.round_trip);
        let round_trip = match (before, member.round_trip) {
            (Some(before), Some(now)) => {
                Some(before.mul_f64(1.0 - NEWEST_COUNTS) + now.mul_f64(NEWEST_COUNTS))
            }
            (before, now) => now.or(before),
        };
        Member { round_trip, ..member }
    }

    /// Whether a secondary may be farther behind than this, as drivers reckon it: behind the primary, or behind the newest secondary
    /// where there is none.
    fn is_stale(&self, member: &Member, most: Duration) -> bool {
        let Some((written, heard)) = member.last_write else { return false };
        let known = |member: &Member| member.last_write;
        let primary = self.primary.as_ref().and_then(|host| known(self.members.get(host)?.as_ref()?));
        let behind = match primary {
            Some((newest, then)) => {
                let later = heard.saturating_duration_since(then).as_millis() as i64;
                let earlier = then.saturating_duration_since(heard).as_millis() as i64;
                newest - written + later - earlier
            }
            None => {
                let others = self.members.values().flatten().filter(|other| other.role.secondary);
                others.filter_map(known).map(|(other, _)| other - written).max().unwrap_or(0)
            }
        };
        behind + HEARTBEAT.as_millis() as i64 > most.as_millis() as i64
    }

    fn stranger(&self) -> Option<(String, String)> {
        if self.members.values().any(Option::is_some) {
            return None;
        }
        self.strangers.iter().find_map(|(host, set)| Some((host.clone(), set.clone()?)))
    }

    fn select(&self, preference: &Preference<'_>) -> Option<String> {
        let primary = self.primary.clone();
        let fresh =
            |member: &Member| !preference.max_staleness.is_some_and(|most| self.is_stale(member, most));
        let secondaries = || self.pick(preference, |_, member| member.role.secondary && fresh(member));
        match preference.mode {
            Mode::Primary => primary,
            Mode::PrimaryPreferred => primary.or_else(secondaries),
            Mode::Secondary => secondaries(),
            Mode::SecondaryPreferred => secondaries().or(primary),
            Mode::Nearest => self.pick(preference, |host, member| {
                member.role.secondary && fresh(member) || primary.as_deref() == Some(host)
            }),
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
        let nearest = tagged.iter().filter_map(|(_, member)| member.round_trip).min();
        let near = |member: &Member| match (nearest, member.round_trip) {
            (Some(nearest), Some(own)) => own <= nearest + preference.local_threshold,
            _ => true,
        };
        let near: Vec<_> = tagged.into_iter().filter(|(_, member)| near(member)).collect();
        near.choose(&mut rand::rng()).map(|(host, _)| (*host).to_owned())
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

    #[test]
    fn members_of_another_set_are_told_as_long_as_nobody_of_this_one_has_answered() {
        let mut state = State::default();
        assert_eq!(state.stranger(), None);
        state.heard("x", "none:1", Member::default());
        // One that belongs to no set may be about to be initiated.
        assert_eq!(state.stranger(), None);
        state.heard("y", "a:1", primary(1, &["a:1"]));
        assert_eq!(state.stranger(), Some(("a:1".to_owned(), "x".to_owned())));
        state.heard("x", "b:1", primary(1, &["b:1"]));
        assert_eq!(state.stranger(), None);
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
    fn stale_and_distant_members_are_not_chosen() {
        let now = Instant::now();
        let member = |written: i64, round_trip: u64| Member {
            last_write: Some((written, now)),
            round_trip: Some(Duration::from_millis(round_trip)),
            ..secondary()
        };
        let leading = Member { last_write: Some((200_000, now)), ..primary(1, &["p:1", "a:1", "b:1"]) };
        let mut state = State::default();
        state.heard("x", "p:1", Member { round_trip: Some(Duration::from_millis(40)), ..leading.clone() });
        state.heard("x", "a:1", member(199_000, 5));
        state.heard("x", "b:1", member(100_000, 1));
        let select = |state: &State, mode: &str, staleness: i32, threshold: u64| {
            let preference = sheaf_bson::doc! { "mode": mode, "maxStalenessSeconds": staleness };
            let preference =
                Preference::of(Some(preference.as_raw())).within(Duration::from_millis(threshold));
            let chosen = (0..50).filter_map(|_| state.select(&preference));
            chosen.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(select(&state, "secondary", -1, 15), "a:1 b:1");
        assert_eq!(select(&state, "secondary", 90, 15), "a:1", "b is 100 seconds behind");
        assert_eq!(select(&state, "secondary", 120, 0), "b:1", "and the nearest");
        assert_eq!(select(&state, "nearest", -1, 15), "a:1 b:1", "the primary is far away");
        assert_eq!(select(&state, "nearest", 90, 50), "a:1 p:1");
        state.primary = None;
        assert_eq!(select(&state, "secondary", 90, 15), "a:1", "b is behind a");
        // Later measurements count by and by.
        state.heard("x", "a:1", member(199_000, 105));
        assert_eq!(state.members["a:1"].as_ref().unwrap().round_trip, Some(Duration::from_millis(25)));
    }

    #[test]
    fn a_new_primary_makes_the_old_one_prove_that_it_is_there() {
        let mut state = State::default();
        state.heard("x", "a:1", primary(1, &["a:1", "b:1", "c:1"]));
        state.heard("x", "c:1", secondary());
        state.heard("x", "b:1", secondary());
        assert!(state.suspected.is_empty());
        // The same election once more is no news.
        state.heard("x", "a:1", primary(1, &["a:1", "b:1", "c:1"]));
        assert!(state.suspected.is_empty());
        state.heard("x", "b:1", primary(2, &["a:1", "b:1", "c:1"]));
        assert_eq!(state.suspected, BTreeSet::from(["a:1".to_owned()]));
        assert!(state.doubted.contains("a:1"));
        state.heard("x", "a:1", secondary());
        assert!(state.suspected.is_empty());
    }

    #[test]
    fn a_suspect_is_silent_when_it_does_not_answer_twice() {
        let mut state = State::default();
        assert!(state.is_silent("a:1"), "nobody suspects it: it had long enough");
        state.heard("x", "a:1", primary(1, &["a:1", "b:1"]));
        state.heard("x", "b:1", primary(2, &["a:1", "b:1"]));
        assert!(!state.is_silent("a:1"));
        // It was busy.
        state.heard("x", "a:1", secondary());
        state.heard("x", "a:1", primary(3, &["a:1", "b:1"]));
        state.heard("x", "b:1", primary(4, &["a:1", "b:1"]));
        assert!(!state.is_silent("a:1"));
        assert!(state.is_silent("a:1"));
        assert!(state.suspected.is_empty() && state.missed.is_empty());
    }

    #[test]
    fn who_is_waited_for_proves_now_and_then_that_it_is_there() {
        let mut state = State::default();
        state.members.insert("a:1".to_owned(), None);
        let now = Instant::now();
        let mut has_to = |host: &str, after: Duration| {
            state.awaited(host, now + after);
            state.awaited.remove(host)
        };
        assert!(has_to("a:1", Duration::ZERO));
        assert!(!has_to("a:1", PROOF / 2), "it has just now");
        assert!(has_to("a:1", PROOF));
        assert!(!has_to("b:1", PROOF), "nobody watches it");
    }

    #[test]
    fn another_set_s_member_is_none_of_ours() {
        let mut state = State::default();
        state.members.insert("a:1".to_owned(), None);
        state.heard("y", "a:1", primary(1, &["a:1"]));
        assert_eq!(selected(&state, Mode::Nearest), None);
    }
}
