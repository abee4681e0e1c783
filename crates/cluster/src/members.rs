//! What a client knows of the members of a set, by what they say of themselves: who leads, who is behind, who says nothing, and who may
//! answer a request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use sheaf_bson::DocBuf;
use sheaf_client::Role;

use crate::preference::{Mode, Preference};

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

/// What a client knows of the members of a set.
#[derive(Default)]
pub(crate) struct Members {
    /// `None`: it does not answer, or has not yet.
    pub(crate) members: BTreeMap<String, Option<Member>>,
    /// The last election that was heard of: nobody goes back to an older primary.
    pub(crate) newest: Option<[u8; 12]>,
    pub(crate) primary: Option<String>,
    /// Members whose monitors are to ask anew: somebody has found that they do not answer.
    pub(crate) doubted: BTreeSet<String>,
    /// Members that were not heard since another one has become primary: their monitors are less patient.
    pub(crate) suspected: BTreeSet<String>,
    /// Suspected members that have not answered once: they are asked again.
    pub(crate) missed: BTreeSet<String>,
    /// Members that are to prove that they are there, since somebody has waited for them for some time.
    pub(crate) awaited: BTreeSet<String>,
    /// When a member had to prove it last.
    pub(crate) proved: BTreeMap<String, Instant>,
    /// How often a member was found to say nothing at all, with its connections open.
    pub(crate) silences: BTreeMap<String, u64>,
    /// Members that have said last that they belong to another set, and to which one.
    pub(crate) strangers: BTreeMap<String, Option<String>>,
    /// Members that could not be connected to, and why.
    pub(crate) unreached: BTreeMap<String, Unreached>,
    /// Why a member is not watched.
    pub(crate) unwatched: Option<String>,
    /// It is no shard any more.
    pub(crate) has_left: bool,
}

/// Why a member could not be connected to.
pub(crate) struct Unreached {
    pub(crate) why: String,
    /// Its name leads to no address.
    pub(crate) nowhere: bool,
}

impl Members {
    /// Takes in what a member says; gives the members that were not known before.
    pub(crate) fn heard(&mut self, set: &str, host: &str, member: Member) -> Vec<String> {
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
    pub(crate) fn is_silent(&mut self, host: &str) -> bool {
        if self.suspected.contains(host) && self.missed.insert(host.to_owned()) {
            return false;
        }
        self.missed.remove(host);
        self.suspected.remove(host);
        true
    }

    /// A member is waited for.
    pub(crate) fn awaited(&mut self, host: &str, now: Instant) {
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

    /// The set that a member has said to belong to, if nobody of this one has answered.
    pub(crate) fn stranger(&self) -> Option<(String, String)> {
        if self.members.values().any(Option::is_some) {
            return None;
        }
        self.strangers.iter().find_map(|(host, set)| Some((host.clone(), set.clone()?)))
    }

    /// A member that may answer now.
    pub(crate) fn select(&self, preference: &Preference<'_>) -> Option<String> {
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
        let mut state = Members::default();
        assert_eq!(state.stranger(), None);
        state.heard("x", "none:1", Member::default());
        // One that belongs to no set may be about to be initiated.
        assert_eq!(state.stranger(), None);
        state.heard("y", "a:1", primary(1, &["a:1"]));
        assert_eq!(state.stranger(), Some(("a:1".to_owned(), "x".to_owned())));
        state.heard("x", "b:1", primary(1, &["b:1"]));
        assert_eq!(state.stranger(), None);
    }

    fn selected(state: &Members, mode: Mode) -> Option<String> {
        let preference = sheaf_bson::doc! { "mode": mode.name() };
        state.select(&Preference::of(Some(preference.as_raw())))
    }

    #[test]
    fn the_newest_primary_says_who_belongs_to_the_set() {
        let mut state = Members::default();
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
        let mut state = Members::default();
        state.heard("x", "p:1", Member { round_trip: Some(Duration::from_millis(40)), ..leading.clone() });
        state.heard("x", "a:1", member(199_000, 5));
        state.heard("x", "b:1", member(100_000, 1));
        let select = |state: &Members, mode: &str, staleness: i32, threshold: u64| {
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
        let mut state = Members::default();
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
        let mut state = Members::default();
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
        let mut state = Members::default();
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
        let mut state = Members::default();
        state.members.insert("a:1".to_owned(), None);
        state.heard("y", "a:1", primary(1, &["a:1"]));
        assert_eq!(selected(&state, Mode::Nearest), None);
    }
}
