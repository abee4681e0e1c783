//! Window functions at work on one partition: documents come in one after another, results go out as soon as the documents
//! that they need have come.

use std::collections::VecDeque;

use sheaf_bson::{Bump, OwnedValue, Value, compare, number};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Unit;

use super::bounds::{Bound, Bounds};
use super::removable::{Removable, difference};
use crate::accumulators::{State, copy_in};

/// One output field at work on a partition.
pub(super) trait Running: Send {
    /// The partition's next document: the function's value for it, and its value of the field that is sorted by.
    fn take(&mut self, value: Value<'_>, sort: Value<'_>) -> Result<()>;

    /// Whether the result for the document at this place is known. `ended` says that no more documents come. Places are asked for
    /// in their order.
    fn is_ready(&mut self, at: u64, ended: bool) -> Result<bool>;

    /// The result for the document that is ready; each is asked for once.
    fn result<'a>(&mut self, at: u64, arena: &'a Bump) -> Result<Value<'a>>;

    /// Whether it reads the documents' values of the field that is sorted by.
    fn needs_sort(&self) -> bool {
        true
    }

    /// Bytes held apart from the state itself.
    fn memory_bytes(&self) -> usize;
}

/// What is known of one document.
#[derive(Clone)]
struct Entry {
    value: OwnedValue,
    sort: OwnedValue,
}

impl Entry {
    fn memory_bytes(&self) -> usize {
        self.value.memory_bytes() + self.sort.memory_bytes()
    }
}

/// Documents of the partition, without the first ones, which nobody needs any more.
#[derive(Default)]
struct Entries {
    kept: VecDeque<Entry>,
    /// The place of the first that is kept.
    base: u64,
    bytes: usize,
}

impl Entries {
    /// How many documents have come.
    fn taken(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    fn push(&mut self, entry: Entry) {
        self.bytes += entry.memory_bytes();
        self.kept.push_back(entry);
    }

    fn get(&self, at: u64) -> &Entry {
        &self.kept[(at - self.base) as usize]
    }

    fn drop_before(&mut self, at: u64) {
        while self.base < at {
            let Some(gone) = self.kept.pop_front() else { return };
            self.bytes -= gone.memory_bytes();
            self.base += 1;
        }
    }
}

/// What is made of a window.
pub(super) enum Over {
    /// Of windows from which nothing leaves.
    Accumulated { state: Box<dyn State>, last: Option<OwnedValue> },
    /// Of values that come and leave.
    Sliding(Box<dyn Removable>),
    /// The value of its first document; the default if the window is empty.
    First(OwnedValue),
    /// The value of its last document.
    Last,
    /// The slope between its first document and its last.
    Derivative(Option<i64>),
}

/// A function over windows.
pub(super) struct Windowed {
    bounds: Bounds,
    over: Over,
    entries: Entries,
    /// The first document, where windows begin with it and its value is asked for.
    first: Option<Entry>,
    /// The window of the document that is ready: its first and last places.
    window: Option<(u64, u64)>,
    /// What `over` has taken in is from `left` to before `added`.
    added: u64,
    left: u64,
    /// Of a range: the first place that can be in the next window, and the first behind the last one's.
    low: u64,
    high: u64,
    /// Whether all windows are the whole partition, so that documents can be taken in as they come.
    whole: bool,
}

impl Windowed {
    pub(super) fn new(bounds: Bounds, over: Over) -> Windowed {
        let needs_current = matches!(&over, Over::Sliding(function) if function.needs_current());
        let whole = matches!(bounds, Bounds::Documents { lower: Bound::Unbounded, upper: Bound::Unbounded })
            && !needs_current;
        Windowed {
            whole,
            bounds,
            over,
            entries: Entries::default(),
            first: None,
            window: None,
            added: 0,
            left: 0,
            low: 0,
            high: 0,
        }
    }

