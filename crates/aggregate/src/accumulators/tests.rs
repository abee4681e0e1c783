//! What states gather apart and merge is what one state gathers.

use proptest::prelude::*;
use sheaf_bson::{ArrayBuf, Bump, DocBuf, OwnedValue, RawDoc, Value, doc};
use sheaf_errors::Result;
use sheaf_expr::{Env, ParseCx};

use super::{ACCUMULATORS, Accumulation, State};

/// An accumulator's argument that reads the field `v`.
fn argument(name: &str) -> DocBuf {
    match name {
        "$count" => doc! { "f": { "$count": {} } },
        "$firstN" | "$lastN" | "$minN" | "$maxN" => doc! { "f": { (name): { "n": 3, "input": "$v" } } },
        "$top" | "$bottom" => doc! { "f": { (name): { "sortBy": { "k": 1 }, "output": "$v" } } },
        "$topN" | "$bottomN" => {
            doc! { "f": { (name): { "n": 3, "sortBy": { "k": -1, "v": 1 }, "output": "$v" } } }
        }
        "$median" => doc! { "f": { (name): { "input": "$v", "method": "approximate" } } },
        "$percentile" => {
            doc! { "f": { (name): { "input": "$v", "p": [0.1, 0.5, 1], "method": "approximate" } } }
        }
        "$accumulator" => doc! { "f": { (name): {
            "init": "function() { return [] }",
            "accumulate": "function(all, v) { all.push(v); return all }",
            "accumulateArgs": Value::Array(ArrayBuf::of([Value::String("$v")]).as_raw()),
            "merge": "function(a, b) { return a.concat(b) }",
            "finalize": "function(all) { return all.length ? all : null }",
            "lang": "js",
        } } },
        "$_internalJsReduce" => doc! { "f": { (name): {
            "data": { "k": "$k", "v": "$v" },
            "eval": "function(k, vs) { return {l: vs.reduce((l, v) => l.concat(v && v.l ? v.l : [v]), [])} }",
        } } },
        _ => doc! { "f": { (name): "$v" } },
    }
}

fn accumulation(name: &str) -> Accumulation {
    let argument = argument(name);
    let field = argument.as_raw().iter().next().unwrap();
    let mut cx = ParseCx::new();
    let parsed = Accumulation::parse(field, &mut cx).unwrap();
    cx.finish().unwrap();
    parsed
}

fn start(of: &Accumulation) -> Box<dyn State> {
    of.start(Value::Null, &Env::new(&Bump::new())).unwrap()
}

fn gather(of: &Accumulation, documents: &[DocBuf]) -> Result<Box<dyn State>> {
    let mut state = start(of);
    for document in documents {
        let arena = Bump::new();
        state.add(of.value(document.as_raw(), &Env::new(&arena))?)?;
    }
    Ok(state)
}

/// The result, as a document; sets sorted, as their order means nothing.
fn result(name: &str, state: &dyn State) -> Result<DocBuf> {
    let arena = Bump::new();
    let value = state.result(&arena)?;
    let value = if value.is_missing() { Value::Null } else { value };
    if !matches!(name, "$addToSet" | "$setUnion") {
        return Ok(DocBuf::new().with("r", value));
    }
    let mut elements: Vec<OwnedValue> = value.as_array().unwrap().values().map(OwnedValue::from).collect();
    elements.sort();
    Ok(DocBuf::build(|out| {
        let mut out = out.array("r");
        elements.iter().for_each(|element| _ = out.push(element.as_value()));
    }))
}

/// Whether two results are the same: values, types and order, but for the last digits of a deviation.
fn same(name: &str, a: RawDoc<'_>, b: RawDoc<'_>) -> bool {
    match (a.get("r"), b.get("r")) {
        (Some(Value::Double(a)), Some(Value::Double(b))) if name.starts_with("$stdDev") => {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * a.abs().max(1.0)
        }
        // NaN has many forms.
        (Some(Value::Double(a)), Some(Value::Double(b))) if a.is_nan() => b.is_nan(),
        _ => a.as_bytes() == b.as_bytes(),
    }
}

