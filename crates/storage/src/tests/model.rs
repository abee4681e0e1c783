//! Random operations on the engine and on a plain map; crashes at random points; the two must agree.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use sheaf_bson::{DocBuf, doc};

use super::support::*;
use crate::{Engine, Options, Transaction, Write};

#[derive(Clone, Debug)]
enum Step {
    Insert(i32, i32),
    Update(i32, i32),
    Delete(i32),
    /// Documents inserted together.
    Batch(Vec<(i32, i32)>),
    /// Operations of a transaction, and whether it commits.
    Transaction(Vec<(i32, Option<i32>)>, bool),
    Flush,
    Sync,
    /// The process dies.
    Crash,
    /// The machine dies: log bytes behind the last sync are cut, some or all.
    PowerLoss(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..24i32;
    let a = 0..12i32;
    prop_oneof![
        6 => (id.clone(), a.clone()).prop_map(|(id, a)| Step::Insert(id, a)),
        6 => (id.clone(), a.clone()).prop_map(|(id, a)| Step::Update(id, a)),
        4 => id.clone().prop_map(Step::Delete),
        // Each id once: a document touched twice would make two commits of the batch.
        2 => prop::collection::btree_map(id.clone(), a.clone(), 1..8)
            .prop_map(|documents| Step::Batch(documents.into_iter().rev().collect())),
        3 => (prop::collection::vec((id, prop::option::of(a)), 1..6), any::<bool>())
            .prop_map(|(ops, commit)| Step::Transaction(ops, commit)),
        1 => Just(Step::Flush),
        1 => Just(Step::Sync),
        1 => Just(Step::Crash),
        1 => any::<u16>().prop_map(Step::PowerLoss),
    ]
}

fn document(id: i32, a: i32) -> DocBuf {
    // Several keys per document in the multikey index, a unique one in `u`.
    doc! { "_id": id, "a": [a, a + 1, { "b": a }], "u": (id * 100), "s": (a % 3) }
}

type Model = BTreeMap<i32, i32>;

fn in_transaction(txn: &mut Transaction, ops: &[(i32, Option<i32>)], model: &Model) -> Model {
    let mut model = model.clone();
    for (id, a) in ops {
        let collection = txn.collection(C).unwrap().unwrap();
        match (a, model.contains_key(id)) {
            (Some(a), true) => assert!(change(txn, C, *id, Some(&document(*id, *a))).unwrap()),
            (Some(a), false) => txn.insert(&collection, document(*id, *a).as_raw()).unwrap(),
            (None, known) => assert_eq!(change(txn, C, *id, None).unwrap(), known),
        }
        match a {
            Some(a) => model.insert(*id, *a),
            None => model.remove(id),
        };
    }
    model
}

fn apply(engine: &Engine, step: &Step, model: &mut Model) {
    match step {
        Step::Insert(id, a) => {
            assert_eq!(insert(engine, C, &document(*id, *a)).is_ok(), !model.contains_key(id));
            model.entry(*id).or_insert(*a);
        }
        Step::Update(id, a) => {
            let mut unit = engine.write(GO_ON);
            let found = change(&mut unit, C, *id, Some(&document(*id, *a))).unwrap();
            unit.commit().unwrap();
            assert_eq!(found, model.contains_key(id));
            model.entry(*id).and_modify(|old| *old = *a);
        }
        Step::Delete(id) => {
            let mut unit = engine.write(GO_ON);
            let found = change(&mut unit, C, *id, None).unwrap();
            unit.commit().unwrap();
            assert_eq!(found, model.remove(id).is_some());
        }
        Step::Batch(documents) => {
            let mut unit = engine.write(GO_ON);
            let collection = unit.collection(C).unwrap().unwrap();
            for (id, a) in documents {
                let done = unit.insert(&collection, document(*id, *a).as_raw()).is_ok();
                assert_eq!(done, !model.contains_key(id));
                model.entry(*id).or_insert(*a);
            }
            unit.commit().unwrap();
        }
        Step::Transaction(ops, commit) => {
            let mut txn = engine.begin(None).unwrap();
            let after = in_transaction(&mut txn, ops, model);
            if *commit {
                txn.commit(GO_ON).unwrap();
                *model = after;
            }
        }
        Step::Flush => engine.checkpoint().unwrap(),
        Step::Sync | Step::Crash | Step::PowerLoss(_) => {}
    }
}

fn check(engine: &Engine, model: &Model) {
    let expected: Vec<String> = model.iter().map(|(id, a)| format!("{:?}", document(*id, *a))).collect();
    assert_eq!(all(engine, C), expected);
    assert_valid(engine, C);
}

fn newest_segment(path: &Path) -> PathBuf {
    let mut segments: Vec<_> =
        std::fs::read_dir(path.join("log")).unwrap().map(|f| f.unwrap().path()).collect();
    segments.sort();
    segments.pop().unwrap()
}

/// Where the log's entries end; zeros may follow in the file. There is one segment.
fn log_len(engine: &Engine) -> u64 {
    engine.stats().log_bytes
}

/// Cuts the end of the log off: what no sync had covered may be lost, all or some of it.
fn cut_log(path: &Path, synced: u64, len: u64, cut: u16) {
    let keep = synced + (len - synced) * u64::from(cut) / u64::from(u16::MAX);
    File::options().write(true).open(newest_segment(path)).unwrap().set_len(keep).unwrap();
}

/// No sync but those that are asked for.
fn lazy(path: &Path) -> Options {
    Options { journal_commit_interval: Duration::from_secs(1000), ..options(path) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_is_a_map_that_survives(steps in prop::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = Engine::open(lazy(dir.path())).unwrap();
        create(&engine, C, doc! {});
        for spec in [
            index_spec(doc! { "a": 1, "s": -1 }, "a_1_s_-1", doc! {}),
            index_spec(doc! { "u": 1 }, "u_1", doc! { "unique": true }),
            index_spec(doc! { "a.b": 1 }, "a.b_1", doc! { "sparse": true }),
            index_spec(doc! { "s": "hashed" }, "s_hashed", doc! { "partialFilterExpression": { "s": { "$gt": 0 } } }),
        ] {
            build(&engine, C, &spec).unwrap();
        }
        engine.checkpoint().unwrap();
        let mut model = Model::new();
        // States by log index, with the log's length then: a power loss goes back to one of them.
        let mut history = vec![(engine.last_applied().index, model.clone(), log_len(&engine))];
        for step in &steps {
            apply(&engine, step, &mut model);
            history.push((engine.last_applied().index, model.clone(), log_len(&engine)));
            match step {
                Step::Crash => {
                    // Closing flushes nothing, so it is what a crash is.
                    drop(engine);
                    engine = Engine::open(lazy(dir.path())).unwrap();
                    check(&engine, &model);
                }
                Step::PowerLoss(cut) => {
                    let durable = engine.durable_index();
                    let synced = history.iter().rev().find(|(index, ..)| *index <= durable).unwrap().2;
                    let len = log_len(&engine);
                    drop(engine);
                    cut_log(dir.path(), synced, len, *cut);
                    engine = Engine::open(lazy(dir.path())).unwrap();
                    let at = engine.last_applied().index;
                    prop_assert!(at >= durable);
                    model = history.iter().rev().find(|(index, ..)| *index <= at).unwrap().1.clone();
                    history.retain(|(index, ..)| *index <= at);
                    check(&engine, &model);
                }
                Step::Sync => engine.wait_durable(engine.last_applied().index, GO_ON).unwrap(),
                _ => {}
            }
        }
        check(&engine, &model);
    }
}
