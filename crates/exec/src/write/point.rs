//! The short way of statements that name one document by `_id`: one read under the record's lock, no query, no plan.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_query::update::{ApplyCx, SimpleOutcome, SimpleUpdate, Update};
use sheaf_storage::{Collection, Write};

use super::seen::Way;
use super::update::again;
use super::{Change, Modified, UpdateResult, Validator, WriteCx};

/// What becomes of the document.
#[derive(Debug)]
pub enum PointChange<'q> {
    /// A few operators on fields that no array stands above.
    Simple(SimpleUpdate<'q>),
    /// A replacement.
    Replacement(Update),
}

impl<'q> PointChange<'q> {
    /// Reads an update that can take the short way. `None`: it cannot, or it has an error that the general way
    /// is to find.
    pub fn parse(update: Value<'q>) -> Option<PointChange<'q>> {
        let doc = update.as_doc()?;
        if doc.iter().next().is_some_and(|first| first.key_bytes().starts_with(b"$")) {
            return SimpleUpdate::parse(doc).map(PointChange::Simple);
        }
        let update = Update::parse(update, &[], &mut sheaf_expr::ParseCx::new()).ok()?;
        Some(PointChange::Replacement(update))
    }
}

/// Updates the document with this `_id`, a value that equals only itself. `None`: nothing was done, and the
/// general way is to be taken.
pub fn update_by_id(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    id: Value<'_>,
    change: &PointChange<'_>,
    keep: bool,
) -> Result<Option<UpdateResult>> {
    if !crate::index::clustered_by_id(collection) || collection.collator.is_some() {
        return Ok(None);
    }
    let validator = if cx.bypass_validation { None } else { Validator::of(collection)? };
    let key = collection.record_key(id)?;
    loop {
        let result = update_once(w, cx, collection, &key, change, validator.as_ref(), keep);
        if !again(w, cx, &result) {
            return result;
        }
        (cx.interrupt)()?;
    }
}

fn update_once(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    key: &[u8],
    change: &PointChange<'_>,
    validator: Option<&Validator>,
    keep: bool,
) -> Result<Option<UpdateResult>> {
    cx.seen.go(Way::Express);
    let mut result = UpdateResult::default();
    let Some(old) = w.read_for_update(collection, key)? else { return Ok(Some(result)) };
    let before = cx.seen.examined();
    cx.seen.add(1, 1);
    let old = DocBuf::from_bytes(old);
    let changed = match change {
        PointChange::Simple(simple) => match simple.apply(old.as_raw()) {
            SimpleOutcome::Unusual => {
                // The general way looks at it again.
                cx.seen.set_examined(before);
                return Ok(None);
            }
            SimpleOutcome::Same => None,
            SimpleOutcome::Changed { new, delta } => Some((new, Some(delta))),
        },
        PointChange::Replacement(update) => {
            let timestamp = cx.update_timestamp(update);
            let apply = ApplyCx { matched_index: None, now_millis: cx.now_millis, timestamp };
            update.apply_with(old.as_raw(), &apply, &Bump::new())?.map(|new| (new, None))
        }
    };
    result.matched = 1;
    if let Some((new, delta)) = &changed {
        let (before, after): (RawDoc<'_>, RawDoc<'_>) = (old.as_raw(), new.as_raw());
        if let Some(judge) = cx.judge {
            judge(after)?;
        }
        if let Some(validator) = validator {
            validator.enforce(Some(before), after, cx.report)?;
        }
        cx.announce(w, Change::Update { before, after });
        w.update(collection, key, before, after, delta.as_ref().map(DocBuf::as_raw))?;
        result.modified = 1;
    }
    if keep {
        result.after = Some(changed.map_or_else(|| old.clone(), |(new, _)| new));
        result.before = Some(old);
    }
    Ok(Some(result))
}

/// Deletes the document with this `_id`, a value that equals only itself, and gives it. The outer `None`: nothing
/// was done, and the general way is to be taken.
pub fn delete_by_id(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    id: Value<'_>,
) -> Result<Option<Option<DocBuf>>> {
    if !crate::index::clustered_by_id(collection) || collection.collator.is_some() {
        return Ok(None);
    }
    let key = collection.record_key(id)?;
    loop {
        let result = delete_once(w, cx, collection, &key);
        if !again(w, cx, &result) {
            return result.map(Some);
        }
        (cx.interrupt)()?;
    }
}

fn delete_once(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    key: &[u8],
) -> Result<Option<DocBuf>> {
    cx.seen.go(Way::Express);
    let Some(old) = w.read_for_update(collection, key)? else { return Ok(None) };
    cx.seen.add(1, 1);
    let old = DocBuf::from_bytes(old);
    cx.announce(w, Change::Delete(old.as_raw()));
    w.delete(collection, key, old.as_raw())?;
    Ok(Some(old))
}

/// What `findAndModify` does to the document with this `_id`: removes it (no `change`), or changes it and gives the
/// version before, or the one after if `new`. `None` as in [`update_by_id`].
pub fn find_and_modify_by_id(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    id: Value<'_>,
    change: Option<&PointChange<'_>>,
    new: bool,
) -> Result<Option<Modified>> {
    let Some(change) = change else {
        let gone = delete_by_id(w, cx, collection, id)?;
        return Ok(gone.map(|value| Modified {
            n: u64::from(value.is_some()),
            value,
            ..Modified::default()
        }));
    };
    let result = update_by_id(w, cx, collection, id, change, true)?;
    Ok(result.map(|result| Modified {
        n: result.matched,
        changed: result.modified,
        updated_existing: Some(result.matched > 0),
        upserted: None,
        value: if new { result.after } else { result.before },
    }))
}
