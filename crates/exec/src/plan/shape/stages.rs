//! Pipelines and projections in shapes. A stage that is short for others is shown as these.

use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value, doc};

use super::literal::{Constants, put_literal};
use super::{expression, filter, goes_on, put_sort};

/// What it costs to write a stage.
const STAGE: u32 = 12;

/// What it costs to write a field.
const FIELD: u32 = 4;

/// The shape of a pipeline.
pub(super) fn pipeline(stages: RawDoc<'_>, constants: Constants) -> ArrayBuf {
    ArrayBuf::build(|out| {
        for stage in stages.values().take_while(|_| goes_on(STAGE)) {
            let Some(field) = stage.as_doc().and_then(|stage| stage.iter().next()) else { continue };
            for shape in stage_shapes(field.key(), field.value(), constants) {
                out.push(&shape);
            }
        }
    })
}

fn stage_shapes(name: &str, argument: Value<'_>, constants: Constants) -> Vec<DocBuf> {
    let single = |fill: &dyn Fn(&mut DocWriter<'_, Vec<u8>>)| vec![DocBuf::build(fill)];
    match (name, argument) {
        ("$match", argument) => {
            vec![doc! { "$match": &filter::shape(argument.as_doc(), constants) }]
        }
        ("$limit" | "$skip", value) => single(&|out| put_literal(out, name, value, constants)),
        ("$sort", Value::Document(sort)) => single(&|out| put_sort(&mut out.document(name), sort)),
        ("$project", Value::Document(spec)) => vec![doc! { "$project": &projection(spec, constants) }],
        ("$unset", argument) => {
            let excluded = match argument {
                Value::Array(names) => DocBuf::build(|out| {
                    names
                        .values()
                        .take_while(|_| goes_on(FIELD))
                        .filter_map(|name| name.as_str())
                        .filter(|name| is_name(name))
                        .for_each(|name| _ = out.append(name, false));
                    out.append("_id", true);
                }),
                name => {
                    let name = name.as_str().filter(|name| is_name(name));
                    DocBuf::new().with(name.unwrap_or(""), false).with("_id", true)
                }
            };
            vec![doc! { "$project": &excluded }]
        }
        ("$count", Value::String(field)) if is_name(field) => {
            let group = DocBuf::build(|out| {
                expression::put(out, "_id", Value::Null, constants);
                expression::put(&mut out.document(field), "$sum", Value::Int32(1), constants);
            });
            let shown = DocBuf::new().with(field, true).with("_id", false);
            vec![doc! { "$group": &group }, doc! { "$project": &shown }]
        }
        ("$sortByCount", by) => {
            let group = DocBuf::build(|out| {
                expression::put(out, "_id", by, constants);
                expression::put(&mut out.document("count"), "$sum", Value::Int32(1), constants);
            });
            vec![doc! { "$group": &group }, doc! { "$sort": { "count": -1 } }]
        }
        ("$unwind", Value::String(path)) => vec![doc! { "$unwind": { "path": path } }],
        ("$replaceWith", root) => {
            single(&|out| expression::put(&mut out.document("$replaceRoot"), "newRoot", root, constants))
        }
        ("$group", Value::Document(spec)) => single(&|out| {
            let mut group = out.document(name);
            for field in spec.iter().take_while(|_| goes_on(FIELD)) {
                put_accumulation(&mut group, field.key(), field.value(), constants);
            }
        }),
        ("$lookup" | "$unionWith" | "$graphLookup" | "$merge" | "$out", Value::Document(spec)) => {
            single(&|out| put_joining(&mut out.document(name), spec, constants))
        }
        ("$unionWith", Value::String(coll)) => vec![doc! { "$unionWith": { "coll": coll, "pipeline": [] } }],
        ("$facet", Value::Document(facets)) => single(&|out| {
            let mut inner = out.document(name);
            for facet in facets.iter().take_while(|_| goes_on(FIELD)) {
                let stages = facet.value().as_array().unwrap_or(RawDoc::EMPTY);
                inner.append(facet.key(), &pipeline(stages, constants));
            }
        }),
        ("$querySettings" | "$queryStats" | "$currentOp" | "$collStats" | "$indexStats", argument) => {
            vec![DocBuf::new().with(name, argument)]
        }
        (name, argument) => single(&|out| expression::put(out, name, argument, constants)),
    }
}

/// Whether a string can be the name of a field: shapes are made of requests that are refused, too.
fn is_name(text: &str) -> bool {
    !text.contains('\0')
}

/// A field of `$group`: the only argument of an accumulator stands by itself.
fn put_accumulation(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>, constants: Constants) {
    match value.as_doc().and_then(|spec| spec.iter().next()) {
        Some(first) if name != "_id" && first.key().starts_with('$') => {
            expression::put(&mut out.document(name), first.key(), first.value(), constants);
        }
        _ => expression::put(out, name, value, constants),
    }
}

/// Stages that name collections and fields: these are no constants.
fn put_joining(out: &mut DocWriter<'_, Vec<u8>>, spec: RawDoc<'_>, constants: Constants) {
    // The places come first, in this order.
    let order = ["from", "as", "localField", "foreignField", "coll"];
    let named = order.iter().filter_map(|name| spec.element(name));
    let rest = spec.iter().filter(|field| !order.contains(&field.key()));
    for field in named.chain(rest) {
        match (field.key(), field.value()) {
            ("pipeline" | "whenMatched", Value::Array(stages)) => {
                out.append(field.key(), &pipeline(stages, constants));
            }
            ("let", Value::Document(variables)) => {
                let mut inner = out.document("let");
                for variable in variables.iter().take_while(|_| goes_on(FIELD)) {
                    expression::put(&mut inner, variable.key(), variable.value(), constants);
                }
            }
            ("startWith", value) => expression::put(out, "startWith", value, constants),
            ("maxDepth", value) => put_literal(out, "maxDepth", value, constants),
            ("restrictSearchWithMatch", value) => {
                out.append("restrictSearchWithMatch", &filter::shape(value.as_doc(), constants));
            }
            _ => _ = out.append_element(field),
        }
    }
}

/// The shape of a projection: what it takes and leaves as booleans, and whether the `_id` is with it.
pub(super) fn projection(spec: RawDoc<'_>, constants: Constants) -> DocBuf {
    DocBuf::build(|out| {
        for field in spec.iter().take_while(|_| goes_on(FIELD)) {
            put_projected(out, field.key(), field.value(), constants);
        }
        if spec.get("_id").is_none() {
            out.append("_id", true);
        }
    })
}

fn put_projected(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>, constants: Constants) {
    match value {
        Value::Bool(_) => _ = out.append(name, value),
        number if number.is_number() => _ = out.append(name, number.truthy()),
        Value::Document(spec) => match spec.iter().next() {
            Some(first) if first.key() == "$elemMatch" => {
                let inner = filter::shape(first.value().as_doc(), constants);
                out.document(name).append("$elemMatch", &inner);
            }
            Some(first) if first.key() == "$slice" => {
                put_literal(&mut out.document(name), "$slice", first.value(), constants);
            }
            Some(first) if !first.key().starts_with('$') => {
                let mut inner = out.document(name);
                spec.iter()
                    .take_while(|_| goes_on(FIELD))
                    .for_each(|field| put_projected(&mut inner, field.key(), field.value(), constants));
            }
            _ => expression::put(out, name, value, constants),
        },
        value => expression::put(out, name, value, constants),
    }
}
