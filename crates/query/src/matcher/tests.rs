//! Tables: filter, documents that match, documents that do not; and filters that are refused.

use sheaf_bson::{Binary, Bump, Decimal128, DocBuf, Regex, Value, array, doc};
use sheaf_errors::Code;
use sheaf_expr::{Env, ParseCx};

use super::*;

mod limits;

fn parse(filter: &DocBuf) -> Result<Matcher> {
    Matcher::parse(filter.as_raw(), &mut ParseCx::new())
}

/// Checks `(filter, matching documents, other documents)`; every one with the negated filter, too.
fn check(table: &[(DocBuf, Vec<DocBuf>, Vec<DocBuf>)]) {
    for (filter, yes, no) in table {
        let matcher = parse(filter).unwrap_or_else(|e| panic!("{filter:?}: {e:?}"));
        let negated = parse(&doc! { "$nor": [filter] }).unwrap();
        for (docs, expected) in [(yes, true), (no, false)] {
            for doc in docs {
                assert_eq!(matcher.matches_doc(doc.as_raw()).unwrap(), expected, "{filter:?} on {doc:?}");
                assert_eq!(
                    negated.matches_doc(doc.as_raw()).unwrap(),
                    !expected,
                    "not {filter:?} on {doc:?}"
                );
            }
        }
    }
}

fn regex(pattern: &'static str, options: &'static str) -> Value<'static> {
    Value::Regex(Regex { pattern, options })
}

fn dec(text: &str) -> Value<'static> {
    Value::Decimal128(text.parse::<Decimal128>().unwrap())
}

#[test]
fn equality() {
    check(&[
        (doc! {}, vec![doc! {}, doc! { "a": 1 }], vec![]),
        (
            doc! { "a": 1 },
            vec![
                doc! { "a": 1 },
                doc! { "a": 1.0 },
                doc! { "a": 1i64 },
                doc! { "a": [2, 1] },
                doc! { "a": dec("1.0") },
            ],
            vec![doc! {}, doc! { "a": 2 }, doc! { "a": "1" }, doc! { "a": [[1]] }, doc! { "a": true }],
        ),
        (
            doc! { "a": 0.0 },
            vec![doc! { "a": -0.0 }, doc! { "a": 0 }],
            vec![doc! { "a": () }, doc! { "a": false }],
        ),
        (
            doc! { "a": () },
            vec![doc! {}, doc! { "a": () }, doc! { "a": [()] }, doc! { "a": [1, ()] }],
            vec![doc! { "a": Value::Undefined }, doc! { "a": [] }, doc! { "a": 0 }, doc! { "a": [1] }],
        ),
        (
            doc! { "a": f64::NAN },
            vec![doc! { "a": f64::NAN }, doc! { "a": dec("NaN") }],
            vec![doc! { "a": 1 }, doc! {}],
        ),
        (
            doc! { "a": [1, 2] },
            vec![doc! { "a": [1, 2] }, doc! { "a": [1.0, 2i64] }, doc! { "a": [[1, 2], 3] }],
            vec![doc! { "a": [1, 2, 3] }, doc! { "a": [2, 1] }, doc! { "a": 1 }],
        ),
        (
            doc! { "a": { "b": 1, "c": 2 } },
            vec![doc! { "a": { "b": 1, "c": 2 } }, doc! { "a": [{ "b": 1.0, "c": 2 }] }],
            vec![doc! { "a": { "c": 2, "b": 1 } }, doc! { "a": { "b": 1 } }],
        ),
        (doc! { "a": {} }, vec![doc! { "a": {} }], vec![doc! { "a": { "b": 1 } }, doc! {}]),
        (doc! { "": 1 }, vec![doc! { "": 1 }], vec![doc! {}]),
        (
            doc! { "a": { "$ref": "c", "$id": 1 } },
            vec![doc! { "a": { "$ref": "c", "$id": 1 } }],
            vec![doc! { "a": { "$ref": "c", "$id": 2 } }],
        ),
        (doc! { "a.$id": 1 }, vec![doc! { "a": { "$ref": "c", "$id": 1 } }], vec![doc! { "a": 1 }]),
        (doc! { "a": { "$ne": 1 } }, vec![doc! {}, doc! { "a": 2 }], vec![doc! { "a": [1, 2] }]),
        (doc! { "a": Value::Symbol("x") }, vec![doc! { "a": "x" }], vec![doc! { "a": "y" }]),
    ]);
}

