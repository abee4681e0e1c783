//! The commands, one file each, by group.

pub mod admin;
pub mod crud;
pub mod ddl;
pub mod diag;
pub mod plans;
pub mod repl;
pub mod session;
pub mod sharding;
pub mod timeseries;
pub mod users;

use std::sync::LazyLock;

use crate::command::{RunOnMongod, Table};

/// All commands of a mongod.
pub static TABLE: LazyLock<Table<RunOnMongod>> = LazyLock::new(|| {
    Table::new(&[
        admin::COMMANDS,
        crud::COMMANDS,
        ddl::COMMANDS,
        diag::COMMANDS,
        plans::COMMANDS,
        repl::COMMANDS,
        session::COMMANDS,
        sharding::COMMANDS,
        users::COMMANDS,
    ])
});
