//! What the fuzz targets share. The same files serve `crates/server/tests/all/arbitrary.rs`.

pub mod command;
pub mod generate;
pub mod language;
pub mod memory;
pub mod server;
pub mod stages;
pub mod words;
