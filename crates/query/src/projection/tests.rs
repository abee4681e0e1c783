//! Tables: projection, document, result; and projections that are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sheaf_bson::{Bump, DocBuf, Value, doc};
use sheaf_expr::{Env, ParseCx};
use sheaf_meter::{Meter, Process};

use super::*;
use crate::matcher::Matcher;

fn project(projection: &Projection, doc: &DocBuf, query: &DocBuf) -> Result<DocBuf> {
    let matcher = Matcher::parse(query.as_raw(), &mut ParseCx::new())?;
    let arena = Bump::new();
    let env = Env::new(&arena);
    let details = matcher.matches_with_details(doc.as_raw(), &env)?;
    let projected = projection.apply_in(doc.as_raw(), &env, details)?;
    sheaf_bson::validate(projected.as_bytes(), 100)?;
    Ok(projected.into())
}

fn check(mode: Mode, table: &[(DocBuf, DocBuf, DocBuf)]) {
    for (spec, doc, expected) in table {
        let projection = Projection::parse(spec.as_raw(), mode, &mut ParseCx::new())
            .unwrap_or_else(|e| panic!("{spec:?}: {e:?}"));
        assert_eq!(project(&projection, doc, &doc! {}).unwrap(), *expected, "{spec:?} on {doc:?}");
    }
}

#[test]
fn inclusion_and_exclusion() {
    let doc =
        doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 }, "e": [{ "c": 5, "d": 6 }, 7, [{ "c": 8 }, 9]] };
    let table = [
        (doc! {}, doc.clone()),
        (doc! { "a": 1 }, doc! { "_id": 1, "a": 2 }),
        (doc! { "b": true, "a": 1.5 }, doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 } }),
        (doc! { "a": 1, "_id": 0 }, doc! { "a": 2 }),
        (doc! { "_id": 1 }, doc! { "_id": 1 }),
        (doc! { "nothing": 1 }, doc! { "_id": 1 }),
        (doc! { "b.c": 1 }, doc! { "_id": 1, "b": { "c": 3 } }),
        (doc! { "b": { "c": 1 } }, doc! { "_id": 1, "b": { "c": 3 } }),
        (doc! { "b.x": 1 }, doc! { "_id": 1, "b": {} }),
        (doc! { "a.x": 1 }, doc! { "_id": 1 }),
        (doc! { "e.c": 1 }, doc! { "_id": 1, "e": [{ "c": 5 }, [{ "c": 8 }]] }),
        (
            doc! { "_id": 0 },
            doc! { "a": 2, "b": { "c": 3, "d": 4 }, "e": [{ "c": 5, "d": 6 }, 7, [{ "c": 8 }, 9]] },
        ),
        (doc! { "e": 0, "b.c": 0 }, doc! { "_id": 1, "a": 2, "b": { "d": 4 } }),
        (doc! { "e.c": 0, "a": 0, "b": 0, "_id": 1 }, doc! { "_id": 1, "e": [{ "d": 6 }, 7, [{}, 9]] }),
        (doc! { "a.x": 0, "b": 0, "e": 0 }, doc! { "_id": 1, "a": 2 }),
    ];
    let table: Vec<_> = table.into_iter().map(|(spec, expected)| (spec, doc.clone(), expected)).collect();
    check(Mode::Find, &table);
    check(Mode::Aggregate, &table[1..]);
}

#[test]
fn computed_fields_follow_in_the_order_of_the_specification() {
    let doc = doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 }, "e": [{ "c": 5 }, 7], "s": "x" };
    let table = [
        (doc! { "z": "$a", "a": 1 }, doc! { "_id": 1, "a": 2, "z": 2 }),
        (doc! { "a": "$b.c", "_id": 0 }, doc! { "a": 3 }),
        (doc! { "z": "text", "_id": 0 }, doc! { "z": "text" }),
        (doc! { "z": "$missing", "_id": 0 }, doc! {}),
        (doc! { "_id": "$a", "s": 1 }, doc! { "s": "x", "_id": 2 }),
        (doc! { "b.n": "$a", "b.c": 1, "_id": 0 }, doc! { "b": { "c": 3, "n": 2 } }),
        (doc! { "e.n": "$a", "_id": 0 }, doc! { "e": [{ "n": 2 }, { "n": 2 }] }),
        (doc! { "a.n": "$s", "s": 1, "_id": 0 }, doc! { "a": { "n": "x" }, "s": "x" }),
        (doc! { "q.r.t": "$s", "_id": 0 }, doc! { "q": { "r": { "t": "x" } } }),
        (doc! { "z": ["$a", "$missing"], "_id": 0 }, doc! { "z": [2, ()] }),
    ];
    let table: Vec<_> = table.into_iter().map(|(spec, expected)| (spec, doc.clone(), expected)).collect();
    check(Mode::Find, &table);
    check(Mode::Aggregate, &table);
}

