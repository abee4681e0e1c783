use std::hash::DefaultHasher;

use super::*;
use crate::value::{Binary, CodeWithScope, DbPointer, ObjectId, Regex, Timestamp};
use crate::{array, doc};

fn dec(text: &str) -> Value<'static> {
    Value::Decimal128(text.parse().unwrap())
}

fn hash(value: Value<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash_value(value, &mut hasher);
    hasher.finish()
}

/// Every value is equal to those of its own row and less than those of later rows.
#[test]
fn the_order_of_everything() {
    let docs = [
        doc! {},
        doc! { "a": 1 },
        doc! { "a": 1, "b": 1 },
        doc! { "a": 2 },
        doc! { "b": 0 },
        doc! { "a": "x" },
    ];
    let arrays = [array![], array![1], array![1, 1], array![2], array!["a"], array![["a"]]];
    let binary = |subtype, bytes| Value::Binary(Binary { subtype, bytes });
    let regex = |pattern, options| Value::Regex(Regex { pattern, options });
    let pointer = |namespace, last| {
        Value::DbPointer(DbPointer { namespace, id: ObjectId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]) })
    };
    let scoped = |code, scope| Value::CodeWithScope(CodeWithScope { code, scope });
    let mut rows: Vec<Vec<Value<'_>>> = vec![
        vec![Value::MinKey],
        vec![Value::Missing, Value::Undefined],
        vec![Value::Null],
        vec![Value::Double(f64::NAN), dec("NaN"), Value::Double(-f64::NAN)],
        vec![Value::Double(f64::NEG_INFINITY), dec("-Infinity")],
        vec![dec("-1E+400")],
        vec![Value::Double(f64::MIN)],
        vec![Value::Double(-9_223_372_036_854_777_856.0)],
        vec![
            Value::Int64(i64::MIN),
            Value::Double(-9_223_372_036_854_775_808.0),
            dec("-9223372036854775808"),
        ],
        vec![Value::Int64(i64::MIN + 1), dec("-9223372036854775807")],
        vec![Value::Int32(-1), Value::Int64(-1), Value::Double(-1.0), dec("-1.0")],
        vec![dec("-1E-6176")],
        vec![
            Value::Int32(0),
            Value::Int64(0),
            Value::Double(0.0),
            Value::Double(-0.0),
            dec("0"),
            dec("-0E+5"),
        ],
        vec![Value::Double(5e-324)],
        vec![dec("0.1")],
        vec![Value::Double(0.1)],
        vec![Value::Int32(1), Value::Int64(1), Value::Double(1.0), dec("1.00")],
        vec![Value::Double(1.5), dec("1.5")],
        vec![Value::Int64(9_007_199_254_740_992), Value::Double(9_007_199_254_740_992.0)],
        vec![Value::Int64(9_007_199_254_740_993), dec("9007199254740993")],
        vec![Value::Int64(i64::MAX), dec("9223372036854775807")],
        vec![Value::Double(9_223_372_036_854_775_808.0), dec("9223372036854775808")],
        vec![Value::Double(f64::INFINITY), dec("Infinity")],
        vec![Value::String(""), Value::Symbol("")],
        vec![Value::String("a"), Value::Symbol("a")],
        vec![Value::String("a\0")],
        vec![Value::String("aa")],
        vec![Value::String("\u{e9}")],
    ];
    rows.extend(docs.iter().map(|d| vec![Value::from(d)]));
    rows.extend(arrays.iter().map(|a| vec![Value::from(a)]));
    rows.extend([
        vec![binary(0, b"")],
        vec![binary(0, b"zz")],
        vec![binary(4, b"aa")],
        vec![binary(0, b"aaa")],
        vec![Value::ObjectId(ObjectId([1; 12]))],
        vec![Value::ObjectId(ObjectId([0xFF; 12]))],
        vec![Value::Bool(false)],
        vec![Value::Bool(true)],
        vec![Value::DateTime(-1)],
        vec![Value::DateTime(1)],
        vec![Value::Timestamp(Timestamp(1))],
        vec![Value::Timestamp(Timestamp(u64::MAX))],
        vec![regex("a", "")],
        vec![regex("a", "i")],
        vec![regex("b", "")],
        vec![pointer("z", 1)],
        vec![pointer("aa", 0)],
        vec![pointer("aa", 1)],
        vec![Value::JavaScript("a")],
        vec![scoped("a", docs[0].as_raw())],
        vec![scoped("a", docs[1].as_raw())],
        vec![scoped("b", docs[0].as_raw())],
        vec![Value::MaxKey],
    ]);
    for (i, row) in rows.iter().enumerate() {
        for (j, other) in rows.iter().enumerate() {
            for a in row {
                for b in other {
                    assert_eq!(compare(*a, *b), i.cmp(&j), "{a:?} against {b:?}");
                    assert!(i != j || hash(*a) == hash(*b), "hashes of {a:?} and {b:?}");
                }
            }
        }
    }
}

#[test]
fn arrays_ignore_their_keys() {
    let keyed = doc! { "7": 1, "9": 2 };
    assert_eq!(compare_arrays(array![1, 2].as_raw(), keyed.as_raw()), Ordering::Equal);
    assert_eq!(compare_docs(doc! { "0": 1, "1": 2 }.as_raw(), keyed.as_raw()), Ordering::Less);
}

#[test]
fn nested_numbers_hash_by_value() {
    let (a, b) = (doc! { "a": [1, 2.0] }, doc! { "a": [1.0, 2i64] });
    assert_eq!(compare_docs(a.as_raw(), b.as_raw()), Ordering::Equal);
    assert_eq!(hash(Value::from(&a)), hash(Value::from(&b)));
}
