use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::*;
use crate::database::Database;
use crate::experiment::{Experiment, Overrides};
use crate::measure::{Load, Recorder, Span};
use crate::workload;

/// One client does this without a server, a hundred times; in the middle it waits for 150 ms.
fn with_a_stall(operation: &'static str) -> Context {
    let database = Database::MongoDb("mongodb://127.0.0.1:1".parse().unwrap());
    let mut context = Context::bare(database, Default::default());
    context.recorder = Arc::new(Recorder::tracing());
    context.load = Load::closed(Span::Operations(100));
    let turn = AtomicU64::new(0);
    let group = Group::new("client", 1, |worker| {
        while let Some(ticket) = worker.next() {
            let long = turn.fetch_add(1, Ordering::Relaxed) == 50;
            std::thread::sleep(Duration::from_millis(if long { 150 } else { 1 }));
            worker.done(operation, ticket);
        }
        Ok(())
    });
    context.run(&[group.without_client()]).unwrap();
    context
}

#[test]
fn closed_loops_tell_of_stalls() {
    for (name, operation) in [("ycsb-a", "update"), ("ycsb-e", "scan"), ("ycsb", "read"), ("mixed-kv", "get")]
    {
        let experiment = Experiment::open(name).unwrap();
        let row = experiment.variations(&Overrides::default()).unwrap().remove(0);
        let mut workload = workload::by_name(&experiment.workload).unwrap();
        workload.configure(&row.settings).unwrap();
        assert!(workload.looks_for_stalls(), "{name}");
        let figures = workload.metrics(&with_a_stall(operation));
        let value = |name: &str| figures.iter().find(|figure| figure.name == name).map(|figure| figure.value);
        assert!(value("longest stall").unwrap() >= 149_000.0, "{name}: {figures:?}");
        assert!(value("gaps > 100 ms").unwrap() >= 1.0, "{name}: {figures:?}");
    }
}
