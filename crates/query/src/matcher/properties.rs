//! Properties: normalising and printing a filter does not change what it matches; paths lead where a plain
//! definition says.

use proptest::prelude::*;
use sheaf_bson::{ArrayBuf, DocBuf, OwnedValue, RawDoc, Value, compare};
use sheaf_expr::ParseCx;

use super::*;
use crate::path::Path;

fn value() -> impl Strategy<Value = OwnedValue> {
    let leaf = prop_oneof![
        (-2i32..3).prop_map(|n| OwnedValue::from(Value::Int32(n))),
        (-2i64..3).prop_map(|n| OwnedValue::from(Value::Double(n as f64 / 2.0))),
        "[ab]{0,2}".prop_map(|text| OwnedValue::from(Value::String(&text))),
        any::<bool>().prop_map(|b| OwnedValue::from(Value::Bool(b))),
        Just(OwnedValue::from(Value::Null)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3)
                .prop_map(|items| OwnedValue::from(Value::Array(ArrayBuf::of(&items).as_raw()))),
            fields(inner).prop_map(|doc| OwnedValue::from(Value::Document(doc.as_raw()))),
        ]
    })
}

/// A document with some of the names a, b and 0.
fn fields(value: impl Strategy<Value = OwnedValue>) -> impl Strategy<Value = DocBuf> {
    prop::collection::vec(prop::option::of(value), 3).prop_map(|values| {
        DocBuf::build(|doc| {
            for (name, value) in ["a", "b", "0"].into_iter().zip(&values) {
                value.iter().for_each(|value| _ = doc.append(name, value));
            }
        })
    })
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "0", "1"]), 1..4)
        .prop_map(|names| names.join("."))
}

/// One operator with its operand: `{$gt: 1}`.
fn operator() -> impl Strategy<Value = DocBuf> {
    let comparison = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"];
    prop_oneof![
        (prop::sample::select(comparison.to_vec()), value()).prop_map(|(op, v)| DocBuf::new().with(op, &v)),
        (prop::sample::select(vec!["$in", "$nin", "$all"]), prop::collection::vec(value(), 0..3))
            .prop_map(|(op, items)| DocBuf::new().with(op, Value::Array(ArrayBuf::of(&items).as_raw()))),
        any::<bool>().prop_map(|b| DocBuf::new().with("$exists", b)),
        (0..3).prop_map(|n| DocBuf::new().with("$size", n)),
        prop::sample::select(vec!["int", "array", "object", "number"])
            .prop_map(|name| DocBuf::new().with("$type", name)),
        value().prop_map(|v| sheaf_bson::doc! { "$elemMatch": { "$gte": &v } }),
        value().prop_map(|v| sheaf_bson::doc! { "$elemMatch": { "a": &v } }),
    ]
}

fn filter() -> impl Strategy<Value = DocBuf> {
    let leaf = prop_oneof![
        (path(), operator()).prop_map(|(path, op)| DocBuf::new().with(&path, &op)),
        (path(), operator())
            .prop_map(|(path, op)| { DocBuf::build(|doc| _ = doc.document(&path).append("$not", &op)) }),
        (path(), value()).prop_map(|(path, v)| DocBuf::new().with(&path, &v)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        (prop::sample::select(vec!["$and", "$or", "$nor"]), prop::collection::vec(inner, 1..4))
            .prop_map(|(op, branches)| DocBuf::new().with(op, Value::Array(ArrayBuf::of(&branches).as_raw())))
    })
}

/// Where a path leads, by definition: documents are entered by name; an array on the way stands for its
/// documents, and for the element at a position that the path names.
fn reach<'a>(value: Value<'a>, names: &[&str], out: &mut Vec<Option<Value<'a>>>) {
    let Some((name, rest)) = names.split_first() else { return out.push(Some(value)) };
    match value {
        Value::Document(doc) => match doc.get(name) {
            Some(Value::Array(array)) if !rest.is_empty() => through(array, rest, out),
            Some(inner) => reach(inner, rest, out),
            None => out.push(None),
        },
        _ => out.push(None),
    }
}

fn through<'a>(array: RawDoc<'a>, names: &[&str], out: &mut Vec<Option<Value<'a>>>) {
    for (at, item) in array.values().enumerate() {
        if let Value::Document(_) = item {
            reach(item, names, out);
        }
        if names[0] != at.to_string() {
            continue;
        }
        match item {
            item if names.len() == 1 => out.push(Some(item)),
            Value::Document(_) => reach(item, &names[1..], out),
            Value::Array(inner) => through(inner, &names[1..], out),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn normal_forms_match_the_same(filter in filter(), docs in prop::collection::vec(fields(value()), 4)) {
        let plain = parse::parse_filter(filter.as_raw(), Features::All, &mut ParseCx::new()).unwrap();
        let normal = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap();
        let printed = normal.to_doc();
        let again = Matcher::parse(printed.as_raw(), &mut ParseCx::new()).unwrap();
        prop_assert_eq!(again.to_doc(), printed);
        prop_assert_eq!(again.shape(), normal.shape());
        for doc in &docs {
            let expected = plain.matches_plain(doc.as_raw()).unwrap();
            prop_assert_eq!(normal.matches_doc(doc.as_raw()).unwrap(), expected);
            prop_assert_eq!(again.matches_doc(doc.as_raw()).unwrap(), expected);
        }
    }

    #[test]
    fn paths_lead_where_they_are_defined_to(doc in fields(value()), path in path()) {
        let names: Vec<&str> = path.split('.').collect();
        let mut expected = Vec::new();
        reach(Value::Document(doc.as_raw()), &names, &mut expected);
        let mut found = Vec::new();
        Path::new(&path).any(doc.as_raw(), false, &mut |element: Option<sheaf_bson::Element<'_>>, _| {
            found.push(element.map(|element| OwnedValue::from(element.value())));
            Ok(false)
        }).unwrap();
        let expected: Vec<Option<OwnedValue>> = expected.into_iter().map(|v| v.map(OwnedValue::from)).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_value_equals_itself_and_lies_between_its_bounds(v in value()) {
        let doc = DocBuf::new().with("a", &v);
        let test = |op: &str| {
            let filter = DocBuf::build(|doc| _ = doc.document("a").append(op, &v));
            Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap().matches_doc(doc.as_raw()).unwrap()
        };
        prop_assert!(test("$eq") && test("$gte") && test("$lte") && !test("$ne"));
        prop_assert!(compare(v.as_value(), doc.as_raw().get_or_missing("a")).is_eq());
    }
}
