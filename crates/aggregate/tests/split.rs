//! Pipelines cut in two for documents that lie on several shards: what the parts are, and that they give what the whole gives.
#![allow(missing_docs)]

#[path = "../../query/tests/support/text.rs"]
#[allow(dead_code)]
mod text;

mod nowhere;

use nowhere::{go_on, nowhere};
use proptest::prelude::*;
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_expr::ParseCx;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{Cx, Documents, Limits, Operator, pull};

fn parse(stages: RawDoc<'_>) -> Pipeline {
    let mut cx = ParseCx::new().with_now(0);
    let first =
        stages.values().next().and_then(|first| first.as_doc()?.iter().next().map(|field| field.key()));
    let namespace = match first {
        Some("$documents") => Namespace::new("test", ""),
        Some("$currentOp" | "$listLocalSessions") => Namespace::new("admin", ""),
        _ => Namespace::new("test", "c"),
    };
    let pipeline =
        Pipeline::parse(stages, &namespace, &mut cx).unwrap_or_else(|error| panic!("{error:?}: {stages:?}"));
    cx.finish().unwrap();
    pipeline
}

fn show(stages: &ArrayBuf) -> String {
    text::show_value(Value::Array(stages.as_raw()))
}

/// A case is a pipeline a line; the output says for each what shards run, by what their rows are merged, and what runs then.
fn parts_of(case: &str) -> String {
    let parts = case.lines().map(|line| {
        let stages = text::parse(line);
        let Value::Array(stages) = stages.as_value() else { panic!("a pipeline is an array") };
        let Some(split) = parse(stages).split() else { return "not cut\n".to_owned() };
        let mut out =
            split.shards.map_or("no shards\n".to_owned(), |shards| format!("shards {}\n", show(&shards)));
        if let Some(order) = split.order {
            out.push_str(&format!("order  {}\n", text::show(order.as_raw())));
        }
        out + &format!("merger {}\n", show(&split.merger))
    });
    parts.collect::<Vec<_>>().concat().trim_end().to_owned()
}

#[test]
fn parts_are_what_the_scripts_say() {
    text::run_scripts("tests/split", parts_of);
}

const DOCUMENTS: &[&str] = &[
    "{_id: 1, a: 1, b: 1, c: {d: 2}, e: 7}",
    "{_id: 2, a: 2, b: [1, 2], c: [{d: 1}, {d: 2}], e: NumberLong(9)}",
    "{_id: 3, a: [3, 1], b: 2, e: 1.5}",
    "{_id: 4, b: [], c: {d: [1, 2]}, e: NumberDecimal(\"0.1\")}",
    "{_id: 5, a: 5, b: 1, c: [{d: 2}, 3], x: 3, e: -4}",
    "{_id: 6, a: null, b: \"s\", c: [], e: \"no number\"}",
    "{_id: 7, a: 2.5, b: 1, c: {d: 2, e: 1}, x: null}",
    "{_id: 8, a: 2, b: 1, x: {d: 1}, e: 2147483647}",
];

const STAGES: &[&str] = &[
    "{$match: {a: {$gt: 1}}}",
    "{$match: {$expr: {$lt: [\"$a\", 3]}}}",
    "{$sort: {a: 1}}",
    "{$sort: {b: -1, \"c.d\": 1}}",
    "{$limit: 5}",
    "{$limit: 2}",
    "{$skip: 1}",
    "{$skip: 3}",
    "{$project: {a: 1, \"c.d\": 1, e: 1}}",
    "{$project: {a: 0}}",
    "{$addFields: {x: \"$a\"}}",
    "{$unset: \"c.d\"}",
    "{$unwind: \"$c\"}",
    "{$unwind: {path: \"$b\", preserveNullAndEmptyArrays: true}}",
    "{$count: \"a\"}",
    "{$replaceRoot: {newRoot: {a: \"$b\", c: \"$c\", _id: \"$_id\"}}}",
    "{$sortByCount: \"$b\"}",
    "{$group: {_id: \"$b\", a: {$sum: \"$e\"}, c: {$avg: \"$e\"}, e: {$max: \"$a\"}}}",
    "{$group: {_id: {a: \"$a\"}, b: {$push: \"$b\"}, x: {$first: \"$c\"}, e: {$last: \"$e\"}}}",
    "{$group: {_id: null, a: {$firstN: {input: \"$a\", n: 3}}, b: {$lastN: {input: \"$b\", n: 2}}, c: {$count: {}}}}",
    "{$group: {_id: \"$b\", a: {$topN: {n: 2, sortBy: {e: 1}, output: \"$_id\"}}, c: {$bottom: {sortBy: {e: 1}, output: [\"$a\", \"$_id\"]}}}}",
    "{$group: {_id: \"$b\", a: {$minN: {n: 2, input: \"$e\"}}, c: {$mergeObjects: {a: \"$a\", b: \"$b\"}}, e: {$min: \"$e\"}}}",
    "{$bucket: {groupBy: \"$_id\", boundaries: [0, 3, 6], default: \"rest\", output: {a: {$sum: \"$e\"}, b: {$push: \"$_id\"}}}}",
    "{$bucket: {groupBy: \"$_id\", boundaries: [0, 3, 6], default: -1}}",
    "{$bucketAuto: {groupBy: \"$e\", buckets: 2}}",
    "{$facet: {a: [{$count: \"n\"}], b: [{$limit: 2}]}}",
];

