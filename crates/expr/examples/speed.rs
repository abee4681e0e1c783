//! How long evaluations take: `cargo run --release -p sheaf-expr --example speed`.
#![allow(clippy::disallowed_methods, reason = "measures time")]

use std::hint::black_box;
use std::time::Instant;

use sheaf_bson::{Bump, DocBuf, Value, doc};
use sheaf_expr::{Env, Expr, ParseCx};

/// A document of twenty fields, `a` and `b` in the middle and `z` last.
fn document() -> DocBuf {
    let mut doc = DocBuf::new();
    for at in 0..9 {
        doc.append(&format!("field{at}"), Value::Int32(at));
    }
    doc.append("a", 7).append("b", 35);
    for at in 9..17 {
        doc.append(&format!("field{at}"), Value::String("some text"));
    }
    doc.append("z", Value::from(&doc! { "y": [1, 2, 3] }));
    doc
}

fn main() {
    let root = document();
    for (name, expression) in [
        ("$gt of a field and a constant", doc! { "$gt": ["$a", 5] }),
        ("$add of two fields", doc! { "$add": ["$a", "$b"] }),
        ("$eq of the last field's path", doc! { "$eq": ["$z.y", 5] }),
        (
            "$cond, $and, two comparisons",
            doc! { "$cond": [{ "$and": [{ "$gt": ["$a", 5] }, { "$lt": ["$b", 40] }] }, "$a", "$b"] },
        ),
        ("$map over three elements", doc! { "$map": { "input": "$z.y", "in": { "$add": ["$$this", 1] } } }),
        ("object of two fields", doc! { "x": "$a", "y": "$z" }),
        ("$regexMatch, constant pattern", doc! { "$regexMatch": { "input": "$field9", "regex": "^some" } }),
        (
            "$dateToString",
            doc! { "$dateToString": { "date": Value::DateTime(1_700_000_000_000), "format": "$q" } },
        ),
        (
            "$year in a zone",
            doc! { "$year": { "date": { "$toDate": { "$toLong": "$a" } }, "timezone": "Europe/Paris" } },
        ),
    ] {
        let expr = Expr::parse(Value::from(&expression), &mut ParseCx::new()).expect("a valid expression");
        println!("{name:35} {:6.1} ns", best_of_many(&expr, &root));
    }
}

/// Nanoseconds per evaluation in the fastest of many short runs, so that other work on the machine does not
/// count.
fn best_of_many(expr: &Expr, root: &DocBuf) -> f64 {
    const ROUNDS: u32 = 1000;
    let mut arena = Bump::new();
    let mut best = f64::INFINITY;
    for _ in 0..500 {
        arena.reset();
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let env = Env::new(&arena);
            black_box(expr.eval(black_box(root.as_raw()), &env)).expect("a value");
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    best
}
