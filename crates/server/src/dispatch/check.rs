//! Rules about generic arguments that need nothing but the arguments.

use std::sync::atomic::Ordering;

use sheaf_bson::Timestamp;
use sheaf_errors::{Code, Result, bail};

use crate::args::Fields;
use crate::command::Registered;
use crate::concern::{ReadConcern, ReadLevel};
use crate::generic::GenericArgs;
use crate::node::Node;
use crate::op::ApiParams;
use crate::session::Role;

/// `apiVersion` and its companions.
///
/// Errors: `APIVersionError`, `APIStrictError`, 4886600, 498870.
pub fn api_version(
    node: &Node,
    command: &Registered,
    generic: &GenericArgs<'_>,
    fields: &Fields<'_>,
) -> Result<ApiParams> {
    let Some(version) = generic.api_version else {
        if generic.api_strict.is_some() || generic.api_deprecation_errors.is_some() {
            bail!(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion");
        }
        // A getMore inherits the parameters of its cursor, so it need not repeat them.
        if node.parameters.require_api_version.load(Ordering::Relaxed) && command.name != "getMore" {
            bail!(
                498870,
                "The apiVersion parameter is required, please configure your MongoClient's API version"
            );
        }
        return Ok(ApiParams::default());
    };
    if version != "1" {
        bail!(Code::API_VERSION_ERROR, "API version must be \"1\"");
    }
    let strict = generic.api_strict.unwrap_or(false);
    if strict && !command.spec.api_v1 {
        bail!(
            Code::API_STRICT_ERROR,
            "Provided apiStrict:true, but the command {} is not in API Version 1. Information on supported commands and migrations in API Version 1 can be found at https://dochub.mongodb.org/core/manual-versioned-api",
            command.name
        );
    }
    if strict {
        let unstable = unstable_fields(command.name);
        if let Some((field, _)) = fields.iter().skip(1).find(|(field, _)| unstable.contains(&field.key())) {
            bail!(
                Code::API_STRICT_ERROR,
                "BSON field '{}.{}' is not allowed with apiStrict:true.",
                command.name,
                field.key()
            );
        }
    }
    Ok(ApiParams { v1: true, strict, deprecation_errors: generic.api_deprecation_errors.unwrap_or(false) })
}

/// Fields that API version 1 promises nothing about.
fn unstable_fields(command: &str) -> &'static [&'static str] {
    match command {
        "aggregate" => &["collectionUUID", "exchange", "explain"],
        "create" => &["autoIndexId", "capped", "indexOptionDefaults", "max", "size", "storageEngine"],
        "find" => &[
            "awaitData",
            "collectionUUID",
            "max",
            "min",
            "noCursorTimeout",
            "oplogReplay",
            "returnKey",
            "showRecordId",
            "tailable",
        ],
        "delete" | "findAndModify" | "insert" | "update" => &["collectionUUID"],
        _ => &[],
    }
}