    /// The window of the document at this place, if all of it has come.
    fn find_window(&mut self, at: u64, ended: bool) -> Result<Option<Option<(u64, u64)>>> {
        let bounds = self.bounds.clone();
        match bounds {
            Bounds::Documents { lower, upper } => Ok(self.place_window(at, &lower, &upper, ended)),
            Bounds::Range { lower, upper, unit } => self.range_window(at, &lower, &upper, unit, ended),
        }
    }

    fn place_window(
        &self,
        at: u64,
        lower: &Bound<i64>,
        upper: &Bound<i64>,
        ended: bool,
    ) -> Option<Option<(u64, u64)>> {
        let taken = self.entries.taken() as i64;
        let place = |bound: &Bound<i64>| match bound {
            Bound::Unbounded => None,
            Bound::Current => Some(at as i64),
            Bound::At(n) => Some(at as i64 + n),
        };
        let upper = match place(upper) {
            Some(upper) if upper < taken || ended => upper.min(taken - 1),
            None if ended => taken - 1,
            _ => return None,
        };
        let lower = place(lower).unwrap_or(0).max(0);
        Some((lower <= upper).then_some((lower as u64, upper as u64)))
    }

    fn range_window(
        &mut self,
        at: u64,
        lower: &Bound<OwnedValue>,
        upper: &Bound<OwnedValue>,
        unit: Option<Unit>,
        ended: bool,
    ) -> Result<Option<Option<(u64, u64)>>> {
        let base = self.entries.get(at).sort.clone();
        let base = base.as_value();
        check_base(base, unit)?;
        let fits = |entry: &Entry| has_type(entry.sort.as_value(), unit);
        let taken = self.entries.taken();
        let low = match lower {
            Bound::Current => at,
            Bound::Unbounded | Bound::At(_) => {
                let least = match lower {
                    Bound::At(distance) => Some(moved(base, distance.as_value(), unit)?),
                    _ => None,
                };
                // The first one that fits begins all windows, and is kept apart.
                let is_found = least.is_none() && self.first.is_some();
                let is_before = |entry: &Entry| match &least {
                    Some(least) => compare(entry.sort.as_value(), *least).is_lt(),
                    None => !fits(entry),
                };
                while !is_found && self.low < taken && is_before(self.entries.get(self.low)) {
                    self.low += 1;
                }
                if self.low == taken {
                    return Ok(ended.then_some(None));
                }
                if !is_found && !fits(self.entries.get(self.low)) {
                    return Ok(Some(None));
                }
                self.low
            }
        };
        let high = match upper {
            Bound::Current => at + 1,
            Bound::Unbounded | Bound::At(_) => {
                let most = match upper {
                    Bound::At(distance) => Some(moved(base, distance.as_value(), unit)?),
                    _ => None,
                };
                let is_behind = |entry: &Entry| match &most {
                    Some(most) => compare(entry.sort.as_value(), *most).is_gt(),
                    None => !fits(entry),
                };
                // Nothing before the window's first document is looked at again.
                self.high = self.high.max(low);
                while self.high < taken && !is_behind(self.entries.get(self.high)) {
                    self.high += 1;
                }
                if self.high == taken && !ended {
                    return Ok(None);
                }
                self.high
            }
        };
        Ok(Some((low < high).then(|| (low, high - 1))))
    }

    /// Brings what was taken in to what the window has.
    fn slide(&mut self) -> Result<()> {
        let entries = &self.entries;
        match &mut self.over {
            Over::Accumulated { state, last } => {
                let Some((first, end)) = self.window else { return Ok(()) };
                self.added = self.added.max(first);
                while self.added <= end {
                    state.add(entries.get(self.added).value.as_value())?;
                    *last = None;
                    self.added += 1;
                }
            }
            Over::Sliding(function) => {
                // An empty window is one at which all has left.
                let (first, behind) = match self.window {
                    Some((first, end)) => (first, end + 1),
                    None => (self.added, self.added),
                };
                // What lies between two windows is never in one.
                let begin = self.added.max(first);
                for at in begin..behind {
                    let entry = entries.get(at);
                    function.add(entry.value.as_value(), entry.sort.as_value())?;
                }
                for at in self.left..first.min(self.added) {
                    function.remove(entries.get(at).value.as_value())?;
                }
                (self.left, self.added) = (first, begin.max(behind));
            }
            Over::First(_) | Over::Last | Over::Derivative(_) => {}
        }
        Ok(())
    }

