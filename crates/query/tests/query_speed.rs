//! How long a filter, a projection and a sort key take: `cargo test --release -p sheaf-query --test
//! query_speed -- --ignored --nocapture`.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "measures time")]

use std::hint::black_box;
use std::time::Instant;

use sheaf_bson::{Bump, DocBuf, RawDoc, doc};
use sheaf_expr::{Env, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::sort::SortPattern;

fn sample() -> DocBuf {
    doc! {
        "_id": 123456, "name": "a fairly common name", "age": 42, "email": "someone@example.org", "active": true,
        "tags": ["red", "green", "blue", "yellow"], "address": { "street": "Main Street 5", "city": "Springfield", "zip": "12345" },
        "scores": [{ "k": 1, "v": 2.5 }, { "k": 2, "v": 3.5 }, { "k": 3, "v": 9.5 }], "last": 99i64
    }
}

fn time(name: &str, mut run: impl FnMut()) {
    let rounds = 1_000_000;
    let start = Instant::now();
    (0..rounds).for_each(|_| run());
    println!("{name:40} {:6.1} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds));
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let doc = sample();
    let raw = doc.as_raw();
    for filter in [
        doc! { "age": 42 },
        doc! { "last": { "$gt": 5 } },
        doc! { "address.city": "Springfield" },
        doc! { "tags": "yellow" },
        doc! { "scores.v": { "$gt": 9 } },
        doc! { "scores": { "$elemMatch": { "k": 3, "v": { "$lt": 10 } } } },
        doc! { "name": { "$regex": "common n[aou]me" } },
        doc! { "age": { "$in": [1, 2, 3, 4, 5, 6, 7, 42] } },
        doc! { "age": { "$gte": 40, "$lt": 50 }, "active": true },
    ] {
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap();
        time(&format!("{filter:?}").chars().take(40).collect::<String>(), || {
            black_box(matcher.matches_doc(black_box(raw)).unwrap());
        });
    }
    for spec in [doc! { "name": 1, "age": 1 }, doc! { "tags": 0 }, doc! { "address.city": 1 }] {
        let projection = Projection::parse(spec.as_raw(), Mode::Find, &mut ParseCx::new()).unwrap();
        let mut out = Vec::with_capacity(1000);
        time(&format!("{spec:?}"), || {
            out.clear();
            let arena = Bump::new();
            let mut writer = sheaf_bson::DocWriter::new(&mut out);
            projection.apply(black_box(raw), &Env::new(&arena), None, &mut writer).unwrap();
        });
    }
    let sort = SortPattern::parse(doc! { "last": 1, "name": -1 }.as_raw()).unwrap();
    let mut key = Vec::new();
    time("sort key", || {
        key.clear();
        sort.put_key_bytes(black_box(raw), RawDoc::EMPTY, &mut key).unwrap();
    });
}
