//! `$densify`: documents for the values between those that a field has.
//!
//! The stage is short for a sort and `$_internalDensify` over what is sorted.

mod run;

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Type, Value, compare, doc, number};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, FieldPath, Unit};
use sheaf_rows::BoxOperator;

use super::sort::Sort;
use super::window::parse_unit;
use crate::database::SharedDatabase;
use crate::idl::{Fields, NUMBERS};
use crate::stage::{Needs, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

use run::DensifyRun;

/// `$densify`.
pub(crate) const DENSIFY: StageEntry = StageEntry::new("$densify", parse, Split::Merger, Needs::Nothing);
/// `$_internalDensify`: the same over documents that are sorted already.
pub(crate) const INTERNAL_DENSIFY: StageEntry =
    StageEntry::new(NAME, parse_internal, Split::Merger, Needs::Nothing);

const NAME: &str = "$_internalDensify";

/// A parsed `$_internalDensify`.
#[derive(Debug)]
pub struct Densify {
    field: FieldPath,
    partition_by: Vec<FieldPath>,
    /// A number, and the unit that it is of between dates.
    step: Value<'static>,
    unit: Option<Unit>,
    bounds: Bounds,
    /// The argument.
    spec: DocBuf,
}

/// Which values are made.
#[derive(Clone, Copy, Debug)]
enum Bounds {
    /// Those between the smallest and the largest of all.
    Full,
    /// Those between the smallest and the largest of each partition.
    Partition,
    /// Those from the first to before the second.
    Between(Value<'static>, Value<'static>),
}

fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let densify = Densify::parse("$densify", argument)?;
    let order = DocBuf::build(|out| {
        if !matches!(densify.bounds, Bounds::Full) {
            densify.partition_by.iter().for_each(|path| _ = out.append(&path.dotted(), 1));
        }
        out.append(&densify.field.dotted(), 1);
    });
    Ok(vec![Arc::new(Sort::new(order.as_raw(), cx.expr)?), Arc::new(densify)])
}

fn parse_internal(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    Ok(vec![Arc::new(Densify::parse(NAME, argument)?)])
}

impl Densify {
    fn parse(name: &'static str, argument: Value<'_>) -> Result<Densify> {
        let Value::Document(spec) = argument else {
            bail!(
                Code::FAILED_TO_PARSE,
                "The {name} stage specification must be an object, found {}",
                argument.type_name()
            );
        };
        let fields = Fields::new(name, spec, &["field", "partitionByFields", "range"])?;
        let field = fields.required("field", &[Type::String])?;
        let partition_by = fields.strings("partitionByFields")?.unwrap_or_default();
        let Some(range) = fields.document("range")? else { return fields.missing("range") };
        let range = Fields::new("$densify.range", range, &["step", "unit", "bounds"])?;
        let step = range.required("step", NUMBERS)?;
        let unit = range.optional("unit", &[Type::String])?;
        let Some(bounds) = range.any("bounds") else { return range.missing("bounds") };
        sheaf_meter::grow(spec.len())?;
        if compare(step, Value::Int32(0)).is_le() {
            bail!(
                5733401,
                "The step parameter in a range statement must be a strictly positive numeric value"
            );
        }
        let unit = match unit.and_then(|unit| unit.as_str()) {
            Some(_) if step.as_exact_i64().is_none() => bail!(
                6586400,
                "The step parameter in a range statement must be a whole number when densifying a date range"
            ),
            Some(unit) => Some(parse_unit(unit)?),
            None => None,
        };
        let step = point(step).expect("its type was checked");
        let bounds = parse_bounds(bounds, step, unit)?;
        let partition_by =
            partition_by.into_iter().map(FieldPath::parse).collect::<Result<Vec<FieldPath>>>()?;
        let field = FieldPath::parse(field.as_str().unwrap_or_default())?;
        if partition_by.contains(&field) {
            bail!(
                8993000,
                "BSON field '$densify.partitionByFields' contains the field that is being densified"
            );
        }
        if matches!(bounds, Bounds::Partition) && partition_by.is_empty() {
            bail!(
                5733408,
                "One cannot specify the bounds as 'partition' without specifying a non-empty array of \
                 partitionByFields. You may have meant to specify 'full' bounds."
            );
        }
        Ok(Densify { field, partition_by, step, unit, bounds, spec: DocBuf::from(spec) })
    }

