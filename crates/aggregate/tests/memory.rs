//! Stages take no more memory than their operation may: they go on on disk, stream, or fail.
#![allow(missing_docs)]

mod nowhere;

use std::sync::Arc;

use nowhere::{go_on, nowhere};
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf, Value, array, doc};
use sheaf_errors::{Code, Result};
use sheaf_expr::ParseCx;
use sheaf_meter::{Meter, Process};
use sheaf_rows::{BoxOperator, Cx, Limits, Operator, Row, Step, pull};

/// Documents of about 100 kB, 400 MB in all.
#[derive(Default)]
struct Many(i32, DocBuf);

impl Operator for Many {
    fn work(&mut self, _cx: &mut Cx<'_>) -> Result<Step> {
        self.0 += 1;
        self.1 = DocBuf::new().with("_id", self.0).with("pad", &*"x".repeat(100_000));
        Ok(if self.0 <= 4000 { Step::Row } else { Step::Eof })
    }

    fn row(&self) -> Row<'_> {
        Row::of(self.1.as_raw())
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}

fn input() -> BoxOperator {
    Box::new(Many::default())
}

/// 40 documents of 3 MB, whose fields differ at their end alone.
#[derive(Default)]
struct Large(i32, DocBuf);

impl Operator for Large {
    fn work(&mut self, _cx: &mut Cx<'_>) -> Result<Step> {
        self.0 += 1;
        let pad = format!("{}{:02}", "x".repeat(3 << 20), 40 - self.0.min(40));
        self.1 = DocBuf::new().with("_id", self.0).with("pad", &*pad);
        Ok(if self.0 <= 40 { Step::Row } else { Step::Eof })
    }

    fn row(&self) -> Row<'_> {
        Row::of(self.1.as_raw())
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}

fn run(stages: &ArrayBuf) -> (Result<Vec<DocBuf>>, u64) {
    run_on(input(), stages)
}

/// What comes out, and the most memory that was in use.
fn run_on(input: BoxOperator, stages: &ArrayBuf) -> (Result<Vec<DocBuf>>, u64) {
    let process = Process::new(64 << 20, 32 << 20);
    let meter = Meter::background(&process);
    let entered = sheaf_meter::enter(meter);
    let mut cx = ParseCx::new();
    let pipeline = Pipeline::parse(stages.as_raw(), &Namespace::new("t", "c"), &mut cx).unwrap();
    let mut cx = Cx::new(Limits::default(), &go_on);
    let mut source = pipeline.open(input, &nowhere());
    let (mut found, mut most) = (Vec::new(), 0);
    let ended = loop {
        match pull(&mut source, &mut cx) {
            Ok(true) => found.push(DocBuf::from(source.row().document())),
            Ok(false) => break Ok(found),
            Err(error) => break Err(error),
        }
        most = most.max(process.used());
    };
    drop((source, entered));
    assert_eq!(Arc::clone(&process).used(), 0);
    (ended, most)
}

#[test]
fn a_facet_streams_or_goes_to_disk() {
    let (found, _) = run(&array![{ "$facet": { "n": [{ "$count": "n" }] } }]);
    assert_eq!(found.unwrap(), [doc! { "n": [{ "n": 4000 }] }]);
    let (found, _) = run(&array![{ "$facet": {
        "n": [{ "$count": "n" }],
        "first": [{ "$limit": 1 }, { "$project": { "pad": 0 } }],
        "last": [{ "$sort": { "_id": -1, "pad": 1 } }, { "$limit": 2 }, { "$project": { "pad": 0 } }],
    } }]);
    let expected =
        doc! { "n": [{ "n": 4000 }], "first": [{ "_id": 1 }], "last": [{ "_id": 4000 }, { "_id": 3999 }] };
    assert_eq!(found.unwrap(), [expected]);
}

