//! What an event shows of its document besides what the log says.

use sheaf_aggregate::stages::change_stream::{BeforeChange, ChangeStream, Event, FullDocument};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_query::diff::apply_diff;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{Cx, Operator, pull};
use sheaf_storage::{Uuid, View};

use crate::find;
use crate::plan::Query;
use crate::run::Reads;

/// The event with `fullDocumentBeforeChange` and `fullDocument` as the stream asks for them.
///
/// Errors: `NoMatchingDocument` if one of them is required and not known.
pub fn complete(
    stream: &ChangeStream,
    event: Event,
    view: &View,
    expired: bool,
    cx: &mut Cx<'_>,
) -> Result<DocBuf> {
    let Event { token, mut document, before, wanted, .. } = event;
    let before = before.filter(|_| !expired);
    if wanted.before {
        if before.is_none() && stream.before_change == BeforeChange::Required {
            return missing(
                "a pre-image for all update, delete and replace events, but the pre-image",
                document.as_raw(),
            );
        }
        append(&mut document, "fullDocumentBeforeChange", before.as_ref());
    }
    if wanted.after {
        let after = match stream.full_document {
            FullDocument::UpdateLookup => current(view, token.uuid, wanted.key.as_raw(), cx)?,
            _ => {
                before.as_ref().zip(wanted.delta).map(|(old, delta)| apply_diff(old.as_raw(), delta.as_raw()))
            }
        };
        if after.is_none() && stream.full_document == FullDocument::Required {
            return missing("a post-image for all update events, but the post-image", document.as_raw());
        }
        append(&mut document, "fullDocument", after.as_ref());
    }
    Ok(document)
}

fn append(document: &mut DocBuf, name: &str, value: Option<&DocBuf>) {
    document.edit(|out| {
        match value {
            Some(value) => out.append(name, value),
            None => out.append(name, Value::Null),
        };
    });
}

/// The document as it is now.
fn current(view: &View, uuid: Option<[u8; 16]>, key: RawDoc<'_>, cx: &mut Cx<'_>) -> Result<Option<DocBuf>> {
    let Some(collection) = uuid.and_then(|uuid| view.catalog().by_uuid(&Uuid::from_bytes(uuid))) else {
        return Ok(None);
    };
    let id = key.get_or_missing("_id");
    if crate::index::clustered_by_id(collection) {
        let key = collection.record_key(id)?;
        return Ok(view.get(collection, &key)?.map(|doc| DocBuf::from(doc.as_raw())));
    }
    // A capped collection finds its documents through the index.
    let filter = DocBuf::build(|out| _ = out.document("_id").append("$eq", id));
    let query = Query::filtered(Matcher::parse(filter.as_raw(), &mut ParseCx::new())?);
    let mut run = find::open(&query, collection, &Reads::at(view.clone()), cx)?;
    Ok(pull(&mut run, cx)?.then(|| DocBuf::from(run.row().document())))
}

fn missing<T>(what: &str, event: RawDoc<'_>) -> Result<T> {
    let about = DocBuf::build(|out| {
        for name in ["operationType", "ns", "clusterTime", "txnNumber"] {
            if let Some(value) = event.get(name) {
                out.append(name, value);
            }
        }
    });
    bail!(
        Code::NO_MATCHING_DOCUMENT,
        "Change stream was configured to require {what} was not found for event: {}",
        sheaf_aggregate::print_document(about.as_raw())
    )
}
