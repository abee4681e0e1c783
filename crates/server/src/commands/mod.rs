//! The commands, one file each, by group.

pub mod admin;
pub mod crud;
pub mod ddl;
pub mod diag;
pub mod repl;
pub mod session;

use std::collections::HashMap;
use std::sync::LazyLock;

use sheaf_front::role::Found;

use crate::command::Registered;

/// All commands, in no particular order.
static TABLE: LazyLock<Vec<&'static Registered>> =
    LazyLock::new(|| GROUPS.iter().flat_map(|group| group.iter()).collect());

/// Their places in the table, by name and alias.
static NAMES: LazyLock<HashMap<&'static str, usize, ahash::RandomState>> = LazyLock::new(|| {
    let mut names = HashMap::default();
    for (at, command) in TABLE.iter().enumerate() {
        for name in command.spec.aliases.iter().chain([&command.name]) {
            assert!(names.insert(*name, at).is_none(), "command {name} stands twice in the table");
        }
    }
    names
});

/// The groups; a new command is one line in its group's table.
static GROUPS: &[&[Registered]] =
    &[admin::COMMANDS, crud::COMMANDS, ddl::COMMANDS, diag::COMMANDS, repl::COMMANDS, session::COMMANDS];

/// The command of this name or alias.
pub fn find(name: &str) -> Option<Found> {
    let at = *NAMES.get(name)?;
    Some(Found { command: &TABLE[at].description, at })
}

/// The command at this place of the table.
pub fn at(place: usize) -> &'static Registered {
    TABLE[place]
}

/// Every command once, in no particular order.
pub fn all() -> impl Iterator<Item = &'static Registered> {
    TABLE.iter().copied()
}
