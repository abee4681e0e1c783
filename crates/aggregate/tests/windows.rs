//! Sliding windows give what each window gives when it is computed anew.
#![allow(missing_docs)]

#[path = "../../query/tests/support/text.rs"]
#[allow(dead_code)]
mod text;

mod nowhere;

use nowhere::{go_on, nowhere};
use proptest::prelude::*;
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, compare};
use sheaf_expr::ParseCx;
use sheaf_rows::{Cx, Documents, Limits, Operator, pull};

/// Functions that are accumulators, too, and whether their results are compared to the last digit.
const FUNCTIONS: &[(&str, bool)] = &[
    ("{$sum: \"$v\"}", false),
    ("{$avg: \"$v\"}", false),
    ("{$count: {}}", true),
    ("{$min: \"$v\"}", true),
    ("{$max: \"$v\"}", true),
    ("{$push: \"$v\"}", true),
    ("{$addToSet: \"$v\"}", true),
    ("{$concatArrays: [\"$v\"]}", true),
    ("{$setUnion: [\"$v\"]}", true),
    ("{$minN: {input: \"$v\", n: 2}}", true),
    ("{$maxN: {input: \"$v\", n: 2}}", true),
    ("{$firstN: {input: \"$v\", n: 2}}", true),
    ("{$lastN: {input: \"$v\", n: 2}}", true),
    ("{$top: {sortBy: {v: 1}, output: \"$_id\"}}", true),
    ("{$bottomN: {n: 2, sortBy: {v: -1}, output: \"$_id\"}}", true),
    ("{$median: {input: \"$v\", method: \"approximate\"}}", true),
    ("{$percentile: {input: \"$v\", p: [0.2, 0.9], method: \"approximate\"}}", true),
];

const VALUES: &[&str] = &[
    "1",
    "1.0",
    "NumberLong(1)",
    "-3",
    "2.5",
    "NumberDecimal(\"0.1\")",
    "NumberDecimal(\"7\")",
    "NaN",
    "Infinity",
    "-Infinity",
    "\"x\"",
    "null",
    "[1, 2]",
    "{a: 1}",
    "0",
    "NumberLong(5000000000)",
    "true",
];

fn run(stages: &[DocBuf], documents: Vec<DocBuf>, memory_bytes: usize) -> Vec<DocBuf> {
    let mut cx = ParseCx::new().with_now(0);
    let stages = ArrayBuf::of(stages);
    let pipeline = Pipeline::parse(stages.as_raw(), &Namespace::new("test", "c"), &mut cx).unwrap();
    cx.finish().unwrap();
    let mut running = pipeline.open(Box::new(Documents::new(documents)), &nowhere());
    let limits = Limits { memory_bytes, ..Limits::default() };
    let mut cx = Cx::new(limits, &go_on);
    let mut rows = Vec::new();
    while pull(&mut running, &mut cx).unwrap() {
        rows.push(DocBuf::from(running.row().document()));
    }
    rows
}

/// `{v: <function>}` over documents, as `$group` computes it; sets in an order of their own.
fn anew(function: &str, documents: Vec<DocBuf>) -> DocBuf {
    let group = text::parse_doc(&format!("{{$group: {{_id: null, r: {function}}}}}"));
    let rows = run(&[group], documents, 100 << 20);
    rows.into_iter().next().unwrap_or_default()
}

/// Whether two results are the same: of numbers but for the last digits and their type, of sets but for their order.
fn same(function: &str, exact: bool, a: Value<'_>, b: Value<'_>) -> bool {
    if let (false, Some(a), Some(b)) = (exact, a.as_f64(), b.as_f64()) {
        return a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * a.abs().max(1.0);
    }
    match (a, b) {
        (Value::Array(a), Value::Array(b)) if function.contains("Set") || function.contains("setUnion") => {
            let sorted = |array: RawDoc<'_>| {
                let mut values: Vec<_> = array.values().map(sheaf_bson::OwnedValue::from).collect();
                values.sort();
                values
            };
            sorted(a) == sorted(b)
        }
        _ => compare(a, b).is_eq(),
    }
}

/// What an empty window gives.
fn empty(function: &str) -> DocBuf {
    let value = if function.contains("$sum") || function.contains("$count") {
        "0"
    } else if ["$push", "Set", "$concat", "$setUnion", "N:"].iter().any(|name| function.contains(name)) {
        "[]"
    } else if function.contains("$percentile") {
        "[null, null]"
    } else {
        "null"
    };
    text::parse_doc(&format!("{{r: {value}}}"))
}

fn bound(n: i64) -> String {
    match n {
        -9 | 9 => "\"unbounded\"".to_owned(),
        8 => "\"current\"".to_owned(),
        n => n.to_string(),
    }
}

fn place(n: i64, at: i64) -> i64 {
    match n {
        -9 => 0,
        9 => i64::MAX,
        8 => at,
        n => at + n,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn sliding_equals_computing_anew(
        values in proptest::collection::vec(0..VALUES.len() + 1, 0..10),
        partition in 1..12usize,
        lower in prop_oneof![Just(-9i64), -4..5i64, Just(8)],
        upper in prop_oneof![Just(9i64), -4..5i64, Just(8)],
        spills in any::<bool>(),
    ) {
        let distance = |n: i64| if n == 8 { 0 } else { n };
        prop_assume!(distance(lower) <= distance(upper));
        for (function, exact) in FUNCTIONS {
            // Those that keep whole documents cannot do with less memory than these take.
            let spills = spills && !function.contains("sortBy");
            let pad = if spills { format!(", pad: \"{}\"", "x".repeat(600)) } else { String::new() };
            let takes_arrays = function.contains("$concatArrays") || function.contains("$setUnion");
            let documents: Vec<DocBuf> = values.iter().enumerate().map(|(at, value)| {
                let value = VALUES.get(*value).map(|value| format!(", v: {value}")).unwrap_or_default();
                text::parse_doc(&format!("{{_id: {at}, p: {}{value}{pad}}}", at / partition))
            }).collect();
            // An array of an expression is no accumulator's argument.
            let grouped = if takes_arrays { function.replace("[\"$v\"]", "{$concatArrays: [[\"$v\"]]}") } else { (*function).to_owned() };
            let inner = function.trim_end_matches('}');
            let closing = &function[inner.len() + 1..];
            let stage = text::parse_doc(&format!(
                "{{$setWindowFields: {{partitionBy: \"$p\", sortBy: {{_id: 1}}, output: {{r: {inner}{closing}, window: {{documents: [{}, {}]}}}}}}}}}}",
                bound(lower), bound(upper),
            ));
            let memory = if spills { 5000 } else { 100 << 20 };
            let rows = run(&[stage], documents.clone(), memory);
            prop_assert_eq!(rows.len(), documents.len());
            for (at, row) in rows.iter().enumerate() {
                let begin = at / partition * partition;
                let behind = (begin + partition).min(documents.len());
                let own = (at - begin) as i64;
                let first = place(lower, own).max(0) as usize;
                let last = place(upper, own).min((behind - begin) as i64 - 1);
                let window: Vec<DocBuf> = (first as i64..=last).map(|n| documents[begin + n as usize].clone()).collect();
                let expected = if window.is_empty() { empty(function) } else { anew(&grouped, window) };
                let (got, expected) = (row.as_raw().get_or_missing("r"), expected.as_raw().get_or_missing("r"));
                prop_assert!(
                    same(function, *exact, got, expected),
                    "{} [{}, {}] of {:?} at {}: {:?}, not {:?}", function, lower, upper, documents, at, got, expected
                );
            }
        }
    }
}
