//! The state at a cluster time, beside transactions that are prepared over several shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sheaf_bson::{ClusterTime, DocBuf, Timestamp, doc};
use sheaf_errors::Code;

use super::member::Member;
use super::support::*;
use crate::{Direction, Engine, OpTime, Options, Range, Transaction, TransactionKey, View, Write};

/// A primary with documents 0 to 3, whose clock stands still.
struct Shard {
    member: Member,
    micros: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

impl Shard {
    fn filled() -> Shard {
        let dir = tempfile::tempdir().unwrap();
        let micros = Arc::new(AtomicU64::new(1_800_000_000_000_000));
        let now = micros.clone();
        let clock_micros = Arc::new(move || now.load(Ordering::Relaxed));
        let member = Member::open_with(Options { clock_micros, ..options(dir.path()) });
        member.lead();
        create(&member.engine, C, doc! {});
        for id in 0..4 {
            insert(&member.engine, C, &doc! { "_id": id, "n": 0 }).unwrap();
        }
        Shard { member, micros, _dir: dir }
    }

    fn engine(&self) -> &Engine {
        &self.member.engine
    }

    /// A time above all that is stamped; what comes is stamped above it.
    fn line(&self) -> u64 {
        let line = self.micros.fetch_add(1_000_000, Ordering::Relaxed) + 500_000;
        Timestamp::from(ClusterTime::from_micros(line)).0
    }

    fn begin_at(&self, time: u64) -> Transaction {
        self.engine().begin_at(Some((doc! { "id": "reader" }, 1)), Timestamp(time)).unwrap()
    }

    /// Sets 1, deletes 2, inserts 5.
    fn prepare(&self) -> OpTime {
        let mut txn = self.engine().begin(Some((key().lsid, 1))).unwrap();
        change(&mut txn, C, 1, Some(&doc! { "_id": 1, "n": 1 })).unwrap();
        change(&mut txn, C, 2, None).unwrap();
        let collection = txn.collection(C).unwrap().unwrap();
        txn.insert(&collection, doc! { "_id": 5, "n": 1 }.as_raw()).unwrap();
        txn.prepare(&doc! { "0": "a", "1": "b" }, GO_ON).unwrap()
    }

    fn commit(&self, at: u64) {
        self.engine().commit_prepared(&key(), Timestamp(at), GO_ON).unwrap();
    }

