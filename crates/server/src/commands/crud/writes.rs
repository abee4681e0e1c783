//! What write commands share: the writer, implicit creation, retried statements, `writeErrors`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::write::{Seen, WriteCx, ends_command};
use sheaf_front::session::statements::StatementIds;
use sheaf_storage::{Collection, CreateCollection, Uuid, Write};
use sheaf_timeseries::{BUCKETS_PREFIX, split_buckets};

use crate::args::{Args, Flag, Loose};
use crate::audited::Creation;
use crate::commands::crud::witness::Witness;
use crate::commands::ddl::names;
use crate::commands::timeseries::{no_buckets, says_measured};
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::{Guarded, ShardServer};

/// What a statement costs at least, in the meter's units.
const STATEMENT_COST: u32 = 64;

/// What a write is asked to leave out.
#[derive(Clone, Copy)]
pub struct Bypass {
    /// `bypassDocumentValidation`.
    pub validation: bool,
    /// `bypassEmptyTsReplacement`: empty timestamps are stored as they came.
    empty_timestamps: bool,
}

impl Bypass {
    /// Reads the two fields.
    pub fn parse(args: &mut Args<'_>) -> Result<Self> {
        let validation = args.optional::<Loose>("bypassDocumentValidation")?.is_some_and(|flag| flag.0);
        let empty_timestamps = args.optional::<Flag>("bypassEmptyTsReplacement")?.is_some_and(|flag| flag.0);
        Ok(Bypass { validation, empty_timestamps })
    }

    /// The same for documents that stand in a log, whose timestamps are what they are.
    pub fn as_logged(self) -> Self {
        Bypass { empty_timestamps: true, ..self }
    }
}

/// The fields that insert, update and delete share.
pub struct WriteFields {
    ordered: bool,
    /// What the command leaves out.
    pub bypass: Bypass,
    /// By what numbers a session knows the statements.
    pub statements: StatementIds,
    /// `collectionUUID`
    uuid: Option<Uuid>,
}

impl WriteFields {
    /// Reads them.
    pub fn parse(args: &mut Args<'_>) -> Result<Self> {
        let ordered = args.optional::<bool>("ordered")?.unwrap_or(true);
        let bypass = Bypass::parse(args)?;
        let statements = StatementIds::parse(args)?;
        let uuid = args.optional("collectionUUID")?;
        args.optional::<Flag>("isTimeseriesNamespace")?;
        encryption_information(args, "encryptionInformation")?;
        Ok(WriteFields { ordered, bypass, statements, uuid })
    }

    /// The answer to a client that means another collection: an error of the first statement.
    pub fn mismatch(&self, op: &Operation<'_>, namespace: &str) -> Result<Option<Reply>> {
        if self.uuid.is_none() {
            return Ok(None);
        }
        let Err(error) = names::check_uuid(op.view()?.catalog(), namespace, self.uuid) else {
            return Ok(None);
        };
        let mut reply = Reply::ok().with("n", 0);
        StatementOutcomes { errors: vec![(0, error)], retried: Vec::new() }.write(&mut reply);
        Ok(Some(reply))
    }

    /// Whether the collection that is written to is the one that the client means; another may have taken its name.
    ///
    /// Errors: `CollectionUUIDMismatch`.
    pub fn check_collection(&self, op: &Operation<'_>, collection: &Collection) -> Result<()> {
        match self.uuid {
            Some(uuid) if uuid != collection.uuid => {
                names::check_uuid(&op.catalog(), &collection.namespace, self.uuid)
            }
            _ => Ok(()),
        }
    }
}

/// Checks what a client with encrypted fields says of them; this server's part in that is to keep what it writes.
///
/// Errors: 40414, 40415, `TypeMismatch`.
pub fn encryption_information(args: &mut Args<'_>, place: &'static str) -> Result<()> {
    let Some(information) = args.optional::<RawDoc<'_>>("encryptionInformation")? else { return Ok(()) };
    let mut parts = Args::of_part(place, information)?;
    parts.optional::<i64>("type")?;
    parts.optional::<RawDoc<'_>>("deleteTokens")?;
    parts.required::<RawDoc<'_>>("schema")?;
    parts.optional::<bool>("crudProcessed")?;
    parts.finish()
}

/// Refuses namespaces that clients may not write.
///
/// Errors: `InvalidNamespace`.
pub fn check_writable(op: &Operation<'_>, collection: &str) -> Result<()> {
    if collection.starts_with(BUCKETS_PREFIX) && says_measured(op) {
        return Ok(());
    }
    check_writable_in(op.db(), collection)
}

/// The same for a collection of this database.
///
/// Errors: `InvalidNamespace`; `BadValue` for `.system.` within.
pub fn check_writable_in(db: &str, collection: &str) -> Result<()> {
    // Who takes buckets for a collection of its own could write what is no bucket.
    if collection.starts_with(BUCKETS_PREFIX) {
        bail!(Code::INVALID_NAMESPACE, "cannot write to {db}.{collection}");
    }
    names::check_written_name(db, collection)
}

