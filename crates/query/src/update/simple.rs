//! The short way for the commonest updates: a few operators on top-level fields with scalar or small arguments.
//!
//! Nothing is copied while parsing, and nothing here makes an error: whatever is unusual (dotted paths, `_id`,
//! conflicts, a value of the wrong type, repeated names) is left to the general way, which knows all messages.

use sheaf_bson::{DocBuf, DocWriter, Element, MAX_DOCUMENT_SIZE, RawDoc, Value, compare};
use smallvec::SmallVec;

use super::apply::{Edits, depth, same_bytes};
use super::ops::arithmetic;
use super::tree::name_order;

/// More operators than this take the general way, as a search among them would no longer be cheap.
const MAX_OPERATORS: usize = 16;

/// Arguments nested deeper than this take the general way, which checks the limit.
const SHALLOW: usize = 16;

/// Operators on top-level fields, borrowed from the update.
#[derive(Debug)]
pub struct SimpleUpdate<'u> {
    /// In the order in which new fields are created.
    operators: SmallVec<[Operator<'u>; 4]>,
}

#[derive(Debug)]
struct Operator<'u> {
    kind: Kind,
    name: &'u str,
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
                match operators.binary_search_by(|known| name_order(known.name, operator.name)) {
                    Ok(_) => return None,
                    Err(_) if operators.len() == MAX_OPERATORS => return None,
                    Err(at) => operators.insert(at, operator),
                }
            }
        }
        // A document without any modifier is a replacement.
        (!update.is_empty()).then_some(SimpleUpdate { operators })
    }

    /// Applies it to a document that has been found.
    pub fn apply(&self, old: RawDoc<'_>) -> SimpleOutcome {
        let mut edits = Edits::default();
        let mut met = [false; MAX_OPERATORS];
        let mut offset = 4;
        for element in old.iter() {
            let end = offset + element.as_bytes().len();
            let range = std::mem::replace(&mut offset, end)..end;
            let Some(at) = self.operators.iter().position(|op| op.name.as_bytes() == element.key_bytes())
            else {
                continue;
            };
            if std::mem::replace(&mut met[at], true) {
                return SimpleOutcome::Unusual;
            }
            match self.operators[at].change(element.value()) {
                None => return SimpleOutcome::Unusual,
                Some(Some(value)) if !same_bytes(element.value(), value) => {
                    edits.at.push((range, self.operators[at].name, value));
                }
                Some(_) => {}
            }
        }
        for (operator, _) in self.operators.iter().zip(met).filter(|(_, met)| !met) {
            match operator.kind {
                Kind::SetOnInsert | Kind::Unset => {}
                Kind::Mul => return SimpleOutcome::Unusual,
                _ => edits.appended.push((operator.name, operator.argument)),
            }
        }
        finish(old, &edits)
    }
}

impl<'u> Operator<'u> {
    fn read(kind: Kind, field: Element<'u>) -> Option<Operator<'u>> {
        let (name, argument) = (field.key(), field.value());
        let plain = !name.is_empty() && name != "_id" && !name.starts_with('$') && !name.contains('.');
        let fits = match argument {
            Value::Document(inner) | Value::Array(inner) => depth(inner) <= SHALLOW,
            _ => true,
        };
        let numeric = !matches!(kind, Kind::Inc | Kind::Mul) || argument.is_number();
        (plain && fits && numeric).then_some(Operator { kind, name, argument })
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

fn finish(old: RawDoc<'_>, edits: &Edits<'_>) -> SimpleOutcome {
    if edits.is_empty() {
        return SimpleOutcome::Same;
    }
    let sizes =
        edits.appended.iter().map(|(_, value)| value).chain(edits.at.iter().map(|(_, _, value)| value));
    let room: usize = sizes.map(value_room).sum();
    let mut bytes = Vec::with_capacity(old.len() + room);
    edits.splice(old, &mut bytes);
    if bytes.len() > MAX_DOCUMENT_SIZE {
        return SimpleOutcome::Unusual;
    }
    let mut delta = Vec::with_capacity(room + 48);
    put_delta(edits, DocWriter::new(&mut delta));
    SimpleOutcome::Changed { new: DocBuf::from_bytes(bytes), delta: DocBuf::from_bytes(delta) }
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

/// The edits as a delta: see [`crate::diff`].
fn put_delta(edits: &Edits<'_>, mut out: DocWriter<'_, Vec<u8>>) {
    if edits.at.iter().any(|(_, _, value)| value.is_missing()) {
        let mut section = out.document("d");
        let gone = edits.at.iter().filter(|(_, _, value)| value.is_missing());
        gone.for_each(|(_, name, _)| _ = section.append(name, false));
    }
    if edits.at.iter().any(|(_, _, value)| !value.is_missing()) {
        let mut section = out.document("u");
        let kept = edits.at.iter().filter(|(_, _, value)| !value.is_missing());
        kept.for_each(|(_, name, value)| _ = section.append(name, *value));
    }
    if !edits.appended.is_empty() {
        let mut section = out.document("i");
        edits.appended.iter().for_each(|(name, value)| _ = section.append(name, *value));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sheaf_bson::{OwnedValue, Timestamp, doc};
    use sheaf_expr::ParseCx;

    use super::*;
    use crate::diff::apply_diff;
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
            let Some(simple) = SimpleUpdate::parse(update.as_raw()) else { return Ok(()) };
            let cx = ApplyCx { matched_index: None, now_millis: 0, timestamp: Timestamp(0) };
            let general = Update::parse(Value::Document(update.as_raw()), &[], &mut ParseCx::new())
                .expect("what is simple has no errors")
                .apply(old.as_raw(), &cx);
            match simple.apply(old.as_raw()) {
                SimpleOutcome::Unusual => {}
                SimpleOutcome::Same => prop_assert_eq!(general.unwrap(), None),
                SimpleOutcome::Changed { new, delta } => {
                    prop_assert_eq!(&apply_diff(old.as_raw(), delta.as_raw()), &new);
                    prop_assert_eq!(general.unwrap(), Some(new));
                }
            }
        }
    }

    #[test]
    fn what_is_simple() {
        for simple in [
            doc! { "$set": { "a": 1, "b": "x" }, "$inc": { "c": 1 } },
            doc! { "$setOnInsert": { "a": 1 }, "$unset": { "b": "" } },
            doc! { "$set": {} },
        ] {
            assert!(SimpleUpdate::parse(simple.as_raw()).is_some(), "{simple:?}");
        }
        for other in [
            doc! {},
            doc! { "a": 1 },
            doc! { "$set": { "a.b": 1 } },
            doc! { "$set": { "_id": 1 } },
            doc! { "$set": { "a": 1 }, "$inc": { "a": 1 } },
            doc! { "$inc": { "a": "x" } },
            doc! { "$push": { "a": 1 } },
        ] {
            assert!(SimpleUpdate::parse(other.as_raw()).is_none(), "{other:?}");
        }
    }
}
