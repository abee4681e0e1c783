//! Filters in shapes: one condition after the other, as MongoDB reads them, none of them improved.

use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value, doc};

use super::literal::{Constants, put_literal};
use super::{expression, goes_on};

/// What it costs to write a condition, which is made by itself and then put among the others.
const CONDITION: u32 = 12;

/// The shape of a filter.
pub(super) fn shape(filter: Option<RawDoc<'_>>, constants: Constants) -> DocBuf {
    let mut conditions = Vec::new();
    for field in filter.unwrap_or(RawDoc::EMPTY).iter() {
        if !goes_on(CONDITION) {
            break;
        }
        top(field.key(), field.value(), constants, &mut conditions);
    }
    joined(conditions)
}

fn joined(mut conditions: Vec<DocBuf>) -> DocBuf {
    match conditions.len() {
        0 => DocBuf::new(),
        1 => conditions.remove(0),
        _ => doc! { "$and": &ArrayBuf::of(&conditions) },
    }
}

/// A field of a filter: a tree operator, an operator of whole documents, or a path.
fn top(key: &str, value: Value<'_>, constants: Constants, out: &mut Vec<DocBuf>) {
    match (key, value) {
        ("$comment" | "$atomic" | "$isolated", _) => {}
        ("$and" | "$or" | "$nor", Value::Array(items)) => {
            let items = items.values().take_while(|_| goes_on(CONDITION));
            let each: Vec<DocBuf> = items.map(|item| shape(item.as_doc(), constants)).collect();
            out.push(DocBuf::new().with(key, &ArrayBuf::of(&each)));
        }
        ("$expr", value) => out.push(DocBuf::build(|doc| expression::put(doc, key, value, constants))),
        ("$text", Value::Document(spec)) => out.push(DocBuf::build(|doc| {
            let mut text = doc.document(key);
            let fields = [
                ("$search", Value::String("")),
                ("$language", Value::String("")),
                ("$caseSensitive", Value::Bool(false)),
                ("$diacriticSensitive", Value::Bool(false)),
            ];
            for (name, default) in fields {
                put_literal(&mut text, name, spec.get(name).unwrap_or(default), constants);
            }
        })),
        ("$where", _) => {
            out.push(DocBuf::build(|doc| put_literal(doc, key, Value::JavaScript(""), constants)));
        }
        (operator, value) if operator.starts_with('$') => {
            out.push(DocBuf::build(|doc| put_literal(doc, operator, value, constants)));
        }
        (path, value) => on_path(path, value, constants, out),
    }
}

/// Conditions on a path.
fn on_path(path: &str, value: Value<'_>, constants: Constants, out: &mut Vec<DocBuf>) {
    for condition in conditions(value, constants) {
        out.push(DocBuf::new().with(path, &condition));
    }
}

/// What a value says about a path, one document for each condition; a conjunction stands as `$and` of the path's own conditions.
fn conditions(value: Value<'_>, constants: Constants) -> Vec<DocBuf> {
    match value {
        Value::Regex(regex) => vec![regex_shape(regex.options, constants)],
        Value::Document(operators)
            if operators.iter().next().is_some_and(|first| first.key().starts_with('$')) =>
        {
            let options = operators.get("$options").and_then(|options| options.as_str()).unwrap_or("");
            let fields = operators.iter().take_while(|_| goes_on(CONDITION)).filter(|field| {
                !matches!(field.key(), "$options" | "$maxDistance" | "$minDistance" | "$comment")
            });
            fields.flat_map(|field| operator(field.key(), field.value(), options, constants)).collect()
        }
        constant => vec![one("$eq", constant, constants)],
    }
}

fn one(name: &str, value: Value<'_>, constants: Constants) -> DocBuf {
    DocBuf::build(|out| put_literal(out, name, value, constants))
}

fn not(inner: DocBuf) -> DocBuf {
    doc! { "$not": &inner }
}

fn operator(name: &str, value: Value<'_>, options: &str, constants: Constants) -> Vec<DocBuf> {
    let one = |name: &str, value| one(name, value, constants);
    match (name, value) {
        ("$ne", Value::Regex(regex)) => vec![not(regex_shape(regex.options, constants))],
        ("$eq", Value::Regex(_)) => vec![one("$eq", value)],
        ("$ne", value) => vec![not(one("$eq", value))],
        ("$nin", value) => vec![not(one("$in", value))],
        ("$not", value) => {
            let mut inner = conditions(value, constants);
            match inner.len() {
                1 => vec![not(inner.remove(0))],
                _ => vec![not(merged(&inner))],
            }
        }
        ("$exists", value) => {
            let exists = one("$exists", Value::Bool(true));
            vec![if value.truthy() { exists } else { not(exists) }]
        }
        ("$type", value) => {
            let kinds = match value {
                Value::Array(items) => {
                    let items = items.values().take_while(|_| goes_on(1));
                    ArrayBuf::build(|out| items.for_each(|item| _ = out.push(item)))
                }
                only => ArrayBuf::build(|out| _ = out.push(only)),
            };
            vec![doc! { "$type": &kinds }]
        }
        ("$mod", _) => vec![match constants {
            Constants::Representative => doc! { "$mod": [1, 1] },
            Constants::TypeNames => doc! { "$mod": ["?number", "?number"] },
        }],
        ("$all", Value::Array(items)) => {
            let items = items.values().take_while(|_| goes_on(CONDITION));
            items.flat_map(|item| conditions(item, constants)).collect()
        }
        ("$regex", value) => {
            let options = match value {
                Value::Regex(regex) if options.is_empty() => regex.options,
                _ => options,
            };
            vec![regex_shape(options, constants)]
        }
        ("$elemMatch", Value::Document(inner)) => {
            let of_values = inner.iter().next().is_some_and(|first| {
                first.key().starts_with('$') && !matches!(first.key(), "$and" | "$or" | "$nor" | "$where")
            });
            let inner = if of_values {
                merged(&conditions(Value::Document(inner), constants))
            } else {
                shape(Some(inner), constants)
            };
            vec![doc! { "$elemMatch": &inner }]
        }
        ("$geoWithin" | "$within" | "$geoIntersects" | "$near" | "$nearSphere", value) => {
            vec![DocBuf::build(|out| put_geometry(out, name, value, constants))]
        }
        (name, value) => vec![one(name, value)],
    }
}

/// Conditions of one value, in one document.
fn merged(conditions: &[DocBuf]) -> DocBuf {
    DocBuf::build(|out| {
        for condition in conditions {
            out.append_all(condition.as_raw());
        }
    })
}

fn regex_shape(options: &str, constants: Constants) -> DocBuf {
    let (pattern, flags) = match constants {
        Constants::Representative => ("\\?", "i"),
        Constants::TypeNames => ("?string", "?string"),
    };
    let shape = doc! { "$regex": pattern };
    if options.is_empty() { shape } else { shape.with("$options", flags) }
}

/// Geometries keep the names of their parts.
fn put_geometry(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>, constants: Constants) {
    match value {
        Value::Document(parts) => {
            let mut inner = out.document(name);
            for part in parts.iter().take_while(|_| goes_on(1)) {
                match part.key() {
                    "type" => _ = inner.append("type", part.value()),
                    key => put_geometry(&mut inner, key, part.value(), constants),
                }
            }
        }
        constant => put_literal(out, name, constant, constants),
    }
}
