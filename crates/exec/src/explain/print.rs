//! The stages of a pipeline as explain prints them.

use sheaf_aggregate::Pipeline;
use sheaf_bson::{Bump, DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_expr::{Expr, ParseCx};

type Doc<'w> = DocWriter<'w, Vec<u8>>;

/// The stages from `done` on, one entry for each: the documents that show it (a `$count` is shown as two).
/// `fresh` makes a context in which the command's variables are known.
pub fn stages(pipeline: &Pipeline, done: usize, fresh: &dyn Fn() -> ParseCx) -> Vec<Vec<DocBuf>> {
    let mut given = given(&pipeline.spec(), fresh);
    let stages = &pipeline.stages()[done..];
    let mut printed: Vec<Vec<DocBuf>> = Vec::with_capacity(stages.len());
    // Optimising moves stages forward and merges them, so what was given is found from the end.
    for stage in stages.iter().rev() {
        printed.push(match stage.shown() {
            Some(documents) => documents,
            None => {
                let place = given.iter().rposition(|(name, _)| name == stage.name());
                let found = place.map(|at| given.split_off(at).swap_remove(0).1);
                vec![found.unwrap_or_else(|| DocBuf::build(|out| drop(out.document(stage.name()))))]
            }
        });
    }
    printed.reverse();
    printed
}

/// What was given, in the names of the stages that came of it.
fn given(spec: &sheaf_bson::ArrayBuf, fresh: &dyn Fn() -> ParseCx) -> Vec<(String, DocBuf)> {
    let mut out = Vec::new();
    for stage in spec.as_raw().values().filter_map(|stage| stage.as_doc()) {
        let Some(field) = stage.iter().next() else { continue };
        match (field.key(), field.value()) {
            ("$group", Value::Document(spec)) => out.push(("$group".to_owned(), group(spec, fresh))),
            ("$sortByCount", key) => out.push((
                "$group".to_owned(),
                DocBuf::build(|out| {
                    let mut group = out.document("$group");
                    expression(&mut group, "_id", key, fresh);
                    group.document("count").document("$sum").append("$const", 1);
                }),
            )),
            ("$replaceWith", root) => out.push((
                "$replaceRoot".to_owned(),
                DocBuf::build(|out| expression(&mut out.document("$replaceRoot"), "newRoot", root, fresh)),
            )),
            ("$replaceRoot", Value::Document(spec)) => out.push((
                "$replaceRoot".to_owned(),
                DocBuf::build(|out| {
                    let root = spec.get_or_missing("newRoot");
                    expression(&mut out.document("$replaceRoot"), "newRoot", root, fresh);
                }),
            )),
            ("$redact", condition) => {
                out.push((
                    "$redact".to_owned(),
                    DocBuf::build(|out| expression(out, "$redact", condition, fresh)),
                ));
            }
            ("$bucket", _) => out.push(("$group".to_owned(), doc! { "$group": field.value() })),
            ("$unionWith", Value::String(name)) => {
                out.push(("$unionWith".to_owned(), doc! { "$unionWith": { "coll": name, "pipeline": [] } }));
            }
            (name, value) => {
                out.push((name.to_owned(), DocBuf::build(|out| _ = out.append(name, value))));
            }
        }
    }
    out
}

fn group(spec: RawDoc<'_>, fresh: &dyn Fn() -> ParseCx) -> DocBuf {
    DocBuf::build(|out| {
        let mut group = out.document("$group");
        for field in spec.iter() {
            match field.value() {
                Value::Document(accumulator) if field.key() != "_id" => {
                    let Some(operator) = accumulator.iter().next() else { continue };
                    let mut out = group.document(field.key());
                    expression(&mut out, operator.key(), operator.value(), fresh);
                }
                value => expression(&mut group, field.key(), value, fresh),
            }
        }
    })
}

/// Appends an expression in its parsed form; one that is no expression by itself stays as it was given.
fn expression(out: &mut Doc<'_>, name: &str, value: Value<'_>, fresh: &dyn Fn() -> ParseCx) {
    match Expr::parse(value, &mut fresh()) {
        Ok(expr) => _ = out.append(name, expr.serialize(&Bump::new())),
        Err(_) => _ = out.append(name, value),
    }
}
