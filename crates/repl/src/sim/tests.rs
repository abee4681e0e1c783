//! The seeds of every build, and whether the checks can see.

use super::failover::{self, Case};
use super::noise;
use super::{Failure, Mutation, Plan, Tally, World, run};

/// Seeds that every build plays.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=300;

fn play_half(half: u64) -> Result<Tally, Failure> {
    let mut total = Tally::default();
    for seed in SEEDS.filter(|seed| seed % 2 == half) {
        let report = run(seed, None)?;
        total.rollbacks += report.rollbacks;
        total.initial_syncs += report.initial_syncs;
        total.reconfigs += report.reconfigs;
        total.fetches += report.fetches;
        total.restarts += report.restarts;
        total.step_downs += report.step_downs;
        total.reads += report.reads;
        total.reads_refused += report.reads_refused;
        total.apply_failures += report.apply_failures;
        total.panics += report.panics;
        total.half_kept += report.half_kept;
        total.clock_steps += report.clock_steps;
    }
    Ok(total)
}

fn check_half(half: u64) {
    match play_half(half) {
        Err(failure) => panic!("{failure}"),
        // A simulator in which nothing goes wrong proves nothing.
        Ok(total) => assert!(
            total.rollbacks > 10
                && total.initial_syncs > 10
                && total.reconfigs > 50
                && total.fetches > 100
                && total.restarts > 200
                && total.step_downs > 10
                && total.reads > 1000
                && total.reads_refused > 10
                && total.apply_failures > 20
                && total.panics > 20
                && total.half_kept > 3
                && total.clock_steps > 20,
            "{total:?}"
        ),
    }
}

#[test]
fn even_seeds_are_clean() {
    check_half(0);
}

#[test]
fn odd_seeds_are_clean() {
    check_half(1);
}

/// A machine that was cut off took back the end of its log and kept a commit point behind it, before the cut was synced.
#[test]
fn a_commit_point_is_not_kept_ahead_of_the_log() {
    if let Err(failure) = run(2304, None) {
        panic!("{failure}");
    }
}

#[test]
fn a_seed_plays_the_same_again() {
    for seed in 1..=20 {
        assert_eq!(run(seed, None), run(seed, None), "seed {seed}");
    }
}

const ASSERTION: &str = "an assertion";

/// A planted bug may also run into an assertion of the core's.
fn play_with(seed: u64, mutation: Mutation) -> Result<Tally, Failure> {
    std::panic::catch_unwind(|| run(seed, Some(mutation)))
        .unwrap_or_else(|_| Err(Failure { seed, at: 0, what: ASSERTION.to_owned() }))
}

/// The first seed that catches `mutation`.
fn caught(mutation: Mutation) -> Failure {
    SEEDS
        .filter_map(|seed| play_with(seed, mutation).err())
        .next()
        .unwrap_or_else(|| panic!("{} is not caught", mutation.name()))
}

/// Whether a check of the simulator's own catches `mutation`, with whatever seed.
fn is_seen(mutation: Mutation) -> bool {
    SEEDS.filter_map(|seed| play_with(seed, mutation).err()).any(|failure| failure.what != ASSERTION)
}

#[test]
fn voting_twice_is_caught() {
    // Members themselves see it in some seeds, before the simulator does.
    let failures = || SEEDS.filter_map(|seed| play_with(seed, Mutation::VoteTwice).err());
    assert!(failures().any(|failure| failure.what.contains("two primaries")));
}

#[test]
fn acknowledging_before_persisting_is_caught() {
    assert!(caught(Mutation::AcknowledgeBeforePersisting).what.contains("acknowledged as"));
}

/// Also by what it leads to, not only by the promise of a journal: committed entries get lost.
#[test]
fn acknowledging_before_persisting_loses_committed_entries() {
    let lost = SEEDS.filter_map(|seed| {
        let mut plan = Plan::of(seed);
        plan.journal_percent = 0;
        World::new(plan, Some(Mutation::AcknowledgeBeforePersisting)).play().err()
    });
    assert!(lost.into_iter().any(|failure| failure.what.contains("commit")));
}

#[test]
fn committing_an_old_term_by_count_is_caught() {
    assert!(caught(Mutation::CommitOldTermByCount).what.contains("by count"));
}

#[test]
fn skipping_a_rollback_is_caught() {
    assert!(caught(Mutation::SkipRollback).what.contains("something else than its log"));
}

#[test]
fn applying_out_of_order_is_caught() {
    assert!(caught(Mutation::ApplyOutOfOrder).what.contains("something else than its log"));
}

#[test]
fn reading_without_asking_is_caught() {
    assert!(caught(Mutation::ReadWithoutAsking).what.contains("reads as of"));
}

#[test]
fn applying_past_a_failure_is_caught() {
    assert!(is_seen(Mutation::ApplyPastFailure));
}

#[test]
fn passing_over_what_found_no_room_is_caught() {
    assert!(is_seen(Mutation::SkipOnFullDisk));
}

#[test]
fn keeping_a_commit_point_before_the_log_is_cut_is_caught() {
    assert!(caught(Mutation::KeepCommitBeforeCut).what.contains("keeps commit point"));
}

#[test]
fn going_on_after_a_panic_is_caught() {
    caught(Mutation::GoOnAfterPanic);
}

#[test]
fn a_failing_seed_fails_again_in_the_same_way() {
    for mutation in Mutation::ALL {
        let first = caught(mutation);
        assert_eq!(play_with(first.seed, mutation), Err(first));
    }
}

/// What the election of a new primary may cost with default settings, in simulated time.
#[test]
fn a_set_is_not_long_without_a_primary() {
    let slowest = |case, latency| {
        (1..=40)
            .map(|seed| {
                let times = failover::measure(seed, case, 3, latency);
                times.unwrap_or_else(|| panic!("seed {seed}: no primary again")).majority
            })
            .max()
            .unwrap_or_default()
    };
    assert!(slowest(Case::Killed, 1) < 500);
    assert!(slowest(Case::Killed, 50) < 1000);
    assert!(slowest(Case::SteppedDown, 1) < 100);
    // Nobody tells: only silence does.
    assert!(slowest(Case::Gone, 1) < 2000);
    assert!(slowest(Case::Gone, 50) < 3000);
}

/// A primary that is slow to be heard, and well, stays primary. (`failover noise` plays whole days.)
#[test]
fn noise_elects_nobody() {
    for seed in 1..=4 {
        assert_eq!(noise::terms(seed, 900_000), 1, "seed {seed}");
    }
}
