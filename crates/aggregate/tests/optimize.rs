//! A pipeline gives the same whether it is optimised as a whole or run stage by stage.
#![allow(missing_docs)]

#[path = "../../query/tests/support/text.rs"]
#[allow(dead_code)]
mod text;

mod nowhere;

use nowhere::{go_on, nowhere};
use proptest::prelude::*;
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf};
use sheaf_expr::ParseCx;
use sheaf_rows::{BoxOperator, Cx, Documents, Limits, Operator, pull};

const STAGES: &[&str] = &[
    "{$match: {a: {$gt: 1}}}",
    "{$match: {b: 1, \"c.d\": {$exists: true}}}",
    "{$match: {\"c.d\": 2}}",
    "{$match: {$or: [{a: 1}, {x: {$gt: 2}}]}}",
    "{$match: {x: null}}",
    "{$match: {$expr: {$lt: [\"$a\", 3]}}}",
    "{$match: {}}",
    "{$match: {\"c.0\": 3}}",
    "{$match: {\"c.0.d\": {$not: {$gt: 1}}}}",
    "{$match: {\"c.e\": null}}",
    "{$match: {\"c.e\": {$nin: [null, 7]}}}",
    "{$match: {\"c.e\": {$lt: 2}, \"a.b\": {$in: [null]}}}",
    "{$project: {\"c.d\": 0}}",
    "{$project: {c: {e: 1}, a: 1}}",
    "{$addFields: {\"c.f\": 9, \"a.b\": true}}",
    "{$unwind: {path: \"$b\", includeArrayIndex: \"c.f\"}}",
    "{$sort: {a: 1, _id: 1}}",
    "{$sort: {\"c.d\": -1, _id: 1}}",
    "{$limit: 5}",
    "{$limit: 3}",
    "{$skip: 1}",
    "{$skip: 2}",
    "{$project: {a: 1, \"c.d\": 1}}",
    "{$project: {a: 0}}",
    "{$project: {x: {$add: [\"$a\", 1]}, c: 1}}",
    "{$addFields: {x: \"$a\"}}",
    "{$addFields: {\"c.d\": \"$b\"}}",
    "{$unset: \"c.d\"}",
    "{$unwind: \"$c\"}",
    "{$unwind: {path: \"$b\", preserveNullAndEmptyArrays: true, includeArrayIndex: \"x\"}}",
    "{$redact: {$cond: [{$eq: [\"$d\", 2]}, \"$$PRUNE\", \"$$DESCEND\"]}}",
    "{$redact: {$cond: [{$eq: [\"$e\", 1]}, \"$$PRUNE\", \"$$DESCEND\"]}}",
    "{$unionWith: {pipeline: [{$documents: [{_id: 20, a: 2, b: 1, c: {d: 2, e: 1}}, {_id: 21, a: [], c: [3]}]}]}}",
    "{$match: {a: {$gte: 1, $ne: 2}, \"c.d\": {$in: [1, 2]}}}",
    "{$match: {\"c.d\": {$exists: false}}}",
    "{$count: \"a\"}",
    "{$replaceRoot: {newRoot: {a: \"$b\", c: \"$c\", _id: \"$_id\"}}}",
];

const DOCUMENTS: &[&str] = &[
    "{_id: 1, a: 1, b: 1, c: {d: 2}}",
    "{_id: 2, a: 2, b: [1, 2], c: [{d: 1}, {d: 2}]}",
    "{_id: 3, a: [3, 1], b: 2}",
    "{_id: 4, b: [], c: {d: [1, 2]}}",
    "{_id: 5, a: 5, b: 1, c: [{d: 2}, 3], x: 3}",
    "{_id: 6, a: null, b: \"s\", c: []}",
    "{_id: 7, a: 2.5, b: 1, c: {d: 2, e: 1}, x: null}",
    "{_id: 8, a: [1, {b: 1}], b: [7], c: [3, {d: 1, e: 7}]}",
    "{_id: 9, a: 1, b: [7, 8], c: [3, 2]}",
    "{_id: 10, a: [], b: [7, 8], c: [{e: 1}]}",
];

fn documents() -> Vec<DocBuf> {
    DOCUMENTS.iter().map(|text| text::parse_doc(text)).collect()
}

fn parse(stages: &[&str]) -> Pipeline {
    let stages: Vec<DocBuf> = stages.iter().map(|stage| text::parse_doc(stage)).collect();
    let mut cx = ParseCx::new().with_now(0);
    let pipeline =
        Pipeline::parse(ArrayBuf::of(&stages).as_raw(), &Namespace::new("test", "c"), &mut cx).unwrap();
    cx.finish().unwrap();
    pipeline
}