#[test]
fn paths_through_arrays() {
    check(&[
        (
            doc! { "a.b": 1 },
            vec![doc! { "a": { "b": 1 } }, doc! { "a": [{ "b": 2 }, { "b": [3, 1] }] }],
            vec![doc! { "a": [[{ "b": 1 }]] }, doc! { "a": 1 }, doc! { "a.b": 1 }],
        ),
        (
            doc! { "a.b": () },
            vec![
                doc! {},
                doc! { "a": 1 },
                doc! { "a": {} },
                doc! { "a": [{}] },
                doc! { "a": [{ "b": 1 }, {}] },
            ],
            vec![doc! { "a": [] }, doc! { "a": [1, 2] }, doc! { "a": [{ "b": 1 }] }],
        ),
        (
            doc! { "a.0": 1 },
            vec![doc! { "a": [1, 2] }, doc! { "a": { "0": 1 } }, doc! { "a": [{ "0": 1 }] }],
            vec![doc! { "a": [2, 1] }, doc! { "a": [[1]] }],
        ),
        (doc! { "a.0": [1] }, vec![doc! { "a": [[1]] }], vec![doc! { "a": [1] }]),
        (
            doc! { "a.1.b": 5 },
            vec![
                doc! { "a": [0, { "b": 5 }] },
                doc! { "a": [{ "1": { "b": 5 } }] },
                doc! { "a": [0, [{ "b": 5 }]] },
            ],
            vec![doc! { "a": [{ "b": 5 }, 0] }],
        ),
        (doc! { "a.0.0": 7 }, vec![doc! { "a": [[7]] }], vec![doc! { "a": [7] }]),
        (doc! { "a.00": 1 }, vec![doc! { "a": [{ "00": 1 }] }], vec![doc! { "a": [1] }]),
        (
            doc! { "a.b.c": { "$exists": false } },
            vec![doc! {}, doc! { "a": [] }, doc! { "a": [{ "b": 1 }] }],
            vec![doc! { "a": [{ "b": [{ "c": () }] }] }],
        ),
        (doc! { "a..b": 1 }, vec![doc! { "a": { "": { "b": 1 } } }], vec![doc! { "a": { "b": 1 } }]),
    ]);
}

