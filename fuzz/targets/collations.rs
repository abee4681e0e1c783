//! Arbitrary documents are collations or none; what parses compares, and its keys have the order of comparisons.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_bson::{Bump, MAX_DEPTH, RawDoc, Value, compare, doc, validate};
use sheaf_collation::{Collation, Collator};

fuzz_target!(|data: &[u8]| {
    let Ok(first) = validate(data, MAX_DEPTH) else { return };
    let spec = RawDoc::new(&data[..first]);
    if let Ok(collation) = Collation::parse(spec) {
        // What is shown is the same collation.
        let shown = collation.to_doc();
        assert_eq!(Collation::parse(shown.as_raw()).as_ref().ok(), Some(&collation));
    }
    let Ok(Some(collator)) = Collator::parse(spec) else {
        // Most are none: their strings are compared all the same.
        let caseless = Collator::parse(doc! { "locale": "en", "strength": 2 }.as_raw()).ok().flatten();
        return caseless.iter().for_each(|collator| agree(collator, spec));
    };
    match validate(&data[first..], MAX_DEPTH) {
        Ok(second) => agree(&collator, RawDoc::new(&data[first..first + second])),
        Err(_) => agree(&collator, spec),
    }
});

fn agree(collator: &Collator, values: RawDoc<'_>) {
    let arena = Bump::new();
    let values: Vec<Value<'_>> = values.values().take(8).collect();
    for a in &values {
        for b in &values {
            let by_keys = compare(collator.key(*a, &arena), collator.key(*b, &arena));
            assert_eq!(by_keys, collator.compare_values(*a, *b));
        }
    }
}
