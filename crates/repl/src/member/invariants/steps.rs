//! What never goes back from one [`Member::poll`](super::Member::poll) to the next.

use crate::config::ConfigVersion;
use crate::types::{LogPosition, Positions};

/// A member as the last poll left it.
#[derive(Clone, Debug)]
pub struct Before {
    pub(super) term: u64,
    pub(super) vote: Option<u64>,
    pub(super) commit: LogPosition,
    pub(super) positions: Positions,
    pub(super) seqs: [u64; 3],
    pub(super) config: ConfigVersion,
    pub(super) cluster_time: u64,
    pub(super) topology_version: u64,
    pub(super) start: LogPosition,
    pub(super) last: LogPosition,
    /// Term and first entry of a primary.
    pub(super) leading: Option<(u64, u64)>,
    pub(super) undoing: bool,
}

/// What holds between a member as it was and as it is now.
const STEPS: [fn(&Before, &Before); 8] = [
    terms_rise,
    a_vote_is_given_once,
    what_is_committed_stays_so,
    positions_fall_by_rollbacks_only,
    units_go_on,
    configurations_are_replaced_by_newer_ones,
    clocks_and_counters_rise,
    a_primary_only_appends,
];

impl Before {
    /// Panics where a poll has taken back what the one before it had settled.
    pub fn check(&self, now: &Before) {
        STEPS.iter().for_each(|holds| holds(self, now));
    }
}

/// A member takes part in a term that it has heard of, and in no earlier one, since others may count on it.
fn terms_rise(before: &Before, now: &Before) {
    assert!(before.term <= now.term, "term {} after {}", now.term, before.term);
}

/// Two votes in a term could elect two primaries.
fn a_vote_is_given_once(before: &Before, now: &Before) {
    let changed = before.term == now.term && before.vote.is_some() && before.vote != now.vote;
    assert!(!changed, "in term {} the vote was {:?} and is {:?}", now.term, before.vote, now.vote);
}

/// What is committed is never taken back, so that majority readers see it for good.
fn what_is_committed_stays_so(before: &Before, now: &Before) {
    let (was, is) = (before.commit, now.commit);
    assert!(was.index <= is.index && was.term <= is.term, "the commit point was {was:?} and is {is:?}");
    assert!(was.index < is.index || was == is, "another entry than {was:?} is committed: {is:?}");
}

/// The disk forgets nothing but what a rollback, or a copy in place of the data, makes it forget.
fn positions_fall_by_rollbacks_only(before: &Before, now: &Before) {
    if before.undoing || now.undoing {
        return;
    }
    let (was, is) = (&before.positions, &now.positions);
    assert!(was.written <= is.written, "written {:?}, then {:?}", was.written, is.written);
    assert!(was.applied <= is.applied, "applied {:?}, then {:?}", was.applied, is.applied);
    assert!(was.durable <= is.durable, "durable {:?}, then {:?}", was.durable, is.durable);
}

/// Numbers of units are never used again, and what was reported of them stays true.
fn units_go_on(before: &Before, now: &Before) {
    let fell = before.seqs.iter().zip(&now.seqs).any(|(was, is)| was > is);
    assert!(!fell, "made, applied, durable were {:?} and are {:?}", before.seqs, now.seqs);
}

/// `(term, version)` orders configurations, and an older one is never installed again.
fn configurations_are_replaced_by_newer_ones(before: &Before, now: &Before) {
    assert!(!before.config.newer_than(now.config), "{:?} replaces {:?}", now.config, before.config);
}

/// Cluster time, the topology counter and the beginning of the log only ever go forward.
fn clocks_and_counters_rise(before: &Before, now: &Before) {
    assert!(before.cluster_time <= now.cluster_time, "cluster time fell to {}", now.cluster_time);
    assert!(before.topology_version <= now.topology_version, "topologyVersion fell");
    assert!(
        before.start.index <= now.start.index,
        "the log began at {:?}, now {:?}",
        before.start,
        now.start
    );
}

/// While a primary is in office its log is the set's: it replaces nothing in it.
fn a_primary_only_appends(before: &Before, now: &Before) {
    if let Some((term, begin)) = before.leading
        && now.leading.is_some_and(|(of, _)| of == term)
    {
        assert_eq!(now.leading, Some((term, begin)), "term {term} has begun twice");
        assert!(before.last <= now.last, "a primary's log ended at {:?}, now {:?}", before.last, now.last);
    }
}
