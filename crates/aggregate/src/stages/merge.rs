//! `$merge`.

mod spec;

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value, compare};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::{Deps, Expr, ParseCx, Slot};
use sheaf_query::update::{ApplyCx, Update};

use self::spec::{Matched, Mode, Spec, WhenNotMatched, own_paths};
use super::out::with_id;
use sheaf_rows::{BoxOperator, Cx, Documents, Operator, Row, Step, pull};

use crate::database::{MergeIndex, MergeWrite, SharedDatabase};
use crate::namespace::Namespace;
use crate::outline::Outline;
use crate::parse;
use crate::pipeline::SharedPipeline;
use crate::stage::{Needs, Place, Reads, SharedStage, Split, Stage, StageCx, StageEntry};

/// `$merge`.
pub(crate) const MERGE: StageEntry =
    StageEntry::new("$merge", parse, Split::Shards, Needs::Target(&["insert", "update"]))
        .last()
        .looked_at(look);

/// A parsed `$merge`.
#[derive(Debug)]
pub struct Merge {
    /// The collection that is written.
    pub target: Namespace,
    /// The fields by which documents are told apart.
    pub on: Vec<String>,
    /// Whether they were named; `_id` by itself needs no index that vouches for it.
    on_given: bool,
    when_matched: WhenMatched,
    when_not_matched: WhenNotMatched,
    variables: Vec<(Slot, Expr)>,
    collator: Option<SharedCollator>,
}

#[derive(Debug)]
enum WhenMatched {
    Mode(Mode),
    Pipeline(SharedPipeline),
}

fn look(argument: Value<'_>, cx: &Outline<'_>) -> Result<()> {
    Spec::read(argument, cx.database).map(drop)
}

pub(crate) fn parse(argument: Value<'_>, cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Spec { target, on, variables, matched, not_matched } = Spec::read(argument, &cx.namespace.database)?;
    let on_given = on.is_some();
    let on = on.map_or_else(|| Ok(vec!["_id".to_owned()]), own_paths)?;
    check_target(&target)?;
    let (variables, when_matched) = match matched {
        Matched::Mode(mode) if variables.is_some() => {
            bail!(51199, "Cannot use 'let' variables with 'whenMatched: {}' mode", mode.name())
        }
        Matched::Mode(mode) => (Vec::new(), WhenMatched::Mode(mode)),
        Matched::Pipeline(stages) => parse_matched_pipeline(stages, variables, &target, cx)?,
    };
    let collator = cx.expr.collator().cloned();
    let when_not_matched = not_matched;
    Ok(vec![Arc::new(Merge { target, on, on_given, when_matched, when_not_matched, variables, collator })])
}

type PipelineMatched = (Vec<(Slot, Expr)>, WhenMatched);

/// The pipeline runs on the target's document, with the new one as `$$new`.
fn parse_matched_pipeline(
    stages: RawDoc<'_>,
    variables: Option<RawDoc<'_>>,
    target: &Namespace,
    cx: &mut StageCx<'_>,
) -> Result<PipelineMatched> {
    for stage in stages.values() {
        let name = stage.as_doc().and_then(|stage| stage.iter().next()).map_or("", |first| first.key());
        let allowed = ["$addFields", "$set", "$project", "$unset", "$replaceRoot", "$replaceWith"];
        if cx.entry(name).is_some() && !allowed.contains(&name) {
            bail!(Code::INVALID_OPTIONS, "{name} is not allowed to be used within an update");
        }
    }
    let mut exprs = Vec::new();
    let given = variables.unwrap_or(RawDoc::EMPTY);
    for variable in given.iter() {
        if variable.key() == "new" && !matches!(variable.value(), Value::String("$$ROOT")) {
            bail!(51273, "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'");
        }
        exprs.push((variable.key(), Expr::parse(variable.value(), cx.expr)?));
    }
    if given.get("new").is_none() {
        exprs.push(("new", Expr::parse(Value::String("$$ROOT"), cx.expr)?));
    }
    let scope = cx.expr.enter();
    let mut slots = Vec::with_capacity(exprs.len());
    for (name, expr) in exprs {
        slots.push((cx.expr.declare(name)?, expr));
    }
    let pipeline = parse::pipeline(stages, &mut cx.nested(target, Place::Union)?)?;
    cx.expr.leave(scope);
    Ok((slots, WhenMatched::Pipeline(Arc::new(pipeline))))
}