    fn set(&self, id: i32, n: i32) {
        let mut unit = self.engine().write(GO_ON);
        change(&mut unit, C, id, Some(&doc! { "_id": id, "n": n })).unwrap();
        unit.commit().unwrap();
    }
}

fn key() -> TransactionKey {
    TransactionKey { lsid: doc! { "id": "over shards" }, txn_number: 1 }
}

fn shown(view: &View, direction: Direction) -> Vec<(i32, i32)> {
    let mut cursor = view.records(view.collection(C).unwrap(), Range::ALL, direction).unwrap();
    let mut found = Vec::new();
    while cursor.next().unwrap() {
        let field = |name: &str| cursor.doc().get(name).and_then(|v| v.as_exact_i64()).unwrap() as i32;
        found.push((field("_id"), field("n")));
    }
    found
}

fn get(view: &View, id: i32) -> Option<DocBuf> {
    let collection = view.collection(C).unwrap();
    let key = collection.record_key(sheaf_bson::Value::Int32(id)).unwrap();
    view.get(collection, &key).unwrap().map(|doc| DocBuf::from(doc.as_raw()))
}

const BEFORE: [(i32, i32); 4] = [(0, 0), (1, 0), (2, 0), (3, 0)];
const AFTER: [(i32, i32); 4] = [(0, 0), (1, 1), (3, 0), (5, 1)];

#[track_caller]
fn assert_shows(view: &View, expected: &[(i32, i32)]) {
    assert_eq!(shown(view, Direction::Forward), expected);
    let backward: Vec<_> = expected.iter().rev().copied().collect();
    assert_eq!(shown(view, Direction::Backward), backward);
    for id in 0..6 {
        let expected = expected.iter().find(|(known, _)| *known == id);
        assert_eq!(get(view, id).is_some(), expected.is_some(), "{id}");
    }
}

#[test]
fn the_past_at_a_time_has_what_was_stamped_up_to_it() {
    let shard = Shard::filled();
    let first = shard.line();
    shard.set(0, 7);
    let second = shard.line();
    shard.set(0, 8);
    for (time, n) in [(first, 0), (second, 7), (shard.line(), 8)] {
        let mut txn = shard.begin_at(time);
        assert_eq!(shown(&txn.view().unwrap(), Direction::Forward)[0], (0, n));
        assert_eq!(txn.snapshot_time(), time);
    }
    // Once the set has committed it, it is not kept for long.
    for n in 0..80 {
        shard.set(3, n);
    }
    shard.member.commit(shard.engine().last_applied().index);
    let gone = shard.engine().begin_at(None, Timestamp(first)).err().unwrap();
    assert_eq!(gone.code(), Code::SNAPSHOT_TOO_OLD);
}

#[test]
fn a_state_within_an_entry_is_the_one_of_its_time() {
    let shard = Shard::filled();
    let mut unit = shard.engine().write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    for id in 10..13 {
        unit.insert(&collection, doc! { "_id": id, "n": 0 }.as_raw()).unwrap();
    }
    let at = unit.commit().unwrap();
    shard.member.commit(at.index);
    let time = Timestamp(at.time - 1);
    // Who goes on to another shard goes there with the time that is answered here.
    let view = shard.engine().view_at(time, true).unwrap();
    assert_eq!((view.time(), shown(&view, Direction::Forward).len()), (time, 7));
    assert_eq!(shard.engine().named_view(time).unwrap().time(), time);
    assert_eq!(shard.begin_at(time.0).snapshot_time(), time.0);
}

#[test]
fn what_was_committed_late_is_not_forgotten_under_a_reader() {
    let shard = Shard::filled();
    let prepared = shard.prepare().time;
    let time = shard.line();
    let core = shard.engine().core();
    let found = core.commits.majority().at(&core.published, time, true, true).unwrap();
    shard.commit(prepared);
    let transactions = core.commits.transactions();
    assert_eq!(transactions.beside(found.index, Some(time)).unwrap().len(), 1);
    // The reader has found its state, and sleeps while others go on for longer than states are kept.
    for n in 0..80 {
        shard.set(3, n);
    }
    shard.member.commit(shard.engine().last_applied().index);
    assert!(transactions.beside(found.index, Some(time)).is_none());
}

#[test]
fn a_state_that_is_held_stays() {
    let shard = Shard::filled();
    let time = shard.line();
    shard.engine().hold_state(Timestamp(time), Duration::from_secs(60)).unwrap();
    for n in 1..80 {
        shard.set(1, n);
    }
    shard.member.commit(shard.engine().last_applied().index);
    let mut txn = shard.begin_at(time);
    assert_shows(&txn.view().unwrap(), &BEFORE);
    assert_eq!(change(&mut txn, C, 1, None).unwrap_err().code(), Code::WRITE_CONFLICT);
    assert!(change(&mut shard.begin_at(time), C, 2, None).unwrap());
    // For no time is all the time.
    shard.engine().hold_state(Timestamp(shard.line()), Duration::ZERO).unwrap();
}

#[test]
fn commits_at_or_below_the_time_are_seen_whenever_they_are_written() {
    for late in [false, true] {
        let shard = Shard::filled();
        let prepared = shard.prepare().time;
        let at = shard.line();
        if !late {
            shard.commit(prepared + 1);
        }
        let time = shard.line();
        let mut above = shard.begin_at(time);
        let mut below = shard.begin_at(prepared);
        if late {
            // Its entry is behind all that is asked for here, its time is not.
            shard.commit(at);
        }
        assert_shows(&above.view().unwrap(), &AFTER);
        assert_shows(&below.view().unwrap(), &BEFORE);
        // Who begins only now finds the same.
        assert_shows(&shard.begin_at(time).view().unwrap(), &AFTER);
        assert_shows(&shard.begin_at(prepared).view().unwrap(), &BEFORE);
        // What came later is not in it.
        shard.set(1, 9);
        assert_shows(&shard.begin_at(time).view().unwrap(), &AFTER);
    }
}

#[test]
fn who_meets_what_is_in_doubt_waits_for_the_decision() {
    for committed in [true, false] {
        let shard = Shard::filled();
        let prepared = shard.prepare().time;
        let time = shard.line();
        let mut txn = shard.begin_at(time);
        let view = txn.view().unwrap();
        // The others are waited for by nobody.
        assert!(get(&view, 0).is_some() && get(&view, 3).is_some());
        let newest = shard.engine().decided_view().unwrap();
        std::thread::scope(|scope| {
            let waiting = [
                scope.spawn(|| shown(&view, Direction::Forward)),
                scope.spawn(|| shown(&newest, Direction::Forward)),
            ];
            std::thread::sleep(Duration::from_millis(30));
            assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
            match committed {
                true => shard.commit(prepared),
                false => drop(shard.engine().write_abort(&key(), GO_ON).unwrap()),
            }
            for found in waiting {
                assert_eq!(found.join().unwrap(), if committed { AFTER } else { BEFORE });
            }
        });
        // What was below the prepare is not in doubt.
        assert_shows(&shard.begin_at(prepared - 1).view().unwrap(), &BEFORE);
    }
}

#[test]
fn a_write_conflicts_with_what_came_after_the_time() {
    // With a transaction open meanwhile, and with none: then nobody has noted what was written.
    for noted in [true, false] {
        let shard = Shard::filled();
        let time = shard.line();
        let open = noted.then(|| shard.engine().begin(None).unwrap());
        shard.set(1, 5);
        insert(shard.engine(), C, &doc! { "_id": 9, "n": 0 }).unwrap();
        let mut txn = shard.begin_at(time);
        let collection = txn.collection(C).unwrap().unwrap();
        assert_eq!(
            txn.insert(&collection, doc! { "_id": 9 }.as_raw()).unwrap_err().code(),
            Code::WRITE_CONFLICT
        );
        let mut txn = shard.begin_at(time);
        let changed = change(&mut txn, C, 1, Some(&doc! { "_id": 1, "n": 6 }));
        assert_eq!(changed.unwrap_err().code(), Code::WRITE_CONFLICT);
        let mut txn = shard.begin_at(time);
        change(&mut txn, C, 0, Some(&doc! { "_id": 0, "n": 6 })).unwrap();
        change(&mut txn, C, 0, Some(&doc! { "_id": 0, "n": 7 })).unwrap();
        // What comes now conflicts with both.
        let mut other = shard.begin_at(time);
        shard.set(3, 1);
        assert!(change(&mut other, C, 3, None).is_err());
        txn.commit(GO_ON).unwrap();
        drop(open);
    }
}

#[test]
fn what_was_prepared_below_the_time_is_no_conflict() {
    let shard = Shard::filled();
    let prepared = shard.prepare().time;
    let mut txn = shard.begin_at(shard.line());
    std::thread::scope(|scope| {
        // The lock is waited for.
        let changed = scope.spawn(|| {
            change(&mut txn, C, 1, Some(&doc! { "_id": 1, "n": 2 })).unwrap();
            txn.commit(GO_ON).unwrap();
        });
        std::thread::sleep(Duration::from_millis(30));
        assert!(!changed.is_finished());
        shard.commit(prepared);
        changed.join().unwrap();
    });
    assert_shows(&shard.engine().view().unwrap(), &[(0, 0), (1, 2), (3, 0), (5, 1)]);
}

#[test]
fn a_member_that_has_followed_shows_the_same() {
    let shard = Shard::filled();
    let dir = tempfile::tempdir().unwrap();
    let follower = Member::open(dir.path());
    let prepared = shard.prepare();
    follower.catch_up(shard.engine());
    let time = shard.line();
    let begin = || follower.engine.begin_at(None, Timestamp(time)).unwrap();
    let mut early = begin();
    shard.commit(prepared.time);
    follower.catch_up(shard.engine());
    assert_shows(&early.view().unwrap(), &AFTER);
    assert_shows(&begin().view().unwrap(), &AFTER);
    // So does one that was restarted in between.
    let other = Shard::filled();
    let prepared = other.prepare();
    let dir = tempfile::tempdir().unwrap();
    let follower = Member::open(dir.path());
    follower.catch_up(other.engine());
    drop(follower);
    let follower = Member::open(dir.path());
    let time = other.line();
    let mut early = follower.engine.begin_at(None, Timestamp(time)).unwrap();
    other.commit(prepared.time);
    follower.catch_up(other.engine());
    assert_shows(&early.view().unwrap(), &AFTER);
}
