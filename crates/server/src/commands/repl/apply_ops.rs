//! `applyOps`: entries of a log, done one after the other. Tools replay a dump's log by it (`mongorestore --oplogReplay`).
//!
//! As in MongoDB 8.2 it is not atomic: what was done before an entry fails stays. Entries that are commands, inserts and deletes run as
//! the commands that do the same, with their checks and rights; updates are a document's replacement or delta.

use std::sync::Arc;

use sheaf_auth::Target;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::plan::Query;
use sheaf_exec::write::{UpdateStatement, WriteCx, prepare_insert, run_update};
use sheaf_expr::ParseCx;
use sheaf_front::access::Rights;
use sheaf_front::dispatch::authorize;
use sheaf_query::update::Update;

use crate::args::{Args, check_db_name};
use crate::command::*;
use crate::commands::TABLE;
use crate::commands::crud::query::{collated_cx, parse_filter};
use crate::commands::crud::writes::{Bypass, check_writable_in, refuse_view, with_cx, with_writer};
use crate::commands::ddl::names;
use crate::commands::timeseries::{check_bucket, is_buckets};
use crate::op::Operation;
use crate::reply::Reply;

use super::entry::{Entry, check_batch, wrong_type};

/// `{applyOps: [{op: "i", ns: "garden.plants", o: {_id: 1}}, ...]}`
pub struct ApplyOps<'a> {
    body: RawDoc<'a>,
    bypass: Bypass,
}

/// Whether the operations are allowed besides the command itself is found out when all of them have been read.
fn may_apply(_: Asked<'_>, rights: &Rights) -> bool {
    rights.may(Target::Cluster, &[Action::ApplyOps])
}

impl<'a> Command<'a, Operation<'a>> for ApplyOps<'a> {
    const NAME: &'static str = "applyOps";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "does what entries of a log say",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::ByCommand(
            "cluster: applyOps; what the commands need that do the same as its entries, both insert and update for an insert and for an update; cluster: useUUID for entries with UUIDs; everything for none",
            may_apply,
        ),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let body = args.body();
        let _ = args.own_value();
        let bypass = Bypass::parse(args)?;
        args.ignore_rest();
        Ok(ApplyOps { body, bypass })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check_batch(self.body, 0)?;
        let entries = Entry::all(self.body)?;
        authorize_all(op, &entries, self.bypass.validation)?;
        check_options(self.body)?;
        let mut done = Done::default();
        let result = apply_all(op, &entries, self.bypass, &mut done);
        match result {
            Err(error) if !done.failed => Err(error),
            Err(error) => Err(error.with_extra(DocBuf::build(|out| done.write(out)).as_bytes().to_vec())),
            Ok(()) => Ok(Reply::ok().with_fields(|out| done.write(out))),
        }
    }
}

/// Options that there were once, and those that only logs have.
///
/// Errors: 6711600, 6711601, 31056, 31240, `BadValue`, `CommandNotSupported`.
fn check_options(body: RawDoc<'_>) -> Result<()> {
    let has = |name: &str| body.get(name).is_some_and(|value| !matches!(value, Value::Null));
    if has("preCondition") {
        bail!(6711600, "applyOps command no longer supports the 'preCondition' option");
    }
    if has("alwaysUpsert") {
        bail!(6711601, "applyOps command no longer supports the 'alwaysUpsert' option");
    }
    match body.get("oplogApplicationMode") {
        None | Some(Value::String("ApplyOps")) => {}
        Some(Value::String(
            mode @ ("InitialSync" | "UnstableRecovering" | "StableRecovering" | "Secondary"),
        )) => {
            bail!(Code::COMMAND_NOT_SUPPORTED, "Entries are not applied in the mode {mode}")
        }
        Some(Value::String(mode)) => bail!(
            Code::FAILED_TO_PARSE,
            "Could not parse oplogApplicationMode :: caused by :: Invalid oplog application mode provided: {mode}"
        ),
        Some(other) => bail!(
            Code::TYPE_MISMATCH,
            "Could not parse out oplogApplicationMode :: caused by :: \"oplogApplicationMode\" had the wrong type. Expected string, found {}",
            other.type_name()
        ),
    }
    if has("prepare") {
        bail!(Code::BAD_VALUE, "applyOps command can't have 'prepare' field");
    }
    if has("partialTxn") {
        bail!(31056, "applyOps command can't have 'partialTxn' field.");
    }
    if has("count") {
        bail!(31240, "applyOps command can't have 'count' field.");
    }
    Ok(())
}