    /// The value one step on.
    fn step_from(&self, value: Value<'static>) -> Result<Value<'static>> {
        match (value, self.unit) {
            (Value::DateTime(date), Some(unit)) => {
                let steps = self.step.as_exact_i64().expect("steps of dates are whole numbers");
                match unit.add_to(date, steps) {
                    Some(date) => Ok(Value::DateTime(date)),
                    None => bail!(5166406, "$dateAdd overflowed"),
                }
            }
            _ => Ok(number::add(value, self.step).expect("values that are no dates are numbers")),
        }
    }

    /// The document's value; `None` where it has none.
    ///
    /// Errors: 5733201, 6053600.
    fn value_of(&self, document: RawDoc<'_>) -> Result<Option<Value<'static>>> {
        let value = nested(document, &self.field);
        if value.is_nullish() {
            return Ok(None);
        }
        let Some(value) = point(value) else {
            bail!(5733201, "Densify field type must be numeric or a date");
        };
        match (value, self.unit) {
            (Value::DateTime(_), None) => bail!(
                6053600,
                "Encountered date densify value in collection when step does not have a date unit."
            ),
            (Value::DateTime(_), Some(_)) | (_, None) => Ok(Some(value)),
            _ => bail!(6053600, "Encountered numeric densify value in collection when step has a date unit."),
        }
    }
}

/// A field of documents in documents; arrays are not looked into.
fn nested<'a>(document: RawDoc<'a>, path: &FieldPath) -> Value<'a> {
    let mut value = Value::Document(document);
    for name in path.parts() {
        value = match value {
            Value::Document(document) => document.get_or_missing(name),
            _ => return Value::Missing,
        };
    }
    value
}

/// A number or a date.
fn point(value: Value<'_>) -> Option<Value<'static>> {
    match value {
        Value::Int32(n) => Some(Value::Int32(n)),
        Value::Int64(n) => Some(Value::Int64(n)),
        Value::Double(n) => Some(Value::Double(n)),
        Value::Decimal128(n) => Some(Value::Decimal128(n)),
        Value::DateTime(date) => Some(Value::DateTime(date)),
        _ => None,
    }
}

fn parse_bounds(bounds: Value<'_>, step: Value<'static>, unit: Option<Unit>) -> Result<Bounds> {
    let array = match bounds {
        Value::String("full") => return Ok(Bounds::Full),
        Value::String("partition") => return Ok(Bounds::Partition),
        Value::String(_) => bail!(5946802, "Bounds string must either be 'full' or 'partition'"),
        Value::Array(array) => array,
        _ => bail!(
            5733404,
            "The bounds in a range statement must be the string 'full', 'partition', or an ascending array of two \
             numbers or two dates"
        ),
    };
    let mut ends = array.values();
    let (Some(low), Some(high), None) = (ends.next(), ends.next(), ends.next()) else {
        bail!(5733403, "A bounding array in a range statement must have exactly two elements");
    };
    if compare(low, high).is_gt() {
        bail!(5733402, "A bounding array must be an ascending array of either two dates or two numbers");
    }
    const BOTH: &str = "A bounding array must contain either both dates or both numeric types";
    match (point(low), point(high)) {
        (Some(low @ Value::DateTime(_)), Some(high @ Value::DateTime(_))) => {
            if unit.is_none() {
                bail!(5733410, "A bounding array of dates must specify a unit");
            }
            Ok(Bounds::Between(low, high))
        }
        (Some(Value::DateTime(_)), _) => bail!(5733405, "{BOTH}"),
        (Some(_), _) if unit.is_some() => bail!(5733409, "Numeric bounds may not have unit parameter"),
        (Some(_), None | Some(Value::DateTime(_))) => bail!(5733406, "{BOTH}"),
        (Some(low), Some(high)) => {
            if low.kind() != high.kind() || low.kind() != step.kind() {
                bail!(5876900, "Upper bound, lower bound, and step must all have the same type");
            }
            Ok(Bounds::Between(low, high))
        }
        (None, _) => bail!(5946800, "Explicit bounds must be numeric or dates"),
    }
}

impl Stage for Densify {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(self: Arc<Self>, input: BoxOperator, _database: &SharedDatabase) -> BoxOperator {
        Box::new(DensifyRun::new(self, input))
    }

    fn dependencies(&self, deps: &mut Deps) -> Reads {
        deps.paths.insert(self.field.dotted());
        deps.paths.extend(self.partition_by.iter().map(FieldPath::dotted));
        Reads::AndPassesOn
    }

    fn spec(&self) -> Option<DocBuf> {
        Some(doc! { (NAME): &self.spec })
    }

    fn shown(&self) -> Option<Vec<DocBuf>> {
        Some(vec![DocBuf::build(|out| {
            let mut spec = out.document(NAME);
            spec.append("field", self.field.dotted().as_str());
            let mut paths = spec.array("partitionByFields");
            self.partition_by.iter().for_each(|path| _ = paths.push(path.dotted().as_str()));
            drop(paths);
            let range = self.spec.as_raw().get("range").and_then(|range| range.as_doc());
            let mut shown = spec.document("range");
            for name in ["step", "bounds", "unit"] {
                if let Some(field) = range.and_then(|range| range.element(name)) {
                    shown.append_element(field);
                }
            }
        })])
    }
}
