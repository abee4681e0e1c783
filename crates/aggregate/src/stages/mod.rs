//! The stages, one file each.

pub mod bucket;
pub mod bucket_auto;
pub mod change_stream;
pub mod count;
pub mod documents;
pub mod facet;
pub mod filter;
mod granularity;
pub mod graph_lookup;
pub mod group;
pub mod limit;
pub mod lookup;
pub mod merge;
pub mod out;
pub mod project;
pub mod redact;
pub mod replace_root;
pub mod sample;
pub mod search;
pub(crate) mod set_aside;
pub mod skip;
pub mod sort;
pub mod stats;
pub mod union;
pub mod unwind;
