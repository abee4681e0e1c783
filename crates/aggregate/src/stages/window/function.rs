//! Window functions as a stage names them: `{$sum: "$x", window: {documents: [-1, 0]}}`.

use sheaf_bson::{Decimal128, DocBuf, OwnedValue, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};
use sheaf_query::sort::{SortOn, SortPattern};

use super::arguments;
use super::bounds::Bounds;
use crate::accumulators::percentile::Wanted;
use crate::accumulators::{self, Parsed};

/// A parsed window function.
pub(super) struct Function {
    pub(super) name: &'static str,
    /// As it was given, for shards.
    pub(super) given: DocBuf,
    /// Its value for each document, of which the function makes its result.
    pub(super) input: Expr,
    pub(super) bounds: Bounds,
    pub(super) kind: Kind,
    /// How strings compare, if not by their bytes.
    pub(super) collator: Option<SharedCollator>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.given)
    }
}

/// What it makes of the values.
pub(super) enum Kind {
    /// The same as an accumulator; `way` makes it where values leave the window.
    Accumulator {
        init: Option<Expr>,
        make: accumulators::Make,
        way: Way,
    },
    Covariance {
        sample: bool,
    },
    Integral {
        unit_millis: Option<i64>,
    },
    ExpMovingAvg {
        alpha: Decimal128,
    },
    Locf,
    MinMaxScaler {
        range: (OwnedValue, OwnedValue),
    },
    First {
        default: OwnedValue,
    },
    Last,
    Derivative {
        unit_millis: Option<i64>,
    },
    Rank(Rank),
    LinearFill,
}

/// How an accumulator's values are taken back.
pub(super) enum Way {
    Sum,
    Mean,
    Deviation { sample: bool },
    List { flat: Option<&'static str> },
    Set { flat: Option<&'static str> },
    Best { largest: bool },
    FirstLast { last: bool },
    Top { sort_by: SortPattern, bottom: bool },
    Percentiles(Wanted),
}

/// What a rank counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rank {
    /// Documents before the first of its equals.
    Standard,
    /// Different values before it.
    Dense,
    /// Documents before it.
    DocumentNumber,
}

/// What parsing a function needs to know of the stage.
pub(super) struct FunctionCx<'c> {
    pub(super) sort_by: Option<&'c SortPattern>,
    pub(super) expr: &'c mut ParseCx,
}

type Parse = fn(&'static str, RawDoc<'_>, &mut FunctionCx<'_>) -> Result<Function>;

/// The names of all window functions.
pub fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|(name, _)| *name)
}

/// All window functions, by name.
static FUNCTIONS: &[(&str, Parse)] = &[
    ("$addToSet", plain),
    ("$avg", plain),
    ("$bottom", with_n),
    ("$bottomN", with_n),
    ("$concatArrays", plain),
    ("$count", plain),
    ("$covariancePop", plain),
    ("$covarianceSamp", plain),
    ("$denseRank", rank),
    ("$derivative", arguments::derivative),
    ("$documentNumber", rank),
    ("$expMovingAvg", arguments::exp_moving_avg),
    ("$first", first_or_last),
    ("$firstN", with_n),
    ("$integral", arguments::integral),
    ("$last", first_or_last),
    ("$lastN", with_n),
    ("$linearFill", arguments::linear_fill),
    ("$locf", arguments::locf),
    ("$max", plain),
    ("$maxN", with_n),
    ("$median", with_n),
    ("$min", plain),
    ("$minMaxScaler", arguments::min_max_scaler),
    ("$minN", with_n),
    ("$percentile", with_n),
    ("$push", plain),
    ("$rank", rank),
    ("$setUnion", plain),
    ("$shift", arguments::shift),
    ("$stdDevPop", plain),
    ("$stdDevSamp", plain),
    ("$sum", plain),
    ("$top", with_n),
    ("$topN", with_n),
];

/// Whether there is a window function of this name.
pub(super) fn is_function(name: &str) -> bool {
    FUNCTIONS.iter().any(|(known, _)| *known == name)
}

