//! Deletes.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf};
use sheaf_errors::Result;
use sheaf_expr::Env;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{Cx, Limits};
use sheaf_storage::{Collection, Write};

use super::found::Found;
use super::seen::Way;
use super::update::{again, next_record};
use super::{Change, WriteCx};
use crate::find;
use crate::plan::Query;
use crate::plan::choose::id_equality;
use crate::plan::query::Hint;

/// One statement of a `delete` command.
pub struct Delete {
    /// Which documents.
    pub query: Query,
    /// All of them, or the first.
    pub multi: bool,
}

/// Runs a delete and gives the number of documents deleted, and the last one of them if `keep`.
pub fn run_delete(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    statement: &Delete,
    keep: bool,
) -> Result<(u64, Option<DocBuf>)> {
    let matcher = statement.query.matcher();
    let by_id = statement.query.hint == Hint::None && crate::index::clustered_by_id(collection);
    if by_id
        && statement.query.collator.is_none()
        && let Some(id) = id_equality(matcher.root())
    {
        let key = collection.record_key(id.as_value())?;
        cx.seen.go(Way::Id);
        let gone = delete_one(w, cx, collection, &matcher, &key, None);
        cx.seen.count_key_of_record();
        let gone = gone?;
        return Ok((u64::from(gone.is_some()), gone.filter(|_| keep)));
    }
    let reads = cx.reads(w.view()?);
    let limits = Limits { now_millis: cx.now_millis, ..Limits::default() };
    let mut rows = Cx::new(limits, cx.interrupt);
    let mut executor = find::open(&statement.query, collection, &reads, &mut rows)?;
    cx.seen.go(Way::Plan(executor.plan().clone()));
    if !statement.multi && !w.retries_conflicts() {
        let found = next_record(&mut executor, &mut rows);
        cx.seen.ran(&mut executor);
        // As with updates: a transaction's writes so far are copied if a view of them is still alive.
        drop((executor, reads));
        let Some((key, doc)) = found? else { return Ok((0, None)) };
        let gone = delete_one(w, cx, collection, &matcher, &key, Some(&doc))?;
        return Ok((u64::from(gone.is_some()), gone.filter(|_| keep)));
    }
    let (mut count, mut last) = (0, None);
    let mut all = || -> Result<()> {
        let mut collection = collection.clone();
        let mut found = Found::new(statement.multi);
        while found.search(w, &mut executor, &mut rows)? {
            while let Some((key, doc)) = found.next(w)? {
                if found.begins_turn() {
                    collection = w.take_up(&collection)?;
                }
                let Some(gone) = delete_one(w, cx, &collection, &matcher, &key, doc.as_deref())? else {
                    continue;
                };
                count += 1;
                if keep {
                    last = Some(gone);
                }
                if !statement.multi {
                    return Ok(());
                }
            }
        }
        Ok(())
    };
    let result = all();
    cx.seen.ran(&mut executor);
    result.map(|()| (count, last))
}

fn delete_one(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    matcher: &Matcher,
    key: &[u8],
    seen: Option<&[u8]>,
) -> Result<Option<DocBuf>> {
    let mut result = attempt(w, cx, collection, matcher, key, seen);
    while again(w, cx, &result) {
        (cx.interrupt)()?;
        result = attempt(w, cx, collection, matcher, key, None);
    }
    result
}

fn attempt(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    matcher: &Matcher,
    key: &[u8],
    seen: Option<&[u8]>,
) -> Result<Option<DocBuf>> {
    let Some(old) = w.read_for_update(collection, key)? else { return Ok(None) };
    cx.seen.add(0, u64::from(seen.is_none()));
    let old = DocBuf::from_bytes(old);
    if seen.is_none_or(|seen| seen != old.as_bytes()) {
        let arena = Bump::new();
        if !matcher.matches_again(old.as_raw(), &Env::new(&arena).with_now(cx.now_millis))? {
            return Ok(None);
        }
    }
    cx.announce(w, Change::Delete(old.as_raw()));
    w.delete(collection, key, old.as_raw())?;
    Ok(Some(old))
}
