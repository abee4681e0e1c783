//! Arguments of the functions that are no accumulators.

use sheaf_bson::{Decimal128, OwnedValue, RawDoc, Value, compare, number};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};
use sheaf_query::sort::{SortOn, SortPattern};

use super::bounds::{Bound, Bounds, parse_unit, small_integer};
use super::function::{Function, FunctionCx, Kind, is_function, named_fields, one_key};
use crate::idl::Fields;
use crate::print;

/// `$derivative` and `$integral` want one field to be sorted by.
fn one_field(name: &str, sort_by: Option<&SortPattern>) -> Result<()> {
    let Some(sort_by) = sort_by else { bail!(Code::FAILED_TO_PARSE, "{name} requires a sortBy") };
    match sort_by.parts() {
        [part] if matches!(part.on, SortOn::Meta(_)) => {
            bail!(Code::FAILED_TO_PARSE, "{name} requires a non-expression sortBy")
        }
        [_] => Ok(()),
        _ => bail!(Code::FAILED_TO_PARSE, "{name} requires a non-compound sortBy"),
    }
}

/// The input and the unit's length of `{input: ..., unit: "hour"}`.
fn input_and_unit(name: &str, argument: Value<'_>, cx: &mut ParseCx) -> Result<(Expr, Option<i64>)> {
    let Value::Document(argument) = argument else {
        bail!(
            Code::FAILED_TO_PARSE,
            "{name} expects an object, but got a {}: {name}: {}",
            argument.type_name(),
            print::value(argument)
        );
    };
    let (mut input, mut unit) = (None, None);
    for field in argument.iter() {
        match (field.key(), field.value()) {
            ("input", value) => input = Some(Expr::parse(value, cx)?),
            ("unit", Value::String(unit_name)) => {
                let Some(millis) = parse_unit(unit_name)?.fixed_millis() else {
                    bail!(5490710, "unit must be 'week' or smaller");
                };
                unit = Some(millis);
            }
            ("unit", other) => {
                bail!(Code::FAILED_TO_PARSE, "unit' must be a string, but got {}", other.type_name())
            }
            (other, _) => bail!(Code::FAILED_TO_PARSE, "{name} got unexpected argument: {other}"),
        }
    }
    match input {
        Some(input) => Ok((input, unit)),
        None => bail!(Code::FAILED_TO_PARSE, "{name} requires an 'input' expression"),
    }
}

fn with_unit<'a>(
    name: &'static str,
    spec: RawDoc<'a>,
    cx: &mut FunctionCx<'_>,
) -> Result<(Expr, Option<i64>, Option<Bounds>)> {
    one_field(name, cx.sort_by)?;
    // The argument is read after the window, wherever it stands.
    let mut argument = None;
    let bounds = named_fields(name, spec, cx, |value, _| {
        argument = Some(value);
        Ok(())
    })?;
    let argument = argument.expect("the function was found by its name");
    let (input, unit) = input_and_unit(name, argument, cx.expr)?;
    Ok((input, unit, bounds))
}

pub(super) fn derivative(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    let (input, unit_millis, bounds) = with_unit(name, spec, cx)?;
    let Some(bounds) = bounds else {
        bail!(Code::FAILED_TO_PARSE, "$derivative requires explicit window bounds");
    };
    Ok(Function::new(name, spec, input, bounds, Kind::Derivative { unit_millis }))
}

pub(super) fn integral(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    let (input, unit_millis, bounds) = with_unit(name, spec, cx)?;
    let bounds = bounds.unwrap_or(Bounds::WHOLE);
    Ok(Function::new(name, spec, input, bounds, Kind::Integral { unit_millis }))
}