/// Errors: 31319, 31320.
fn check_target(target: &Namespace) -> Result<()> {
    if target.collection.starts_with("system.") {
        bail!(31319, "Cannot $merge to special collection: {}", target.collection);
    }
    if matches!(target.database.as_str(), "admin" | "config" | "local") {
        bail!(31320, "Cannot $merge to internal database: {}", target.database);
    }
    Ok(())
}

impl Stage for Merge {
    fn name(&self) -> &'static str {
        "$merge"
    }

    fn open(self: Arc<Self>, input: BoxOperator, database: &SharedDatabase) -> BoxOperator {
        Box::new(MergeRun::new(self, input, database.clone()))
    }

    fn dependencies(&self, _deps: &mut Deps) -> Reads {
        Reads::All
    }

    fn target_namespace(&self) -> Option<&Namespace> {
        Some(&self.target)
    }
}

/// Runs `$merge`: takes in everything, gives nothing.
struct MergeRun {
    stage: Arc<Merge>,
    input: BoxOperator,
    database: SharedDatabase,
    /// The target's index, once it was asked for.
    index: Option<MergeIndex>,
    batch: WriteBatch,
}

impl MergeRun {
    fn new(stage: Arc<Merge>, input: BoxOperator, database: SharedDatabase) -> Self {
        MergeRun { stage, input, database, index: None, batch: WriteBatch::default() }
    }
}

impl Operator for MergeRun {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let Some(index) = self.index else {
            let Merge { target, on, on_given, collator, .. } = &*self.stage;
            self.index = match on_given {
                true => self.database.merge_index(target, on, collator.as_ref())?,
                false => Some(MergeIndex { sparse: false }),
            };
            if self.index.is_none() {
                bail!(51183, "Cannot find index to verify that join fields will be unique");
            }
            return Ok(Step::More);
        };
        match self.input.work(cx)? {
            Step::Row => {
                let document = DocBuf::from(self.input.row().document());
                let size = document.as_bytes().len();
                let written = self.stage.write(document, index, &self.database, cx);
                self.batch.note(written, size)?;
                Ok(Step::More)
            }
            Step::More => Ok(Step::More),
            Step::Eof => self.batch.failed.take().map_or(Ok(Step::Eof), Err),
        }
    }

    fn row(&self) -> Row<'_> {
        Row::default()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }
}

/// Whether the writes of other documents would meet the same error.
fn concerns_all(code: Code) -> bool {
    matches!(
        code,
        Code::OUT_OF_DISK_SPACE
            | Code::EXCEEDED_MEMORY_LIMIT
            | Code::MAX_TIME_MS_EXPIRED
            | Code::INTERRUPTED
            | Code::INTERRUPTED_AT_SHUTDOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::NOT_WRITABLE_PRIMARY
            | Code::PRIMARY_STEPPED_DOWN
    )
}

/// A batch of unordered writes: one that fails does not keep those after it from being done, but the stage ends
/// with its error behind the batch.
#[derive(Default)]
struct WriteBatch {
    documents: usize,
    bytes: usize,
    failed: Option<Error>,
}

impl WriteBatch {
    const MAX_DOCUMENTS: usize = 100_000;
    const MAX_BYTES: usize = 16 << 20;

