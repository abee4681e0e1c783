//! Commands about the plans of queries: the plan cache, index filters and settings for shapes.

mod cache_clear;
mod filters;
mod settings;
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
    registered!(settings::RemoveQuerySettings<'_>),
    registered!(settings::SetQuerySettings<'_>),
];