pub(super) fn exp_moving_avg(
    name: &'static str,
    spec: RawDoc<'_>,
    cx: &mut FunctionCx<'_>,
) -> Result<Function> {
    const FIELDS: &str = "$expMovingAvg sub object must have exactly two fields: An 'input' field, and either an 'N' \
                          field or an 'alpha' field";
    let argument = match spec.get(name) {
        Some(Value::Document(argument)) if spec.count() == 1 => argument,
        _ => bail!(Code::FAILED_TO_PARSE, "$expMovingAvg must have exactly one argument that is an object"),
    };
    let input = match argument.get("input") {
        Some(input) if argument.count() == 2 => input,
        _ => bail!(Code::FAILED_TO_PARSE, "{FIELDS}"),
    };
    if cx.sort_by.is_none() {
        bail!(Code::FAILED_TO_PARSE, "$expMovingAvg requires an explicit 'sortBy'");
    }
    let input = Expr::parse(input, cx.expr)?;
    let one = Decimal128::from_i32(1);
    let alpha = match (argument.get("N"), argument.get("alpha")) {
        (Some(n), _) => {
            let n = count_of(n)?;
            Decimal128::from_i32(2).divide(Decimal128::from_i64(n).add(one))
        }
        (None, Some(alpha)) => match number::to_decimal(alpha) {
            Some(alpha) if alpha.compare(Decimal128::ZERO).is_gt() && alpha.compare(one).is_lt() => alpha,
            Some(_) => bail!(
                Code::FAILED_TO_PARSE,
                "'alpha' must be between 0 and 1 (exclusive), found alpha: {}",
                print::value(alpha)
            ),
            None => bail!(Code::FAILED_TO_PARSE, "'alpha' must be a number"),
        },
        (None, None) => bail!(Code::FAILED_TO_PARSE, "Got unrecognized field in $expMovingAvg{FIELDS}"),
    };
    Ok(Function::new(name, spec, input, Bounds::UP_TO_CURRENT, Kind::ExpMovingAvg { alpha }))
}

/// `N`: so many documents count most.
fn count_of(n: Value<'_>) -> Result<i64> {
    let Some(double) = n.as_f64() else {
        bail!(Code::FAILED_TO_PARSE, "'N' field must be an integer, but found type {}", n.type_name());
    };
    if double != double.floor() {
        bail!(
            Code::FAILED_TO_PARSE,
            "'N' field must be an integer, but found  N: {}. To use a non-integer, use the 'alpha' argument instead",
            print::value(n)
        );
    }
    let n = n.as_exact_i64().unwrap_or(if double > 0.0 { i64::MAX } else { i64::MIN });
    if n <= 0 {
        bail!(Code::FAILED_TO_PARSE, "'N' must be greater than zero. Got {n}");
    }
    Ok(n)
}

