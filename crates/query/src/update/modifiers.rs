//! Modifier documents: `{$set: {"a.b": 1}, $inc: {c: 2}}`.

use std::collections::hash_map::Entry;

use ahash::AHashMap;
use sheaf_bson::{Bump, Element, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_meter::Held;

use super::ApplyCx;
use super::apply::Walk;
use super::array_filter::ArrayFilters;
use super::check_path_depth;
use super::ops::{Op, OpCx, is_operator};
use super::tree::{ObjectNode, identifier, path_bytes};
use crate::diff::Touch;
use crate::owned::name_bytes;

/// Parsed modifiers.
#[derive(Debug, Default)]
pub(super) struct Modifiers {
    root: ObjectNode,
    filters: ArrayFilters,
    collator: Option<SharedCollator>,
    /// Per `$rename`: source and target.
    renames: Vec<(String, String)>,
    /// Whether some path holds `$`.
    pub(super) positional: bool,
    /// See [`super::Touched::Paths`].
    pub(super) touched: Vec<String>,
    /// All paths as written, for naming the one that touched `_id`, and for the delta.
    pub(super) paths: Vec<Touch>,
}

impl Modifiers {
    pub(super) fn parse(doc: RawDoc<'_>, array_filters: &[RawDoc<'_>], cx: &mut ParseCx) -> Result<Self> {
        let filters = ArrayFilters::parse(array_filters, cx)?;
        let mut parsed = Modifiers { filters, collator: cx.collator().cloned(), ..Modifiers::default() };
        for operator in doc.iter() {
            let name = operator.key();
            if !is_operator(name) {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "Unknown modifier: {name}. Expected a valid update modifier or pipeline-style update specified \
                     as an array"
                );
            }
            let Value::Document(arguments) = operator.value() else {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "Modifiers operate on fields but we found type {} instead. For example: {{$mod: {{<field>: \
                     ...}}}} not {{{}}}",
                    operator.value().type_name(),
                    sheaf_bson::element_text(name, operator.value())
                );
            };
            for argument in arguments.iter() {
                if name == "$rename" {
                    parsed.add_rename(argument)?;
                } else {
                    parsed.add_path(argument.key())?;
                    let op = Op::parse(name, argument, cx)?;
                    if let Some(path) = parsed.paths.last_mut() {
                        path.array = op.to_array();
                    }
                    parsed.root.insert(argument.key(), op)?;
                }
            }
        }
        parsed.root.settle();
        parsed.check_filters_used(doc)?;
        Ok(parsed)
    }

    fn check_filters_used(&self, doc: RawDoc<'_>) -> Result<()> {
        match self.filters.unused() {
            None => Ok(()),
            Some(unused) => bail!(
                Code::FAILED_TO_PARSE,
                "The array filter for identifier '{unused}' was not used in the update {}",
                sheaf_bson::document_text(doc)
            ),
        }
    }

    /// Checks a path and notes it.
    fn add_path(&mut self, path: &str) -> Result<()> {
        if path.is_empty() {
            bail!(Code::EMPTY_FIELD_NAME, "An empty update path is not valid.");
        }
        if path.split('.').any(str::is_empty) {
            bail!(
                Code::EMPTY_FIELD_NAME,
                "The update path '{path}' contains an empty field name, which is not allowed."
            );
        }
        check_path_depth(path)?;
        match path.split('.').filter(|part| *part == "$").count() {
            0 => {}
            _ if path.starts_with("$.") || path == "$" => bail!(
                Code::BAD_VALUE,
                "Cannot have positional (i.e. '$') element in the first position in path '{path}'"
            ),
            1 => self.positional = true,
            _ => bail!(Code::BAD_VALUE, "Too many positional (i.e. '$') elements found in path '{path}'"),
        }
        // The path stands in two lists, and its names in the tree, which is made anew where it has many.
        sheaf_meter::grow(2 * size_of::<String>() + path_bytes(path))?;
        for (at, part) in path.split('.').enumerate() {
            let Some(id) = identifier(part) else { continue };
            if at == 0 {
                bail!(
                    Code::BAD_VALUE,
                    "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path \
                     '{path}'"
                );
            }
            if !id.is_empty() && !self.filters.note_use(id) {
                bail!(Code::BAD_VALUE, "No array filter found for identifier '{id}' in path '{path}'");
            }
        }
        let fixed: Vec<&str> = path
            .split('.')
            .take_while(|part| *part != "$" && identifier(part).is_none() && part.parse::<u32>().is_err())
            .collect();
        // A path of an index alone names a field of the document.
        self.touched.push(if fixed.is_empty() { path.to_owned() } else { fixed.join(".") });
        self.paths.push(Touch::of(path));
        Ok(())
    }

    fn add_rename(&mut self, argument: Element<'_>) -> Result<()> {
        let source = argument.key();
        self.add_path(source)?;
        let slot = self.renames.len();
        self.root.insert(source, Op::RenameFrom(slot))?;
        let text = || sheaf_bson::element_text(source, argument.value());
        let Value::String(target) = argument.value() else {
            bail!(Code::BAD_VALUE, "The 'to' field for $rename must be a string: {}", text());
        };
        self.add_path(target)?;
        if target.contains('\0') {
            bail!(9867600, "The 'to' field for $rename cannot contain an embedded null byte");
        }
        if source == target {
            bail!(Code::BAD_VALUE, "The source and target field for $rename must differ: {}", text());
        }
        let above =
            |upper: &str, lower: &str| lower.strip_prefix(upper).is_some_and(|rest| rest.starts_with('.'));
        if above(source, target) || above(target, source) {
            bail!(
                Code::BAD_VALUE,
                "The source and target field for $rename must not be on the same path: {}",
                text()
            );
        }
        for (path, which) in [(source, "source"), (target, "destination")] {
            if path.split('.').any(|part| part == "$" || identifier(part).is_some()) {
                bail!(Code::BAD_VALUE, "The {which} field for $rename may not be dynamic: {path}");
            }
        }
        sheaf_meter::grow(2 * size_of::<String>() + name_bytes(source) + name_bytes(target))?;
        self.renames.push((source.to_owned(), target.to_owned()));
        self.root.insert(target, Op::RenameTo(slot))
    }

    /// The path that touches `_id`, for the message that it must not.
    pub(super) fn id_path(&self) -> &str {
        let mut paths = self.paths.iter().map(|touch| touch.path.as_str());
        paths.find(|path| *path == "_id" || path.starts_with("_id.")).unwrap_or("_id")
    }

    /// The bytes afterwards; `None` if no operator changes anything.
    pub(super) fn apply(
        &self,
        doc: RawDoc<'_>,
        cx: &ApplyCx<'_>,
        insert: bool,
        arena: &Bump,
    ) -> Result<Option<Vec<u8>>> {
        let mut renamed = Vec::with_capacity(self.renames.len());
        let mut fields = Fields::for_paths(self.renames.len())?;
        for (source, target) in &self.renames {
            let value = rename_source(doc, source, &mut fields)?;
            if !value.is_missing() {
                check_rename_target(doc, target, &mut fields)?;
            }
            renamed.push(value);
        }
        let op = OpCx {
            arena,
            root: doc,
            insert,
            now: cx.now_millis,
            timestamp: cx.timestamp,
            renamed,
            collator: self.collator.as_ref(),
        };
        Walk::new(op, cx.matched_index, &self.filters).run(&self.root, doc)
    }
}

