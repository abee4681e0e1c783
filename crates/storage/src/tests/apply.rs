//! A member that applies another's log has the other's state, in every byte that counts, whatever crashes.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use proptest::prelude::*;
use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result, bail};

use super::support::*;
use crate::db::Cf;
use crate::keys::prefix_range;
use crate::{CreateCollection, Engine, LogEntry, LogUnit, Options, Seal, Sequencer, Statement, Write};

/// Gives a member what another's log holds.
#[derive(Default)]
pub struct Feed {
    units: Mutex<VecDeque<LogUnit>>,
    commit: AtomicU64,
    acknowledged: AtomicU64,
}

impl Sequencer for Feed {
    fn takes_writes(&self) -> bool {
        false
    }

    fn propose(&self, _seal: Seal<'_>) -> Result<u64> {
        bail!(Code::NOT_WRITABLE_PRIMARY, "not primary")
    }

    fn take(&self) -> Result<Option<LogUnit>> {
        Ok(self.units.lock().pop_front())
    }

    fn acknowledge(&self, seq: u64) {
        self.acknowledged.store(seq, Ordering::Release);
    }

    fn put_back(&self, unit: LogUnit) {
        self.units.lock().push_front(unit);
    }

    fn durable(&self, _seq: u64) {}

    fn commit_index(&self) -> u64 {
        self.commit.load(Ordering::Acquire)
    }

    fn compacted(&self, _index: u64) {}
}

/// A member that follows.
pub struct Follower {
    pub engine: Engine,
    pub feed: Arc<Feed>,
    seq: u64,
}

impl Follower {
    pub fn open(path: &Path) -> Follower {
        let engine = Engine::open(Options { replica: true, ..options(path) }).unwrap();
        let feed = Arc::new(Feed::default());
        engine.set_sequencer(feed.clone(), false);
        Follower { engine, feed, seq: 0 }
    }

    /// Has these entries as the next unit.
    pub fn give(&mut self, entries: Vec<LogEntry>) {
        self.seq += 1;
        self.feed.units.lock().push_back(LogUnit { seq: self.seq, entries });
    }

    /// The last unit that it has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.feed.acknowledged.load(Ordering::Acquire)
    }

    /// Applies these entries as one unit.
    pub fn take(&mut self, entries: Vec<LogEntry>) {
        self.give(entries);
        assert!(self.engine.apply_units().unwrap());
        assert_eq!(self.feed.acknowledged.load(Ordering::Acquire), self.seq);
    }

    /// Follows up to the other's end, in units of so many entries.
    pub fn follow(&mut self, other: &Engine, chunk: usize) {
        loop {
            let next = self.engine.last_applied().index + 1;
            let entries = other.log_entries(next, next + chunk as u64, 16 << 20).unwrap();
            if entries.is_empty() {
                return;
            }
            self.take(entries);
        }
    }

    pub fn flush(&self) {
        self.feed.commit.store(u64::MAX, Ordering::Release);
        self.engine.checkpoint().unwrap();
    }
}

fn rows(engine: &Engine, cf: Cf, ident: Option<u32>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let db = &engine.core().base.db;
    let mut iter = db.raw().raw_iterator_cf(db.cf(cf));
    let (from, to) = ident.map_or(([0; 4], [0xff; 4]), prefix_range);
    iter.seek(from);
    let mut out = Vec::new();
    while let Some((key, value)) = iter.item().filter(|(key, _)| *key < &to[..] || ident.is_none()) {
        out.push((key.to_vec(), value.to_vec()));
        iter.next();
    }
    out
}

/// Everything that two members must have alike.
pub fn state(engine: &Engine) -> Vec<String> {
    let mut out = Vec::new();
    for collection in engine.catalog().all() {
        let counts = (collection.count(), collection.data_bytes());
        out.push(format!("{:?} {counts:?}", collection.to_doc()));
        if collection.capped.is_some() {
            out.push(format!("next {}", collection.state.next_key.load(Ordering::Acquire)));
        }
        out.push(format!("{:?}", rows(engine, Cf::Records, Some(collection.ident))));
        for index in collection.maintained().filter(|index| index.ready) {
            let masks = index.multikey.masks();
            out.push(format!("{} {masks:?} {:?}", index.name, rows(engine, Cf::Indexes, Some(index.ident))));
        }
    }
    out.push(format!("{:?}", rows(engine, Cf::Sessions, None)));
    out
}

