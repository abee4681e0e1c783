use super::*;
use crate::update::{ApplyCx, Update};
use proptest::prelude::*;
use sheaf_bson::{Timestamp, doc};

#[test]
fn deltas_of_clients_are_checked() {
    let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp::new(0, 0) };
    for bad in [
        doc! { "x": 1 },
        doc! { "u": 1 },
        doc! { "sa": 1 },
        doc! { "sa": { "sb": { "y": {} } } },
        doc! { "sa": { "a": true, "l": -1 } },
        doc! { "sa": { "a": true, "u": 1 } },
        doc! { "sa": { "a": true, "u1500000": 1 } },
        doc! { "sa": { "a": true, "s0": 1 } },
        doc! { "sa": { "a": true, "u900000": 1 }, "sb": { "a": true, "u900000": 1 } },
        doc! { "sa": { "a": true, "s900000": { "a": true, "u900000": 1 } } },
        doc! { "i": { "_id": 1 } },
        doc! { "d": { "_id": false } },
        doc! { "s_id": { "u": { "a": 1 } } },
        doc! { "u": { "n": 1 }, "i": { "n": 2 } },
        doc! { "u": { "n": 1 }, "sn": { "u": { "a": 1 } } },
    ] {
        assert!(Update::of_delta(bad.as_raw()).is_err(), "{bad:?}");
    }
    let good =
        doc! { "d": { "b": false }, "u": { "c": 2 }, "i": { "e": 1 }, "sl": { "a": true, "l": 1, "u0": 7 } };
    let old = doc! { "_id": 1, "b": 1, "c": 1, "l": [1, 2] };
    let new = Update::of_delta(good.as_raw()).unwrap().apply(old.as_raw(), &cx).unwrap();
    assert_eq!(new, Some(doc! { "_id": 1, "c": 2, "l": [7], "e": 1 }));
    // What is brought in lies as deep as the delta says, and as it is deep itself.
    let (mut document, mut delta) = (doc! { "a": 1 }, doc! { "u": { "a": 1 } });
    for level in 0..170 {
        document = doc! { "a": &document };
        delta = match level {
            ..120 => doc! { "u": { "a": delta.as_raw().get("u").and_then(|u| u.as_doc()).unwrap() } },
            _ => doc! { "sa": &delta },
        };
    }
    let document = document.with("_id", 1);
    let deeper = Update::of_delta(delta.as_raw()).unwrap().apply(document.as_raw(), &cx);
    assert!(deeper.is_ok());
    let delta = (0..119).fold(delta, |delta, _| doc! { "sa": &delta });
    assert!(Update::of_delta(delta.as_raw()).unwrap().apply(document.as_raw(), &cx).is_err());
}

#[test]
fn shapes_of_deltas() {
    let long = "a text that is long enough to make a delta worth while";
    let old = doc! { "_id": 1, "pad": long, "a": 1, "b": { "pad": long, "c": 1 }, "l": [1, 2, 3, long] };
    let new = doc! { "_id": 1, "pad": long, "b": { "pad": long, "c": 2 }, "l": [1, 5, 3, long, 4], "n": 1 };
    assert_eq!(
        diff(old.as_raw(), new.as_raw()).unwrap(),
        doc! {
            "d": { "a": false },
            "i": { "n": 1 },
            "sb": { "u": { "c": 2 } },
            "sl": { "a": true, "u1": 5, "u4": 4 },
        }
    );
    let short = doc! { "_id": 1, "pad": long, "a": 1, "b": { "pad": long, "c": 1 }, "l": [1, 2, 3] };
    assert_eq!(diff(old.as_raw(), short.as_raw()).unwrap(), doc! { "sl": { "a": true, "l": 3 } });
}

