//! The roles that every server has, as the manual's table of built-in roles lists them.

use crate::action::Action::{self, *};
use crate::action::ActionSet;
use crate::name::RoleName;
use crate::privilege::{Privilege, Privileges};
use crate::resolve::Role;
use crate::resource::Resource;

/// The built-in roles of each database.
pub const OF_EVERY_DATABASE: &[&str] =
    &["dbAdmin", "dbOwner", "enableSharding", "read", "readWrite", "userAdmin"];

/// Those of `admin` besides.
pub const OF_ADMIN: &[&str] = &[
    "__queryableBackup",
    "__system",
    "backup",
    "clusterAdmin",
    "clusterManager",
    "clusterMonitor",
    "dbAdminAnyDatabase",
    "directShardOperations",
    "hostManager",
    "readAnyDatabase",
    "readWriteAnyDatabase",
    "restore",
    "root",
    "userAdminAnyDatabase",
];

/// Whether the name is a built-in role's.
pub fn is_built_in(name: &RoleName) -> bool {
    OF_EVERY_DATABASE.contains(&name.role.as_str())
        || (name.db == "admin" && OF_ADMIN.contains(&name.role.as_str()))
}

/// The names of a database's built-in roles.
pub fn names(db: &str) -> Vec<RoleName> {
    let of_admin = if db == "admin" { OF_ADMIN } else { &[] };
    let mut all: Vec<_> = OF_EVERY_DATABASE.iter().chain(of_admin).collect();
    all.sort();
    all.into_iter().map(|name| RoleName::new(*name, db)).collect()
}

/// The built-in role of this name.
pub fn find(name: &RoleName) -> Option<Role> {
    if !is_built_in(name) {
        return None;
    }
    let mut role = Draft { roles: Vec::new(), privileges: Privileges::default() };
    fill(&mut role, &name.role, &name.db);
    Some(Role { name: name.clone(), roles: role.roles, privileges: role.privileges, restrictions: None })
}

struct Draft {
    roles: Vec<RoleName>,
    privileges: Privileges,
}

impl Draft {
    fn on(&mut self, resource: Resource, actions: &[Action]) -> &mut Self {
        self.privileges.add(Privilege { resource, actions: ActionSet::of(actions) });
        self
    }

    fn database(&mut self, db: &str, actions: &[Action]) -> &mut Self {
        self.on(Resource::Database(db.to_owned()), actions)
    }

    fn collection(&mut self, db: &str, name: &str, actions: &[Action]) -> &mut Self {
        self.on(Resource::Collection(db.to_owned(), name.to_owned()), actions)
    }

    fn named(&mut self, name: &str, actions: &[Action]) -> &mut Self {
        self.on(Resource::Named(name.to_owned()), actions)
    }

    fn any(&mut self, actions: &[Action]) -> &mut Self {
        self.on(Resource::AnyNormal, actions)
    }

    fn cluster(&mut self, actions: &[Action]) -> &mut Self {
        self.on(Resource::Cluster, actions)
    }

    fn inherits(&mut self, roles: &[(&str, &str)]) -> &mut Self {
        self.roles.extend(roles.iter().map(|(role, db)| RoleName::new(*role, *db)));
        self
    }
}

const READ: &[Action] = &[
    ChangeStream,
    CollStats,
    DbHash,
    DbStats,
    Find,
    KillCursors,
    ListCollections,
    ListIndexes,
    ListSearchIndexes,
    PlanCacheRead,
];

/// What `readWrite` has besides [`READ`].
const WRITE: &[Action] = &[
    CleanupStructuredEncryptionData,
    CompactStructuredEncryptionData,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DropCollection,
    DropIndex,
    DropSearchIndex,
    Insert,
    Remove,
    RenameCollectionSameDb,
    Update,
    UpdateSearchIndex,
];

const DB_ADMIN: &[Action] = &[
    Analyze,
    BypassDocumentValidation,
    CollMod,
    CollStats,
    Compact,
    ConfigureQueryAnalyzer,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DbStats,
    DropCollection,
    DropDatabase,
    DropIndex,
    DropSearchIndex,
    EnableProfiler,
    ListCollections,
    ListIndexes,
    ListSearchIndexes,
    PlanCacheIndexFilter,
    PlanCacheRead,
    PlanCacheWrite,
    ReIndex,
    RenameCollectionSameDb,
    StorageDetails,
    UpdateSearchIndex,
    Validate,
];

/// What `dbAdmin` has of `system.profile` besides [`READ`].
const PROFILE: &[Action] = &[ConvertToCapped, CreateCollection, DropCollection];

const USER_ADMIN: &[Action] = &[
    ChangeCustomData,
    ChangePassword,
    CreateRole,
    CreateUser,
    DropRole,
    DropUser,
    GrantRole,
    RevokeRole,
    SetAuthenticationRestriction,
    ViewRole,
    ViewUser,
];

const SHARDING: &[Action] =
    &[AnalyzeShardKey, EnableSharding, MoveCollection, RefineCollectionShardKey, ReshardCollection];

