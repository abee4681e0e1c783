//! Transactions over several shards against a plain map: members change the lead, crash, and take back what they have not passed on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use sheaf_bson::{DocBuf, Timestamp, doc};
use sheaf_errors::{Code, Error};

use super::apply::state;
use super::member::Member;
use super::support::*;
use crate::{Engine, TransactionKey, TransactionRow, Write};

const SESSIONS: usize = 3;
const DOCS: i32 = 8;

#[derive(Clone, Debug)]
enum Step {
    /// Prepares changes of these documents, as far as they are free.
    Prepare(usize, Vec<i32>),
    /// Commits or aborts one of those that are prepared.
    Decide(usize, bool),
    AbortUnknown(usize),
    Settle(usize),
    Forget(usize),
    /// A plain write, which must wait if the document is held.
    Write(i32),
    Flush,
    Follow,
    Switch,
    Crash,
    /// What the other member has not is taken back.
    Rollback,
}

fn step() -> impl Strategy<Value = Step> {
    let nth = 0..100usize;
    prop_oneof![
        5 => (0..SESSIONS, prop::collection::vec(0..DOCS, 0..4)).prop_map(|(s, ids)| Step::Prepare(s, ids)),
        5 => (nth.clone(), any::<bool>()).prop_map(|(n, commit)| Step::Decide(n, commit)),
        1 => (0..SESSIONS).prop_map(Step::AbortUnknown),
        2 => nth.prop_map(Step::Settle),
        1 => (0..SESSIONS).prop_map(Step::Forget),
        4 => (0..DOCS).prop_map(Step::Write),
        2 => Just(Step::Flush),
        3 => Just(Step::Follow),
        1 => Just(Step::Switch),
        1 => Just(Step::Crash),
        1 => Just(Step::Rollback),
    ]
}

struct Held {
    key: TransactionKey,
    at: Timestamp,
    changes: Vec<(i32, Option<i32>)>,
}

impl Clone for Held {
    fn clone(&self) -> Self {
        Held { key: self.key.clone(), at: self.at, changes: self.changes.clone() }
    }
}

/// What must be there.
#[derive(Clone, Default)]
struct Model {
    docs: BTreeMap<i32, i32>,
    held: Vec<Held>,
    committed: Vec<TransactionKey>,
}

impl Model {
    fn is_free(&self, id: i32) -> bool {
        !self.held.iter().any(|held| held.changes.iter().any(|(other, _)| *other == id))
    }
}

struct World {
    /// The one that leads, with its folder, and the one that follows.
    leads: (tempfile::TempDir, Option<Member>),
    follows: (tempfile::TempDir, Option<Member>),
    model: Model,
    /// As the follower knows it.
    passed_on: Model,
    term: u64,
    /// Numbers that were never used.
    next: i32,
}

fn lsid(session: usize) -> DocBuf {
    doc! { "id": session as i32 }
}

impl World {
    fn new() -> World {
        let member = || {
            let dir = tempfile::tempdir().unwrap();
            let member = Member::open(dir.path());
            (dir, Some(member))
        };
        let mut world = World {
            leads: member(),
            follows: member(),
            model: Model::default(),
            passed_on: Model::default(),
            term: 1,
            next: 0,
        };
        world.lead();
        create(world.engine(), C, doc! {});
        let spec = index_spec(doc! { "u": 1 }, "u_1", doc! { "unique": true });
        build(world.engine(), C, &spec).unwrap();
        world.follow();
        world
    }

    fn engine(&self) -> &Engine {
        &self.leads.1.as_ref().unwrap().engine
    }

    fn follower(&self) -> &Member {
        self.follows.1.as_ref().unwrap()
    }

    fn lead(&mut self) {
        self.term += 1;
        self.leads.1.as_ref().unwrap().lead_in(self.term);
    }

    fn number(&mut self) -> i32 {
        self.next += 1;
        self.next
    }

