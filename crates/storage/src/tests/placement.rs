//! Writers beside changes of what a shard owns: nobody commits what an older placement let him write.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Timestamp, doc};
use sheaf_errors::{Code, Error, Result};

use super::member::Member;
use super::support::*;
use crate::oplog::{self, Operation, uuid_value};
use crate::{Engine, Transaction, TransactionKey, Uuid, View, Write};

const PLACEMENTS: &str = "config.placements";

/// `db.c`, with a placement of version 0.
fn placed() -> (tempfile::TempDir, Engine) {
    let (dir, engine) = fresh();
    place(&engine);
    (dir, engine)
}

fn place(engine: &Engine) {
    create(engine, PLACEMENTS, doc! {});
    insert(engine, PLACEMENTS, &placement(&uuid(engine), 0)).unwrap();
}

fn uuid(engine: &Engine) -> Uuid {
    engine.catalog().collection(C).unwrap().uuid
}

fn placement(uuid: &Uuid, version: i32) -> DocBuf {
    doc! { "_id": uuid_value(uuid), "v": version }
}

fn version_of(placement: RawDoc<'_>) -> i32 {
    placement.get("v").unwrap().as_exact_i64().unwrap() as i32
}

/// The placement's version in a state.
fn version_in(view: &View, uuid: &Uuid) -> i32 {
    let home = view.collection(PLACEMENTS).unwrap();
    let key = home.record_key(uuid_value(uuid)).unwrap();
    version_of(view.get(home, &key).unwrap().unwrap().as_raw())
}

/// Writes the next version.
fn change_placement(w: &mut dyn Write, uuid: &Uuid) -> Result<()> {
    let home = w.collection(PLACEMENTS)?.unwrap();
    let key = home.record_key(uuid_value(uuid))?;
    let old = DocBuf::from_bytes(w.read_for_update(&home, &key)?.unwrap());
    let new = placement(uuid, version_of(old.as_raw()) + 1);
    w.update(&home, &key, old.as_raw(), new.as_raw(), None)
}

/// A document that says by which version it was written.
fn write(w: &mut dyn Write, id: u32, version: i32) -> Result<()> {
    let collection = w.collection(C)?.unwrap();
    w.insert(&collection, doc! { "_id": id as i32, "v": version }.as_raw())
}

fn key(session: &str, txn_number: i64) -> TransactionKey {
    TransactionKey { lsid: doc! { "id": session }, txn_number }
}

fn begin(engine: &Engine, key: &TransactionKey) -> Transaction {
    engine.begin(Some((key.lsid.clone(), key.txn_number))).unwrap()
}

fn both() -> DocBuf {
    doc! { "0": "shard0", "1": "shard1" }
}

/// Gives up at the second look.
struct Impatient(AtomicU32);

impl Impatient {
    fn new() -> Self {
        Impatient(AtomicU32::new(0))
    }

    fn check(&self) -> Result<()> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "it waits")),
        }
    }
}

fn code<T>(result: Result<T>) -> i32 {
    result.map_or_else(|error| error.code().0, |_| 0)
}

#[track_caller]
fn assert_unit_waits(engine: &Engine, id: u32) {
    let patience = Impatient::new();
    let go_on = || patience.check();
    let mut unit = engine.write(&go_on);
    assert_eq!(code(write(&mut unit, id, 0)), Code::MAX_TIME_MS_EXPIRED.0);
}

#[track_caller]
fn assert_change_waits(engine: &Engine) {
    let patience = Impatient::new();
    let go_on = || patience.check();
    let mut unit = engine.write(&go_on);
    assert_eq!(code(change_placement(&mut unit, &uuid(engine))), Code::MAX_TIME_MS_EXPIRED.0);
}

fn unit_writes(engine: &Engine, id: u32) -> Result<()> {
    let mut unit = engine.write(GO_ON);
    write(&mut unit, id, 0)?;
    unit.commit().map(|_| ())
}

fn unit_changes(engine: &Engine) -> Result<()> {
    let mut unit = engine.write(GO_ON);
    change_placement(&mut unit, &uuid(engine))?;
    unit.commit().map(|_| ())
}

