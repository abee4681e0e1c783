//! Tables: projection, document, result; and projections that are refused.

use sheaf_bson::{Bump, DocBuf, Value, doc};
use sheaf_expr::{Env, ParseCx};

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
