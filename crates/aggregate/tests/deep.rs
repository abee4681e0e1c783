//! Long pipelines within long pipelines run, and end, on small stacks.
#![allow(missing_docs)]

mod nowhere;

use nowhere::{go_on, nowhere};
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, Value, doc};
use sheaf_errors::{Code, Result};
use sheaf_expr::ParseCx;
use sheaf_rows::{Cx, Limits, pull};

fn run(stages: &ArrayBuf) -> Result<usize> {
    let mut cx = ParseCx::new();
    let pipeline = Pipeline::parse(stages.as_raw(), &Namespace::new("t", ""), &mut cx)?;
    cx.finish()?;
    let mut cx = Cx::new(Limits::default(), &go_on);
    let mut run = pipeline.open_own(&nowhere());
    let mut count = 0;
    while pull(&mut run, &mut cx)? {
        count += 1;
    }
    Ok(count)
}

/// Runs on a stack as a server's threads have it.
fn on_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap()
}

#[test]
fn unions_within_unions_of_long_pipelines() {
    let counted = on_small_stack(|| {
        let rest = |out: &mut sheaf_bson::ArrayWriter<'_, Vec<u8>>| {
            (0..998).for_each(|_| _ = out.document().append("$redact", "$$KEEP"));
        };
        let first = |out: &mut sheaf_bson::ArrayWriter<'_, Vec<u8>>| {
            let one = doc! { "a": 1 };
            out.document().array("$documents").push(&one);
        };
        let mut stages = ArrayBuf::build(|out| {
            first(out);
            rest(out);
        });
        for _ in 0..10 {
            stages = ArrayBuf::build(|out| {
                first(out);
                out.document().document("$unionWith").append("pipeline", Value::Array(stages.as_raw()));
                rest(out);
            });
        }
        run(&stages)
    });
    assert_eq!(counted.unwrap(), 11);
}

/// Each stage nests the documents of the one before, beside something flat.
#[test]
fn documents_do_not_get_deeper_from_stage_to_stage() {
    for name in ["$replaceWith", "$addFields", "$project", "$group", "$facet"] {
        let ended = on_small_stack(move || {
            let stages = ArrayBuf::build(|out| {
                out.document().array("$documents").push(&doc! { "flat": ["x"], "a": 1 });
                (0..900).for_each(|_| match name {
                    "$group" => {
                        let mut stage = out.document();
                        let mut group = stage.document(name);
                        group.append("_id", Value::Null);
                        group.document("a").append("$push", "$$ROOT");
                    }
                    "$facet" => {
                        out.document().document(name).array("a");
                    }
                    _ => {
                        let nest = doc! { "first": { "b": 1 }, "a": "$$ROOT" };
                        out.document().append(name, &nest);
                    }
                });
            });
            run(&stages)
        });
        assert_eq!(ended.unwrap_err().code(), Code::OVERFLOW, "{name}");
    }
}

#[test]
fn a_view_and_what_runs_on_it_are_no_longer_than_a_pipeline() {
    let long = ArrayBuf::build(|out| (0..600).for_each(|_| _ = out.document().append("$redact", "$$KEEP")));
    let parse =
        || Pipeline::parse_view(long.as_raw(), &Namespace::new("t", "c"), &mut ParseCx::new()).unwrap();
    assert_eq!(parse().followed_by(&parse()).unwrap_err().code().0, 7_749_501);
    assert!(parse().followed_by(&Pipeline::default()).is_ok());
}