impl Function {
    /// Reads a function with its window.
    ///
    /// Errors: `FailedToParse` and many more.
    pub(super) fn parse(spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
        let Some(operator) = spec.iter().find(|field| field.key().starts_with('$')) else {
            let first = spec.iter().next().map(|first| format!(", {}", first.key())).unwrap_or_default();
            bail!(Code::FAILED_TO_PARSE, "Expected a $-prefixed window function{first}");
        };
        match FUNCTIONS.iter().find(|(name, _)| *name == operator.key()) {
            Some((name, parse)) => {
                sheaf_meter::grow(size_of::<Function>() + spec.len())?;
                parse(name, spec, cx)
            }
            None => bail!(Code::FAILED_TO_PARSE, "Unrecognized window function, {}", operator.key()),
        }
    }

    /// A function of this kind, read from `spec`.
    pub(super) fn new(
        name: &'static str,
        spec: RawDoc<'_>,
        input: Expr,
        bounds: Bounds,
        kind: Kind,
    ) -> Function {
        Function { name, given: DocBuf::from(spec), input, bounds, kind, collator: None }
    }

    /// As explain shows it: with the window that it has.
    pub(super) fn shown(&self) -> DocBuf {
        DocBuf::build(|out| {
            let fields = self.given.as_raw();
            fields.iter().filter(|field| field.key() != "window").for_each(|field| {
                out.append_element(field);
            });
            if self.takes_window() {
                out.append("window", &self.bounds.to_doc());
            }
        })
    }

    fn takes_window(&self) -> bool {
        match &self.kind {
            Kind::Rank(_) | Kind::ExpMovingAvg { .. } | Kind::Locf | Kind::LinearFill => false,
            Kind::First { .. } => self.name == "$first",
            _ => true,
        }
    }
}

/// The function's argument and its window. Errors are those of the functions that are accumulators, too.
fn argument_and_window<'a>(
    name: &'static str,
    spec: RawDoc<'a>,
    cx: &mut FunctionCx<'_>,
    mut parse: impl FnMut(Value<'a>, &mut ParseCx) -> Result<Parsed>,
) -> Result<(Parsed, Bounds)> {
    let (mut parsed, mut bounds) = (None, Bounds::WHOLE);
    for field in spec.iter() {
        match field.key() {
            "window" => bounds = Bounds::parse(field.value(), cx.sort_by, cx.expr)?,
            key if is_function(key) && parsed.is_some() => {
                bail!(Code::FAILED_TO_PARSE, "Cannot specify two functions in window function spec")
            }
            key if key == name => parsed = Some(parse(field.value(), cx.expr)?),
            other => {
                bail!(Code::FAILED_TO_PARSE, "Window function found an unknown argument: {other}")
            }
        }
    }
    Ok((parsed.expect("it was found by its name"), bounds))
}

fn way_of(name: &str) -> Way {
    match name {
        "$avg" => Way::Mean,
        "$stdDevPop" | "$stdDevSamp" => Way::Deviation { sample: name == "$stdDevSamp" },
        "$push" => Way::List { flat: None },
        "$concatArrays" => Way::List { flat: Some("$concatArrays") },
        "$addToSet" => Way::Set { flat: None },
        "$setUnion" => Way::Set { flat: Some("$setUnion") },
        "$min" | "$minN" | "$max" | "$maxN" => Way::Best { largest: name.starts_with("$max") },
        "$firstN" | "$lastN" => Way::FirstLast { last: name == "$lastN" },
        _ => Way::Sum,
    }
}

/// A function whose argument is one expression.
fn plain(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    if name.starts_with("$covariance") {
        // Its accumulator is none that `$group` has.
        let parse = |argument, cx: &mut ParseCx| {
            Ok(Parsed {
                input: Expr::parse(argument, cx)?,
                ..accumulators::parse_argument("$sum", Value::Null, cx)?
            })
        };
        let (parsed, bounds) = argument_and_window(name, spec, cx, parse)?;
        let kind = Kind::Covariance { sample: name == "$covarianceSamp" };
        return Ok(Function::new(name, spec, parsed.input, bounds, kind));
    }
    let parse = |argument: Value<'_>, cx: &mut ParseCx| {
        if name == "$count" && !argument.as_doc().is_some_and(|argument| argument.is_empty()) {
            bail!(Code::FAILED_TO_PARSE, "$count only accepts an empty object as input");
        }
        accumulators::parse_argument(name, argument, cx)
    };
    let (Parsed { input, init, make }, bounds) = argument_and_window(name, spec, cx, parse)?;
    let kind = Kind::Accumulator { init, make, way: way_of(name) };
    Ok(Function::new(name, spec, input, bounds, kind))
}