fn assert_alike(primary: &Engine, follower: &Engine) {
    assert_same_data(primary, follower);
    assert_eq!(primary.last_applied(), follower.last_applied());
}

fn assert_same_data(primary: &Engine, follower: &Engine) {
    let (left, right) = (state(primary), state(follower));
    assert_eq!(left.len(), right.len());
    if let Some((left, right)) = left.iter().zip(&right).find(|(left, right)| left != right) {
        let at = left.bytes().zip(right.bytes()).position(|(l, r)| l != r).unwrap_or_default();
        let around = |text: &str| text[at.saturating_sub(120)..text.len().min(at + 120)].to_owned();
        panic!("{} and {} at {at}: {} | {}", left.len(), right.len(), around(left), around(right));
    }
    for collection in follower.catalog().all().filter(|c| !c.is_view()) {
        assert_valid(follower, &collection.namespace);
    }
}

const NAMES: [&str; 3] = ["db.a", "db.b", "other.c"];
const CAPPED: &str = "db.capped";

#[derive(Clone, Debug)]
enum Step {
    /// Documents inserted, changed or deleted in one unit.
    Write(usize, Vec<(i32, Option<i32>)>),
    /// An update by difference.
    Diff(usize, i32, i32),
    /// The same document again and again in one unit.
    Again(usize, i32, u8),
    Capped(u8),
    Retryable(usize, i32, i64),
    /// Over two collections.
    Transaction(Vec<(usize, i32, Option<i32>)>, bool),
    /// A transaction that makes its collection.
    Create(usize, Vec<i32>),
    Drop(usize),
    Rename(usize, usize),
    Index(usize, usize),
    DropIndex(usize, usize),
    CollMod(usize, i32),
    /// The follower follows, in units of so many entries.
    Follow(usize),
    Flush,
    Crash,
    /// The other one crashes.
    CrashPrimary,
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let id = 0..20i32;
    let some = prop::option::weighted(0.7, 0..9i32);
    prop_oneof![
        8 => (name.clone(), prop::collection::vec((id.clone(), some.clone()), 1..6)).prop_map(|(n, ops)| Step::Write(n, ops)),
        4 => (name.clone(), id.clone(), 0..9i32).prop_map(|(n, id, a)| Step::Diff(n, id, a)),
        2 => (name.clone(), id.clone(), 2..5u8).prop_map(|(n, id, times)| Step::Again(n, id, times)),
        3 => (1..6u8).prop_map(Step::Capped),
        2 => (name.clone(), id.clone(), 1..5i64).prop_map(|(n, id, number)| Step::Retryable(n, id, number)),
        4 => (prop::collection::vec((name.clone(), id.clone(), some), 1..6), any::<bool>())
            .prop_map(|(ops, session)| Step::Transaction(ops, session)),
        2 => (name.clone(), prop::collection::vec(id, 0..4)).prop_map(|(n, ids)| Step::Create(n, ids)),
        1 => name.clone().prop_map(Step::Drop),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        3 => (name.clone(), 0..SPECS).prop_map(|(n, spec)| Step::Index(n, spec)),
        1 => (name.clone(), 0..SPECS).prop_map(|(n, spec)| Step::DropIndex(n, spec)),
        1 => (name, 0..100i32).prop_map(|(n, level)| Step::CollMod(n, level)),
        6 => (1..12usize).prop_map(Step::Follow),
        1 => Just(Step::Flush),
        1 => Just(Step::Crash),
        1 => Just(Step::CrashPrimary),
    ]
}

const SPECS: usize = 4;

fn spec(n: usize) -> DocBuf {
    match n {
        0 => index_spec(doc! { "a": 1, "s": -1 }, "a_1_s_-1", doc! {}),
        1 => index_spec(doc! { "u": 1 }, "u_1", doc! { "unique": true, "sparse": true }),
        2 => index_spec(doc! { "a.b": 1 }, "a.b_1", doc! { "sparse": true }),
        _ => index_spec(
            doc! { "s": "hashed" },
            "s_hashed",
            doc! { "partialFilterExpression": { "s": { "$gt": 0 } } },
        ),
    }
}

fn document(id: i32, a: i32) -> DocBuf {
    doc! { "_id": id, "a": [a, a + 1, { "b": a }], "u": (id * 100), "s": (a % 3) }
}