#[test]
fn units_and_changes_keep_each_other_out() {
    let (_dir, engine) = placed();
    let mut writer = engine.write(GO_ON);
    writer.collection(C).unwrap();
    assert_change_waits(&engine);
    write(&mut writer, 1, 0).unwrap();
    assert_change_waits(&engine);
    writer.commit().unwrap();
    unit_changes(&engine).unwrap();
    let mut changer = engine.write(GO_ON);
    change_placement(&mut changer, &uuid(&engine)).unwrap();
    assert_unit_waits(&engine, 2);
    // What else is in the database is nobody's concern.
    create(&engine, "db.other", doc! {});
    insert(&engine, "db.other", &doc! { "_id": 1 }).unwrap();
    drop(changer);
    unit_writes(&engine, 2).unwrap();
    assert_eq!(version_in(&engine.view().unwrap(), &uuid(&engine)), 1);
}

#[test]
fn transactions_conflict_with_a_change_since_they_began() {
    let (_dir, engine) = placed();
    let open = |id| {
        let mut txn = begin(&engine, &key("a", i64::from(id)));
        write(&mut txn, id, 0).unwrap();
        txn
    };
    let (to_commit, to_prepare) = (open(1), open(2));
    let mut bystander = begin(&engine, &key("b", 1));
    create(&engine, "db.other", doc! {});
    drop(std::mem::replace(&mut bystander, begin(&engine, &key("b", 2))));
    let other = bystander.collection("db.other").unwrap().unwrap();
    bystander.insert(&other, doc! { "_id": 1 }.as_raw()).unwrap();
    // Nobody waits for them.
    unit_changes(&engine).unwrap();
    assert_eq!(code(to_commit.commit(GO_ON)), Code::WRITE_CONFLICT.0);
    assert_eq!(code(to_prepare.prepare(&both(), GO_ON)), Code::WRITE_CONFLICT.0);
    bystander.commit(GO_ON).unwrap();
    open(3).commit(GO_ON).unwrap();
    // A change that is under way and comes to nothing does no harm; one that takes long does.
    let mut changer = begin(&engine, &key("c", 1));
    change_placement(&mut changer, &uuid(&engine)).unwrap();
    assert_eq!(code(open(4).commit(GO_ON)), Code::WRITE_CONFLICT.0);
    let late = open(5);
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| late.commit(GO_ON));
        drop(changer);
        commit.join().unwrap().unwrap();
    });
}

#[test]
fn a_hold_closes_a_collection_for_units() {
    let (_dir, engine) = placed();
    let hold = engine.hold(&uuid(&engine), GO_ON).unwrap().unwrap();
    assert_unit_waits(&engine, 1);
    // The placement can be written, by any kind of writer.
    unit_changes(&engine).unwrap();
    let mut changer = begin(&engine, &key("c", 1));
    change_placement(&mut changer, &uuid(&engine)).unwrap();
    changer.commit(GO_ON).unwrap();
    assert_unit_waits(&engine, 1);
    drop(hold);
    unit_writes(&engine, 1).unwrap();
    assert!(engine.hold(&Uuid::nil(), GO_ON).unwrap().is_none());
    assert_eq!(version_in(&engine.view().unwrap(), &uuid(&engine)), 2);
}

#[test]
fn who_changes_may_write_as_well() {
    let (_dir, engine) = placed();
    for prepare in [false, true] {
        let key = key("a", i64::from(prepare));
        let mut txn = begin(&engine, &key);
        write(&mut txn, u32::from(prepare), 0).unwrap();
        change_placement(&mut txn, &uuid(&engine)).unwrap();
        if prepare {
            let at = txn.prepare(&both(), GO_ON).unwrap();
            engine.commit_prepared(&key, Timestamp(at.time), GO_ON).unwrap();
        } else {
            txn.commit(GO_ON).unwrap();
        }
    }
    unit_writes(&engine, 7).unwrap();
    unit_changes(&engine).unwrap();
}

