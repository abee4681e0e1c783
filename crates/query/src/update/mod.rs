//! Updates: modifiers (`{$set: ...}`), replacements and pipelines, from parsing to the new bytes.
//!
//! [`Update::parse`] reads an update once; [`Update::apply`] then makes the new version of a document (or says
//! that nothing changes), and [`Update::upsert`] the document to insert when nothing matched.

mod apply;
mod array_filter;
mod array_ops;
mod modifiers;
mod ops;
mod pipeline;
mod simple;
mod tree;
mod upsert;

use std::cmp::Ordering;

use sheaf_bson::{
    Bump, DocBuf, MAX_DOCUMENT_SIZE, MAX_STORED_DEPTH, ObjectId, RawDoc, Timestamp, Value, compare,
};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_meter::Held;

use crate::diff::Touch;
use crate::stored_id::dollar_field;

pub use pipeline::{ReplaceRoot, unset_spec};
pub use simple::{SimpleOutcome, SimpleUpdate};
pub use upsert::Equalities;

use modifiers::Modifiers;
use pipeline::PipelineUpdate;

/// A parsed update, and its memory.
#[derive(Debug)]
pub struct Update(Kind, Held);

#[derive(Debug)]
enum Kind {
    Modifiers(Modifiers),
    Replacement(DocBuf),
    Pipeline(PipelineUpdate),
    Delta(DocBuf),
}

/// What an application of an update needs besides the document.
#[derive(Clone, Copy, Debug)]
pub struct ApplyCx<'p> {
    /// The array index that `$` stands for, as the query's match found it.
    pub matched_index: Option<&'p str>,
    /// The time for `$currentDate`, in milliseconds since the epoch.
    pub now_millis: i64,
    /// The timestamp for `$currentDate` and for empty timestamps in a replacement.
    pub timestamp: Timestamp,
}

/// Which fields an update may change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Touched {
    /// Any.
    All,
    /// Those at, above or below these dotted paths, which have no `$`, `$[]` or array index left in them: the
    /// path ends before the first such part.
    Paths(Vec<String>),
}

