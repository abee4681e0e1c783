//! States at a cluster time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_bson::{Timestamp, doc};

use super::member::Member;
use super::support::*;
use crate::{Direction, Engine, Options, Range, Write};

/// How many documents the state at this time shows.
fn count_at(member: &Member, time: u64) -> Option<usize> {
    let view = member.engine.view_at(Timestamp(time), false)?;
    let mut cursor = view.records(view.collection(C).unwrap(), Range::ALL, Direction::Forward).unwrap();
    let mut count = 0;
    while cursor.next().unwrap() {
        count += 1;
    }
    Some(count)
}

#[test]
fn a_time_between_two_commits_shows_the_older_one() {
    let home = tempfile::tempdir().unwrap();
    let micros = Arc::new(AtomicU64::new(1_800_000_000_000_000));
    let now = micros.clone();
    let clock_micros = Arc::new(move || now.load(Ordering::Relaxed));
    let primary = Engine::open(Options { clock_micros, ..options(home.path()) }).unwrap();
    create(&primary, C, doc! {});
    let mut ends = Vec::new();
    for group in 0..4 {
        // Three operations, whose times follow each other; then some time without any.
        let mut unit = primary.write(GO_ON);
        let collection = unit.collection(C).unwrap().unwrap();
        for n in 0..3 {
            unit.insert(&collection, doc! { "_id": (group * 10 + n) }.as_raw()).unwrap();
        }
        ends.push(unit.commit().unwrap());
        micros.fetch_add(5_000_000, Ordering::Relaxed);
    }
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    // One unit for each entry, as they come when a member keeps up.
    for at in &ends {
        member.follow(&primary, at.index);
    }
    member.engine.committed(ends[2].index);
    for (group, pair) in ends.windows(2).enumerate().skip(1).take(2) {
        let (this, next) = (pair[0].time, pair[1].time);
        let shown = (group + 1) * 3;
        for time in [this - 2, this - 1, this, this + 1, next - 3] {
            assert_eq!(count_at(&member, time), Some(shown), "group {group}, {}", time - this);
        }
    }
    // Not committed yet, and what comes after it not known.
    assert_eq!(count_at(&member, ends[3].time), None);
    assert_eq!(count_at(&member, ends[3].time - 2), None);
    member.engine.committed(ends[3].index);
    assert_eq!(count_at(&member, ends[3].time), Some(12));
    assert_eq!(count_at(&member, ends[3].time + 1), None);
    // A state of which a reader was told stays, and so does what lies between it and the next.
    let told = member.engine.snapshot_view().unwrap().time().0;
    assert_eq!(told, ends[3].time);
    insert(&primary, C, &doc! { "_id": 100 }).unwrap();
    let last = primary.last_applied();
    member.follow(&primary, last.index);
    member.engine.committed(last.index);
    assert_eq!(count_at(&member, last.time - 1), Some(12));
    assert_eq!(count_at(&member, last.time), Some(13));
}

#[test]
fn times_within_a_long_unit_are_not_shown() {
    let (_dir, primary) = fresh();
    let times: Vec<u64> = (0..5).map(|n| insert(&primary, C, &doc! { "_id": n }).unwrap().time).collect();
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    member.follow(&primary, u64::MAX - 1);
    member.engine.committed(u64::MAX);
    assert_eq!(count_at(&member, times[4]), Some(5));
    assert_eq!(count_at(&member, times[2]), None);
}