#[test]
fn prepared_transactions_guard_on_every_member() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (leads, follows) = (Member::open(first.path()), Member::open(second.path()));
    leads.lead();
    create(&leads.engine, C, doc! {});
    place(&leads.engine);
    let (writes, changes) = (key("w", 1), key("c", 1));

    let mut txn = begin(&leads.engine, &writes);
    write(&mut txn, 1, 0).unwrap();
    let at = txn.prepare(&both(), GO_ON).unwrap();
    assert_change_waits(&leads.engine);
    follows.catch_up(&leads.engine);
    leads.step_down();
    follows.lead();
    assert_change_waits(&follows.engine);
    drop(follows);
    let follows = Member::open(second.path());
    follows.lead();
    assert_change_waits(&follows.engine);
    follows.engine.commit_prepared(&writes, Timestamp(at.time), GO_ON).unwrap();
    unit_changes(&follows.engine).unwrap();

    let mut txn = begin(&follows.engine, &changes);
    change_placement(&mut txn, &uuid(&follows.engine)).unwrap();
    let at = txn.prepare(&both(), GO_ON).unwrap();
    assert_unit_waits(&follows.engine, 2);
    leads.catch_up(&follows.engine);
    follows.step_down();
    leads.lead();
    assert_unit_waits(&leads.engine, 2);
    drop(leads);
    let leads = Member::open(first.path());
    leads.lead();
    assert_unit_waits(&leads.engine, 2);
    leads.engine.commit_prepared(&changes, Timestamp(at.time), GO_ON).unwrap();
    unit_writes(&leads.engine, 2).unwrap();
    assert_eq!(version_in(&leads.engine.view().unwrap(), &uuid(&leads.engine)), 2);
}

/// Little pauses, so that each way of one thread between another's steps comes.
struct Pauses(u64);

impl Pauses {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn pause(&mut self) {
        match self.next(4) {
            0 => {}
            1 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(self.next(150))),
        }
    }
}

/// Ends the writers, also where a test fails.
struct Over<'r>(&'r AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How a writer commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    Unit,
    Alone,
    Prepared,
}

const WAYS: [How; 3] = [How::Unit, How::Alone, How::Prepared];

struct Race<'e> {
    engine: &'e Engine,
    next: AtomicU32,
    numbers: AtomicU64,
    over: AtomicBool,
}

impl Race<'_> {
    /// Ends a transaction one way or the other.
    fn end(&self, txn: Transaction, key: &TransactionKey, how: How, pauses: &mut Pauses) -> Result<()> {
        pauses.pause();
        if how == How::Alone {
            return txn.commit(GO_ON).map(|_| ());
        }
        let at = txn.prepare(&both(), GO_ON)?;
        pauses.pause();
        if pauses.next(4) == 0 {
            self.engine.write_abort(key, GO_ON)?;
        } else {
            self.engine.commit_prepared(key, Timestamp(at.time), GO_ON)?;
        }
        Ok(())
    }

    fn key(&self, how: How) -> TransactionKey {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        key(&format!("{how:?}{number}"), 1)
    }

    fn write_once(&self, how: How, pauses: &mut Pauses) -> Result<()> {
        let uuid = uuid(self.engine);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if how == How::Unit {
            let mut unit = self.engine.write(GO_ON);
            unit.collection(C)?;
            let version = version_in(&self.engine.view()?, &uuid);
            pauses.pause();
            write(&mut unit, id, version)?;
            pauses.pause();
            return unit.commit().map(|_| ());
        }
        let key = self.key(how);
        let mut txn = begin(self.engine, &key);
        let version = version_in(&txn.view()?, &uuid);
        pauses.pause();
        write(&mut txn, id, version)?;
        self.end(txn, &key, how, pauses)
    }

    fn change_once(&self, how: How, pauses: &mut Pauses) -> Result<()> {
        let uuid = uuid(self.engine);
        if how == How::Unit {
            let mut unit = self.engine.write(GO_ON);
            change_placement(&mut unit, &uuid)?;
            pauses.pause();
            return unit.commit().map(|_| ());
        }
        let key = self.key(how);
        let mut txn = begin(self.engine, &key);
        change_placement(&mut txn, &uuid)?;
        self.end(txn, &key, how, pauses)
    }
}