#[test]
fn a_delta_is_sure_unless_names_repeat() {
    let delta = |old: &DocBuf, new: &DocBuf| Delta::between(old.as_raw(), new.as_raw(), Style::ByField(None));
    let old = doc! { "a": 1, "b": { "c": 1, "d": [1, { "e": 1 }] }, "f": 1 };
    let new = doc! { "b": { "c": 1, "d": [1, { "e": 2 }, 3] }, "f": 2, "a": 1, "g": 1 };
    assert!(delta(&old, &new).is_sure);
    let twice = old.clone().with("b", 1);
    assert!(!delta(&twice, &doc! { "a": 1, "b": { "c": 2 }, "f": 1, "b": 1 }).is_sure);
    // The second one is untouched, but the delta would move it.
    assert!(!delta(&old, &old.clone().with("a", 1)).is_sure);
    let odd = |value: i32| {
        DocBuf::build(|out| _ = out.append("l", Value::Array(doc! { "7": 1, "8": value }.as_raw())))
    };
    assert!(!delta(&odd(1), &odd(2)).is_sure);
}

#[test]
fn no_delta_for_repeated_names() {
    let pad = "x".repeat(100);
    let twice = |last: i32| DocBuf::new().with("pad", &pad).with("a", 1).with("a", last);
    assert!(diff(twice(2).as_raw(), twice(3).as_raw()).is_none());
    assert!(diff(doc! { "pad": &pad }.as_raw(), twice(2).as_raw()).is_some());
}

#[test]
fn deltas_of_operators_name_what_was_set() {
    let old = doc! { "_id": 1, "a": { "b": 1 }, "l": [1, 2, 3], "x": 1 };
    for (touched, new, delta) in [
        (
            "a.b",
            doc! { "_id": 1, "a": { "b": 2 }, "l": [1, 2, 3], "x": 1 },
            doc! { "sa": { "u": { "b": 2 } } },
        ),
        ("a", doc! { "_id": 1, "a": { "b": 2 }, "l": [1, 2, 3], "x": 1 }, doc! { "u": { "a": { "b": 2 } } }),
        (
            "a.c",
            doc! { "_id": 1, "a": { "b": 1, "c": 2 }, "l": [1, 2, 3], "x": 1 },
            doc! { "sa": { "i": { "c": 2 } } },
        ),
        (
            "l",
            doc! { "_id": 1, "a": { "b": 1 }, "l": [1, 2, 3, 4], "x": 1 },
            doc! { "sl": { "a": true, "u3": 4 } },
        ),
        (
            "l",
            doc! { "_id": 1, "a": { "b": 1 }, "l": [1, 9, 3], "x": 1 },
            doc! { "sl": { "a": true, "u1": 9 } },
        ),
        ("l", doc! { "_id": 1, "a": { "b": 1 }, "l": [1, 3], "x": 1 }, doc! { "u": { "l": [1, 3] } }),
        (
            "l",
            doc! { "_id": 1, "a": { "b": 1 }, "l": [0, 1, 2, 3], "x": 1 },
            doc! { "u": { "l": [0, 1, 2, 3] } },
        ),
        ("x", doc! { "_id": 1, "a": { "b": 1 }, "l": [1, 2, 3] }, doc! { "d": { "x": false } }),
    ] {
        let found = operator_diff(old.as_raw(), new.as_raw(), &[Touch::of(touched)]);
        assert_eq!(found, Some(delta), "{touched}");
    }
    let twice = |last: i32| DocBuf::new().with("a", 1).with("a", last);
    assert!(operator_diff(twice(2).as_raw(), twice(3).as_raw(), &[Touch::of("a")]).is_none());
}

