//! Updates by a pipeline: `[{$set: {total: {$sum: "$items.price"}}}]`.

use sheaf_bson::{Bump, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Env, Expr, ParseCx};

use crate::print;

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
                if other.is_missing() { "MISSING".to_owned() } else { print::value(other) },
                other.type_name(),
                print::document(doc)
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
    ReplaceRoot(ReplaceRoot),
}

impl PipelineUpdate {
    pub(super) fn parse(stages: RawDoc<'_>, cx: &mut ParseCx) -> Result<Self> {
        let mut steps = Vec::new();
        for stage in stages.values() {
            let Value::Document(stage) = stage else {
                bail!(
                    Code::TYPE_MISMATCH,
                    "Each element of the 'pipeline' array must be an object"
                );
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
        }
        Ok(at.as_bytes().to_vec())
    }
}

impl Step {
    fn parse(name: &str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Step> {
        Ok(match name {
            "$replaceRoot" => Step::ReplaceRoot(ReplaceRoot::parse(argument, cx)?),
            "$replaceWith" => Step::ReplaceRoot(ReplaceRoot::parse_with(argument, cx)?),
            _ => bail!(40324, "Unrecognized pipeline stage name: '{name}'"),
        })
    }

    fn apply<'a>(&'a self, doc: RawDoc<'a>, env: &Env<'a>) -> Result<RawDoc<'a>> {
        match self {
            Step::ReplaceRoot(stage) => stage.apply(doc, env),
        }
    }
}
