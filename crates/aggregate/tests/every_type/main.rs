//! Every operator of a family meets a value of every BSON type. What has to come out is worked out here from the rules of the manual
//! (order of comparison, bracketing by type, what each operator takes), not from what comes out.
#![allow(missing_docs)]

#[path = "../../../expr/tests/common/mod.rs"]
mod notation;
#[path = "../nowhere/mod.rs"]
mod nowhere;
mod samples;
mod table;
mod updates;
mod values;

use nowhere::{go_on, nowhere};
use samples::{NUMBERS, Sample, samples};
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, Bump, DocBuf, Value, array, doc};
use sheaf_errors::Result;
use sheaf_expr::{Env, Expr, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_rows::{Cx, Documents, Limits, Operator, pull};

/// What an operator makes of a value.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Error(i32),
    /// The name of the result's type.
    Type(&'static str),
    Bool(bool),
    Int(i32),
}

use Outcome::{Error, Type};

fn outcome(result: Result<Value<'_>>) -> Outcome {
    match result {
        Err(error) => Error(error.code().0),
        Ok(Value::Bool(is)) => Outcome::Bool(is),
        Ok(Value::Int32(n)) => Outcome::Int(n),
        Ok(value) => Type(value.type_name()),
    }
}

/// What an expression makes of a document.
fn evaluated(spec: &DocBuf, document: &DocBuf) -> Outcome {
    let mut cx = ParseCx::new();
    let expr = Expr::parse(Value::Document(spec.as_raw()), &mut cx).expect("it parses");
    cx.finish().expect("nothing constant fails");
    let arena = Bump::new();
    outcome(expr.eval(document.as_raw(), &Env::new(&arena)))
}

fn matches(filter: &DocBuf, document: &DocBuf) -> Outcome {
    match Matcher::parse(filter.as_raw(), &mut ParseCx::new()) {
        Err(error) => Error(error.code().0),
        Ok(matcher) => Outcome::Bool(matcher.matches_doc(document.as_raw()).expect("it can be asked")),
    }
}

/// Whether a value, seen by itself, stands so to an operand in a query: types do not mix, but with the ends of the order.
fn stands(op: &str, rank: i32, order: std::cmp::Ordering, operand: &Sample) -> bool {
    let across = matches!(operand.name, "minKey" | "maxKey");
    if rank != operand.rank && !across {
        return false;
    }
    match op {
        "$eq" => order.is_eq(),
        "$lt" => order.is_lt(),
        "$lte" => order.is_le(),
        "$gt" => order.is_gt(),
        _ => order.is_ge(),
    }
}

/// Whether a field that holds the sample matches.
fn field_stands(op: &str, held: &Sample, operand: &Sample) -> bool {
    // A missing field is null to a query, and undefined is not.
    let rank = match (held.name, operand.name) {
        ("missing", "null") => operand.rank,
        ("undefined", "null") => -100,
        _ => held.rank,
    };
    let own = stands(op, rank, held.rank.max(rank).cmp(&operand.rank), operand);
    // The array's only element is 77.
    let element = held.name == "array" && {
        let order = if operand.is_number() { 77.cmp(&5) } else { NUMBERS.cmp(&operand.rank) };
        stands(op, NUMBERS, order, operand)
    };
    own || element
}

#[test]
fn comparisons_of_queries() {
    for operand in samples().iter().filter(|operand| operand.name != "missing") {
        for held in samples() {
            for op in ["$eq", "$lt", "$lte", "$gt", "$gte", "$ne", "$in", "$nin"] {
                let list = array![operand.value];
                let value = if op.ends_with("in") { Value::Array(list.as_raw()) } else { operand.value };
                let filter = DocBuf::new().with("v", &DocBuf::new().with(op, value));
                let is_regex = operand.name == "regex";
                // A regular expression in a list is a pattern, too; strings and symbols have its letter.
                let fits = is_regex && op.ends_with("in") && matches!(held.name, "string" | "symbol");
                let expected = match op {
                    _ if operand.name == "undefined" => Error(2),
                    "$lt" | "$lte" | "$gt" | "$gte" | "$ne" if is_regex => Error(2),
                    "$ne" | "$nin" => Outcome::Bool(!field_stands("$eq", &held, operand) && !fits),
                    "$in" => Outcome::Bool(field_stands("$eq", &held, operand) || fits),
                    op => Outcome::Bool(field_stands(op, &held, operand)),
                };
                let is = matches(&filter, &held.document());
                assert_eq!(is, expected, "{} {op} {}", held.name, operand.name);
            }
        }
    }
}

#[test]
fn types_of_queries_and_expressions() {
    for asked in samples().iter().filter(|asked| asked.name != "missing") {
        for held in samples() {
            let is = held.name == asked.name || (held.name == "array" && asked.name == "int");
            for value in [Value::String(asked.name), Value::Int32(asked.number)] {
                let filter = DocBuf::new().with("v", &DocBuf::new().with("$type", value));
                let found = matches(&filter, &held.document());
                assert_eq!(found, Outcome::Bool(is), "{} of type {}", held.name, asked.name);
            }
        }
    }
    for held in samples() {
        let number = matches(&doc! { "v": { "$type": "number" } }, &held.document());
        assert_eq!(number, Outcome::Bool(held.is_number() || held.name == "array"), "{}", held.name);
        let is = Outcome::Bool(held.name != "missing");
        assert_eq!(matches(&doc! { "v": { "$exists": true } }, &held.document()), is, "{}", held.name);
        let is = doc! { "$eq": [{ "$type": "$v" }, held.name] };
        assert_eq!(evaluated(&is, &held.document()), Outcome::Bool(true), "$type of {}", held.name);
        assert_eq!(
            evaluated(&doc! { "$isNumber": "$v" }, &held.document()),
            Outcome::Bool(held.is_number()),
            "{}",
            held.name
        );
    }
}

#[test]
fn order_of_expressions_and_sorts() {
    for one in samples() {
        for other in samples() {
            let document = doc! { "_id": 1 };
            let with = |document: DocBuf, name: &str, sample: &Sample| match sample.name {
                "missing" => document,
                _ => document.with(name, sample.value),
            };
            let document = with(with(document, "a", &one), "b", &other);
            let order = one.rank.cmp(&other.rank);
            let is = evaluated(&doc! { "$cmp": ["$a", "$b"] }, &document);
            assert_eq!(is, Outcome::Int(order as i32), "{} $cmp {}", one.name, other.name);
            for (op, holds) in [
                ("$eq", order.is_eq()),
                ("$ne", order.is_ne()),
                ("$lt", order.is_lt()),
                ("$lte", order.is_le()),
                ("$gt", order.is_gt()),
                ("$gte", order.is_ge()),
            ] {
                let spec = DocBuf::new().with(op, Value::Array(array!["$a", "$b"].as_raw()));
                let is = evaluated(&spec, &document);
                assert_eq!(is, Outcome::Bool(holds), "{} {op} {}", one.name, other.name);
            }
        }
    }
    // A sort takes a missing field for null, and an array by an element of it.
    for direction in [1, -1] {
        let all = samples();
        let rank = |name: &str| match name {
            "missing" => 5,
            "array" => NUMBERS,
            _ => all.iter().find(|sample| sample.name == name).map_or(-100, |sample| sample.rank),
        };
        let documents = all.iter().map(|sample| sample.document().with("name", sample.name)).collect();
        let rows = run(&doc! { "$sort": { "v": direction } }, documents).expect("it sorts");
        let mut ranks: Vec<i32> = rows
            .iter()
            .map(|row| rank(row.as_raw().get_or_missing("name").as_str().unwrap_or_default()))
            .collect();
        if direction < 0 {
            ranks.reverse();
        }
        assert_eq!(ranks.len(), all.len());
        assert!(ranks.is_sorted(), "{direction}: {ranks:?}");
    }
}

#[test]
fn arithmetic() {
    for held in samples() {
        for op in ["$add", "$subtract", "$multiply", "$divide", "$mod"] {
            let spec = DocBuf::new().with(op, Value::Array(array!["$v", 2].as_raw()));
            let refused = if op == "$mod" { 16611 } else { 14 };
            let expected = match held.name {
                _ if held.is_nullish() => Type("null"),
                "int" | "long" if op == "$divide" => Type("double"),
                "int" => Outcome::Int(match op {
                    "$add" => 7,
                    "$subtract" => 3,
                    "$multiply" => 10,
                    _ => 1,
                }),
                "date" if matches!(op, "$add" | "$subtract") => Type("date"),
                name if held.is_number() => Type(name),
                _ => Error(refused),
            };
            assert_eq!(evaluated(&spec, &held.document()), expected, "{op} of {}", held.name);
        }
        for op in ["$abs", "$ceil", "$floor", "$sqrt", "$exp", "$ln", "$sin", "$degreesToRadians"] {
            let spec = DocBuf::new().with(op, "$v");
            let keeps = matches!(op, "$abs" | "$ceil" | "$floor");
            let expected = match held.name {
                _ if held.is_nullish() => Type("null"),
                "int" if keeps => Outcome::Int(5),
                "int" | "long" if !keeps => Type("double"),
                name if held.is_number() => Type(name),
                _ => Error(28765),
            };
            assert_eq!(evaluated(&spec, &held.document()), expected, "{op} of {}", held.name);
        }
    }
}

#[test]
fn conversions() {
    let from: [(&str, &str); 8] = [
        ("int", "int long double decimal bool binData"),
        ("long", "int long double decimal bool date binData"),
        ("double", "int long double decimal bool date"),
        ("decimal", "int long double decimal bool date"),
        ("string", "int long double decimal bool date string objectId"),
        ("objectId", "objectId"),
        ("date", "long double decimal date objectId timestamp"),
        ("bool", ""),
    ];
    for (to, takes) in from {
        for held in samples() {
            // Binary data becomes text in a format that has to be named.
            if to == "string" && held.name == "binData" {
                continue;
            }
            let spec = doc! { "$convert": { "input": "$v", "to": to } };
            let takes = to == "bool" || takes.split(' ').any(|name| name == held.name);
            let expected = match to {
                _ if held.is_nullish() => Type("null"),
                _ if !takes => Error(241),
                "bool" => Outcome::Bool(true),
                "int" => Outcome::Int(match held.name {
                    "bool" => 1,
                    "binData" => i32::from(u16::from_le_bytes(*b"ab")),
                    _ => 5,
                }),
                to => Type(to),
            };
            assert_eq!(evaluated(&spec, &held.document()), expected, "{} to {to}", held.name);
            if held.is_nullish() || !takes {
                let spec = doc! { "$convert": { "input": "$v", "to": to, "onError": 1, "onNull": 2 } };
                let expected = Outcome::Int(if held.is_nullish() { 2 } else { 1 });
                assert_eq!(evaluated(&spec, &held.document()), expected, "{} to {to}", held.name);
            }
        }
    }
}

/// What a stage makes of documents.
fn run(stage: &DocBuf, documents: Vec<DocBuf>) -> Result<Vec<DocBuf>> {
    let stages = ArrayBuf::of([Value::Document(stage.as_raw())]);
    let mut cx = ParseCx::new();
    let pipeline = Pipeline::parse(stages.as_raw(), &Namespace::new("test", "c"), &mut cx)?;
    cx.finish()?;
    let mut rows = pipeline.open(Box::new(Documents::new(documents)), &nowhere());
    let limits = Limits { memory_bytes: 1 << 20, allow_disk_use: false, now_millis: 0 };
    let mut cx = Cx::new(limits, &go_on);
    let mut out = Vec::new();
    while pull(&mut rows, &mut cx)? {
        out.push(DocBuf::from(rows.row().document()));
    }
    Ok(out)
}

#[test]
fn accumulators() {
    for held in samples() {
        // MongoDB's engine that runs groups gives the ends of the order in a document.
        let is_end = matches!(held.name, "minKey" | "maxKey");
        let own = match held.name {
            "missing" => "null",
            _ if is_end => "object",
            name => name,
        };
        let number = |n: i32| if held.name == "int" { Outcome::Int(n) } else { Type(held.name) };
        let own = if held.name == "int" {
            Outcome::Int(5)
        } else if held.name == "bool" {
            Outcome::Bool(true)
        } else {
            Type(own)
        };
        let of_numbers = |none: Outcome| match held.name {
            "decimal" => Type("decimal"),
            _ if held.is_number() => Type("double"),
            _ => none,
        };
        let merged = match held.name {
            _ if held.is_nullish() || held.name == "object" => Type("object"),
            // It has an error of its own, too.
            _ => Error(5_911_200),
        };
        let least = if held.is_nullish() { Type("null") } else { own.clone() };
        let deviation = if held.is_number() { Type("double") } else { Type("null") };
        let all = [
            ("$sum", if held.is_number() { number(5) } else { Outcome::Int(0) }),
            ("$avg", of_numbers(Type("null"))),
            ("$min", least.clone()),
            ("$max", least),
            ("$first", own.clone()),
            ("$last", own),
            ("$stdDevPop", deviation),
            ("$stdDevSamp", Type("null")),
            ("$mergeObjects", merged),
        ];
        for (op, expected) in all {
            let stage = doc! { "$group": { "_id": 1, "r": { op: "$v" } } };
            let rows = run(&stage, vec![held.document()]);
            let is =
                outcome(rows.as_ref().map(|rows| rows[0].as_raw().get_or_missing("r")).map_err(Clone::clone));
            assert_eq!(is, expected, "{op} of {}", held.name);
        }
        let length = usize::from(held.name != "missing");
        for op in ["$push", "$addToSet"] {
            let stage = doc! { "$group": { "_id": 1, "r": { op: "$v" } } };
            let rows = run(&stage, vec![held.document(), held.document()]).expect("they gather");
            let list = rows[0].as_raw().get_or_missing("r").as_array().expect("a list");
            let wanted = if op == "$push" { 2 * length } else { length };
            assert_eq!(list.values().count(), wanted, "{op} of {}", held.name);
            let of_each = if is_end && op == "$addToSet" { "object" } else { held.name };
            assert!(list.values().all(|value| value.type_name() == of_each), "{op} of {}", held.name);
        }
    }
}
