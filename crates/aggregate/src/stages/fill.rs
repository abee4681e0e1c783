//! `$fill`: values for fields that are null or missing. It is short for `$setWindowFields` and `$addFields`.

use sheaf_bson::{ArrayBuf, DocBuf, Type, Value, doc};
use sheaf_errors::{Code, Result, bail};

use super::{project, window};
use crate::idl::Fields;
use crate::stage::{Needs, SharedStage, Split, StageCx, StageEntry};

/// `$fill`.
pub(crate) const FILL: StageEntry = StageEntry::new("$fill", parse, Split::Merger, Needs::Nothing).unstable();

fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "The $fill stage specification must be an object, found {}",
            argument.type_name()
        );
    };
    let fields = Fields::new("$fill", spec, &["partitionBy", "partitionByFields", "sortBy", "output"])?;
    let partition_by = fields.optional("partitionBy", &[Type::Document, Type::String])?;
    let partition_by_fields = fields.strings("partitionByFields")?;
    let sort_by = fields.document("sortBy")?;
    let Some(output) = fields.document("output")? else { return fields.missing("output") };
    if output.is_empty() {
        bail!(6050203, "The output field in '$fill' must contain an object with at least one element");
    }
    let (mut windows, mut constants) = (DocBuf::new(), DocBuf::new());
    for element in output.iter() {
        let field = element.key();
        let Value::Document(filling) = element.value() else {
            bail!(6050200, "Each fill output specification must be an object with exactly one field");
        };
        let path = format!("${field}");
        match filling_of(Fields::new("$fill", filling, &["value", "method"])?)? {
            Filling::Method(function) => _ = windows.append(field, &doc! { (function): path.as_str() }),
            Filling::Value(value) => {
                let either = ArrayBuf::of([Value::String(&path), value]);
                constants.append(field, &doc! { "$ifNull": &either });
            }
        }
    }
    if partition_by.is_some() && partition_by_fields.is_some() {
        bail!(6050204, "Maximum one of 'partitionBy' and 'partitionByFields can be specified in '$fill'");
    }
    let mut stages = Vec::new();
    if !windows.as_raw().is_empty() {
        let spec = DocBuf::build(|out| {
            if let Some(sort_by) = sort_by {
                out.append("sortBy", sort_by);
            }
            if let Some(partition_by) = partition_by {
                out.append("partitionBy", partition_by);
            }
            if let Some(names) = &partition_by_fields {
                // Names of fields may be paths, which those of an object may not.
                let mut partition_by = out.document("partitionBy");
                for (at, name) in names.iter().enumerate() {
                    partition_by.append(&at.to_string(), format!("${name}").as_str());
                }
            }
            out.append("output", &windows);
        });
        stages.extend(window::parse(Value::Document(spec.as_raw()), cx)?);
    }
    if !constants.as_raw().is_empty() {
        stages.push(project::derived("$addFields", &constants, cx)?);
    }
    Ok(stages)
}

/// How a field is filled.
enum Filling<'a> {
    /// By this window function.
    Method(&'static str),
    /// By an expression.
    Value(Value<'a>),
}

fn filling_of(fields: Fields<'_>) -> Result<Filling<'_>> {
    match (fields.optional("method", &[Type::String])?, fields.any("value")) {
        (Some(_), Some(_)) => bail!(
            6050201,
            "Each fill output specification must have exactly one of 'method' or 'value' fields, not both"
        ),
        (Some(Value::String("linear")), None) => Ok(Filling::Method("$linearFill")),
        (Some(Value::String("locf")), None) => Ok(Filling::Method("$locf")),
        (Some(_), None) => bail!(6050202, "Method must be either locf or linear"),
        (None, Some(value)) => Ok(Filling::Value(value)),
        (None, None) => {
            bail!(6050200, "Each fill output specification must be an object with exactly one field")
        }
    }
}
