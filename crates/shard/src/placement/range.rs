//! Ranges of keys as bytes, and sets of them.

use sheaf_bson::key;

use super::Key;

/// The keys from one on and below another, by their order bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    low: Vec<u8>,
    /// `None`: no key is too high.
    high: Option<Vec<u8>>,
}

impl KeyRange {
    /// From `min` on and below `max`; all from `min` on if `max` is the pattern's highest key: a document with that key belongs to the last
    /// range.
    pub fn new(min: &Key, max: &Key, is_last: bool) -> Self {
        KeyRange { low: min.order().to_vec(), high: (!is_last).then(|| max.order().to_vec()) }
    }

    /// Exactly one key.
    pub fn point(key: &Key) -> Self {
        KeyRange::with_prefix(key.order().to_vec())
    }

    /// All keys.
    pub fn all() -> Self {
        KeyRange { low: Vec::new(), high: None }
    }

    /// All keys that begin with these bytes.
    pub(super) fn with_prefix(prefix: Vec<u8>) -> Self {
        let high = key::after_prefix(&prefix);
        KeyRange { low: prefix, high }
    }

    /// From `low` on (`None`: nothing is) and below `high` (`None`: to the end).
    pub(super) fn of_order(low: Option<Vec<u8>>, high: Option<Vec<u8>>) -> Self {
        match low {
            Some(low) => KeyRange { low, high },
            None => KeyRange { low: Vec::new(), high: Some(Vec::new()) },
        }
    }

    /// Where it begins.
    pub fn low(&self) -> &[u8] {
        &self.low
    }

    /// Before what it ends; `None`: it does not.
    pub fn high(&self) -> Option<&[u8]> {
        self.high.as_deref()
    }

    /// Whether no key is in it.
    pub fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    /// Whether it holds the key.
    pub fn contains(&self, key: &Key) -> bool {
        self.holds(key.order())
    }

    /// Whether it holds the key with these order bytes.
    pub fn holds(&self, order: &[u8]) -> bool {
        self.low.as_slice() <= order && self.high().is_none_or(|high| order < high)
    }

    /// Whether a key may be in both.
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        let before =
            |one: &KeyRange, other: &KeyRange| one.high().is_none_or(|high| other.low.as_slice() < high);
        !self.is_empty() && !other.is_empty() && before(self, other) && before(other, self)
    }

    /// Whether all keys of `other` are in it.
    pub fn covers(&self, other: &KeyRange) -> bool {
        let ends_behind = match (&self.high, &other.high) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(high), Some(other)) => other <= high,
        };
        other.is_empty() || (self.low <= other.low && ends_behind)
    }
}

/// A set of keys as sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<KeyRange>);

impl Ranges {
    /// The set of all keys that are in one of these.
    pub fn new(ranges: impl IntoIterator<Item = KeyRange>) -> Self {
        let mut ranges: Vec<KeyRange> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort();
        let mut merged: Vec<KeyRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.high().is_none_or(|high| range.low.as_slice() <= high) => {
                    if !last.covers(&range) {
                        last.high = range.high;
                    }
                }
                _ => merged.push(range),
            }
        }
        Ranges(merged)
    }

    /// The ranges in order.
    pub fn as_slice(&self) -> &[KeyRange] {
        &self.0
    }

    /// Whether no key is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number that other sets of keys hardly have: by it a router says what it believes a shard to own. The same in every process
    /// (FNV-1a).
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut take = |bytes: &[u8]| {
            for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        for range in &self.0 {
            take(&range.low);
            take(&[u8::from(range.high.is_some())]);
            take(range.high().unwrap_or_default());
        }
        hash
    }

    /// Whether it holds the key.
    pub fn contains(&self, key: &Key) -> bool {
        self.holds(key.order())
    }

    /// Whether it holds the key with these order bytes.
    pub fn holds(&self, order: &[u8]) -> bool {
        let behind = self.0.partition_point(|range| range.low.as_slice() <= order);
        behind > 0 && self.0[behind - 1].holds(order)
    }

    /// Whether all keys of the range are in it.
    pub fn covers(&self, range: &KeyRange) -> bool {
        let behind = self.0.partition_point(|own| own.low <= range.low);
        range.is_empty() || (behind > 0 && self.0[behind - 1].covers(range))
    }

    /// With the range's keys.
    #[must_use]
    pub fn with(&self, range: KeyRange) -> Self {
        Ranges::new(self.0.iter().cloned().chain([range]))
    }

    /// Without the range's keys.
    #[must_use]
    pub fn without(&self, range: &KeyRange) -> Self {
        if range.is_empty() {
            return self.clone();
        }
        let parts = self.0.iter().flat_map(|own| {
            let first_end = match own.high() {
                Some(high) if high < range.low.as_slice() => high.to_vec(),
                _ => range.low.clone(),
            };
            let first = KeyRange { low: own.low.clone(), high: Some(first_end) };
            let last = range
                .high
                .clone()
                .map(|high| KeyRange { low: high.max(own.low.clone()), high: own.high.clone() });
            [Some(first), last].into_iter().flatten()
        });
        Ranges::new(parts)
    }
}
