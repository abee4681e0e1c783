//! Rules about generic arguments that need nothing but the arguments.

use std::sync::atomic::Ordering;

use sheaf_errors::{Code, Result, bail};

use crate::args::Fields;
use crate::command::{Description, Transaction};
use crate::concern::ReadLevel;
use crate::front::Front;
use crate::generic::GenericArgs;
use crate::request::{ApiParams, Request};
use crate::session::TxnPart;

/// `apiVersion` and its companions.
///
/// Errors: `APIVersionError`, `APIStrictError`, 4886600, 498870.
pub fn api_version(
    front: &Front,
    command: &Description,
    generic: &GenericArgs<'_>,
    fields: &Fields<'_>,
) -> Result<ApiParams> {
    let Some(version) = generic.api_version else {
        if generic.api_strict.is_some() || generic.api_deprecation_errors.is_some() {
            bail!(4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion");
        }
        // A getMore inherits the parameters of its cursor, so it need not repeat them.
        if front.parameters.require_api_version.load(Ordering::Relaxed) && command.name != "getMore" {
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
        "collMod" => &["changeStreamPreAndPostImages", "dryRun"],
        "create" => &[
            "autoIndexId",
            "capped",
            "changeStreamPreAndPostImages",
            "flags",
            "indexOptionDefaults",
            "max",
            "recordIdsReplicated",
            "size",
            "storageEngine",
        ],
        "createIndexes" => &["collectionUUID", "ignoreUnknownIndexOptions", "returnOnStart"],
        "find" => &[
            "awaitData",
            "collectionUUID",
            "max",
            "min",
            "noCursorTimeout",
            "oplogReplay",
            "readOnce",
            "returnKey",
            "showRecordId",
            "tailable",
            "term",
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
    command: &Description,
    generic: &GenericArgs<'_>,
    fields: &Fields<'_>,
) -> Result<TxnPart> {
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
            let known = end_fields(command.name);
            if let Some((field, _)) = fields.iter().skip(1).find(|(f, _)| !known.contains(&f.key())) {
                bail!(40415, "BSON field '{}.{}' is an unknown field.", command.name, field.key());
            }
        }
        return Ok(TxnPart::Plain);
    };
    if generic.lsid.is_none() {
        bail!(Code::INVALID_OPTIONS, "Transaction number requires a session ID to also be specified");
    }
    if txn_number < 0 {
        bail!(Code::INVALID_OPTIONS, "Transaction number cannot be negative");
    }
    match generic.txn_retry_counter {
        Some(_) if generic.autocommit.is_none() => {
            bail!(Code::INVALID_OPTIONS, "Cannot specify txnRetryCounter for a retryable write")
        }
        Some(counter) if counter < 0 => bail!(Code::INVALID_OPTIONS, "txnRetryCounter cannot be negative"),
        _ => {}
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
            ("commitTransaction", None) => TxnPart::Commit,
            ("abortTransaction", None) => TxnPart::Abort,
            (_, Some(_)) => TxnPart::Start,
            (_, None) => TxnPart::Continue,
        }),
        (None, None) if command.spec.transaction == Transaction::AllowedOrRetryable => {
            Ok(TxnPart::RetryableWrite)
        }
        (None, None) => bail!(
            50768,
            "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and {} is not a retryable write command.",
            command.name
        ),
    }
}

/// A session belongs to somebody: of whom nobody knows who it is, what is said of one is not heeded. Otherwise whoever reaches the port
/// could use up all sessions that a server has room for.
pub fn session_of_nobody(request: &mut Request<'_>) {
    if request.rights.are_nobodys() {
        request.generic.lsid = None;
        request.generic.txn_number = None;
        request.part = TxnPart::Plain;
    }
}

/// That what ends a transaction stands in one. Looked at last, as MongoDB's commands find it out when they run.
///
/// Errors: 125.
pub fn within_transaction(command: &Description, part: TxnPart) -> Result<()> {
    if part == TxnPart::Plain && matches!(command.name, "commitTransaction" | "abortTransaction") {
        bail!(125, "{} must be run within a transaction", command.name);
    }
    Ok(())
}

/// Rules of commands within multi-document transactions.
///
/// Errors: `OperationNotSupportedInTransaction`, `InvalidOptions`.
pub fn in_transaction(request: &Request<'_>) -> Result<()> {
    let Request { command, db, ref generic, part, .. } = *request;
    if !part.in_transaction() {
        return Ok(());
    }
    let ends = part.ends();
    if part == TxnPart::Start && command.name == "killCursors" {
        bail!(
            Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Cannot run killCursors as the first operation in a multi-document transaction."
        );
    }
    if !ends && command.spec.transaction == Transaction::Refused {
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
    match (part, generic.read_concern) {
        (TxnPart::Start, Some(concern)) => match concern.level {
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

/// The fields that a command may have which ends a transaction, besides those of every command; they are for clusters.
pub fn end_fields(command: &str) -> &'static [&'static str] {
    match command {
        "commitTransaction" => &["recoveryToken", "commitTimestamp", "durableTimestamp"],
        _ => &["recoveryToken"],
    }
}
