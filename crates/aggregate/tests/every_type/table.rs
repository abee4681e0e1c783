//! Golden tables: what every expression, accumulator, query operator and update makes of [values] of every type. A file of `table` is a
//! list of requests; below each stand its answers, every one with the values that give it. `UPDATE=1` in the environment writes the
//! answers anew.
#![allow(clippy::disallowed_methods, reason = "a test reads and writes its tables")]

use std::fmt::Write;
use std::path::Path;

use sheaf_bson::{ArrayBuf, Bump, DocBuf, OwnedValue, Timestamp, Value, doc};
use sheaf_errors::Error;
use sheaf_expr::{Env, Expr, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_query::update::{ApplyCx, Update};

use crate::notation::{read, show};
use crate::run;
use crate::values::{Named, values};

const NOW: i64 = 1_700_000_000_000;

/// An error, in which the value's type is not named: what differs in nothing else is one answer.
fn failed(mark: &str, error: &Error, of: Value<'_>) -> String {
    let name = of.type_name();
    let message = error.message().replace('\n', " ").replace('\0', "\\0");
    let words = message.split_inclusive(|c: char| !c.is_alphanumeric());
    let message: String = words
        .map(|word| {
            let bare = word.trim_end_matches(|c: char| !c.is_alphanumeric());
            if bare == name && name.len() > 2 { word.replacen(name, "<type>", 1) } else { word.to_owned() }
        })
        .collect();
    format!("{mark}{} {message}", error.code().0)
}

/// The request with this value for every `V`.
fn with(request: Value<'_>, value: Value<'_>) -> OwnedValue {
    match request {
        Value::String("<V>") => OwnedValue::from(value),
        Value::Document(request) => {
            let mut out = DocBuf::new();
            for field in request {
                out.append(field.key(), with(field.value(), value).as_value());
            }
            OwnedValue::from(Value::Document(out.as_raw()))
        }
        Value::Array(request) => {
            let items: Vec<_> = request.values().map(|item| with(item, value)).collect();
            OwnedValue::from(Value::Array(ArrayBuf::of(items.iter().map(OwnedValue::as_value)).as_raw()))
        }
        plain => OwnedValue::from(plain),
    }
}

fn holding(id: i32, value: Value<'_>) -> DocBuf {
    let document = doc! { "_id": id };
    if matches!(value, Value::Missing) { document } else { document.with("v", value) }
}

/// A line's request, and whether it has the value as an argument.
fn request(text: &str) -> (OwnedValue, bool) {
    let marked = ["}", "]", ","]
        .iter()
        .fold(text.to_owned(), |text, end| text.replace(&format!("V{end}"), &format!("\"<V>\"{end}")));
    let has = marked != text;
    (read(&marked).0, has)
}

fn expression(request: &str, value: &Named) -> String {
    let (spec, _) = self::request(request);
    let mut cx = ParseCx::new().with_now(NOW);
    let parsed = Expr::parse(spec.as_value(), &mut cx).and_then(|expr| cx.finish().map(|()| expr));
    let expr = match parsed {
        Ok(expr) => expr,
        Err(error) => return failed("!!", &error, value.value()),
    };
    let (arena, document) = (Bump::new(), holding(1, value.value()));
    match expr.eval(document.as_raw(), &Env::new(&arena)) {
        Ok(found) if show(found) == show(value.value()) && value.name.len() > 4 => "itself".to_owned(),
        Ok(found) => show(found),
        Err(error) => failed("!", &error, value.value()),
    }
}

fn accumulator(line: &str, value: &Named) -> String {
    let (spec, over) = line.split_once(" over ").expect("an accumulator over documents");
    let (spec, _) = request(spec);
    let spec = with(spec.as_value(), value.value());
    let documents = match over {
        "[v]" => vec![holding(1, value.value())],
        "[7, v]" => vec![holding(1, Value::Int32(7)), holding(2, value.value())],
        "[v, 7]" => vec![holding(1, value.value()), holding(2, Value::Int32(7))],
        _ => vec![holding(1, Value::Int32(5))],
    };
    let stage = DocBuf::new().with("$group", &doc! { "_id": 1 }.with("r", spec.as_value()));
    match run(&stage, documents) {
        Ok(rows) => match rows[0].as_raw().get_or_missing("r") {
            // A set has no order.
            Value::Array(set) if line.starts_with("{$addToSet") || line.starts_with("{$setUnion") => {
                let mut items: Vec<_> = set.values().map(show).collect();
                items.sort();
                format!("set of {}", items.join(", "))
            }
            found if show(found) == show(value.value()) && value.name.len() > 4 => "itself".to_owned(),
            found => show(found),
        },
        Err(error) => failed("!", &error, value.value()),
    }
}

fn query(line: &str, value: &Named) -> String {
    let (filter, is_argument) = request(line);
    let filter = with(filter.as_value(), value.value());
    let held = if is_argument { Value::Int32(5) } else { value.value() };
    let mut cx = ParseCx::new().with_now(NOW);
    let filter = filter.as_value().as_doc().expect("a filter");
    let parsed = Matcher::parse(filter, &mut cx).and_then(|matcher| cx.finish().map(|()| matcher));
    match parsed.and_then(|matcher| matcher.matches_doc(holding(1, held).as_raw())) {
        Ok(true) => "matches".to_owned(),
        Ok(false) => "does not".to_owned(),
        Err(error) => failed("!", &error, value.value()),
    }
}

fn update(line: &str, value: &Named) -> String {
    let (update, is_argument) = request(line);
    let update = with(update.as_value(), value.value());
    let held = if is_argument { holding(1, Value::Int32(5)) } else { holding(1, value.value()) };
    let mut cx = ParseCx::new().with_now(NOW);
    let parsed =
        Update::parse(update.as_value(), &[], &mut cx).and_then(|update| cx.finish().map(|()| update));
    let update = match parsed {
        Ok(update) => update,
        Err(error) => return failed("!!", &error, value.value()),
    };
    let cx = ApplyCx { matched_index: None, now_millis: NOW, timestamp: Timestamp::new(7, 1) };
    match update.apply(held.as_raw(), &cx) {
        Ok(None) => "same".to_owned(),
        Ok(Some(after)) => {
            let fields = after.as_raw().iter().filter(|field| field.key() != "_id");
            let fields = fields.map(|field| match field.value() {
                found if show(found) == show(value.value()) && value.name.len() > 4 => {
                    format!("{}: itself", field.key())
                }
                found => format!("{}: {}", field.key(), show(found)),
            });
            fields.collect::<Vec<_>>().join(", ")
        }
        Err(error) => failed("!", &error, value.value()),
    }
}

/// The names of values; for all of a type, and for all numbers, one name.
fn names(of: &[usize], values: &[Named]) -> String {
    let numbers = ["int", "long", "double", "decimal"];
    let kind = |at: usize| values[at].value().type_name();
    let whole = |wanted: &dyn Fn(&str) -> bool| {
        let all: Vec<_> = (0..values.len()).filter(|at| wanted(kind(*at))).collect();
        (all.len() > 1 && all.iter().all(|at| of.contains(at))).then_some(all[0])
    };
    let all_numbers = whole(&|kind| numbers.contains(&kind));
    let mut out = Vec::new();
    for &at in of {
        match (all_numbers, whole(&|other| other == kind(at))) {
            (Some(first), _) if numbers.contains(&kind(at)) => {
                if first == at {
                    out.push("all numbers".to_owned());
                }
            }
            (_, Some(first)) if first == at => out.push(format!("all {}", kind(at))),
            (_, Some(_)) => {}
            (_, None) => out.push(values[at].name.clone()),
        }
    }
    out.join(", ")
}

/// The answers to a request, in the order in which they come first.
fn answers(line: &str, answer: fn(&str, &Named) -> String, values: &[Named]) -> String {
    let is_argument = request(line.split(" over ").next().unwrap_or(line)).1;
    let mut answers: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, value) in values.iter().enumerate().filter(|(_, value)| !is_argument || value.name != "missing")
    {
        let is = answer(line, value);
        match answers.iter_mut().find(|(other, _)| *other == is) {
            Some((_, of)) => of.push(at),
            None => answers.push((is, vec![at])),
        }
    }
    let mut out = String::new();
    for (answer, of) in answers {
        writeln!(out, "{answer} <- {}", names(&of, values)).unwrap();
    }
    out
}

fn check(name: &str, answer: fn(&str, &Named) -> String) {
    let path = Path::new("tests/every_type/table").join(name);
    let before = std::fs::read_to_string(&path).expect("a table");
    let values = values();
    let mut after = String::new();
    for line in
        before.lines().filter(|line| line.is_empty() || line.starts_with("# ") || line.starts_with("== "))
    {
        writeln!(after, "{line}").unwrap();
        if let Some(request) = line.strip_prefix("== ") {
            after.push_str(&answers(request, answer, &values));
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, after).expect("writing a table");
        return;
    }
    let mut request = "";
    for (expected, found) in before.lines().zip(after.lines()) {
        if expected.starts_with("== ") {
            request = expected;
        }
        assert_eq!(expected, found, "{name}: {request}");
    }
    assert_eq!(before.lines().count(), after.lines().count(), "{name}");
}

#[test]
fn table_of_expressions() {
    check("expressions.txt", expression);
}

#[test]
fn table_of_accumulators() {
    check("accumulators.txt", accumulator);
}

#[test]
fn table_of_queries() {
    check("queries.txt", query);
}

#[test]
fn table_of_updates() {
    check("updates.txt", update);
}
