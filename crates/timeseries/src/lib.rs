//! Time-series collections: measurements that are kept in buckets, a bucket for one `metaField` value and a span of time.
//!
//! A collection `c` is a view on `system.buckets.c`, whose documents are made and read here, as pure functions:
//!
//! ```text
//! {_id: ObjectId of the bucket's begin, control: {version: 2, min: {..}, max: {..}, count: ..}, meta: .., data: {field: column}}
//! ```
//!
//! A column is a binary of subtype 7 ([`ColumnWriter`], [`ColumnReader`]). Version 3 is the same with times out of order; those of version 1,
//! which earlier servers wrote, have columns `{"0": value, "1": value}`, and become one of the others when measurements come into them.

#![forbid(unsafe_code)]

mod bounds;
mod bucket;
mod column;
mod definition;
mod fault;
mod fields;
mod options;
mod shard_key;
mod unpack;

pub use bucket::{Bucket, Measurement, Refusal, normalized_meta};
pub use column::{ColumnReader, ColumnWriter};
pub use definition::{bucket_id_index, bucket_options, default_index, listed_index, view_options};
pub use fault::{fault, fault_beside_bounds};
pub use fields::{
    BUCKETS_PREFIX, buckets_namespace, filter_on_meta, index_for_buckets, index_for_user, meta_path,
    split_buckets, unpack_stage,
};
pub use options::{ENTRY_FIELD, Granularity, TimeseriesOptions, seconds};
pub use shard_key::{bucket_of, shard_key_for_buckets, shard_key_index};
pub use unpack::{Fields, Unpacker};