#[test]
fn ordering_keeps_to_the_operands_type() {
    check(&[
        (
            doc! { "a": { "$gt": 1 } },
            vec![doc! { "a": 1.5 }, doc! { "a": [0, 2] }, doc! { "a": dec("1E+10") }],
            vec![
                doc! { "a": 1 },
                doc! { "a": "2" },
                doc! {},
                doc! { "a": f64::NAN },
                doc! { "a": Value::MaxKey },
            ],
        ),
        (
            doc! { "a": { "$lt": 1 } },
            vec![doc! { "a": 0 }, doc! { "a": f64::NEG_INFINITY }],
            vec![doc! { "a": f64::NAN }, doc! { "a": () }, doc! {}, doc! { "a": Value::MinKey }],
        ),
        (doc! { "a": { "$gte": f64::NAN } }, vec![doc! { "a": f64::NAN }], vec![doc! { "a": 1 }, doc! {}]),
        (doc! { "a": { "$lt": f64::NAN } }, vec![], vec![doc! { "a": f64::NAN }, doc! { "a": 1 }]),
        (doc! { "a": { "$gte": () } }, vec![doc! {}, doc! { "a": () }], vec![doc! { "a": 1 }]),
        (doc! { "a": { "$gt": () } }, vec![], vec![doc! {}, doc! { "a": () }]),
        (
            doc! { "a": { "$gt": Value::MinKey } },
            vec![doc! {}, doc! { "a": 1 }, doc! { "a": Value::MaxKey }],
            vec![doc! { "a": Value::MinKey }],
        ),
        (
            doc! { "a": { "$lt": Value::MaxKey } },
            vec![doc! {}, doc! { "a": 1 }],
            vec![doc! { "a": Value::MaxKey }],
        ),
        (
            doc! { "a": { "$gte": Value::MaxKey } },
            vec![doc! { "a": Value::MaxKey }],
            vec![doc! { "a": 1 }, doc! {}],
        ),
        (
            doc! { "a": { "$gt": [1, 2] } },
            vec![doc! { "a": [1, 3] }, doc! { "a": [2] }, doc! { "a": [[9]] }],
            vec![doc! { "a": [1, 2] }, doc! { "a": 5 }],
        ),
        (doc! { "a": { "$gt": "b" } }, vec![doc! { "a": "c" }], vec![doc! { "a": "B" }, doc! { "a": 5 }]),
        (doc! { "a": { "$gt": {} } }, vec![doc! { "a": { "x": 1 } }], vec![doc! { "a": {} }]),
        (doc! { "a": { "$gt": true } }, vec![], vec![doc! { "a": true }, doc! { "a": 2 }]),
        (doc! { "a": { "$gt": false } }, vec![doc! { "a": true }], vec![doc! { "a": 1 }]),
        // Each bound may be met by another element.
        (doc! { "a": { "$gt": 5, "$lt": 3 } }, vec![doc! { "a": [1, 9] }], vec![doc! { "a": 4 }]),
    ]);
}

#[test]
fn sets_and_logic() {
    check(&[
        (
            doc! { "a": { "$in": [1, "x", (), regex("^q", "")] } },
            vec![
                doc! { "a": 1.0 },
                doc! { "a": "x" },
                doc! {},
                doc! { "a": ["z", "qq"] },
                doc! { "a": regex("^q", "") },
            ],
            vec![doc! { "a": 2 }, doc! { "a": "aq" }, doc! { "a": [] }],
        ),
        (
            doc! { "a": { "$in": [1, 2, 3, 4, 5, 6, [7]] } },
            vec![doc! { "a": 5i64 }, doc! { "a": [7] }],
            vec![doc! { "a": 7 }, doc! {}],
        ),
        (doc! { "a": { "$in": [] } }, vec![], vec![doc! {}, doc! { "a": 1 }]),
        (doc! { "a": { "$nin": [1, ()] } }, vec![doc! { "a": 2 }], vec![doc! {}, doc! { "a": [2, 1] }]),
        (doc! { "$or": [{ "a": 1 }, { "b": 1 }] }, vec![doc! { "a": 1 }, doc! { "b": 1 }], vec![doc! {}]),
        (
            doc! { "$or": [{ "a": 1 }, { "a": [2] }, { "a": { "$in": [3, 4] } }] },
            vec![doc! { "a": 1 }, doc! { "a": [2] }, doc! { "a": 4 }],
            vec![doc! { "a": 2 }],
        ),
        (doc! { "$nor": [{ "a": 1 }, { "b": 1 }] }, vec![doc! {}], vec![doc! { "a": 1 }]),
        (doc! { "$and": [{ "a": 1 }, { "a": 2 }] }, vec![doc! { "a": [1, 2] }], vec![doc! { "a": 1 }]),
        (
            doc! { "a": { "$not": { "$gt": 1, "$lt": 5 } } },
            vec![doc! { "a": 5 }, doc! {}],
            vec![doc! { "a": 3 }],
        ),
        (
            doc! { "a": { "$not": regex("^x", "") } },
            vec![doc! { "a": "y" }, doc! {}],
            vec![doc! { "a": "xx" }],
        ),
        (doc! { "$alwaysFalse": 1 }, vec![], vec![doc! {}]),
        (doc! { "a": 1, "$comment": "why" }, vec![doc! { "a": 1 }], vec![doc! {}]),
        (doc! { "$sampleRate": 1.0 }, vec![doc! {}], vec![]),
    ]);
}