/// What `clusterMonitor` sees of databases.
const MONITOR: &[Action] = &[CollStats, DbStats, GetDatabaseVersion, GetShardVersion, IndexStats];

/// What `clusterManager` does to databases besides [`SHARDING`].
const MANAGER: &[Action] = &[ClearJumboFlag, ConfigureQueryAnalyzer, MoveChunk, SplitChunk, SplitVector];

const RESTORE: &[Action] = &[
    BypassDocumentValidation,
    CollMod,
    ConvertToCapped,
    CreateCollection,
    CreateIndex,
    CreateSearchIndexes,
    DropCollection,
    Insert,
    UpdateSearchIndex,
];

/// What administrators of users see and index of the collections that hold them.
const INDEXES: &[Action] = &[CreateIndex, CreateSearchIndexes, DropIndex, DropSearchIndex];

fn fill(role: &mut Draft, name: &str, db: &str) {
    match name {
        "read" => {
            role.database(db, READ).collection(db, "system.js", READ);
        }
        "readWrite" => {
            role.database(db, READ).database(db, WRITE);
            role.collection(db, "system.js", READ).collection(db, "system.js", WRITE);
        }
        "dbAdmin" => {
            role.database(db, DB_ADMIN);
            role.collection(db, "system.profile", READ).collection(db, "system.profile", PROFILE);
        }
        "userAdmin" => {
            role.database(db, USER_ADMIN);
        }
        "dbOwner" => {
            role.inherits(&[("readWrite", db), ("dbAdmin", db), ("userAdmin", db)]);
        }
        "enableSharding" => {
            role.any(SHARDING);
        }
        "clusterMonitor" | "clusterManager" | "hostManager" | "clusterAdmin" | "directShardOperations" => {
            fill_cluster(role, name);
        }
        "backup" | "__queryableBackup" | "restore" => fill_backup(role, name),
        "root" => fill_root(role),
        "__system" => {
            role.on(Resource::Any, &[AnyAction]);
        }
        _ => fill_any_database(role, name),
    }
}

fn fill_any_database(role: &mut Draft, name: &str) {
    match name {
        "readAnyDatabase" => {
            role.any(READ).cluster(&[ListDatabases]).named("system.js", READ).on(Resource::AnyBuckets, READ);
        }
        "readWriteAnyDatabase" => {
            role.inherits(&[("readAnyDatabase", "admin")]);
            for resource in
                [Resource::AnyNormal, Resource::Named("system.js".to_owned()), Resource::AnyBuckets]
            {
                role.on(resource.clone(), READ).on(resource, WRITE);
            }
        }
        "userAdminAnyDatabase" => {
            role.any(USER_ADMIN).any(&[ListCachedAndActiveUsers]);
            role.database("local", USER_ADMIN).database("config", USER_ADMIN);
            role.cluster(&[AuthSchemaUpgrade, InvalidateUserCache, ListDatabases, ViewUser]);
            for kept in ["system.users", "system.roles"] {
                role.collection("admin", kept, READ).collection("admin", kept, INDEXES);
            }
            role.named("system.users", READ);
            role.collection("admin", "system.version", READ).collection("admin", "system.backup_users", READ);
        }
        "dbAdminAnyDatabase" => {
            role.cluster(&[ApplyOps, ListDatabases]).any(DB_ADMIN).on(Resource::AnyBuckets, DB_ADMIN);
            role.named("system.profile", READ).named("system.profile", PROFILE);
        }
        other => unreachable!("no built-in role {other}"),
    }
}

