//! What the commands of sharding ask of who sends them.

use sheaf_auth::{Action, Target};
use sheaf_front::access::Rights;
use sheaf_front::command::Asked;

/// For the table of commands.
pub(super) const WORDS: &str = "the action of its name on the cluster, or on the collection that it names: enableSharding to spread and to \
balance it, moveChunk, splitChunk, reshardCollection...; removeShard for shards that go; find or update on config.settings for the balancer";

/// Whether these rights are enough for a command about shards.
pub(super) fn may(asked: Asked<'_>, rights: &Rights) -> bool {
    let named = asked.first().as_str().unwrap_or_default();
    let on_named = |action: Action| rights.may(Target::of_namespace(named), &[action]);
    let on_cluster = |action: Action| rights.may(Target::Cluster, &[action]);
    let on_settings = |action: Action| rights.may(Target::Collection("config", "settings"), &[action]);
    match asked.command {
        "shardCollection"
        | "balancerCollectionStatus"
        | "configureCollectionBalancing"
        | "clearJumboFlag"
        | "setAllowMigrations" => on_named(Action::EnableSharding),
        "enableSharding" => rights.may(Target::Database(named), &[Action::EnableSharding]),
        "addShardToZone" | "removeShardFromZone" | "updateZoneKeyRange" => {
            on_cluster(Action::EnableSharding)
                || rights.may(Target::Collection("config", "tags"), &[Action::Find, Action::Update])
        }
        "balancerStart" | "balancerStop" => on_settings(Action::Update),
        "balancerStatus" => on_settings(Action::Find),
        "moveChunk" | "moveRange" => on_named(Action::MoveChunk),
        "movePrimary" => rights.may(Target::Database(named), &[Action::MoveChunk]),
        "split" | "mergeChunks" | "mergeAllChunksOnShard" => on_named(Action::SplitChunk),
        "moveCollection" | "abortMoveCollection" => on_named(Action::MoveCollection),
        "refineCollectionShardKey" => on_named(Action::RefineCollectionShardKey),
        "reshardCollection"
        | "unshardCollection"
        | "abortUnshardCollection"
        | "abortReshardCollection"
        | "commitReshardCollection"
        | "cleanupReshardCollection" => on_named(Action::ReshardCollection),
        "analyzeShardKey" => on_named(Action::AnalyzeShardKey),
        "configureQueryAnalyzer" => on_named(Action::ConfigureQueryAnalyzer),
        "getShardVersion" => on_named(Action::GetShardVersion) || on_cluster(Action::GetShardVersion),
        "removeShard"
        | "startShardDraining"
        | "stopShardDraining"
        | "shardDrainingStatus"
        | "commitShardRemoval" => on_cluster(Action::RemoveShard),
        "checkMetadataConsistency" => {
            let target = match (asked.first().as_str(), asked.db) {
                (Some(collection), db) => Target::Collection(db, collection),
                (None, "admin") => Target::Cluster,
                (None, db) => Target::Database(db),
            };
            on_cluster(Action::CheckMetadataConsistency)
                || rights.may(target, &[Action::CheckMetadataConsistency])
        }
        name => Action::from_name(name).is_some_and(on_cluster),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sheaf_auth::Account;
    use sheaf_bson::doc;

    use super::*;

    struct NoRoles;

    impl sheaf_auth::Roles for NoRoles {
        fn made(&self, _: &sheaf_auth::RoleName) -> sheaf_errors::Result<Option<sheaf_auth::Role>> {
            Ok(None)
        }
    }

    fn of(role: &str) -> Rights {
        let user =
            doc! { "_id": "admin.x", "user": "x", "db": "admin", "roles": [{ "role": role, "db": "admin" }] };
        Rights::of(Arc::new(Account::read(user.as_raw(), &NoRoles).unwrap()))
    }

    #[test]
    fn whoever_manages_clusters_may_do_all_of_it() {
        let (manager, root, reader) = (of("clusterManager"), of("root"), of("readAnyDatabase"));
        for command in super::super::TABLE.all().filter(|command| {
            matches!(command.spec.privileges, sheaf_front::command::Privileges::ByCommand(words, _) if words == WORDS)
        }) {
            let body = sheaf_bson::DocBuf::new().with(command.name, "lib.books");
            let db = if command.name == "checkMetadataConsistency" { "lib" } else { "admin" };
            let asked = Asked { command: command.name, db, body: body.as_raw(), sequences: &[] };
            assert!(may(asked, &root), "{}", command.name);
            let is_watching = ["analyzeShardKey", "getShardMap", "getShardVersion", "configureQueryAnalyzer"];
            assert!(may(asked, &manager) || is_watching.contains(&command.name), "{}", command.name);
            assert!(!may(asked, &reader), "{}", command.name);
        }
    }
}