impl Update {
    /// Reads an update: a document whose first name starts with `$` holds modifiers, other documents replace,
    /// and an array is a pipeline. `cx` gives `$$NOW` and the command's variables.
    pub fn parse(update: Value<'_>, array_filters: &[RawDoc<'_>], cx: &mut ParseCx) -> Result<Update> {
        let (kind, held) = sheaf_meter::growing(|| Kind::parse(update, array_filters, cx))?;
        Ok(Update(kind, held))
    }

    /// The update that an entry of a log tells as `{$v: 2, diff: {...}}`.
    ///
    /// Errors: `FailedToParse` for what is no delta.
    pub fn of_delta(delta: RawDoc<'_>) -> Result<Update> {
        crate::diff::check_delta(delta)?;
        let (kind, held) = sheaf_meter::growing(|| {
            sheaf_meter::grow(delta.len())?;
            Ok(Kind::Delta(DocBuf::from(delta)))
        })?;
        Ok(Update(kind, held))
    }

    /// The bytes that the operation's account has for the tree; 0 for a small one.
    pub fn held_bytes(&self) -> u64 {
        self.1.bytes()
    }

    /// Whether the whole document is replaced, which a multi-update may not do.
    pub fn is_replacement(&self) -> bool {
        matches!(self.0, Kind::Replacement(_))
    }

    /// Whether this is a pipeline, the only kind that takes constants (`c`).
    pub fn is_pipeline(&self) -> bool {
        matches!(self.0, Kind::Pipeline(_))
    }

    /// Whether it is an entry's delta.
    pub fn is_delta(&self) -> bool {
        matches!(self.0, Kind::Delta(_))
    }

    /// Whether some path holds the positional `$`, so that the query must say where it matched.
    pub fn needs_matched_index(&self) -> bool {
        matches!(&self.0, Kind::Modifiers(modifiers) if modifiers.positional)
    }

    /// The fields that may change; what lies elsewhere keeps its value.
    pub fn touched(&self) -> Touched {
        match &self.0 {
            Kind::Modifiers(modifiers) => Touched::Paths(modifiers.touched.clone()),
            _ => Touched::All,
        }
    }

    /// The paths of an update by operators; none of other updates.
    pub fn paths(&self) -> &[Touch] {
        match &self.0 {
            Kind::Modifiers(modifiers) => &modifiers.paths,
            _ => &[],
        }
    }

    /// The document's new version; `None` if not a byte of it changes.
    ///
    /// ```
    /// use sheaf_bson::{Timestamp, Value, doc};
    /// use sheaf_expr::ParseCx;
    /// use sheaf_query::update::{ApplyCx, Update};
    ///
    /// let change = doc! { "$inc": { "grams": 4 }, "$push": { "tags": "bread" } };
    /// let update = Update::parse(Value::Document(change.as_raw()), &[], &mut ParseCx::new())?;
    /// let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp::new(0, 0) };
    /// let new = update.apply(doc! { "_id": 1, "grams": 38, "tags": ["cereal"] }.as_raw(), &cx)?;
    /// assert_eq!(new, Some(doc! { "_id": 1, "grams": 42, "tags": ["cereal", "bread"] }));
    /// # Ok::<(), sheaf_errors::Error>(())
    /// ```
    pub fn apply(&self, doc: RawDoc<'_>, cx: &ApplyCx<'_>) -> Result<Option<DocBuf>> {
        self.apply_in(doc, cx, false, &Bump::new())
    }

    /// Like [`Update::apply`], with an arena for intermediate values that the caller resets.
    pub fn apply_with(&self, doc: RawDoc<'_>, cx: &ApplyCx<'_>, arena: &Bump) -> Result<Option<DocBuf>> {
        self.apply_in(doc, cx, false, arena)
    }

    /// Whether a document is written even if its bytes stay the same: MongoDB compares a replacement as it came,
    /// before `_id` is taken over from the document or put first.
    fn rewrites(&self, insert: bool) -> bool {
        match &self.0 {
            Kind::Replacement(new) if !insert => {
                new.as_raw().iter().next().is_none_or(|first| first.key() != "_id")
            }
            _ => false,
        }
    }

    fn apply_in(
        &self,
        doc: RawDoc<'_>,
        cx: &ApplyCx<'_>,
        insert: bool,
        arena: &Bump,
    ) -> Result<Option<DocBuf>> {
        let new = match &self.0 {
            Kind::Modifiers(modifiers) => modifiers.apply(doc, cx, insert, arena)?,
            Kind::Replacement(replacement) if !insert => {
                check_replacement(replacement.as_raw())?;
                Some(replace(doc, replacement.as_raw(), cx.timestamp))
            }
            Kind::Replacement(replacement) => Some(replace(doc, replacement.as_raw(), cx.timestamp)),
            Kind::Pipeline(pipeline) => Some(pipeline.apply(doc, arena)?),
            Kind::Delta(delta) => {
                let new = crate::diff::apply_diff(doc, delta.as_raw());
                // It says where what it brings goes, however deep that is.
                if sheaf_bson::is_deeper(new.as_raw(), MAX_STORED_DEPTH) {
                    return Err(too_deep());
                }
                Some(new.as_bytes().to_vec())
            }
        };
        let Some(new) = new.filter(|new| self.rewrites(insert) || new.as_slice() != doc.as_bytes()) else {
            return Ok(None);
        };
        if new.len() > MAX_DOCUMENT_SIZE {
            bail!(17419, "Resulting document after update is larger than {MAX_DOCUMENT_SIZE}");
        }
        let new = DocBuf::from_bytes(new);
        self.check_id(doc, new.as_raw())?;
        Ok(Some(new))
    }

    /// The document to insert when a query matched nothing: what the query holds equal, then the update, with
    /// `_id` first (`new_id` if neither names one).
    pub fn upsert(
        &self,
        query: RawDoc<'_>,
        new_id: impl FnOnce() -> ObjectId,
        cx: &ApplyCx<'_>,
    ) -> Result<DocBuf> {
        let start = match &self.0 {
            Kind::Replacement(_) => match Equalities::id_of_query(query)? {
                Some(id) => DocBuf::new().with("_id", &id),
                None => DocBuf::new(),
            },
            _ => Equalities::of_query(query)?.document(),
        };
        let cx = ApplyCx { matched_index: None, ..*cx };
        let built = self.apply_in(start.as_raw(), &cx, true, &Bump::new())?.unwrap_or(start);
        let built = id_first(built, new_id)?;
        if built.as_bytes().len() > MAX_DOCUMENT_SIZE {
            bail!(17420, "Document to upsert is larger than {MAX_DOCUMENT_SIZE}");
        }
        Ok(built)
    }

    /// `_id` never changes once a document has one.
    fn check_id(&self, old: RawDoc<'_>, new: RawDoc<'_>) -> Result<()> {
        let Some(before) = old.get("_id") else { return Ok(()) };
        let after = new.get_or_missing("_id");
        if !after.is_missing() && compare(before, after) == Ordering::Equal {
            return Ok(());
        }
        match &self.0 {
            Kind::Modifiers(modifiers) => bail!(
                Code::IMMUTABLE_FIELD,
                "Performing an update on the path '{}' would modify the immutable field '_id'",
                modifiers.id_path()
            ),
            _ if after.is_missing() => bail!(
                Code::IMMUTABLE_FIELD,
                "After applying the update, the '_id' (required and immutable) field was found to have been \
                 removed --{}",
                sheaf_bson::document_text(old)
            ),
            _ => bail!(
                Code::IMMUTABLE_FIELD,
                "After applying the update, the (immutable) field '_id' was found to have been altered to {}",
                sheaf_bson::element_text("_id", after)
            ),
        }
    }
}

