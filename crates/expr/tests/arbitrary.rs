//! Parsing and evaluating whatever documents say gives values or errors, never panics.

use proptest::collection::vec;
use proptest::prelude::*;
use sheaf_bson::{ArrayBuf, Bump, DocBuf, OwnedValue, Value, doc};
use sheaf_expr::{Env, Expr, ParseCx, operator_names};

/// Values of which expressions are made: scalars with many edges, paths, and names of parameters.
fn leaf() -> BoxedStrategy<OwnedValue> {
    let numbers = prop::sample::select(vec![
        Value::Int32(0),
        Value::Int32(-1),
        Value::Int32(i32::MIN),
        Value::Int32(7),
        Value::Int64(i64::MAX),
        Value::Int64(i64::MIN),
        Value::Double(f64::NAN),
        Value::Double(f64::INFINITY),
        Value::Double(-0.5),
        Value::Double(1e300),
        Value::DateTime(0),
        Value::DateTime(i64::MAX),
        Value::DateTime(i64::MIN),
        Value::Null,
        Value::Bool(true),
        Value::Missing,
        Value::MinKey,
    ]);
    let texts = prop::sample::select(vec![
        "",
        "a",
        "é",
        "$a",
        "$b.c",
        "$$ROOT",
        "$$this",
        "$$NOW",
        "$",
        "$$",
        "day",
        "month",
        "UTC",
        "%Y-%m",
        "i",
        "(",
        "2024-01-01",
        "+99:99",
        "int",
        "date",
        "string",
        "base64",
        "$d",
        "x",
    ]);
    prop_oneof![
        numbers.prop_map(OwnedValue::from),
        texts.prop_map(|text| OwnedValue::from(Value::String(text))),
    ]
    .boxed()
}

/// Field names: operators and their parameters.
fn name() -> BoxedStrategy<&'static str> {
    let parameters = prop::sample::select(vec![
        "input",
        "in",
        "as",
        "cond",
        "vars",
        "field",
        "value",
        "date",
        "unit",
        "amount",
        "startDate",
        "endDate",
        "timezone",
        "format",
        "n",
        "sortBy",
        "branches",
        "case",
        "then",
        "default",
        "if",
        "else",
        "regex",
        "options",
        "to",
        "onError",
        "initialValue",
        "inputs",
        "year",
        "binSize",
        "dateString",
        "find",
        "replacement",
        "k",
        "v",
    ]);
    let operators: Vec<&'static str> = operator_names().collect();
    prop_oneof![1 => parameters, 2 => prop::sample::select(operators)].boxed()
}

fn tree() -> BoxedStrategy<OwnedValue> {
    leaf()
        .prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                3 => (name(), vec(inner.clone(), 0..4)).prop_map(|(name, args)| {
                    let list = ArrayBuf::of(args.iter().map(|arg| arg.as_value()));
                    OwnedValue::from(Value::from(&DocBuf::new().with(name, &list)))
                }),
                2 => (name(), vec((name(), inner.clone()), 0..6)).prop_map(|(name, fields)| {
                    let mut argument = DocBuf::new();
                    fields.iter().for_each(|(field, value)| _ = argument.append(field, value.as_value()));
                    OwnedValue::from(Value::from(&DocBuf::new().with(name, &argument)))
                }),
                1 => vec(inner.clone(), 0..4)
                    .prop_map(|items| OwnedValue::from(Value::from(&ArrayBuf::of(items.iter().map(|i| i.as_value()))))),
                1 => (name(), inner).prop_map(|(name, argument)| {
                    OwnedValue::from(Value::from(&DocBuf::new().with(name, argument.as_value())))
                }),
            ]
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_expression_gives_a_value_or_an_error(expression in tree()) {
        let root = doc! { "a": [1, "x", { "c": 2 }], "b": { "c": 3.5 }, "d": Value::DateTime(1_700_000_000_000) };
        let mut cx = ParseCx::new().with_now(0).with_seed(1);
        if let Ok(expr) = Expr::parse(expression.as_value(), &mut cx) {
            let arena = Bump::new();
            let first = expr.eval(root.as_raw(), &Env::new(&arena)).map(OwnedValue::from);
            // What is printed means the same; a random number may differ.
            let mut deps = sheaf_expr::Deps::new();
            expr.dependencies(&mut deps);
            let printed = expr.serialize(&arena);
            if !deps.random {
                let again = Expr::parse(printed, &mut cx).expect("what is printed parses");
                let second = again.eval(root.as_raw(), &Env::new(&arena)).map(OwnedValue::from);
                match (first, second) {
                    (Ok(first), Ok(second)) => prop_assert_eq!(first, second),
                    (Err(first), Err(second)) => prop_assert_eq!(first.code(), second.code()),
                    (first, second) => prop_assert!(false, "{:?} but {:?}", first.is_ok(), second.is_ok()),
                }
            }
        }
    }
}
