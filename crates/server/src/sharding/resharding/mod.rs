//! A shard's part in giving a collection another key or place: the hidden collection that takes its documents in is made, and in the end
//! takes the place of the one that clients know.
//!
//! `docs/design/0029-resharding.md` tells what it is all about.

mod donor;
mod recipient;

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_shard::placement::{Key, KeyPattern, closed_placement};
use sheaf_storage::{Collection, Direction, Interrupt, Range, Told, Uuid};

use crate::node::Node;
use crate::sharding::marks::{PLACEMENTS, is_closed, uuid_in, uuid_value, with_leaving};
use crate::sharding::moving::Part;
use crate::sharding::participants::Asked;
use crate::sharding::rows;

pub use donor::{begin_notes, changes, end_notes};
pub use recipient::fetch;

/// [`name::PREPARE`](crate::sharding::participants::name::PREPARE): the hidden collection is there, with its indexes, and nobody gets into it.
pub fn prepare(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        let pattern = KeyPattern::parse(asked.document("key"))?;
        asked.make(uuid)?;
        rows::change(asked.engine, go_on, |change| {
            let id = uuid_value(uuid.as_bytes());
            if change.get(PLACEMENTS, id)?.is_some() {
                return Ok(());
            }
            let closed = closed_placement(asked.namespace, *uuid.as_bytes(), &pattern, false);
            change.put(PLACEMENTS, closed.as_raw())
        })?;
        Ok(doc! {})
    })
}

/// Keys that are kept of a sample; of more, every second one goes.
const SAMPLE_MAX: usize = 20_000;

/// [`name::SAMPLE_FOR`](crate::sharding::participants::name::SAMPLE_FOR): keys that documents of this shard would have by another pattern, one of
/// so many.
///
/// Errors: those of a document that cannot have such a key.
pub fn sample(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let part = Part::of(node, body)?;
    let new = body.get("newKey").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    let pattern = KeyPattern::parse(new)?;
    let (mut sample, mut every, mut seen) = (Vec::new(), 1usize, 0usize);
    let mut cursor = part.view.records(&part.collection, Range::ALL, Direction::Forward)?;
    while cursor.next()? {
        if !part.holds(cursor.doc())? {
            continue;
        }
        seen += 1;
        if seen.is_multiple_of(every) {
            sample.push(pattern.key_of(cursor.doc())?);
        }
        if seen.is_multiple_of(1000) {
            go_on()?;
        }
        if sample.len() >= SAMPLE_MAX {
            let mut at = 0;
            sample.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            every *= 2;
        }
    }
    let sample = ArrayBuf::of(sample.iter().map(Key::document));
    Ok(doc! { "every": every as i64, "sample": Value::Array(sample.as_raw()) })
}

/// [`name::SHUT`](crate::sharding::participants::name::SHUT): a collection is closed, sharded or not. Gives its indexes.
///
/// Errors: `NamespaceNotFound`, where the shard has another one, or none.
pub fn shut(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        let gone = || {
            let text = format!("the collection {} is not here any more", asked.namespace);
            Error::new(Code::NAMESPACE_NOT_FOUND, text)
        };
        let mut found = asked.collection().filter(|found| found.uuid == uuid).ok_or_else(gone)?;
        let pattern = KeyPattern::parse(asked.document("key"))?;
        let closed = closed_placement(asked.namespace, *uuid.as_bytes(), &pattern, asked.flag("unique"));
        let (was_plain, _) = rows::change(asked.engine, go_on, |change| {
            let known = change.get(PLACEMENTS, uuid_value(uuid.as_bytes()))?;
            // What is to be removed still is.
            let shut =
                known.as_ref().map_or_else(|| Ok(closed.clone()), |known| with_leaving(&closed, known))?;
            change.put(PLACEMENTS, shut.as_raw())?;
            Ok(known.is_none())
        })?;
        if was_plain || asked.flag("plain") {
            found = asked.pass_writers(&uuid)?.ok_or_else(gone)?;
        } else if let Some(now) = asked.collection().filter(|now| now.uuid == uuid) {
            found = now;
        }
        Ok(crate::sharding::participants::description(&found))
    })
}

