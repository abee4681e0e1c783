//! Differences between two versions of a document, as the oplog keeps them (`$v: 2`).
//!
//! A document's delta is `{d: {gone: false}, u: {changed: value}, i: {new: value}, s<field>: delta}`: deletes,
//! updates in place, inserts at the end (a field that exists is moved there), and deltas of embedded documents
//! and arrays. An array's is `{a: true, l: <new length>, u<index>: value, s<index>: delta}`. Applying one twice
//! gives the same as applying it once.

use std::collections::{HashMap, HashSet};

use sheaf_bson::{ArrayWriter, DocBuf, DocWriter, Element, RawDoc, Type, Value, decimal_digits};
use sheaf_errors::{Error, Result};
use smallvec::SmallVec;

use crate::name_order::name_order;

/// Of so many changed fields at most it is looked whether their names are the only ones; with more, the delta is tried out.
const FEW: usize = 16;

/// The delta that turns `old` into `new`, byte for byte. `None` if no delta can do it (repeated names) or
/// if the whole new document is not larger than the delta.
///
/// ```
/// use sheaf_bson::doc;
/// use sheaf_query::diff::{apply_diff, diff};
///
/// let old = doc! { "_id": 1, "name": "rye", "origin": "Anatolia", "grams": 38 };
/// let new = doc! { "_id": 1, "name": "rye", "origin": "Anatolia", "grams": 42 };
/// let delta = diff(old.as_raw(), new.as_raw()).expect("a field's change is shorter than the document");
/// assert_eq!(delta, doc! { "u": { "grams": 42 } });
/// assert_eq!(apply_diff(old.as_raw(), delta.as_raw()), new);
/// ```
pub fn diff(old: RawDoc<'_>, new: RawDoc<'_>) -> Option<DocBuf> {
    let delta = Delta::between(old, new, Style::Shortest);
    (delta.bytes.len() < new.len() && delta.leads(old, new)).then(|| DocBuf::from_bytes(delta.bytes))
}

/// The delta of an update by operators: like [`diff`], but it names the fields that were set, however small
/// the document is, because change streams tell what it says. `touched` are the update's paths (see
/// [`crate::update::Update::paths`]): what is at such a path is set as a whole, what lies above it is gone into. An
/// array is gone into unless elements were taken out or moved, or its operator tells of it as a whole, as MongoDB's do. Fields stand in the
/// order of their names. `None` if no delta can do it.
pub fn operator_diff(old: RawDoc<'_>, new: RawDoc<'_>, touched: &[Touch]) -> Option<DocBuf> {
    let delta = Delta::between(old, new, Style::ByField(Some(("", touched))));
    delta.leads(old, new).then(|| DocBuf::from_bytes(delta.bytes))
}

/// A path that an update by operators changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// As it was written.
    pub path: String,
    /// What it does to an array there.
    pub array: ToArray,
}

/// How an operator tells of an array at its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToArray {
    /// By its elements.
    Elements,
    /// So many values come to its end: they are told if there was something before them and all of them stay.
    Appended(usize),
    /// They come to this place: they are at the end where it lies beyond that.
    AppendedAt(i64, usize),
    /// As a whole.
    Whole,
}

impl Touch {
    /// A path whose operator is about no array.
    pub fn of(path: &str) -> Self {
        Touch { path: path.to_owned(), array: ToArray::Elements }
    }

    fn below(&self, path: &str) -> Option<&str> {
        self.path.strip_prefix(path)?.strip_prefix('.')
    }
}

impl ToArray {
    fn is_whole(self, old: usize, new: usize) -> bool {
        match self {
            ToArray::Elements => false,
            ToArray::Whole => true,
            ToArray::Appended(values) => old == 0 || new != old + values,
            ToArray::AppendedAt(place, values) => {
                old == 0
                    || new != old + values
                    || usize::try_from(place).is_ok_and(|place| place <= old)
                    || place < 0
            }
        }
    }
}

/// A delta of one document or array.
struct Delta {
    bytes: Vec<u8>,
    /// That it gives the new version is known: no name that it holds stands twice where it is applied, and arrays are
    /// numbered as usual. Otherwise it has to be tried out.
    is_sure: bool,
}