/// Goes through the log: each document was written by the version that was in force when its commit, and its prepare, were ordered.
/// Gives how many documents there were of each kind.
fn judge(engine: &Engine) -> BTreeMap<How, u32> {
    let mut judge = Judge::default();
    let last = engine.last_applied().index;
    for entry in engine.log_entries(1, last + 1, u64::MAX).unwrap() {
        oplog::documents(&entry.payload).for_each(|doc| judge.document(doc));
    }
    judge.seen
}

#[derive(Default)]
struct Judge {
    version: i32,
    prepared: BTreeMap<u64, Vec<DocBuf>>,
    seen: BTreeMap<How, u32>,
}

impl Judge {
    fn document(&mut self, doc: RawDoc<'_>) {
        let fields = Operation::read(doc);
        let inner = || fields.o.get("applyOps").and_then(|list| list.as_array());
        if fields.o.get("commitTransaction").is_some() {
            let Some(sheaf_bson::Value::Timestamp(prepared)) = fields.o.get("prepared") else {
                panic!("{doc:?}")
            };
            let operations = self.prepared.remove(&prepared.0).unwrap();
            operations.iter().for_each(|operation| self.operation(operation.as_raw(), How::Prepared));
        } else if fields.o.get("prepare").is_some() {
            let operations: Vec<_> = inner()
                .unwrap()
                .values()
                .map(|operation| DocBuf::from(operation.as_doc().unwrap()))
                .collect();
            let written =
                operations.iter().filter(|operation| Operation::read(operation.as_raw()).namespace == C);
            written.for_each(|operation| self.look(operation.as_raw()));
            self.prepared.insert(fields.time, operations);
        } else if let Some(operations) = inner() {
            let all = operations.values().filter_map(|operation| operation.as_doc());
            all.for_each(|operation| self.operation(operation, How::Alone));
        } else {
            self.operation(doc, How::Unit);
        }
    }

    fn look(&self, operation: RawDoc<'_>) {
        let written = version_of(Operation::read(operation).o);
        assert_eq!(written, self.version, "written by another version: {operation:?}");
    }

    fn operation(&mut self, operation: RawDoc<'_>, how: How) {
        let fields = Operation::read(operation);
        match fields.namespace {
            C => {
                self.look(operation);
                *self.seen.entry(how).or_default() += 1;
            }
            PLACEMENTS if matches!(fields.op, Some("i" | "u")) => self.version = version_of(fields.o),
            _ => {}
        }
    }
}

#[test]
fn nobody_commits_by_an_older_version() {
    let (_dir, engine) = placed();
    let race = Race {
        engine: &engine,
        next: AtomicU32::new(0),
        numbers: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let conflicts = AtomicU32::new(0);
    let tolerated = |result: Result<()>| match code(result) {
        0 => {}
        code if code == Code::WRITE_CONFLICT.0 => _ = conflicts.fetch_add(1, Ordering::Relaxed),
        // Writers have taken turns at keeping it out.
        code => assert_eq!(code, Code::LOCK_TIMEOUT.0),
    };
    std::thread::scope(|scope| {
        for (seed, how) in WAYS.into_iter().enumerate() {
            let (race, tolerated) = (&race, &tolerated);
            scope.spawn(move || {
                let mut pauses = Pauses(seed as u64);
                while !race.over.load(Ordering::Relaxed) {
                    tolerated(race.write_once(how, &mut pauses));
                    pauses.pause();
                }
            });
        }
        let _over = Over(&race.over);
        let mut pauses = Pauses(77);
        for turn in 0..300 {
            tolerated(race.change_once(WAYS[turn % 3], &mut pauses));
            (0..3).for_each(|_| pauses.pause());
        }
    });
    let seen = judge(&engine);
    assert!(WAYS.iter().all(|how| seen.get(how).is_some_and(|count| *count > 20)), "{seen:?}");
    assert!(conflicts.into_inner() > 10);
    assert!(version_in(&engine.view().unwrap(), &uuid(&engine)) > 100);
    assert_valid(&engine, C);
}
