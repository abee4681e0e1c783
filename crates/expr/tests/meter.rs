//! Expressions end when their time is over, and take no more memory than they may.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "measures time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{Bump, DocBuf, RawDoc, Value, array, doc};
use sheaf_errors::{Code, Result};
use sheaf_expr::{Env, Expr, ParseCx, operator_names};
use sheaf_meter::{Meter, Process};

/// A document with a large value of every kind that operators go through.
fn large() -> DocBuf {
    let text = "abc,".repeat(100_000);
    DocBuf::build(|out| {
        out.append("s", &*text).append("n", 3);
        {
            let mut numbers = out.array("a");
            (0..100_000).for_each(|n: i32| _ = numbers.push((n * 7919) % 100_003));
        }
        {
            let mut pairs = out.array("p");
            (0..50_000).for_each(|n: i32| _ = pairs.document().append("k", &*n.to_string()).append("v", n));
        }
        let mut fields = out.document("o");
        (0..50_000).for_each(|n: i32| _ = fields.append(&n.to_string(), n));
    })
}

/// The arguments with which an operator has most to do.
fn arguments(name: &str) -> Vec<DocBuf> {
    let call = |argument: Value<'_>| DocBuf::new().with(name, argument);
    let one = |argument: &str| call(Value::String(argument));
    let list = |items: sheaf_bson::ArrayBuf| call(Value::Array(items.as_raw()));
    let object = |fields: DocBuf| call(Value::Document(fields.as_raw()));
    match name {
        "$map" => vec![object(doc! { "input": "$a", "in": { "$add": ["$$this", 1] } })],
        "$filter" => vec![object(doc! { "input": "$a", "cond": { "$lt": ["$$this", 50] } })],
        "$reduce" => vec![
            object(doc! { "input": "$a", "initialValue": 0, "in": { "$add": ["$$value", "$$this"] } }),
            object(
                doc! { "input": "$a", "initialValue": [], "in": { "$concatArrays": ["$$value", ["$$this"]] } },
            ),
        ],
        "$let" => vec![object(doc! { "vars": { "x": "$a" }, "in": { "$size": "$$x" } })],
        "$range" => vec![list(array![0, 1_000_000])],
        "$zip" => vec![object(doc! { "inputs": ["$a", "$a", "$p"], "useLongestLength": true })],
        "$sortArray" => vec![
            object(doc! { "input": "$a", "sortBy": -1 }),
            object(doc! { "input": "$p", "sortBy": { "v": -1, "k": 1 } }),
        ],
        "$firstN" | "$lastN" | "$maxN" | "$minN" => vec![object(doc! { "n": 90_000, "input": "$a" })],
        "$in" => vec![list(array![-1, "$a"])],
        "$indexOfArray" => vec![list(array!["$a", -1])],
        "$slice" => vec![list(array!["$a", -90_000])],
        "$arrayElemAt" => vec![list(array!["$a", -1])],
        "$concatArrays" | "$setUnion" | "$setIntersection" | "$setEquals" => {
            vec![list(array!["$a", { "$reverseArray": "$a" }, "$a"])]
        }
        "$setDifference" | "$setIsSubset" => vec![list(array!["$a", { "$reverseArray": "$a" }])],
        "$arrayToObject" => vec![one("$p")],
        "$objectToArray" => vec![one("$o")],
        "$mergeObjects" => vec![list(array!["$o", "$o", { "x": 1 }])],
        "$setField" => vec![object(doc! { "field": "x", "input": "$o", "value": 1 })],
        "$unsetField" => vec![object(doc! { "field": "x", "input": "$o" })],
        "$getField" => vec![object(doc! { "field": "none", "input": "$o" })],
        "$concat" => vec![list(array!["$s", "$s", "$s"])],
        "$split" => vec![list(array!["$s", ","])],
        "$replaceOne" | "$replaceAll" => {
            vec![object(doc! { "input": "$s", "find": ",", "replacement": ", " })]
        }
        "$indexOfBytes" | "$indexOfCP" => {
            vec![list(array!["$s", { "$concat": [{ "$substrCP": ["$s", 0, 100_000] }, "x"] }])]
        }
        "$substr" | "$substrBytes" | "$substrCP" => vec![list(array!["$s", 1, 300_000])],
        "$strcasecmp" => vec![list(array!["$s", { "$concat": ["$s", "x"] }])],
        "$trim" | "$ltrim" | "$rtrim" => vec![object(doc! { "input": "$s", "chars": "$s" })],
        "$regexMatch" | "$regexFind" | "$regexFindAll" => vec![
            object(doc! { "input": "$s", "regex": "b+" }),
            object(doc! { "input": "$s", "regex": "(a|b|c|,)*[^,]x" }),
            object(doc! { "input": "$s", "regex": "[abc,]*x" }),
        ],
        "$cond" => vec![list(array![{ "$in": [-1, "$a"] }, 1, 2])],
        "$switch" => {
            vec![object(doc! { "branches": [{ "case": { "$in": [-1, "$a"] }, "then": 1 }], "default": 2 })]
        }
        "$convert" => {
            vec![object(doc! { "input": "$s", "to": { "type": "binData" }, "format": "utf8", "onError": 1 })]
        }
        "$dateFromString" => vec![object(doc! { "dateString": "$s", "onError": 1 })],
        "$eq" | "$ne" | "$gt" | "$gte" | "$lt" | "$lte" | "$cmp" => {
            vec![list(array![["$a", 1], ["$a", 2]])]
        }
        _ => vec![
            one("$a"),
            one("$s"),
            one("$o"),
            list(array!["$a", "$a"]),
            list(array!["$n", "$n"]),
            one("$n"),
        ],
    }
}

