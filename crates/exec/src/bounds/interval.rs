//! Sets of values on the line of MongoDB's total order, as sorted and disjoint intervals.

use std::cmp::Ordering;
use std::fmt;

use sheaf_bson::{OwnedValue, Value, compare};
use sheaf_collation::key_hex;

use sheaf_bson::value_text;

/// All values between two ends, each end in or out.
#[derive(Clone, Debug)]
pub struct Interval {
    /// The lower end.
    pub low: OwnedValue,
    /// The upper end.
    pub high: OwnedValue,
    /// Whether the lower end belongs to it.
    pub low_in: bool,
    /// Whether the upper end belongs to it.
    pub high_in: bool,
}

impl Interval {
    /// From its ends.
    pub fn new(low: Value<'_>, low_in: bool, high: Value<'_>, high_in: bool) -> Self {
        Interval { low: OwnedValue::from(low), high: OwnedValue::from(high), low_in, high_in }
    }

    /// Exactly one value.
    pub fn point(value: Value<'_>) -> Self {
        Interval::new(value, true, value, true)
    }

    /// Everything.
    pub fn all() -> Self {
        Interval::new(Value::MinKey, true, Value::MaxKey, true)
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        match compare(self.low.as_value(), self.high.as_value()) {
            Ordering::Greater => true,
            Ordering::Equal => !(self.low_in && self.high_in),
            Ordering::Less => false,
        }
    }

    /// Whether it is one value.
    pub fn is_point(&self) -> bool {
        self.low_in && self.high_in && compare(self.low.as_value(), self.high.as_value()).is_eq()
    }

    /// Whether it is `[MinKey, MaxKey]`.
    pub fn is_all(&self) -> bool {
        self.low_in
            && self.high_in
            && matches!(self.low.as_value(), Value::MinKey)
            && matches!(self.high.as_value(), Value::MaxKey)
    }

    fn low_end(&self) -> End<'_> {
        End { value: self.low.as_value(), after: !self.low_in }
    }

    fn high_end(&self) -> End<'_> {
        End { value: self.high.as_value(), after: self.high_in }
    }

    /// Order of a value against the interval: `Less` when the value lies before it.
    pub fn place(&self, value: Value<'_>) -> Ordering {
        match compare(value, self.low.as_value()) {
            Ordering::Less => return Ordering::Less,
            Ordering::Equal if !self.low_in => return Ordering::Less,
            _ => {}
        }
        match compare(value, self.high.as_value()) {
            Ordering::Greater => Ordering::Greater,
            Ordering::Equal if !self.high_in => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }
}

impl Interval {
    /// As explain shows it, from its upper end on if it is walked downwards; of collated strings the key's bytes.
    pub fn text(&self, reversed: bool, collated: bool) -> String {
        let (low, high) = ((&self.low, self.low_in), (&self.high, self.high_in));
        let (first, last) = if reversed { (high, low) } else { (low, high) };
        let end = |value: &OwnedValue| match value.as_value() {
            Value::String(key) if collated => format!("CollationKey({})", key_hex(key)),
            value => value_text(value),
        };
        format!(
            "{}{}, {}{}",
            if first.1 { '[' } else { '(' },
            end(first.0),
            end(last.0),
            if last.1 { ']' } else { ')' }
        )
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(false, false))
    }
}

impl PartialEq for Interval {
    fn eq(&self, other: &Self) -> bool {
        self.low_end().cmp(&other.low_end()).is_eq() && self.high_end().cmp(&other.high_end()).is_eq()
    }
}

/// A cut of the line: just before a value, or just after it.
#[derive(Clone, Copy)]
struct End<'a> {
    value: Value<'a>,
    after: bool,
}

impl End<'_> {
    fn cmp(&self, other: &End<'_>) -> Ordering {
        compare(self.value, other.value).then(self.after.cmp(&other.after))
    }
}

/// A union of intervals: in ascending order, disjoint, none empty, none adjacent to the next.
#[derive(Clone, PartialEq, Default)]
pub struct Intervals(Vec<Interval>);

impl Intervals {
    /// No value.
    pub fn none() -> Self {
        Intervals(Vec::new())
    }

    /// Every value.
    pub fn all() -> Self {
        Intervals(vec![Interval::all()])
    }