impl Delta {
    fn between(old: RawDoc<'_>, new: RawDoc<'_>, style: Style<'_>) -> Delta {
        object_delta(old, new, style)
    }

    /// Whether it makes `new` of `old`.
    fn leads(&self, old: RawDoc<'_>, new: RawDoc<'_>) -> bool {
        // Applying is cheap next to an oplog entry that rebuilds something else.
        self.is_sure || apply_diff(old, RawDoc::new(&self.bytes)).as_bytes() == new.as_bytes()
    }
}

/// What a delta aims at.
#[derive(Clone, Copy)]
enum Style<'p> {
    /// Few bytes.
    Shortest,
    /// What an update by operators touched: the path of the object that is compared, and the update's paths.
    /// `None` inside arrays, where the paths say nothing.
    ByField(Option<(&'p str, &'p [Touch])>),
    /// An array whose changed elements are told as wholes.
    ByElement,
}

impl Style<'_> {
    /// Whether a null that stands where there was nothing only fills up what an index left free.
    fn is_padding(self, index: usize) -> bool {
        let Style::ByField(Some((path, touched))) = self else { return false };
        !touched.iter().any(|touch| {
            let rest = touch.below(path).and_then(|rest| rest.split('.').next());
            touch.path == path
                || rest.is_some_and(|part| part.parse::<usize>().map_or(true, |at| at == index))
        })
    }
}

/// The document that a delta makes of `old`.
pub fn apply_diff(old: RawDoc<'_>, delta: RawDoc<'_>) -> DocBuf {
    let mut bytes = Vec::with_capacity(old.len() + delta.len());
    apply_to_object(old, delta, DocWriter::new(&mut bytes));
    DocBuf::from_bytes(bytes)
}

/// All arrays that a client's delta changes may have so many elements together: what is not there is filled up with nulls, and a
/// document of 16 MiB has no room for more.
const MAX_ELEMENTS: usize = 1_500_000;

/// Whether a client's delta is one: of known parts, each name once, no other `_id` and none less, and arrays that can be in a document.
///
/// Errors: `FailedToParse`.
pub(crate) fn check_delta(delta: RawDoc<'_>) -> Result<()> {
    let is_of_id = |field: Element<'_>| match (field.key(), field.value()) {
        ("s_id", _) => true,
        ("d" | "i", Value::Document(fields)) => fields.element("_id").is_some(),
        _ => false,
    };
    match delta.iter().find(|field| is_of_id(*field)) {
        Some(field) => Err(no_delta(field)),
        None => check_object_delta(delta, &mut 0),
    }
}

fn check_object_delta(delta: RawDoc<'_>, elements: &mut usize) -> Result<()> {
    let mut names = HashSet::<&[u8], ahash::RandomState>::default();
    for field in delta.iter() {
        match (field.key(), field.value()) {
            ("d" | "u" | "i", Value::Document(fields)) => {
                if let Some(twice) = fields.iter().find(|field| !names.insert(field.key_bytes())) {
                    return Err(no_delta(twice));
                }
            }
            (key, Value::Document(below)) if key.starts_with('s') => {
                if !names.insert(&field.key_bytes()[1..]) {
                    return Err(no_delta(field));
                }
                check_nested_delta(below, elements)?;
            }
            _ => return Err(no_delta(field)),
        }
    }
    Ok(())
}

fn check_nested_delta(delta: RawDoc<'_>, elements: &mut usize) -> Result<()> {
    if !is_array_delta(delta) {
        return check_object_delta(delta, elements);
    }
    let mut length = 0;
    for field in delta.iter().skip(1) {
        let index = field.key().get(1..).and_then(|digits| digits.parse::<usize>().ok());
        match (field.key().as_bytes().first(), index, field.value()) {
            (Some(b'l'), None, value)
                if field.key() == "l" && value.as_exact_i64().is_some_and(|length| length >= 0) => {}
            (Some(b'u'), Some(index), _) => length = length.max(index),
            (Some(b's'), Some(index), Value::Document(below)) => {
                length = length.max(index);
                check_nested_delta(below, elements)?;
            }
            _ => return Err(no_delta(field)),
        }
    }
    *elements = elements.saturating_add(length);
    match *elements < MAX_ELEMENTS {
        true => Ok(()),
        false => Err(Error::failed_to_parse(format!("a difference fills arrays with {elements} elements"))),
    }
}

