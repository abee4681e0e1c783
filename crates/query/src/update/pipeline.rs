//! Updates by a pipeline: `[{$set: {total: {$sum: "$items.price"}}}]`.

use sheaf_bson::{Bump, DocBuf, DocWriter, MAX_DEPTH, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Env, Expr, ParseCx};

use crate::projection::{Mode, Projection};

/// `$replaceRoot` and `$replaceWith`: the document that an expression gives.
#[derive(Debug)]
pub struct ReplaceRoot {
    expr: Expr,
    /// How messages call the expression.
    called: &'static str,
}

impl ReplaceRoot {
    /// Reads the argument of `$replaceRoot`: `{newRoot: <expression>}`.
    pub fn parse(argument: Value<'_>, cx: &mut ParseCx) -> Result<Self> {
        let Value::Document(spec) = argument else {
            bail!(
                40229,
                "expected an object as specification for $replaceRoot stage, got {}",
                argument.type_name()
            );
        };
        if let Some(unknown) = spec.iter().find(|field| field.key() != "newRoot") {
            bail!(40415, "BSON field '$replaceRoot.{}' is an unknown field.", unknown.key());
        }
        let Some(new_root) = spec.get("newRoot") else {
            bail!(40414, "BSON field '$replaceRoot.newRoot' is missing but a required field");
        };
        Ok(ReplaceRoot { expr: Expr::parse(new_root, cx)?, called: "'newRoot' expression " })
    }

    /// Reads the argument of `$replaceWith`: an expression.
    pub fn parse_with(argument: Value<'_>, cx: &mut ParseCx) -> Result<Self> {
        Ok(ReplaceRoot { expr: Expr::parse(argument, cx)?, called: "'replacement document' " })
    }

    /// The document that takes this one's place.
    pub fn apply<'a>(&'a self, doc: RawDoc<'a>, env: &Env<'a>) -> Result<RawDoc<'a>> {
        match self.expr.eval(doc, env)? {
            Value::Document(new) => Ok(new),
            other => bail!(
                40228,
                "{} must evaluate to an object, but resulting value was: {}. Type of resulting value: '{}'. Input \
                 document: {}",
                self.called,
                if other.is_missing() { "MISSING".to_owned() } else { sheaf_bson::value_text(other) },
                other.type_name(),
                sheaf_bson::document_text(doc)
            ),
        }
    }

    /// What the expression reads.
    pub fn dependencies(&self, deps: &mut Deps) {
        self.expr.dependencies(deps);
    }
}

/// A parsed pipeline update.
#[derive(Debug)]
pub(super) struct PipelineUpdate(Vec<Step>);

#[derive(Debug)]
enum Step {
    Project(Projection),
    ReplaceRoot(ReplaceRoot),
}

impl PipelineUpdate {
    pub(super) fn parse(stages: RawDoc<'_>, cx: &mut ParseCx) -> Result<Self> {
        let mut steps = Vec::new();
        for stage in stages.values() {
            let Value::Document(stage) = stage else {
                bail!(Code::TYPE_MISMATCH, "Each element of the 'pipeline' array must be an object");
            };
            let mut fields = stage.iter();
            let (Some(field), None) = (fields.next(), fields.next()) else {
                bail!(40323, "A pipeline stage specification object must contain exactly one field.");
            };
            steps.push(Step::parse(field.key(), field.value(), cx)?);
        }
        Ok(PipelineUpdate(steps))
    }

    /// The bytes that the pipeline makes of a document; `_id` first.
    pub(super) fn apply(&self, doc: RawDoc<'_>, arena: &Bump) -> Result<Vec<u8>> {
        let env = Env::new(arena);
        let mut at = doc;
        for step in &self.0 {
            at = step.apply(at, &env)?;
            sheaf_expr::check_nesting(Value::Document(at))?;
        }
        // Whichever expression is at fault: what is no document everybody refuses who reads it, other members above all.
        sheaf_bson::validate(at.as_bytes(), MAX_DEPTH)?;
        if at.iter().next().is_some_and(|first| first.key() == "_id") {
            return Ok(at.as_bytes().to_vec());
        }
        let mut bytes = Vec::with_capacity(at.len() + 32);
        let mut out = DocWriter::new(&mut bytes);
        // A result without an _id keeps the document's own.
        if let Some(id) = at.element("_id").or_else(|| doc.element("_id")) {
            out.append_element(id);
        }
        at.iter()
            .filter(|element| element.key() != "_id")
            .for_each(|element| _ = out.append_element(element));
        drop(out);
        Ok(bytes)
    }
}

