//! Updates.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::Env;
use sheaf_query::diff::{diff, operator_diff};
use sheaf_query::matcher::Matcher;
use sheaf_query::update::{ApplyCx, Update};
use sheaf_rows::{Cx, Limits};
use sheaf_storage::{Collection, Write};

use super::found::Found;
use super::seen::Way;
use super::{Change, Validator, WriteCx};
use crate::find;
use crate::plan::Query;
use crate::plan::choose::id_equality;
use crate::run::Executor;

/// One statement of an `update` command.
pub struct UpdateStatement {
    /// Which documents.
    pub query: Query,
    /// What becomes of them.
    pub update: Update,
    /// All of them, or the first.
    pub multi: bool,
    /// Insert if there are none.
    pub upsert: bool,
}

/// What an update did.
#[derive(Debug, Default)]
pub struct UpdateResult {
    /// Documents that matched.
    pub matched: u64,
    /// Documents of which bytes changed.
    pub modified: u64,
    /// The `_id` of the document that was inserted.
    pub upserted: Option<OwnedValue>,
    /// The last document before its update.
    pub before: Option<DocBuf>,
    /// The last document after its update (or the one inserted).
    pub after: Option<DocBuf>,
}

/// Runs an update. `keep` asks for the documents before and after.
///
/// Errors: those of the update, `DuplicateKey`, `DocumentValidationFailure`, `WriteConflict` in a transaction.
pub fn run_update(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    statement: &UpdateStatement,
    keep: bool,
) -> Result<UpdateResult> {
    let validator = validator_of(cx, collection)?;
    let mut run = Run {
        cx,
        collection: collection.clone(),
        statement,
        validator,
        keep,
        arena: Bump::new(),
        result: UpdateResult::default(),
    };
    // A document that another writer inserts between the search and the upsert is then found by a second search.
    for attempt in 0.. {
        run.search(w)?;
        if run.result.matched > 0 || !statement.upsert {
            break;
        }
        match run.upsert(w) {
            Ok(()) => break,
            Err(error) if error.code() == Code::DUPLICATE_KEY && attempt < 1 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(run.result)
}

fn validator_of(cx: &WriteCx<'_>, collection: &Collection) -> Result<Option<Validator>> {
    if cx.bypass_validation { Ok(None) } else { Validator::of(collection) }
}

struct Run<'r> {
    cx: &'r WriteCx<'r>,
    /// As it is now.
    collection: Arc<Collection>,
    statement: &'r UpdateStatement,
    validator: Option<Validator>,
    keep: bool,
    arena: Bump,
    result: UpdateResult,
}

impl Run<'_> {
    fn search(&mut self, w: &mut dyn Write) -> Result<()> {
        let matcher = self.statement.query.matcher();
        let by_id = self.statement.query.hint == crate::plan::query::Hint::None
            && crate::index::clustered_by_id(&self.collection);
        if by_id
            && self.statement.query.collator.is_none()
            && let Some(id) = id_equality(matcher.root())
        {
            let key = self.collection.record_key(id.as_value())?;
            self.cx.seen.go(Way::Id);
            let result = self.one(w, &matcher, &key, None);
            self.cx.seen.count_key_of_record();
            return result.map(|_| ());
        }
        let reads = self.cx.reads(w.view()?);
        let limits = Limits { now_millis: self.cx.now_millis, ..Limits::default() };
        let mut rows = Cx::new(limits, self.cx.interrupt);
        let mut executor = find::open(&self.statement.query, &self.collection, &reads, &mut rows)?;
        self.cx.seen.go(Way::Plan(executor.plan().clone()));
        if !self.statement.multi && !w.retries_conflicts() {
            let found = next_record(&mut executor, &mut rows);
            self.cx.seen.ran(&mut executor);
            // A transaction's writes so far are copied at the next one if a view of them is still alive: not for each
            // statement of thousands.
            drop((executor, reads));
            let Some((key, doc)) = found? else { return Ok(()) };
            return self.one(w, &matcher, &key, Some(&doc)).map(|_| ());
        }
        let result = self.all(w, &matcher, &mut executor, &mut rows);
        self.cx.seen.ran(&mut executor);
        result
    }

    /// Updates what a search finds: all of it, or the first that still matches.
    fn all(
        &mut self,
        w: &mut dyn Write,
        matcher: &Matcher,
        executor: &mut Executor,
        rows: &mut Cx<'_>,
    ) -> Result<()> {
        let mut found = Found::new(self.statement.multi);
        while found.search(w, executor, rows)? {
            while let Some((key, doc)) = found.next(w)? {
                if found.begins_turn() {
                    self.take_up(w)?;
                }
                if self.one(w, matcher, &key, doc.as_deref())? && !self.statement.multi {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Goes on with the collection as it is now.
    fn take_up(&mut self, w: &mut dyn Write) -> Result<()> {
        let now = w.take_up(&self.collection)?;
        if !Arc::ptr_eq(&now, &self.collection) {
            self.validator = validator_of(self.cx, &now)?;
            self.collection = now;
        }
        Ok(())
    }

    /// Updates the record if it is still there and still matches.
    fn one(&mut self, w: &mut dyn Write, matcher: &Matcher, key: &[u8], seen: Option<&[u8]>) -> Result<bool> {
        let (matched, mut result) = (self.result.matched, self.attempt(w, matcher, key, seen));
        while again(w, self.cx, &result) {
            (self.cx.interrupt)()?;
            self.result.matched = matched;
            result = self.attempt(w, matcher, key, None);
        }
        result
    }

    fn attempt(
        &mut self,
        w: &mut dyn Write,
        matcher: &Matcher,
        key: &[u8],
        seen: Option<&[u8]>,
    ) -> Result<bool> {
        let Some(old) = w.read_for_update(&self.collection, key)? else { return Ok(false) };
        self.cx.seen.add(0, u64::from(seen.is_none()));
        let old = DocBuf::from_bytes(old);
        let changed = seen.is_none_or(|seen| seen != old.as_bytes());
        let mut position = None;
        self.arena.reset();
        if self.statement.update.needs_matched_index() {
            let env = Env::new(&self.arena).with_now(self.cx.now_millis);
            match matcher.matches_with_details(old.as_raw(), &env)? {
                Some(details) => position = details.elem_match_index.map(|at| at.to_string()),
                None => return Ok(false),
            }
        } else if changed {
            let env = Env::new(&self.arena).with_now(self.cx.now_millis);
            if !matcher.matches_again(old.as_raw(), &env)? {
                return Ok(false);
            }
        }
        let count = self.cx.stands_for.map_or(Ok(1), |stands_for| stands_for(old.as_raw()))?;
        self.result.matched += count;
        let apply = ApplyCx {
            matched_index: position.as_deref(),
            now_millis: self.cx.now_millis,
            timestamp: self.cx.update_timestamp(&self.statement.update),
        };
        // Also an update that changes nothing has looked at all of it.
        sheaf_meter::tick_for(old.as_raw().len())?;
        let new = self.statement.update.apply_with(old.as_raw(), &apply, &self.arena)?;
        if let Some(new) = &new {
            self.check(Some(old.as_raw()), new.as_raw())?;
            // A replacement goes to the oplog whole; from what an update changed, change streams tell it apart.
            let update = &self.statement.update;
            let delta = match update {
                _ if update.is_replacement() => None,
                _ if update.is_pipeline() || update.is_delta() => diff(old.as_raw(), new.as_raw()),
                _ => operator_diff(old.as_raw(), new.as_raw(), update.paths()),
            };
            self.cx.announce(w, Change::Update { before: old.as_raw(), after: new.as_raw() });
            w.update(&self.collection, key, old.as_raw(), new.as_raw(), delta.as_ref().map(DocBuf::as_raw))?;
            self.result.modified += count;
        }
        if self.keep {
            self.result.after = Some(new.unwrap_or_else(|| old.clone()));
            self.result.before = Some(old);
        }
        Ok(true)
    }

    fn check(&self, old: Option<RawDoc<'_>>, new: RawDoc<'_>) -> Result<()> {
        if let Some(judge) = self.cx.judge {
            judge(new)?;
        }
        match &self.validator {
            Some(validator) => validator.enforce(old, new, self.cx.report),
            None => Ok(()),
        }
    }

    fn upsert(&mut self, w: &mut dyn Write) -> Result<()> {
        if self.collection.is_view() {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "cannot write to a view");
        }
        self.take_up(w)?;
        let timestamp = self.cx.update_timestamp(&self.statement.update);
        let apply = ApplyCx { matched_index: None, now_millis: self.cx.now_millis, timestamp };
        let filter = self.statement.query.matcher();
        let new = self.statement.update.upsert(filter.filter(), || (self.cx.new_object_id)(), &apply)?;
        self.check(None, new.as_raw())?;
        self.cx.announce(w, Change::Upsert(new.as_raw()));
        w.insert(&self.collection, new.as_raw())?;
        self.result.upserted = new.as_raw().get("_id").map(OwnedValue::from);
        if self.keep {
            self.result.after = Some(new);
        }
        Ok(())
    }
}

/// Whether a document's write met another writer and is to be tried again on what that one left.
pub(super) fn again<T>(w: &dyn Write, cx: &WriteCx<'_>, result: &Result<T>) -> bool {
    let again = is_conflict(result) && w.retries_conflicts();
    cx.seen.conflicts.set(cx.seen.conflicts.get() + u64::from(again));
    again
}

/// Whether a write met another writer.
pub(super) fn is_conflict<T>(result: &Result<T>) -> bool {
    matches!(result, Err(error) if error.code() == Code::WRITE_CONFLICT)
}

/// The next record of a search: its key and document, copied, because the write that follows may need the
/// cursor's memory.
pub(super) fn next_record(executor: &mut Executor, cx: &mut Cx<'_>) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    if !executor.advance(cx)? {
        return Ok(None);
    }
    let row = executor.plan_row();
    assert!(
        !row.record.is_empty(),
        "the plan of a write gave a row that is no record: {}",
        executor.plan().summary()
    );
    Ok(Some((row.record.to_vec(), row.document().as_bytes().to_vec())))
}
