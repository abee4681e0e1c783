//! What a trial of several plans keeps in memory.

use std::sync::Arc;

use sheaf_bson::{DocBuf, doc};
use sheaf_exec::find;
use sheaf_exec::plan::Query;
use sheaf_exec::run::Reads;
use sheaf_expr::ParseCx;
use sheaf_meter::{Meter, Process};
use sheaf_query::matcher::Matcher;
use sheaf_rows::{Cx, Limits, Operator, pull};
use sheaf_storage::{CreateCollection, Engine, Options, Write};

const COUNT: i32 = 40;
const MB: u64 = 1 << 20;

/// Documents of a megabyte, with two indexes that are as good as each other.
fn collection(engine: &Engine) {
    let go_on = || Ok(());
    engine.create_collection("test.c", &CreateCollection::default(), &go_on).unwrap();
    let specs = [
        doc! { "v": 2, "key": &doc! { "a": 1 }, "name": "a_1" },
        doc! { "v": 2, "key": &doc! { "b": 1 }, "name": "b_1" },
    ];
    engine.create_indexes("test.c", &specs.each_ref().map(DocBuf::as_raw), &go_on).unwrap();
    let mut unit = engine.write(&go_on);
    let collection = unit.collection("test.c").unwrap().unwrap();
    let text = "x".repeat(MB as usize);
    for id in 0..COUNT {
        let document = doc! { "_id": id, "a": 1, "b": 1, "text": text.as_str() };
        unit.insert(&collection, document.as_raw()).unwrap();
    }
    unit.commit().unwrap();
}

#[test]
fn large_documents_end_a_trial_and_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    collection(&engine);
    let view = engine.view().unwrap();
    let collection = view.collection("test.c").unwrap().clone();
    let go_on = || Ok(());
    let process = Process::new(100 * MB, 100 * MB);
    let _entered = sheaf_meter::enter(Meter::new(&process, Arc::new(|| Ok(()))));
    let mut cx = Cx::new(Limits::default(), &go_on);
    let filter = doc! { "a": 1, "b": 1 };
    let query = Query::filtered(Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap());

    let mut run = find::open(&query, &collection, &Reads::at(view), &mut cx).unwrap();
    // The loser's rows are gone, the winner's are still to be given.
    let (kept, examined) = (process.used(), run.examined().1);
    assert!((4 * MB..=17 * MB).contains(&kept) && examined <= 17, "{kept} bytes, {examined} documents");

    let mut ids = Vec::new();
    while pull(&mut run, &mut cx).unwrap() {
        ids.push(run.row().document().get("_id").unwrap().as_exact_i64().unwrap());
        assert!(process.used() <= kept);
    }
    assert_eq!(ids, (0..i64::from(COUNT)).collect::<Vec<_>>());
    assert_eq!(process.used(), 0);
}