    /// One value.
    pub fn point(value: Value<'_>) -> Self {
        Intervals(vec![Interval::point(value)])
    }

    /// One range.
    pub fn range(low: Value<'_>, low_in: bool, high: Value<'_>, high_in: bool) -> Self {
        Self::from_unsorted(vec![Interval::new(low, low_in, high, high_in)])
    }

    /// The union of intervals in any order.
    pub fn from_unsorted(mut intervals: Vec<Interval>) -> Self {
        intervals.retain(|interval| !interval.is_empty());
        intervals.sort_by(|a, b| a.low_end().cmp(&b.low_end()));
        let mut merged: Vec<Interval> = Vec::with_capacity(intervals.len());
        for next in intervals {
            match merged.last_mut() {
                // Touching ends merge too: "[1, 2)" and "[2, 3]" are one range.
                Some(last) if next.low_end().cmp(&last.high_end()).is_le() => {
                    if next.high_end().cmp(&last.high_end()).is_gt() {
                        last.high = next.high;
                        last.high_in = next.high_in;
                    }
                }
                _ => merged.push(next),
            }
        }
        Intervals(merged)
    }

    /// The intervals, ascending.
    pub fn iter(&self) -> std::slice::Iter<'_, Interval> {
        self.0.iter()
    }

    /// Number of intervals.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is everything.
    pub fn is_all(&self) -> bool {
        matches!(&self.0[..], [one] if one.is_all())
    }

    /// The only value, if there is exactly one.
    pub fn as_point(&self) -> Option<Value<'_>> {
        match &self.0[..] {
            [one] if one.is_point() => Some(one.low.as_value()),
            _ => None,
        }
    }

    /// Whether every interval is a point.
    pub fn all_points(&self) -> bool {
        self.0.iter().all(Interval::is_point)
    }

    /// Values of either.
    #[must_use]
    pub fn union(mut self, other: Intervals) -> Self {
        self.0.extend(other.0);
        Self::from_unsorted(self.0)
    }

    /// Values of both.
    #[must_use]
    pub fn intersect(&self, other: &Intervals) -> Self {
        let mut out = Vec::new();
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            let (low, low_in) = match a.low_end().cmp(&b.low_end()) {
                Ordering::Less => (&b.low, b.low_in),
                _ => (&a.low, a.low_in),
            };
            let a_first = a.high_end().cmp(&b.high_end()).is_lt();
            let (high, high_in) = if a_first { (&a.high, a.high_in) } else { (&b.high, b.high_in) };
            out.push(Interval { low: low.clone(), low_in, high: high.clone(), high_in });
            if a_first {
                i += 1;
            } else {
                j += 1;
            }
        }
        out.retain(|interval| !interval.is_empty());
        Intervals(out)
    }

    /// Values of all of them, if there are any sets. Two by two: one after the other, each of many negations would be
    /// intersected with all that there is of those before it.
    pub fn of_all(mut sets: Vec<Intervals>) -> Option<Self> {
        while sets.len() > 1 {
            sets = sets
                .chunks_mut(2)
                .map(|pair| match pair {
                    [a, b] => a.intersect(b),
                    rest => std::mem::take(&mut rest[0]),
                })
                .collect();
        }
        sets.pop()
    }

    /// Values of neither: what a negation scans.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut out = Vec::with_capacity(self.0.len() + 1);
        let mut low = OwnedValue::from(Value::MinKey);
        let mut low_in = true;
        for interval in &self.0 {
            out.push(Interval {
                low: std::mem::replace(&mut low, interval.high.clone()),
                low_in: std::mem::replace(&mut low_in, !interval.high_in),
                high: interval.low.clone(),
                high_in: !interval.low_in,
            });
        }
        out.push(Interval { low, low_in, high: OwnedValue::from(Value::MaxKey), high_in: true });
        out.retain(|interval| !interval.is_empty());
        Intervals(out)
    }

    /// Whether every value of `self` is one of `other`.
    pub fn is_within(&self, other: &Intervals) -> bool {
        &self.intersect(other) == self
    }

    /// Whether it holds the value.
    pub fn contains(&self, value: Value<'_>) -> bool {
        self.0.iter().any(|interval| interval.place(value).is_eq())
    }
}

impl fmt::Debug for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, interval) in self.0.iter().enumerate() {
            write!(f, "{}{interval}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
