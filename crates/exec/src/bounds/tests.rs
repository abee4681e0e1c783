//! The bounds of conditions, as explain prints them.

use sheaf_bson::{DocBuf, Value, array, doc};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::{MatchExpr, Matcher};

use super::predicate::{FieldTraits, negated_bounds, test_bounds};
use super::{Intervals, Tightness};

fn bounds_with(filter: &DocBuf, field: FieldTraits) -> String {
    let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap();
    let found = match matcher.root() {
        MatchExpr::Leaf(leaf) => test_bounds(&leaf.test, field),
        MatchExpr::Not(inner) => match &**inner {
            MatchExpr::Leaf(leaf) => negated_bounds(&leaf.test, field),
            other => panic!("{other:?}"),
        },
        MatchExpr::And(parts) => {
            let parts = parts.iter().map(|part| match part {
                MatchExpr::Leaf(leaf) => test_bounds(&leaf.test, field),
                other => panic!("{other:?}"),
            });
            parts
                .reduce(|a, b| {
                    let (a, b) = (a?, b?);
                    Some((a.0.intersect(&b.0), a.1.max(b.1)))
                })
                .flatten()
        }
        other => panic!("{other:?}"),
    };
    match found {
        None => "none".into(),
        Some((intervals, tight)) => {
            let mark = match tight {
                Tightness::Exact => "",
                Tightness::Covered => " ~key",
                Tightness::Fetch => " ~fetch",
            };
            format!("{intervals:?}{mark}")
        }
    }
}

fn check(table: &[(DocBuf, &str)], field: FieldTraits) {
    for (filter, expected) in table {
        assert_eq!(bounds_with(filter, field), *expected, "{filter:?}");
    }
}

#[test]
fn plain_fields() {
    let regex = |pattern| sheaf_bson::Regex { pattern, options: "" };
    check(
        &[
            (doc! { "a": 5 }, "[5, 5]"),
            (doc! { "a": "x" }, "[\"x\", \"x\"]"),
            (doc! { "a": { "$gt": 5 } }, "(5, inf.0]"),
            (doc! { "a": { "$gte": 5.5 } }, "[5.5, inf.0]"),
            (doc! { "a": { "$lt": 5 } }, "[-inf.0, 5)"),
            (doc! { "a": { "$lte": 5i64 } }, "[-inf.0, 5]"),
            (doc! { "a": { "$gte": 1, "$lt": 5 } }, "[1, 5)"),
            (doc! { "a": { "$gt": 5, "$lt": 1 } }, ""),
            (doc! { "a": { "$gt": "x" } }, "(\"x\", {})"),
            (doc! { "a": { "$lt": "x" } }, "[\"\", \"x\")"),
            (doc! { "a": { "$gt": true } }, ""),
            (doc! { "a": { "$lte": true } }, "[false, true]"),
            (doc! { "a": { "$lt": f64::NAN } }, ""),
            (doc! { "a": { "$gte": f64::NAN } }, "[nan.0, nan.0]"),
            (doc! { "a": () }, "[undefined, undefined], [null, null] ~fetch"),
            (doc! { "a": { "$gt": () } }, ""),
            (doc! { "a": { "$in": [3, 1, 2] } }, "[1, 1], [2, 2], [3, 3]"),
            (doc! { "a": { "$exists": true } }, "[MinKey, MaxKey] ~fetch"),
            (doc! { "a": { "$exists": false } }, "[null, null] ~fetch"),
            (doc! { "a": { "$ne": 3 } }, "[MinKey, 3), (3, MaxKey]"),
            (doc! { "a": { "$ne": () } }, "[MinKey, null), (null, MaxKey]"),
            (doc! { "a": { "$nin": [1, 2] } }, "[MinKey, 1), (1, 2), (2, MaxKey]"),
            (doc! { "a": { "$not": { "$gt": 5 } } }, "[MinKey, 5], (inf.0, MaxKey]"),
            (doc! { "a": { "$type": "number" } }, "[nan.0, inf.0]"),
            (doc! { "a": { "$type": "string" } }, "[\"\", {}) ~fetch"),
            (
                doc! { "a": { "$type": "date" } },
                "[new Date(-9223372036854775808), new Date(9223372036854775807)]",
            ),
            (doc! { "a": { "$mod": [4, 0] } }, "[nan.0, inf.0] ~key"),
            (doc! { "a": regex("^ab") }, "[\"ab\", \"ac\"), [/^ab/, /^ab/]"),
            (doc! { "a": regex("ab") }, "[\"\", {}), [/ab/, /ab/] ~key"),
            (doc! { "a": { "$size": 2 } }, "none"),
            (doc! { "a": &array![1, 2] }, "[1, 1], [[ 1, 2 ], [ 1, 2 ]] ~fetch"),
            (doc! { "a": { "$elemMatch": { "$gte": 1, "$lt": 5 } } }, "[1, 5) ~fetch"),
            (doc! { "a": { "$elemMatch": { "$elemMatch": { "$gte": 1 } } } }, "none"),
        ],
        FieldTraits::default(),
    );
}

