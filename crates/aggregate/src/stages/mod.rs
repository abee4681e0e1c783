//! The stages, one file each.

pub mod bucket;
pub mod bucket_auto;
pub mod change_stream;
pub mod documents;
pub mod facet;
mod granularity;
pub mod graph_lookup;
pub mod group;
pub mod lookup;
pub mod merge;
pub mod out;
pub mod project;
pub mod redact;
pub mod sample;
pub mod search;
pub(crate) mod set_aside;
pub mod simple;
pub mod sort;
pub mod stats;
pub mod union;
pub mod unwind;