#[test]
fn arrays() {
    check(&[
        (
            doc! { "a": { "$all": [1, 2] } },
            vec![doc! { "a": [2, 3, 1] }],
            vec![doc! { "a": [1] }, doc! { "a": 1 }],
        ),
        (doc! { "a": { "$all": [1] } }, vec![doc! { "a": 1 }, doc! { "a": [1] }], vec![doc! {}]),
        (doc! { "a": { "$all": [] } }, vec![], vec![doc! { "a": [] }, doc! {}]),
        (
            doc! { "a": { "$all": [[1, 2]] } },
            vec![doc! { "a": [1, 2] }, doc! { "a": [[1, 2]] }],
            vec![doc! { "a": [2, 1] }],
        ),
        (
            doc! { "a": { "$all": [{ "$elemMatch": { "x": 1 } }, { "$elemMatch": { "x": 2 } }] } },
            vec![doc! { "a": [{ "x": 2 }, { "x": 1 }] }],
            vec![doc! { "a": [{ "x": 1 }] }],
        ),
        (
            doc! { "a": { "$elemMatch": { "b": 1, "c": 2 } } },
            vec![doc! { "a": [{ "b": 1, "c": 2 }] }],
            vec![doc! { "a": [{ "b": 1 }, { "c": 2 }] }, doc! { "a": { "b": 1, "c": 2 } }],
        ),
        (
            doc! { "a": { "$elemMatch": { "$gt": 1, "$lt": 5 } } },
            vec![doc! { "a": [3] }],
            vec![doc! { "a": [1, 5] }, doc! { "a": 3 }, doc! { "a": [[3]] }],
        ),
        (
            doc! { "a": { "$elemMatch": { "$not": { "$gt": 1 } } } },
            vec![doc! { "a": [1, 2] }],
            vec![doc! { "a": [2] }, doc! { "a": [] }],
        ),
        (
            doc! { "a": { "$elemMatch": { "$elemMatch": { "$eq": 1 } } } },
            vec![doc! { "a": [[1]] }],
            vec![doc! { "a": [1] }],
        ),
        (doc! { "a": { "$elemMatch": { "0": 5 } } }, vec![doc! { "a": [[5]] }], vec![doc! { "a": [5] }]),
        (
            doc! { "a": { "$elemMatch": {} } },
            vec![doc! { "a": [{}] }, doc! { "a": [[]] }],
            vec![doc! { "a": [] }, doc! { "a": [1] }],
        ),
        (
            doc! { "a": { "$elemMatch": { "$or": [{ "x": 1 }, { "y": 1 }] } } },
            vec![doc! { "a": [{ "y": 1 }] }],
            vec![doc! { "a": [{ "x": 2 }] }],
        ),
        (
            doc! { "a": { "$size": 2 } },
            vec![doc! { "a": [1, [2]] }],
            vec![doc! { "a": [1] }, doc! { "a": [[1, 2]] }, doc! {}],
        ),
        (
            doc! { "a.b": { "$size": 1 } },
            vec![doc! { "a": [{ "b": [] }, { "b": [1] }] }],
            vec![doc! { "a": [{ "b": 1 }] }],
        ),
        (
            doc! { "a.b": { "$elemMatch": { "$eq": 2 } } },
            vec![doc! { "a": [{ "b": [1] }, { "b": [2] }] }],
            vec![doc! { "a": [{ "b": 2 }] }],
        ),
    ]);
}

