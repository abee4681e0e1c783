//! Checks of what DDL commands ask for, and the figures about collections.

pub mod collection_options;
pub mod index_spec;
pub mod stats;
mod storage_engine;