    fn note(&mut self, written: Result<()>, size: usize) -> Result<()> {
        if let Err(error) = written {
            if concerns_all(error.code()) {
                return Err(error);
            }
            self.failed.get_or_insert(error);
        }
        self.documents += 1;
        self.bytes += size;
        if self.documents < Self::MAX_DOCUMENTS && self.bytes < Self::MAX_BYTES {
            return Ok(());
        }
        match std::mem::take(self).failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Merge {
    fn write(
        &self,
        mut document: DocBuf,
        index: MergeIndex,
        database: &SharedDatabase,
        cx: &mut Cx<'_>,
    ) -> Result<()> {
        crate::check_valid(document.as_raw())?;
        if self.on.iter().any(|field| field == "_id") && document.as_raw().get("_id").is_none() {
            document = with_id(document.as_raw(), &**database);
        }
        let key = self.key(document.as_raw(), index)?;
        // Each round sees the target as it is then; a write that another one overtook is tried again.
        loop {
            let old = match self.when_matched {
                WhenMatched::Mode(Mode::Fail) => None,
                _ => database.find_merge_target(&self.target, key.as_raw(), self.collator.as_ref(), cx)?,
            };
            let done = match old {
                Some(old) => self.write_matched(&old, &document, database, cx)?,
                None => self.write_new(&document, &key, database, cx)?,
            };
            if done {
                return Ok(());
            }
        }
    }

    /// The values of the fields that tell documents apart.
    fn key(&self, document: RawDoc<'_>, index: MergeIndex) -> Result<DocBuf> {
        let mut key = DocBuf::new();
        for field in &self.on {
            let mut at = Value::Document(document);
            for part in field.split('.') {
                at = match at {
                    Value::Document(inner) => inner.get_or_missing(part),
                    Value::Array(_) => bail!(51185, "$merge write error: 'on' field cannot be an array"),
                    _ => Value::Missing,
                };
            }
            match at {
                Value::Array(_) => bail!(51185, "$merge write error: 'on' field cannot be an array"),
                value if value.is_nullish() && index.sparse => bail!(
                    51132,
                    "$merge write error: 'on' field cannot be missing, null or undefined if supporting index is sparse"
                ),
                Value::Missing | Value::Undefined => _ = key.append(field, Value::Null),
                value => _ = key.append(field, value),
            }
        }
        Ok(key)
    }

    /// The target has no such document. False to try again.
    fn write_new(
        &self,
        document: &DocBuf,
        key: &DocBuf,
        database: &SharedDatabase,
        cx: &mut Cx<'_>,
    ) -> Result<bool> {
        match self.when_not_matched {
            WhenNotMatched::Discard => return Ok(true),
            WhenNotMatched::Fail => bail!(
                13113,
                "$merge could not find a matching document in the target collection for at least one document in the \
                 source collection"
            ),
            WhenNotMatched::Insert => {}
        }
        let document = match self.when_matched {
            WhenMatched::Mode(Mode::Merge | Mode::KeepExisting) => upserted(document.as_raw(), key.as_raw()),
            _ => document.clone(),
        };
        let document = with_id(document.as_raw(), &**database);
        match database.merge_write(&self.target, MergeWrite::Insert, None, document.as_raw(), cx) {
            Err(error)
                if error.code() == Code::DUPLICATE_KEY
                    && !matches!(self.when_matched, WhenMatched::Mode(Mode::Fail)) =>
            {
                // Somebody inserted it just now: then it is matched in the next round, unless the duplicate is of
                // another index.
                match database.find_merge_target(&self.target, key.as_raw(), self.collator.as_ref(), cx)? {
                    Some(_) => Ok(false),
                    None => Err(error),
                }
            }
            result => result,
        }
    }

    /// The target has this document. False to try again.
    fn write_matched(
        &self,
        old: &DocBuf,
        document: &DocBuf,
        database: &SharedDatabase,
        cx: &mut Cx<'_>,
    ) -> Result<bool> {
        let new = match &self.when_matched {
            WhenMatched::Mode(Mode::KeepExisting | Mode::Fail) => return Ok(true),
            WhenMatched::Mode(Mode::Replace) => Some(replaced(old.as_raw(), document.as_raw())),
            WhenMatched::Mode(Mode::Merge) => merged(old.as_raw(), document.as_raw(), cx)?,
            WhenMatched::Pipeline(pipeline) => self.piped(pipeline, old, document, database, cx)?,
        };
        let Some(new) = new.filter(|new| new != old) else { return Ok(true) };
        check_id(old.as_raw(), new.as_raw())?;
        database.merge_write(&self.target, MergeWrite::Replace, Some(old.as_raw()), new.as_raw(), cx)
    }

    fn piped(
        &self,
        pipeline: &SharedPipeline,
        old: &DocBuf,
        document: &DocBuf,
        database: &SharedDatabase,
        cx: &mut Cx<'_>,
    ) -> Result<Option<DocBuf>> {
        let arena = Bump::new();
        let mut values = Vec::with_capacity(self.variables.len());
        {
            let env = cx.env(&arena);
            for (slot, expr) in &self.variables {
                values.push((*slot, OwnedValue::from(expr.eval(document.as_raw(), &env)?)));
            }
        }
        let new = cx.with_variables(values, |cx| {
            let mut run = pipeline.open(Box::new(Documents::new(vec![old.clone()])), database);
            Ok::<_, Error>(pull(&mut run, cx)?.then(|| replaced(old.as_raw(), run.row().document())))
        })?;
        Ok(new)
    }
}

/// The new document with the old `_id` unless it brings its own, first.
fn replaced(old: RawDoc<'_>, new: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        if let Some(id) = new.element("_id").or_else(|| old.element("_id")) {
            out.append_element(id);
        }
        new.iter()
            .filter(|element| element.key() != "_id")
            .for_each(|element| _ = out.append_element(element));
    })
}