fn fill_cluster(role: &mut Draft, name: &str) {
    match name {
        "clusterMonitor" => {
            role.inherits(&[("read", "config"), ("read", "local")]);
            role.cluster(&[
                AllCollectionStats,
                ConnPoolStats,
                GetCmdLineOpts,
                GetDefaultRwConcern,
                GetLog,
                GetParameter,
                GetShardMap,
                HostInfo,
                Inprog,
                ListDatabases,
                ListSampledQueries,
                ListSessions,
                ListShards,
                Netstat,
                OperationMetrics,
                ReplSetGetConfig,
                ReplSetGetStatus,
                ServerStatus,
                ShardedDataDistribution,
                ShardingState,
                Top,
                UseUuid,
            ]);
            role.any(MONITOR).database("config", MONITOR).database("local", MONITOR);
            role.collection("config", "system.sessions", MONITOR);
            for kept in ["system.replset", "replset.election", "replset.minvalid"] {
                role.collection("local", kept, &[Find]);
            }
            role.named("system.profile", &[Find]);
        }
        "hostManager" => {
            role.cluster(&[
                ApplicationMessage,
                AuditConfigure,
                ConnPoolSync,
                DropConnections,
                FlushRouterConfig,
                Fsync,
                InvalidateUserCache,
                KillAnyCursor,
                KillAnySession,
                Killop,
                LogRotate,
                OidReset,
                OidcListKeys,
                OidcRefreshKeys,
                ReplSetResizeOplog,
                Resync,
                RotateCertificates,
                SetParameter,
                Shutdown,
                Touch,
                TrafficRecord,
                Unlock,
            ]);
            role.any(&[KillCursors]);
        }
        "clusterManager" => {
            role.inherits(&[("read", "config")]);
            role.cluster(&[
                AddShard,
                AppendOplogNote,
                ApplicationMessage,
                CheckMetadataConsistency,
                CleanupOrphaned,
                FlushRouterConfig,
                GetChangeStreamState,
                GetClusterParameter,
                GetDefaultRwConcern,
                ListSessions,
                ListShards,
                QuerySettings,
                QueryStatsRead,
                QueryStatsReadTransformed,
                RemoveShard,
                ReplSetConfigure,
                ReplSetGetConfig,
                ReplSetGetStatus,
                ReplSetStateChange,
                Resync,
                RunTenantMigration,
                SetChangeStreamState,
                SetClusterParameter,
                SetDefaultRwConcern,
                SetFeatureCompatibilityVersion,
                TransitionFromDedicatedConfigServer,
                TransitionToDedicatedConfigServer,
            ]);
            role.on(Resource::Any, &[DbCheck]);
            role.any(SHARDING).any(MANAGER);
            role.on(Resource::AnyBuckets, SHARDING).on(Resource::AnyBuckets, MANAGER);
            for db in ["config", "local"] {
                role.database(db, SHARDING).database(db, MANAGER).database(db, &[Insert, Remove, Update]);
            }
            role.collection("local", "system.replset", READ).collection("local", "system.healthlog", READ);
            for kept in ["replset.election", "replset.minvalid"] {
                role.collection("local", kept, &[Insert, Remove, Update]);
            }
        }
        "clusterAdmin" => {
            role.inherits(&[
                ("clusterMonitor", "admin"),
                ("hostManager", "admin"),
                ("clusterManager", "admin"),
            ]);
            role.any(&[DropDatabase]).on(Resource::Any, &[ExportCollection, ImportCollection]);
        }
        "directShardOperations" => {
            role.cluster(&[IssueDirectShardOperations]);
        }
        other => unreachable!("no built-in role {other}"),
    }
}

fn fill_backup(role: &mut Draft, name: &str) {
    match name {
        "__queryableBackup" => {
            role.on(Resource::Any, &[CollStats, ListCollections, ListIndexes, ListSearchIndexes]);
            role.any(&[Find]).on(Resource::AnyBuckets, &[Find]).cluster(&[
                GetParameter,
                ListDatabases,
                UseUuid,
            ]);
            role.database("config", &[Find]).database("local", &[Find]);
            for kept in ["replset.election", "replset.minvalid"] {
                role.collection("local", kept, &[Find]);
            }
            for kept in ["system.js", "system.users", "system.profile"] {
                role.named(kept, &[Find]);
            }
            for kept in ["system.backup_users", "system.roles", "system.version"] {
                role.collection("admin", kept, &[Find]);
            }
            role.collection("config", "settings", &[Find]);
        }
        "backup" => {
            role.inherits(&[("__queryableBackup", "admin")]);
            role.cluster(&[AppendOplogNote, ServerStatus, SetUserWriteBlockMode]);
            role.collection("config", "settings", &[Insert, Update]);
        }
        "restore" => {
            role.cluster(&[
                ApplyOps,
                BypassWriteBlockingMode,
                ForceUuid,
                GetParameter,
                SetUserWriteBlockMode,
                UseUuid,
            ]);
            role.on(Resource::Any, &[ListCollections]);
            role.any(RESTORE).any(USER_ADMIN).on(Resource::AnyBuckets, RESTORE).named("system.js", RESTORE);
            role.database("local", RESTORE).database("config", RESTORE);
            for kept in ["system.replset", "replset.election", "replset.minvalid"] {
                role.collection("local", kept, RESTORE);
            }
            role.collection("admin", "tempusers", &[Find]).collection("admin", "temproles", &[Find]);
            role.collection("admin", "system.backup_users", RESTORE);
            role.collection("admin", "system.version", RESTORE).collection(
                "admin",
                "system.version",
                &[Find],
            );
            role.named("system.users", RESTORE).named("system.users", &[Find, Remove, Update]);
            role.collection("admin", "system.roles", &[CreateIndex]);
        }
        other => unreachable!("no built-in role {other}"),
    }
}

fn fill_root(role: &mut Draft) {
    role.inherits(&[
        ("clusterAdmin", "admin"),
        ("userAdminAnyDatabase", "admin"),
        ("dbAdminAnyDatabase", "admin"),
        ("readWriteAnyDatabase", "admin"),
        ("backup", "admin"),
        ("restore", "admin"),
        ("directShardOperations", "admin"),
    ]);
    role.on(Resource::Any, &[Validate]).cluster(&[UseTenant]);
    role.collection("config", "system.preimages", &[Find, Remove]);
    role.collection("config", "system.change_collection", &[Find, Insert, Remove, Update]);
}
