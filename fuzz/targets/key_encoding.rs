//! Keys of two arbitrary values compare like the values, and decode to them; keys of arbitrary bytes
//! decode or do not.
#![no_main]

use std::cmp::Ordering;

use libfuzzer_sys::fuzz_target;
use sheaf_bson::key::{Decoder, TypeBits, component_len, encode};
use sheaf_bson::{ArrayBuf, CodeWithScope, DocBuf, MAX_DEPTH, OwnedValue, RawDoc, Value, compare, validate};

fuzz_target!(|data: &[u8]| {
    for descending in [false, true] {
        let mut decoder = Decoder::new(data, data);
        while decoder.next_value(descending).is_some() {}
        let _ = component_len(data, descending);
    }
    let Ok(first) = validate(data, MAX_DEPTH) else { return };
    let left = canonical_document(RawDoc::new(&data[..first]));
    let right = match validate(&data[first..], MAX_DEPTH) {
        Ok(second) => canonical_document(RawDoc::new(&data[first..first + second])),
        Err(_) => left.clone(),
    };
    check(Value::from(&left), Value::from(&right));
    // Every field of one document against every field of the other.
    for a in left.as_raw().iter().take(8) {
        for b in right.as_raw().iter().take(8) {
            check(a.value(), b.value());
        }
    }
});

fn check(a: Value<'_>, b: Value<'_>) {
    let order = compare(a, b);
    assert_eq!(order, compare(b, a).reverse());
    for descending in [false, true] {
        let (left, right) = (round_trip(a, descending), round_trip(b, descending));
        let wanted = if descending { order.reverse() } else { order };
        assert_eq!(left.cmp(&right), wanted, "{a:?} against {b:?}");
        assert!(order == Ordering::Equal || !left.starts_with(&right));
    }
}

fn round_trip(value: Value<'_>, descending: bool) -> Vec<u8> {
    let (mut key, mut types) = (Vec::new(), TypeBits::new());
    encode(value, descending, &mut key, &mut types);
    assert_eq!(component_len(&key, descending), Some(key.len()));
    let mut decoder = Decoder::new(&key, types.as_bytes());
    let decoded = decoder.next_value(descending).expect("an encoded value");
    assert!(decoder.rest().is_empty());
    let bytes = |value: Value<'_>| DocBuf::new().with("", value).into_bytes();
    assert_eq!(bytes(decoded.as_value()), bytes(value), "{value:?} became {decoded:?}");
    key
}

/// Arrays renumbered: their keys are no part of the value.
fn canonical(value: Value<'_>) -> OwnedValue {
    match value {
        Value::Document(doc) => Value::from(&canonical_document(doc)).into(),
        Value::Array(array) => {
            let items: Vec<_> = array.values().map(canonical).collect();
            Value::from(&ArrayBuf::of(&items)).into()
        }
        Value::CodeWithScope(code) => {
            let scope = canonical_document(code.scope);
            Value::CodeWithScope(CodeWithScope { code: code.code, scope: scope.as_raw() }).into()
        }
        value => value.into(),
    }
}

fn canonical_document(doc: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|writer| {
        for element in doc.iter() {
            writer.append(element.key(), canonical(element.value()).as_value());
        }
    })
}
