//! Accumulators of `$group`, `$bucket` and `$bucketAuto`: `{$sum: "$price"}`.
//!
//! One entry of [`ACCUMULATORS`] per accumulator: its name, how its argument is read and what gathers its
//! values. To add one: write a [`State`] and its entry.

mod function;
mod minmax;
mod n;
mod numeric;
pub(crate) mod percentile;
mod set;
mod state;
#[cfg(test)]
mod tests;
mod top;

use sheaf_bson::{Element, RawDoc, Type, Value};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Deps, Env, Expr, ParseCx};
use sheaf_meter::ALLOCATION;

pub(crate) use n::count as n_of;
pub(crate) use set::array_elements;
use state::Merging;
pub use state::State;
pub(crate) use state::{Make, Parsed, copy_in};

/// An accumulator as the table describes it.
pub struct Accumulator {
    /// The name, `$` included.
    pub name: &'static str,
    parse: fn(&'static str, Value<'_>, &mut ParseCx) -> Result<Parsed>,
}

macro_rules! unary {
    ($state:expr) => {
        |_, argument, cx| {
            Ok(Parsed {
                input: Expr::parse(argument, cx)?,
                init: None,
                make: Box::new(|_| Ok(Box::new($state))),
            })
        }
    };
}

/// All accumulators.
pub static ACCUMULATORS: &[Accumulator] = &[
    Accumulator { name: "$sum", parse: unary!(numeric::Total::default()) },
    Accumulator { name: "$avg", parse: unary!(numeric::Average::default()) },
    Accumulator { name: "$stdDevPop", parse: unary!(numeric::Deviation::population()) },
    Accumulator { name: "$stdDevSamp", parse: unary!(numeric::Deviation::sample()) },
    Accumulator { name: "$count", parse: numeric::parse_count },
    Accumulator { name: "$min", parse: minmax::parse_min },
    Accumulator { name: "$max", parse: minmax::parse_max },
    Accumulator { name: "$first", parse: unary!(minmax::First::default()) },
    Accumulator { name: "$last", parse: unary!(minmax::Last::default()) },
    Accumulator { name: "$push", parse: unary!(set::Push::default()) },
    Accumulator { name: "$addToSet", parse: set::parse_add_to_set },
    Accumulator { name: "$concatArrays", parse: unary!(set::ConcatArrays::default()) },
    Accumulator { name: "$setUnion", parse: set::parse_set_union },
    Accumulator { name: "$mergeObjects", parse: unary!(set::MergeObjects::default()) },
    Accumulator { name: "$firstN", parse: n::parse_first },
    Accumulator { name: "$lastN", parse: n::parse_last },
    Accumulator { name: "$minN", parse: n::parse_min },
    Accumulator { name: "$maxN", parse: n::parse_max },
    Accumulator { name: "$top", parse: top::parse },
    Accumulator { name: "$topN", parse: top::parse },
    Accumulator { name: "$bottom", parse: top::parse },
    Accumulator { name: "$bottomN", parse: top::parse },
    Accumulator { name: "$median", parse: percentile::parse },
    Accumulator { name: "$percentile", parse: percentile::parse },
    Accumulator { name: "$accumulator", parse: function::parse },
    Accumulator { name: "$_internalJsReduce", parse: function::parse_reduce },
];

/// Whether `name` is an accumulator.
pub fn is_accumulator(name: &str) -> bool {
    ACCUMULATORS.iter().any(|accumulator| accumulator.name == name)
}

/// Reads the argument of an accumulator where it is used as a window function, which may be an array.
pub(crate) fn parse_argument(name: &str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let entry = ACCUMULATORS.iter().find(|entry| entry.name == name);
    let entry = entry.expect("window functions name accumulators that there are");
    (entry.parse)(entry.name, argument, cx)
}

/// One output field of a group: `total: {$sum: "$price"}`.
pub struct Accumulation {
    field: String,
    operator: &'static str,
    parsed: Parsed,
}

impl std::fmt::Debug for Accumulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {{{}: {:?}}}", self.field, self.operator, self.parsed.input)
    }
}

impl Accumulation {
    /// Reads one output field.
    pub fn parse(element: Element<'_>, cx: &mut ParseCx) -> Result<Self> {
        let field = element.key();
        let spec = match element.value() {
            Value::Document(spec) if spec.iter().next().is_some_and(|first| first.key().starts_with('$')) => {
                spec
            }
            _ => bail!(40234, "The field '{field}' must be an accumulator object"),
        };
        if field.contains('.') {
            bail!(40235, "The field name '{field}' cannot contain '.'");
        }
        if field.starts_with('$') {
            bail!(40236, "The field name '{field}' cannot be an operator name");
        }
        let mut operators = spec.iter();
        let (Some(operator), None) = (operators.next(), operators.next()) else {
            bail!(40238, "The field '{field}' must specify one accumulator");
        };
        if operator.kind() == Type::Array {
            bail!(40237, "The {} accumulator is a unary operator", operator.key());
        }
        let Some(entry) = ACCUMULATORS.iter().find(|entry| entry.name == operator.key()) else {
            bail!(15952, "unknown group operator '{}'", operator.key());
        };
        sheaf_meter::grow(size_of::<Accumulation>() + field.len() + 4 * ALLOCATION)?;
        let parsed = (entry.parse)(entry.name, operator.value(), cx)?;
        Ok(Accumulation { field: field.to_owned(), operator: entry.name, parsed })
    }

    /// The count of documents, under this name: what `$bucket` puts out by default.
    pub fn count(field: &str) -> Self {
        let make: Make = Box::new(|_| Ok(Box::new(numeric::Total::default())));
        let parsed = Parsed { input: Expr::literal(Value::Int32(1)), init: None, make };
        Accumulation { field: field.to_owned(), operator: "$sum", parsed }
    }

    /// The accumulation that merges the [partial](State::partial) results of this one: it finds them in the field of its own name.
    pub fn merging(self, cx: &mut ParseCx) -> Result<Self> {
        let input = Expr::parse(Value::String(&format!("${}", self.field)), cx)?;
        let Parsed { init, make, .. } = self.parsed;
        let make: Make = Box::new(move |init| Ok(Box::new(Merging(make(init)?))));
        Ok(Accumulation { parsed: Parsed { input, init, make }, ..self })
    }

    /// The name of the output field.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The accumulator's name.
    pub fn operator(&self) -> &'static str {
        self.operator
    }

    /// The expression that is evaluated for each document.
    pub fn input(&self) -> &Expr {
        &self.parsed.input
    }

    /// Whether a group's state takes more room with every document.
    pub fn grows(&self) -> bool {
        !matches!(self.operator, "$sum" | "$avg" | "$stdDevPop" | "$stdDevSamp" | "$count")
    }

    /// The state for a new group with this `_id`.
    pub fn start<'a>(&'a self, id: Value<'a>, env: &Env<'a>) -> Result<Box<dyn State>> {
        let init = match &self.parsed.init {
            Some(expr) => expr.eval(id.as_doc().unwrap_or(RawDoc::EMPTY), env)?,
            None => Value::Missing,
        };
        (self.parsed.make)(init)
    }

    /// What the document contributes.
    pub fn value<'a>(&'a self, document: RawDoc<'a>, env: &Env<'a>) -> Result<Value<'a>> {
        self.parsed.input.eval(document, env)
    }

    /// What of the documents is read.
    pub fn dependencies(&self, deps: &mut Deps) {
        self.parsed.input.dependencies(deps);
    }
}
