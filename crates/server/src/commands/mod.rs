//! The commands, one file each, by group.

pub mod admin;
pub mod crud;
pub mod ddl;
pub mod diag;
pub mod repl;
pub mod session;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::command::Registered;

/// All commands, by name and alias.
static TABLE: LazyLock<HashMap<&'static str, &'static Registered, ahash::RandomState>> =
    LazyLock::new(|| {
        let mut table = HashMap::default();
        for group in GROUPS {
            for command in *group {
                for name in command.spec.aliases.iter().chain([&command.name]) {
                    assert!(
                        table.insert(*name, command).is_none(),
                        "command {name} stands twice in the table"
                    );
                }
            }
        }
        table
    });

/// The groups; a new command is one line in its group's table.
static GROUPS: &[&[Registered]] =
    &[admin::COMMANDS, crud::COMMANDS, ddl::COMMANDS, diag::COMMANDS, repl::COMMANDS, session::COMMANDS];

/// The command of this name or alias.
pub fn find(name: &str) -> Option<&'static Registered> {
    TABLE.get(name).copied()
}

/// Every command once, in no particular order.
pub fn all() -> impl Iterator<Item = &'static Registered> {
    GROUPS.iter().flat_map(|group| group.iter())
}
