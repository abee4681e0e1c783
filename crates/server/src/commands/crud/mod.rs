//! Commands that read and write documents.

mod aggregate;
mod bulk_write;
pub mod change_stream;
mod count;
mod delete;
mod distinct;
pub mod explain;
mod find;
mod find_and_modify;
mod get_more;
mod insert;
pub mod map_reduce;
pub mod pipeline;
pub mod plan_names;
pub mod query;
mod query_settings;
mod resume;
mod retried;
pub mod rights;
mod told;
mod update;
mod witness;
pub mod writes;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(find::Find),
    registered!(get_more::GetMore),
    registered!(insert::Insert),
    registered!(update::Update),
    registered!(delete::Delete),
    registered!(bulk_write::BulkWrite),
    registered!(find_and_modify::FindAndModify),
    registered!(count::Count),
    registered!(distinct::Distinct),
    registered!(aggregate::Aggregate),
    registered!(map_reduce::MapReduce),
    registered!(explain::Explain),
];