/// What the session arguments make of the operation.
///
/// Errors: `InvalidOptions` for combinations that mean nothing, 50768 for a `txnNumber` on a
/// command that is no retryable write.
pub fn session_arguments(
    command: &Registered,
    generic: &GenericArgs<'_>,
    fields: &Fields<'_>,
) -> Result<Role> {
    let Some(txn_number) = generic.txn_number else {
        if generic.autocommit.is_some() {
            bail!(
                Code::INVALID_OPTIONS,
                "'autocommit' field requires a transaction number to also be specified"
            );
        }
        if generic.start_transaction.is_some() {
            bail!(
                Code::INVALID_OPTIONS,
                "'startTransaction' field requires a transaction number to also be specified"
            );
        }
        if matches!(command.name, "commitTransaction" | "abortTransaction") {
            let known = crate::commands::session::transaction::end_fields(command.name);
            if let Some((field, _)) = fields.iter().skip(1).find(|(f, _)| !known.contains(&f.key())) {
                bail!(40415, "BSON field '{}.{}' is an unknown field.", command.name, field.key());
            }
        }
        return Ok(Role::Plain);
    };
    if generic.lsid.is_none() {
        bail!(Code::INVALID_OPTIONS, "Transaction number requires a session ID to also be specified");
    }
    if txn_number < 0 {
        bail!(Code::INVALID_OPTIONS, "Transaction number cannot be negative");
    }
    match (generic.autocommit, generic.start_transaction) {
        (Some(true), _) => {
            bail!(Code::INVALID_OPTIONS, "Specifying autocommit=true is not allowed.")
        }
        (None, Some(_)) => bail!(
            Code::INVALID_OPTIONS,
            "'startTransaction' field requires 'autocommit' field to also be specified"
        ),
        (Some(false), Some(false)) => {
            bail!(Code::INVALID_OPTIONS, "Specifying startTransaction=false is not allowed.")
        }
        (Some(false), start) => Ok(match (command.name, start) {
            ("commitTransaction", None) => Role::Commit,
            ("abortTransaction", None) => Role::Abort,
            (_, Some(_)) => Role::Start,
            (_, None) => Role::Continue,
        }),
        (None, None) if command.spec.retryable => Ok(Role::RetryableWrite),
        (None, None) => bail!(
            50768,
            "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and {} is not a retryable write command.",
            command.name
        ),
    }
}

/// That what ends a transaction stands in one. Looked at last, as MongoDB's commands find it out when they run.
///
/// Errors: 125.
pub fn within_transaction(command: &Registered, role: Role) -> Result<()> {
    if role == Role::Plain && matches!(command.name, "commitTransaction" | "abortTransaction") {
        bail!(125, "{} must be run within a transaction", command.name);
    }
    Ok(())
}

/// Rules of commands within multi-document transactions.
///
/// Errors: `OperationNotSupportedInTransaction`, `InvalidOptions`.
pub fn in_transaction(command: &Registered, db: &str, generic: &GenericArgs<'_>, role: Role) -> Result<()> {
    if !role.in_transaction() {
        return Ok(());
    }
    let ends = matches!(role, Role::Commit | Role::Abort);
    if !ends && !command.spec.in_transaction {
        bail!(
            Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Cannot run '{}' in a multi-document transaction.",
            command.name
        );
    }
    // A bulkWrite names its own databases, and its cursor is where it was opened.
    let elsewhere = matches!(command.name, "bulkWrite" | "getMore" | "killCursors");
    if !ends && !elsewhere && matches!(db, "admin" | "config" | "local") {
        bail!(
            Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Cannot run command against the '{db}' database in a transaction."
        );
    }
    if !ends && generic.write_concern.is_some() {
        bail!(Code::INVALID_OPTIONS, "writeConcern is not allowed within a multi-statement transaction");
    }
    match (role, generic.read_concern) {
        (Role::Start, Some(concern)) => match concern.level {
            None | Some(ReadLevel::Local | ReadLevel::Majority | ReadLevel::Snapshot) => Ok(()),
            Some(_) => bail!(
                Code::INVALID_OPTIONS,
                "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a transaction"
            ),
        },
        (_, Some(_)) => {
            bail!(Code::INVALID_OPTIONS, "Only the first command in a transaction may specify a readConcern")
        }
        (_, None) => Ok(()),
    }
}

/// How far ahead of the wall clock a cluster time may be (`maxAcceptableLogicalClockDriftSecs`): a year.
const DRIFT_SECS_MAX: u64 = 365 * 24 * 60 * 60;

/// Takes note of the cluster time that a client has seen: what is written from now on is later. One that this member knows
/// is no news, however far its clock is behind by now (a primary's clock was wrong for a moment): refused, the set would
/// answer no driver any more.
///
/// Errors: `ClusterTimeFailsRateLimiter`.
pub fn cluster_time_seen(node: &Node, generic: &GenericArgs<'_>) -> Result<()> {
    let (Some(replica), Some(time)) = (node.replica(), generic.cluster_time) else { return Ok(()) };
    let wall_secs = node.clock.now_millis().max(0) as u64 / 1000;
    let secs = time.0 >> 32;
    if secs > wall_secs + DRIFT_SECS_MAX && time > replica.cluster_time() {
        bail!(
            Code::CLUSTER_TIME_FAILS_RATE_LIMITER,
            "New cluster time, {secs}, is too far from this node's wall clock time, {wall_secs}."
        );
    }
    replica.observe_time(time);
    Ok(())
}