#[test]
fn groups_and_sorts_of_large_rows_go_to_disk() {
    for stages in [
        array![{ "$sort": { "pad": 1, "_id": -1 } }, { "$count": "n" }],
        array![{ "$group": { "_id": "$_id", "first": { "$first": "$pad" } } }, { "$count": "n" }],
        array![{ "$group": { "_id": "$_id", "most": { "$max": "$pad" } } }, { "$count": "n" }],
        array![{ "$group": { "_id": "$_id", "all": { "$push": "$pad" } } }, { "$count": "n" }],
    ] {
        let (found, most) = run(&stages);
        assert_eq!(found.unwrap(), [doc! { "n": 4000 }]);
        assert!(most <= 32 << 20, "{most} bytes");
    }
}

#[test]
fn large_keys_go_to_disk_and_come_back_in_order() {
    let (found, most) =
        run_on(Box::new(Large::default()), &array![{ "$sort": { "pad": 1 } }, { "$project": { "_id": 1 } }]);
    let expected: Vec<DocBuf> = (1..=40).rev().map(|n| doc! { "_id": n }).collect();
    assert_eq!(found.unwrap(), expected);
    assert!(most <= 32 << 20, "{most} bytes");
    for stages in [
        array![{ "$group": { "_id": "$pad" } }, { "$count": "n" }],
        array![{ "$group": { "_id": "$pad", "n": { "$sum": 1 } } }, { "$count": "n" }],
        array![{ "$sortByCount": "$pad" }, { "$count": "n" }],
    ] {
        let (found, most) = run_on(Box::new(Large::default()), &stages);
        assert_eq!(found.unwrap(), [doc! { "n": 40 }], "{stages:?}");
        assert!(most <= 32 << 20, "{most} bytes");
    }
}

#[test]
fn one_group_that_is_too_large_fails() {
    for stages in [
        array![{ "$group": { "_id": 1, "all": { "$push": "$$ROOT" } } }],
        array![{ "$group": { "_id": 1, "all": { "$addToSet": "$$ROOT" } } }],
    ] {
        assert_eq!(run(&stages).0.unwrap_err().code(), Code::EXCEEDED_MEMORY_LIMIT);
    }
}

/// What becomes of parsing these stages where an operation may have 4 MB, and what is in use for them.
fn parse(stages: &ArrayBuf) -> (Result<()>, u64) {
    let process = Process::new(8 << 20, 4 << 20);
    let entered = sheaf_meter::enter(Meter::background(&process));
    let parsed = Pipeline::parse(stages.as_raw(), &Namespace::new("t", "c"), &mut ParseCx::new());
    let used = process.used();
    let mut run = None;
    let parsed = parsed.map(|pipeline| {
        // What runs keeps the memory.
        run = Some(pipeline.open(input(), &nowhere()));
        drop(pipeline);
        assert_eq!(process.used(), used);
    });
    drop((run, entered));
    assert_eq!(process.used(), 0);
    (parsed, used)
}

/// `{x0: value, x1: value, ...}`.
fn fields(n: usize, value: &DocBuf) -> DocBuf {
    let mut fields = DocBuf::new();
    (0..n).for_each(|at| _ = fields.append(&format!("x{at}"), value.as_raw().get_or_missing("")));
    fields
}

fn shapes(n: usize) -> Vec<(&'static str, ArrayBuf)> {
    let stages = array![{ "$match": { "a": 1 } }];

    let boundaries = ArrayBuf::of(0..n as i32);
    let branches = vec![doc! { "a": 1 }; n];
    let few = ArrayBuf::of(0..3 + n as i32 / 1000);
    let long = ArrayBuf::of(vec!["$a"; n / 10]);
    vec![
        ("facet", array![{ "$facet": &fields(n, &doc! { "": &stages }) }]),
        ("group", array![{ "$group": &fields(n, &doc! { "": { "$sum": "$a" } }).with("_id", 1) }]),
        ("bucket", array![{ "$bucket": { "groupBy": "$a", "boundaries": &boundaries } }]),
        ("long bucket", array![{ "$bucket": { "groupBy": { "$max": &long }, "boundaries": &few } }]),
        ("match", array![{ "$match": { "$or": &ArrayBuf::of(&branches) } }]),
        (
            "lookup",
            array![{ "$lookup": {
            "from": "d", "as": "d", "let": &fields(n, &doc! { "": "$a" }), "pipeline": &stages,
        } }],
        ),
        (
            "union",
            array![{ "$unionWith": { "coll": "d", "pipeline": [{ "$match": { "$or": &ArrayBuf::of(&branches) } }] } }],
        ),
        (
            "merge",
            array![{ "$merge": {
            "into": "m", "let": &fields(n, &doc! { "": 1 }), "whenMatched": [{ "$set": { "a": 1 } }],
        } }],
        ),
    ]
}