#[test]
fn finds_slice_and_elem_match() {
    let doc =
        doc! { "_id": 1, "a": [1, 2, 3, 4], "b": 2, "c": [{ "x": [5, 6] }, { "x": 7 }, [{ "x": [8, 9] }]] };
    let without_c = |a: DocBuf| {
        let array = a.as_raw().get("a").unwrap();
        doc! { "_id": 1, "a": array }
    };
    let slices = [
        (doc! { "a": { "$slice": 2 } }, doc! { "a": [1, 2] }),
        (doc! { "a": { "$slice": -1 } }, doc! { "a": [4] }),
        (doc! { "a": { "$slice": 0 } }, doc! { "a": [] }),
        (doc! { "a": { "$slice": [1, 2] } }, doc! { "a": [2, 3] }),
        (doc! { "a": { "$slice": [-3, 2] } }, doc! { "a": [2, 3] }),
        (doc! { "a": { "$slice": [9, 2] } }, doc! { "a": [] }),
        (doc! { "a": { "$slice": [-9, 1] } }, doc! { "a": [1] }),
    ];
    for (slice, expected) in slices {
        let spec = slice.with("b", 0).with("c", 0);
        check(Mode::Find, &[(spec, doc.clone(), without_c(expected))]);
    }
    check(
        Mode::Find,
        &[
            (doc! { "a": { "$slice": 1 } }, doc! { "a": [1, 2], "b": 3 }, doc! { "a": [1], "b": 3 }),
            (doc! { "a": { "$slice": 1 }, "x": 1 }, doc! { "a": [1, 2], "b": 3 }, doc! { "a": [1] }),
            (doc! { "b": { "$slice": 1 } }, doc! { "b": 3 }, doc! { "b": 3 }),
            (
                doc! { "c.x": { "$slice": 1 } },
                doc.clone(),
                doc! { "_id": 1, "a": [1, 2, 3, 4], "b": 2, "c": [{ "x": [5] }, { "x": 7 }, [{ "x": [8] }]] },
            ),
            (doc! { "c": { "$elemMatch": { "x": 7 } } }, doc.clone(), doc! { "_id": 1, "c": [{ "x": 7 }] }),
            (
                doc! { "a": { "$elemMatch": { "$gt": 2 } }, "b": 1 },
                doc.clone(),
                doc! { "_id": 1, "b": 2, "a": [3] },
            ),
            (doc! { "a": { "$elemMatch": { "$gt": 9 } } }, doc.clone(), doc! { "_id": 1 }),
            (doc! { "b": { "$elemMatch": { "$gt": 1 } } }, doc.clone(), doc! { "_id": 1 }),
        ],
    );
}

