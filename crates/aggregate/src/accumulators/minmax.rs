//! `$min`, `$max`, `$first`, `$last`.

use std::cmp::Ordering;

use sheaf_bson::{Bump, OwnedValue, Value};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::Result;
use sheaf_expr::{Expr, ParseCx};

use super::state::{Parsed, State, copy_in};

/// `$min` and `$max`: null, undefined and missing do not take part.
pub(super) struct Extreme {
    wanted: Ordering,
    best: Option<OwnedValue>,
    collator: Option<SharedCollator>,
}

pub(super) fn parse_min(_: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    parse_extreme(Ordering::Less, argument, cx)
}

pub(super) fn parse_max(_: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    parse_extreme(Ordering::Greater, argument, cx)
}

fn parse_extreme(wanted: Ordering, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let collator = cx.collator().cloned();
    Ok(Parsed {
        input: Expr::parse(argument, cx)?,
        init: None,
        make: Box::new(move |_| Ok(Box::new(Extreme { wanted, best: None, collator: collator.clone() }))),
    })
}

impl State for Extreme {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        if value.is_nullish() {
            return Ok(());
        }
        let better = match &self.best {
            Some(best) => compare_by(self.collator.as_ref(), value, best.as_value()) == self.wanted,
            None => true,
        };
        if better {
            self.best = Some(OwnedValue::from(value));
        }
        Ok(())
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.best.as_ref().map_or(Value::Null, |best| copy_in(best, arena)))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        self.result(arena)
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        self.add(partial)
    }

    fn memory_bytes(&self) -> usize {
        self.best.as_ref().map_or(0, OwnedValue::memory_bytes)
    }
}

/// `$first`.
#[derive(Default)]
pub(super) struct First(Option<OwnedValue>);

impl State for First {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        self.0.get_or_insert_with(|| OwnedValue::from(value));
        Ok(())
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.0.as_ref().map_or(Value::Missing, |value| copy_in(value, arena)))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.0.as_ref().map_or(Value::Missing, |value| present(copy_in(value, arena))))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        if partial.is_missing() { Ok(()) } else { self.add(partial) }
    }

    fn memory_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedValue::memory_bytes)
    }
}

/// A value that has come: what a document does not have is null in the result, too.
fn present(value: Value<'_>) -> Value<'_> {
    if value.is_missing() { Value::Null } else { value }
}

/// `$last`.
#[derive(Default)]
pub(super) struct Last(Option<OwnedValue>);

impl State for Last {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        self.0 = Some(OwnedValue::from(value));
        Ok(())
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.0.as_ref().map_or(Value::Missing, |value| copy_in(value, arena)))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.0.as_ref().map_or(Value::Missing, |value| present(copy_in(value, arena))))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        if partial.is_missing() { Ok(()) } else { self.add(partial) }
    }

    fn memory_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedValue::memory_bytes)
    }
}
