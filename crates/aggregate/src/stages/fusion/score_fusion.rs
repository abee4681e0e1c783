//! `$scoreFusion`: documents by their scores in several pipelines, brought into one range and combined.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Type, Value, doc};
use sheaf_errors::{Code, Result, bail};

use super::inputs::{self, Input, Inputs, field, literal, path};
use super::score::{expression_text, normalization};
use crate::idl::Fields;
use crate::stage::{Needs, Split, StageCx, StageEntry};

/// `$scoreFusion`.
pub(crate) const SCORE_FUSION: StageEntry =
    StageEntry::short_for("$scoreFusion", expand, Split::Merger, Needs::Foreign).leading().unstable();

const DESCRIPTION: &str = "the value calculated by combining the scores (either normalized or raw) across input \
                           pipelines from which this document is output from:";

/// Whether the pipeline begins with a filter by `$text`, whose scores count.
fn begins_with_text(stages: RawDoc<'_>) -> bool {
    let first = stages.values().next().and_then(|stage| stage.as_doc()?.get("$match")?.as_doc());
    first.is_some_and(|filter| filter.get("$text").is_some())
}

fn check(stages: RawDoc<'_>) -> Result<()> {
    const RULE: &str = "All subpipelines to the $scoreFusion stage must begin with one of $search, $vectorSearch, or \
                        have a custom $score in the pipeline.";
    if stages.is_empty() {
        bail!(9402503, "$scoreFusion input pipeline cannot be empty. {RULE}");
    }
    if inputs::is_nested(stages) {
        bail!(
            10473003,
            "$scoreFusion input pipeline has a nested hybrid search stage ($rankFusion/$scoreFusion). {RULE}"
        );
    }
    let first = inputs::names(stages).next();
    let scored = matches!(first, Some("$search" | "$vectorSearch")) || begins_with_text(stages);
    if !scored && !inputs::names(stages).any(|name| name == "$score") {
        bail!(9402500, "{RULE} Pipeline did not begin with a scored stage.");
    }
    match inputs::changing(stages) {
        Some(why) => {
            bail!(9402502, "{why} Only stages that retrieve, limit, or order documents are allowed.")
        }
        None => Ok(()),
    }
}

/// The options besides the pipelines.
struct Options<'a> {
    normalization: &'a str,
    /// What the final score is, in variables that have the pipelines' names; `None`: the average.
    expression: Option<Value<'a>>,
    details: bool,
}

fn expand(argument: Value<'_>, cx: &StageCx<'_>) -> Result<Vec<DocBuf>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "$scoreFusion must take a nested object but found: $scoreFusion: {}",
            crate::print::value(argument)
        );
    };
    let fields = Fields::new("$scoreFusion", spec, &["input", "combination", "scoreDetails"])?;
    let input = fields.required("input", &[Type::Document])?.as_doc().unwrap_or(RawDoc::EMPTY);
    let input = Fields::new("$scoreFusion.input", input, &["pipelines", "normalization"])?;
    let pipelines = input.required("pipelines", &[Type::Document])?.as_doc().unwrap_or(RawDoc::EMPTY);
    let normalization =
        normalization("$scoreFusion.input", Some(input.required("normalization", &[Type::String])?))?;
    let known = ["weights", "method", "expression"];
    let combination =
        inputs::combination("$scoreFusion.combination", fields.document("combination")?, &known)?;
    let (weights, expression) = match &combination {
        Some(combination) => (inputs::weights(combination)?, method(combination)?),
        None => (None, None),
    };
    let details = fields.flag("scoreDetails")?.unwrap_or(false);
    if weights.is_some() && expression.is_some() {
        bail!(10017301, "both combination.expression and combination.weights cannot be specified");
    }
    let mut found = inputs::read("$scoreFusion", pipelines, check)?;
    if let Some(weights) = weights {
        inputs::weigh("$scoreFusion", weights, &mut found)?;
    }
    Ok(stages(&found, &Options { normalization, expression, details }, cx))
}

