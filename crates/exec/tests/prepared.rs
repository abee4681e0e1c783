//! What a change stream shows of a transaction over several shards.

use std::sync::Arc;

use sheaf_aggregate::{Database, Namespace, Pipeline};
use sheaf_bson::{DocBuf, ObjectId, Timestamp, doc};
use sheaf_exec::database::{Db, Hooks};
use sheaf_exec::run::Reads;
use sheaf_expr::ParseCx;
use sheaf_rows::{BoxOperator, Cx, Limits, Operator, Step};
use sheaf_storage::{CreateCollection, Engine, OpTime, Options, TransactionKey, Write};

fn hooks() -> Hooks {
    Hooks {
        may_replace: None,
        is_spread: None,
        server_stats: Box::new(|_, _| Ok(Vec::new())),
        latency_stats: Box::new(|_, _| DocBuf::new()),
        new_object_id: || ObjectId([0; 12]),
        random: || 0,
        host: String::new(),
        shard: None,
        system: Default::default(),
        in_transaction: false,
        bypass_validation: false,
        is_profiled: false,
        report: |_, _, _| {},
        open_buckets: std::sync::Arc::default(),
        make_view: Box::new(|_, _, _| unreachable!("no view is made")),
    }
}

fn key(number: i64) -> TransactionKey {
    TransactionKey { lsid: doc! { "id": "s" }, txn_number: number }
}

/// Prepares inserts of so many documents from `first` on.
fn prepare(engine: &Engine, number: i64, first: i32, count: i32) -> OpTime {
    let mut txn = engine.begin(Some((key(number).lsid, number))).unwrap();
    let collection = txn.collection("db.c").unwrap().unwrap();
    let pad = "x".repeat(1000);
    for id in first..first + count {
        txn.insert(&collection, doc! { "_id": id, "pad": pad.as_str() }.as_raw()).unwrap();
    }
    txn.prepare(&doc! { "0": "a", "1": "b" }, &|| Ok(())).unwrap()
}

/// `_id`, cluster time and `txnNumber` of the events that there are now.
fn events(db: &Db, stream: &mut BoxOperator, engine: &Engine) -> Vec<(i64, u64, i64)> {
    let go_on = || Ok(());
    let mut cx = Cx::new(Limits::default(), &go_on);
    db.reads().attach(engine.view().unwrap()).unwrap();
    let mut found = Vec::new();
    loop {
        match stream.work(&mut cx).unwrap() {
            Step::More => {}
            Step::Eof => break,
            Step::Row => {
                let event = DocBuf::from(stream.row().document());
                let field = |name: &str| event.as_raw().get(name);
                let id = field("documentKey").and_then(|key| key.as_doc()?.get("_id")?.as_exact_i64());
                let Some(sheaf_bson::Value::Timestamp(time)) = field("clusterTime") else {
                    panic!("{event:?}")
                };
                let number = field("txnNumber").and_then(|number| number.as_exact_i64());
                found.push((id.unwrap(), time.0, number.unwrap_or(-1)));
            }
        }
    }
    stream.suspend();
    found
}

#[test]
fn events_come_with_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { transaction_entry_bytes: 2500, ..Options::new(folder.path()) };
    let engine = Engine::open(options).unwrap();
    let go_on = || Ok(());
    engine.create_collection("db.c", &CreateCollection::default(), &go_on).unwrap();
    let start = engine.last_applied().time + 1;
    let open = |from: u64| {
        let namespace = Namespace::new("db", "c");
        let spec = doc! { "startAtOperationTime": Timestamp(from) };
        let stages = doc! { "0": &doc! { "$changeStream": &spec } };
        let pipeline = Pipeline::parse(stages.as_raw(), &namespace, &mut ParseCx::new()).unwrap();
        let db = Db::new(engine.clone(), Reads::at(engine.view().unwrap()), hooks(), None);
        let mut cx = Cx::new(Limits::default(), &go_on);
        let stream = db.run(&namespace, &Arc::new(pipeline), &mut cx).unwrap();
        (db, stream)
    };
    let (db, mut stream) = open(start);
    // One entry, and a chain of them; one that has no effect.
    let small = prepare(&engine, 1, 0, 2);
    let large = prepare(&engine, 2, 10, 7);
    prepare(&engine, 3, 20, 7);
    assert_eq!(events(&db, &mut stream, &engine), []);
    engine.write_abort(&key(3), &go_on).unwrap();
    engine.commit_prepared(&key(2), Timestamp(large.time), &go_on).unwrap();
    engine.commit_prepared(&key(1), Timestamp(small.time), &go_on).unwrap();
    // In the order of their times, whichever decision was written first.
    let expected: Vec<_> =
        (0..2).map(|id| (id, small.time, 1)).chain((10..17).map(|id| (id, large.time, 2))).collect();
    assert_eq!(events(&db, &mut stream, &engine), expected);
    assert_eq!(events(&db, &mut stream, &engine), []);
    // Who begins between prepare and commit sees the same.
    let (db, mut stream) = open(small.time);
    assert_eq!(events(&db, &mut stream, &engine), expected);
    let (db, mut stream) = open(large.time);
    assert_eq!(events(&db, &mut stream, &engine), expected[2..]);
}
