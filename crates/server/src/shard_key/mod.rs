//! How well a key would shard a collection: what `analyzeShardKey` tells, on a set and through a router alike, and what both know of
//! filters and keys. Where the documents are, and the samples of queries, is the [`Ground`]'s.

mod analysis;
mod distribution;
mod ground;
mod monotonicity;
pub mod ranges;

pub use analysis::Analysis;
pub use ground::Ground;
