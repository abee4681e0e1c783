//! The stages of a pipeline as explain prints them.

use sheaf_aggregate::{Pipeline, SharedStage};
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
                let found = found.unwrap_or_else(|| DocBuf::build(|out| drop(out.document(stage.name()))));
                vec![own(stage, &found, fresh).unwrap_or(found)]
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
            ("$bucketAuto", Value::Document(spec)) => {
                out.push(("$bucketAuto".to_owned(), bucket_auto(spec, fresh)));
            }
            ("$lookup", Value::Document(spec)) => out.push(("$lookup".to_owned(), lookup(spec, fresh))),
            ("$graphLookup", Value::Document(spec)) => {
                out.push(("$graphLookup".to_owned(), graph_lookup(spec, fresh)));
            }
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

/// A stage of which more is known than what was given.
fn own(stage: &SharedStage, given: &DocBuf, fresh: &dyn Fn() -> ParseCx) -> Option<DocBuf> {
    match stage.name() {
        // It may have been given as `$bucket` or `$sortByCount`.
        "$group" => {
            let spec = stage.spec()?;
            let spec = spec.as_raw().get("$group")?.as_doc()?;
            Some(DocBuf::build(|out| group(&mut out.document("$group"), spec, fresh)))
        }
        "$merge" => {
            let target = stage.target_namespace()?;
            Some(merge(doc! { "db": &target.database, "coll": &target.collection }, given, fresh))
        }
        _ => None,
    }
}

fn group(group: &mut Doc<'_>, spec: RawDoc<'_>, fresh: &dyn Fn() -> ParseCx) {
    for field in spec.iter() {
        match field.value() {
            Value::Document(accumulator) if field.key() != "_id" => {
                let Some(operator) = accumulator.iter().next() else { continue };
                let mut out = group.document(field.key());
                expression(&mut out, operator.key(), operator.value(), fresh);
            }
            value => expression(group, field.key(), value, fresh),
        }
    }
}

fn bucket_auto(spec: RawDoc<'_>, fresh: &dyn Fn() -> ParseCx) -> DocBuf {
    DocBuf::build(|out| {
        let mut out = out.document("$bucketAuto");
        expression(&mut out, "groupBy", spec.get_or_missing("groupBy"), fresh);
        out.append(
            "buckets",
            spec.get("buckets").and_then(|buckets| buckets.as_exact_i64()).unwrap_or(0) as i32,
        );
        if let Some(granularity) = spec.get("granularity") {
            out.append("granularity", granularity);
        }
        let output = spec.get("output").and_then(|output| output.as_doc()).unwrap_or(RawDoc::EMPTY);
        let count = doc! { "count": { "$sum": 1 } };
        let output = if output.is_empty() { count.as_raw() } else { output };
        group(&mut out.document("output"), output, fresh);
    })
}

fn lookup(spec: RawDoc<'_>, fresh: &dyn Fn() -> ParseCx) -> DocBuf {
    DocBuf::build(|out| {
        let mut out = out.document("$lookup");
        let joins = |name: &str| matches!(name, "from" | "as" | "localField" | "foreignField");
        for field in spec.iter().filter(|field| joins(field.key()) && !field.value().is_nullish()) {
            out.append_element(field);
        }
        let Some(pipeline) = spec.get("pipeline") else { return };
        let variables = spec.get("let").and_then(|variables| variables.as_doc()).unwrap_or(RawDoc::EMPTY);
        {
            let mut out = out.document("let");
            for variable in variables.iter() {
                expression(&mut out, variable.key(), variable.value(), fresh);
            }
        }
        out.append("pipeline", pipeline);
    })
}

fn graph_lookup(spec: RawDoc<'_>, fresh: &dyn Fn() -> ParseCx) -> DocBuf {
    DocBuf::build(|out| {
        let mut out = out.document("$graphLookup");
        for field in spec.iter() {
            match (field.key(), field.value().as_exact_i64()) {
                ("startWith", _) => expression(&mut out, "startWith", field.value(), fresh),
                ("maxDepth", Some(depth)) => _ = out.append("maxDepth", depth),
                _ => _ = out.append_element(field),
            }
        }
    })
}

/// A `$merge` with all that it does by default.
fn merge(into: DocBuf, given: &DocBuf, fresh: &dyn Fn() -> ParseCx) -> DocBuf {
    let spec = given.as_raw().get("$merge").and_then(|spec| spec.as_doc()).unwrap_or(RawDoc::EMPTY);
    let given = |name: &str| spec.get(name).filter(|value| !value.is_nullish());
    let not_matched = given("whenNotMatched").unwrap_or(Value::String("insert"));
    let matched = given("whenMatched").unwrap_or(Value::String("merge"));
    DocBuf::build(|out| {
        let mut out = out.document("$merge");
        out.append("into", &into);
        match given("on") {
            Some(Value::Array(names)) => {
                let mut names: Vec<_> = names.values().filter_map(|name| name.as_str()).collect();
                names.sort_unstable();
                match names[..] {
                    [name] => _ = out.append("on", name),
                    _ => {
                        let mut out = out.array("on");
                        names.into_iter().for_each(|name| _ = out.push(name));
                    }
                }
            }
            on => _ = out.append("on", on.unwrap_or(Value::String("_id"))),
        }
        if matches!(matched, Value::Array(_)) {
            let variables = given("let").and_then(|variables| variables.as_doc());
            let has_new = variables.is_some_and(|variables| variables.element("new").is_some());
            let mut out = out.document("let");
            for variable in variables.unwrap_or(RawDoc::EMPTY).iter() {
                expression(&mut out, variable.key(), variable.value(), fresh);
            }
            // What is inserted is the new document, which the target is told by this name.
            if !has_new && (variables.is_none() || not_matched.as_str() == Some("insert")) {
                out.append("new", "$$ROOT");
            }
        }
        out.append("whenMatched", matched);
        out.append("whenNotMatched", not_matched);
    })
}

/// Appends an expression in its parsed form; one that is no expression by itself stays as it was given.
fn expression(out: &mut Doc<'_>, name: &str, value: Value<'_>, fresh: &dyn Fn() -> ParseCx) {
    match Expr::parse(value, &mut fresh()) {
        Ok(expr) => _ = out.append(name, expr.serialize(&Bump::new())),
        Err(_) => _ = out.append(name, value),
    }
}
