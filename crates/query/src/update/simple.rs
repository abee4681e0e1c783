//! The short way for the commonest updates: a few operators on fields of the document, or of embedded documents, with
//! scalar or small arguments.
//!
//! Nothing is copied while parsing, and nothing here makes an error: whatever is unusual (arrays on the way, `_id`,
//! conflicts, a value of the wrong type, repeated names) is left to the general way, which knows all messages.
//!
//! The oplog's delta comes from the same steps as the new version, so neither are two versions compared nor is it tried
//! whether the delta gives the new one: a test does that.

use std::cmp::Ordering;
use std::ops::Range;

use sheaf_bson::{DocBuf, DocWriter, Element, MAX_DOCUMENT_SIZE, RawDoc, Value, compare};
use smallvec::SmallVec;

use super::apply::{depth, same_bytes};
use super::ops::arithmetic;
use crate::name_order::name_order;

/// More operators than this take the general way, as a search among them would no longer be cheap.
const MAX_OPERATORS: usize = 16;

/// Paths with more parts, and arguments nested deeper than this take the general way, which checks the limit.
const SHALLOW: usize = 16;

/// Operators on fields that no array stands above, borrowed from the update.
#[derive(Debug)]
pub struct SimpleUpdate<'u> {
    /// In the order in which new fields are created; none is at or above another.
    operators: SmallVec<[Operator<'u>; 4]>,
}

#[derive(Debug)]
struct Operator<'u> {
    kind: Kind,
    path: &'u str,
    argument: Value<'u>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Set,
    SetOnInsert,
    Unset,
    Inc,
    Mul,
    Min,
    Max,
}

/// What a [`SimpleUpdate`] made of a document.
#[derive(Debug)]
pub enum SimpleOutcome {
    /// No byte changes.
    Same,
    /// The new version, and the oplog's delta that leads to it.
    Changed {
        /// The new version.
        new: DocBuf,
        /// See [`crate::diff`].
        delta: DocBuf,
    },
    /// This document is for the general way.
    Unusual,
}

/// What is done to one document and what is embedded in it, in the order of its fields; new ones come last.
type Steps<'a> = SmallVec<[Step<'a>; 4]>;

enum Step<'a> {
    /// The element that takes these bytes of its document has a new value, or is removed (`Missing`).
    Put { range: Range<usize>, name: &'a str, value: Value<'a> },
    /// The next `count` steps are for the document in this element.
    Inside { range: Range<usize>, name: &'a str, inner: RawDoc<'a>, count: usize },
    /// A field that these operators create; `above` is the length of their paths' common start.
    New { name: &'a str, operators: &'a [Operator<'a>], above: usize },
}

/// Operators that begin with the same part at one level.
struct Child<'a> {
    name: &'a str,
    operators: &'a [Operator<'a>],
    /// As in [`Step::New`].
    above: usize,
    met: bool,
}

