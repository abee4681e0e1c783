//! The Extended JSON parser returns for any text; what it accepts is valid BSON whose canonical text
//! reads back as the same text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_bson::json::{Style, parse_document, to_json};
use sheaf_bson::validate;

fuzz_target!(|text: &str| {
    let Ok(doc) = parse_document(text) else { return };
    assert!(validate(doc.as_bytes(), 1000).is_ok());
    let canonical = to_json(doc.as_raw(), Style::Canonical);
    // A document may look like a wrapper only when it is printed ({"$code": {..wrapped string..}}),
    // so the text need not parse; if it does, it is stable.
    if let Ok(again) = parse_document(&canonical) {
        assert_eq!(to_json(again.as_raw(), Style::Canonical), canonical);
    }
});