#[test]
fn positional() {
    let table: &[(DocBuf, DocBuf, DocBuf, Result<DocBuf, i32>)] = &[
        (doc! { "a.$": 1 }, doc! { "a": { "$gt": 1 } }, doc! { "a": [1, 2, 3] }, Ok(doc! { "a": [2] })),
        (
            doc! { "a.$": 1 },
            doc! { "a.b": 5 },
            doc! { "a": [{ "b": 4 }, { "b": 5 }] },
            Ok(doc! { "a": [{ "b": 5 }] }),
        ),
        (
            doc! { "a.b.$": 1 },
            doc! { "a.b": 5 },
            doc! { "a": [{ "b": 4 }, { "b": 5, "c": 1 }] },
            Ok(doc! { "a": [{ "b": 5 }] }),
        ),
        (doc! { "b.$": 1 }, doc! { "a": 2 }, doc! { "a": [1, 2], "b": [3, 4] }, Ok(doc! { "b": [4] })),
        (doc! { "b.$": 1 }, doc! { "a": 2 }, doc! { "a": [1, 2], "b": [3] }, Err(51247)),
        (doc! { "b.$": 1 }, doc! { "a": 2 }, doc! { "a": [1, 2], "b": 3 }, Ok(doc! { "b": 3 })),
        (doc! { "a.$": 1 }, doc! { "b": 1 }, doc! { "a": [1], "b": 1 }, Err(51246)),
        (
            doc! { "x.a.$": 1 },
            doc! { "x.a": 2 },
            doc! { "x": { "a": [1, 2] } },
            Ok(doc! { "x": { "a": [2] } }),
        ),
    ];
    for (spec, query, doc, expected) in table {
        let projection = Projection::parse(spec.as_raw(), Mode::Find, &mut ParseCx::new()).unwrap();
        assert!(projection.needs_match_details());
        let got = project(&projection, doc, query).map_err(|e| e.code().0);
        assert_eq!(got, *expected, "{spec:?} {query:?}");
    }
}

#[test]
fn add_fields() {
    let doc = doc! { "_id": 1, "a": 2, "b": { "c": 3 }, "e": [{ "c": 5 }, 7, []] };
    let table = [
        (
            doc! { "z": 9, "a": "$b.c" },
            doc! { "_id": 1, "a": 3, "b": { "c": 3 }, "e": [{ "c": 5 }, 7, []], "z": 9 },
        ),
        (doc! { "b.d": 4, "e": 1 }, doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 }, "e": 1 }),
        (doc! { "b": { "d": 4 }, "e": "$$REMOVE" }, doc! { "_id": 1, "a": 2, "b": { "c": 3, "d": 4 } }),
        (doc! { "a.x": 4, "e": 1, "b": 1 }, doc! { "_id": 1, "a": { "x": 4 }, "b": 1, "e": 1 }),
        (doc! { "e.c": 0, "b": 1 }, doc! { "_id": 1, "a": 2, "b": 1, "e": [{ "c": 0 }, { "c": 0 }, []] }),
        (doc! { "n.m": "$a", "b": 1, "e": 1 }, doc! { "_id": 1, "a": 2, "b": 1, "e": 1, "n": { "m": 2 } }),
    ];
    for (spec, expected) in table {
        let projection = Projection::parse_add_fields(spec.as_raw(), &mut ParseCx::new()).unwrap();
        assert_eq!(project(&projection, &doc, &doc! {}).unwrap(), expected, "{spec:?}");
    }
    let refused: &[(DocBuf, i32)] = &[
        (doc! { "a": { "b.c": 1 } }, 40183),
        (doc! { "a.b": 1, "a": 2 }, 40176),
        (doc! { "a": 1, "a.b": 2 }, 40176),
        (doc! { "a": { "$add": [1, 2], "b": 1 } }, 40181),
        (doc! { "$a": 1 }, 16410),
    ];
    for (spec, code) in refused {
        let error = Projection::parse_add_fields(spec.as_raw(), &mut ParseCx::new()).unwrap_err();
        assert_eq!(error.code().0, *code, "{spec:?}");
    }
}