/// What the documents make when each part of them is gathered apart.
fn apart(name: &str, of: &Accumulation, parts: &[&[DocBuf]]) -> Result<DocBuf> {
    let mut all = start(of);
    for documents in parts {
        let arena = Bump::new();
        // As bytes, as it travels; what is missing stays away.
        let sent = DocBuf::new().with("p", gather(of, documents)?.partial(&arena)?);
        all.merge(sent.as_raw().get_or_missing("p"))?;
    }
    result(name, &*all)
}

fn number() -> impl Strategy<Value = OwnedValue> {
    prop_oneof![
        any::<i32>().prop_map(|n| OwnedValue::from(Value::Int32(n))),
        any::<i64>().prop_map(|n| OwnedValue::from(Value::Int64(n))),
        (-1_000_000i32..1_000_000).prop_map(|n| OwnedValue::from(Value::Double(f64::from(n) / 4.0))),
        (-1000i64..1000).prop_map(|n| {
            let n = sheaf_bson::Decimal128::from_i64(n);
            OwnedValue::from(Value::Decimal128(n))
        }),
        (0..4usize).prop_map(|at| {
            OwnedValue::from(Value::Double([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][at]))
        }),
        (0..4i32).prop_map(|n| OwnedValue::from(Value::Int32(n))),
        (0..4i32).prop_map(|n| OwnedValue::from(Value::Double(f64::from(n)))),
    ]
}

fn any_value() -> impl Strategy<Value = Option<OwnedValue>> {
    prop_oneof![
        4 => number().prop_map(Some),
        1 => Just(None),
        1 => Just(Some(OwnedValue::from(Value::Null))),
        2 => "[a-c]{0,2}".prop_map(|text| Some(OwnedValue::from(Value::String(&text)))),
        1 => Just(Some(OwnedValue::from(Value::Document(doc! { "a": 1 }.as_raw())))),
    ]
}

/// A value as this accumulator takes it.
fn fitting(name: &str, value: Option<OwnedValue>, key: i32) -> Option<OwnedValue> {
    let list = |value: Option<OwnedValue>| {
        let array = ArrayBuf::of(value.iter().map(OwnedValue::as_value));
        OwnedValue::from(Value::Array(array.as_raw()))
    };
    match name {
        "$concatArrays" | "$setUnion" => Some(list(value)),
        "$mergeObjects" => value.map(|value| {
            let field = ["x", "y", "z", "a"][key.unsigned_abs() as usize % 4];
            OwnedValue::from(Value::Document(DocBuf::new().with(field, value.as_value()).as_raw()))
        }),
        _ => value,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn parts_merge_to_what_the_whole_gives(
        rows in proptest::collection::vec((any_value(), 0..5i32), 0..12),
        cuts in proptest::collection::vec(0..12usize, 0..4),
    ) {
        for accumulator in ACCUMULATORS {
            let name = accumulator.name;
            let of = accumulation(name);
            let documents: Vec<DocBuf> = rows.iter().map(|(value, key)| DocBuf::build(|out| {
                out.append("k", *key);
                if let Some(value) = fitting(name, value.clone(), *key) {
                    out.append("v", value.as_value());
                }
            })).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|at| (*at).min(documents.len())).collect();
            cuts.sort_unstable();
            let bounds: Vec<usize> = [0].into_iter().chain(cuts).chain([documents.len()]).collect();
            let parts: Vec<&[DocBuf]> =
                bounds.windows(2).map(|pair| &documents[pair[0]..pair[1]]).collect();
            let whole = gather(&of, &documents).and_then(|state| result(name, &*state)).unwrap();
            let merged = apart(name, &of, &parts).unwrap();
            prop_assert!(
                same(name, whole.as_raw(), merged.as_raw()),
                "{}: {:?} is {:?}, and in parts {:?}", name, documents, whole, merged
            );
        }
    }
}

