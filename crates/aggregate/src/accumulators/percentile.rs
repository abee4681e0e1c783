//! `$percentile` and `$median`: exact, which is as near as `approximate` can come.

use std::cmp::Ordering;

use sheaf_bson::{ArrayBuf, Bump, Type, Value, array_in};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};

use super::state::{Parsed, State, check_state_memory, partial_elements};
use crate::idl::Fields;
use crate::print;

/// Which percentiles are asked for.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// The one in the middle, as a number.
    Median,
    /// These, as an array.
    Percentiles(Vec<f64>),
}

/// Reads an argument: the input, and what is wanted of it. `not_object` is the code for an argument that is no object.
pub(crate) fn parse_argument(
    name: &'static str,
    argument: Value<'_>,
    not_object: i32,
    cx: &mut ParseCx,
) -> Result<(Expr, Wanted)> {
    let Value::Document(spec) = argument else {
        bail!(Code(not_object), "specification must be an object; found {name}: {}", print::value(argument));
    };
    let median = name == "$median";
    let known: &[&str] = if median { &["input", "method"] } else { &["input", "p", "method"] };
    let fields = Fields::new(name, spec, known)?;
    let method = fields.optional("method", &[Type::String])?;
    match method {
        Some(Value::String("approximate")) | None => {}
        Some(_) => {
            bail!(Code::BAD_VALUE, "Currently only 'approximate' can be used as percentile 'method'.")
        }
    }
    let Some(input) = fields.any("input") else { return fields.missing("input") };
    let p = match fields.any("p") {
        None if !median => return fields.missing("p"),
        p => p,
    };
    if method.is_none() {
        return fields.missing("method");
    }
    let input = Expr::parse(input, cx)?;
    let wanted = match p {
        Some(p) => Wanted::Percentiles(parse_p(p, cx)?),
        None => Wanted::Median,
    };
    Ok((input, wanted))
}

fn parse_p(p: Value<'_>, cx: &mut ParseCx) -> Result<Vec<f64>> {
    const MESSAGE: &str = "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found:";
    let expr = Expr::parse(p, cx)?;
    let Some(value) = expr.constant() else {
        bail!(
            7750300,
            "The $percentile 'p' field must be an array of constant values, but found value: {}.",
            print::value(p)
        );
    };
    let values = match value {
        Value::Array(values) if !values.is_empty() => values,
        other => bail!(7750301, "{MESSAGE} {}", print::value(other)),
    };
    let parse = |value: Value<'_>| match value.as_f64() {
        None => bail!(7750302, "{MESSAGE} {}", print::value(value)),
        Some(p) if !(0.0..=1.0).contains(&p) => bail!(7750303, "{MESSAGE} {}", print::value(value)),
        Some(p) => Ok(p),
    };
    values.values().map(parse).collect()
}

pub(super) fn parse(name: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let not_object = if name == "$median" { 7_436_100 } else { 7_429_703 };
    let (input, wanted) = parse_argument(name, argument, not_object, cx)?;
    Ok(Parsed {
        input,
        init: None,
        make: Box::new(move |_| Ok(Box::new(Numbers { name, wanted: wanted.clone(), values: Vec::new() }))),
    })
}

/// The order of the numbers: NaN before all others, zeros as they came.
pub(crate) fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// The result over sorted numbers; null for each if there are none.
pub(crate) fn result_of<'a>(wanted: &Wanted, sorted: &[f64], arena: &'a Bump) -> Value<'a> {
    let at = |p: f64| {
        let count = sorted.len() as f64;
        let rank = if p >= 1.0 { count - 1.0 } else { ((count * p).ceil() - 1.0).max(0.0) };
        sorted.get(rank as usize).map_or(Value::Null, |n| Value::Double(*n))
    };
    match wanted {
        Wanted::Median => at(0.5),
        Wanted::Percentiles(ps) => {
            Value::Array(array_in(arena, |out| ps.iter().for_each(|p| _ = out.push(at(*p)))))
        }
    }
}

/// The numbers of a group.
struct Numbers {
    name: &'static str,
    wanted: Wanted,
    values: Vec<f64>,
}

impl State for Numbers {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        self.values.extend(value.as_f64());
        check_state_memory(self.name, self.memory_bytes())
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        let mut sorted = self.values.clone();
        sheaf_meter::tick_for(sorted.len() * size_of::<f64>())?;
        sorted.sort_by(|a, b| order(*a, *b));
        Ok(result_of(&self.wanted, &sorted, arena))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        let values = ArrayBuf::of(self.values.iter().map(|n| Value::Double(*n)));
        Ok(Value::Array(array_in(arena, |out| values.as_raw().values().for_each(|n| _ = out.push(n)))))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        partial_elements(self.name, partial)?.values().try_for_each(|value| self.add(value))
    }

    fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<f64>()
    }
}