/// What has been done so far.
#[derive(Default)]
struct Done {
    results: Vec<bool>,
    /// An entry has failed, so that the answer says how far it came.
    failed: bool,
}

impl Done {
    fn note(&mut self, well: bool) {
        self.results.push(well);
        self.failed |= !well;
    }

    fn write(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        out.append("applied", self.results.len() as i32);
        let mut list = out.array("results");
        self.results.iter().for_each(|well| _ = list.push(*well));
    }
}

fn apply_all(op: &Operation<'_>, entries: &[Entry<'_>], bypass: Bypass, done: &mut Done) -> Result<()> {
    for entry in entries.iter().filter(|entry| entry.kind != "n") {
        op.check_interrupt()?;
        if entry.kind != "c"
            && entry.namespace.split_once('.').is_none_or(|(db, name)| db.is_empty() || name.is_empty())
        {
            bail!(Code::INVALID_NAMESPACE, "invalid ns: {}", entry.namespace);
        }
        // Commands within a command do not come by the door that looks at a request's database.
        check_db_name(names::split(entry.namespace).0)?;
        match apply(op, entry, bypass) {
            Ok(well) => done.note(well),
            Err(error) => {
                done.note(false);
                return Err(error);
            }
        }
    }
    if done.failed {
        bail!(Code::UNKNOWN_ERROR, "applyOps had one or more errors applying ops");
    }
    Ok(())
}

/// Does what an entry says; whether it has met what it is about.
fn apply(op: &Operation<'_>, entry: &Entry<'_>, bypass: Bypass) -> Result<bool> {
    match entry.kind {
        "c" => command(op, entry, bypass).map(|()| true),
        "i" | "u" | "d" => {
            let catalog = op.catalog();
            entry.check_uuid(&catalog)?;
            let found = catalog.collection(entry.namespace);
            let Some(found) = found else {
                if entry.kind == "d" {
                    return Ok(true);
                }
                bail!(
                    Code::NAMESPACE_NOT_FOUND,
                    "cannot apply insert or update operation on a non-existent namespace {}: {}",
                    entry.namespace,
                    entry.shown()
                );
            };
            // Measurements are a view, too: entries are about buckets, whatever the commands do that bear their names.
            refuse_view(found)?;
            match entry.kind {
                "i" if is_buckets(found) => insert_bucket(op, entry, bypass),
                "i" => insert(op, entry, bypass),
                "u" => update(op, entry, bypass),
                _ => {
                    let (db, body) = entry.delete()?;
                    write_command(op, db, &body).map(|_| true)
                }
            }
        }
        other => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{other}' for field 'OplogEntryBase.op' is not a valid value."
        ),
    }
}

/// An insert of what is there already puts it in the place of that.
fn insert(op: &Operation<'_>, entry: &Entry<'_>, bypass: Bypass) -> Result<bool> {
    let (db, body) = entry.insert(bypass.validation)?;
    insert_or_replace(op, entry, bypass, write_command(op, db, &body))
}

/// A log tells of measurements by their buckets, which the command does not insert.
fn insert_bucket(op: &Operation<'_>, entry: &Entry<'_>, bypass: Bypass) -> Result<bool> {
    let document = entry.object()?;
    entry.id_of(document, "insert")?;
    let result = with_writer(op, true, |w| {
        let Some(buckets) = w.collection(entry.namespace)? else { return Ok(()) };
        check_bucket(&buckets, document)?;
        let prepared = prepare_insert(document, &crate::node::new_object_id, Timestamp(0))?;
        w.insert(&buckets, prepared.as_ref().map_or(document, |prepared| prepared.as_raw()))
    });
    insert_or_replace(op, entry, bypass, result)
}

