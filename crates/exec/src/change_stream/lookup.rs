//! What an event shows of its document besides what the log says.

use sheaf_aggregate::stages::change_stream::{BeforeChange, ChangeStream, Event, FullDocument};
use sheaf_aggregate::{Database, Namespace};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_query::diff::apply_diff;
use sheaf_storage::Uuid;

use crate::database::Db;

/// The event with `fullDocumentBeforeChange` and `fullDocument` as the stream asks for them.
///
/// Errors: `NoMatchingDocument` if one of them is required and not known.
pub fn complete(stream: &ChangeStream, event: Event, db: &Db, expired: bool) -> Result<DocBuf> {
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
            FullDocument::UpdateLookup => current(db, token.uuid, wanted.key.as_raw())?,
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
fn current(db: &Db, uuid: Option<[u8; 16]>, key: RawDoc<'_>) -> Result<Option<DocBuf>> {
    let Some(collection) = uuid.and_then(|uuid| db.view().catalog().by_uuid(&Uuid::from_bytes(uuid))) else {
        return Ok(None);
    };
    let namespace = Namespace::new(collection.db(), collection.name());
    Ok(db.find_equal(&namespace, "_id", key.get_or_missing("_id"))?.into_iter().next())
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
