//! `configureQueryAnalyzer`: the document in `config.queryAnalyzers`, by which routers sample. It goes with its collection.

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::command::*;
use sheaf_front::reply::Reply;
use sheaf_front::sampling::{ANALYZERS, Configure};

use super::shards;
use crate::op::Operation;
use crate::sampling::Named;

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

/// The collection's UUID.
fn uuid_of(wanted: &Configure<'_>, op: &Operation<'_>) -> Result<[u8; 16]> {
    let Configure { db, collection, namespace, .. } = wanted;
    match op.router.named(db, collection, &|| op.check_interrupt())? {
        Named::Collection { uuid, .. } => Ok(uuid),
        Named::View { .. } => {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Operation not supported for a view: {namespace}")
        }
        Named::Nothing => bail!(Code::NAMESPACE_NOT_FOUND, "Namespace {namespace} does not exist"),
    }
}
