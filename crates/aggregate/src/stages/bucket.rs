//! `$bucket`: short for `$group` by a range of boundaries, and `$sort`.

use std::cmp::Ordering;
use std::sync::Arc;

use sheaf_bson::{DocBuf, OwnedValue, Value};
use sheaf_collation::compare_by;
use sheaf_errors::{Result, bail};
use sheaf_expr::{Expr, ParseCx, size_of_value};

use super::group::Group;
use super::sort::Sort;
use crate::accumulators::Accumulation;
use crate::print;
use crate::stage::{Needs, SharedStage, Split, StageCx, StageEntry};

/// `$bucket`.
pub(crate) const BUCKET: StageEntry = StageEntry::new("$bucket", parse, Split::Both, Needs::Nothing);

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            40201,
            "Argument to $bucket stage must be an object, but found type: {}.",
            argument.type_name()
        );
    };
    let (mut group_by, mut boundaries, mut default, mut output) = (None, None, None, None);
    for field in spec.iter() {
        let value = field.value();
        match field.key() {
            "groupBy" => {
                check_group_by(value, 40202, "$bucket")?;
                group_by = Some(value);
            }
            "boundaries" => boundaries = Some(parse_boundaries(value, cx.expr)?),
            "default" => default = Some(constant(value, cx.expr, "default")?),
            "output" => output = Some((parse_output(value, 40196, "$bucket", cx.expr)?, value)),
            other => bail!(40197, "Unrecognized option to $bucket: {other}."),
        }
    }
    let (Some(group_by), Some(boundaries)) = (group_by, boundaries) else {
        bail!(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.");
    };
    if let Some(default) = &default {
        check_default(default, &boundaries, cx.expr)?;
    }
    // The expression stands twice in each branch, each boundary three times.
    let of_boundaries: usize = boundaries.iter().map(|boundary| 3 * size_of_value(boundary.as_value())).sum();
    let per_branch = 2 * size_of_value(group_by) + BRANCH_BYTES;
    sheaf_meter::grow(boundaries.len().saturating_mul(per_branch).saturating_add(of_boundaries))?;
    let switch = switch_document(group_by, &boundaries, default.as_ref())?;
    let id = Expr::parse(Value::Document(switch.as_raw()), cx.expr)?;
    let spec = DocBuf::build(|out| {
        out.append("_id", &switch);
        match output.as_ref().and_then(|(_, fields)| fields.as_doc()) {
            Some(fields) => _ = out.append_all(fields),
            None => _ = out.document("count").append("$sum", 1),
        }
    });
    sheaf_meter::grow(spec.as_bytes().len())?;
    let accumulations = output.map_or_else(|| vec![Accumulation::count("count")], |(output, _)| output);
    let sort = Sort::new(DocBuf::new().with("_id", 1).as_raw(), cx.expr)?;
    Ok(vec![Arc::new(Group::new(id, accumulations, spec, cx.expr)), Arc::new(sort)])
}

/// What a branch takes besides the values in it.
const BRANCH_BYTES: usize = 200;

/// What writing one costs, as [`sheaf_meter::tick`] counts it.
const BRANCH_COST: u32 = 20;

/// `groupBy` is a path or an expression, no literal.
pub(super) fn check_group_by(value: Value<'_>, code: i32, stage: &str) -> Result<()> {
    let fits = match value {
        Value::String(path) => path.starts_with('$'),
        Value::Document(expr) => expr.iter().next().is_some_and(|first| first.key().starts_with('$')),
        _ => false,
    };
    if !fits {
        return Err(sheaf_errors::Error::location(
            code,
            format!(
                "The {stage} 'groupBy' field must be defined as a $-prefixed path or an expression, but found: {}.",
                print::value(value)
            ),
        ));
    }
    Ok(())
}

/// The output fields, none of which may be `_id`.
pub(super) fn parse_output(
    value: Value<'_>,
    code: i32,
    stage: &str,
    cx: &mut ParseCx,
) -> Result<Vec<Accumulation>> {
    let Value::Document(fields) = value else {
        return Err(sheaf_errors::Error::location(
            code,
            format!("The {stage} 'output' field must be an object, but found type: {}.", value.type_name()),
        ));
    };
    fields
        .iter()
        .map(|field| {
            if field.key() == "_id" {
                bail!(15948, "a group's _id may only be specified once");
            }
            Accumulation::parse(field, cx)
        })
        .collect()
}

