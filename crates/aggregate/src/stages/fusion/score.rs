//! `$score`: a score of each document, computed from it.

use sheaf_bson::{DocBuf, Type, Value, doc};
use sheaf_errors::{Code, Result, bail};

use super::inputs::literal;
use crate::idl::Fields;
use crate::stage::{Needs, Split, StageCx, StageEntry};

/// `$score`.
pub(crate) const SCORE: StageEntry =
    StageEntry::short_for("$score", expand, Split::Merger, Needs::Nothing).unstable();

const DESCRIPTION: &str = "the score calculated from multiplying a weight in the range [0,1] with either a normalized or nonnormalized value:";

/// How scores are brought into one range.
///
/// Errors: `BadValue` for another name.
pub(super) fn normalization<'a>(place: &str, value: Option<Value<'a>>) -> Result<&'a str> {
    match value {
        None => Ok("none"),
        Some(Value::String(name @ ("none" | "sigmoid" | "minMaxScaler"))) => Ok(name),
        Some(other) => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{}' for field '{place}.normalization' is not a valid value.",
            other.as_str().unwrap_or_default()
        ),
    }
}

fn expand(argument: Value<'_>, _cx: &StageCx<'_>) -> Result<Vec<DocBuf>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "The $score stage specification must be an object, found {}",
            argument.type_name()
        );
    };
    let fields = Fields::new("$score", spec, &["score", "normalization", "weight", "scoreDetails"])?;
    let Some(score) = fields.any("score") else { return fields.missing("score") };
    let normalization = normalization("$score", fields.optional("normalization", &[Type::String])?)?;
    let numbers = [Type::Int32, Type::Int64, Type::Double, Type::Decimal128];
    let weight = match fields.optional("weight", &numbers)?.map(|weight| weight.as_f64().unwrap_or(f64::NAN))
    {
        None => 1.0,
        Some(weight) if (0.0..=1.0).contains(&weight) => weight,
        Some(weight) if weight < 0.0 => {
            bail!(51024, "BSON field 'weight' value must be >= 0, actual value '{weight}'")
        }
        Some(weight) => bail!(51024, "BSON field 'weight' value must be <= 1, actual value '{weight}'"),
    };
    let details = fields.flag("scoreDetails")?.unwrap_or(false);
    let mut stages = vec![
        doc! { "$setMetadata": { "score": score } },
        doc! { "$replaceWith": { "docs": "$$ROOT", "raw": { "$meta": "score" } } },
    ];
    match normalization {
        "sigmoid" => stages.push(doc! { "$setMetadata": { "score": { "$sigmoid": { "$meta": "score" } } } }),
        "minMaxScaler" => {
            stages.push(doc! {
                "$setWindowFields": {
                    "sortBy": { "raw": -1 },
                    "output": { "scaled": { "$minMaxScaler": { "input": "$raw" } } },
                }
            });
            stages.push(doc! { "$setMetadata": { "score": "$scaled" } });
        }
        _ => {}
    }
    if weight != 1.0 {
        stages.push(doc! { "$setMetadata": { "score": { "$multiply": [{ "$meta": "score" }, weight] } } });
    }
    if details {
        let shown = expression_text(score);
        stages.push(doc! {
            "$setMetadata": {
                "scoreDetails": {
                    "value": { "$meta": "score" },
                    "description": &literal(DESCRIPTION),
                    "rawScore": "$raw",
                    "normalization": &literal(normalization),
                    "weight": weight,
                    "expression": &literal(shown.as_str()),
                    "details": [],
                }
            }
        });
    }
    stages.push(doc! { "$replaceRoot": { "newRoot": "$docs" } });
    Ok(stages)
}

/// An expression as details show it.
pub(super) fn expression_text(expression: Value<'_>) -> String {
    crate::print::document(DocBuf::new().with("string", expression).as_raw()).replace('"', "'")
}