#[test]
fn arrays_are_told_as_their_operators_do() {
    for (old, update, delta) in [
        (doc! { "a": [] }, doc! { "$push": { "a": 7 } }, doc! { "u": { "a": [7] } }),
        (doc! { "a": [1] }, doc! { "$push": { "a": 7 } }, doc! { "sa": { "a": true, "u1": 7 } }),
        (
            doc! { "a": [1, 2] },
            doc! { "$push": { "a": { "$each": [7], "$position": 2 } } },
            doc! { "u": { "a": [1, 2, 7] } },
        ),
        (
            doc! { "a": [1, 2] },
            doc! { "$push": { "a": { "$each": [7], "$position": 3 } } },
            doc! { "sa": { "a": true, "u2": 7 } },
        ),
        (
            doc! { "a": [1, 2] },
            doc! { "$push": { "a": { "$each": [7], "$sort": 1 } } },
            doc! { "u": { "a": [1, 2, 7] } },
        ),
        (
            doc! { "a": [1, 2] },
            doc! { "$push": { "a": { "$each": [7, 8], "$slice": 3 } } },
            doc! { "u": { "a": [1, 2, 7] } },
        ),
        (doc! { "a": [1, 2] }, doc! { "$addToSet": { "a": 7 } }, doc! { "u": { "a": [1, 2, 7] } }),
        (doc! { "a": [1, 2] }, doc! { "$inc": { "a.$[]": 1 } }, doc! { "u": { "a": [2, 3] } }),
        (doc! { "a": [1] }, doc! { "$inc": { "a.$[]": 1 } }, doc! { "sa": { "a": true, "u0": 2 } }),
        (
            doc! { "a": [{ "x": 1, "y": 1 }, { "x": 9, "y": 1 }] },
            doc! { "$set": { "a.$[].x": 9 } },
            doc! { "sa": { "a": true, "u0": { "x": 9, "y": 1 } } },
        ),
        (doc! { "a": [1, 2] }, doc! { "$set": { "a.4": 5 } }, doc! { "sa": { "a": true, "u4": 5 } }),
        (
            doc! { "a": [1, 2] },
            doc! { "$push": { "a": { "$each": [Value::Null, 5] } } },
            doc! { "sa": { "a": true, "u2": Value::Null, "u3": 5 } },
        ),
        (
            doc! { "b": 1, "a": { "d": 1, "c": 1 } },
            doc! { "$set": { "b": 2, "a.d": 2, "a.c": 2 } },
            doc! { "u": { "b": 2 }, "sa": { "u": { "c": 2, "d": 2 } } },
        ),
        (
            doc! { "b": 1, "a": 1, "x": 1 },
            doc! { "$unset": { "b": 1, "a": 1 } },
            doc! { "d": { "a": false, "b": false } },
        ),
    ] {
        let mut cx = sheaf_expr::ParseCx::new();
        let parsed = Update::parse(Value::Document(update.as_raw()), &[], &mut cx).unwrap();
        let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
        let new = parsed.apply(old.as_raw(), &cx).unwrap().unwrap();
        let found = operator_diff(old.as_raw(), new.as_raw(), parsed.paths()).unwrap();
        assert_eq!(found, delta, "{update:?}");
        assert_eq!(apply_diff(old.as_raw(), found.as_raw()), new, "{update:?}");
    }
}

/// A value's description, from which documents are built.
#[derive(Clone, Debug)]
enum Shape {
    Int(i32),
    Text(String),
    Object(Vec<(String, Shape)>),
    List(Vec<Shape>),
}

fn put(out: &mut DocWriter<'_, Vec<u8>>, key: &str, shape: &Shape) {
    match shape {
        Shape::Int(n) => _ = out.append(key, *n),
        Shape::Text(text) => _ = out.append(key, text),
        Shape::Object(fields) => fill(&mut out.document(key), fields),
        Shape::List(items) => items.iter().for_each({
            let mut list = out.array(key);
            move |item| match item {
                Shape::Int(n) => _ = list.push(*n),
                Shape::Text(text) => _ = list.push(text),
                Shape::Object(fields) => fill(&mut list.document(), fields),
                Shape::List(inner) => {
                    let mut nested = list.array();
                    inner
                        .iter()
                        .filter_map(|i| if let Shape::Int(n) = i { Some(*n) } else { None })
                        .for_each(|n| _ = nested.push(n));
                }
            }
        }),
    }
}

