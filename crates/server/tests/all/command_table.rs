//! What commands say of themselves, compared with the table in docs/commands.md; `UPDATE=1` writes it anew.
#![allow(clippy::disallowed_methods, reason = "a test reads and writes a file of the repository")]

use std::fmt::Write;

use sheaf_server::command::*;
use sheaf_server::commands::TABLE;

const FILE: &str = "../../docs/commands.md";

const HEAD: &str = "\
# The commands, as they describe themselves

Each command states these beside its code; there are no defaults. A test compares this page with them
(`UPDATE=1 cargo test -p sheaf-server --test all command_table` writes it anew).

- **access**: whether it reads or writes. **txn**: allowed in a multi-document transaction; *retryable*: also takes a
  `txnNumber` outside of one. **secondary**: where it runs on a member that is not primary; *+* means also on one that is
  neither primary nor secondary. **auth**: *before* runs without authentication. **v1**: part of the stable API.
  **concerns**: which of `readConcern` (r) and `writeConcern` (w) it takes.
- **privileges**: the actions that its user needs, and where; *c* is the collection that the command names, *db* its
  database, *cluster* the cluster. With `--auth` they are checked before the command runs.
- **router**: how a router runs it.

| command | access | txn | secondary | auth | v1 | concerns | privileges | router |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

fn access(access: Access) -> &'static str {
    match access {
        Access::None => "",
        Access::Read => "reads",
        Access::ReadOrWrite(_) => "reads, may write",
        Access::Write => "writes",
    }
}

fn resource(resource: Resource) -> String {
    match resource {
        Resource::Collection => "c".to_owned(),
        Resource::CollectionIn(field) => format!("c in `{field}`"),
        Resource::CollectionNamed(name) => format!("`{name}`"),
        Resource::NamespaceIn(field) => format!("namespace in `{field}`"),
        Resource::Database => "db".to_owned(),
        Resource::Cluster => "cluster".to_owned(),
    }
}

fn privilege(privilege: &Privilege) -> String {
    let actions: Vec<_> = privilege.actions.iter().map(|action| action.name()).collect();
    let mut text = format!("{}: {}", resource(privilege.resource), actions.join(", "));
    if let Some(other) = privilege.or {
        write!(text, " (or {})", other.name()).unwrap();
    }
    match privilege.when {
        When::Always => {}
        When::Asked(words, _) | When::Found(words) => write!(text, " if {words}").unwrap(),
    }
    text
}

fn privileges(privileges: Privileges) -> String {
    match privileges {
        Privileges::None => String::new(),
        Privileges::Needs(list) => list.iter().map(privilege).collect::<Vec<_>>().join("; "),
        Privileges::ByCommand(words, _) => format!("*{words}*"),
        Privileges::OfInner => "*those of the command that it explains*".to_owned(),
    }
}

fn row(command: &Description) -> String {
    let spec = &command.spec;
    let transaction = match spec.transaction {
        Transaction::Refused => "",
        Transaction::Allowed => "yes",
        Transaction::AllowedOrRetryable => "retryable",
    };
    let secondary = match spec.secondary {
        Secondary::Never => "never",
        Secondary::OptIn => "read preference",
        Secondary::Always => "always",
    };
    let maintenance = if spec.maintenance { "+" } else { "" };
    let before = if spec.authentication == Authentication::Before { "before" } else { "" };
    let v1 = if spec.api_v1 { "v1" } else { "" };
    let concerns = match (spec.concerns.read, spec.concerns.write) {
        (false, false) => "",
        (true, false) => "r",
        (false, true) => "w",
        (true, true) => "r w",
    };
    let spread = match spec.spread {
        Spread::Router => "itself",
        Spread::Targeted => "targeted",
        Spread::PrimaryShard => "primary shard",
        Spread::Owners => "owners",
        Spread::AnyOwner => "any owner",
        Spread::AllShards => "all shards",
        Spread::ConfigServers => "config servers",
        Spread::CursorOwners => "the cursor's shards",
        Spread::Participants => "the transaction's shards",
        Spread::Inner => "as the inner command",
        Spread::Refused => "refused",
    };
    let cells = [
        &format!("`{}`", command.name),
        access(spec.access),
        transaction,
        &format!("{secondary}{maintenance}"),
        before,
        v1,
        concerns,
        &privileges(spec.privileges),
        spread,
    ];
    format!("| {} |\n", cells.join(" | ").replace("  ", " "))
}

#[test]
fn commands_are_what_the_page_says() {
    let mut commands: Vec<_> = TABLE.all().collect();
    commands.sort_by_key(|command| command.name);
    let page: String = std::iter::once(HEAD.to_owned()).chain(commands.into_iter().map(row)).collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(FILE, &page).unwrap();
    }
    let kept = std::fs::read_to_string(FILE).unwrap_or_default();
    let differs = page.lines().zip(kept.lines()).find(|(now, then)| now != then);
    assert_eq!(kept, page, "docs/commands.md is old; the first line that differs: {differs:?}");
}

#[test]
fn what_a_command_says_of_itself_fits_together() {
    for command in TABLE.all() {
        let Spec { access, transaction, secondary, concerns, .. } = command.spec;
        let name = command.name;
        assert!(!command.spec.help.is_empty(), "{name} says nothing of itself");
        assert!(
            !access.is_write() || secondary == Secondary::Never,
            "{name} writes, and runs on a secondary"
        );
        // MongoDB's takes none either: it waits by the default.
        let takes_none = matches!(name, "configureQueryAnalyzer" | "setAuditConfig" | "setClusterParameter");
        assert!(
            !access.is_write() || concerns.write || takes_none,
            "{name} writes, and takes no write concern"
        );
        assert!(
            transaction != Transaction::AllowedOrRetryable || access.is_write(),
            "{name} does not write, and can be retried"
        );
        assert!(
            command.spec.authentication == Authentication::Required
                || matches!(command.spec.privileges, Privileges::None),
            "{name} runs before it is known whose privileges count"
        );
        assert!(!command.spec.maintenance || secondary != Secondary::Never, "{name} never runs there");
    }
}
