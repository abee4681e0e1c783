//! `$min`, `$max`, their kin with `n`, `$top` and `$bottom`, `$firstN` and `$lastN`, `$minMaxScaler`.

use std::collections::{BTreeMap, VecDeque};

use sheaf_bson::{Bump, OwnedValue, RawDoc, Value, array_in, compare, number};
use sheaf_collation::{SharedCollator, key_of};
use sheaf_errors::{Code, Result, bail};
use sheaf_query::sort::SortPattern;

use super::Removable;
use crate::accumulators::copy_in;

/// Values in order; equal ones as they came. They leave as they came.
#[derive(Default)]
struct Ordered {
    /// By what they compare as; with the value, if that is another.
    sorted: BTreeMap<(OwnedValue, u64), Option<OwnedValue>>,
    collator: Option<SharedCollator>,
    /// The number of the next to come, and of the next to leave.
    next: u64,
    first: u64,
    bytes: usize,
}

impl Ordered {
    fn add(&mut self, value: Value<'_>) {
        let key = key_of(self.collator.as_ref(), value);
        let value = self.collator.is_some().then(|| OwnedValue::from(value));
        self.bytes += entry_bytes(&key, value.as_ref());
        self.sorted.insert((key, self.next), value);
        self.next += 1;
    }

    fn remove(&mut self, value: Value<'_>) {
        let place = (key_of(self.collator.as_ref(), value), self.first);
        let gone = self.sorted.remove(&place).expect("values leave in the order in which they came");
        self.bytes -= entry_bytes(&place.0, gone.as_ref());
        self.first += 1;
    }

    fn values(&self) -> impl DoubleEndedIterator<Item = &OwnedValue> {
        self.sorted.iter().map(|((key, _), value)| value.as_ref().unwrap_or(key))
    }
}

fn entry_bytes(key: &OwnedValue, value: Option<&OwnedValue>) -> usize {
    key.memory_bytes() + value.map_or(0, OwnedValue::memory_bytes) + size_of::<u64>()
}

/// `$min`, `$max`, `$minN`, `$maxN`: null and missing do not take part.
pub(crate) struct Best {
    values: Ordered,
    largest: bool,
    /// How many are wanted; `None` for one that is not in an array.
    n: Option<usize>,
}

impl Best {
    pub(crate) fn new(largest: bool, n: Option<usize>, collator: Option<SharedCollator>) -> Best {
        Best { values: Ordered { collator, ..Ordered::default() }, largest, n }
    }
}

impl Removable for Best {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        if !value.is_nullish() {
            self.values.add(value);
        }
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        if !value.is_nullish() {
            self.values.remove(value);
        }
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        let Some(n) = self.n else {
            let best =
                if self.largest { self.values.values().next_back() } else { self.values.values().next() };
            return Ok(best.map_or(Value::Null, |best| copy_in(best, arena)));
        };
        Ok(Value::Array(array_in(arena, |out| {
            if self.largest {
                self.values.values().rev().take(n).for_each(|value| _ = out.push(value));
            } else {
                self.values.values().take(n).for_each(|value| _ = out.push(value));
            }
        })))
    }

    fn memory_bytes(&self) -> usize {
        self.values.bytes
    }
}

/// `$firstN` and `$lastN`: what is missing counts as null.
pub(crate) struct FirstLast {
    values: VecDeque<OwnedValue>,
    last: bool,
    n: usize,
    bytes: usize,
}

impl FirstLast {
    pub(crate) fn new(last: bool, n: usize) -> FirstLast {
        FirstLast { values: VecDeque::new(), last, n, bytes: 0 }
    }
}

impl Removable for FirstLast {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        let value = OwnedValue::from(if value.is_missing() { Value::Null } else { value });
        self.bytes += value.memory_bytes();
        self.values.push_back(value);
        Ok(())
    }

    fn remove(&mut self, _value: Value<'_>) -> Result<()> {
        self.bytes -= self.values.pop_front().map_or(0, |gone| gone.memory_bytes());
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        let skipped = if self.last { self.values.len().saturating_sub(self.n) } else { 0 };
        let wanted = self.values.iter().skip(skipped).take(self.n);
        Ok(Value::Array(array_in(arena, |out| wanted.for_each(|value| _ = out.push(value)))))
    }

    fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// `$top`, `$topN`, `$bottom`, `$bottomN`. Values are `{root: <document>, output: <value>}`.
pub(crate) struct Top {
    sort_by: SortPattern,
    bottom: bool,
    n: Option<usize>,
    outputs: BTreeMap<(Vec<u8>, u64), OwnedValue>,
    next: u64,
    first: u64,
    bytes: usize,
}

