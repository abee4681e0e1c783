//! MongoDB's order of values.

use std::cmp::Ordering;

use crate::raw::RawDoc;
use crate::value::Value;

/// MongoDB's total order: by type place ([`crate::Type::order`]), then by value. Numbers compare
/// by exact mathematical value whatever their types; NaN is smallest among numbers and equals
/// itself; -0.0 equals 0.0.
pub fn compare(_a: Value<'_>, _b: Value<'_>) -> Ordering {
    unimplemented!()
}

/// Order of two documents: field by field; first by the fields' type places, then by names, then by values.
pub fn compare_docs(_a: RawDoc<'_>, _b: RawDoc<'_>) -> Ordering {
    unimplemented!()
}
