//! Strategies for property tests: arbitrary values that often nearly meet each other.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::value::{Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Value};
use crate::{ArrayBuf, DocBuf, OwnedValue};

/// Any value of any BSON type, nested up to three levels deep. Numbers, strings and names come
/// from small sets half of the time, so that equal and neighbouring values are common.
pub fn any_value() -> BoxedStrategy<OwnedValue> {
    scalar()
        .prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                2 => fields(inner.clone()).prop_map(|doc| OwnedValue::from(Value::from(&doc))),
                2 => vec(inner.clone(), 0..4)
                    .prop_map(|items| OwnedValue::from(Value::from(&ArrayBuf::of(&items)))),
                1 => (text(), fields(inner)).prop_map(|(code, scope)| {
                    OwnedValue::from(Value::CodeWithScope(CodeWithScope { code: &code, scope: scope.as_raw() }))
                }),
            ]
        })
        .boxed()
}

/// Any document, with [`any_value`]s.
pub fn any_document() -> BoxedStrategy<DocBuf> {
    fields(any_value().boxed()).boxed()
}

/// Any number of the four types.
pub fn any_number() -> BoxedStrategy<OwnedValue> {
    prop_oneof![
        3 => meeting_number(),
        1 => any::<i32>().prop_map(|n| Value::Int32(n).into()),
        1 => any::<i64>().prop_map(|n| Value::Int64(n).into()),
        1 => any::<u64>().prop_map(|bits| Value::Double(f64::from_bits(bits)).into()),
        1 => any::<[u8; 16]>().prop_map(|bytes| Value::Decimal128(Decimal128(bytes)).into()),
        2 => any_decimal().prop_map(|n| Value::Decimal128(n).into()),
    ]
    .boxed()
}

/// Any finite decimal, mostly with few digits.
pub fn any_decimal() -> BoxedStrategy<Decimal128> {
    let coefficient = prop_oneof![
        Just(0),
        0..1000u128,
        any::<u64>().prop_map(u128::from),
        (0..34u32).prop_map(|power| 10u128.pow(power)),
        0..=9_999_999_999_999_999_999_999_999_999_999_999u128,
    ];
    let exponent = prop_oneof![3 => -40..40i32, 1 => -400..400i32, 1 => -6176..=6111i32];
    (any::<bool>(), coefficient, exponent)
        .prop_map(|(negative, coefficient, exponent)| Decimal128::from_parts(negative, coefficient, exponent))
        .boxed()
}

/// Numbers of different types with equal or almost equal values.
fn meeting_number() -> BoxedStrategy<OwnedValue> {
    let landmarks = [
        0.0,
        0.1,
        0.5,
        1.0,
        1.5,
        2.0,
        100.0,
        127.25,
        128.0,
        255.5,
        256.0,
        1e15,
        9_007_199_254_740_992.0,
        1e22,
        1e23,
        9_223_372_036_854_775_808.0,
        4_611_686_018_427_387_904.0,
        5e-324,
        2.2e-308,
        f64::MAX,
        f64::INFINITY,
    ];
    (proptest::sample::select(landmarks.to_vec()), -2..3i64, any::<bool>(), 0..6)
        .prop_map(|(landmark, step, negative, form)| {
            let landmark = if negative { -landmark } else { landmark };
            let bits = landmark.to_bits();
            let near =
                if landmark == 0.0 { landmark } else { f64::from_bits(bits.wrapping_add_signed(step)) };
            match form {
                0 => Value::Double(near).into(),
                1 => Value::Double(landmark).into(),
                2 => Value::Int64((landmark as i64).saturating_add(step)).into(),
                3 => Value::Int32((landmark as i32).saturating_add(step as i32)).into(),
                4 => Value::Decimal128(Decimal128::from_f64(landmark)).into(),
                _ => Value::Decimal128(Decimal128::from_f64_exact(near)).into(),
            }
        })
        .boxed()
}

fn scalar() -> BoxedStrategy<OwnedValue> {
    let id = prop_oneof![Just([0; 12]), Just([0xFF; 12]), any::<[u8; 12]>()].prop_map(ObjectId).boxed();
    prop_oneof![
        8 => any_number(),
        4 => text().prop_map(|text| Value::String(&text).into()),
        1 => text().prop_map(|text| Value::Symbol(&text).into()),
        1 => text().prop_map(|text| Value::JavaScript(&text).into()),
        2 => id.clone().prop_map(|id| Value::ObjectId(id).into()),
        1 => any::<bool>().prop_map(|b| Value::Bool(b).into()),
        1 => prop_oneof![-2..3i64, any::<i64>()].prop_map(|millis| Value::DateTime(millis).into()),
        1 => any::<u64>().prop_map(|time| Value::Timestamp(Timestamp(time)).into()),
        1 => (prop_oneof![Just(0), Just(4), Just(128)], vec(any::<u8>(), 0..4))
            .prop_map(|(subtype, bytes)| Value::Binary(Binary { subtype, bytes: &bytes }).into()),
        1 => (name(), name())
            .prop_map(|(pattern, options)| Value::Regex(Regex { pattern: &pattern, options: &options }).into()),
        1 => (text(), id).prop_map(|(namespace, id)| Value::DbPointer(DbPointer { namespace: &namespace, id }).into()),
        2 => proptest::sample::select(vec![Value::MinKey, Value::Undefined, Value::Null, Value::MaxKey])
            .prop_map(OwnedValue::from),
    ]
    .boxed()
}

fn fields(value: BoxedStrategy<OwnedValue>) -> BoxedStrategy<DocBuf> {
    vec((name(), value), 0..4)
        .prop_map(|fields| {
            DocBuf::build(|writer| {
                for (name, value) in &fields {
                    writer.append(name, value);
                }
            })
        })
        .boxed()
}

/// Text, often with the bytes that keys escape.
fn text() -> BoxedStrategy<String> {
    prop_oneof![
        proptest::sample::select(vec![
            "", "a", "a\0", "a\0b", "\0", "\0\0", "ab", "b", "\u{1}", "a\u{1}", "\u{1}\0", "\u{2}", "\u{7F}",
            "\u{ff}"
        ])
        .prop_map(str::to_owned),
        ".{0,8}".prop_map(String::from),
    ]
    .boxed()
}

/// A field name: text without NULs.
fn name() -> BoxedStrategy<String> {
    text().prop_map(|text| text.replace('\0', "z")).boxed()
}