impl<'u> SimpleUpdate<'u> {
    /// Reads a document of modifiers; `None` if any of it is not simple.
    pub fn parse(update: RawDoc<'u>) -> Option<SimpleUpdate<'u>> {
        let mut operators: SmallVec<[Operator<'u>; 4]> = SmallVec::new();
        for modifier in update.iter() {
            let kind = match modifier.key_bytes() {
                b"$set" => Kind::Set,
                b"$inc" => Kind::Inc,
                b"$unset" => Kind::Unset,
                b"$setOnInsert" => Kind::SetOnInsert,
                b"$mul" => Kind::Mul,
                b"$min" => Kind::Min,
                b"$max" => Kind::Max,
                _ => return None,
            };
            for field in modifier.value().as_doc()?.iter() {
                let operator = Operator::read(kind, field)?;
                let place = operators.binary_search_by(|known| path_order(known.path, operator.path));
                let at = place.err().filter(|_| operators.len() < MAX_OPERATORS)?;
                // What begins with a path follows it at once, so the neighbours are all that can conflict.
                let before = at.checked_sub(1).is_some_and(|at| is_above(operators[at].path, operator.path));
                if before || operators.get(at).is_some_and(|next| is_above(operator.path, next.path)) {
                    return None;
                }
                operators.insert(at, operator);
            }
        }
        // A document without any modifier is a replacement.
        (!update.is_empty()).then_some(SimpleUpdate { operators })
    }

    /// Applies it to a document that has been found.
    pub fn apply(&self, old: RawDoc<'_>) -> SimpleOutcome {
        let mut steps = Steps::new();
        match collect(&self.operators, 0, old, &mut steps) {
            Some(()) => finish(old, &steps),
            None => SimpleOutcome::Unusual,
        }
    }
}

/// Finds what the operators, whose paths begin with the same `above` bytes, do to the document that stands there.
fn collect<'a>(
    operators: &'a [Operator<'a>],
    above: usize,
    container: RawDoc<'a>,
    steps: &mut Steps<'a>,
) -> Option<()> {
    let mut children: SmallVec<[Child<'a>; 4]> = children(operators, above).collect();
    let mut offset = 4;
    for element in container.iter() {
        let end = offset + element.as_bytes().len();
        let range = std::mem::replace(&mut offset, end)..end;
        let Some(child) = children.iter_mut().find(|child| child.name.as_bytes() == element.key_bytes())
        else {
            continue;
        };
        if std::mem::replace(&mut child.met, true) {
            return None;
        }
        let (name, value) = (child.name, element.value());
        if let Some(operator) = child.leaf() {
            match operator.change(value)? {
                Some(new) if !same_bytes(value, new) => steps.push(Step::Put { range, name, value: new }),
                _ => {}
            }
            continue;
        }
        let Value::Document(inner) = value else { return None };
        let at = steps.len();
        steps.push(Step::Inside { range: range.clone(), name, inner, count: 0 });
        collect(child.operators, child.above, inner, steps)?;
        match steps.len() - at - 1 {
            0 => _ = steps.pop(),
            count => steps[at] = Step::Inside { range, name, inner, count },
        }
    }
    for Child { name, operators, above, .. } in children.into_iter().filter(|child| !child.met) {
        if operators.iter().any(|operator| operator.kind == Kind::Mul) {
            return None;
        }
        if creates(operators) {
            steps.push(Step::New { name, operators, above });
        }
    }
    Some(())
}

/// The operators, whose paths begin with the same `above` bytes, by the part of their paths that follows.
fn children<'a>(operators: &'a [Operator<'a>], above: usize) -> impl Iterator<Item = Child<'a>> {
    operators.chunk_by(move |a, b| a.part(above) == b.part(above)).map(move |operators| {
        let name = operators[0].part(above);
        Child { name, operators, above: above + name.len() + 1, met: false }
    })
}

impl<'a> Child<'a> {
    /// The operator of which this is the whole path.
    fn leaf(&self) -> Option<&'a Operator<'a>> {
        Some(&self.operators[0]).filter(|operator| operator.path.len() < self.above)
    }
}

/// Whether one of these makes a field that is not there.
fn creates(operators: &[Operator<'_>]) -> bool {
    operators.iter().any(|operator| !matches!(operator.kind, Kind::SetOnInsert | Kind::Unset))
}

/// Paths by the order of their parts.
fn path_order(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        match (a.next(), b.next()) {
            (Some(a), Some(b)) => match name_order(a, b) {
                Ordering::Equal => {}
                order => return order,
            },
            (a, b) => return a.is_some().cmp(&b.is_some()),
        }
    }
}

fn is_above(above: &str, path: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'))
}

impl<'u> Operator<'u> {
    fn read(kind: Kind, field: Element<'u>) -> Option<Operator<'u>> {
        let (path, argument) = (field.key(), field.value());
        let mut parts = 0;
        for part in path.split('.') {
            parts += 1;
            if part.is_empty() || part.starts_with('$') || (parts == 1 && part == "_id") {
                return None;
            }
        }
        let fits = match argument {
            Value::Document(inner) | Value::Array(inner) => depth(inner) <= SHALLOW,
            _ => true,
        };
        let numeric = !matches!(kind, Kind::Inc | Kind::Mul) || argument.is_number();
        (parts <= SHALLOW && fits && numeric).then_some(Operator { kind, path, argument })
    }

    /// The part of the path that begins at this byte.
    fn part(&self, from: usize) -> &'u str {
        let rest = &self.path[from..];
        rest.split_once('.').map_or(rest, |(part, _)| part)
    }

    /// What becomes of a field: `Some(None)` keeps it, `Missing` removes it, `None` is for the general way.
    fn change<'v>(&self, old: Value<'v>) -> Option<Option<Value<'v>>>
    where
        'u: 'v,
    {
        Some(Some(match self.kind {
            Kind::Set => self.argument,
            Kind::SetOnInsert => return Some(None),
            Kind::Unset => Value::Missing,
            Kind::Inc if old.is_number() => arithmetic(true, old, self.argument)?,
            Kind::Mul if old.is_number() => arithmetic(false, old, self.argument)?,
            Kind::Inc | Kind::Mul => return None,
            Kind::Min if compare(self.argument, old).is_lt() => self.argument,
            Kind::Max if compare(self.argument, old).is_gt() => self.argument,
            Kind::Min | Kind::Max => return Some(None),
        }))
    }
}

fn finish(old: RawDoc<'_>, steps: &[Step<'_>]) -> SimpleOutcome {
    if steps.is_empty() {
        return SimpleOutcome::Same;
    }
    let room: usize = steps.iter().map(Step::room).sum();
    let mut bytes = Vec::with_capacity(old.len() + room);
    splice(old, steps, DocWriter::new(&mut bytes));
    if bytes.len() > MAX_DOCUMENT_SIZE {
        return SimpleOutcome::Unusual;
    }
    let mut delta = Vec::with_capacity(room + 48);
    put_delta(steps, DocWriter::new(&mut delta));
    SimpleOutcome::Changed { new: DocBuf::from_bytes(bytes), delta: DocBuf::from_bytes(delta) }
}