#[test]
fn elements() {
    check(&[
        (doc! { "a": { "$exists": true } }, vec![doc! { "a": () }, doc! { "a": [] }], vec![doc! {}]),
        (doc! { "a": { "$exists": 0 } }, vec![doc! {}], vec![doc! { "a": () }]),
        (
            doc! { "a": { "$type": "array" } },
            vec![doc! { "a": [] }, doc! { "a": [[1]] }],
            vec![doc! { "a": 1 }],
        ),
        (
            doc! { "a": { "$type": "number" } },
            vec![doc! { "a": 1 }, doc! { "a": [dec("1")] }],
            vec![doc! { "a": "1" }, doc! {}],
        ),
        (
            doc! { "a": { "$type": [2, "bool"] } },
            vec![doc! { "a": "x" }, doc! { "a": true }],
            vec![doc! { "a": 1 }],
        ),
        (doc! { "a": { "$type": -1 } }, vec![doc! { "a": Value::MinKey }], vec![doc! { "a": Value::MaxKey }]),
        (
            doc! { "a": { "$mod": [4, 0] } },
            vec![doc! { "a": 8 }, doc! { "a": 8.9 }, doc! { "a": [1, 12i64] }, doc! { "a": 0 }],
            vec![doc! { "a": 9 }, doc! { "a": f64::NAN }, doc! { "a": 1e300 }, doc! { "a": "8" }],
        ),
        (doc! { "a": { "$mod": [4.9, -3.7] } }, vec![doc! { "a": -7 }], vec![doc! { "a": 7 }]),
        (doc! { "a": { "$mod": [-1, 0] } }, vec![doc! { "a": i64::MIN }], vec![]),
        (
            doc! { "a": regex("^ab", "i") },
            vec![doc! { "a": "ABc" }, doc! { "a": ["x", "ab"] }],
            vec![doc! { "a": "cab" }, doc! { "a": 1 }],
        ),
        (
            doc! { "a": { "$eq": regex("^ab", "") } },
            vec![doc! { "a": regex("^ab", "") }],
            vec![doc! { "a": "ab" }],
        ),
        (
            doc! { "a": { "$regex": "b.d", "$options": "s" } },
            vec![doc! { "a": "ab\nd" }],
            vec![doc! { "a": "bd" }],
        ),
        (
            doc! { "a": { "$options": "i", "$regex": "B" } },
            vec![doc! { "a": "abc" }],
            vec![doc! { "a": "ac" }],
        ),
        (doc! { "a": { "$regex": "^x" } }, vec![doc! { "a": "xy" }], vec![doc! { "a": "y\nx" }]),
        (
            doc! { "a": { "$regex": "^x", "$options": "m" } },
            vec![doc! { "a": "y\nx" }],
            vec![doc! { "a": "yx" }],
        ),
    ]);
}

#[test]
fn bits() {
    let bin = |bytes: &'static [u8]| Binary { subtype: 0, bytes };
    check(&[
        (
            doc! { "a": { "$bitsAllSet": 5 } },
            vec![doc! { "a": 7 }, doc! { "a": 5.0 }, doc! { "a": bin(&[0x0D]) }],
            vec![doc! { "a": 4 }, doc! { "a": 5.5 }, doc! { "a": "5" }],
        ),
        (
            doc! { "a": { "$bitsAllClear": [1, 3] } },
            vec![doc! { "a": 5 }, doc! { "a": bin(&[]) }],
            vec![doc! { "a": 2 }],
        ),
        (
            doc! { "a": { "$bitsAnySet": bin(&[0, 1]) } },
            vec![doc! { "a": 256 }, doc! { "a": bin(&[0, 3]) }],
            vec![doc! { "a": 255 }],
        ),
        (doc! { "a": { "$bitsAnyClear": 3 } }, vec![doc! { "a": 1 }], vec![doc! { "a": 3 }]),
        (
            doc! { "a": { "$bitsAllSet": [200] } },
            vec![doc! { "a": -1 }],
            vec![doc! { "a": i64::MAX }, doc! { "a": bin(&[255]) }],
        ),
        (doc! { "a": { "$bitsAnyClear": [63, 64] } }, vec![doc! { "a": 1 }], vec![doc! { "a": i64::MIN }]),
        (doc! { "a": { "$bitsAllSet": [] } }, vec![doc! { "a": 0 }], vec![doc! {}]),
    ]);
}