    /// Before this place no document is needed for those behind `at`.
    fn needed_from(&self, at: u64) -> u64 {
        let next = at + 1;
        let grows = self.bounds.is_left_unbounded();
        let of_function = match &self.over {
            Over::Accumulated { .. } => self.added,
            Over::Sliding(function) => {
                let kept = if grows { self.added } else { self.left };
                if function.needs_current() { kept.min(next) } else { kept }
            }
            Over::First(_) | Over::Last | Over::Derivative(_) => self.next_ends(next),
        };
        match &self.bounds {
            Bounds::Documents { .. } => of_function,
            // The next document's own value, and where the search for its window goes on.
            Bounds::Range { lower, upper, .. } => {
                let mut from = of_function.min(next);
                if matches!(lower, Bound::At(_)) || (lower.is_unbounded() && self.first.is_none()) {
                    from = from.min(self.low);
                }
                if matches!(upper, Bound::Current) { from } else { from.min(self.high) }
            }
        }
    }

    /// The first place that a later window can begin or end with.
    fn next_ends(&self, next: u64) -> u64 {
        let grows = self.bounds.is_left_unbounded();
        match &self.bounds {
            Bounds::Documents { lower, upper } => {
                let place = |bound: &Bound<i64>| match bound {
                    Bound::Unbounded => self.entries.taken().saturating_sub(1),
                    Bound::Current => next,
                    Bound::At(n) => (next as i64 + n).max(0) as u64,
                };
                // Beyond the partition's end, its last document ends the window.
                let last = place(upper).min(self.entries.taken().saturating_sub(1));
                let first_is_kept = grows && self.first.is_some();
                if first_is_kept { last } else { last.min(if grows { 0 } else { place(lower) }) }
            }
            Bounds::Range { .. } => self.high.saturating_sub(1).min(next),
        }
    }
}

/// The documents of a range must have a value that distances can be added to.
fn check_base(base: Value<'_>, unit: Option<Unit>) -> Result<()> {
    let is_date = matches!(base, Value::DateTime(_));
    match unit {
        Some(_) if !is_date => bail!(
            5429513,
            "Invalid range: Expected the sortBy field to be a Date, but it was {}",
            base.type_name()
        ),
        None if is_date => bail!(
            5429413,
            "Invalid range: For windows that involve date or time ranges, a unit must be provided."
        ),
        None if !base.is_number() => bail!(
            5429414,
            "Invalid range: Expected the sortBy field to be a number, but it was {}",
            base.type_name()
        ),
        _ => Ok(()),
    }
}

fn has_type(value: Value<'_>, unit: Option<Unit>) -> bool {
    if unit.is_some() { matches!(value, Value::DateTime(_)) } else { value.is_number() }
}

/// The value that far away. Numbers are added as decimals, so that no type overflows.
fn moved(base: Value<'_>, distance: Value<'_>, unit: Option<Unit>) -> Result<Value<'static>> {
    match (base, unit) {
        (Value::DateTime(date), Some(unit)) => {
            let units = distance.as_exact_i64().expect("time bounds are integers");
            match unit.add_to(date, units) {
                Some(date) => Ok(Value::DateTime(date)),
                None => bail!(5166406, "$dateAdd overflowed"),
            }
        }
        _ => {
            let decimal = |n| number::to_decimal(n).expect("bounds and their base are numbers");
            Ok(Value::Decimal128(decimal(base).add(decimal(distance))))
        }
    }
}

