//! Commands about the plans of queries: the plan cache and index filters.

mod cache_clear;
mod filters;
mod shape;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(cache_clear::PlanCacheClear<'_>),
    registered!(filters::PlanCacheClearFilters<'_>),
    registered!(filters::PlanCacheListFilters<'_>),
    registered!(filters::PlanCacheSetFilter<'_>),
];