fn ensure(engine: &Engine, namespace: &str) {
    if engine.catalog().collection(namespace).is_none() {
        create(engine, namespace, doc! {});
    }
}

/// Sets or removes a document, whatever is there.
fn put(w: &mut dyn Write, namespace: &str, id: i32, new: Option<&DocBuf>) -> Result<()> {
    if !change(w, namespace, id, new)?
        && let Some(new) = new
    {
        let collection = w.collection(namespace)?.expect("collection exists");
        w.insert(&collection, new.as_raw())?;
    }
    Ok(())
}

fn run(engine: &Engine, step: &Step) {
    match step {
        Step::Write(n, ops) => {
            ensure(engine, NAMES[*n]);
            let mut unit = engine.write(GO_ON);
            for (id, a) in ops {
                put(&mut unit, NAMES[*n], *id, a.map(|a| document(*id, a)).as_ref()).unwrap();
            }
            unit.commit().unwrap();
        }
        Step::Diff(n, id, a) => {
            ensure(engine, NAMES[*n]);
            let mut unit = engine.write(GO_ON);
            let collection = unit.collection(NAMES[*n]).unwrap().unwrap();
            let key = collection.record_key((*id).into()).unwrap();
            let Some(old) = unit.read_for_update(&collection, &key).unwrap() else { return };
            let new = document(*id, *a);
            let Some(diff) = sheaf_query::diff::diff(RawDoc::new(&old), new.as_raw()) else { return };
            unit.update(&collection, &key, RawDoc::new(&old), new.as_raw(), Some(diff.as_raw())).unwrap();
            unit.commit().unwrap();
        }
        Step::Again(n, id, times) => {
            ensure(engine, NAMES[*n]);
            // A transaction can touch a document more than once in one entry.
            let mut txn = engine.begin(None).unwrap();
            for time in 0..*times {
                put(&mut txn, NAMES[*n], *id, Some(&document(*id, i32::from(time)))).unwrap();
                if time == 1 {
                    put(&mut txn, NAMES[*n], *id, None).unwrap();
                }
            }
            txn.commit(GO_ON).unwrap();
        }
        Step::Capped(count) => {
            if engine.catalog().collection(CAPPED).is_none() {
                create(engine, CAPPED, doc! { "capped": true, "size": 4096, "max": 7 });
            }
            let mut unit = engine.write(GO_ON);
            let collection = unit.collection(CAPPED).unwrap().unwrap();
            for _ in 0..*count {
                let id = collection.state.next_key.load(Ordering::Acquire) as i64;
                unit.insert(&collection, doc! { "_id": id }.as_raw()).unwrap();
            }
            unit.commit().unwrap();
        }
        Step::Retryable(n, id, number) => {
            ensure(engine, NAMES[*n]);
            let mut unit = engine.write(GO_ON);
            let lsid = doc! { "id": (*n as i32) };
            let result = (*number % 2 == 0).then(|| doc! { "n": 1, "nModified": 1 });
            unit.statement(Some(Statement { lsid, txn_number: *number, stmt_id: *id, result }));
            put(&mut unit, NAMES[*n], *id, Some(&document(*id, 3))).unwrap();
            unit.commit().unwrap();
        }
        Step::Transaction(ops, session) => {
            ops.iter().for_each(|(n, ..)| ensure(engine, NAMES[*n]));
            let session = session.then(|| (doc! { "id": "txn" }, ops.len() as i64));
            let mut txn = engine.begin(session).unwrap();
            for (n, id, a) in ops {
                put(&mut txn, NAMES[*n], *id, a.map(|a| document(*id, a)).as_ref()).unwrap();
            }
            txn.commit(GO_ON).unwrap();
        }
        Step::Create(n, ids) => {
            if engine.catalog().collection(NAMES[*n]).is_some() {
                return;
            }
            let mut txn = engine.begin(None).unwrap();
            txn.create_collection(NAMES[*n], CreateCollection::default()).unwrap();
            txn.create_indexes(NAMES[*n], &[spec(0).as_raw(), spec(1).as_raw()]).unwrap();
            for id in ids {
                put(&mut txn, NAMES[*n], *id, Some(&document(*id, 1))).unwrap();
            }
            txn.commit(GO_ON).unwrap();
        }
        Step::Drop(n) => drop(engine.drop_collection(NAMES[*n], GO_ON)),
        Step::Rename(from, to) if from != to => {
            drop(rename(engine, NAMES[*from], NAMES[*to], true));
        }
        Step::Index(n, which) => {
            ensure(engine, NAMES[*n]);
            build(engine, NAMES[*n], &spec(*which)).unwrap();
        }
        Step::DropIndex(n, which) => {
            let spec = spec(*which);
            let name = spec.as_raw().get("name").and_then(|v| v.as_str()).unwrap();
            drop(drop_indexes(engine, NAMES[*n], &[name]));
        }
        Step::CollMod(n, level) => {
            let options = doc! { "validationLevel": "strict", "comment": (*level) };
            drop(set_options(engine, NAMES[*n], options.clone()));
        }
        Step::Rename(..) | Step::Follow(_) | Step::Flush | Step::Crash | Step::CrashPrimary => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_follower_has_the_primarys_state(steps in prop::collection::vec(step(), 1..80)) {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut primary = open(dir.path());
        let mut follower = Follower::open(other.path());
        for step in &steps {
            run(&primary, step);
            match step {
                Step::Follow(chunk) => {
                    follower.follow(&primary, *chunk);
                    assert_alike(&primary, &follower.engine);
                }
                Step::Flush => follower.flush(),
                Step::Crash => {
                    drop(follower);
                    follower = Follower::open(other.path());
                }
                Step::CrashPrimary => {
                    let before = state(&primary);
                    drop(primary);
                    primary = open(dir.path());
                    prop_assert_eq!(state(&primary), before);
                }
                _ => {}
            }
        }
        follower.follow(&primary, 1000);
        assert_alike(&primary, &follower.engine);
        drop(follower);
        let follower = Follower::open(other.path());
        assert_alike(&primary, &follower.engine);
        drop(follower);
        // As a standalone again, which drops nothing of it.
        assert_alike(&primary, &open(other.path()));
    }
}

#[test]
fn nobody_sees_half_a_transaction() {
    let (_dir, primary) = fresh();
    let other = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(other.path());
    let account = |id: i32, money: i32, text: &str| doc! { "_id": id, "money": money, "text": text };
    for id in 0..4 {
        insert(&primary, C, &account(id, 100, "")).unwrap();
    }
    follower.follow(&primary, 100);
    // Now and then one that takes several documents of the oplog.
    let long = "x".repeat(6 << 20);
    for round in 0..120i32 {
        let mut txn = primary.begin(None).unwrap();
        let text = if round % 40 == 7 { &long } else { "" };
        for id in 0..4 {
            let money = 100 + if id % 2 == 0 { round } else { -round };
            assert!(change(&mut txn, C, id, Some(&account(id, money, text))).unwrap());
        }
        txn.commit(GO_ON).unwrap();
        insert(&primary, C, &doc! { "_id": (1000 + round) }).unwrap();
    }
    let engine = follower.engine.clone();
    let done = Arc::new(AtomicBool::new(false));
    let watch = {
        let done = done.clone();
        std::thread::spawn(move || {
            let mut looks = 0;
            while !done.load(Ordering::Acquire) {
                let view = engine.view().unwrap();
                let collection = view.collection(C).unwrap();
                let mut money = Vec::new();
                for id in 0..4i32 {
                    let key = collection.record_key(id.into()).unwrap();
                    let found = view.get(collection, &key).unwrap().unwrap();
                    money.push(found.as_raw().get("money").and_then(|v| v.as_exact_i64()).unwrap());
                }
                let round = money[0] - 100;
                assert_eq!(money, [100 + round, 100 - round, 100 + round, 100 - round]);
                looks += 1;
            }
            looks
        })
    };
    follower.follow(&primary, 3);
    done.store(true, Ordering::Release);
    assert!(watch.join().unwrap() > 0);
    assert_alike(&primary, &follower.engine);
}

#[test]
fn an_index_built_under_writers_is_the_same_on_a_follower() {
    let (_dir, primary) = fresh();
    let other = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(other.path());
    for id in 0..3000 {
        insert(&primary, C, &document(id, id % 50)).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0i32;
            while !stop.load(Ordering::Acquire) {
                let mut unit = primary.write(GO_ON);
                put(&mut unit, C, n % 3500, (n % 7 != 0).then(|| document(n % 3500, n % 40)).as_ref())
                    .unwrap();
                unit.commit().unwrap();
                n += 13;
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        for which in 0..SPECS {
            build(&primary, C, &spec(which)).unwrap();
        }
        stop.store(true, Ordering::Release);
    });
    follower.follow(&primary, 50);
    assert_alike(&primary, &follower.engine);
    // Applied again from the start: the files that came in are there, and are not mistaken.
    drop(follower);
    let follower = Follower::open(other.path());
    assert_alike(&primary, &follower.engine);
    follower.flush();
    drop(follower);
    assert_alike(&primary, &Follower::open(other.path()).engine);
}

#[test]
fn files_of_an_index_that_the_set_has_not_kept_do_no_harm() {
    let (_dir, primary) = fresh();
    let other = tempfile::tempdir().unwrap();
    for id in 0..500 {
        insert(&primary, C, &document(id, id % 50)).unwrap();
    }
    let mut follower = Follower::open(other.path());
    follower.follow(&primary, 100);
    follower.flush();
    let keep = follower.engine.last_applied().index;
    drop(follower);
    // The follower leads for a while, alone, and builds an index.
    let alone = open(other.path());
    build(&alone, C, &spec(0)).unwrap();
    let ident =
        |engine: &Engine, name: &str| engine.catalog().collection(C).unwrap().index(name).unwrap().ident;
    let number = ident(&alone, "a_1_s_-1");
    alone.truncate_log(keep).unwrap();
    drop(alone);
    // The set has kept another index of the same number.
    build(&primary, C, &spec(1)).unwrap();
    assert_eq!(ident(&primary, "u_1"), number);
    let mut follower = Follower::open(other.path());
    assert_eq!(follower.engine.last_applied().index, keep);
    for mut entry in primary.log_entries(keep + 1, u64::MAX, u64::MAX).unwrap() {
        entry.term += 1;
        follower.take(vec![entry]);
    }
    assert_same_data(&primary, &follower.engine);
    // What start-up had removed is there again after a crash, because nothing was flushed.
    for _ in 0..2 {
        drop(follower);
        follower = Follower::open(other.path());
        assert_same_data(&primary, &follower.engine);
    }
}

#[test]
fn what_stays_on_a_member_is_not_taken_from_others() {
    let (_dir, primary) = fresh();
    let other = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(other.path());
    create(&primary, "local.mine", doc! {});
    insert(&primary, "local.mine", &doc! { "_id": 1 }).unwrap();
    create(&primary, "db.system.profile", doc! { "capped": true, "size": 4096 });
    insert(&primary, "db.system.profile", &doc! { "_id": 1 }).unwrap();
    insert(&primary, C, &doc! { "_id": 1 }).unwrap();
    // The follower has such a collection of its own, made while it follows.
    create(&follower.engine, "local.own", doc! {});
    insert(&follower.engine, "local.own", &doc! { "_id": 7 }).unwrap();
    follower.follow(&primary, 2);
    let names: Vec<String> = follower.engine.catalog().all().map(|c| c.namespace.clone()).collect();
    assert_eq!(names, [C, "local.own"]);
    assert_eq!(all(&follower.engine, C).len(), 1);
    assert_eq!(all(&follower.engine, "local.own").len(), 1);
    assert_eq!(follower.engine.last_applied(), primary.last_applied());
}

#[test]
fn the_tail_of_the_log_is_known_without_reading_it() {
    let (_dir, primary) = fresh();
    let other = tempfile::tempdir().unwrap();
    let terms = [1, 1, 2, 2, 2, 4, 5, 5, 9, 9];
    let text = "x".repeat(200 << 10);
    for n in 0..100 {
        insert(&primary, C, &doc! { "_id": n, "text": &text }).unwrap();
    }
    let options = |path: &Path| Options { replica: true, oplog_bytes: 4 << 20, ..options(path) };
    let entries = primary.log_entries(1, 200, u64::MAX).unwrap();
    let term = |index: u64| terms[(index as usize - 1) / 11];
    let mut start = None;
    for part in 0..4 {
        let engine = Engine::open(options(other.path())).unwrap();
        let feed = Arc::new(Feed::default());
        engine.set_sequencer(feed.clone(), false);
        let mut follower = Follower { engine, feed, seq: 0 };
        assert_eq!(follower.engine.log_tail().unwrap().start.1, start.unwrap_or(0));
        for entry in entries.iter().skip(part * 25).take(25) {
            let mut entry = entry.clone();
            entry.term = term(entry.index);
            follower.take(vec![entry]);
        }
        if part != 2 {
            follower.flush();
        }
        let tail = follower.engine.log_tail().unwrap();
        let last = follower.engine.last_applied().index;
        assert_eq!((tail.last.index, tail.last.term), (last, term(last)));
        assert_eq!(tail.start.0, if tail.start.1 == 0 { 0 } else { term(tail.start.1) });
        let of_runs = |index: u64| tail.runs.iter().rev().find(|(first, _)| *first <= index).unwrap().1;
        assert!((tail.start.1 + 1..=last).all(|index| of_runs(index) == term(index)));
        assert_eq!(tail.runs[0].0, tail.start.1 + 1);
        let behind: Vec<u64> = tail.times.iter().map(|(index, _)| *index).collect();
        assert_eq!(behind, (tail.committed..=last).collect::<Vec<_>>());
        // Entries come in pieces, whatever was asked for before.
        let read = |low: u64, high: u64, bytes: u64| -> Vec<u64> {
            let found = follower.engine.log_entries(low, high, bytes).unwrap();
            found.iter().map(|entry| entry.index).collect()
        };
        assert_eq!(read(last - 5, last - 2, u64::MAX), [last - 5, last - 4, last - 3]);
        assert_eq!(read(last - 2, last + 10, 1), [last - 2]);
        assert_eq!(read(last - 1, last + 10, 1 << 20), [last - 1, last]);
        assert_eq!(read(last + 1, last + 10, 1 << 20), [0u64; 0]);
        assert_eq!(read(tail.start.1, last, 1), if tail.start.1 == 0 { vec![1; 0] } else { vec![] });
        start = Some(tail.start.1);
    }
    assert!(start.unwrap() > 30);
}

/// A flush needs the pipeline, which is held while units are applied.
#[test]
fn who_catches_up_stops_where_memtables_are_full() {
    let (_dir, primary) = fresh();
    let text = "x".repeat(2 << 20);
    for n in 0..30 {
        insert(&primary, C, &doc! { "_id": n, "s": &text }).unwrap();
    }
    let other = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(other.path());
    let entries = primary.log_entries(1, u64::MAX, 1 << 30).unwrap();
    let count = entries.len();
    entries.into_iter().for_each(|entry| follower.give(vec![entry]));
    assert!(follower.engine.apply_units().unwrap());
    assert!((4..20).contains(&follower.acknowledged()), "{} of {count} at once", follower.acknowledged());
    while follower.engine.apply_units().unwrap() {}
    assert_eq!(follower.acknowledged(), count as u64);
    assert_same_data(&primary, &follower.engine);
}

#[test]
fn the_entry_that_begins_a_term_has_no_operations() {
    let other = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(other.path());
    follower.take(vec![LogEntry { term: 3, index: 1, time: 9 << 32, payload: Bytes::new() }]);
    let at = follower.engine.last_applied();
    assert_eq!((at.term, at.index, at.time), (3, 1, 9 << 32));
    drop(follower);
    assert_eq!(Follower::open(other.path()).engine.last_applied(), at);
}

/// How fast it goes: `cargo test --release -p sheaf-storage --lib how_fast -- --ignored --nocapture`.
#[test]
#[ignore = "prints a figure and checks nothing"]
fn how_fast_entries_are_applied() {
    for indexes in [0, 2] {
        let (_dir, primary) = fresh();
        for which in 0..indexes {
            build(&primary, C, &spec(which)).unwrap();
        }
        for n in 0..100_000 {
            insert(&primary, C, &document(n, n % 50)).unwrap();
        }
        for n in 0..50_000 {
            let mut unit = primary.write(GO_ON);
            change(&mut unit, C, n * 2, Some(&document(n * 2, n % 7))).unwrap();
            unit.commit().unwrap();
        }
        let other = tempfile::tempdir().unwrap();
        let mut follower = Follower::open(other.path());
        let began = std::time::Instant::now();
        follower.follow(&primary, 1000);
        let micros = began.elapsed().as_micros() as f64;
        println!("{indexes} indexes: {:.2} us an operation", micros / 150_000.0);
    }
}
