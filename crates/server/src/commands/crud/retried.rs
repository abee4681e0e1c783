//! What a `findAndModify` is answered with that a session has run before.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// In what is on record of an update: which document its `value` is.
const IMAGE: &str = "image";

/// What the retried command asks for.
pub struct Asked {
    pub remove: bool,
    pub upsert: bool,
    pub new: bool,
}

/// What is kept of an answer to a command that has updated a document.
pub fn of_update(answer: DocBuf, new: bool) -> DocBuf {
    answer.with(IMAGE, if new { "after" } else { "before" })
}

/// The answer, from what is on record of the first attempt. It fits only who asks for the same: one document is kept, not both.
///
/// Errors: 40606, 40608, 40611, 40612; `IncompleteTransactionHistory` where another command had the statement's number.
pub fn answer(recorded: RawDoc<'_>, asked: &Asked) -> Result<DocBuf> {
    let Some(Value::Document(last)) = recorded.get("lastErrorObject") else {
        bail!(
            Code::INCOMPLETE_TRANSACTION_HISTORY,
            "the statement that findAndModify retries was another command's: no document is on record for it"
        );
    };
    let image = recorded.get(IMAGE).and_then(|image| image.as_str());
    let other =
        "findAndModify retry request is not compatible with previous write in the transaction of type:";
    match (last.get("updatedExisting"), image) {
        (None, _) if !asked.remove => bail!(40606, "{other} d"),
        (Some(Value::Bool(false)), _) if !asked.upsert => bail!(40608, "{other} i"),
        (_, Some("before")) if asked.new => bail!(
            40611,
            "findAndModify retry request wants the document after update returned, but only before update document is stored"
        ),
        (_, Some("after")) if !asked.new => bail!(
            40612,
            "findAndModify retry request wants the document before update returned, but only after update document is stored"
        ),
        _ => {}
    }
    Ok(DocBuf::build(|out| {
        for field in recorded.iter().filter(|field| field.key() != IMAGE) {
            out.append_element(field);
        }
    }))
}
