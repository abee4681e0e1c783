//! Contexts, dependencies, shapes and printing of expressions.

mod common;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value, doc};
use sheaf_errors::Code;
use sheaf_expr::{Deps, Env, Expr, ParseCx, View};

fn parse(text: &str, cx: &mut ParseCx) -> Expr {
    Expr::parse(common::read(text).0.as_value(), cx).expect("a valid expression")
}

/// The whole document of a text.
fn document(text: &str) -> DocBuf {
    DocBuf::from(common::read(text).0.as_value().as_doc().expect("a document"))
}

fn printed(text: &str) -> String {
    let mut cx = ParseCx::new().with_now(0);
    let arena = Bump::new();
    let expr = parse(text, &mut cx);
    common::show(expr.serialize(&arena))
}

#[test]
fn printing_shows_constants_and_positional_arguments() {
    for (text, expected) in [
        (r#"{$add: ["$a", 1]}"#, "{$add: [\"$a\", {$const: 1}]}"),
        (r#"{$abs: "$a"}"#, "{$abs: [\"$a\"]}"),
        (r#"{$add: [1, 2]}"#, "{$const: 3}"),
        (r#""$$ROOT.a""#, "\"$$ROOT.a\""),
        (r#""$$REMOVE""#, "\"$$REMOVE\""),
        (r#"{x: "$a", y: [1, "$b"]}"#, "{x: \"$a\", y: [{$const: 1}, \"$b\"]}"),
        (r#"{$cond: {if: "$a", then: 1, else: 2}}"#, "{$cond: [\"$a\", {$const: 1}, {$const: 2}]}"),
        (r#"{$let: {vars: {x: "$a"}, in: "$$x.y"}}"#, "{$let: {vars: {x: \"$a\"}, in: \"$$x.y\"}}"),
        (
            r#"{$filter: {input: "$a", as: "e", cond: "$$e"}}"#,
            "{$filter: {input: \"$a\", as: \"e\", cond: \"$$e\"}}",
        ),
        (
            r#"{$dateToString: {date: "$a", format: "%Y"}}"#,
            "{$dateToString: {date: \"$a\", format: {$const: \"%Y\"}}}",
        ),
        (
            r#"{$switch: {branches: [{case: "$a", then: 1}], default: 2}}"#,
            "{$switch: {branches: [{case: \"$a\", then: {$const: 1}}], default: {$const: 2}}}",
        ),
    ] {
        assert_eq!(printed(text), expected, "{text}");
    }
}

/// What is printed parses to an expression that prints the same.
#[test]
fn printing_round_trips() {
    let mut cx = ParseCx::new();
    for text in [
        r#"{$zip: {inputs: ["$a", "$b"], useLongestLength: true, defaults: [1, 2]}}"#,
        r#"{$sortArray: {input: "$a", sortBy: {x: 1, y: -1}}}"#,
        r#"{$regexMatch: {input: "$a", regex: "x", options: "i"}}"#,
        r#"{$year: {date: "$a", timezone: "$b"}}"#,
        r#"{$dateFromParts: {year: "$a", hour: 5}}"#,
        r#"{$reduce: {input: "$a", initialValue: 0, in: {$add: ["$$this", "$$value"]}}}"#,
        r#"{$getField: {field: "x", input: "$a"}}"#,
        r#"{$setField: {field: "x", input: "$a", value: 1}}"#,
        r#"{$toInt: "$a"}"#,
        r#"{$meta: "textScore"}"#,
        r#"{$setEquals: ["$a", "$b"]}"#,
    ] {
        let arena = Bump::new();
        let first = parse(text, &mut cx);
        let once = first.serialize(&arena);
        let second = Expr::parse(once, &mut cx).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(common::show(once), common::show(second.serialize(&arena)), "{text}");
    }
}

#[test]
fn dependencies_are_paths_the_whole_document_and_metadata() {
    let mut cx = ParseCx::new();
    let mut deps = Deps::new();
    parse(r#"{$add: ["$a.b", "$c", {$let: {vars: {x: "$d"}, in: {$add: ["$$x.y", "$e"]}}}]}"#, &mut cx)
        .dependencies(&mut deps);
    assert_eq!(deps.paths.iter().map(String::as_str).collect::<Vec<_>>(), ["a.b", "c", "d", "e"]);
    assert!(!deps.whole_document && !deps.random);
    parse(r#"{$objectToArray: "$$ROOT"}"#, &mut cx).dependencies(&mut deps);
    parse(r#"{$meta: "textScore"}"#, &mut cx).dependencies(&mut deps);
    parse("{$rand: {}}", &mut cx).dependencies(&mut deps);
    assert!(deps.whole_document && deps.random && deps.metadata.contains("textScore"));
}

#[test]
fn shapes_are_visible_to_planners() {
    let mut cx = ParseCx::new();
    let expr = parse(r#"{$gt: ["$a.b", {$add: [2, 3]}]}"#, &mut cx);
    let View::Operator("$gt", args) = expr.view() else { panic!("{expr:?}") };
    assert_eq!(args[0].as_path().expect("a path").dotted(), "a.b");
    assert!(matches!(args[1].constant(), Some(Value::Int32(5))));
}

#[test]
fn let_of_a_command_is_evaluated_once_and_in_order() {
    let mut cx = ParseCx::new();
    let variables = document(r#"{x: {$add: [1, 2]}, y: {$multiply: ["$$x", 10]}}"#);
    cx.declare_let(variables.as_raw()).expect("valid variables");
    let expr = parse(r#"{$add: ["$$x", "$$y"]}"#, &mut cx);
    assert!(matches!(expr.constant(), Some(Value::Int32(33))));
    let path = document(r#"{z: "$a"}"#);
    assert_eq!(cx.declare_let(path.as_raw()).unwrap_err().code(), Code(4890500));
    let name = document("{Z: 1}");
    assert_eq!(cx.declare_let(name.as_raw()).unwrap_err().code(), Code::FAILED_TO_PARSE);
}

#[test]
fn variables_are_bound_per_document() {
    let mut cx = ParseCx::new();
    let slot = cx.declare("v").expect("a valid name");
    let expr = parse(r#"{$add: ["$$v.n", "$a"]}"#, &mut cx);
    let inner = doc! { "n": 5 };
    let root = doc! { "a": 1 };
    let arena = Bump::new();
    let env = Env::new(&arena);
    env.set(slot, Value::from(&inner));
    assert!(matches!(expr.eval(root.as_raw(), &env), Ok(Value::Int32(6))));
}

#[test]
fn now_may_be_known_only_when_evaluating() {
    let mut cx = ParseCx::new();
    let expr = parse(r#"{$year: "$$NOW"}"#, &mut cx);
    let arena = Bump::new();
    let env = Env::new(&arena).with_now(1_700_000_000_000);
    assert!(matches!(expr.eval(RawDoc::EMPTY, &env), Ok(Value::Int32(2023))));
}

#[test]
fn a_failed_folding_is_reported_at_the_end_and_once() {
    let mut cx = ParseCx::new();
    parse("{$divide: [1, 0]}", &mut cx);
    parse(r#"{$size: 5}"#, &mut cx);
    let error = cx.finish().unwrap_err();
    assert_eq!(error.code(), Code::BAD_VALUE);
    assert_eq!(error.message(), "Failed to optimize pipeline :: caused by :: can't $divide by zero");
    assert!(cx.finish().is_ok());
}

#[test]
fn redact_variables_only_where_allowed() {
    let mut cx = ParseCx::new();
    assert!(Expr::parse(Value::String("$$PRUNE"), &mut cx).is_err());
    cx.set_redact(true);
    assert!(matches!(parse(r#""$$PRUNE""#, &mut cx).constant(), Some(Value::String("prune"))));
}

#[test]
fn metadata_comes_from_the_surroundings() {
    let mut cx = ParseCx::new();
    let expr = parse(r#"{$multiply: [{$meta: "textScore"}, 2]}"#, &mut cx);
    let arena = Bump::new();
    let metadata = doc! { "textScore": 1.5 };
    let env = Env::new(&arena);
    env.set_metadata(metadata.as_raw());
    assert!(matches!(expr.eval(RawDoc::EMPTY, &env), Ok(Value::Double(3.0))));
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let mut nested = doc! { "a": 1 };
    for _ in 0..5000 {
        nested = DocBuf::build(|out| _ = out.append("$abs", Value::from(&nested)));
    }
    let error = Expr::parse(Value::from(&nested), &mut ParseCx::new()).unwrap_err();
    assert_eq!(error.code(), Code::OVERFLOW);
}

/// A growing array leaves its earlier copies behind; reducing thousands of elements must not keep them all.
#[test]
fn reducing_to_a_growing_array_keeps_memory_bounded() {
    let mut cx = ParseCx::new();
    let expr = parse(
        r#"{$reduce: {input: "$a", initialValue: [], in: {$concatArrays: ["$$value", [{$add: ["$$this", "$b"]}]]}}}"#,
        &mut cx,
    );
    let items = sheaf_bson::ArrayBuf::of(0..5000);
    let root = DocBuf::new().with("a", &items).with("b", 1);
    let arena = Bump::new();
    let value = expr.eval(root.as_raw(), &Env::new(&arena)).expect("an array");
    let array = value.as_array().expect("an array");
    assert_eq!(array.count(), 5000);
    assert!(matches!(array.values().last(), Some(Value::Int32(5000))));
    assert!(arena.allocated_bytes() < 8 << 20, "{} bytes", arena.allocated_bytes());
}

/// Doubling at each step soon passes every limit, and must end with an error instead of all memory.
#[test]
fn doubling_ends_with_an_error() {
    let mut cx = ParseCx::new();
    let expr = parse(
        r#"{$reduce: {input: {$range: [0, 60]}, initialValue: "$a", in: {$concatArrays: ["$$value", "$$value"]}}}"#,
        &mut cx,
    );
    let root = DocBuf::new().with("a", &sheaf_bson::ArrayBuf::of(0..100));
    let arena = Bump::new();
    assert_eq!(expr.eval(root.as_raw(), &Env::new(&arena)).unwrap_err().code(), Code(13548));
}

#[test]
fn expressions_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Expr>();
    shared::<ParseCx>();
}