#[test]
fn refused() {
    let table: &[(DocBuf, i32, &str)] = &[
        (
            doc! { "$foo": 1 },
            2,
            "unknown top level operator: $foo. If you have a field name that starts with a '$' symbol, consider using $getField or $setField.",
        ),
        (doc! { "a": { "$foo": 1 } }, 2, "unknown operator: $foo"),
        (doc! { "a": { "$gt": 1, "b": 2 } }, 2, "unknown operator: b"),
        (doc! { "a": { "$id": 1 } }, 2, "unknown operator: $id"),
        (doc! { "$and": 1 }, 2, "$and must be an array"),
        (doc! { "$or": [] }, 2, "$and/$or/$nor must be a nonempty array"),
        (doc! { "$nor": [1] }, 2, "$or/$and/$nor entries need to be full objects"),
        (doc! { "a": { "$in": 1 } }, 2, "$in needs an array"),
        (doc! { "a": { "$nin": {} } }, 2, "$nin needs an array"),
        (doc! { "a": { "$in": [{ "$gt": 1 }] } }, 2, "cannot nest $ under $in"),
        (doc! { "a": { "$not": 1 } }, 2, "$not needs a regex or a document"),
        (doc! { "a": { "$not": {} } }, 2, "$not cannot be empty"),
        (doc! { "a": { "$ne": regex("x", "") } }, 2, "Can't have regex as arg to $ne."),
        (doc! { "a": { "$gt": regex("x", "") } }, 2, "Can't have RegEx as arg to predicate over field 'a'."),
        (doc! { "a": Value::Undefined }, 2, "cannot compare to undefined"),
        (doc! { "a": { "$all": 1 } }, 2, "$all needs an array"),
        (doc! { "a": { "$all": [{ "$gt": 1 }] } }, 2, "no $ expressions in $all"),
        (doc! { "a": { "$all": [{ "$elemMatch": {} }, 1] } }, 2, "$all/$elemMatch has to be consistent"),
        (doc! { "a": { "$elemMatch": 1 } }, 2, "$elemMatch needs an Object"),
        (
            doc! { "a": { "$size": -1 } },
            2,
            "Failed to parse $size. Expected a non-negative number in: $size: -1",
        ),
        (doc! { "a": { "$size": "x" } }, 2, "Failed to parse $size. Expected a number in: $size: \"x\""),
        (doc! { "a": { "$size": 1.5 } }, 2, "Failed to parse $size. Expected an integer: $size: 1.5"),
        (doc! { "a": { "$mod": 1 } }, 2, "malformed mod, needs to be an array"),
        (doc! { "a": { "$mod": [1] } }, 2, "malformed mod, not enough elements"),
        (doc! { "a": { "$mod": [1, 2, 3] } }, 2, "malformed mod, too many elements"),
        (doc! { "a": { "$mod": ["1", 2] } }, 2, "malformed mod, divisor not a number"),
        (doc! { "a": { "$mod": [1, ()] } }, 2, "malformed mod, remainder not a number"),
        (doc! { "a": { "$mod": [0.5, 1] } }, 2, "divisor cannot be 0"),
        (
            doc! { "a": { "$mod": [f64::NAN, 1] } },
            2,
            "malformed mod, divisor value is invalid :: caused by :: Unable to coerce NaN/Inf to integral type",
        ),
        (doc! { "a": { "$regex": 1 } }, 2, "$regex has to be a string"),
        (doc! { "a": { "$regex": "x", "$options": 1 } }, 2, "$options has to be a string"),
        (doc! { "a": { "$options": "i" } }, 2, "$options needs a $regex"),
        (
            doc! { "a": { "$regex": regex("x", "i"), "$options": "m" } },
            51075,
            "options set in both $regex and $options",
        ),
        (
            doc! { "a": { "$options": "m", "$regex": regex("x", "i") } },
            51074,
            "options set in both $regex and $options",
        ),
        (doc! { "a": { "$regex": "x", "$options": "z" } }, 51108, " invalid flag in regex options: z"),
        (
            doc! { "a": { "$regex": "(" } },
            51091,
            "Regular expression is invalid: missing closing parenthesis",
        ),
        (doc! { "a": { "$type": "foo" } }, 2, "Unknown type name alias: foo"),
        (doc! { "a": { "$type": 42 } }, 2, "Invalid numerical type code: 42"),
        (doc! { "a": { "$type": 0 } }, 2, "Invalid numerical type code: 0. Instead use {$exists:false}."),
        (doc! { "a": { "$type": true } }, 14, "type must be represented as a number or a string"),
        (doc! { "a": { "$type": [] } }, 9, "$type must match at least one type"),
        (
            doc! { "a": { "$bitsAllSet": "x" } },
            2,
            "a takes an Array, a number, or a BinData but received: $bitsAllSet: \"x\"",
        ),
        (doc! { "a": { "$bitsAllSet": -1 } }, 9, "Expected a non-negative number in: $bitsAllSet: -1"),
        (
            doc! { "a": { "$bitsAllSet": [-1] } },
            2,
            "Failed to parse bit position. Expected a non-negative number in: 0: -1",
        ),
        (
            doc! { "a": { "$elemMatch": { "$expr": true } } },
            2,
            "$expr can only be applied to the top-level document",
        ),
        (doc! { "a": { "$where": "1" } }, 2, "$where cannot be applied to a field"),
        (doc! { "$alwaysTrue": 2 }, 9, "$alwaysTrue must be an integer value of 1"),
    ];
    for (filter, code, message) in table {
        match parse(filter) {
            Ok(matcher) => panic!("{filter:?} was taken as {matcher:?}"),
            Err(error) => assert_eq!((error.code().0, error.message()), (*code, *message), "{filter:?}"),
        }
    }
}