#[test]
fn refused() {
    use Mode::{Aggregate, Find};
    let table: &[(Mode, DocBuf, i32, &str)] = &[
        (Aggregate, doc! {}, 51272, "projection specification must have at least one field"),
        (Find, doc! { "a": 1, "b": 0 }, 31254, "Cannot do exclusion on field b in inclusion projection"),
        (Find, doc! { "a": 0, "b": 1 }, 31253, "Cannot do inclusion on field b in exclusion projection"),
        (Find, doc! { "a": 1, "a.b": 1 }, 31249, "Path collision at a.b remaining portion b"),
        (Find, doc! { "a.b": 1, "a": 1 }, 31250, "Path collision at a"),
        (Find, doc! { "a": 1, "a": 1 }, 31250, "Path collision at a"),
        (
            Find,
            doc! { "a": {} },
            51270,
            "An empty sub-projection is not a valid value. Found empty object at path a",
        ),
        (Find, doc! { "a": { "$foo": 1 } }, 31325, "Unknown expression $foo"),
        (Aggregate, doc! { "a": { "$elemMatch": {} } }, 168, "Unrecognized expression '$elemMatch'"),
        (
            Find,
            doc! { "$a": 1 },
            16410,
            "FieldPath field names may not start with '$'. Consider using $getField or $setField.",
        ),
        (Find, doc! { "": 1 }, 40352, "FieldPath cannot be constructed with empty string"),
        (Find, doc! { "a": { "": 1 } }, 40352, "FieldPath cannot be constructed with empty string"),
        (Find, doc! { "a.": 1 }, 40353, "FieldPath must not end with a '.'."),
        (Find, doc! { "a..b": 1 }, 15998, "FieldPath field names may not be empty strings."),
        (
            Find,
            doc! { "a": 0, "b": "$x" },
            31310,
            "Cannot use an expression b: \"$x\" in an exclusion projection",
        ),
        (
            Find,
            doc! { "a": { "$elemMatch": 1 } },
            31274,
            "elemMatch: Invalid argument, object required, but got int",
        ),
        (
            Find,
            doc! { "a.b": { "$elemMatch": {} } },
            31275,
            "Cannot use $elemMatch projection on a nested field.",
        ),
        (
            Find,
            doc! { "a.$": 1, "b.$": 1 },
            31276,
            "Cannot specify more than one positional projection per query.",
        ),
        (
            Find,
            doc! { "a.$": 1, "b": { "$elemMatch": {} } },
            31255,
            "Cannot specify positional operator and $elemMatch.",
        ),
        (
            Find,
            doc! { "b": { "$elemMatch": {} }, "a.$": 1 },
            31256,
            "Cannot specify positional operator and $elemMatch.",
        ),
        (Find, doc! { "a.$": 0 }, 31395, "positional projection cannot be used with exclusion"),
        (Find, doc! { "a.$": "x" }, 31308, "positional projection cannot be used with a literal"),
        (Aggregate, doc! { "a.$": 1 }, 31324, "Cannot use positional projection in aggregation projection"),
    ];
    for (mode, spec, code, message) in table {
        match Projection::parse(spec.as_raw(), *mode, &mut ParseCx::new()) {
            Ok(projection) => panic!("{spec:?} was taken as {projection:?}"),
            Err(error) => assert_eq!((error.code().0, error.message()), (*code, *message), "{spec:?}"),
        }
    }
    let middle = Projection::parse(doc! { "a.$.b": 1 }.as_raw(), Find, &mut ParseCx::new()).unwrap_err();
    assert_eq!(middle.code().0, 31394);
}

#[test]
fn what_planners_ask() {
    let parse = |spec: DocBuf| Projection::parse(spec.as_raw(), Mode::Find, &mut ParseCx::new()).unwrap();
    assert_eq!(
        parse(doc! { "a": 1, "b.c": 1, "_id": 0 }).included_paths(),
        Some(vec!["a".into(), "b.c".into()])
    );
    assert_eq!(parse(doc! { "a": 1 }).included_paths(), Some(vec!["_id".into(), "a".into()]));
    assert_eq!(parse(doc! { "a": 0 }).included_paths(), None);
    assert_eq!(parse(doc! { "a": "$b" }).included_paths(), None);
    assert!(parse(doc! {}).is_identity());
    let mut deps = Deps::new();
    parse(doc! { "a": "$b.c", "d": 1, "_id": 0 }).dependencies(&mut deps);
    assert_eq!(deps.paths.into_iter().collect::<Vec<_>>(), ["b.c", "d"]);
    assert!(!deps.whole_document);
    assert_eq!(parse(doc! { "a": 1, "_id": 0 }).to_doc(), doc! { "a": true, "_id": false });
    assert_eq!(parse(doc! { "a": Value::Int64(0) }).to_doc(), doc! { "a": false });
}

/// How often the meter asks its source while `work` runs: what the work costs.
fn cost(work: impl FnOnce()) -> usize {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let process = Process::new(1 << 30, 1 << 30);
    let source = move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let _entered = sheaf_meter::enter(Meter::new(&process, Arc::new(source)));
    work();
    asked.load(Ordering::Relaxed)
}

