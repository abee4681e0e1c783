//! Any expression parses or does not; one that does evaluates to a value or an error on any document, and
//! means the same after it was printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_bson::{Bump, DocBuf, OwnedValue, Value, validate};
use sheaf_expr::{Deps, Env, Expr, ParseCx};
use sheaf_fuzz::generate::{Choices, DEPTH};

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let root = choices.stored(DEPTH);
    let Value::Document(root) = root.as_value() else { return };
    while !choices.is_over() {
        choices.refill();
        let expression = choices.expression(DEPTH);
        let mut cx = ParseCx::new().with_now(0).with_seed(1);
        let Ok(expr) = Expr::parse(expression.as_value(), &mut cx) else { continue };
        let arena = Bump::new();
        let first = expr.eval(root, &Env::new(&arena)).map(OwnedValue::from);
        if let Ok(value) = &first {
            let bytes = DocBuf::new().with("", value.as_value()).into_bytes();
            assert_eq!(validate(&bytes, 1000), Ok(bytes.len()));
        }
        let mut deps = Deps::new();
        expr.dependencies(&mut deps);
        let printed = expr.serialize(&arena);
        if deps.random {
            continue;
        }
        let Ok(again) = Expr::parse(printed, &mut cx) else {
            panic!("{expression:?} is printed as {printed:?}, which does not parse");
        };
        let second = again.eval(root, &Env::new(&arena)).map(OwnedValue::from);
        match (first, second) {
            (Ok(first), Ok(second)) => assert_eq!(first, second, "{expression:?} printed as {printed:?}"),
            (Err(first), Err(second)) => {
                assert_eq!(first.code(), second.code(), "{expression:?} printed as {printed:?}");
            }
            (first, second) => panic!("{expression:?} gives {first:?}, printed as {printed:?} {second:?}"),
        }
    }
});