/// The rows that a pipeline makes of these.
fn run(pipeline: &Pipeline, documents: Vec<DocBuf>) -> Result<Vec<DocBuf>, i32> {
    let mut run = pipeline.open(Box::new(Documents::new(documents)), &nowhere());
    let mut cx = Cx::new(Limits::default(), &go_on);
    let mut found = Vec::new();
    while pull(&mut run, &mut cx).map_err(|error| error.code().0)? {
        found.push(DocBuf::from(run.row().document()));
    }
    Ok(found)
}

/// Runs the shards' part on each of these, merges their rows, and runs the merger's part.
fn run_apart(pipeline: &Pipeline, shards: &[Vec<DocBuf>]) -> Result<Vec<DocBuf>, i32> {
    let split = pipeline.split().expect("no change stream");
    let part = parse(split.shards.as_ref().expect("there are documents on shards").as_raw());
    let mut rows = Vec::new();
    for documents in shards {
        rows.extend(run(&part, documents.clone())?);
    }
    if let Some(order) = &split.order {
        let pattern = SortPattern::parse(order.as_raw()).unwrap();
        let key = |row: &DocBuf| {
            let mut key = Vec::new();
            pattern.put_key_bytes(row.as_raw(), RawDoc::EMPTY, &mut key).unwrap();
            key
        };
        // Rows of equal keys stay in the order of shards, as whoever merges takes them.
        rows.sort_by_key(key);
    }
    run(&parse(split.merger.as_raw()), rows)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn parts_give_what_the_whole_gives(
        picks in proptest::collection::vec(0..STAGES.len(), 0..5),
        cuts in proptest::collection::vec(0..=DOCUMENTS.len(), 0..3),
    ) {
        let stages: Vec<DocBuf> = picks.iter().map(|pick| text::parse_doc(STAGES[*pick])).collect();
        let pipeline = parse(ArrayBuf::of(&stages).as_raw());
        let documents: Vec<DocBuf> = DOCUMENTS.iter().map(|text| text::parse_doc(text)).collect();
        let mut cuts = cuts;
        cuts.sort_unstable();
        let mut shards = Vec::new();
        let mut rest = &documents[..];
        for at in cuts.iter().rev() {
            let (before, behind) = rest.split_at(*at);
            shards.insert(0, behind.to_vec());
            rest = before;
        }
        shards.insert(0, rest.to_vec());
        prop_assert_eq!(run_apart(&pipeline, &shards), run(&pipeline, documents), "{:?} cut at {:?}", stages, cuts);
    }
}

#[test]
fn a_sample_takes_each_document_at_most_once() {
    let documents: Vec<DocBuf> = DOCUMENTS.iter().map(|text| text::parse_doc(text)).collect();
    let stages = text::parse("[{$sample: {size: 5}}]");
    let pipeline = parse(stages.as_value().as_array().unwrap());
    let shards = [documents[..3].to_vec(), documents[3..].to_vec()];
    let mut found: Vec<_> =
        run_apart(&pipeline, &shards).unwrap().iter().map(|row| text::show(row.as_raw())).collect();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 5);
}