/// The input of a function that has no window.
fn without_window(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Expr> {
    let (mut input, mut window) = (None, false);
    for field in spec.iter() {
        match field.key() {
            "window" => window = true,
            key if is_function(key) && input.is_some() => {
                bail!(Code::FAILED_TO_PARSE, "Cannot specify two functions in window function spec")
            }
            key if key == name => input = Some(Expr::parse(field.value(), cx.expr)?),
            other => bail!(Code::FAILED_TO_PARSE, "Window function found an unknown argument: {other}"),
        }
    }
    if window {
        bail!(Code::FAILED_TO_PARSE, "'window' field is not allowed in {name}");
    }
    Ok(input.expect("the function was found by its name"))
}

pub(super) fn locf(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    let input = without_window(name, spec, cx)?;
    Ok(Function::new(name, spec, input, Bounds::UP_TO_CURRENT, Kind::Locf))
}

pub(super) fn linear_fill(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    let input = without_window(name, spec, cx)?;
    one_key(name, 605_001, cx.sort_by)?;
    Ok(Function::new(name, spec, input, Bounds::WHOLE, Kind::LinearFill))
}

pub(super) fn shift(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    let mut shifted = None;
    for field in spec.iter() {
        match field.key() {
            "window" => bail!(Code::FAILED_TO_PARSE, "$shift does not accept a 'window' field"),
            key if is_function(key) && shifted.is_some() => {
                bail!(Code::FAILED_TO_PARSE, "Cannot specify multiple functions in window function spec")
            }
            key if key == name => shifted = Some(shift_arguments(field.value(), cx.expr)?),
            other => bail!(Code::FAILED_TO_PARSE, "Window function found an unknown argument: {other}"),
        }
    }
    if cx.sort_by.is_none() {
        bail!(Code::FAILED_TO_PARSE, "'$shift' requires a sortBy");
    }
    let (output, by, default) = shifted.expect("the function was found by its name");
    let bounds = Bounds::Documents { lower: Bound::At(by), upper: Bound::At(by) };
    Ok(Function::new(name, spec, output, bounds, Kind::First { default }))
}

fn shift_arguments(argument: Value<'_>, cx: &mut ParseCx) -> Result<(Expr, i64, OwnedValue)> {
    let Value::Document(argument) = argument else {
        bail!(Code::FAILED_TO_PARSE, "Argument to $shift must be an object");
    };
    let (mut output, mut by, mut default) = (None, None, Value::Null.into());
    for field in argument.iter() {
        match field.key() {
            "output" => output = Some(Expr::parse(field.value(), cx)?),
            "default" => {
                let expr = Expr::parse(field.value(), cx)?;
                let Some(value) = expr.constant() else {
                    bail!(Code::FAILED_TO_PARSE, "'$shift:default' expression must yield a constant value.");
                };
                default = OwnedValue::from(value);
            }
            "by" => match small_integer(field.value()) {
                Some(n) => by = Some(n),
                None => bail!(
                    Code::FAILED_TO_PARSE,
                    "'$shift:by' field must be an integer, but found  by: {}",
                    print::value(field.value())
                ),
            },
            _ => bail!(Code::FAILED_TO_PARSE, "Unknown argument in $shift"),
        }
    }
    let Some(output) = output else {
        bail!(Code::FAILED_TO_PARSE, "$shift requires an 'output' expression.");
    };
    let Some(by) = by else {
        bail!(Code::FAILED_TO_PARSE, "$shift requires 'by' as an integer value.");
    };
    Ok((output, by, default))
}

pub(super) fn min_max_scaler(
    name: &'static str,
    spec: RawDoc<'_>,
    cx: &mut FunctionCx<'_>,
) -> Result<Function> {
    let mut argument = None;
    let bounds = named_fields(name, spec, cx, |value, _| {
        argument = Some(value);
        Ok(())
    })?;
    let bounds = bounds.unwrap_or(Bounds::WHOLE);
    check_has_current(&bounds)?;
    let argument = argument.expect("the function was found by its name");
    let (input, range) = match argument {
        Value::Document(fields)
            if !fields.iter().next().is_some_and(|first| first.key().starts_with('$')) =>
        {
            scaler_arguments(fields, cx.expr)?
        }
        other => (Expr::parse(other, cx.expr)?, (Value::Int32(0).into(), Value::Int32(1).into())),
    };
    Ok(Function::new(name, spec, input, bounds, Kind::MinMaxScaler { range }))
}

/// Refuses a window that may be without the document itself.
fn check_has_current(bounds: &Bounds) -> Result<()> {
    let distance = |bound: &Bound<OwnedValue>| match bound {
        Bound::At(n) => n.as_value().as_f64(),
        _ => None,
    };
    let place = |bound: &Bound<i64>| match bound {
        Bound::At(n) => Some(*n as f64),
        _ => None,
    };
    let (lower, upper) = match bounds {
        Bounds::Documents { lower, upper } => (place(lower), place(upper)),
        Bounds::Range { lower, upper, .. } => (distance(lower), distance(upper)),
    };
    if let Some(lower) = lower.filter(|lower| *lower > 0.0) {
        bail!(
            Code::FAILED_TO_PARSE,
            "Lower specified bound cannot be greater than 0 (the current doc), as $minMaxScaler must ensure that the \
             current document being processed is always within the configured window. Lower specified bound = {lower}"
        );
    }
    if let Some(upper) = upper.filter(|upper| *upper < 0.0) {
        bail!(
            Code::FAILED_TO_PARSE,
            "Upper specified bound cannot be less than 0 (the current doc), as $minMaxScaler must ensure that the \
             current document being processed is always within the configured window. Upper specified bound = {upper}"
        );
    }
    Ok(())
}

fn scaler_arguments(spec: RawDoc<'_>, cx: &mut ParseCx) -> Result<(Expr, (OwnedValue, OwnedValue))> {
    let fields = Fields::new("$minMaxScaler", spec, &["input", "min", "max"])?;
    let Some(input) = fields.any("input") else { return fields.missing("input") };
    let input = Expr::parse(input, cx)?;
    let mut constant = |name: &str, value: Value<'_>| {
        let expr = Expr::parse(value, cx)?;
        match expr.constant() {
            None => bail!(Code::FAILED_TO_PARSE, "'{name}' argument to $minMaxScaler must be a constant"),
            Some(value) if !value.is_number() => {
                bail!(Code::FAILED_TO_PARSE, "'{name}' argument to $minMaxScaler must be a numeric type")
            }
            Some(value) => Ok(OwnedValue::from(value)),
        }
    };
    let range = match (fields.any("min"), fields.any("max")) {
        (None, None) => (Value::Int32(0).into(), Value::Int32(1).into()),
        (Some(min), Some(max)) => (constant("min", min)?, constant("max", max)?),
        _ => bail!(
            Code::FAILED_TO_PARSE,
            "Only one of 'min' and 'max' were specified as an argument to $minMaxScaler. Neither or both must be \
             specified"
        ),
    };
    if compare(range.0.as_value(), range.1.as_value()).is_ge() {
        bail!(
            Code::FAILED_TO_PARSE,
            "the 'max' must be strictly greater than 'min', as arguments to $minMaxScaler"
        );
    }
    Ok((input, range))
}