impl Running for Windowed {
    fn take(&mut self, value: Value<'_>, sort: Value<'_>) -> Result<()> {
        self.entries.push(Entry { value: value.into(), sort: sort.into() });
        if !self.whole {
            return Ok(());
        }
        let at = self.entries.taken() - 1;
        if at == 0 {
            self.first = Some(self.entries.get(0).clone());
        }
        self.window = Some((0, at));
        self.slide()?;
        self.entries.drop_before(self.needed_from(at));
        Ok(())
    }

    fn is_ready(&mut self, at: u64, ended: bool) -> Result<bool> {
        if self.whole {
            return Ok(ended);
        }
        match self.find_window(at, ended)? {
            Some(window) => {
                self.window = window;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn result<'a>(&mut self, at: u64, arena: &'a Bump) -> Result<Value<'a>> {
        if !self.whole {
            if self.bounds.is_left_unbounded() && self.first.is_none() {
                self.first = self.window.map(|(first, _)| self.entries.get(first).clone());
            }
            self.slide()?;
        }
        let entries = &self.entries;
        let ends = || {
            let (first, last) = self.window?;
            let first = self.first.as_ref().unwrap_or_else(|| entries.get(first));
            Some((first, entries.get(last)))
        };
        let value = match &mut self.over {
            Over::Accumulated { state, last } => {
                if last.is_none() {
                    let value = state.result(arena)?;
                    *last = Some(if value.is_missing() { Value::Null.into() } else { value.into() });
                }
                let last = last.as_ref().expect("it was set just now");
                sheaf_meter::tick_for(last.data().len())?;
                copy_in(last, arena)
            }
            Over::Sliding(function) => {
                let needs = function.needs_current();
                let current = if needs { entries.get(at).value.as_value() } else { Value::Missing };
                function.result(current, arena)?
            }
            Over::First(default) => copy_in(ends().map_or(&*default, |(first, _)| &first.value), arena),
            Over::Last => ends().map_or(Value::Null, |(_, last)| copy_in(&last.value, arena)),
            Over::Derivative(unit_millis) => match ends() {
                Some((first, last)) => slope(first, last, *unit_millis)?,
                None => Value::Null,
            },
        };
        if !self.whole {
            self.entries.drop_before(self.needed_from(at));
        }
        Ok(value)
    }

    fn needs_sort(&self) -> bool {
        match (&self.bounds, &self.over) {
            (Bounds::Range { .. }, _) | (_, Over::Derivative(_)) => true,
            (_, Over::Sliding(function)) => function.needs_sort(),
            _ => false,
        }
    }

    fn memory_bytes(&self) -> usize {
        let function = match &self.over {
            Over::Accumulated { state, last } => {
                state.memory_bytes() + last.as_ref().map_or(0, OwnedValue::memory_bytes)
            }
            Over::Sliding(function) => function.memory_bytes(),
            _ => 0,
        };
        self.entries.bytes + function
    }
}

/// How much the value changes for each unit; null where no time passes.
fn slope(first: &Entry, last: &Entry, unit_millis: Option<i64>) -> Result<Value<'static>> {
    let (from, to) = (first.sort.as_value(), last.sort.as_value());
    let is_date = |value: Value<'_>| matches!(value, Value::DateTime(_));
    match unit_millis {
        Some(_) if !(is_date(from) && is_date(to)) => {
            bail!(5624900, "$derivative with 'unit' expects the sortBy field to be a Date")
        }
        None if is_date(from) || is_date(to) => {
            bail!(5624901, "$derivative where the sortBy is a Date requires an 'unit'")
        }
        None if !(from.is_number() && to.is_number()) => {
            bail!(5624902, "$derivative (with no 'unit') expects the sortBy field to be numeric")
        }
        _ => {}
    }
    let run = difference(to, from)?;
    let rise = difference(last.value.as_value(), first.value.as_value())?;
    if rise.is_nullish() {
        bail!(5624903, "$derivative input must not be null or missing");
    }
    if number::is_zero(run) {
        return Ok(Value::Null);
    }
    let slope = number::divide(rise, run).expect("differences are numbers");
    match unit_millis {
        Some(millis) => Ok(number::multiply(slope, Value::Int64(millis)).expect("both are numbers")),
        None => Ok(slope),
    }
}

