//! What filters, updates, projections and schemas are parsed to is the operation's memory.
#![allow(missing_docs)]

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, Binary, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result};
use sheaf_expr::ParseCx;
use sheaf_meter::{Meter, Process};
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::update::Update;

/// What an operation may have.
const LIMIT: u64 = 4 << 20;

type Parse = fn(RawDoc<'_>) -> Result<Box<dyn std::any::Any>>;

fn filter(spec: RawDoc<'_>) -> Result<Box<dyn std::any::Any>> {
    Ok(Box::new(Matcher::parse(spec, &mut ParseCx::new())?))
}

fn update(spec: RawDoc<'_>) -> Result<Box<dyn std::any::Any>> {
    let filters: Vec<DocBuf> = match spec.get("filters") {
        Some(Value::Array(filters)) => {
            filters.values().filter_map(|filter| filter.as_doc()).map(DocBuf::from).collect()
        }
        _ => Vec::new(),
    };
    let filters: Vec<RawDoc<'_>> = filters.iter().map(DocBuf::as_raw).collect();
    Ok(Box::new(Update::parse(spec.get_or_missing("u"), &filters, &mut ParseCx::new())?))
}

fn projection(spec: RawDoc<'_>) -> Result<Box<dyn std::any::Any>> {
    Ok(Box::new(Projection::parse(spec, Mode::Find, &mut ParseCx::new())?))
}

fn add_fields(spec: RawDoc<'_>) -> Result<Box<dyn std::any::Any>> {
    Ok(Box::new(Projection::parse_add_fields(spec, &mut ParseCx::new())?))
}

fn variables(spec: RawDoc<'_>) -> Result<Box<dyn std::any::Any>> {
    let mut cx = ParseCx::new();
    cx.declare_let(spec)?;
    Ok(Box::new(cx))
}

/// `{name: [value, value, ...]}`.
fn list(name: &str, n: usize, value: impl Fn(usize) -> DocBuf) -> DocBuf {
    let values: Vec<DocBuf> = (0..n).map(value).collect();
    DocBuf::new().with(name, Value::Array(ArrayBuf::of(&values).as_raw()))
}

fn numbers(n: usize) -> ArrayBuf {
    ArrayBuf::of(0..n as i32)
}

/// `{x0: value, x1: value, ...}`.
fn fields(n: usize, value: impl Fn(usize) -> DocBuf) -> DocBuf {
    let mut fields = DocBuf::new();
    (0..n).for_each(|at| _ = fields.append(&format!("x{at}"), value(at).as_raw().get_or_missing("")));
    fields
}

fn one(value: i32) -> DocBuf {
    DocBuf::new().with("", value)
}

fn u(operator: &str, fields: &DocBuf) -> DocBuf {
    doc! { "u": &DocBuf::new().with(operator, fields) }
}

/// A name, what parses it, and how it looks with so many parts.
type Shape = (&'static str, Parse, fn(usize) -> DocBuf);

fn shapes() -> Vec<Shape> {
    vec![
        ("or", filter, |n| list("$or", n, |at| doc! { "a": at as i32 })),
        ("and", filter, |n| list("$and", n, |at| doc! { "a": at as i32 })),
        ("nor", filter, |n| list("$nor", n, |at| doc! { "a": at as i32 })),
        ("many paths", filter, |n| list("$or", n, |at| DocBuf::new().with(&format!("x{at}"), 1))),
        ("fields", filter, |n| fields(n, |_| one(1))),
        ("operators", filter, |n| {
            let mut gts = DocBuf::new();
            (0..n).for_each(|at| _ = gts.append("$gt", at as i32));
            doc! { "a": &gts }
        }),
        ("in", filter, |n| doc! { "a": { "$in": &numbers(n) } }),
        ("nin", filter, |n| doc! { "a": { "$nin": &numbers(n) } }),
        ("all", filter, |n| doc! { "a": { "$all": &numbers(n) } }),
        ("elemMatch", filter, |n| doc! { "a": { "$elemMatch": &fields(n, |_| one(1)) } }),
        ("long paths", filter, |n| {
            list("$or", n / 10, |at| DocBuf::new().with(&format!("{}{at}", "a.".repeat(100)), 1))
        }),
        ("bits", filter, |n| {
            let ones = vec![0xff; n];
            let bits = Value::Binary(Binary { subtype: 0, bytes: &ones });
            doc! { "a": { "$bitsAllSet": bits } }
        }),
        ("expr", filter, |n| {
            doc! { "$expr": { "$or": &ArrayBuf::of(vec!["$a"; n]) } }
        }),
        ("switch", filter, |n| {
            doc! { "$expr": { "$switch": &list("branches", n, |_| doc! { "case": "$b", "then": "$c" }) } }
        }),
        ("object", filter, |n| doc! { "$expr": &fields(n, |_| doc! { "": "$a" }) }),
        ("properties", filter, |n| {
            doc! { "$jsonSchema": { "properties": &fields(n, |_| doc! { "": { "type": "string" } }) } }
        }),
        ("required", filter, |n| {
            let names: Vec<String> = (0..n / 4).map(|at| format!("{at:0>40}")).collect();
            doc! { "$jsonSchema": { "required": &ArrayBuf::of(&names) } }
        }),
        ("allOf", filter, |n| doc! { "$jsonSchema": &list("allOf", n, |_| doc! { "minLength": 1 }) }),
        ("set", update, |n| u("$set", &fields(n, |_| one(1)))),
        ("unset", update, |n| u("$unset", &fields(n, |_| one(1)))),
        ("rename", update, |n| u("$rename", &fields(n, |at| DocBuf::new().with("", &*format!("y{at}"))))),
        ("push", update, |n| u("$push", &doc! { "a": { "$each": &numbers(n) } })),
        ("addToSet", update, |n| u("$addToSet", &doc! { "a": { "$each": &numbers(n) } })),
        ("pullAll", update, |n| u("$pullAll", &doc! { "a": &numbers(n) })),
        ("pull", update, |n| u("$pull", &doc! { "a": { "$in": &numbers(n) } })),
        (
            "replacement",
            update,
            |n| doc! { "u": &fields(n, |at| DocBuf::new().with("", &*format!("{at:0>40}"))) },
        ),
        ("pipeline", update, |n| {
            let stage = doc! { "$set": &fields(n.min(20_000), |_| doc! { "": "$a" }) };
            doc! { "u": &ArrayBuf::of(&[stage]) }
        }),
        ("arrayFilters", update, |n| {
            let filters = ArrayBuf::of(&[doc! { "x": { "$in": &numbers(n) } }]);
            doc! { "u": { "$set": { "a.$[x]": 1 } }, "filters": &filters }
        }),
        ("projection", projection, |n| {
            fields(n.min(30_000), |at| DocBuf::new().with("", &doc! { "$add": ["$a", at as i32] }))
        }),
        ("addFields", add_fields, |n| {
            fields(n.min(20_000), |at| DocBuf::new().with("", &doc! { "$add": ["$a", at as i32] }))
        }),
        ("let", variables, |n| fields(n, |_| one(1))),
    ]
}

#[test]
fn large_trees_take_memory_and_end_where_there_is_none() {
    let mut wrong = Vec::new();
    for (name, parse, shape) in shapes() {
        let process = Process::new(2 * LIMIT, LIMIT);
        let _entered = sheaf_meter::enter(Meter::background(&process));
        let large = shape(200_000);
        match parse(large.as_raw()) {
            Ok(_) => wrong.push(format!("{name}: {} bytes are parsed", large.as_bytes().len())),
            Err(error) if error.code() != Code::EXCEEDED_MEMORY_LIMIT => {
                wrong.push(format!("{name}: {error}"))
            }
            Err(_) => {}
        }
        assert_eq!(process.used(), 0, "{name}: all comes back");
        let medium = shape(4000);
        let tree = parse(medium.as_raw()).unwrap();
        if process.used() < medium.as_bytes().len() as u64 * 9 / 10 && medium.as_bytes().len() > 64 << 10 {
            wrong.push(format!("{name}: {} bytes for {}", process.used(), medium.as_bytes().len()));
        }
        drop(tree);
        assert_eq!(process.used(), 0, "{name}: all comes back");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn small_trees_take_nothing() {
    for (name, parse, shape) in shapes() {
        let process = Process::new(2 * LIMIT, LIMIT);
        let meter = Meter::background(&process);
        let _entered = sheaf_meter::enter(Arc::clone(&meter));
        let tree = parse(shape(20).as_raw()).unwrap();
        assert_eq!(process.used(), 0, "{name}");
        // Not even an account was opened.
        assert!(format!("{meter:?}").contains("None"), "{name}: {meter:?}");
        drop(tree);
    }
}

/// Each level of a schema keeps a copy of what is below it.
#[test]
fn a_deep_schema_counts_on_every_level() {
    let process = Process::new(2 * LIMIT, LIMIT);
    let _entered = sheaf_meter::enter(Meter::background(&process));
    let mut schema = doc! { "description": &*"x".repeat(100_000) };
    for _ in 0..60 {
        schema = doc! { "not": &schema };
    }
    let filter = doc! { "$jsonSchema": &schema };
    let error = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap_err();
    assert_eq!(error.code(), Code::EXCEEDED_MEMORY_LIMIT);
}