/// Reads a function that names each of its fields in errors of its own.
pub(super) fn named_fields<'a>(
    name: &str,
    spec: RawDoc<'a>,
    cx: &mut FunctionCx<'_>,
    mut parse: impl FnMut(Value<'a>, &mut FunctionCx<'_>) -> Result<()>,
) -> Result<Option<Bounds>> {
    let (mut bounds, mut seen) = (None, false);
    for field in spec.iter() {
        match field.key() {
            "window" if bounds.is_some() => {
                bail!(Code::FAILED_TO_PARSE, "saw multiple 'window' fields in '{name}' expression")
            }
            "window" => bounds = Some(Bounds::parse(field.value(), cx.sort_by, cx.expr)?),
            key if key == name && seen => {
                bail!(Code::FAILED_TO_PARSE, "saw multiple specifications for '{name}' expression")
            }
            key if key == name => {
                seen = true;
                parse(field.value(), cx)?;
            }
            other => bail!(Code::FAILED_TO_PARSE, "{name} got unexpected argument: {other}"),
        }
    }
    Ok(bounds)
}

/// A function whose argument is an object: those that take `n`, a sort, or percentiles.
fn with_n(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    let (mut parsed, mut way) = (None, None);
    let bounds = named_fields(name, spec, cx, |argument, cx| {
        parsed = Some(accumulators::parse_argument(name, argument, cx.expr)?);
        way = Some(match name {
            "$median" | "$percentile" => Way::Percentiles(
                accumulators::percentile::parse_argument(name, argument, 7_429_703, cx.expr)?.1,
            ),
            "$top" | "$topN" | "$bottom" | "$bottomN" => {
                let sort_by = argument.as_doc().and_then(|argument| argument.get("sortBy"));
                let sort_by = sort_by.and_then(|sort_by| sort_by.as_doc()).unwrap_or(RawDoc::EMPTY);
                Way::Top {
                    sort_by: SortPattern::parse(sort_by)?.with_collator(cx.expr.collator()),
                    bottom: name.starts_with("$bottom"),
                }
            }
            _ => way_of(name),
        });
        Ok(())
    })?;
    let (Some(Parsed { input, init, make }), Some(way)) = (parsed, way) else {
        unreachable!("the function was found by its name");
    };
    let kind = Kind::Accumulator { init, make, way };
    Ok(Function::new(name, spec, input, bounds.unwrap_or(Bounds::WHOLE), kind))
}

fn first_or_last(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    let mut input = None;
    let bounds = named_fields(name, spec, cx, |argument, cx| {
        input = Some(Expr::parse(argument, cx.expr)?);
        Ok(())
    })?;
    let input = input.expect("the function was found by its name");
    let kind = if name == "$first" { Kind::First { default: Value::Null.into() } } else { Kind::Last };
    Ok(Function::new(name, spec, input, bounds.unwrap_or(Bounds::WHOLE), kind))
}

fn rank(name: &'static str, spec: RawDoc<'_>, cx: &mut FunctionCx<'_>) -> Result<Function> {
    if spec.count() != 1 {
        bail!(5371601, "Rank style window functions take no other arguments");
    }
    if !spec.get(name).and_then(|argument| argument.as_doc()).is_some_and(|argument| argument.is_empty()) {
        bail!(5371603, "{name} must be specified with '{{}}' as the value");
    }
    one_key(name, 5_371_602, cx.sort_by)?;
    let kind = Kind::Rank(match name {
        "$rank" => Rank::Standard,
        "$denseRank" => Rank::Dense,
        _ => Rank::DocumentNumber,
    });
    Ok(Function::new(name, spec, Expr::literal(Value::Null), Bounds::UP_TO_CURRENT, kind))
}

/// Refuses a stage that does not sort by exactly one key.
pub(super) fn one_key(name: &str, code: i32, sort_by: Option<&SortPattern>) -> Result<()> {
    match sort_by.map(|sort_by| sort_by.parts()) {
        Some([part]) if matches!(part.on, SortOn::Path(_) | SortOn::Meta(_)) => Ok(()),
        _ => bail!(
            Code(code),
            "{name} must be specified with a top level sortBy expression with exactly one element"
        ),
    }
}
