//! Operators of updates.

use sheaf_bson::{DocBuf, Timestamp, Value, doc};
use sheaf_expr::ParseCx;
use sheaf_query::update::{ApplyCx, Update};

use crate::samples::{NUMBERS, Sample, samples};

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Error(i32),
    /// It stays as it is.
    Not,
    /// It is there no more.
    Gone,
    /// It has a value of this type.
    Type(&'static str),
}

use Change::{Error, Gone, Not, Type};

fn changed(update: &DocBuf, held: &Sample, field: &str) -> Change {
    let before = held.document();
    let mut cx = ParseCx::new();
    let update = Update::parse(Value::Document(update.as_raw()), &[], &mut cx).expect("it parses");
    cx.finish().expect("nothing constant fails");
    let cx = ApplyCx { matched_index: None, now_millis: 1, timestamp: Timestamp::new(7, 1) };
    match update.apply(before.as_raw(), &cx) {
        Err(error) => Error(error.code().0),
        Ok(None) => Not,
        Ok(Some(after)) => match after.as_raw().element(field) {
            None => Gone,
            Some(is) if before.as_raw().element(field).is_some_and(|was| was.as_bytes() == is.as_bytes()) => {
                Not
            }
            Some(is) => Type(is.value().type_name()),
        },
    }
}

/// The number's type for a number; another type is refused. `new`: what a missing field becomes.
fn of_number(held: &Sample, new: Change) -> Change {
    match held.name {
        "missing" => new,
        name if held.is_number() => Type(name),
        _ => Error(14),
    }
}

/// An array may be changed, what is missing is made, the rest is refused.
fn of_array(held: &Sample, new: Change, array: Change, code: i32) -> Change {
    match held.name {
        "missing" => new,
        "array" => array,
        _ => Error(code),
    }
}

#[test]
fn updates() {
    for held in samples() {
        let missing = held.name == "missing";
        let replaced = |yes: bool| if missing || yes { Type("int") } else { Not };
        let whole = matches!(held.name, "int" | "long");
        let cases: [(&str, DocBuf, Change); 15] = [
            ("$inc", doc! { "v": 1 }, of_number(&held, Type("int"))),
            ("$mul", doc! { "v": 2 }, of_number(&held, Type("int"))),
            ("$min", doc! { "v": 4 }, replaced(held.rank >= NUMBERS)),
            ("$max", doc! { "v": 6 }, replaced(held.rank <= NUMBERS)),
            (
                "$bit",
                doc! { "v": { "or": 2 } },
                match held.name {
                    "missing" => Type("int"),
                    name if whole => Type(name),
                    _ => Error(2),
                },
            ),
            ("$push", doc! { "v": 1 }, of_array(&held, Type("array"), Type("array"), 2)),
            ("$addToSet", doc! { "v": 1 }, of_array(&held, Type("array"), Type("array"), 2)),
            ("$addToSet", doc! { "v": 77 }, of_array(&held, Type("array"), Not, 2)),
            ("$pull", doc! { "v": 77 }, of_array(&held, Not, Type("array"), 2)),
            ("$pull", doc! { "v": 1 }, of_array(&held, Not, Not, 2)),
            ("$pullAll", doc! { "v": [77] }, of_array(&held, Not, Type("array"), 2)),
            ("$pop", doc! { "v": 1 }, of_array(&held, Not, Type("array"), 14)),
            ("$unset", doc! { "v": 1 }, if missing { Not } else { Gone }),
            ("$currentDate", doc! { "v": { "$type": "timestamp" } }, Type("timestamp")),
            ("$currentDate", doc! { "v": true }, Type("date")),
        ];
        for (op, argument, expected) in cases {
            let update = DocBuf::new().with(op, &argument);
            assert_eq!(changed(&update, &held, "v"), expected, "{op} {argument:?} of {}", held.name);
        }
        let renamed = if missing { Not } else { Type(held.name) };
        assert_eq!(
            changed(&doc! { "$rename": { "v": "w" } }, &held, "w"),
            renamed,
            "$rename of {}",
            held.name
        );
        // What is set is what was given, of whatever type.
        if !missing {
            let update = DocBuf::new().with("$set", &DocBuf::new().with("w", held.value));
            assert_eq!(changed(&update, &held, "w"), Type(held.name), "$set to {}", held.name);
            let push = doc! { "$push": { "w": { "$each": [held.value], "$sort": 1 } } };
            assert_eq!(changed(&push, &held, "w"), Type("array"), "$push of {}", held.name);
        }
    }
}
