//! From a filter to the part of an index that can hold its matches.
//!
//! - [`Intervals`]: sets of values, with union, intersection and complement.
//! - [`predicate`]: the interval of one condition on one field, and how tight it is.
//! - [`IndexBounds`]: the intervals of all fields of an index, as explain prints them and as a scan
//!   follows them ([`bytes`]).
//! - [`implication`]: whether a filter implies a partial index's filter.

pub mod bytes;
pub mod implication;
mod interval;
pub mod predicate;
#[cfg(test)]
mod tests;

use sheaf_bson::DocWriter;

pub use interval::{Interval, Intervals};

/// How well a condition's intervals say what matches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tightness {
    /// Every key within belongs to a match: nothing is left to check.
    Exact,
    /// The key is enough to check.
    Covered,
    /// The document must be fetched to check.
    Fetch,
}

/// The intervals of one field of an index.
#[derive(Clone, PartialEq, Debug)]
pub struct FieldBounds {
    /// The field's path, as in the key pattern.
    pub path: String,
    /// Whether the index orders it downwards.
    pub descending: bool,
    /// What to scan.
    pub intervals: Intervals,
}

/// The intervals of all fields of an index.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct IndexBounds {
    /// In the order of the key pattern.
    pub fields: Vec<FieldBounds>,
}

impl IndexBounds {
    /// Whether the scan touches nothing at all.
    pub fn is_empty(&self) -> bool {
        self.fields.iter().any(|field| field.intervals.is_empty())
    }

    /// Whether the scan is the whole index.
    pub fn is_full(&self) -> bool {
        self.fields.iter().all(|field| field.intervals.is_all())
    }

    /// Whether the keys within are one unbroken run: points, then at most one range, then everything.
    pub fn is_single_range(&self) -> bool {
        let mut rest = self.fields.iter().skip_while(|field| field.intervals.as_point().is_some());
        rest.next().is_none_or(|range| range.intervals.len() == 1)
            && rest.all(|field| field.intervals.is_all())
    }

    /// Number of leading fields bounded to a single value.
    pub fn point_prefix(&self) -> usize {
        self.fields.iter().take_while(|field| field.intervals.as_point().is_some()).count()
    }

    /// Writes explain's `indexBounds`; a backward scan shows the intervals as it walks them.
    /// `collated`: its strings are keys by a collation.
    pub fn write(&self, out: &mut DocWriter<'_, Vec<u8>>, backward: bool, collated: bool) {
        for field in &self.fields {
            let mut list = out.array(&field.path);
            if field.descending != backward {
                for interval in field.intervals.iter().rev() {
                    list.push(interval.text(true, collated).as_str());
                }
            } else {
                for interval in field.intervals.iter() {
                    list.push(interval.text(false, collated).as_str());
                }
            }
        }
    }
}