/// The expression of `combination`, if scores are combined by one.
fn method<'a>(combination: &Fields<'a>) -> Result<Option<Value<'a>>> {
    let expression = combination.any("expression");
    let by_expression = match combination.optional("method", &[Type::String])? {
        None => return Ok(None),
        Some(Value::String("avg")) => false,
        Some(Value::String("expression")) => true,
        Some(other) => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{}' for field '$scoreFusion.combination.method' is not a valid value.",
            other.as_str().unwrap_or_default()
        ),
    };
    if by_expression != expression.is_some() {
        bail!(
            10017300,
            "combination.expression should only be specified when combination.method has the value \"expression\""
        );
    }
    Ok(expression)
}

/// Whether a `$score` among the stages tells how it came by its score.
fn gives_details(stages: RawDoc<'_>) -> bool {
    stages.values().any(|stage| {
        let score = stage.as_doc().and_then(|stage| stage.get("$score")).and_then(|score| score.as_doc());
        score.and_then(|score| score.get("scoreDetails")).is_some_and(|details| details.truthy())
    })
}

fn scored(name: &str, input: &Input<'_>, options: &Options<'_>) -> Vec<DocBuf> {
    let mut part: Vec<DocBuf> =
        input.stages.values().filter_map(|stage| stage.as_doc().map(DocBuf::from)).collect();
    let has_own = inputs::names(input.stages).any(|name| name == "$score");
    let kind = if has_own { "score" } else { "textScore" };
    let raw = doc! { "$meta": kind };
    let normal = if options.normalization == "sigmoid" {
        doc! { "$sigmoid": &raw }
    } else {
        raw.clone()
    };
    let score = field(name, "score");
    part.push(inputs::set_aside());
    part.push(doc! { "$addFields": { (score.as_str()): { "$multiply": [&normal, input.weight] } } });
    if options.details {
        let (place, details) = (field(name, "rawScore"), field(name, "scoreDetails"));
        let inner = if gives_details(input.stages) {
            doc! { "details": { "$ifNull": [{ "$meta": "scoreDetails" }, []] } }
        } else {
            doc! { "details": [] }
        };
        part.push(doc! { "$addFields": { (place.as_str()): &raw, (details.as_str()): &inner } });
    }
    if options.normalization == "minMaxScaler" {
        let scaled = path(name, "score");
        part.push(doc! {
            "$setWindowFields": {
                "sortBy": { (score.as_str()): -1 },
                "output": { (score.as_str()): { "$minMaxScaler": { "input": scaled.as_str() } } },
            }
        });
    }
    part
}

fn stages(inputs: &Inputs<'_>, options: &Options<'_>, cx: &StageCx<'_>) -> Vec<DocBuf> {
    let parts = inputs.iter().map(|(name, input)| scored(name, input, options)).collect();
    let mut all = inputs::joined(parts, cx);
    all.push(inputs::grouped(inputs, options.details.then_some("rawScore")));
    let total = match options.expression {
        Some(expression) => {
            let vars = DocBuf::build(|out| {
                for name in inputs.keys() {
                    out.append(name, path(name, "score").as_str());
                }
            });
            doc! { "$let": { "vars": &vars, "in": expression } }
        }
        None => doc! { "$avg": &inputs::paths(inputs, "score") },
    };
    all.push(doc! { "$setMetadata": { "score": &total } });
    if options.details {
        all.push(explained(inputs, options));
    }
    all.extend(inputs::ordered());
    all
}

/// The stage that makes `scoreDetails`.
fn explained(inputs: &Inputs<'_>, options: &Options<'_>) -> DocBuf {
    let each = inputs.iter().map(|(name, input)| {
        let own = doc! {
            "inputPipelineName": &literal(*name),
            "inputPipelineRawScore": path(name, "rawScore").as_str(),
            "weight": input.weight,
            "value": path(name, "score").as_str(),
        };
        doc! { "$mergeObjects": [&own, path(name, "scoreDetails").as_str()] }
    });
    let details = ArrayBuf::of(&each.collect::<Vec<_>>());
    let combination = match options.expression {
        Some(expression) => doc! {
            "method": "custom expression",
            "expression": &literal(expression_text(expression).as_str()),
        },
        None => doc! { "method": "average" },
    };
    doc! {
        "$setMetadata": {
            "scoreDetails": {
                "value": { "$meta": "score" },
                "description": &literal(DESCRIPTION),
                "normalization": &literal(options.normalization),
                "combination": &combination,
                "details": &details,
            }
        }
    }
}