fn no_delta(field: Element<'_>) -> Error {
    Error::failed_to_parse(format!("'{}' is no part of a difference between documents", field.key()))
}

fn object_delta(old: RawDoc<'_>, new: RawDoc<'_>, style: Style<'_>) -> Delta {
    let mut changes = Changes::default();
    let mut before = old.iter().peekable();
    for element in new.iter() {
        // Fields of the old document that do not stand here any more are deleted, and inserted again
        // at the end if they come later.
        while before.peek().is_some_and(|old| old.key_bytes() != element.key_bytes()) {
            changes.deletes.extend(before.next());
        }
        match before.next() {
            None => changes.inserts.push(element),
            Some(old) if old.as_bytes() == element.as_bytes() => {}
            Some(old) => match nested_delta(old, element, style) {
                Some(delta) => changes.deltas.push((element, delta)),
                None => changes.updates.push(element),
            },
        }
    }
    changes.deletes.extend(before);
    let is_sure = changes.are_unique_in(old) && changes.deltas.iter().all(|(_, delta)| delta.is_sure);
    if !matches!(style, Style::Shortest) {
        changes.order();
    }
    Delta { bytes: changes.write(), is_sure }
}

/// The fields of one document that differ.
#[derive(Default)]
struct Changes<'a> {
    deletes: SmallVec<[Element<'a>; 4]>,
    updates: SmallVec<[Element<'a>; 4]>,
    inserts: SmallVec<[Element<'a>; 4]>,
    deltas: Vec<(Element<'a>, Delta)>,
}

impl Changes<'_> {
    /// Whether each name belongs to one field of the old document, or to one that stands at the end now and nowhere else: then
    /// every field of `old` is what the delta says of its name, and nothing else is. May say no where there are many.
    fn are_unique_in(&self, old: RawDoc<'_>) -> bool {
        let changed = self.deletes.len() + self.updates.len() + self.deltas.len();
        if changed + self.inserts.len() > FEW {
            return false;
        }
        let mut met = 0;
        for element in old.iter() {
            let name = element.key_bytes();
            let has =
                |fields: &[Element<'_>]| fields.iter().filter(|field| field.key_bytes() == name).count();
            let deleted = has(&self.deletes);
            if deleted == 0 && has(&self.inserts) > 0 {
                return false;
            }
            let nested = self.deltas.iter().filter(|(field, _)| field.key_bytes() == name).count();
            met += deleted + has(&self.updates) + nested;
        }
        // Each was met once at least.
        met == changed
    }

    /// Puts what is told into the order of names; inserts are in it already, as it is how they came to be.
    fn order(&mut self) {
        let by_name = |a: &Element<'_>, b: &Element<'_>| name_order(a.key(), b.key());
        self.deletes.sort_by(by_name);
        self.updates.sort_by(by_name);
        self.deltas.sort_by(|(a, _), (b, _)| by_name(a, b));
    }

    fn write(mut self) -> Vec<u8> {
        if !self.deletes.is_empty() && !self.inserts.is_empty() {
            let inserted: HashSet<&[u8], ahash::RandomState> =
                self.inserts.iter().map(Element::key_bytes).collect();
            self.deletes.retain(|gone| !inserted.contains(gone.key_bytes()));
        }
        let mut bytes = Vec::new();
        let mut out = DocWriter::new(&mut bytes);
        if !self.deletes.is_empty() {
            let mut section = out.document("d");
            self.deletes.iter().for_each(|gone| _ = section.append(gone.key(), false));
        }
        for (name, elements) in [("u", &self.updates), ("i", &self.inserts)] {
            if !elements.is_empty() {
                let mut section = out.document(name);
                elements.iter().for_each(|element| _ = section.append_element(*element));
            }
        }
        for (element, delta) in &self.deltas {
            out.document_prefixed("s", element.key()).append_all(RawDoc::new(&delta.bytes));
        }
        drop(out);
        bytes
    }
}

fn array_delta(old: RawDoc<'_>, new: RawDoc<'_>, style: Style<'_>) -> Delta {
    let mut bytes = Vec::new();
    let mut is_sure = true;
    let mut out = DocWriter::new(&mut bytes);
    out.append("a", true);
    let (old_count, new_count) = (old.count(), new.count());
    if new_count < old_count {
        out.append("l", new_count as i32);
    }
    let mut before = old.iter();
    let inner = if matches!(style, Style::ByField(_)) { Style::ByField(None) } else { style };
    for (index, element) in new.iter().enumerate() {
        is_sure &= element.key_bytes() == decimal_digits(index as u32, &mut [0; 10]);
        match before.next() {
            Some(old) if old.kind() == element.kind() && old.data() == element.data() => {}
            Some(old) => match nested_delta(old, element, inner) {
                Some(delta) => {
                    is_sure &= delta.is_sure;
                    out.append(&format!("s{index}"), RawDoc::new(&delta.bytes));
                }
                None => _ = out.append_renamed(&format!("u{index}"), element),
            },
            None if element.kind() == Type::Null && index + 1 < new_count && style.is_padding(index) => {}
            None => _ = out.append_renamed(&format!("u{index}"), element),
        }
    }
    drop(out);
    Delta { bytes, is_sure }
}

/// How an array at a path is told: `None` as a whole.
fn array_style<'p>(
    old: RawDoc<'_>,
    new: RawDoc<'_>,
    path: &'p str,
    touched: &'p [Touch],
) -> Option<Style<'p>> {
    let (before, after) = (old.count(), new.count());
    if touched.iter().any(|touch| touch.path == path && touch.array.is_whole(before, after)) {
        return None;
    }
    let filters =
        || touched.iter().filter_map(|touch| touch.below(path)).filter(|rest| rest.starts_with("$["));
    let Some(first) = filters().next() else { return Some(Style::ByField(Some((path, touched)))) };
    let differ = |(a, b): &(Element<'_>, Element<'_>)| a.kind() != b.kind() || a.data() != b.data();
    let changed = old.iter().zip(new.iter()).filter(differ).take(2).count();
    match changed > 1 || after != before {
        true => None,
        // Of several elements that are meant the one that changed is told as a whole.
        false if first.starts_with("$[]") && before > 1 => Some(Style::ByElement),
        false => Some(Style::ByField(None)),
    }
}

/// The delta between two embedded documents or two arrays, if it is shorter than the new value, or says what
/// was done.
fn nested_delta(old: Element<'_>, new: Element<'_>, style: Style<'_>) -> Option<Delta> {
    let path;
    let (inner, always) = match style {
        Style::Shortest => (style, false),
        Style::ByField(None) => (style, true),
        Style::ByElement => return None,
        Style::ByField(Some((above, touched))) => {
            path = if above.is_empty() { new.key().to_owned() } else { format!("{above}.{}", new.key()) };
            match (old.value(), new.value()) {
                (_, Value::Document(_)) if !touched.iter().any(|touch| touch.below(&path).is_some()) => {
                    return None;
                }
                (Value::Array(old), Value::Array(new)) => (array_style(old, new, &path, touched)?, true),
                _ => (Style::ByField(Some((&path, touched))), true),
            }
        }
    };
    let delta = match (old.value(), new.value()) {
        (Value::Document(old), Value::Document(new)) => object_delta(old, new, inner),
        (Value::Array(old), Value::Array(new)) if always && is_rearranged(old, new) => return None,
        (Value::Array(old), Value::Array(new)) => array_delta(old, new, inner),
        _ => return None,
    };
    (always || delta.bytes.len() < new.data().len()).then_some(delta)
}

/// Whether elements were taken out, or moved while others came: what no `$set` of an element and no `$push` at
/// the end does.
fn is_rearranged(old: RawDoc<'_>, new: RawDoc<'_>) -> bool {
    let (before, after) = (old.count(), new.count());
    let same = |(a, b): (Element<'_>, Element<'_>)| a.kind() == b.kind() && a.data() == b.data();
    after < before || (after > before && !old.iter().zip(new.iter()).all(same))
}

fn apply_to_object(old: RawDoc<'_>, delta: RawDoc<'_>, mut out: DocWriter<'_, Vec<u8>>) {
    let section = |name| match delta.get(name) {
        Some(Value::Document(fields)) => fields,
        _ => RawDoc::EMPTY,
    };
    let (deletes, updates, inserts) = (section("d"), section("u"), section("i"));
    let (gone, moved) = (Names::of(deletes, b""), Names::of(inserts, b""));
    let (updated, changed) = (Names::of(updates, b""), Names::of(delta, b"s"));
    for element in old.iter() {
        let name = element.key_bytes();
        if gone.get(name).is_some() || moved.get(name).is_some() {
            continue;
        }
        if let Some(update) = updated.get(name) {
            out.append_element(update);
        } else if let Some(change) = changed.get(name) {
            apply_nested(element, change.value(), &mut out, element.key());
        } else {
            out.append_element(element);
        }
    }
    if !updates.is_empty() {
        let present = Names::of(old, b"");
        let new = updates.iter().filter(|update| present.get(update.key_bytes()).is_none());
        new.for_each(|update| _ = out.append_element(update));
    }
    inserts.iter().for_each(|insert| _ = out.append_element(insert));
}

/// The fields of a document by what of their names follows a prefix; the first of each name counts.
enum Names<'a> {
    Few(RawDoc<'a>, &'static [u8]),
    Many(HashMap<&'a [u8], Element<'a>, ahash::RandomState>),
}

