//! The engine against a plain map, through crashes; and what each part promises.

mod builds;
mod crash;
mod ddl;
mod model;
mod oplog;
mod support;
mod validate;
mod waits;
mod writes;