/// Refuses a path that no document can have: every part of it would be another call on the stack.
fn check_path_depth(path: &str) -> Result<()> {
    if path.split('.').nth(MAX_STORED_DEPTH).is_some() { Err(too_deep()) } else { Ok(()) }
}

fn too_deep() -> Error {
    Error::new(Code::OVERFLOW, format!("Document exceeds maximum nesting depth of {MAX_STORED_DEPTH}"))
}

impl Kind {
    fn parse(update: Value<'_>, array_filters: &[RawDoc<'_>], cx: &mut ParseCx) -> Result<Kind> {
        Ok(match update {
            Value::Array(stages) => {
                if !array_filters.is_empty() {
                    bail!(
                        Code::FAILED_TO_PARSE,
                        "arrayFilters may not be specified for pipeline-syle updates"
                    );
                }
                Kind::Pipeline(PipelineUpdate::parse(stages, cx)?)
            }
            Value::Document(doc) if doc.iter().next().is_some_and(|first| first.key().starts_with('$')) => {
                Kind::Modifiers(Modifiers::parse(doc, array_filters, cx)?)
            }
            Value::Document(doc) => {
                if !array_filters.is_empty() {
                    bail!(
                        Code::FAILED_TO_PARSE,
                        "arrayFilters may not be specified for replacement-style updates"
                    );
                }
                sheaf_meter::grow(doc.len())?;
                Kind::Replacement(DocBuf::from(doc))
            }
            _ => bail!(Code::FAILED_TO_PARSE, "Update argument must be either an object or an array"),
        })
    }
}

/// A replacement of a document may hold dollar-prefixed names below the top level only; one that is inserted may at the top, too.
fn check_replacement(doc: RawDoc<'_>) -> Result<()> {
    for element in doc.iter() {
        let key = element.key();
        if key.starts_with('$') {
            bail!(
                Code::DOLLAR_PREFIXED_FIELD_NAME,
                "The dollar ($) prefixed field '{key}' in '{key}' is not allowed in the context of an update's \
                 replacement document. Consider using an aggregation pipeline with $replaceWith."
            );
        }
    }
    Ok(())
}

/// The replacement with the old `_id` unless it brings its own, and with empty timestamps filled.
fn replace(old: RawDoc<'_>, new: RawDoc<'_>, timestamp: Timestamp) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(new.len() + 32);
    let mut out = sheaf_bson::DocWriter::new(&mut bytes);
    if let Some(id) = new.element("_id").or_else(|| old.element("_id")) {
        out.append_element(id);
    }
    for element in new.iter().filter(|element| element.key() != "_id") {
        match element.value() {
            Value::Timestamp(Timestamp(0)) => out.append(element.key(), timestamp),
            _ => out.append_element(element),
        };
    }
    drop(out);
    bytes
}

/// Puts `_id` first, adding one where it lacks, and checks that it can be one.
fn id_first(doc: DocBuf, new_id: impl FnOnce() -> ObjectId) -> Result<DocBuf> {
    let raw = doc.as_raw();
    let id = raw.get("_id").unwrap_or_else(|| Value::ObjectId(new_id()));
    if let Value::Array(_) | Value::Regex(_) | Value::Undefined = id {
        bail!(Code::INVALID_ID_FIELD, "The '_id' value cannot be of type {}", id.type_name());
    }
    if let Value::Document(inner) = id
        && let Some(bad) = dollar_field(inner)
    {
        bail!(
            Code::DOLLAR_PREFIXED_FIELD_NAME,
            "_id fields may not contain '$'-prefixed fields: {bad} is not valid for storage."
        );
    }
    if raw.iter().next().is_some_and(|first| first.key() == "_id") {
        return Ok(doc);
    }
    Ok(DocBuf::build(|out| {
        out.append("_id", id);
        for element in raw.iter().filter(|element| element.key() != "_id") {
            out.append_element(element);
        }
    }))
}
