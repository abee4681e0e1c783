//! BSON values as MongoDB understands them, on raw bytes.
//!
//! - [`RawDoc`], [`Element`], [`Value`]: reading documents in place; everything is `Copy` and borrowed.
//! - [`DocWriter`], [`DocBuf`], [`doc!`]: building documents where they will be used.
//! - [`validate`]: the check at the door.
//! - [`compare()`]: MongoDB's order of values; [`key`]: the same order as comparable bytes.
//! - [`path`]: dotted paths; [`json`]: Extended JSON.
//! - [`OwnedValue`], [`Ordered`]: a value kept, a value as a key of sets and maps.
//! - [`number`]: the numeric semantics that operators share, over [`Decimal128`] arithmetic.

#![forbid(unsafe_code)]

mod build;
pub mod calendar;
mod cluster_time;
mod compare;
mod decimal;
mod hash;
mod id;
pub mod json;
pub mod key;
pub mod number;
#[cfg(test)]
mod official;
mod owned;
pub mod path;
mod raw;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
mod validate;
mod value;

pub use build::{ArrayBuf, ArrayWriter, DocBuf, DocWriter, Sink, array_in, decimal_digits, document_in};
pub use bumpalo::Bump;
pub use cluster_time::ClusterTime;
pub use compare::{compare, compare_arrays, compare_docs, hash_value};
pub use decimal::{Class as DecimalClass, ParseDecimalError, Rounding};
pub use hash::{hashed_index_value, hashed_index_value_seeded};
pub use id::{ObjectIdGenerator, ParseIdError, parse_uuid, uuid_text};
pub use owned::{Ordered, OwnedValue};
pub use raw::{Element, Iter, RawDoc};
pub use text::{document_text, element_text, value_text};
pub use validate::{MAX_DEPTH, MAX_DOCUMENT_SIZE, MAX_STORED_DEPTH, is_deeper, validate, validate_element};
pub use value::{Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Type, Value};