#[test]
fn large_pipelines_take_memory_for_their_stages() {
    let mut wrong = Vec::new();
    for (name, stages) in shapes(100_000) {
        match parse(&stages).0 {
            Err(error) if error.code() == Code::EXCEEDED_MEMORY_LIMIT => {}
            other => wrong.push(format!("{name}: {other:?}")),
        }
    }
    for (name, stages) in shapes(2000) {
        let (parsed, used) = parse(&stages);
        if parsed.is_err() || used < 64 << 10 {
            wrong.push(format!("{name}: {parsed:?}, {used} bytes"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (name, stages) in shapes(10) {
        let (parsed, used) = parse(&stages);
        assert_eq!(used, 0, "{name}");
        parsed.unwrap();
    }
}

/// The last boundary is a wrong one: who gets that far has not looked at the time.
#[allow(clippy::disallowed_methods, reason = "a time that is over")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[test]
fn boundaries_are_read_no_longer_than_there_is_time() {
    let boundaries = ArrayBuf::build(|out| (0..20_000).chain([0]).for_each(|n: i32| _ = out.push(n)));
    let bucket = doc! { "groupBy": "$a", "boundaries": Value::Array(boundaries.as_raw()) };
    is_read_in_time(&array![{ "$bucket": &bucket }], Code(40194));
}

#[test]
fn fields_to_be_filled_are_read_no_longer_than_there_is_time() {
    let output = fields(20_000, &doc! { "": { "value": 1 } }).with("last", &doc! { "method": "nonesuch" });
    is_read_in_time(&array![{ "$fill": { "output": &output } }], Code(6050202));
}

/// What is wrong is found at the end, for which there is no time.
fn is_read_in_time(stages: &ArrayBuf, wrong: Code) {
    let parse = || {
        Pipeline::parse(stages.as_raw(), &Namespace::new("t", "c"), &mut ParseCx::new()).err().unwrap().code()
    };
    assert_eq!(parse(), wrong);
    let process = Process::new(64 << 20, 32 << 20);
    let meter = Meter::background(&process);
    meter.begin(Some(now()));
    let _entered = sheaf_meter::enter(meter);
    assert_eq!(parse(), Code::MAX_TIME_MS_EXPIRED);
}

#[test]
fn what_a_stage_keeps_while_nobody_pulls_is_counted() {
    let process = Process::new(64 << 20, 32 << 20);
    let entered = sheaf_meter::enter(Meter::background(&process));
    let elements = array![{ "$set": { "a": { "$range": [0, 100_000] } } }, { "$unwind": "$a" }];
    let grouped =
        array![{ "$limit": 30 }, { "$group": { "_id": 1, "a": { "$push": "$$ROOT" } } }, { "$unwind": "$a" }];
    for stages in [elements, grouped] {
        let pipeline =
            Pipeline::parse(stages.as_raw(), &Namespace::new("t", "c"), &mut ParseCx::new()).unwrap();
        let mut cx = Cx::new(Limits::default(), &go_on);
        let mut source = pipeline.open(input(), &nowhere());
        assert!(pull(&mut source, &mut cx).unwrap());
        let first = DocBuf::from(source.row().document());
        source.suspend();
        assert!(process.used() > 1 << 20, "{} bytes: {stages:?}", process.used());
        // Whoever pulls on gets what is next.
        assert!(pull(&mut source, &mut cx).unwrap());
        assert_ne!(source.row().document(), first.as_raw());
        drop(source);
        assert_eq!(process.used(), 0);
    }
    drop(entered);
}
