//! Checks of what DDL commands ask for.

pub mod collection_options;
pub mod index_spec;
