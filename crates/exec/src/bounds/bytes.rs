//! Bounds as byte ranges of memcomparable keys: what a scan compares and seeks with.

use sheaf_bson::Value;
use sheaf_bson::key::{component_len, encode_bound};

use super::IndexBounds;

/// A range of one component's bytes.
#[derive(Clone, Debug, PartialEq)]
struct ByteRange {
    low: Vec<u8>,
    low_in: bool,
    high: Vec<u8>,
    high_in: bool,
}

/// The bounds of a scan in the order of the index's bytes.
#[derive(Clone, Debug)]
pub struct ByteBounds {
    fields: Vec<Vec<ByteRange>>,
    descending: Vec<bool>,
    backward: bool,
    /// Whole keys between which to scan (`min` and `max`), the upper one out.
    keys: Option<KeyRange>,
}

/// The lower and the upper key, where there is one.
type KeyRange = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Where a scan goes on when a key is out of bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The key is within bounds.
    Inside,
    /// Nothing further on is within bounds.
    Done,
    /// The next key that may be within bounds lies beyond this cut: before (`false`) or after (`true`)
    /// all keys that start with the bytes in the buffer.
    Seek(bool),
}

impl ByteBounds {
    /// Encodes bounds. `hashed` says which fields hold hashes.
    pub fn new(bounds: &IndexBounds, hashed: &[bool], backward: bool) -> Self {
        assert!(!bounds.fields.is_empty(), "a scan of an index has bounds for its first field at least");
        let fields = bounds.fields.iter().enumerate().map(|(at, field)| {
            let hashed = hashed.get(at).copied().unwrap_or(false);
            let mut ranges: Vec<ByteRange> = field
                .intervals
                .iter()
                .map(|interval| {
                    let encode = |value: Value<'_>| {
                        let mut bytes = Vec::with_capacity(16);
                        // Whole-line ends stay as they are; only points are hashed.
                        let value = if hashed && interval.is_point() {
                            Value::Int64(sheaf_bson::hashed_index_value(value))
                        } else {
                            value
                        };
                        encode_bound(value, field.descending, &mut bytes);
                        bytes
                    };
                    let low = (encode(interval.low.as_value()), interval.low_in);
                    let high = (encode(interval.high.as_value()), interval.high_in);
                    let (low, high) = if field.descending { (high, low) } else { (low, high) };
                    ByteRange { low: low.0, low_in: low.1, high: high.0, high_in: high.1 }
                })
                .collect();
            ranges.sort_by(|a, b| a.low.cmp(&b.low));
            ranges
        });
        ByteBounds {
            fields: fields.collect(),
            descending: bounds.fields.iter().map(|field| field.descending).collect(),
            backward,
            keys: None,
        }
    }

    /// Narrows the scan to keys from `low` on and below `high`.
    #[must_use]
    pub fn between(mut self, low: Option<Vec<u8>>, high: Option<Vec<u8>>) -> Self {
        self.keys = Some((low, high));
        self
    }

    /// The cut at which the scan begins, in `out`; false if the bounds are empty.
    pub fn start(&self, out: &mut Vec<u8>) -> Option<bool> {
        out.clear();
        if self.fields.iter().any(Vec::is_empty) {
            return None;
        }
        match &self.keys {
            Some((Some(low), _)) if !self.backward => {
                out.extend_from_slice(low);
                Some(false)
            }
            Some((_, Some(high))) if self.backward => {
                out.extend_from_slice(high);
                Some(false)
            }
            _ => Some(self.extend(0, out)),
        }
    }

    /// The last value of the first field that may be within bounds, in the scan's direction.
    pub fn last(&self) -> Option<&[u8]> {
        if self.keys.is_some() {
            return None;
        }
        let ranges = self.fields.first()?;
        // Ranges of a field are disjoint and in order.
        if self.backward { Some(&ranges.first()?.low) } else { Some(&ranges.last()?.high) }
    }

    /// Appends the first bounds of the fields from `from` on; the result says whether the cut lies after.
    fn extend(&self, from: usize, out: &mut Vec<u8>) -> bool {
        for ranges in &self.fields[from..] {
            if self.backward {
                let Some(range) = ranges.last() else { return true };
                out.extend_from_slice(&range.high);
                if !range.high_in {
                    return false;
                }
            } else {
                let Some(range) = ranges.first() else { return false };
                out.extend_from_slice(&range.low);
                if !range.low_in {
                    return true;
                }
            }
        }
        self.backward
    }

    /// Looks where a key lies. For [`Place::Seek`] the cut's bytes are left in `out`.
    pub fn place(&self, key: &[u8], out: &mut Vec<u8>) -> Place {
        if let Some((low, high)) = &self.keys {
            let below = low.as_ref().is_some_and(|low| key < &low[..]);
            let above = high.as_ref().is_some_and(|high| key >= &high[..]);
            return if below || above { Place::Done } else { Place::Inside };
        }
        let mut at = 0;
        for (field, ranges) in self.fields.iter().enumerate() {
            let Some(len) = component_len(&key[at..], self.descending[field]) else { return Place::Inside };
            let component = &key[at..at + len];
            let Some(range) = self.nearest(ranges, component) else {
                if field == 0 {
                    return Place::Done;
                }
                out.clear();
                out.extend_from_slice(&key[..at]);
                return Place::Seek(!self.backward);
            };
            if self.backward {
                if component > &range.high[..] || (component == &range.high[..] && !range.high_in) {
                    out.clear();
                    out.extend_from_slice(&key[..at]);
                    out.extend_from_slice(&range.high);
                    return Place::Seek(if range.high_in { self.extend(field + 1, out) } else { false });
                }
            } else if component < &range.low[..] || (component == &range.low[..] && !range.low_in) {
                out.clear();
                out.extend_from_slice(&key[..at]);
                out.extend_from_slice(&range.low);
                return Place::Seek(if range.low_in { self.extend(field + 1, out) } else { true });
            }
            at += len;
        }
        Place::Inside
    }

    /// The first range, in the scan's direction, that does not end before a component. There is one for each value of an `$in`, so that
    /// they are not looked through one by one.
    fn nearest<'r>(&self, ranges: &'r [ByteRange], component: &[u8]) -> Option<&'r ByteRange> {
        let begins = |r: &ByteRange| component > &r.low[..] || (component == &r.low[..] && r.low_in);
        let ends = |r: &ByteRange| component > &r.high[..] || (component == &r.high[..] && !r.high_in);
        if self.backward {
            ranges.partition_point(begins).checked_sub(1).map(|at| &ranges[at])
        } else {
            ranges.get(ranges.partition_point(ends))
        }
    }

    /// Whether the scan walks downwards.
    pub fn backward(&self) -> bool {
        self.backward
    }
}
