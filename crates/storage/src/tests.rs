//! The engine against a plain map, through crashes; and what each part promises.

mod apply;
mod big;
mod builds;
mod chains;
mod copy;
mod crash;
mod ddl;
mod figures;
mod follow;
mod large_keys;
mod majority;
mod member;
mod model;
mod oplog;
mod panics;
mod position;
mod repair;
mod rollback;
mod sessions;
mod stable;
mod stale;
pub(crate) mod support;
mod swaps;
mod transactions;
mod validate;
mod waits;
mod writes;
