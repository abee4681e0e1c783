//! `monotonicity` of `analyzeShardKey`: whether a key grows, or falls, with the time at which documents came.
//!
//! mongod compares the order of the keys with that of its record ids. Records have none here: ObjectIds as `_id` tell the time as well.
//! Where `_id`s are something else it is `unknown`, as it is for mongod's clustered collections, which lie in the order of `_id`, too.

use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, ObjectId, RawDoc, Value, doc};
use sheaf_shard::placement::KeyPattern;

/// The parameter that says from which coefficient on a key counts as monotonic.
pub const THRESHOLD: &str = "analyzeShardKeyMonotonicityCorrelationCoefficientThreshold";

/// So many documents are looked at.
const SAMPLE_SIZE: i64 = 10_000;

/// `_id`s of documents, in the order of a key.
#[derive(Default)]
pub struct Monotonicity {
    ids: Vec<ObjectId>,
    unknown: bool,
}

/// The stages that give a sample of `total` documents in the order of a key.
pub fn stages(pattern: &KeyPattern, total: i64) -> ArrayBuf {
    let order = DocBuf::build(|out| {
        for field in pattern.fields() {
            out.append(field.path.dotted(), 1);
        }
        if pattern.fields().iter().all(|field| field.path.dotted() != "_id") {
            out.append("_id", 1);
        }
    });
    let sample = (total > SAMPLE_SIZE).then(|| doc! { "$sample": { "size": SAMPLE_SIZE } });
    let rest = [
        doc! { "$project": order.as_raw() },
        doc! { "$sort": order.as_raw() },
        doc! { "$project": { "_id": 1 } },
    ];
    ArrayBuf::of(&sample.into_iter().chain(rest).collect::<Vec<_>>())
}

/// Whether documents have to be looked at: a hashed key is not monotonic.
pub fn is_open(pattern: &KeyPattern) -> bool {
    pattern.fields().first().is_some_and(|field| !field.hashed)
}

impl Monotonicity {
    /// Takes the next document of a sample.
    pub fn note(&mut self, row: RawDoc<'_>) {
        match row.get("_id") {
            Some(Value::ObjectId(id)) if !self.unknown => self.ids.push(id),
            _ => self.unknown = true,
        }
    }

    /// Writes what has come out.
    pub fn append(&self, pattern: &KeyPattern, threshold: f64, out: &mut DocWriter<'_, Vec<u8>>) {
        if !is_open(pattern) {
            out.append("type", "not monotonic");
        } else if self.unknown || self.ids.is_empty() {
            out.append("type", "unknown");
        } else {
            let coefficient = coefficient(&self.ids);
            out.append("recordIdCorrelationCoefficient", coefficient);
            let is_monotonic = coefficient.abs() >= threshold;
            out.append("type", if is_monotonic { "monotonic" } else { "not monotonic" });
        }
    }
}

/// How the places of values go with their size: 1 where they grow, -1 where they fall, about 0 where neither can be told.
fn coefficient(ids: &[ObjectId]) -> f64 {
    if ids.len() < 2 {
        return 0.0;
    }
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|at| ids[*at]);
    // Places and ranks are the same numbers, so they have one mean and one variance.
    let mean = (ids.len() - 1) as f64 / 2.0;
    let (mut together, mut alone) = (0.0, 0.0);
    for (rank, place) in order.into_iter().enumerate() {
        together += (rank as f64 - mean) * (place as f64 - mean);
        alone += (rank as f64 - mean) * (rank as f64 - mean);
    }
    (together / alone * 1e10).round() / 1e10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(order: impl Iterator<Item = u32>) -> f64 {
        let id = |n: u32| {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            ObjectId(bytes)
        };
        coefficient(&order.map(id).collect::<Vec<_>>())
    }

    #[test]
    fn the_coefficient_tells_growth_from_noise() {
        assert_eq!((of(0..100), of((0..100).rev())), (1.0, -1.0));
        assert!(of((0..1000).map(|n| n * 7919 % 1000)).abs() < 0.1);
        assert!(of((0..1000).map(|n| n + n % 13)) > 0.99);
        assert_eq!((of(0..1), of(0..0)), (0.0, 0.0));
    }
}