fn insert_or_replace(
    op: &Operation<'_>,
    entry: &Entry<'_>,
    bypass: Bypass,
    inserted: Result<()>,
) -> Result<bool> {
    match inserted {
        Err(error) if error.code() == Code::DUPLICATE_KEY => {
            let document = entry.object()?;
            let id = entry.id_of(document, "insert")?;
            let update = Update::parse(Value::Document(document), &[], &mut ParseCx::new())?;
            match replace(op, entry, bypass, id, (update, false))? {
                true => Ok(true),
                // It was a unique index's.
                false => Err(error),
            }
        }
        result => result.map(|()| true),
    }
}

fn update(op: &Operation<'_>, entry: &Entry<'_>, bypass: Bypass) -> Result<bool> {
    let criteria = match entry.whole.get("o2") {
        Some(Value::Document(criteria)) => criteria,
        other => return Err(wrong_type("o2", "object", other.unwrap_or(Value::Missing))),
    };
    let id = entry.id_of(criteria, "update")?;
    let object = entry.object()?;
    let update = match (object.get("_id"), object.get("$v"), object.get("diff")) {
        (Some(_), ..) => Update::parse(Value::Document(object), &[], &mut ParseCx::new())?,
        (None, Some(version), diff) if version.as_exact_i64() == Some(2) => match diff {
            Some(Value::Document(diff)) => Update::of_delta(diff)?,
            other => bail!(
                4772601,
                "Expected 'diff' field to be an object, instead got type: {}",
                other.unwrap_or(Value::Missing).type_name()
            ),
        },
        (None, version, _) => bail!(
            4772600,
            "Expected _id field or $v:2, but got: {}",
            version.map_or_else(|| "EOO".to_owned(), |version| sheaf_bson::element_text("$v", version))
        ),
    };
    let upsert = entry.whole.get("b").is_some_and(|b| b.truthy());
    replace(op, entry, bypass, id, (update, upsert))
}

/// Changes the document with this `_id`; whether there is one.
fn replace(
    op: &Operation<'_>,
    entry: &Entry<'_>,
    bypass: Bypass,
    id: Value<'_>,
    (update, upsert): (Update, bool),
) -> Result<bool> {
    let filter = DocBuf::build(|out| _ = out.document("_id").append("$eq", id));
    with_writer(op, true, |w| {
        let Some(collection) = w.collection(entry.namespace)? else { return Ok(false) };
        refuse_view(&collection)?;
        let is_of_buckets = is_buckets(&collection);
        if !is_of_buckets {
            check_writable_in(collection.db(), collection.name())?;
        }
        let mut cx = collated_cx(op, entry.namespace, None, None)?;
        let collator = cx.collator().cloned();
        let matcher = Arc::new(parse_filter(Some(filter.as_raw()), &mut cx)?);
        let query = Query { matcher: Some(matcher), collator, ..Query::default() };
        let statement = UpdateStatement { query, update, multi: false, upsert };
        let judge = |document: RawDoc<'_>| check_bucket(&collection, document);
        let result = with_cx(op, bypass.as_logged(), |cx| {
            let cx = WriteCx { judge: if is_of_buckets { Some(&judge) } else { None }, ..cx };
            run_update(w, &cx, &collection, &statement, false)
        })?;
        Ok(result.matched > 0 || result.upserted.is_some())
    })
}

/// An entry that is a command.
fn command(op: &Operation<'_>, entry: &Entry<'_>, bypass: Bypass) -> Result<()> {
    if let Some(nested) = entry.nested()? {
        let mut done = Done::default();
        return apply_all(op, &nested, bypass, &mut done);
    }
    let (db, body, acceptable) = entry.command()?;
    match run_inner(op, db, &body) {
        Err(error) if acceptable.contains(&error.code()) => Ok(()),
        result => result.map(drop),
    }
}

