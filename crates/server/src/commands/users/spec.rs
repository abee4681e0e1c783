//! What the commands of users and roles say of themselves alike.

use crate::command::*;

/// What all commands have in common that change users or roles.
pub const fn changes(help: &'static str, privileges: Privileges) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges,
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    }
}

/// What those have in common that show them.
pub const fn shows(help: &'static str, privileges: Privileges) -> Spec {
    Spec {
        access: Access::None,
        secondary: Secondary::Always,
        maintenance: true,
        concerns: Concerns::NONE,
        threads: Threads::Data,
        ..changes(help, privileges)
    }
}
