//! Checks of what DDL commands ask for.

pub mod index_spec;