fn constant(value: Value<'_>, cx: &mut ParseCx, which: &str) -> Result<OwnedValue> {
    // Times that an operation has but once are no constants here.
    let is_time = matches!(value, Value::String("$$NOW" | "$$CLUSTER_TIME"));
    match Expr::parse(value, cx)?.constant().filter(|_| !is_time) {
        Some(value) => Ok(OwnedValue::from(value)),
        None if which == "default" => bail!(
            40195,
            "The $bucket 'default' field must be a constant value, but found a non-constant expression: {}.",
            print::value(value)
        ),
        None => bail!(
            40191,
            "The $bucket 'boundaries' field must be an array of constant values, but found value: {}.",
            print::value(value)
        ),
    }
}

fn counted(value: OwnedValue) -> Result<OwnedValue> {
    sheaf_meter::grow(value.memory_bytes())?;
    Ok(value)
}

fn parse_boundaries(value: Value<'_>, cx: &mut ParseCx) -> Result<Vec<OwnedValue>> {
    let Value::Array(items) = value else {
        bail!(
            40200,
            "The $bucket 'boundaries' field must be an array, but found type: {}.",
            value.type_name()
        );
    };
    let boundaries: Vec<OwnedValue> =
        items.values().map(|item| counted(constant(item, cx, "boundaries")?)).collect::<Result<_>>()?;
    if boundaries.len() < 2 {
        bail!(
            40192,
            "The $bucket 'boundaries' field must have at least 2 values, but found {} value(s).",
            boundaries.len()
        );
    }
    for pair in boundaries.windows(2) {
        sheaf_meter::tick(1)?;
        let (low, high) = (pair[0].as_value(), pair[1].as_value());
        if low.kind().order() != high.kind().order() {
            bail!(
                40193,
                "All values in the 'boundaries' option to $bucket must have the same type. Found conflicting types {} \
                 and {}.",
                low.type_name(),
                high.type_name()
            );
        }
        if compare_by(cx.collator(), low, high) != Ordering::Less {
            bail!(
                40194,
                "The 'boundaries' option to $bucket must be sorted, but elements are not in ascending order: {} and {}.",
                print::value(low),
                print::value(high)
            );
        }
    }
    Ok(boundaries)
}

fn check_default(default: &OwnedValue, boundaries: &[OwnedValue], cx: &ParseCx) -> Result<()> {
    let (low, high) = (&boundaries[0], &boundaries[boundaries.len() - 1]);
    let same_type = default.kind().order() == low.kind().order();
    let order = |other: &OwnedValue| compare_by(cx.collator(), default.as_value(), other.as_value());
    if same_type && order(low).is_ge() && order(high).is_lt() {
        bail!(
            40199,
            "The $bucket 'default' field must be less than the lowest boundary or greater than or equal to the highest \
             boundary."
        );
    }
    Ok(())
}

/// `{$switch: ...}` that gives a value's lower boundary.
///
/// Errors: those of [`sheaf_meter::tick`].
fn switch_document(
    group_by: Value<'_>,
    boundaries: &[OwnedValue],
    default: Option<&OwnedValue>,
) -> Result<DocBuf> {
    let literal = |value: &OwnedValue| DocBuf::new().with("$literal", value);
    let mut outcome = Ok(());
    let document = DocBuf::build(|out| {
        let mut switch = out.document("$switch");
        {
            let mut branches = switch.array("branches");
            for pair in boundaries.windows(2) {
                outcome = sheaf_meter::tick(BRANCH_COST);
                if outcome.is_err() {
                    break;
                }
                let mut branch = branches.document();
                {
                    let mut case = branch.document("case");
                    let mut both = case.array("$and");
                    both.document().array("$gte").push(group_by).push(&literal(&pair[0]));
                    both.document().array("$lt").push(group_by).push(&literal(&pair[1]));
                }
                branch.append("then", &literal(&pair[0]));
            }
        }
        if let Some(default) = default {
            switch.append("default", &literal(default));
        }
    });
    outcome.map(|()| document)
}