/// `$linearFill`: what is missing lies on the line between what is there before and behind it.
#[derive(Default)]
pub(super) struct LinearFill {
    entries: Entries,
    /// Places, behind the last result, of documents that have a value.
    known: VecDeque<u64>,
    /// The last point before the document, and the last value of the field that is sorted by.
    before: Option<Entry>,
    last_sort: Option<OwnedValue>,
}

impl Running for LinearFill {
    fn take(&mut self, value: Value<'_>, sort: Value<'_>) -> Result<()> {
        if !value.is_nullish() && !sort.is_nullish() {
            self.known.push_back(self.entries.taken());
        }
        self.entries.push(Entry { value: value.into(), sort: sort.into() });
        Ok(())
    }

    fn is_ready(&mut self, at: u64, ended: bool) -> Result<bool> {
        let is_known = !self.entries.get(at).value.as_value().is_nullish();
        Ok(ended || is_known || self.before.is_none() || !self.known.is_empty())
    }

    fn result<'a>(&mut self, at: u64, arena: &'a Bump) -> Result<Value<'a>> {
        let entry = self.entries.get(at).clone();
        let (value, sort) = (entry.value.as_value(), entry.sort.as_value());
        self.check(value, sort)?;
        self.last_sort = Some(entry.sort.clone());
        let filled = if value.is_nullish() {
            match (&self.before, self.known.front()) {
                (Some(before), Some(behind)) => interpolated(before, self.entries.get(*behind), sort)?,
                _ => Value::Null,
            }
        } else {
            copy_in(&entry.value, arena)
        };
        if !value.is_nullish() {
            self.before = Some(entry);
        }
        if self.known.front() == Some(&at) {
            self.known.pop_front();
        }
        self.entries.drop_before(at + 1);
        Ok(filled)
    }

    fn memory_bytes(&self) -> usize {
        self.entries.bytes + self.known.capacity() * size_of::<u64>()
    }
}

impl LinearFill {
    fn check(&self, value: Value<'_>, sort: Value<'_>) -> Result<()> {
        if !value.is_number() && !value.is_nullish() {
            bail!(
                Code::TYPE_MISMATCH,
                "Value to be filled must be numeric or nullish, but found {}",
                value.type_name()
            );
        }
        let is_time =
            |value: Value<'_>| matches!(value, Value::DateTime(_) | Value::Timestamp(_) | Value::ObjectId(_));
        if !sort.is_number() && !is_time(sort) {
            bail!(
                Code::TYPE_MISMATCH,
                "Value of the sortBy field must be numeric or a date, but found {}",
                sort.type_name()
            );
        }
        let Some(last) = &self.last_sort else { return Ok(()) };
        let last = last.as_value();
        if compare(last, sort).is_eq() {
            bail!(6050106, "There can be no repeated values in the sort field");
        }
        if is_time(last) != is_time(sort) {
            bail!(
                Code::TYPE_MISMATCH,
                "Conflicting sort value types, previously received type {}, but found {}",
                last.type_name(),
                sort.type_name()
            );
        }
        Ok(())
    }
}

/// The value at `x` on the line through two points.
fn interpolated(before: &Entry, behind: &Entry, x: Value<'_>) -> Result<Value<'static>> {
    let (x1, y1) = (before.sort.as_value(), before.value.as_value());
    let (x2, y2) = (behind.sort.as_value(), behind.value.as_value());
    let (rise, run, step) = (difference(y2, y1)?, difference(x2, x1)?, difference(x, x1)?);
    let Some(slope) = number::divide(rise, run) else { bail!(Code::BAD_VALUE, "can't $divide by zero") };
    let way = number::multiply(step, slope).and_then(|way| number::add(y1, way));
    Ok(way.expect("differences of numbers and dates are numbers"))
}