/// Evaluates in a loop that would take hours.
fn run_for_long(call: &DocBuf, document: RawDoc<'_>) -> Result<()> {
    let inner = doc! { "$and": [{ "$eq": [call, "none of this"] }, true] };
    let input = doc! { "$range": [0, 30_000] };
    let endless =
        doc! { "$reduce": { "input": &input, "initialValue": 0, "in": { "$cond": [&inner, 1, 2] } } };
    let endless = doc! { "$reduce": { "input": &input, "initialValue": 0, "in": &endless } };
    let mut cx = ParseCx::new();
    let expr = Expr::parse(Value::Document(endless.as_raw()), &mut cx)?;
    cx.finish()?;
    let arena = Bump::new();
    expr.eval(document, &Env::new(&arena)).map(|_| ())
}

fn meter(process: &Arc<Process>, millis: u64) -> Arc<Meter> {
    let meter = Meter::background(process);
    meter.begin(Some(Instant::now() + Duration::from_millis(millis)));
    meter
}

#[test]
fn every_operator_ends_when_its_time_is_over() {
    let document = large();
    let process = Process::share_of(8 << 30);
    let mut stopped = 0;
    for name in operator_names() {
        for call in arguments(name) {
            let _entered = sheaf_meter::enter(meter(&process, 10));
            let began = Instant::now();
            let ended = run_for_long(&call, document.as_raw());
            assert!(began.elapsed() < Duration::from_secs(5), "{call:?} went on for {:?}", began.elapsed());
            match ended {
                Err(error) if error.code() == Code::MAX_TIME_MS_EXPIRED => stopped += 1,
                // It does not take such arguments, or needs too much memory for them.
                Err(_) => {}
                Ok(()) => panic!("{call:?} went through a loop without end"),
            }
        }
    }
    assert!(stopped > 80, "only {stopped} operators were still at work after their time");
    assert_eq!(process.used(), 0);
}