/// More `$rename`s than this are worth an index of the document's fields.
const FEW: usize = 16;

/// Looks for fields: each document that is met is read anew for few of them, and once for many.
struct Fields<'a> {
    many: Option<AHashMap<*const u8, AHashMap<&'a str, Value<'a>>>>,
    held: Held,
}

impl<'a> Fields<'a> {
    fn for_paths(count: usize) -> Result<Self> {
        // An operation has no account before it needs one.
        let held = if count > FEW { sheaf_meter::reserve(0)? } else { Held::default() };
        Ok(Fields { many: (count > FEW).then(AHashMap::new), held })
    }

    /// The first field of this name.
    fn get(&mut self, doc: RawDoc<'a>, name: &str) -> Result<Value<'a>> {
        let Some(known) = &mut self.many else { return Ok(doc.get_or_missing(name)) };
        sheaf_meter::tick(1)?;
        let at = doc.as_bytes().as_ptr();
        let fields = match known.entry(at) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let mut fields = AHashMap::new();
                for field in doc.iter() {
                    sheaf_meter::tick(1)?;
                    fields.entry(field.key()).or_insert(field.value());
                }
                self.held.grow((fields.capacity() * size_of::<(&str, Value<'_>)>()) as u64)?;
                place.insert(fields)
            }
        };
        Ok(fields.get(name).copied().unwrap_or(Value::Missing))
    }
}

/// The value that a `$rename` moves; its path may lead through documents only.
fn rename_source<'a>(doc: RawDoc<'a>, path: &str, fields: &mut Fields<'a>) -> Result<Value<'a>> {
    let mut at = Value::Document(doc);
    let mut above = "";
    let mut array = None;
    for part in path.split('.') {
        let next = match at {
            Value::Document(doc) => fields.get(doc, part)?,
            Value::Array(items) if part.bytes().all(|b| b.is_ascii_digit()) => {
                array = array.or(Some(above));
                fields.get(items, part)?
            }
            blocking => bail!(
                Code::PATH_NOT_VIABLE,
                "cannot use the part ({above} of {path}) to traverse the element ({{{}}})",
                sheaf_bson::element_text(above, blocking)
            ),
        };
        if next.is_missing() {
            return Ok(next);
        }
        (at, above) = (next, part);
    }
    match array {
        Some(name) => Err(array_end(doc, path, "source", name)),
        None => Ok(at),
    }
}

/// Checks that the path that a `$rename` moves to leads through no array.
fn check_rename_target<'a>(doc: RawDoc<'a>, path: &str, fields: &mut Fields<'a>) -> Result<()> {
    let mut at = Value::Document(doc);
    let mut above = "";
    for part in path.split('.') {
        at = match at {
            Value::Document(doc) => fields.get(doc, part)?,
            Value::Array(_) => return Err(array_end(doc, path, "destination", above)),
            _ => Value::Missing,
        };
        above = part;
    }
    Ok(())
}

fn array_end(doc: RawDoc<'_>, path: &str, which: &str, array: &str) -> Error {
    let id = doc.get("_id").map_or_else(|| "no id".to_owned(), |id| sheaf_bson::element_text("_id", id));
    Error::bad_value(format!(
        "The {which} field cannot be an array element, '{path}' in doc with {id} has an array field called '{array}'"
    ))
}