    fn follow(&mut self) {
        self.follower().catch_up(self.engine());
        self.passed_on = self.model.clone();
        let (own, other) = (self.engine(), &self.follower().engine);
        assert_eq!(own.transaction_rows(), other.transaction_rows());
        assert!(state(own) == state(other));
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Prepare(session, ids) => self.prepare(*session, ids),
            Step::Decide(n, commit) => self.decide(*n, *commit),
            Step::AbortUnknown(session) => {
                let key = TransactionKey { lsid: lsid(*session), txn_number: self.number().into() };
                self.engine().write_abort(&key, GO_ON).unwrap();
                assert_eq!(self.engine().transaction_row(&key), Some(TransactionRow::Aborted));
            }
            Step::Settle(n) if !self.model.committed.is_empty() => {
                let at = n % self.model.committed.len();
                let key = self.model.committed.remove(at);
                self.engine().write_settled(&[key], GO_ON).unwrap();
            }
            Step::Forget(session) => {
                assert!(self.engine().forget_sessions(&[lsid(*session)]).unwrap());
            }
            Step::Write(id) => self.write(*id),
            Step::Flush => self.leads.1.as_ref().unwrap().flush(),
            Step::Follow => self.follow(),
            Step::Switch => {
                self.follow();
                self.leads.1.as_ref().unwrap().step_down();
                std::mem::swap(&mut self.leads, &mut self.follows);
                self.lead();
            }
            Step::Crash => {
                let copy = crash_copy(self.leads.0.path());
                self.leads.1 = None;
                let member = Member::open(copy.path());
                self.leads = (copy, Some(member));
                self.lead();
            }
            Step::Rollback => self.roll_back(),
            Step::Settle(_) => {}
        }
    }

    fn prepare(&mut self, session: usize, ids: &[i32]) {
        let key = TransactionKey { lsid: lsid(session), txn_number: self.number().into() };
        let mut txn = self.engine().begin(Some((lsid(session), key.txn_number))).unwrap();
        let collection = txn.collection(C).unwrap().unwrap();
        let mut changes = Vec::new();
        for id in ids {
            if !self.model.is_free(*id) || changes.iter().any(|(other, _)| other == id) {
                continue;
            }
            let n = self.number();
            let new = doc! { "_id": *id, "u": n };
            let value = match self.model.docs.get(id) {
                None => {
                    txn.insert(&collection, new.as_raw()).unwrap();
                    Some(n)
                }
                Some(_) if n % 3 == 0 => {
                    change(&mut txn, C, *id, None).unwrap();
                    None
                }
                Some(_) => {
                    change(&mut txn, C, *id, Some(&new)).unwrap();
                    Some(n)
                }
            };
            changes.push((*id, value));
        }
        let at = txn.prepare(&doc! { "0": "a", "1": "b" }, GO_ON).unwrap();
        self.model.held.push(Held { key, at: Timestamp(at.time), changes });
    }

    fn decide(&mut self, n: usize, commit: bool) {
        if self.model.held.is_empty() {
            return;
        }
        let held = self.model.held.remove(n % self.model.held.len());
        if !commit {
            self.engine().write_abort(&held.key, GO_ON).unwrap();
            return;
        }
        let at = Timestamp(held.at.0 + n as u64);
        assert!(self.engine().commit_prepared(&held.key, at, GO_ON).unwrap().time > at.0);
        for (id, value) in held.changes {
            match value {
                Some(value) => self.model.docs.insert(id, value),
                None => self.model.docs.remove(&id),
            };
        }
        self.model.committed.push(held.key);
    }

    fn write(&mut self, id: i32) {
        let n = self.number();
        let looked = AtomicU32::new(0);
        let give_up = || match looked.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Error::new(Code::MAX_TIME_MS_EXPIRED, "it waits")),
        };
        let free = self.model.is_free(id);
        let mut unit = self.engine().write(if free { GO_ON } else { &give_up });
        let collection = unit.collection(C).unwrap().unwrap();
        let new = doc! { "_id": id, "u": n };
        let done = match change(&mut unit, C, id, Some(&new)) {
            Ok(false) => unit.insert(&collection, new.as_raw()),
            done => done.map(|_| ()),
        };
        if !free {
            assert_eq!(done.unwrap_err().code(), Code::MAX_TIME_MS_EXPIRED);
            return;
        }
        done.unwrap();
        unit.commit().unwrap();
        self.model.docs.insert(id, n);
    }

    fn roll_back(&mut self) {
        let keep = self.follower().engine.last_applied().index;
        if self.engine().last_flushed().index > keep || self.engine().last_applied().index == keep {
            return;
        }
        let last = self.engine().last_applied().index;
        let saved = tempfile::tempdir().unwrap();
        self.engine().save_rolled_back(keep, last, saved.path()).unwrap();
        self.engine().truncate_log(keep).unwrap();
        self.leads.1 = None;
        self.leads.1 = Some(Member::open(self.leads.0.path()));
        self.model = self.passed_on.clone();
        self.lead();
    }

    fn check(&self) {
        let docs = self.model.docs.iter().map(|(id, n)| format!("{:?}", doc! { "_id": *id, "u": *n }));
        assert_eq!(all(self.engine(), C), docs.collect::<Vec<_>>());
        assert_eq!(self.engine().prepared_before(None).is_some(), !self.model.held.is_empty());
        for held in &self.model.held {
            let row = self.engine().transaction_row(&held.key);
            assert!(matches!(row, Some(TransactionRow::Prepared { at, .. }) if at == held.at), "{row:?}");
        }
        for key in &self.model.committed {
            let row = self.engine().transaction_row(key);
            assert!(matches!(row, Some(TransactionRow::Committed { settled: false, .. })), "{row:?}");
        }
        let collection = self.engine().catalog().collection(C).unwrap().clone();
        assert_eq!(collection.count(), self.model.docs.len() as u64);
    }
}

fn play(steps: &[Step]) {
    let mut world = World::new();
    for step in steps {
        world.run(step);
        world.check();
    }
    world.follow();
    assert_valid(world.engine(), C);
    assert_valid(&world.follower().engine, C);
    while !world.model.held.is_empty() {
        world.decide(0, true);
    }
    (0..DOCS).for_each(|id| world.write(id));
    world.check();
    world.engine().drop_collection(C, GO_ON).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn prepared_transactions_are_decided_once_whatever_happens(steps in prop::collection::vec(step(), 1..60)) {
        play(&steps);
    }
}

/// What a transaction holds is read from the database, where it is written by another thread at a start.
#[test]
fn a_start_takes_what_a_prepared_transaction_among_inserts_holds() {
    for _ in 0..8 {
        play(&[Step::Write(4), Step::Prepare(0, vec![5, 4]), Step::Write(0), Step::Crash]);
    }
}
