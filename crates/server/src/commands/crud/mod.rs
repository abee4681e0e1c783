//! Commands that read and write documents.

mod delete;
mod find;
mod get_more;
mod insert;
mod kill_cursors;
mod query;
mod update;
mod writes;

use crate::command::Registered;
use crate::registered;

/// The commands of this group.
pub const COMMANDS: &[Registered] = &[
    registered!(find::Find),
    registered!(get_more::GetMore),
    registered!(kill_cursors::KillCursors),
    registered!(insert::Insert),
    registered!(update::Update),
    registered!(delete::Delete),
];