impl Step<'_> {
    /// Bytes that this adds to the document or to the delta at most, with names of usual length.
    fn room(&self) -> usize {
        match self {
            Step::Put { value, .. } => value_room(value),
            Step::Inside { .. } => 40,
            Step::New { operators, .. } => operators.iter().map(|new| 40 + value_room(&new.argument)).sum(),
        }
    }
}

/// Bytes that an element with this value takes at most, with a name of usual length.
fn value_room(value: &Value<'_>) -> usize {
    40 + match value {
        Value::Document(inner) | Value::Array(inner) => inner.len(),
        Value::String(text) => text.len(),
        Value::Binary(binary) => binary.bytes.len(),
        _ => 0,
    }
}

/// The steps of one document, each with those for the document in it.
fn level<'s, 'a>(steps: &'s [Step<'a>]) -> impl Iterator<Item = (&'s Step<'a>, &'s [Step<'a>])> {
    let mut left = steps;
    std::iter::from_fn(move || {
        let (first, rest) = left.split_first()?;
        let count = if let Step::Inside { count, .. } = first { *count } else { 0 };
        let (inside, rest) = rest.split_at(count);
        left = rest;
        Some((first, inside))
    })
}

/// Writes a document's bytes anew.
fn splice(container: RawDoc<'_>, steps: &[Step<'_>], mut out: DocWriter<'_, Vec<u8>>) {
    let bytes = container.as_bytes();
    let end = bytes.len() - 1;
    let mut from = 4;
    for (step, inside) in level(steps) {
        let range = match step {
            Step::Put { range, .. } | Step::Inside { range, .. } => range.clone(),
            Step::New { .. } => end..end,
        };
        out.append_raw_elements(&bytes[from..range.start]);
        from = range.end;
        match step {
            Step::Put { name, value, .. } => _ = out.append(name, *value),
            Step::Inside { name, inner, .. } => splice(*inner, inside, out.document(name)),
            Step::New { name, operators, above } => create(name, operators, *above, &mut out),
        }
    }
    out.append_raw_elements(&bytes[from..end]);
}

