//! Views on sharded collections: what a shard answers that is asked for one.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};

use crate::op::Operation;

/// What a view stands on.
pub struct View {
    /// The collection below, without its database.
    pub collection: String,
    /// What the view does to its documents.
    pub stages: ArrayBuf,
    /// The view itself, "db.view".
    pub namespace: String,
    /// How it compares strings, where that has to be said.
    collation: Option<DocBuf>,
}

/// The view that an error tells of.
pub fn resolved(error: &Error) -> Option<View> {
    if error.code() != Code::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD {
        return None;
    }
    let told = RawDoc::new(error.extra()?);
    let view = told.get("resolvedView")?.as_doc()?;
    let (_, collection) = view.get("ns")?.as_str()?.split_once('.')?;
    let stages = ArrayBuf::of(view.get("pipeline")?.as_array()?.values());
    let namespace = told.get("view")?.as_str()?.to_owned();
    let collation = view.get("collation").and_then(|collation| collation.as_doc()).map(DocBuf::from);
    Some(View { collection: collection.to_owned(), stages, namespace, collation })
}

/// The view of this name, if the error tells of that.
pub fn view_named(op: &Operation<'_>, name: &str, error: Error) -> Result<View> {
    match resolved(&error).filter(|view| view.namespace == op.namespace(name)) {
        Some(view) => Ok(view),
        None => Err(error),
    }
}

/// The `aggregate` command that does this on what the view stands on: the operation's own, with other stages and without fields that
/// are no pipeline's.
pub fn command(op: &Operation<'_>, view: &View, stages: &[DocBuf]) -> DocBuf {
    let all = ArrayBuf::build(|out| {
        view.stages.as_raw().values().for_each(|stage| _ = out.push(stage));
        stages.iter().for_each(|stage| _ = out.push(stage));
    });
    let stays = |name: &str| {
        name.starts_with('$')
            || matches!(
                name,
                "let"
                    | "collation"
                    | "hint"
                    | "allowDiskUse"
                    | "lsid"
                    | "txnNumber"
                    | "autocommit"
                    | "startTransaction"
                    | "readConcern"
                    | "writeConcern"
                    | "maxTimeMS"
                    | "comment"
                    | "apiVersion"
                    | "apiStrict"
                    | "bypassDocumentValidation"
                    | "explain"
            )
    };
    DocBuf::build(|out| {
        out.append("aggregate", view.collection.as_str());
        out.append("pipeline", Value::Array(all.as_raw()));
        drop(out.document("cursor"));
        for field in op.body().iter().filter(|field| stays(field.key())) {
            out.append_element(field);
        }
        // The shard has compared the one that the command names with it.
        let says = op.body().get("collation").is_some();
        if let Some(collation) = view.collation.as_ref().filter(|_| !says) {
            out.append("collation", collation.as_raw());
        }
    })
}