#[test]
fn fields_at_positions() {
    let behind_position = FieldTraits { numeric_path: true, ..FieldTraits::default() };
    check(
        &[
            (doc! { "a.0.b": { "$gt": 5 } }, "(5, inf.0] ~fetch"),
            (doc! { "a.0.b": { "$ne": 3 } }, "[MinKey, 3), (3, MaxKey] ~fetch"),
            // A number at the position has the key null, and no field that could be null.
            (doc! { "a.0.b": { "$ne": () } }, "none"),
            (doc! { "a.0.b": { "$nin": [1, ()] } }, "none"),
            (doc! { "a.0.b": { "$elemMatch": { "$gt": 5 } } }, "(5, inf.0] ~fetch"),
            // A document of the array lacks the field `0`, whatever is at the position.
            (doc! { "a.0.b": () }, "none"),
            (doc! { "a.0.b": { "$in": [1, ()] } }, "none"),
            (doc! { "a.0.b": { "$gt": Value::MinKey } }, "[MinKey, MaxKey] ~fetch"),
            (doc! { "a.0.b": { "$not": { "$gt": Value::MinKey } } }, "none"),
        ],
        behind_position,
    );
    let at_position = FieldTraits { at_position: true, ..behind_position };
    check(
        &[
            (doc! { "a.0": { "$gt": 5 } }, "(5, inf.0] ~fetch"),
            (doc! { "a.0": { "$elemMatch": { "$gt": 5 } } }, "none"),
        ],
        at_position,
    );
}

#[test]
fn fields_with_arrays_and_sparse_ones() {
    let multikey = FieldTraits { multikey: true, ..FieldTraits::default() };
    check(
        &[
            (doc! { "a": 5 }, "[5, 5]"),
            (doc! { "a": { "$ne": 3 } }, "[MinKey, 3), (3, MaxKey] ~fetch"),
            (doc! { "a": { "$mod": [4, 0] } }, "[nan.0, inf.0] ~fetch"),
        ],
        multikey,
    );
    let sparse = FieldTraits { sparse: true, ..FieldTraits::default() };
    check(
        &[
            (doc! { "a": () }, "none"),
            (doc! { "a": { "$ne": 3 } }, "none"),
            // Beside other fields of the index it may be missing.
            (doc! { "a": { "$exists": true } }, "[MinKey, MaxKey] ~fetch"),
            (doc! { "a": { "$exists": false } }, "none"),
            (doc! { "a": { "$ne": () } }, "[MinKey, null), (null, MaxKey]"),
        ],
        sparse,
    );
    let alone = FieldTraits { only_with_it: true, ..sparse };
    check(&[(doc! { "a": { "$exists": true } }, "[MinKey, MaxKey]")], alone);
    let hashed = FieldTraits { hashed: true, ..FieldTraits::default() };
    check(
        &[
            (doc! { "a": 5 }, "[5, 5] ~fetch"),
            (doc! { "a": { "$gt": 5 } }, "none"),
            (doc! { "a": { "$in": [1, 2] } }, "[1, 1], [2, 2] ~fetch"),
            (doc! { "a": () }, "[null, null] ~fetch"),
        ],
        hashed,
    );
    check(
        &[
            (doc! { "a": 5 }, "[5, 5] ~fetch"),
            (doc! { "a": () }, "none"),
            (doc! { "a": { "$in": [1, ()] } }, "none"),
        ],
        FieldTraits { sparse: true, ..hashed },
    );
}