/// [`name::SWAP`](crate::sharding::participants::name::SWAP): the hidden collection takes the name, and what had it is gone.
pub fn swap(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let (uuid, source) = (asked.uuid("uuid")?, asked.uuid("source")?);
        if asked.collection().is_none_or(|now| now.uuid != uuid) {
            let check = |hidden: &Collection, now: Option<&Collection>| {
                // An empty one is what was left of a collection that the shard owned nothing of.
                let may_go = |now: &Collection| now.uuid == source || (now.count() == 0 && !now.is_view());
                if hidden.uuid == uuid && now.is_none_or(may_go) {
                    return Ok(());
                }
                bail!(Code::INVALID_UUID, "the shard has another collection {}", asked.namespace)
            };
            asked.engine.rename_collection(
                asked.text("hidden"),
                asked.namespace,
                true,
                &check,
                Told::Elsewhere,
                go_on,
            )?;
            node.metrics.forget(asked.namespace);
        }
        rows::change(asked.engine, go_on, |change| {
            change.remove(PLACEMENTS, uuid_value(source.as_bytes()))?;
            let known = change.get(PLACEMENTS, uuid_value(uuid.as_bytes()))?;
            // What has gone on from here stays as it is.
            match known.as_ref().is_none_or(is_closed) {
                true => change.put(PLACEMENTS, asked.document("placement")),
                false => Ok(()),
            }
        })?;
        end(node, asked)
    })
}

/// [`name::RETIRE`](crate::sharding::participants::name::RETIRE): the shard has nothing of the new collection, and loses what it had of the old one.
pub fn retire(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let source = asked.uuid("source")?;
        let gone = asked.text("gone");
        if asked.collection().is_some_and(|now| now.uuid == source) {
            // A stream of changes would see it dropped under its name.
            let check = |now: &Collection, _: Option<&Collection>| match now.uuid == source {
                true => Ok(()),
                false => bail!(Code::NAMESPACE_NOT_FOUND, "{} is another collection now", asked.namespace),
            };
            asked.engine.rename_collection(asked.namespace, gone, true, &check, Told::Elsewhere, go_on)?;
            node.metrics.forget(asked.namespace);
        }
        drop_it(asked, gone, source)?;
        rows::change(asked.engine, go_on, |change| change.remove(PLACEMENTS, uuid_value(source.as_bytes())))?;
        end(node, asked)
    })
}

/// [`name::GIVE_UP`](crate::sharding::participants::name::GIVE_UP): the hidden collection goes, whoever is filling it.
pub fn give_up(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    if let Some(id) = uuid_in(body, "id") {
        recipient::forget(node, id, true);
    }
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        drop_it(asked, asked.namespace, uuid)?;
        rows::change(asked.engine, go_on, |change| change.remove(PLACEMENTS, uuid_value(uuid.as_bytes())))?;
        end(node, asked)
    })
}

fn drop_it(asked: &Asked<'_>, namespace: &str, uuid: Uuid) -> Result<()> {
    let check = |now: &Collection| match now.uuid == uuid {
        true => Ok(()),
        false => bail!(Code::NAMESPACE_NOT_FOUND, "{namespace} is another collection now"),
    };
    match asked.engine.drop_collection_if(namespace, &check, Told::Elsewhere, asked.go_on) {
        Err(error) if error.code() != Code::NAMESPACE_NOT_FOUND => Err(error),
        _ => Ok(()),
    }
}

/// What was in memory for the operation can go.
fn end(node: &Node, asked: &Asked<'_>) -> Result<DocBuf> {
    let id = asked.uuid("id")?;
    recipient::forget(node, *id.as_bytes(), false);
    Ok(doc! {})
}