/// What an upsert with `$set` makes of a document: the fields that tell documents apart, a missing one as null, and behind
/// them the others in the order of their names.
fn upserted(new: RawDoc<'_>, key: RawDoc<'_>) -> DocBuf {
    let mut rest: Vec<_> = new.iter().filter(|element| key.get(element.key()).is_none()).collect();
    rest.sort_by(|a, b| a.key().cmp(b.key()));
    DocBuf::build(|out| {
        if let Some(id) = new.element("_id") {
            out.append_element(id);
        }
        for element in key.iter().filter(|element| element.key() != "_id" && !element.key().contains('.')) {
            out.append_element(element);
        }
        for element in rest.into_iter().filter(|element| element.key() != "_id") {
            out.append_element(element);
        }
    })
}

/// The new document's fields set on the old one, as `$set` does it.
fn merged(old: RawDoc<'_>, new: RawDoc<'_>, cx: &Cx<'_>) -> Result<Option<DocBuf>> {
    let set = DocBuf::new().with("$set", new);
    let update = Update::parse(Value::Document(set.as_raw()), &[], &mut ParseCx::new())?;
    let apply = ApplyCx {
        matched_index: None,
        now_millis: cx.limits.now_millis,
        timestamp: sheaf_bson::Timestamp(0),
    };
    update.apply(old, &apply).map_err(immutable)
}

fn check_id(old: RawDoc<'_>, new: RawDoc<'_>) -> Result<()> {
    let (before, after) = (old.get_or_missing("_id"), new.get_or_missing("_id"));
    if compare(before, after).is_eq() {
        return Ok(());
    }
    Err(immutable(Error::new(
        Code::IMMUTABLE_FIELD,
        format!(
            "After applying the update, the (immutable) field '_id' was found to have been altered to _id: {}",
            crate::print::value(after)
        ),
    )))
}

fn immutable(error: Error) -> Error {
    if error.code() != Code::IMMUTABLE_FIELD {
        return error;
    }
    error.context(
        "$merge failed to update the matching document, did you attempt to modify the _id or the shard key?",
    )
}
