//! Small records for bulk imports, and a checksum over any number of documents in any order.

use sheaf_bson::{DocBuf, RawDoc, Value};

use super::{Random, body, mix};

/// What the records are about: names as an importer meets them, short and long.
const CITIES: [&str; 12] = [
    "Aberdeen",
    "Bergen",
    "Cork",
    "Dresden",
    "Esbjerg",
    "Faro",
    "Graz",
    "Helsinki",
    "Innsbruck",
    "Jena",
    "Krakow",
    "Santiago de Compostela",
];

/// The record of this number, some 150 bytes: an order with a customer, a place, a time, an amount and a comment. `id` is
/// the value of its `_id`.
pub fn generated(seed: u64, number: u64, id: i64) -> DocBuf {
    let mut random = Random::new(mix(seed) ^ mix(number));
    let mut comment = [0; 48];
    let length = 8 + random.below(40) as usize;
    body::fill_text(random.bits(), &mut comment[..length]);
    let comment = std::str::from_utf8(&comment[..length]).unwrap_or_default();
    DocBuf::new()
        .with("_id", id)
        .with("number", number as i64)
        .with("customer", random.below(100_000) as i32)
        .with("city", CITIES[random.below(CITIES.len() as u64) as usize])
        .with("at", Value::DateTime(1_700_000_000_000 + number as i64 * 250))
        .with("amount", random.below(1_000_000) as f64 / 100.0)
        .with("paid", random.below(4) != 0)
        .with("comment", comment)
}

/// The `_id` of a record when keys are spread by a hash; different numbers have different hashes.
pub fn hashed_id(number: u64) -> i64 {
    mix(number.wrapping_add(1)) as i64
}

/// A count and a checksum over documents in any order: the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many documents.
    pub count: u64,
    /// Sum of their checksums, modulo 2^64.
    pub sum: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Counts a document.
    pub fn add(&mut self, document: RawDoc<'_>) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(body::checksum(0, document.as_bytes()));
        self.bytes += document.len() as u64;
    }

    /// Counts what another client has counted.
    pub fn merge(&mut self, other: Tally) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_reproducible_small_and_different() {
        let mut texts = std::collections::BTreeSet::new();
        for number in 0..5000 {
            let record = generated(1, number, number as i64);
            assert_eq!(record.as_bytes(), generated(1, number, number as i64).as_bytes());
            assert!((110..220).contains(&record.as_bytes().len()), "{}", record.as_bytes().len());
            sheaf_bson::validate(record.as_bytes(), 10).unwrap();
            texts.insert(record.as_raw().get("comment").and_then(|c| c.as_str().map(str::to_owned)).unwrap());
        }
        assert!(texts.len() > 4990);
        assert_ne!(generated(1, 3, 0).as_bytes(), generated(2, 3, 0).as_bytes());
    }

    #[test]
    fn hashed_ids_are_distinct_and_spread() {
        let ids: std::collections::BTreeSet<i64> = (0..100_000).map(hashed_id).collect();
        assert_eq!(ids.len(), 100_000);
        let negative = ids.iter().filter(|&&id| id < 0).count();
        assert!((48_000..52_000).contains(&negative));
    }

    #[test]
    fn a_tally_does_not_mind_the_order_but_every_byte() {
        let records: Vec<DocBuf> = (0..100).map(|n| generated(1, n, n as i64)).collect();
        let tally = |records: &[DocBuf]| {
            let mut tally = Tally::default();
            records.iter().for_each(|r| tally.add(r.as_raw()));
            tally
        };
        let whole = tally(&records);
        let mut turned = records.clone();
        turned.reverse();
        assert_eq!(tally(&turned), whole);
        let mut halves = tally(&records[..50]);
        halves.merge(tally(&records[50..]));
        assert_eq!(halves, whole);
        assert_ne!(tally(&records[1..]), whole);
        turned[3] = generated(2, 96, 96);
        assert_ne!(tally(&turned).sum, whole.sum);
        let doubled: Vec<DocBuf> = records[1..].iter().chain([&records[1]]).cloned().collect();
        assert_eq!(tally(&doubled).count, whole.count);
        assert_ne!(tally(&doubled).sum, whole.sum);
    }
}
