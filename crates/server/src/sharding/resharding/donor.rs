//! The donor of a collection that gets another key or place: it tells what has changed since a recipient began to copy it.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::moves::ChangeOf;
use sheaf_storage::{Interrupt, Uuid};

use crate::node::Node;
use crate::sharding::marks::uuid_in;
use crate::sharding::moves::batch::Batch;
use crate::sharding::moves::notes::{For, Noted};
use crate::sharding::moves::{Moves, not_primary};
use crate::sharding::moving::Part;
use crate::sharding::rows;

fn moves_of(node: &Node) -> Result<&Arc<Moves>> {
    match node.moves() {
        Some(moves) => Ok(moves),
        None => {
            bail!(Code::NO_SHARDING_ENABLED, "Cannot accept sharding commands if not started with --shardsvr")
        }
    }
}

fn noted_for(body: RawDoc<'_>) -> Result<For> {
    match (uuid_in(body, "id"), body.get("recipient").and_then(|name| name.as_str())) {
        (Some(id), Some(recipient)) => Ok((id, recipient.to_owned())),
        _ => bail!(Code::FAILED_TO_PARSE, "an internal command names no operation or no recipient"),
    }
}

/// [`name::BEGIN_NOTES`](crate::sharding::participants::name::BEGIN_NOTES): what changes from now on is noted, under the name that is
/// given.
pub fn begin_notes(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let text = |name: &str| body.get(name).and_then(|text| text.as_str()).unwrap_or_default().to_owned();
    let (to, Some(collection)) = (noted_for(body)?, uuid_in(body, "uuid").map(Uuid::from_bytes)) else {
        bail!(Code::FAILED_TO_PARSE, "an internal command names no collection");
    };
    let of = Noted { collection, namespace: text("of"), command: text("command") };
    let (term, number) = moves_of(node)?.begin_notes(to, of, go_on)?;
    Ok(doc! { "term": term as i64, "number": number })
}

/// [`name::NOTED`](crate::sharding::participants::name::NOTED): what has changed, as it is now; `state: "refused"`, where nothing is noted
/// under this name.
pub fn changes(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let moves = moves_of(node)?;
    moves.take_office()?;
    let number = |name: &str| body.get(name).and_then(|number| number.as_exact_i64()).unwrap_or(0);
    let (to, name, received) =
        (noted_for(body)?, (number("term") as u64, number("number")), number("received") as u64);
    let Some((changes, left, newest)) = moves.noted(&to, name, received) else {
        return Ok(doc! { "state": "refused" });
    };
    let part = Part::of(node, body)?;
    let mut batch = Batch::default();
    let (mut upto, mut count, mut sessions) = (received, 0, false);
    for (number, change) in &changes {
        let fits = match change {
            ChangeOf::Document(key) => match part.view.get(&part.collection, key)? {
                Some(document) if part.holds(document.as_raw())? => batch.take(document.as_raw()),
                _ => batch.take_gone(key),
            },
            ChangeOf::Session(lsid) => {
                let statements =
                    node.engine().session_statements(RawDoc::new(lsid), &part.collection.namespace)?;
                sessions |= !statements.is_empty();
                batch.take_statements(&statements)
            }
        };
        if !fits {
            break;
        }
        (upto, count) = (*number, count + 1);
    }
    if sessions {
        // They stay on the recipient, whatever comes of the operation, and must not be of what this donor may lose.
        let Some(term) = moves.term() else { return Err(not_primary()) };
        if let Some(replica) = node.replica() {
            rows::until_majority(replica, node.engine().last_applied(), term, go_on)?;
        }
    }
    let left = left + changes.len() as u64 - count;
    Ok(DocBuf::build(|out| {
        out.append("state", "changed").append("upto", upto as i64).append("count", count as i64);
        out.append("left", left as i64).append("newest", newest as i64);
        out.append_all(batch.fields().as_raw());
    }))
}

/// [`name::END_NOTES`](crate::sharding::participants::name::END_NOTES): nobody will ask any more.
pub fn end_notes(node: &Arc<Node>, body: RawDoc<'_>, _: Interrupt<'_>) -> Result<DocBuf> {
    let moves = moves_of(node)?;
    let Some(Value::Binary(_)) = body.get("id") else {
        bail!(Code::FAILED_TO_PARSE, "an internal command names no operation");
    };
    let id = uuid_in(body, "id").unwrap_or_default();
    moves.end_notes(&id);
    Ok(doc! {})
}