impl Top {
    pub(crate) fn new(sort_by: SortPattern, bottom: bool, n: Option<usize>) -> Top {
        Top { sort_by, bottom, n, outputs: BTreeMap::new(), next: 0, first: 0, bytes: 0 }
    }

    fn key_and_output<'a>(&self, value: Value<'a>) -> Result<(Vec<u8>, Value<'a>)> {
        let both = value.as_doc().unwrap_or(RawDoc::EMPTY);
        let root = both.get("root").and_then(|root| root.as_doc()).unwrap_or(RawDoc::EMPTY);
        let mut key = Vec::new();
        self.sort_by.put_key_bytes(root, RawDoc::EMPTY, &mut key)?;
        Ok((key, both.get("output").unwrap_or(Value::Null)))
    }
}

impl Removable for Top {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        let (key, output) = self.key_and_output(value)?;
        let output = OwnedValue::from(output);
        self.bytes += key.len() + output.memory_bytes() + size_of::<(Vec<u8>, u64)>();
        self.outputs.insert((key, self.next), output);
        self.next += 1;
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        let place = (self.key_and_output(value)?.0, self.first);
        let gone = self.outputs.remove(&place).expect("values leave in the order in which they came");
        self.bytes -= place.0.len() + gone.memory_bytes() + size_of::<(Vec<u8>, u64)>();
        self.first += 1;
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        let Some(n) = self.n else {
            let best =
                if self.bottom { self.outputs.values().next_back() } else { self.outputs.values().next() };
            return Ok(best.map_or(Value::Null, |best| copy_in(best, arena)));
        };
        let skipped = if self.bottom { self.outputs.len().saturating_sub(n) } else { 0 };
        let mut wanted: Vec<_> = if self.bottom {
            self.outputs.values().rev().take(self.outputs.len() - skipped).collect()
        } else {
            self.outputs.values().take(n).collect()
        };
        if self.bottom {
            wanted.reverse();
        }
        Ok(Value::Array(array_in(arena, |out| wanted.into_iter().for_each(|value| _ = out.push(value)))))
    }

    fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// `$minMaxScaler`: where the document's number lies between the window's smallest and largest.
pub(crate) struct Scaler {
    range: (OwnedValue, OwnedValue),
    /// Whether values never leave, so that the smallest and the largest suffice.
    grows: bool,
    values: Ordered,
    extremes: Option<(OwnedValue, OwnedValue)>,
}

impl Scaler {
    pub(crate) fn new(range: (OwnedValue, OwnedValue), grows: bool) -> Scaler {
        Scaler { range, grows, values: Ordered::default(), extremes: None }
    }

    fn extremes(&self) -> Option<(&OwnedValue, &OwnedValue)> {
        if self.grows {
            return self.extremes.as_ref().map(|(least, most)| (least, most));
        }
        Some((self.values.values().next()?, self.values.values().next_back()?))
    }
}

/// The error for a value that cannot be scaled.
fn check_scaled(code: i32, value: Value<'_>) -> Result<()> {
    if !value.is_number() {
        bail!(
            Code(code),
            "'input' argument to $minMaxScaler must evaluate to a numeric type, got: {}",
            value.type_name()
        );
    }
    Ok(())
}

impl Removable for Scaler {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        if !self.grows {
            if !value.is_nullish() {
                self.values.add(value);
            }
            return Ok(());
        }
        check_scaled(10_487_001, value)?;
        let value = OwnedValue::from(value);
        match &mut self.extremes {
            None => self.extremes = Some((value.clone(), value)),
            Some((least, _)) if value < *least => *least = value,
            Some((_, most)) if value > *most => *most = value,
            Some(_) => {}
        }
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        if !value.is_nullish() {
            self.values.remove(value);
        }
        Ok(())
    }

    fn result<'a>(&mut self, current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        check_scaled(10_487_000, current)?;
        let (low, high) = &self.range;
        let Some((least, most)) = self.extremes() else {
            unreachable!("a document is in its own window");
        };
        let (least, most) = (least.as_value(), most.as_value());
        if compare(least, most).is_eq() {
            return Ok(copy_in(low, arena));
        }
        let (low, high) = (low.as_value(), high.as_value());
        let scaled = || {
            let part = number::divide(number::subtract(current, least)?, number::subtract(most, least)?)?;
            number::add(number::multiply(part, number::subtract(high, low)?)?, low)
        };
        match scaled() {
            Some(scaled) => Ok(scaled),
            None => {
                check_scaled(10_487_000, least)?;
                check_scaled(10_487_000, most)?;
                Ok(Value::Null)
            }
        }
    }

    fn needs_current(&self) -> bool {
        true
    }

    fn memory_bytes(&self) -> usize {
        self.values.bytes
    }
}