impl<'a> Names<'a> {
    fn of(fields: RawDoc<'a>, prefix: &'static [u8]) -> Self {
        // Looking through few is quicker than a table, but the work must not grow with the square of a document.
        if fields.iter().nth(16).is_none() {
            return Names::Few(fields, prefix);
        }
        let mut names = HashMap::default();
        for field in fields.iter() {
            if let Some(name) = field.key_bytes().strip_prefix(prefix) {
                names.entry(name).or_insert(field);
            }
        }
        Names::Many(names)
    }

    fn get(&self, name: &[u8]) -> Option<Element<'a>> {
        match self {
            Names::Few(fields, prefix) => {
                fields.iter().find(|field| field.key_bytes().strip_prefix(*prefix) == Some(name))
            }
            Names::Many(names) => names.get(name).copied(),
        }
    }
}

fn apply_nested(old: Element<'_>, delta: Value<'_>, out: &mut DocWriter<'_, Vec<u8>>, key: &str) {
    match (old.value(), delta) {
        (Value::Document(inner), Value::Document(delta)) if !is_array_delta(delta) => {
            apply_to_object(inner, delta, out.document(key));
        }
        (Value::Array(inner), Value::Document(delta)) if is_array_delta(delta) => {
            apply_to_array(inner, delta, out.array(key));
        }
        // The field has changed its type since; a later entry of the log sets it.
        _ => _ = out.append_renamed(key, old),
    }
}

