//! The bounds of a window: `{documents: [-1, "current"]}`, `{range: [-7, 0], unit: "day"}`.

use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Value, compare};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx, Unit};
use sheaf_query::sort::{SortOn, SortPattern};

/// One end of a window.
#[derive(Clone, Debug)]
pub(crate) enum Bound<T> {
    /// As far as the partition goes.
    Unbounded,
    /// The document itself.
    Current,
    /// So far from the document.
    At(T),
}

impl<T> Bound<T> {
    /// Whether it is the partition's end.
    pub(crate) fn is_unbounded(&self) -> bool {
        matches!(self, Bound::Unbounded)
    }
}

/// Which documents of its partition a document's window has.
#[derive(Clone, Debug)]
pub(crate) enum Bounds {
    /// By places.
    Documents { lower: Bound<i64>, upper: Bound<i64> },
    /// By values of the field that is sorted by.
    Range { lower: Bound<OwnedValue>, upper: Bound<OwnedValue>, unit: Option<Unit> },
}

impl Bounds {
    /// The whole partition.
    pub(crate) const WHOLE: Bounds = Bounds::Documents { lower: Bound::Unbounded, upper: Bound::Unbounded };
    /// All up to the document.
    pub(crate) const UP_TO_CURRENT: Bounds =
        Bounds::Documents { lower: Bound::Unbounded, upper: Bound::Current };

    /// Whether windows begin where the partition does, so that nothing ever leaves them.
    pub(crate) fn is_left_unbounded(&self) -> bool {
        match self {
            Bounds::Documents { lower, .. } => lower.is_unbounded(),
            Bounds::Range { lower, .. } => lower.is_unbounded(),
        }
    }

    /// Reads the value of `window`.
    ///
    /// Errors: `FailedToParse`, 5339900, 5339901, 5339902, 8947401.
    pub(crate) fn parse(
        window: Value<'_>,
        sort_by: Option<&SortPattern>,
        cx: &mut ParseCx,
    ) -> Result<Bounds> {
        let Value::Document(window) = window else {
            bail!(Code::FAILED_TO_PARSE, "'window' field must be an object");
        };
        let (documents, range, unit) = (window.get("documents"), window.get("range"), window.get("unit"));
        match (documents, range) {
            (Some(_), Some(_)) => bail!(
                Code::FAILED_TO_PARSE,
                "Window bounds can specify either 'documents' or 'unit', not both."
            ),
            (_, None) if unit.is_some() => {
                bail!(Code::FAILED_TO_PARSE, "Window bounds can only specify 'unit' with range-based bounds.")
            }
            (None, None) if window.is_empty() => Ok(Bounds::WHOLE),
            (None, None) => bail!(
                Code::FAILED_TO_PARSE,
                "'window' field can only contain 'documents' as the only argument or 'range' with an optional \
                 'unit' field"
            ),
            (Some(documents), None) => {
                if window.count() != 1 {
                    bail!(
                        Code::FAILED_TO_PARSE,
                        "'window' field that specifies documents cannot have other fields"
                    );
                }
                parse_documents(documents, sort_by, cx)
            }
            (None, Some(range)) => parse_range(window, range, unit, sort_by, cx),
        }
    }

    /// As explain shows them.
    pub(crate) fn to_doc(&self) -> DocBuf {
        DocBuf::build(|out| match self {
            Bounds::Documents { lower, upper } => {
                let mut ends = out.array("documents");
                for end in [lower, upper] {
                    match end {
                        Bound::Unbounded => ends.push("unbounded"),
                        Bound::Current => ends.push("current"),
                        Bound::At(n) => match i32::try_from(*n) {
                            Ok(n) => ends.push(n),
                            Err(_) => ends.push(*n),
                        },
                    };
                }
            }
            Bounds::Range { lower, upper, unit } => {
                let mut ends = out.array("range");
                for end in [lower, upper] {
                    match end {
                        Bound::Unbounded => ends.push("unbounded"),
                        Bound::Current => ends.push("current"),
                        Bound::At(n) => ends.push(n),
                    };
                }
                drop(ends);
                if let Some(unit) = unit {
                    out.append("unit", format!("{unit:?}").to_lowercase().as_str());
                }
            }
        })
    }
}

/// The two ends of an array.
fn two_ends<'a>(bounds: Value<'a>) -> Result<(Value<'a>, Value<'a>)> {
    if let Value::Array(array) = bounds {
        let mut values = array.values();
        if let (Some(lower), Some(upper), None) = (values.next(), values.next(), values.next()) {
            return Ok((lower, upper));
        }
    }
    bail!(Code::FAILED_TO_PARSE, "Window bounds must be a 2-element array: {}", crate::print::value(bounds))
}

