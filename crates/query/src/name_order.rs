//! The order in which an update creates fields, and tells of them.

use std::cmp::Ordering;

/// Order of new fields: names in byte order, but numbers among themselves by value. Another name stands before all numbers or
/// behind all: `9`, `10` and `1a`, each pair by its own rule, would stand in a circle.
pub(crate) fn name_order(a: &str, b: &str) -> Ordering {
    match (is_index(a), is_index(b)) {
        (true, true) => a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
        (false, false) => a.cmp(b),
        (true, false) => NUMBERS.cmp(b),
        (false, true) => a.cmp(NUMBERS),
    }
}

/// Numbers stand where this stands among other names; it is none of them, and no other one is equal to it.
const NUMBERS: &str = "1";

fn is_index(name: &str) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit) && (bytes[0] != b'0' || bytes.len() == 1)
}
