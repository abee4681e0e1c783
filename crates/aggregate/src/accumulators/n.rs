//! `$firstN`, `$lastN`, `$minN`, `$maxN`.

use std::cmp::Ordering;
use std::collections::VecDeque;

use sheaf_bson::{Bump, OwnedValue, Value, array_in};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};

use super::state::{Parsed, State, check_state_memory, partial_elements};

/// Which values are kept.
#[derive(Clone, Copy)]
enum Which {
    First,
    Last,
    Min,
    Max,
}

struct Best {
    name: &'static str,
    which: Which,
    n: usize,
    /// `First` and `Last`: in order of arrival. `Min` and `Max`: best first.
    values: VecDeque<OwnedValue>,
    held: usize,
    collator: Option<SharedCollator>,
}

pub(super) fn parse_first(name: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    parse(name, argument, cx, Which::First)
}

pub(super) fn parse_last(name: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    parse(name, argument, cx, Which::Last)
}

pub(super) fn parse_min(name: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    parse(name, argument, cx, Which::Min)
}

pub(super) fn parse_max(name: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    parse(name, argument, cx, Which::Max)
}

fn parse(name: &'static str, argument: Value<'_>, cx: &mut ParseCx, which: Which) -> Result<Parsed> {
    let Value::Document(spec) = argument else {
        let code = if matches!(which, Which::Min | Which::Max) { 5787900 } else { 5787801 };
        bail!(Code(code), "specification must be an object; found {name}: {}", crate::print::value(argument));
    };
    let (mut input, mut n) = (None, None);
    for element in spec.iter() {
        match element.key() {
            "input" => input = Some(Expr::parse(element.value(), cx)?),
            "n" => n = Some(Expr::parse(element.value(), cx)?),
            other => bail!(5787901, "Unknown argument for 'n' operator: {other}"),
        }
    }
    let Some(n) = n else { bail!(5787906, "Missing value for 'n'") };
    let Some(input) = input else { bail!(5787907, "Missing value for 'input'") };
    let collator = cx.collator().cloned();
    Ok(Parsed {
        input,
        init: Some(n),
        make: Box::new(move |n| {
            let (n, collator) = (count(n)?, collator.clone());
            Ok(Box::new(Best { name, which, n, values: VecDeque::new(), held: 0, collator }))
        }),
    })
}

/// The value of `n`.
pub(crate) fn count(n: Value<'_>) -> Result<usize> {
    match n.as_exact_i64() {
        Some(n) if n > 0 => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        _ => bail!(7548606, "parameter 'n' must be coercible to a positive 64-bit integer"),
    }
}

impl State for Best {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        // A document without the value counts for `$firstN` and `$lastN`, as null.
        let or_null = if value.is_missing() { Value::Null } else { value };
        match self.which {
            Which::First if self.values.len() < self.n => self.push_back(or_null),
            Which::First => {}
            Which::Last => {
                self.push_back(or_null);
                if self.values.len() > self.n {
                    self.drop(true);
                }
            }
            Which::Min | Which::Max if value.is_nullish() => {}
            Which::Min => self.insert(value, Ordering::Less),
            Which::Max => self.insert(value, Ordering::Greater),
        }
        check_state_memory(self.name, self.held)
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(Value::Array(array_in(arena, |out| self.values.iter().for_each(|value| _ = out.push(value)))))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.result(arena)
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        partial_elements(self.name, partial)?.values().try_for_each(|value| self.add(value))
    }

    fn memory_bytes(&self) -> usize {
        self.held
    }
}

impl Best {
    fn push_back(&mut self, value: Value<'_>) {
        let value = OwnedValue::from(value);
        self.held += value.memory_bytes();
        self.values.push_back(value);
    }

    fn drop(&mut self, front: bool) {
        let gone = if front { self.values.pop_front() } else { self.values.pop_back() };
        self.held -= gone.map_or(0, |value| value.memory_bytes());
    }

    /// Puts a value in its place among the best `n`, behind its equals.
    fn insert(&mut self, value: Value<'_>, better: Ordering) {
        let by = self.collator.as_ref();
        let place = self.values.partition_point(|known| compare_by(by, value, known.as_value()) != better);
        if place >= self.n {
            return;
        }
        let value = OwnedValue::from(value);
        self.held += value.memory_bytes();
        self.values.insert(place, value);
        if self.values.len() > self.n {
            self.drop(false);
        }
    }
}
