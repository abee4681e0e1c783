//! What an update of one field in a large document costs beside copying the document. Run by hand:
//! `cargo test -p sheaf-query --release --test update_speed -- --ignored --nocapture`.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "measures time")]

use std::hint::black_box;
use std::time::Instant;

use sheaf_bson::{Bump, DocBuf, Timestamp, doc};
use sheaf_expr::ParseCx;
use sheaf_query::diff::diff;
use sheaf_query::update::{ApplyCx, Update};

#[test]
#[ignore = "a measurement"]
fn one_field_of_a_large_document() {
    let text = "x".repeat(1000);
    let mut document = DocBuf::new().with("_id", 1).with("n", 1);
    for field in 0..16 {
        document.append(&format!("field{field}"), &text);
    }
    document.append("last", 1);
    let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
    let mut arena = Bump::new();
    let rounds = 100_000;
    let per = |start: Instant| start.elapsed().as_nanos() as f64 / f64::from(rounds);
    let start = Instant::now();
    for _ in 0..rounds {
        black_box(document.clone());
    }
    println!("copy of {} bytes: {:.0} ns", document.as_bytes().len(), per(start));
    for spec in
        [doc! { "$inc": { "n": 1 } }, doc! { "$set": { "last": 2 } }, doc! { "$set": { "new.field": 2 } }]
    {
        let update = Update::parse((&spec).into(), &[], &mut ParseCx::new()).unwrap();
        let start = Instant::now();
        for _ in 0..rounds {
            arena.reset();
            black_box(update.apply_with(document.as_raw(), &cx, &arena).unwrap());
        }
        println!("{spec:?}: {:.0} ns", per(start));
        let new = update.apply(document.as_raw(), &cx).unwrap().unwrap();
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(diff(document.as_raw(), new.as_raw()));
        }
        println!("    its delta: {:.0} ns", per(start));
    }
}
