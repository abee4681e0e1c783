use proptest::prelude::*;

use super::*;
use crate::testing::{any_number, any_value};
use crate::value::ObjectId;
use crate::{DocBuf, OwnedValue, compare, doc};

fn encoded(value: Value<'_>, descending: bool) -> (Vec<u8>, TypeBits) {
    let (mut out, mut types) = (Vec::new(), TypeBits::new());
    encode(value, descending, &mut out, &mut types);
    (out, types)
}

/// A value's bytes: an equality stricter than [`compare`].
fn bytes(value: Value<'_>) -> Vec<u8> {
    DocBuf::new().with("v", value).into_bytes()
}

fn check_round_trip(value: &OwnedValue, descending: bool) -> Result<(), TestCaseError> {
    let (key, types) = encoded(value.as_value(), descending);
    prop_assert!(!matches!(key[0], 0 | LOW | HIGH | 0xFF), "first byte of {:?}", value);
    prop_assert_eq!(component_len(&key, descending), Some(key.len()));
    let mut decoder = Decoder::new(&key, types.as_bytes());
    let decoded = decoder.next_value(descending).expect("a key that was encoded");
    prop_assert_eq!(bytes(decoded.as_value()), bytes(value.as_value()), "{:?} became {:?}", value, decoded);
    prop_assert!(decoder.rest().is_empty());
    for cut in 0..key.len() {
        let decoded = Decoder::new(&key[..cut], types.as_bytes()).next_value(descending);
        prop_assert!(decoded.is_none(), "{:?} of {} bytes of {:?}", decoded, cut, value);
    }
    Ok(())
}

fn check_order(a: &OwnedValue, b: &OwnedValue, descending: bool) -> Result<(), TestCaseError> {
    let order = compare(a.as_value(), b.as_value());
    let wanted = if descending { order.reverse() } else { order };
    let (left, right) = (encoded(a.as_value(), descending).0, encoded(b.as_value(), descending).0);
    prop_assert_eq!(left.cmp(&right), wanted, "{:?} {:?}: {:x?} {:x?}", a, b, left, right);
    prop_assert!(order.is_eq() || !left.starts_with(&right), "a component is a prefix of another");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn numbers_keep_their_order(a in any_number(), b in any_number(), descending: bool) {
        check_order(&a, &b, descending)?;
    }

    #[test]
    fn numbers_come_back(value in any_number(), descending: bool) {
        check_round_trip(&value, descending)?;
    }

    #[test]
    fn values_keep_their_order(a in any_value(), b in any_value(), descending: bool) {
        check_order(&a, &b, descending)?;
    }

    #[test]
    fn values_come_back(value in any_value(), descending: bool) {
        check_round_trip(&value, descending)?;
    }

    #[test]
    fn rows_of_values_keep_their_order_and_come_back(
        a in proptest::collection::vec(any_value(), 3),
        b in proptest::collection::vec(any_value(), 3),
        shared in 0..4usize,
        directions: [bool; 3],
    ) {
        let b: Vec<_> = a[..shared].iter().chain(&b[shared..]).collect();
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let (mut left_types, mut right_types) = (TypeBits::new(), TypeBits::new());
        let mut wanted = std::cmp::Ordering::Equal;
        for ((x, y), descending) in a.iter().zip(&b).zip(directions) {
            encode(x.as_value(), descending, &mut left, &mut left_types);
            encode(y.as_value(), descending, &mut right, &mut right_types);
            let order = compare(x.as_value(), y.as_value());
            wanted = wanted.then(if descending { order.reverse() } else { order });
        }
        prop_assert_eq!(left.cmp(&right), wanted);
        let mut decoder = Decoder::new(&right, right_types.as_bytes());
        for (value, descending) in b.iter().zip(directions) {
            let decoded = decoder.next_value(descending).unwrap();
            prop_assert_eq!(bytes(decoded.as_value()), bytes(value.as_value()));
        }
    }

    #[test]
    fn bounds_enclose_all_extensions(a in any_value(), b in any_value(), c in any_value(), first: bool, second: bool) {
        let prefix = encoded(a.as_value(), first).0;
        let extended = [&prefix[..], &encoded(c.as_value(), second).0].concat();
        let (low, high) = ([&prefix[..], &[LOW]].concat(), [&prefix[..], &[HIGH]].concat());
        prop_assert!(low < extended && extended < high);
        let other = [&encoded(b.as_value(), first).0[..], &encoded(c.as_value(), second).0].concat();
        if compare(a.as_value(), b.as_value()).is_ne() {
            prop_assert_eq!(low < other, high < other, "another prefix lies between the bounds");
        }
        prop_assert!(after_prefix(&prefix).is_some_and(|after| high < after));
    }

    #[test]
    fn any_bytes_decode_or_not(bytes: Vec<u8>, types: Vec<u8>, descending: bool) {
        let mut decoder = Decoder::new(&bytes, &types);
        while let Some(value) = decoder.next_value(descending) {
            let _ = format!("{value:?}");
        }
        let _ = component_len(&bytes, descending);
    }
}