/// A specification of so many names, each with its value, and a document that has them all.
fn wide(count: usize, path: impl Fn(usize) -> String, value: Value<'_>) -> (DocBuf, DocBuf) {
    let spec = DocBuf::build(|out| (0..count).for_each(|n| _ = out.append(&path(n), value)));
    let doc = DocBuf::build(|out| (0..count).for_each(|n| _ = out.append(&format!("f{n}"), n as i32)));
    (spec, doc)
}

#[test]
fn few_and_many_names_are_one() {
    for count in [1, 15, 16, 17, 18, 40, 3000] {
        let name = |n: usize| format!("f{n}");
        let (spec, doc) = wide(count, name, Value::Int32(1));
        let whole = doc! { "_id": 7, "other": 8 }.with("inside", &doc);
        let flat = DocBuf::build(|out| {
            out.append("_id", 7).append("other", 8).append_all(doc.as_raw());
        });
        let included = DocBuf::build(|out| {
            out.append("_id", 7).append_all(doc.as_raw());
        });
        check(Mode::Find, &[(spec.clone(), flat.clone(), included)]);
        let below = doc! { "_id": 0 }.with("inside", &spec);
        check(Mode::Aggregate, &[(below, whole.clone(), DocBuf::new().with("inside", &doc))]);
        let (excluded, _) = wide(count, |n| format!("inside.f{n}"), Value::Bool(false));
        let empty = doc! { "_id": 7, "other": 8 }.with("inside", &DocBuf::new());
        check(Mode::Find, &[(excluded, whole.clone(), empty)]);
        let set = DocBuf::new().with("inside", &spec);
        let set = Projection::parse_add_fields(set.as_raw(), &mut ParseCx::new()).unwrap();
        let ones = doc! { "_id": 7, "other": 8 }.with("inside", &spec);
        assert_eq!(project(&set, &whole, &doc! {}).unwrap(), ones);
        assert_eq!(project(&set, &doc! { "_id": 7, "other": 8 }, &doc! {}).unwrap(), ones);
        // A name that is there twice is found wherever it stands.
        for again in ["f0".to_owned(), format!("f{}", count - 1), format!("f{}.x", count / 2)] {
            let twice = spec.clone().with(&again, 1);
            let error = Projection::parse(twice.as_raw(), Mode::Find, &mut ParseCx::new()).unwrap_err();
            assert!(error.message().starts_with("Path collision"), "{error}");
            let error = Projection::parse_add_fields(twice.as_raw(), &mut ParseCx::new()).unwrap_err();
            let with = again.trim_end_matches(".x");
            assert!(error.message().ends_with(&format!("'{again}' and '{with}'")), "{error}");
        }
        let above = DocBuf::new().with("a.f0", 1).with("inside", &spec).with("inside", 1);
        let error = Projection::parse_add_fields(above.as_raw(), &mut ParseCx::new()).unwrap_err();
        assert!(error.message().ends_with("'inside' and 'inside.f0'"), "{error}");
    }
}

#[test]
fn each_name_costs_the_same_however_many_there_are() {
    type Path = fn(usize) -> String;
    let shapes: [(&str, Path); 2] = [("f", |n| format!("f{n}")), ("p", |n| format!("p.f{n}"))];
    for (what, path) in shapes {
        for value in [Value::Int32(1), Value::Int32(0), Value::String("x")] {
            let of = |count: usize| {
                let (spec, doc) = wide(count, path, value);
                let doc = if what == "p" { DocBuf::new().with("p", &doc) } else { doc };
                let parse = |add: bool| {
                    let mut cx = ParseCx::new();
                    let parsed = if add {
                        Projection::parse_add_fields(spec.as_raw(), &mut cx)
                    } else {
                        Projection::parse(spec.as_raw(), Mode::Find, &mut cx)
                    };
                    parsed.unwrap()
                };
                cost(|| {
                    for add in [false, true] {
                        project(&parse(add), &doc, &doc! {}).unwrap();
                    }
                })
            };
            let (few, many) = (of(4_000), of(32_000));
            assert!(few > 0 && many <= 12 * few, "{what} {value:?}: {few} for 4000, {many} for 32000");
        }
    }
}
