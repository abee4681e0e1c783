//! Arbitrary documents are geometries or none, have keys or none, and are asked for or not; nothing of it panics, and what passes is looked at.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_bson::{MAX_DEPTH, RawDoc, doc, validate};
use sheaf_geo::{Indexing, Kind, Near, Predicate};

fuzz_target!(|data: &[u8]| {
    let Ok(first) = validate(data, MAX_DEPTH) else { return };
    let stored = RawDoc::new(&data[..first]);
    let specs = [doc! { "key": { "g": "2dsphere" } }, doc! { "key": { "g": "2d" } }];
    let all = specs.iter().filter_map(|spec| Indexing::of_spec(spec.as_raw()).ok().flatten());
    let indexings: Vec<Indexing> = all.collect();
    let asked = match validate(&data[first..], MAX_DEPTH) {
        Ok(second) => RawDoc::new(&data[first..first + second]),
        Err(_) => stored,
    };
    let predicates = asked.iter().flat_map(|element| {
        [Kind::Within, Kind::Intersects]
            .into_iter()
            .filter_map(move |kind| Predicate::parse(kind, element).ok())
    });
    let predicates: Vec<Predicate> = predicates.collect();
    let _ = Near::parse(asked);
    for value in stored.values() {
        for indexing in &indexings {
            let mut keys = Vec::new();
            let indexed = indexing.put_keys(value, stored, &mut keys).is_ok();
            for predicate in &predicates {
                let (Ok(passes), Some(ranges)) = (predicate.matches(value), indexing.ranges(predicate))
                else {
                    continue;
                };
                let seen = keys.iter().any(|key| ranges.iter().any(|(low, high)| low <= key && key <= high));
                assert!(!passes || !indexed || seen, "a match that the index does not look at");
            }
        }
    }
});