#[test]
fn normal_forms() {
    let table: &[(DocBuf, DocBuf)] = &[
        (doc! {}, doc! {}),
        (doc! { "b": 1, "a": 2 }, doc! { "$and": [{ "a": { "$eq": 2 } }, { "b": { "$eq": 1 } }] }),
        (doc! { "$and": [{ "a": 1 }] }, doc! { "a": { "$eq": 1 } }),
        (doc! { "$or": [{ "a": 1 }, { "a": 2 }] }, doc! { "a": { "$in": [1, 2] } }),
        (doc! { "a": { "$in": [1, 1.0] } }, doc! { "a": { "$eq": 1 } }),
        (doc! { "a": { "$in": [] } }, doc! { "$alwaysFalse": 1 }),
        (doc! { "a": { "$ne": 1 } }, doc! { "a": { "$not": { "$eq": 1 } } }),
        (doc! { "a": { "$nin": [2, 1] } }, doc! { "a": { "$not": { "$in": [1, 2] } } }),
        (doc! { "a": { "$not": { "$gt": 1, "$lt": 5 } } }, doc! { "a": { "$not": { "$lt": 5, "$gt": 1 } } }),
        (doc! { "a": { "$exists": false } }, doc! { "a": { "$not": { "$exists": true } } }),
        (doc! { "a": regex("x", "i") }, doc! { "a": { "$regex": "x", "$options": "i" } }),
        (doc! { "a": { "$elemMatch": { "b": 1 } } }, doc! { "a": { "$elemMatch": { "b": { "$eq": 1 } } } }),
        (doc! { "a": { "$type": "string" } }, doc! { "a": { "$type": [2] } }),
        (doc! { "$nor": [{ "a": 1 }] }, doc! { "a": { "$not": { "$eq": 1 } } }),
        (
            doc! { "a": { "$gt": 1, "$lte": 5 }, "b": 1 },
            doc! { "$and": [{ "b": { "$eq": 1 } }, { "a": { "$lte": 5 } }, { "a": { "$gt": 1 } }] },
        ),
    ];
    for (filter, normal) in table {
        assert_eq!(parse(filter).unwrap().to_doc(), *normal, "{filter:?}");
    }
}