/// Their bytes are escaped, or close a text: each pair, in both directions.
#[test]
fn low_bytes_of_strings_keep_their_order() {
    let bytes = ["", "\0", "\u{1}", "\u{2}", "a"];
    let pairs = || bytes.iter().flat_map(|first| bytes.iter().map(move |second| format!("{first}{second}")));
    let texts: Vec<OwnedValue> = pairs()
        .flat_map(|text| [Value::String(&text).into(), Value::JavaScript(&text).into()])
        .chain(pairs().map(|text| Value::Symbol(&text).into()))
        .collect();
    for a in &texts {
        for descending in [false, true] {
            check_round_trip(a, descending).unwrap();
            texts.iter().for_each(|b| check_order(a, b, descending).unwrap());
        }
    }
}

#[test]
fn common_keys_are_short() {
    for (value, key, types) in [
        (Value::Int32(0), 1, 0),
        (Value::Int32(5), 2, 0),
        (Value::Int32(-127), 2, 0),
        (Value::Int32(1_000_000), 4, 0),
        (Value::Int64(5), 2, 1),
        (Value::Double(5.0), 2, 1),
        (Value::Double(19.99), 9, 1),
        (Value::Decimal128("19.99".parse().unwrap()), 14, 1),
        (Value::Decimal128("5".parse().unwrap()), 2, 1),
        (Value::String("hello"), 7, 0),
        (Value::ObjectId(ObjectId([7; 12])), 13, 0),
        (Value::Bool(true), 1, 0),
        (Value::DateTime(1), 9, 0),
        (Value::Null, 1, 0),
    ] {
        let (bytes, bits) = encoded(value, false);
        assert_eq!((bytes.len(), bits.as_bytes().len()), (key, types), "{value:?}");
    }
}

#[test]
fn fields_are_written_in_place() {
    let (mut key, mut types) = (Vec::new(), TypeBits::new());
    for value in [Value::Double(1.5), Value::Missing, Value::Symbol("s")] {
        encode(value, true, &mut key, &mut types);
    }
    let mut decoder = Decoder::new(&key, types.as_bytes());
    let built = DocBuf::build(|writer| {
        for name in ["a", "b", "c"] {
            decoder.next_into(true, writer, name).unwrap();
        }
    });
    assert_eq!(built, doc! { "a": 1.5, "c": Value::Symbol("s") });
    let mut again = Decoder::new(&key, types.as_bytes());
    again.skip(true).unwrap();
    assert!(again.next_value(true).unwrap().as_value().is_missing());
}

#[test]
fn deeply_nested_garbage_is_refused() {
    let bytes = vec![tag::ARRAY; 1_000_000];
    assert!(Decoder::new(&bytes, &[]).next_value(false).is_none());
    assert_eq!(component_len(&bytes, false), None);
}