#[test]
fn what_is_no_partial_result_is_refused() {
    for accumulator in ACCUMULATORS {
        let name = accumulator.name;
        // Any value at all is a result of these.
        if matches!(name, "$min" | "$max" | "$first" | "$last" | "$accumulator") {
            continue;
        }
        let of = accumulation(name);
        for wrong in [Value::Int32(1), Value::Null, Value::String("x")] {
            let error = start(&of).merge(wrong).unwrap_err();
            assert_eq!(error.code(), sheaf_errors::Code::TYPE_MISMATCH, "{name}");
        }
        let unlike = doc! { "count": "x", "type": 99 };
        let listed = ArrayBuf::of([Value::Document(unlike.as_raw())]);
        let wrong = if matches!(name, "$top" | "$topN" | "$bottom" | "$bottomN") {
            Value::Array(listed.as_raw())
        } else if matches!(name, "$sum" | "$count" | "$avg" | "$stdDevPop" | "$stdDevSamp") {
            Value::Document(unlike.as_raw())
        } else {
            continue;
        };
        assert!(start(&of).merge(wrong).is_err(), "{name}");
    }
}

#[test]
fn a_state_without_documents_adds_nothing() {
    let documents = [doc! { "k": 1, "v": 2 }];
    for name in ACCUMULATORS.iter().map(|accumulator| accumulator.name) {
        if matches!(name, "$concatArrays" | "$setUnion" | "$mergeObjects") {
            continue;
        }
        let of = accumulation(name);
        let whole = gather(&of, &documents).and_then(|state| result(name, &*state)).unwrap();
        let merged = apart(name, &of, &[&[], &documents, &[]]).unwrap();
        assert_eq!(whole.as_bytes(), merged.as_bytes(), "{name}");
    }
}

#[test]
fn the_best_take_no_more_along_than_their_order_needs() {
    for name in ["$top", "$topN", "$bottom", "$bottomN"] {
        let document = doc! { "k": 1, "v": 2, "other": &*"x".repeat(100_000) };
        let arena = Bump::new();
        let of = accumulation(name);
        let taken = of.value(document.as_raw(), &Env::new(&arena)).unwrap();
        let taken = taken.as_doc().unwrap().len();
        assert!(taken < 200, "{name} takes {taken} bytes");
    }
    // What lies deeper is found in the field at the top.
    let spec = doc! { "f": { "$top": { "sortBy": { "a.b": -1, "a.c": 1 }, "output": "$v" } } };
    let mut cx = ParseCx::new();
    let of = Accumulation::parse(spec.as_raw().iter().next().unwrap(), &mut cx).unwrap();
    let documents = [
        doc! { "v": 1, "a": { "b": 1, "c": 1 } },
        doc! { "v": 2, "a": [{ "b": 0 }, { "b": 5, "c": 2 }] },
        doc! { "v": 3, "a": { "b": 5, "c": 1 } },
        doc! { "v": 4 },
    ];
    let state = gather(&of, &documents).unwrap();
    assert_eq!(state.result(&Bump::new()).unwrap().as_exact_i64(), Some(3));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "how long it takes is what is looked at")]
fn merging_takes_time_by_what_is_merged() {
    let of = accumulation("$mergeObjects");
    let once = |count: usize| {
        let documents: Vec<_> = (0..count)
            .map(|n| DocBuf::new().with("v", &DocBuf::new().with(&format!("k{n}"), n as i32)))
            .collect();
        let start = std::time::Instant::now();
        let state = gather(&of, &documents).unwrap();
        let taken = start.elapsed();
        let merged = OwnedValue::from(state.result(&Bump::new()).unwrap());
        assert_eq!(merged.as_value().as_doc().unwrap().iter().count(), count);
        taken
    };
    // The least of several: others may have the processor meanwhile.
    let time = |count| (0..7).map(|_| once(count)).min().unwrap();
    let few = time(2000);
    let many = time(16_000);
    assert!(many < few * 30, "{many:?} against {few:?}: by the square it would be 64 times as long");
}