/// Reads one end; a distance is a constant expression, which `distance` checks.
fn parse_bound<T>(
    bound: Value<'_>,
    cx: &mut ParseCx,
    distance: impl Fn(Value<'_>) -> Result<T>,
) -> Result<Bound<T>> {
    match bound {
        Value::String("unbounded") => return Ok(Bound::Unbounded),
        Value::String("current") => return Ok(Bound::Current),
        Value::String(_) => {
            bail!(Code::FAILED_TO_PARSE, "Window bounds must be 'unbounded', 'current', or a number.")
        }
        _ => {}
    }
    let expr = Expr::parse(bound, cx)?;
    match expr.constant() {
        Some(value) => distance(value).map(Bound::At),
        None => bail!(Code::FAILED_TO_PARSE, "Window bounds expression must be a constant."),
    }
}

/// The int32 that a number stands for exactly.
pub(super) fn small_integer(value: Value<'_>) -> Option<i64> {
    value.as_exact_i64().filter(|n| i32::try_from(*n).is_ok())
}

fn parse_documents(bounds: Value<'_>, sort_by: Option<&SortPattern>, cx: &mut ParseCx) -> Result<Bounds> {
    let place = |value: Value<'_>| match small_integer(value) {
        Some(n) => Ok(n),
        None => bail!(Code::FAILED_TO_PARSE, "Numeric document-based bounds must be an integer"),
    };
    let (lower, upper) = two_ends(bounds)?;
    let lower = parse_bound(lower, cx, place)?;
    let upper = parse_bound(upper, cx, place)?;
    let distance = |bound: &Bound<i64>| match bound {
        Bound::Unbounded => None,
        Bound::Current => Some(0),
        Bound::At(n) => Some(*n),
    };
    if let (Some(lower), Some(upper)) = (distance(&lower), distance(&upper))
        && lower > upper
    {
        bail!(5339900, "Lower bound must not exceed upper bound: [{lower}, {upper}]");
    }
    if !(lower.is_unbounded() && upper.is_unbounded()) && sort_by.is_none() {
        bail!(5339901, "Document-based bounds require a sortBy");
    }
    Ok(Bounds::Documents { lower, upper })
}

fn parse_range(
    window: RawDoc<'_>,
    range: Value<'_>,
    unit: Option<Value<'_>>,
    sort_by: Option<&SortPattern>,
    cx: &mut ParseCx,
) -> Result<Bounds> {
    let (lower, upper) = two_ends(range)?;
    if window.count() != 1 + usize::from(unit.is_some()) {
        let (has, besides) = if unit.is_some() { ("unit", "range") } else { ("range", "unit") };
        bail!(
            Code::FAILED_TO_PARSE,
            "'window' field that specifies {has} cannot have other fields besides '{besides}'"
        );
    }
    let name = match unit {
        None => None,
        Some(Value::String(name)) => Some(name),
        Some(_) => bail!(Code::FAILED_TO_PARSE, "'unit' must be a string"),
    };
    let distance = |value: Value<'_>| match name {
        Some(_) if small_integer(value).is_none() => {
            bail!(Code::FAILED_TO_PARSE, "With 'unit', range-based bounds must be an integer")
        }
        None if !value.is_number() => {
            bail!(Code::FAILED_TO_PARSE, "Range-based bounds expression must be a number")
        }
        _ => Ok(OwnedValue::from(value)),
    };
    let lower = parse_bound(lower, cx, distance)?;
    let upper = parse_bound(upper, cx, distance)?;
    let zero = OwnedValue::from(Value::Int32(0));
    let end = |bound: &Bound<OwnedValue>| match bound {
        Bound::Unbounded => None,
        Bound::Current => Some(zero.clone()),
        Bound::At(n) => Some(n.clone()),
    };
    if let (Some(lower), Some(upper)) = (end(&lower), end(&upper))
        && compare(lower.as_value(), upper.as_value()).is_gt()
    {
        bail!(
            5339900,
            "Lower bound must not exceed upper bound: [{}, {}]",
            crate::print::value(lower.as_value()),
            crate::print::value(upper.as_value())
        );
    }
    let unit = name.map(parse_unit).transpose()?;
    match sort_by.map(|pattern| pattern.parts()) {
        Some([part]) => match part.on {
            SortOn::Meta(_) => bail!(8947400, "Range-based bounds require a non-expression sortBy"),
            SortOn::Path(_) if part.descending => {
                bail!(8947401, "Range-based bounds require an ascending sortBy")
            }
            SortOn::Path(_) => {}
        },
        _ => bail!(5339902, "Range-based bounds require sortBy a single field"),
    }
    Ok(Bounds::Range { lower, upper, unit })
}

/// The unit of this name.
///
/// Errors: `FailedToParse`.
pub(crate) fn parse_unit(name: &str) -> Result<Unit> {
    match Unit::of(name) {
        Some(unit) => Ok(unit),
        None => bail!(Code::FAILED_TO_PARSE, "unknown time unit value: {name}"),
    }
}