#[test]
fn shapes_forget_operands_but_not_operators() {
    let shape = |filter: DocBuf| parse(&filter).unwrap().shape();
    assert_eq!(shape(doc! { "a": 1, "b": { "$gt": 2 } }), shape(doc! { "b": { "$gt": 9 }, "a": 5 }));
    assert_ne!(shape(doc! { "a": 1 }), shape(doc! { "a": () }));
    assert_ne!(shape(doc! { "a": 1 }), shape(doc! { "b": 1 }));
    assert_ne!(shape(doc! { "a": { "$gt": 1 } }), shape(doc! { "a": { "$lt": 1 } }));
}

#[test]
fn details_name_the_matched_element() {
    let table: &[(DocBuf, DocBuf, Option<usize>)] = &[
        (doc! { "a": 3 }, doc! { "a": [1, 3] }, Some(1)),
        (doc! { "a": 3 }, doc! { "a": 3 }, None),
        (doc! { "a.b": 3 }, doc! { "a": [{ "b": 1 }, { "b": [0, 0, 3] }] }, Some(1)),
        (doc! { "a": { "$elemMatch": { "b": 2 } } }, doc! { "a": [{}, {}, { "b": 2 }] }, Some(2)),
        (doc! { "a.1": 3 }, doc! { "a": [1, 3] }, None),
        (doc! { "a": [1, 3] }, doc! { "a": [1, 3] }, None),
        (doc! { "a": { "$ne": 9 } }, doc! { "a": [1, 3] }, None),
        (doc! { "$or": [{ "a": 7 }, { "b": 2 }] }, doc! { "a": [1], "b": [1, 2] }, None),
        (doc! { "$or": [{ "b": 7 }, { "b": 2 }] }, doc! { "b": [1, 2] }, Some(1)),
    ];
    for (filter, doc, index) in table {
        let matcher = parse(filter).unwrap();
        let arena = Bump::new();
        let details = matcher.matches_with_details(doc.as_raw(), &Env::new(&arena)).unwrap().unwrap();
        assert_eq!(details.elem_match_index, *index, "{filter:?} on {doc:?}");
    }
}

#[test]
fn prefixes_of_regular_expressions() {
    type Prefix = Option<(&'static str, bool)>;
    let table: &[(&str, &str, Prefix)] = &[
        ("^abc", "", Some(("abc", true))),
        ("^abc.*", "", Some(("abc", true))),
        ("^abc+", "", Some(("abc", false))),
        ("^abc?d", "", Some(("ab", false))),
        ("^a\\.b", "", Some(("a.b", true))),
        ("^\\Qa.b\\E", "", Some(("a.b", true))),
        ("\\Aab", "m", Some(("ab", true))),
        ("^abc", "i", None),
        ("^abc", "m", None),
        ("^a|b", "", None),
        ("abc", "", None),
        ("^.a", "", None),
    ];
    for (pattern, options, expected) in table {
        let found = super::Regex::new(pattern, options).unwrap().prefix();
        assert_eq!(found.as_ref().map(|(text, whole)| (&**text, *whole)), *expected, "{pattern}");
    }
}

#[test]
fn single_values() {
    let array = array![1, 5, "x", [7]];
    let elements: Vec<_> = array.as_raw().iter().collect();
    let above = ValueMatcher::parse(doc! { "$gt": 3 }.as_raw(), &mut ParseCx::new()).unwrap();
    assert_eq!(
        elements.iter().map(|e| above.matches(*e).unwrap()).collect::<Vec<_>>(),
        [false, true, false, false]
    );
    let equal = ValueMatcher::equals(Value::String("x")).unwrap();
    assert_eq!(
        elements.iter().map(|e| equal.matches(*e).unwrap()).collect::<Vec<_>>(),
        [false, false, true, false]
    );
}