fn is_array_delta(delta: RawDoc<'_>) -> bool {
    delta.iter().next().is_some_and(|first| first.key() == "a" && first.kind() == Type::Bool)
}

fn apply_to_array(old: RawDoc<'_>, delta: RawDoc<'_>, mut out: ArrayWriter<'_, Vec<u8>>) {
    let mut changes: Vec<(usize, bool, Element<'_>)> = Vec::new();
    let mut limit = usize::MAX;
    for field in delta.iter() {
        let key = field.key();
        if key == "l" {
            limit = field.value().as_exact_i64().and_then(|n| usize::try_from(n).ok()).unwrap_or(limit);
        } else if let Some(index) = key.get(1..).and_then(|digits| digits.parse().ok()) {
            changes.push((index, key.starts_with('u'), field));
        }
    }
    changes.sort_by_key(|(index, ..)| *index);
    let mut changes = changes.into_iter().peekable();
    let mut index = 0;
    for element in old.iter().take(limit) {
        match changes.next_if(|(at, ..)| *at == index) {
            Some((_, true, update)) => _ = out.push_element(update),
            Some((_, false, change)) => match (element.value(), change.value()) {
                (Value::Document(inner), Value::Document(delta)) if !is_array_delta(delta) => {
                    apply_to_object(inner, delta, out.document());
                }
                (Value::Array(inner), Value::Document(delta)) if is_array_delta(delta) => {
                    apply_to_array(inner, delta, out.array());
                }
                _ => _ = out.push_element(element),
            },
            None => _ = out.push_element(element),
        }
        index += 1;
    }
    for (at, is_update, field) in changes {
        if !is_update || at >= limit {
            continue;
        }
        while index < at {
            out.push(Value::Null);
            index += 1;
        }
        out.push_element(field);
        index += 1;
    }
}

#[cfg(test)]
mod tests;
