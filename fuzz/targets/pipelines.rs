//! Any pipeline parses or does not; one that does runs to an end or an error, its documents are valid, and
//! optimising it makes no document more or less.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{DocBuf, Value, validate};
use sheaf_expr::ParseCx;
use sheaf_fuzz::generate::{Choices, DEPTH};
use sheaf_fuzz::memory::Memory;
use sheaf_rows::{Cx, Limits, Operator, pull};

/// Documents that are pulled at most.
const PULLS: usize = 200;

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let documents: Vec<DocBuf> = (0..3)
        .filter_map(|_| match choices.stored(DEPTH).as_value() {
            Value::Document(doc) => Some(DocBuf::from(doc)),
            _ => None,
        })
        .collect();
    while !choices.is_over() {
        choices.refill();
        let pipeline = choices.pipeline(DEPTH);
        let Value::Array(stages) = pipeline.as_value() else { continue };
        let mut cx = ParseCx::new().with_now(0).with_seed(1);
        for namespace in [Namespace::new("t", "c"), Namespace::new("admin", "")] {
            let Ok(parsed) = Pipeline::parse(stages, &namespace, &mut cx) else { continue };
            if cx.finish().is_ok() {
                run(&parsed, &documents);
            }
        }
        let _ = Pipeline::parse_view(stages, &Namespace::new("t", "c"), &mut cx);
    }
});

fn run(pipeline: &Pipeline, documents: &[DocBuf]) {
    let head = pipeline.head();
    assert!(head.stages >= head.stages_of_sort && head.stages_of_sort >= head.stages_of_match);
    let _ = pipeline.dependencies_from(0);
    pipeline.foreign_namespaces(&mut Vec::new());
    let database = Memory::new(documents.to_vec());
    let mut source = pipeline.open(database.input(), &database.shared());
    let limits = Limits { memory_bytes: 1 << 20, allow_disk_use: false, now_millis: 0 };
    let go_on = || Ok(());
    let mut cx = Cx::new(limits, &go_on);
    for _ in 0..PULLS {
        match pull(&mut source, &mut cx) {
            Ok(true) => {
                let document = source.row().document();
                assert_eq!(validate(document.as_bytes(), 1000), Ok(document.as_bytes().len()));
            }
            Ok(false) => {
                assert!(matches!(pull(&mut source, &mut cx), Ok(false)), "a source that ended goes on");
                return;
            }
            Err(_) => return,
        }
    }
}