/// What is wrong with them stands at their end: who gets that far has not looked at the time.
#[test]
fn long_texts_are_read_no_longer_than_there_is_time() {
    let process = Process::share_of(8 << 30);
    let to_binary = |format: &str| {
        doc! { "$convert": { "input": "$t", "to": { "type": "binData", "subtype": 0 }, "format": format } }
    };
    let far = Value::DateTime(400_000_000_000_000);
    let printed = doc! { "$dateToString": { "date": far, "format": "$t" } };
    for (call, text) in [
        (to_binary("hex"), "f0".repeat(50_000) + "no"),
        (to_binary("base64"), "AAAA".repeat(25_000) + "A_no"),
        (to_binary("base64url"), "AAAA".repeat(25_000) + "A/no"),
        (printed, "%d".repeat(2000) + "%Y"),
    ] {
        let mut cx = ParseCx::new();
        let expr = Expr::parse(Value::Document(call.as_raw()), &mut cx).unwrap();
        cx.finish().unwrap();
        let document = DocBuf::new().with("t", &*text);
        let eval = || {
            let arena = Bump::new();
            expr.eval(document.as_raw(), &Env::new(&arena)).map(|_| ()).unwrap_err().code()
        };
        assert!(eval() != Code::MAX_TIME_MS_EXPIRED, "{call:?}");
        let _entered = sheaf_meter::enter(meter(&process, 0));
        assert_eq!(eval(), Code::MAX_TIME_MS_EXPIRED, "{call:?}");
    }
}

#[test]
fn expressions_take_no_more_memory_than_they_may() {
    let text = "x".repeat(1_000_000);
    let numbers = doc! { "$range": [0, "$n"] };
    let many = DocBuf::build(|out| {
        let mut list = out.array("$add");
        (0..100).for_each(|_| _ = list.document().append("$size", &numbers));
    });
    let wide = DocBuf::build(|out| {
        let mut zip = out.document("$zip");
        let mut list = zip.array("inputs");
        (0..1000).for_each(|_| _ = list.push(&numbers));
    });
    let joined = DocBuf::build(|out| {
        let mut list = out.array("$concatArrays");
        (0..1000).for_each(|_| _ = list.push(&numbers));
    });
    let fields = DocBuf::build(|out| {
        (0..1000).for_each(|n| _ = out.append(&format!("f{n}"), &numbers));
    });
    let cases = [
        doc! { "$map": { "input": &numbers, "in": &*text } },
        doc! { "$reduce": { "input": &numbers, "initialValue": [], "in": { "$concatArrays": ["$$value", [&*text]] } } },
        doc! { "$zip": { "inputs": [&numbers, [&*text]], "useLongestLength": true, "defaults": [&*text, &*text] } },
        doc! { "$setUnion": [{ "$map": { "input": &numbers, "in": { "$concat": ["x", { "$toString": "$$this" }] } } }] },
        many,
        wide,
        joined,
        fields,
    ];
    let process = Process::new(256 << 20, 128 << 20);
    let document = doc! { "n": 4_000_000 };
    for case in &cases {
        let meter = Meter::background(&process);
        let _entered = sheaf_meter::enter(meter);
        let mut cx = ParseCx::new();
        let expr = Expr::parse(Value::Document(case.as_raw()), &mut cx).unwrap();
        let arena = Bump::new();
        let code = expr.eval(document.as_raw(), &Env::new(&arena)).expect_err("it needs too much").code();
        assert!(matches!(code, Code::EXCEEDED_MEMORY_LIMIT | Code(13548)), "{code:?}");
        assert!(arena.allocated_bytes() < 512 << 20, "{} bytes were taken", arena.allocated_bytes());
    }
    assert_eq!(process.used(), 0);
}