fn time_text(time: Timestamp) -> String {
    format!("{{ ts: Timestamp({}, {}) }}", time.0 >> 32, time.0 as u32)
}

/// Times of the cluster in a read concern: nobody can have seen one that this member has not been told of.
fn cluster_time(node: &Node, concern: &ReadConcern) -> Result<()> {
    let (name, wanted) = match (concern.after_cluster_time, concern.at_cluster_time) {
        (Some(after), _) => ("afterClusterTime", after),
        (None, Some(at)) => ("atClusterTime", at),
        (None, None) => return Ok(()),
    };
    let Some(replica) = node.replica() else {
        bail!(Code::ILLEGAL_OPERATION, "Cannot specify {name} readConcern without replication enabled")
    };
    if wanted.0 == 0 {
        bail!(Code::INVALID_OPTIONS, "{name} cannot be a null timestamp");
    }
    let known = replica.cluster_time();
    if wanted > known {
        bail!(
            Code::INVALID_OPTIONS,
            "readConcern {name} value must not be greater than the current clusterTime. Requested clusterTime: {}; current clusterTime: {}",
            time_text(wanted),
            time_text(known)
        );
    }
    Ok(())
}

/// Which commands take concerns, and which concerns one node can satisfy.
///
/// Errors: `InvalidOptions`, `BadValue`, `NotAReplicaSet`.
pub fn concerns(node: &Node, command: &Registered, generic: &GenericArgs<'_>, role: Role) -> Result<()> {
    if let Some(concern) = generic.write_concern {
        if !command.spec.write_concern {
            bail!(Code::INVALID_OPTIONS, "Command does not support writeConcern");
        }
        if node.options.set_name.is_none() {
            concern.check_standalone()?;
        }
        if concern.journal == Some(true) && !node.options.journal {
            bail!(Code::BAD_VALUE, "cannot use 'j' option when a host does not have journaling enabled");
        }
    }
    let Some(concern) = generic.read_concern else { return Ok(()) };
    let level = concern.level.unwrap_or(ReadLevel::Local);
    if !command.spec.read_concern && !role.in_transaction() && level != ReadLevel::Local {
        bail!(
            Code::INVALID_OPTIONS,
            "Command {} does not support {{ readConcern: {{ level: \"{}\", provenance: \"clientSupplied\" }} }} :: caused by :: read concern not supported",
            command.name,
            level.name()
        );
    }
    // A cursor takes a new snapshot for each batch, so only a transaction keeps what `snapshot` promises.
    let of_one_moment = level == ReadLevel::Snapshot && !role.in_transaction();
    let needs_set = level == ReadLevel::Linearizable || of_one_moment;
    if needs_set && node.options.set_name.is_none() {
        bail!(Code::NOT_A_REPLICA_SET, "node needs to be a replica set member to use read concern");
    }
    if of_one_moment && !matches!(command.name, "find" | "aggregate" | "distinct" | "getMore") {
        bail!(
            Code::INVALID_OPTIONS,
            "Command {} does not support {{ readConcern: {{ level: \"snapshot\", provenance: \"clientSupplied\" }} }} :: caused by :: read concern not supported",
            command.name
        );
    }
    if concern.after_cluster_time.is_some() && concern.at_cluster_time.is_some() {
        bail!(
            Code::INVALID_OPTIONS,
            "Specifying a timestamp for readConcern snapshot in a causally consistent session is not allowed."
        );
    }
    cluster_time(node, &concern)?;
    if concern.at_cluster_time.is_some() && level != ReadLevel::Snapshot {
        bail!(Code::INVALID_OPTIONS, "atClusterTime field can be set only if level is equal to snapshot");
    }
    Ok(())
}