/// Appends the field that these operators create.
fn create(name: &str, operators: &[Operator<'_>], above: usize, out: &mut DocWriter<'_, Vec<u8>>) {
    if let [Operator { path, argument, .. }] = operators
        && path.len() < above
    {
        out.append(name, *argument);
        return;
    }
    let mut inner = out.document(name);
    for child in children(operators, above).filter(|child| creates(child.operators)) {
        create(child.name, child.operators, child.above, &mut inner);
    }
}

/// The steps as a delta: see [`crate::diff`].
fn put_delta(steps: &[Step<'_>], mut out: DocWriter<'_, Vec<u8>>) {
    let (mut removes, mut updates, mut inserts) = (false, false, false);
    for (step, _) in level(steps) {
        match step {
            Step::Put { value: Value::Missing, .. } => removes = true,
            Step::Put { .. } => updates = true,
            Step::New { .. } => inserts = true,
            Step::Inside { .. } => {}
        }
    }
    // In the order of names, whatever that of the document's fields is.
    let mut named: SmallVec<[(&str, Value<'_>); 4]> = SmallVec::new();
    let mut nested: SmallVec<[(&str, &[Step<'_>]); 2]> = SmallVec::new();
    for (step, inside) in level(steps) {
        match step {
            Step::Put { name, value, .. } => named.push((name, *value)),
            Step::Inside { name, .. } => nested.push((name, inside)),
            Step::New { .. } => {}
        }
    }
    named.sort_by(|(a, _), (b, _)| name_order(a, b));
    nested.sort_by(|(a, _), (b, _)| name_order(a, b));
    let puts = || named.iter().copied();
    if removes {
        let mut section = out.document("d");
        let gone = puts().filter(|(_, value)| value.is_missing());
        gone.for_each(|(name, _)| _ = section.append(name, false));
    }
    if updates {
        let mut section = out.document("u");
        // What is missing is not appended.
        puts().for_each(|(name, value)| _ = section.append(name, value));
    }
    if inserts {
        let mut section = out.document("i");
        for (step, _) in level(steps) {
            if let Step::New { name, operators, above } = step {
                create(name, operators, *above, &mut section);
            }
        }
    }
    for (name, inside) in nested {
        put_delta(inside, out.document_prefixed("s", name));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sheaf_bson::{OwnedValue, Timestamp, Type, doc};
    use sheaf_expr::ParseCx;

    use super::*;
    use crate::diff::{apply_diff, operator_diff};
    use crate::update::{ApplyCx, Update};

    fn scalar() -> impl Strategy<Value = OwnedValue> {
        prop_oneof![
            (-2i32..3).prop_map(|n| OwnedValue::from(Value::Int32(n))),
            prop_oneof![Just(i64::MAX), Just(3), Just(-1)].prop_map(|n| OwnedValue::from(Value::Int64(n))),
            (-2i8..3).prop_map(|n| OwnedValue::from(Value::Double(f64::from(n) / 2.0))),
            "[ab]{0,2}".prop_map(|text| OwnedValue::from(Value::String(&text))),
            Just(OwnedValue::from(Value::Null)),
            Just(OwnedValue::from(Value::Document(doc! { "x": 1 }.as_raw()))),
        ]
    }

    fn fields(count: std::ops::Range<usize>) -> impl Strategy<Value = DocBuf> {
        prop::collection::vec(("[a-d]|10|9|_id", scalar()), count).prop_map(|fields| {
            DocBuf::build(|out| fields.iter().for_each(|(name, value)| _ = out.append(name, value)))
        })
    }

    /// A document with documents and arrays in it, few enough names that paths meet them.
    fn nested(depth: u32) -> BoxedStrategy<DocBuf> {
        if depth == 0 {
            return fields(0..4).boxed();
        }
        let value = prop_oneof![
            2 => scalar(),
            3 => nested(depth - 1).prop_map(|inner| OwnedValue::from(Value::Document(inner.as_raw()))),
            1 => Just(OwnedValue::from(Value::Array(doc! { "0": 1, "1": { "a": 1 } }.as_raw()))),
        ];
        prop::collection::vec(("[a-c]|10|9|_id", value), 0..5)
            .prop_map(|fields| {
                DocBuf::build(|out| fields.iter().for_each(|(name, value)| _ = out.append(name, value)))
            })
            .boxed()
    }

    fn dotted_update() -> impl Strategy<Value = DocBuf> {
        let names = ["$set", "$inc", "$unset", "$setOnInsert", "$mul", "$min", "$max"];
        let path = prop::collection::vec("[a-c]|10|9|_id", 1..4).prop_map(|parts| parts.join("."));
        let fields = prop::collection::vec((path, scalar()), 0..4).prop_map(|fields| {
            DocBuf::build(|out| fields.iter().for_each(|(name, value)| _ = out.append(name, value)))
        });
        prop::collection::vec((prop::sample::select(names.to_vec()), fields), 1..3).prop_map(|modifiers| {
            DocBuf::build(|out| modifiers.iter().for_each(|(name, fields)| _ = out.append(name, fields)))
        })
    }

    /// What the short way says of a document, compared with the general way.
    fn compare_ways(old: &DocBuf, update: &DocBuf) -> Result<(), TestCaseError> {
        let Some(simple) = SimpleUpdate::parse(update.as_raw()) else { return Ok(()) };
        let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
        let general = Update::parse(Value::Document(update.as_raw()), &[], &mut ParseCx::new())
            .expect("what is simple has no errors");
        match simple.apply(old.as_raw()) {
            SimpleOutcome::Unusual => {}
            SimpleOutcome::Same => prop_assert_eq!(general.apply(old.as_raw(), &cx).unwrap(), None),
            SimpleOutcome::Changed { new, delta } => {
                prop_assert_eq!(&apply_diff(old.as_raw(), delta.as_raw()), &new);
                prop_assert_eq!(&apply_diff(new.as_raw(), delta.as_raw()), &new);
                prop_assert_eq!(&general.apply(old.as_raw(), &cx).unwrap(), &Some(new.clone()));
                // Whole arrays are set here; an array within is told by its elements there.
                let has_arrays = old.as_bytes().contains(&(Type::Array as u8));
                let other = operator_diff(old.as_raw(), new.as_raw(), general.paths());
                if let Some(other) = other.filter(|_| !has_arrays) {
                    prop_assert_eq!(delta, other);
                }
            }
        }
        Ok(())
    }

    fn update() -> impl Strategy<Value = DocBuf> {
        let names = ["$set", "$inc", "$unset", "$setOnInsert", "$mul", "$min", "$max"];
        prop::collection::vec((prop::sample::select(names.to_vec()), fields(0..3)), 1..3).prop_map(
            |modifiers| {
                DocBuf::build(|out| modifiers.iter().for_each(|(name, fields)| _ = out.append(name, fields)))
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn the_short_way_gives_what_the_general_way_gives(old in fields(0..5), update in update()) {
            compare_ways(&old, &update)?;
        }

        #[test]
        fn the_short_way_goes_into_embedded_documents(old in nested(2), update in dotted_update()) {
            compare_ways(&old, &update)?;
        }
    }

    #[test]
    fn deltas_of_embedded_fields() {
        let old = doc! { "_id": 1, "a": { "b": 1, "c": { "d": 1 }, "e": 1 }, "z": 1 };
        let update = doc! {
            "$set": { "a.c.d": 2, "n.m": 1, "n.o.p": 2 }, "$inc": { "a.b": 1 }, "$unset": { "a.e": 1, "x.y": 1 },
        };
        let simple = SimpleUpdate::parse(update.as_raw()).expect("no array is named");
        let SimpleOutcome::Changed { new, delta } = simple.apply(old.as_raw()) else { panic!("it changes") };
        let n = doc! { "m": 1, "o": { "p": 2 } };
        assert_eq!(new, doc! { "_id": 1, "a": { "b": 2, "c": { "d": 2 } }, "z": 1, "n": &n });
        let inside = doc! { "d": { "e": false }, "u": { "b": 2 }, "sc": { "u": { "d": 2 } } };
        assert_eq!(delta, doc! { "i": { "n": &n }, "sa": &inside });
        for unusual in
            [doc! { "_id": 1, "a": [1] }, doc! { "_id": 1, "a": 1 }, doc! { "_id": 1, "a": { "c": 1 } }]
        {
            assert!(matches!(simple.apply(unusual.as_raw()), SimpleOutcome::Unusual), "{unusual:?}");
        }
        let same = doc! { "$set": { "a.c.d": 1 }, "$max": { "a.b": 0 } };
        let simple = SimpleUpdate::parse(same.as_raw()).expect("no array is named");
        assert!(matches!(simple.apply(old.as_raw()), SimpleOutcome::Same));
    }

    #[test]
    fn what_is_simple() {
        for simple in [
            doc! { "$set": { "a": 1, "b": "x" }, "$inc": { "c": 1 } },
            doc! { "$setOnInsert": { "a": 1 }, "$unset": { "b": "" } },
            doc! { "$set": {} },
            doc! { "$set": { "a.b": 1, "a.c": 1, "ab": 1 }, "$inc": { "a.0.x": 1 } },
        ] {
            assert!(SimpleUpdate::parse(simple.as_raw()).is_some(), "{simple:?}");
        }
        for other in [
            doc! {},
            doc! { "a": 1 },
            doc! { "$set": { "a.b": 1, "a": 1 } },
            doc! { "$set": { "a": 1, "a.b.c": 1 } },
            doc! { "$set": { "a.b.c": 1, "a.b.d": 1, "a.b": 1 } },
            doc! { "$set": { "a..b": 1 } },
            doc! { "$set": { "a.": 1 } },
            doc! { "$set": { "a.$": 1 } },
            doc! { "$set": { "a.$[]": 1 } },
            doc! { "$set": { "_id": 1 } },
            doc! { "$set": { "_id.a": 1 } },
            doc! { "$set": { "a": 1 }, "$inc": { "a": 1 } },
            doc! { "$inc": { "a": "x" } },
            doc! { "$push": { "a": 1 } },
        ] {
            assert!(SimpleUpdate::parse(other.as_raw()).is_none(), "{other:?}");
        }
    }
}