#[test]
fn what_is_taken_in_one_go_is_counted_before() {
    let numbers = doc! { "$range": [0, "$n"] };
    let cases = [
        doc! { "$reverseArray": &numbers },
        doc! { "$sortArray": { "input": &numbers, "sortBy": -1 } },
        doc! { "$setUnion": [&numbers] },
    ];
    let process = Process::new(160 << 20, 160 << 20);
    let document = doc! { "n": 2_000_000 };
    for case in &cases {
        let _entered = sheaf_meter::enter(Meter::background(&process));
        let expr = Expr::parse(Value::Document(case.as_raw()), &mut ParseCx::new()).unwrap();
        let arena = Bump::new();
        let code = expr.eval(document.as_raw(), &Env::new(&arena)).expect_err("it needs too much").code();
        // The numbers have room; a list of them as values has none.
        assert!(arena.allocated_bytes() <= 140 << 20, "{case:?}: {}", arena.allocated_bytes());
        assert_eq!(code, Code::EXCEEDED_MEMORY_LIMIT, "{case:?}");
    }
    assert_eq!(process.used(), 0);
}

#[test]
fn a_large_variable_is_there_once() {
    let text = "x".repeat(1 << 20);
    let mut cx = ParseCx::new();
    cx.declare_let(doc! { "v": &*text }.as_raw()).unwrap();
    let many = DocBuf::build(|out| {
        let mut list = out.array("$in");
        list.push(1);
        let mut list = list.array();
        (0..100_000).for_each(|_| _ = list.push("$$v"));
    });
    // Copied each time it would take 100 GB.
    let expr = doc! { "$cond": ["$a", &many, 0] };
    Expr::parse(Value::Document(expr.as_raw()), &mut cx).unwrap();
}

#[test]
fn what_is_taken_out_of_a_large_variable_counts() {
    let process = Process::new(64 << 20, 32 << 20);
    let _entered = sheaf_meter::enter(Meter::background(&process));
    let text = "x".repeat(1 << 20);
    let mut cx = ParseCx::new();
    cx.declare_let(doc! { "v": { "p": &*text } }.as_raw()).unwrap();
    let of_variables = process.used();
    assert!(of_variables >= 1 << 20, "{of_variables} bytes");
    let many = DocBuf::build(|out| {
        let mut list = out.array("$concat");
        (0..1000).for_each(|_| _ = list.push("$$v.p"));
    });
    let parsed = Expr::parse(Value::Document(many.as_raw()), &mut cx);
    assert_eq!(parsed.unwrap_err().code(), Code::EXCEEDED_MEMORY_LIMIT);
    assert_eq!(process.used(), of_variables);
    drop(cx);
    assert_eq!(process.used(), 0);
}

/// Each constant pattern is compiled when it is read, and kept as long as the expression.
#[test]
fn compiled_patterns_count() {
    let patterns = DocBuf::build(|out| {
        let mut list = out.array("$and");
        for n in 0..20_000 {
            let mut call = list.document();
            let mut call = call.document("$regexMatch");
            call.append("input", "$s").append("regex", &*format!("^{n}a*b"));
        }
    });
    let process = Process::new(64 << 20, 4 << 20);
    let _entered = sheaf_meter::enter(Meter::background(&process));
    let mut cx = ParseCx::new();
    let ended = Expr::parse(Value::Document(patterns.as_raw()), &mut cx).and_then(|_| cx.finish());
    assert_eq!(ended.unwrap_err().code(), Code::EXCEEDED_MEMORY_LIMIT);
    assert_eq!(process.used(), 0);
}

#[test]
fn constants_for_which_there_is_no_memory_are_no_null() {
    let text = "x".repeat(100_000);
    let list = DocBuf::build(|out| {
        let mut items = out.array("");
        (0..100).for_each(|_| _ = items.push(&*text));
    });
    let process = Process::new(8 << 20, 8 << 20);
    let _entered = sheaf_meter::enter(Meter::background(&process));
    let arena = Bump::new();
    // Whether it is found when it is parsed or when it is evaluated, nobody goes on with something else.
    let parsed = Expr::parse(list.as_raw().get_or_missing(""), &mut ParseCx::new());
    let code = match &parsed {
        Ok(expr) => {
            expr.eval(RawDoc::EMPTY, &Env::new(&arena)).map(|_| ()).expect_err("it is too large").code()
        }
        Err(error) => error.code(),
    };
    assert_eq!(code, Code::EXCEEDED_MEMORY_LIMIT);
}
