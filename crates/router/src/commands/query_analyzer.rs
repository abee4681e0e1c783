//! `configureQueryAnalyzer`: the document in `config.queryAnalyzers`, by which routers sample. It goes with its collection.

use sheaf_bson::{Binary, DocBuf, RawDoc, Value, doc};
use sheaf_cluster::first_batch;
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::command::*;
use sheaf_front::reply::Reply;
use sheaf_front::sampling::{ANALYZERS, Configure};

use super::shards;
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::route::until_fresh;

/// `{configureQueryAnalyzer: "garden.plants", mode: "full", samplesPerSecond: 5}`.
pub struct ConfigureQueryAnalyzer<'a>(Configure<'a>);

impl<'a> Command<'a, Operation<'a>> for ConfigureQueryAnalyzer<'a> {
    const NAME: &'static str = "configureQueryAnalyzer";
    const SPEC: Spec = Spec {
        concerns: Concerns::NONE,
        ..shards::spec(&[], "has a collection's queries sampled", Access::Write)
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Configure::parse(args).map(ConfigureQueryAnalyzer)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        op.blocking(|| configure(&self.0, op))
    }
}

fn configure(wanted: &Configure<'_>, op: &Operation<'_>) -> Result<Reply> {
    let (directory, go_on) = (&op.router.directory, || op.check_interrupt());
    let uuid = uuid_of(wanted, op)?;
    loop {
        go_on()?;
        let found = directory.find(ANALYZERS, &doc! { "_id": wanted.namespace }, &go_on)?;
        let found = found.first().map(DocBuf::as_raw);
        let old = Configure::of_collection(found, &uuid);
        if let Some(new) = wanted.document(old, &uuid, op.now_millis())
            && !replace(op, found, &new)?
        {
            // Somebody else was faster.
            continue;
        }
        op.router.refresh_analyzers(&go_on)?;
        return Ok(wanted.reply(old));
    }
}

/// Writes the document, unless it is not any more what was found.
fn replace(op: &Operation<'_>, found: Option<RawDoc<'_>>, new: &DocBuf) -> Result<bool> {
    let (directory, go_on) = (&op.router.directory, || op.check_interrupt());
    let Some(found) = found else {
        let insert = doc! { "insert": ANALYZERS, "documents": [new.as_raw()] };
        return match directory.write(&insert, &go_on) {
            Err(error) if error.code() == Code::DUPLICATE_KEY => Ok(false),
            done => done.map(|()| true),
        };
    };
    let change = doc! {
        "findAndModify": ANALYZERS, "query": found, "update": new.as_raw(), "writeConcern": { "w": "majority" }
    };
    let reply = directory.run("config", &change, false, &go_on)?;
    Ok(reply.as_raw().get("value").is_some_and(|value| value.as_doc().is_some()))
}

/// The collection's UUID, as its database's primary shard says.
fn uuid_of(wanted: &Configure<'_>, op: &Operation<'_>) -> Result<[u8; 16]> {
    let Configure { db, collection, namespace, .. } = wanted;
    if op.router.directory.database(db, &|| op.check_interrupt())?.is_none() {
        bail!(Code::NAMESPACE_NOT_FOUND, "Namespace {namespace} does not exist");
    }
    let list = doc! { "listCollections": 1, "filter": { "name": *collection } };
    let found = until_fresh(op, db, collection, false, |_| {
        let to = op.target(db, false)?.into();
        let answer = forward::ask(op, &to, &Body { db, body: list.as_raw() })?;
        Ok(first_batch(answer.reply()))
    })?;
    let Some(found) = found.first().map(DocBuf::as_raw) else {
        bail!(Code::NAMESPACE_NOT_FOUND, "Namespace {namespace} does not exist");
    };
    if found.get("type").and_then(|kind| kind.as_str()) == Some("view") {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Operation not supported for a view: {namespace}");
    }
    match found.get("info").and_then(|info| info.as_doc()?.get("uuid")) {
        Some(Value::Binary(Binary { bytes, .. })) if bytes.len() == 16 => {
            Ok(bytes.try_into().expect("its length was looked at"))
        }
        _ => bail!(Code::INTERNAL_ERROR, "{namespace} has no UUID"),
    }
}

/// Samples no more what goes, or gets another name: of this collection, or of all of a database.
///
/// Errors: those of the config servers.
pub fn forget(op: &Operation<'_>, filter: &DocBuf) -> Result<()> {
    let (directory, go_on) = (&op.router.directory, || op.check_interrupt());
    let found = directory.find(ANALYZERS, filter, &go_on)?;
    if found.is_empty() {
        return Ok(());
    }
    let delete = doc! { "delete": ANALYZERS, "deletes": [{ "q": filter.as_raw(), "limit": 0 }] };
    directory.write(&delete, &go_on)?;
    op.router.refresh_analyzers(&go_on)
}