impl Step {
    fn parse(name: &str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Step> {
        let in_stage = |error: sheaf_errors::Error| error.context(format_args!("Invalid {name}"));
        Ok(match name {
            "$set" | "$addFields" => {
                let Value::Document(spec) = argument else {
                    bail!(
                        40272,
                        "{name} specification stage must be an object, got {}",
                        argument.type_name()
                    );
                };
                Step::Project(Projection::parse_add_fields(spec, cx).map_err(in_stage)?)
            }
            "$project" => {
                let Value::Document(spec) = argument else {
                    bail!(15969, "$project specification must be an object");
                };
                Step::Project(Projection::parse(spec, Mode::Aggregate, cx).map_err(in_stage)?)
            }
            "$unset" => {
                let spec = unset_spec(argument)?;
                Step::Project(Projection::parse(spec.as_raw(), Mode::Aggregate, cx).map_err(in_stage)?)
            }
            "$replaceRoot" => Step::ReplaceRoot(ReplaceRoot::parse(argument, cx)?),
            "$replaceWith" => Step::ReplaceRoot(ReplaceRoot::parse_with(argument, cx)?),
            _ if OTHER_STAGES.contains(&name) => {
                bail!(Code::INVALID_OPTIONS, "{name} is not allowed to be used within an update")
            }
            _ => bail!(40324, "Unrecognized pipeline stage name: '{name}'"),
        })
    }

    fn apply<'a>(&'a self, doc: RawDoc<'a>, env: &Env<'a>) -> Result<RawDoc<'a>> {
        match self {
            Step::Project(projection) if projection.is_identity() => Ok(doc),
            Step::Project(projection) => projection.apply_in(doc, env, None),
            Step::ReplaceRoot(stage) => stage.apply(doc, env),
        }
    }
}

/// Stages that an aggregation has and an update has not.
const OTHER_STAGES: &[&str] = &[
    "$bucket",
    "$bucketAuto",
    "$changeStream",
    "$collStats",
    "$count",
    "$currentOp",
    "$densify",
    "$documents",
    "$facet",
    "$fill",
    "$geoNear",
    "$graphLookup",
    "$group",
    "$indexStats",
    "$limit",
    "$listLocalSessions",
    "$listSessions",
    "$lookup",
    "$match",
    "$merge",
    "$out",
    "$planCacheStats",
    "$redact",
    "$sample",
    "$setWindowFields",
    "$skip",
    "$sort",
    "$sortByCount",
    "$unionWith",
    "$unwind",
];

/// The exclusion `{a: false, b: false}` that the argument of `$unset` stands for.
pub fn unset_spec(argument: Value<'_>) -> Result<DocBuf> {
    let mut spec = DocBuf::new();
    let mut add = |path: &str| {
        if path.contains('\0') {
            bail!(9527900, "Field names may not contain embedded null bytes");
        }
        spec.append(path, false);
        Ok(())
    };
    match argument {
        Value::String(path) => add(path)?,
        Value::Array(paths) if paths.is_empty() => {
            bail!(31119, "$unset specification must be a string or an array with at least one field")
        }
        Value::Array(paths) => {
            if paths.values().any(|path| path.as_str().is_none()) {
                bail!(
                    31120,
                    "$unset specification must be a string or an array containing only string values"
                );
            }
            paths.values().filter_map(|path| path.as_str()).try_for_each(add)?;
        }
        _ => bail!(31002, "$unset specification must be a string or an array"),
    }
    Ok(spec)
}