/// Runs `work` with the operation's writer: the transaction, or a unit of plain writes that is committed
/// afterwards whatever became of single statements.
///
/// `short` says that the statements touch single records that they know by `_id`.
pub fn with_writer<T>(
    op: &Operation<'_>,
    short: bool,
    work: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<T> {
    if op.front.audit.is_some() {
        return with_own_writer(op, short, |w| work(&mut Witness::new(op, w)));
    }
    with_own_writer(op, short, work)
}

/// The same for what the audit log is told in another way.
pub fn with_own_writer<T>(
    op: &Operation<'_>,
    short: bool,
    work: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<T> {
    if short { write_with(op, work) } else { op.blocking(|| write_with(op, work)) }
}

fn write_with<T>(op: &Operation<'_>, work: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    let shard = op.shard();
    // A collection that has to be made is asked for within: the unit holds nothing then, as its first statement makes it.
    if shard.is_some_and(ShardServer::has_dropped)
        && let Some(namespace) = op.named_namespace()
    {
        op.ask_homes(std::iter::once((&*namespace, false)))?;
    }
    if let Some(mut transaction) = op.transaction() {
        return match shard {
            Some(shard) => work(&mut Guarded::new(op, shard, &mut *transaction)),
            None => work(&mut *transaction),
        };
    }
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let before = op.last_applied();
    let mut unit = op.engine().write(&interrupt);
    let result = match shard {
        Some(shard) => work(&mut Guarded::new(op, shard, &mut unit)),
        None => work(&mut unit),
    };
    let committed = unit.commit();
    if let Ok(position) = &committed {
        op.note_commit(*position);
        if *position > before {
            op.after_retryable_write();
        }
    }
    let value = result?;
    committed?;
    Ok(value)
}

/// The surroundings of statements.
pub fn with_cx<T>(op: &Operation<'_>, bypass: Bypass, work: impl FnOnce(WriteCx<'_>) -> T) -> T {
    let stop = op.interrupter();
    let interrupt = || stop.check();
    let now_millis = op.now_millis();
    let ownership = op.ownership();
    let seen = Seen::default();
    work(WriteCx {
        interrupt: &interrupt,
        now_millis,
        timestamp: Timestamp::new((now_millis / 1000) as u32, 1),
        new_object_id: &crate::node::new_object_id,
        bypass_validation: bypass.validation,
        report: crate::log::events::failed_validation,
        keep_empty_timestamps: bypass.empty_timestamps,
        ownership: ownership.as_ref(),
        before_change: None,
        judge: None,
        stands_for: None,
        refuses_scans: op.front.parameters.no_table_scan.load(Ordering::Relaxed),
        seen: &seen,
    })
}

/// The collection to write to, made if it does not exist.
///
/// Errors: `CommandNotSupportedOnView`.
pub fn collection_for_write(
    op: &Operation<'_>,
    w: &mut dyn Write,
    namespace: &str,
) -> Result<Arc<Collection>> {
    let of_measurements = says_measured(op) && split_buckets(namespace).is_some();
    // Another client may create (or drop) it in between.
    for _ in 0..10 {
        if let Some(collection) = w.collection(namespace)? {
            refuse_view(&collection)?;
            return Ok(collection);
        }
        if of_measurements {
            return Err(no_buckets(namespace));
        }
        let creation = Creation::of(op, namespace)?;
        match w.create_collection(namespace, CreateCollection::default()) {
            Ok(()) => {
                if let Some(creation) = creation {
                    creation.done(op, namespace, None);
                }
            }
            Err(error) if error.code() == Code::NAMESPACE_EXISTS => {}
            Err(error) => return Err(error),
        }
    }
    bail!(Code::WRITE_CONFLICT, "Collection {namespace} kept changing while it was written to")
}

/// A view cannot be written.
pub fn refuse_view(collection: &Collection) -> Result<()> {
    if collection.is_view() {
        bail!(
            Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
            "Namespace {} is a view, not a collection",
            collection.namespace
        );
    }
    Ok(())
}

/// Whether the router of the request has to look again where documents or databases are.
pub fn is_stale(error: &Error) -> bool {
    matches!(error.code(), Code::STALE_CONFIG | Code::STALE_DB_VERSION)
}

/// When the messages of errors have come to so many bytes, those of further ones are left out: a message may repeat a key of any
/// length, and a batch has many statements.
const TERSE_FROM_BYTES: usize = 1024 * 1024;

/// So many errors have their message in any case.
const TERSE_FROM_ERRORS: usize = 2;

/// What became of the statements so far.
#[derive(Default)]
pub struct StatementOutcomes {
    errors: Vec<(usize, Error)>,
    retried: Vec<i32>,
}

impl StatementOutcomes {
    /// Runs the statements in turn. `run` executes one; `again` takes in the recorded answer of one that a
    /// retried command has executed before. An ordered command stops at the first error.
    pub fn each<T>(
        op: &Operation<'_>,
        fields: &WriteFields,
        statements: impl Iterator<Item = T>,
        w: &mut dyn Write,
        mut run: impl FnMut(&mut dyn Write, usize, T) -> Result<Option<DocBuf>>,
        mut again: impl FnMut(usize, &DocBuf),
    ) -> Result<StatementOutcomes> {
        let mut outcome = StatementOutcomes::default();
        let retryable = op.records_statements();
        for (at, statement) in statements.enumerate() {
            sheaf_meter::tick(STATEMENT_COST)?;
            if retryable {
                let id = fields.statements.at(at);
                if let Some(recorded) = op.executed_statement(id)? {
                    again(at, &recorded);
                    outcome.retried.push(id);
                    op.note_newest_commit();
                    continue;
                }
                w.statement(op.statement(id, None));
                op.before_retryable_write()?;
            }
            match run(w, at, statement) {
                Ok(_) => {}
                // What is stale is so for the statements after it, too: the router looks again and sends the rest.
                Err(error) if is_stale(&error) => {
                    if at == 0 || op.in_transaction() {
                        return Err(error);
                    }
                    outcome.errors.push((at, error));
                    break;
                }
                // In a transaction the first error ends it, whichever kind it is of.
                Err(error) if ends_command(&error) => return Err(error),
                Err(error) => {
                    outcome.errors.push((at, error));
                    if fields.ordered || op.in_transaction() {
                        break;
                    }
                }
            }
        }
        if retryable {
            w.statement(None);
        }
        Ok(outcome)
    }

    /// The error of the last statement that failed.
    pub fn last_error(&self) -> Option<&Error> {
        self.errors.last().map(|(_, error)| error)
    }

    /// Writes `writeErrors` and `retriedStmtIds`.
    pub fn write(&self, reply: &mut Reply) {
        if !self.errors.is_empty() {
            reply.fill(|doc| write_errors(doc, &self.errors));
        }
        if !self.retried.is_empty() {
            reply.fill(|doc| {
                let mut list = doc.array("retriedStmtIds");
                for id in &self.retried {
                    list.push(*id);
                }
            });
        }
    }
}

fn write_errors(doc: &mut sheaf_bson::DocWriter<'_, Vec<u8>>, errors: &[(usize, Error)]) {
    let mut list = doc.array("writeErrors");
    let mut told = 0;
    for (at, (index, error)) in errors.iter().enumerate() {
        let is_terse = told >= TERSE_FROM_BYTES && at >= TERSE_FROM_ERRORS;
        let message = if is_terse { "" } else { error.message() };
        told += message.len();
        write_error(&mut list.document(), *index, error, message);
    }
}

/// One entry of `writeErrors`.
fn write_error(out: &mut sheaf_bson::DocWriter<'_, Vec<u8>>, index: usize, error: &Error, message: &str) {
    out.append("index", index as i32);
    out.append("code", error.code().0);
    if let Some(extra) = error.extra() {
        out.append_all(sheaf_bson::RawDoc::new(extra));
    }
    if let Some(info) = error.err_info() {
        out.append("errInfo", sheaf_bson::RawDoc::new(info));
    }
    out.append("errmsg", message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_left_out_when_they_have_come_to_a_megabyte() {
        let lengths = |messages: &[usize]| -> Vec<usize> {
            let error = |length: usize| Error::new(Code::DUPLICATE_KEY, "x".repeat(length));
            let errors: Vec<_> =
                messages.iter().enumerate().map(|(at, length)| (at, error(*length))).collect();
            let reply = DocBuf::build(|doc| write_errors(doc, &errors));
            let list = reply.as_raw().get("writeErrors").and_then(|list| list.as_array()).unwrap();
            let message = |entry: sheaf_bson::Value<'_>| {
                let entry = entry.as_doc().unwrap();
                assert_eq!(entry.get("code").and_then(|code| code.as_exact_i64()), Some(11000));
                entry.get("errmsg").and_then(|text| text.as_str()).unwrap().len()
            };
            list.values().map(message).collect()
        };
        let half = TERSE_FROM_BYTES / 2;
        assert_eq!(lengths(&[half, half - 1, 7, 7]), [half, half - 1, 7, 0]);
        // Two errors say what they are, however long that is.
        let whole = TERSE_FROM_BYTES;
        assert_eq!(lengths(&[whole, whole, 7]), [whole, whole, 0]);
        assert_eq!(lengths(&[1, 2, 3]), [1, 2, 3]);
    }
}