fn fill(out: &mut DocWriter<'_, Vec<u8>>, fields: &[(String, Shape)]) {
    fields.iter().for_each(|(key, shape)| put(out, key, shape));
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![(0..4i32).prop_map(Shape::Int), "[a-c]{0,40}".prop_map(Shape::Text)];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(("[a-d]{1}", inner.clone()), 0..5).prop_map(Shape::Object),
            proptest::collection::vec(inner, 0..5).prop_map(Shape::List),
        ]
    })
}

fn document() -> impl Strategy<Value = DocBuf> {
    proptest::collection::vec(("[a-f]{1}", shape()), 0..7)
        .prop_map(|fields| DocBuf::build(|out| fill(out, &fields)))
}

/// Updates of all kinds, some of which meet nothing or fail.
fn update() -> impl Strategy<Value = DocBuf> {
    let path = proptest::collection::vec("[a-f]|0|1|\\$\\[\\]", 1..4).prop_map(|parts| parts.join("."));
    let change = (0..11usize, path, document()).prop_map(|(kind, path, value)| {
        let path = path.as_str();
        let (name, argument) = match kind {
            0 | 1 => ("$set", doc! { path: &value }),
            2 => ("$set", doc! { path: 7 }),
            3 => ("$unset", doc! { path: 1 }),
            4 => ("$inc", doc! { path: 1 }),
            5 => ("$push", doc! { path: { "$each": [1, &value], "$position": 0 } }),
            6 => ("$push", doc! { path: &value }),
            7 => ("$pop", doc! { path: -1 }),
            8 => ("$rename", doc! { path: "f" }),
            9 => ("$addToSet", doc! { path: { "$each": [1, &value] } }),
            _ => ("$push", doc! { path: { "$each": [2, 1], "$sort": -1, "$slice": 3 } }),
        };
        (name, argument)
    });
    proptest::collection::vec(change, 1..4).prop_map(|changes| {
        DocBuf::build(|out| changes.iter().for_each(|(name, fields)| _ = out.append(name, fields)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_delta_of_an_update_gives_what_the_update_gives(old in document(), update in update()) {
        let mut cx = sheaf_expr::ParseCx::new();
        let Ok(update) = Update::parse(Value::Document(update.as_raw()), &[], &mut cx) else { return Ok(()) };
        let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
        let Ok(Some(new)) = update.apply(old.as_raw(), &cx) else { return Ok(()) };
        let delta = Delta::between(old.as_raw(), new.as_raw(), Style::ByField(Some(("", update.paths()))));
        let applied = apply_diff(old.as_raw(), RawDoc::new(&delta.bytes));
        if delta.is_sure {
            prop_assert_eq!(&applied, &new);
        }
    }

    #[test]
    fn a_delta_gives_the_new_version_and_is_idempotent(old in document(), new in document()) {
        if let Some(delta) = diff(old.as_raw(), new.as_raw()) {
            let applied = apply_diff(old.as_raw(), delta.as_raw());
            prop_assert_eq!(&applied, &new);
            prop_assert_eq!(&apply_diff(new.as_raw(), delta.as_raw()), &new);
        }
        for style in [Style::Shortest, Style::ByField(Some(("", &[Touch::of("a.b")]))), Style::ByField(None)] {
            let delta = Delta::between(old.as_raw(), new.as_raw(), style);
            if delta.is_sure {
                prop_assert_eq!(&apply_diff(old.as_raw(), RawDoc::new(&delta.bytes)), &new);
            }
        }
        let paths = [Touch::of("a.b"), Touch::of("c")];
        if let Some(delta) = operator_diff(old.as_raw(), new.as_raw(), &paths) {
            prop_assert_eq!(&apply_diff(old.as_raw(), delta.as_raw()), &new);
            prop_assert_eq!(&apply_diff(new.as_raw(), delta.as_raw()), &new);
        }
    }
}