fn drain(mut run: BoxOperator) -> Result<Vec<DocBuf>, i32> {
    let mut cx = Cx::new(Limits::default(), &go_on);
    let mut found = Vec::new();
    while pull(&mut run, &mut cx).map_err(|error| error.code().0)? {
        found.push(DocBuf::from(run.row().document()));
    }
    Ok(found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn optimising_changes_no_result(picks in proptest::collection::vec(0..STAGES.len(), 1..6)) {
        let stages: Vec<&str> = picks.iter().map(|pick| STAGES[*pick]).collect();
        let whole = drain(parse(&stages).open(Box::new(Documents::new(documents())), &nowhere()));
        let mut source: BoxOperator = Box::new(Documents::new(documents()));
        for stage in &stages {
            source = parse(&[*stage]).open(source, &nowhere());
        }
        prop_assert_eq!(whole, drain(source), "{:?}", stages);
    }
}

#[test]
fn matches_are_asked_on_both_sides_of_unions_and_before_redaction() {
    let union = "{$unionWith: {pipeline: [{$documents: [{_id: 20, a: 2, b: 1}]}]}}";
    let pipeline = parse(&[union, "{$project: {a: 1, b: 1}}", "{$match: {b: 1}}"]);
    let names: Vec<_> = pipeline.stages().iter().map(|stage| stage.name()).collect();
    assert_eq!(names, ["$match", "$project", "$unionWith"]);
    let redact = "{$redact: {$cond: [{$eq: [\"$d\", 2]}, \"$$PRUNE\", \"$$DESCEND\"]}}";
    let pipeline = parse(&[redact, "{$match: {a: {$gt: 1, $ne: 5}, b: null, \"c.0\": 3, x: {y: 1}}}"]);
    let names: Vec<_> = pipeline.stages().iter().map(|stage| stage.name()).collect();
    assert_eq!(names, ["$match", "$redact", "$match"]);
    assert_eq!(text::show(pipeline.head().matcher.unwrap().filter()), "{a: {$gt: 1}}");
}

#[test]
fn matches_move_to_the_front_and_sorts_know_their_limit() {
    let pipeline = parse(&[
        "{$addFields: {x: 1}}",
        "{$sort: {a: 1}}",
        "{$match: {b: 1, x: 1}}",
        "{$skip: 1}",
        "{$limit: 2}",
    ]);
    let names: Vec<_> = pipeline.stages().iter().map(|stage| stage.name()).collect();
    assert_eq!(names, ["$match", "$addFields", "$match", "$sort", "$skip", "$limit"]);
    let head = pipeline.head();
    assert_eq!(text::show(head.matcher.unwrap().filter()), "{b: 1}");
    assert_eq!((head.stages, head.sort.is_some()), (1, false));

    let sorted =
        parse(&["{$match: {b: 1}}", "{$sort: {a: 1}}", "{$skip: 3}", "{$limit: 2}", "{$project: {a: 1}}"]);
    let head = sorted.head();
    assert_eq!((head.stages_of_match, head.stages_of_sort, head.stages), (1, 2, 2));
    assert_eq!((head.sort.is_some(), head.limit, head.skip), (true, Some(5), 0));

    let plain = parse(&["{$skip: 3}", "{$limit: 2}"]);
    assert_eq!((plain.head().skip, plain.head().limit, plain.head().stages), (3, Some(2), 2));
}

#[test]
fn conditions_move_before_fields_beside_theirs_if_they_see_no_elements() {
    let moves = |condition: &str| {
        let stages = ["{$addFields: {\"a.b\": 9}}", &format!("{{$match: {condition}}}")];
        parse(&stages).stages()[0].name() == "$match"
    };
    for condition in
        ["{\"a.c\": 5}", "{\"a.c\": {$gt: 1, $in: [3, 4]}}", "{\"a.c\": {$exists: true}}", "{b: null}"]
    {
        assert!(moves(condition), "{condition}");
    }
    for condition in [
        "{\"a.b\": 5}",
        "{\"a.0\": 5}",
        "{\"a.c\": null}",
        "{\"a.c\": {$ne: null}}",
        "{\"a.c\": {$gt: 1, $lte: null}}",
        "{a: 5}",
    ] {
        assert!(!moves(condition), "{condition}");
    }
}

#[test]
fn dependencies_end_where_documents_are_made_anew() {
    let deps = |stages: &[&str]| {
        parse(stages).dependencies_from(0).map(|deps| deps.paths.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(
        deps(&["{$match: {b: 1}}", "{$group: {_id: \"$a\", s: {$sum: \"$c.d\"}}}"]).unwrap(),
        ["a", "b", "c.d"]
    );
    assert_eq!(deps(&["{$match: {b: 1}}"]), None);
    assert_eq!(deps(&["{$group: {_id: \"$a\", all: {$push: \"$$ROOT\"}}}"]), None);
    assert_eq!(deps(&["{$sort: {a: 1}}", "{$limit: 1}", "{$count: \"n\"}"]).unwrap(), ["a"]);
}