#[test]
fn algebra_of_intervals() {
    let range = |low: i32, high: i32| Intervals::range(low.into(), true, high.into(), false);
    let two = range(1, 3).union(range(5, 7));
    assert_eq!(format!("{two:?}"), "[1, 3), [5, 7)");
    assert_eq!(format!("{:?}", two.clone().union(range(3, 5))), "[1, 7)");
    assert_eq!(format!("{:?}", two.intersect(&range(2, 6))), "[2, 3), [5, 6)");
    assert_eq!(Intervals::of_all(Vec::new()), None);
    for count in 1..9 {
        let sets: Vec<Intervals> = (0..count).map(|at| Intervals::point(at.into()).complement()).collect();
        let one_by_one = sets.iter().skip(1).fold(sets[0].clone(), |all, set| all.intersect(set));
        assert_eq!(one_by_one.len(), count as usize + 1);
        assert_eq!(Intervals::of_all(sets), Some(one_by_one));
    }
    assert_eq!(format!("{:?}", two.complement()), "[MinKey, 1), [3, 5), [7, MaxKey]");
    assert_eq!(two.complement().complement(), two);
    assert!(range(2, 3).is_within(&two) && !range(2, 4).is_within(&two));
    assert!(Intervals::all().complement().is_empty() && Intervals::none().complement().is_all());
}

#[test]
fn implication_of_partial_filters() {
    let table: &[(DocBuf, DocBuf, bool)] = &[
        (doc! { "a": 5 }, doc! { "a": { "$gt": 1 } }, true),
        (doc! { "a": 5 }, doc! { "a": { "$gt": 5 } }, false),
        (doc! { "a": { "$gt": 7 } }, doc! { "a": { "$gt": 5 } }, true),
        (doc! { "a": { "$gt": 3 } }, doc! { "a": { "$gt": 5 } }, false),
        (doc! { "a": 5, "b": 1 }, doc! { "b": { "$exists": true } }, true),
        (doc! { "a": () }, doc! { "a": { "$exists": true } }, false),
        (doc! { "a": { "$ne": () } }, doc! { "a": { "$exists": true } }, true),
        (doc! { "a": { "$in": [6, 7] } }, doc! { "a": { "$gt": 5 } }, true),
        (doc! { "a": { "$in": [4, 7] } }, doc! { "a": { "$gt": 5 } }, false),
        (doc! { "$or": [{ "a": 6 }, { "a": 7 }] }, doc! { "a": { "$gt": 5 } }, true),
        (doc! { "a": "x" }, doc! { "a": { "$type": "string" } }, true),
        (doc! { "b": 5 }, doc! { "a": { "$gt": 5 } }, false),
        (doc! { "a": 1 }, doc! {}, true),
    ];
    for (query, filter, expected) in table {
        let parse = |doc: &DocBuf| Matcher::parse(doc.as_raw(), &mut ParseCx::new()).unwrap();
        let (query_tree, filter_tree) = (parse(query), parse(filter));
        let found = super::implication::implies(query_tree.root(), filter_tree.root());
        assert_eq!(found, *expected, "{query:?} implies {filter:?}");
    }
}
