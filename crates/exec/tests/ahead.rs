//! Documents that are fetched before it is their turn come in the order of the index, each as often and as whole as one by one.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_exec::find;
use sheaf_exec::plan::Query;
use sheaf_exec::run::{Executor, Reads};
use sheaf_expr::ParseCx;
use sheaf_meter::{Meter, Process};
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{Cx, Limits, Operator, pull};
use sheaf_storage::{CreateCollection, Engine, Options, Write};

const COUNT: i32 = 12_000;

/// The place of a document in the order of `v`, which is none of the `_id`s.
fn place(id: i32) -> i32 {
    (id * 7919) % COUNT
}

fn filled() -> (tempfile::TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let go_on = || Ok(());
    engine.create_collection("test.c", &CreateCollection::default(), &go_on).unwrap();
    let index = doc! { "v": 2, "key": &doc! { "v": 1 }, "name": "v_1" };
    engine.create_indexes("test.c", &[index.as_raw()], &go_on).unwrap();
    let mut unit = engine.write(&go_on);
    let collection = unit.collection("test.c").unwrap().unwrap();
    for id in 0..COUNT {
        let document =
            doc! { "_id": id, "v": place(id), "odd": id % 2, "text": "x".repeat(id as usize % 50).as_str() };
        unit.insert(&collection, document.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    (folder, engine)
}

/// The documents with `v` from here on, in its order.
fn query(filter: &DocBuf) -> Query {
    let (matcher, sort) = (Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap(), doc! { "v": 1 });
    let pattern = SortPattern::parse(sort.as_raw()).unwrap();
    Query { sort: Some(Arc::new(pattern)), sort_spec: sort, ..Query::filtered(matcher) }
}

fn open(
    engine: &Engine,
    query: &Query,
    reads: impl FnOnce(sheaf_storage::View) -> Reads,
) -> (Executor, Reads) {
    let view = engine.view().unwrap();
    let collection = view.collection("test.c").unwrap().clone();
    let reads = reads(view);
    let go_on = || Ok(());
    let mut cx = Cx::new(Limits::default(), &go_on);
    (find::open(query, &collection, &reads, &mut cx).unwrap(), reads)
}

fn next(run: &mut Executor) -> Option<DocBuf> {
    let go_on = || Ok(());
    let mut cx = Cx::new(Limits::default(), &go_on);
    pull(run, &mut cx).unwrap().then(|| DocBuf::from(run.row().document()))
}

fn all(run: &mut Executor) -> Vec<DocBuf> {
    std::iter::from_fn(|| next(run)).collect()
}

fn field(document: RawDoc<'_>, name: &str) -> i64 {
    document.get(name).unwrap().as_exact_i64().unwrap()
}

#[test]
fn they_come_as_one_by_one() {
    let (_folder, engine) = filled();
    // All, half of them by a condition on the documents, and so few that they are asked for one after the other.
    for filter in [doc! {}, doc! { "odd": 1 }, doc! { "v": { "$lt": 1300 } }] {
        let query = query(&filter);
        let one_by_one = all(&mut open(&engine, &query, Reads::at).0);
        let (mut run, _) = open(&engine, &query, |view| Reads::under(view, None, None));
        assert_eq!(all(&mut run), one_by_one, "{filter:?}");
        assert!(one_by_one.len() >= 1300);
        let few = Query { only_paths: Some(vec!["text".to_owned()]), ..query };
        let (mut run, _) = open(&engine, &few, |view| Reads::under(view, None, None));
        let texts = |documents: &[DocBuf]| -> Vec<DocBuf> {
            documents
                .iter()
                .map(|document| DocBuf::new().with("text", document.as_raw().get("text").unwrap()))
                .collect()
        };
        assert_eq!(texts(&all(&mut run)), texts(&one_by_one), "{filter:?}");
        assert_eq!(
            run.examined().1,
            if filter == doc! { "v": { "$lt": 1300 } } { 1300 } else { COUNT as u64 }
        );
    }
}

#[test]
fn they_come_with_little_memory() {
    let (_folder, engine) = filled();
    let query = query(&doc! {});
    let one_by_one = all(&mut open(&engine, &query, Reads::at).0);
    let process = Process::new(600 << 10, 600 << 10);
    let _entered = sheaf_meter::enter(Meter::new(&process, Arc::new(|| Ok(()))));
    let (mut run, _) = open(&engine, &query, |view| Reads::under(view, None, None));
    assert_eq!(all(&mut run), one_by_one);
    drop(run);
    assert_eq!(process.used(), 0);
}

#[test]
fn what_goes_while_a_cursor_rests_does_no_harm() {
    let (_folder, engine) = filled();
    for rest_after in [0, 990, 1000, 1001, 5000] {
        let (mut run, reads) = open(&engine, &query(&doc! {}), |view| Reads::under(view, None, None));
        let mut places: Vec<i64> = Vec::new();
        for _ in 0..rest_after {
            places.push(field(next(&mut run).unwrap().as_raw(), "v"));
        }
        run.suspend();
        reads.detach();
        let go_on = || Ok(());
        let mut unit = engine.write(&go_on);
        let collection = unit.collection("test.c").unwrap().unwrap();
        for id in (0..COUNT).filter(|id| place(*id) % 1000 == rest_after % 1000) {
            let key = collection.record_key(sheaf_bson::Value::Int32(id)).unwrap();
            if let Some(old) = unit.read_for_update(&collection, &key).unwrap().map(|old| old.to_vec()) {
                unit.delete(&collection, &key, RawDoc::new(&old)).unwrap();
            }
        }
        unit.commit().unwrap();
        let there = engine.view().unwrap().collection("test.c").unwrap().count();
        reads.attach(engine.view().unwrap()).unwrap();
        places.extend(std::iter::from_fn(|| next(&mut run)).map(|document| field(document.as_raw(), "v")));
        assert!(places.is_sorted_by(|a, b| a < b), "in order, and none twice");
        assert!((there..=COUNT as u64).contains(&(places.len() as u64)), "{} of {there}", places.len());
    }
}

#[test]
fn who_does_not_want_what_is_undecided_does_not_wait_for_it() {
    let (_folder, engine) = filled();
    let mut txn = engine.begin(Some((doc! { "id": "s" }, 1))).unwrap();
    let collection = txn.collection("test.c").unwrap().unwrap();
    let far = (0..COUNT).find(|id| place(*id) == COUNT - 1).unwrap();
    let key = collection.record_key(sheaf_bson::Value::Int32(far)).unwrap();
    let old = txn.read_for_update(&collection, &key).unwrap().unwrap();
    let new = doc! { "_id": far, "v": COUNT - 1, "odd": 2 };
    txn.update(&collection, &key, RawDoc::new(&old), new.as_raw(), None).unwrap();
    txn.prepare(&doc! { "0": "a", "1": "b" }, &|| Ok(())).unwrap();

    // Who waits looks now and then whether it may.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let process = Process::new(100 << 20, 100 << 20);
    let in_time = move || match std::time::Instant::now() < end {
        true => Ok(()),
        false => Err(sheaf_errors::Error::new(sheaf_errors::Code::INTERNAL_ERROR, "it has waited")),
    };
    let _entered = sheaf_meter::enter(Meter::new(&process, Arc::new(in_time)));
    let view = engine.decided_view().unwrap();
    assert!(view.may_wait());
    let collection = view.collection("test.c").unwrap().clone();
    let (go_on, query) = (|| Ok(()), query(&doc! { "v": { "$lt": 11_000 } }));
    let mut cx = Cx::new(Limits::default(), &go_on);
    let reads = Reads::under(view, None, None);
    let mut run = find::open(&query, &collection, &reads, &mut cx).unwrap();
    assert_eq!(all(&mut run).len(), 11_000);
}