/// Runs a write command of one statement.
///
/// Errors: its own, and that of the statement.
fn write_command(op: &Operation<'_>, db: &str, body: &DocBuf) -> Result<()> {
    let reply = run_inner(op, db, body)?;
    let mut bytes = (reply.elements().len() as i32 + 5).to_le_bytes().to_vec();
    bytes.extend_from_slice(reply.elements());
    bytes.push(0);
    let reply = DocBuf::from_bytes(bytes);
    let errors = reply.as_raw().get("writeErrors").and_then(|errors| errors.as_array());
    let Some(error) = errors.and_then(|errors| errors.values().next()?.as_doc()) else { return Ok(()) };
    let code = error.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(8);
    let text = error.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default();
    Err(Error::new(Code(code as i32), text))
}

/// Runs a command as a part of this one.
fn run_inner(op: &Operation<'_>, db: &str, body: &DocBuf) -> Result<Reply> {
    let (found, called) = found(body.as_raw())?;
    let request = op.request.inner(found, called, db, body.as_raw());
    let inner = Operation::new(&request, op.node);
    let mut args = Args::of_document(request.command.name, body.as_raw())?;
    let result = match TABLE.at(request.at) {
        Run::Front(run) => run(&mut args, &request),
        Run::Role(run) => run(&mut args, &inner),
    };
    op.audited.borrow_mut().append(&mut request.audited.borrow_mut());
    if let Some(position) = inner.committed.get() {
        op.note_commit(position);
    }
    result
}

fn found(body: RawDoc<'_>) -> Result<(sheaf_front::role::Found, &str)> {
    let name = body.iter().next().map_or("", |first| first.key());
    match TABLE.find(name) {
        Some(found) => Ok((found, name)),
        None => bail!(Code::FAILED_TO_PARSE, "Unrecognized command in op"),
    }
}

/// Asks of all entries whether they are allowed, before any is applied.
///
/// Errors: `Unauthorized`.
fn authorize_all(op: &Operation<'_>, entries: &[Entry<'_>], bypasses: bool) -> Result<()> {
    let ask = |db: &str, body: &DocBuf| {
        let (found, called) = found(body.as_raw())?;
        authorize::inner(&op.request.inner(found, called, db, body.as_raw()))
    };
    let may = |target: Target<'_>, actions: &[Action]| match op.rights.may(target, actions) {
        true => Ok(()),
        false => Err(authorize::refused(op.request)),
    };
    // Nothing at all, and collections that come in between others' entries, are left to who may do everything, as in MongoDB.
    let mixed = |entry: &Entry<'_>| entry.is_command(&["create", "renameCollection"]);
    if entries.is_empty() || (entries.len() > 1 && entries.iter().any(mixed)) {
        return may(Target::Any, &[Action::AnyAction]);
    }
    for entry in entries {
        if entry.has_uuid() {
            may(Target::Cluster, &[Action::UseUuid])?;
        }
        match entry.kind {
            "n" => may(Target::Cluster, &[Action::AppendOplogNote])?,
            "i" | "u" | "d" => {
                let target = Target::of_namespace(entry.namespace);
                let mut actions = match entry.kind {
                    "i" => vec![Action::Insert, Action::Update],
                    "u" => vec![Action::Update, Action::Insert],
                    _ => vec![Action::Remove],
                };
                if bypasses && entry.kind != "d" {
                    actions.push(Action::BypassDocumentValidation);
                }
                may(target, &actions)?;
            }
            "c" => match entry.nested()? {
                Some(nested) => authorize_all(op, &nested, bypasses)?,
                None => {
                    let (db, body, _) = entry.command()?;
                    ask(db, &body)?;
                }
            },
            _ => {}
        }
    }
    Ok(())
}
