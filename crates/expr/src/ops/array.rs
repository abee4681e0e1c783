//! Arrays: elements, slices, searches, and the ways to and from objects.

use std::cmp::Ordering;

use sheaf_bson::{RawDoc, Value, array_in, document_in};
use sheaf_errors::{Code, Error, Result, bail};

use super::{array_of, build_array, exact_i32, grown, items, show};
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Arity, Operator, State, between, binary, custom, lazy, unary};
use crate::parse::parse_arguments;

pub(crate) static OPERATORS: &[Operator] = &[
    binary("$arrayElemAt", array_elem_at),
    unary("$first", |v, _| ends("$first", v[0], true)),
    unary("$last", |v, _| ends("$last", v[0], false)),
    lazy("$concatArrays", Arity::Any, concat_arrays),
    binary("$in", is_in),
    custom("$indexOfArray", parse_index_of_array, index_of_array),
    unary("$isArray", |v, _| Ok(Value::Bool(v[0].as_array().is_some()))),
    between("$range", 2, 3, range),
    unary("$reverseArray", reverse_array),
    unary("$size", size),
    between("$slice", 2, 3, slice),
    unary("$objectToArray", object_to_array),
    unary("$arrayToObject", array_to_object),
];

fn array_elem_at<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let (array, index) = (v[0], v[1]);
    if array.is_nullish() || index.is_nullish() {
        return Ok(Value::Null);
    }
    let Value::Array(array) = array else {
        bail!(28689, "$arrayElemAt's first argument must be an array, but is {}", array.type_name());
    };
    if !index.is_number() {
        bail!(28690, "$arrayElemAt's second argument must be a numeric value, but is {}", index.type_name());
    }
    let Some(at) = exact_i32(index) else {
        bail!(
            28691,
            "$arrayElemAt's second argument must be representable as a 32-bit integer: {}",
            show(index)
        );
    };
    if at >= 0 {
        return Ok(array.values().nth(at as usize).unwrap_or(Value::Missing));
    }
    let items = items(array, cx)?;
    let back = at.unsigned_abs() as usize;
    Ok(items.len().checked_sub(back).map_or(Value::Missing, |at| items[at]))
}

fn ends<'a>(name: &str, value: Value<'a>, first: bool) -> Result<Value<'a>> {
    match value {
        Value::Array(array) if first => Ok(array.values().next().unwrap_or(Value::Missing)),
        Value::Array(array) => Ok(array.values().last().unwrap_or(Value::Missing)),
        value if value.is_nullish() => Ok(Value::Null),
        other => bail!(28689, "{name}'s argument must be an array, but is {}", other.type_name()),
    }
}

fn concat_arrays<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut null = false;
    let joined = build_array(cx, |out| {
        for arg in &call.args {
            match arg.value(cx)? {
                Value::Array(array) => {
                    for item in array.iter() {
                        out.push_element(item);
                        grown(cx, out.size())?;
                    }
                }
                value if value.is_nullish() => {
                    null = true;
                    return Ok(());
                }
                other => bail!(28664, "$concatArrays only supports arrays, not {}", other.type_name()),
            }
        }
        Ok(())
    })?;
    Ok(if null { Value::Null } else { joined })
}

fn is_in<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let Value::Array(array) = v[1] else {
        bail!(40081, "$in requires an array as a second argument, found: {}", v[1].type_name());
    };
    for item in array.values() {
        if cx.try_compare(item, v[0])? == Ordering::Equal {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn parse_index_of_array(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_arguments(op.name, Arity::Between(2, 4), argument, cx)?;
    // A constant array is prepared while optimising, and refused there with a number of its own.
    if let Some(known) = args[0].constant().filter(|_| !super::date_parts::all_known(&args)) {
        if known.is_nullish() {
            return Ok(Expr::null());
        }
        if known.as_array().is_none() {
            let message = format!(
                "First operand of $indexOfArray must be an array. First argument is of type: {}",
                known.type_name()
            );
            cx.fold_failed(Error::location(50809, message));
        }
    }
    Ok(Expr::call(op, args, State::None, cx))
}

fn index_of_array<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let value = call.arg(0, cx)?;
    if value.is_nullish() {
        return Ok(Value::Null);
    }
    let Value::Array(array) = value else {
        bail!(40090, "$indexOfArray requires an array as a first argument, found: {}", value.type_name());
    };
    cx.env.spend_for(array.len())?;
    let bound = |at: usize, which: &str, default: usize| {
        let Some(arg) = call.args.get(at) else { return Ok(default) };
        let value = arg.value(cx)?;
        match exact_i32(value) {
            Some(n) if n >= 0 => Ok(n as usize),
            Some(n) => bail!(9711601, "$indexOfArray requires a nonnegative {which} index, found: {n}"),
            None => bail!(
                9711600,
                "$indexOfArray requires an integral {which} index, found a value of type: {}, with value: \"{}\"",
                value.type_name(),
                show(value)
            ),
        }
    };
    let start = bound(2, "starting", 0)?;
    let end = bound(3, "ending", usize::MAX)?;
    let wanted = call.arg(1, cx)?;
    for (at, item) in array.values().enumerate().take(end).skip(start) {
        if cx.try_compare(item, wanted)? == Ordering::Equal {
            return Ok(Value::Int32(at as i32));
        }
    }
    Ok(Value::Int32(-1))
}

fn range<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let bound = |value: Value<'_>, which: &str, not_number: i32, not_integer: i32| {
        if !value.is_number() {
            bail!(
                Code(not_number),
                "$range requires a numeric {which} value, found value of type: {}",
                value.type_name()
            );
        }
        match exact_i32(value) {
            Some(n) => Ok(i64::from(n)),
            None => bail!(
                Code(not_integer),
                "$range requires a {which} value that can be represented as a 32-bit integer, found value: {}",
                show(value)
            ),
        }
    };
    let start = bound(v[0], "starting", 34443, 34444)?;
    let end = bound(v[1], "ending", 34445, 34446)?;
    let step = match v.get(2) {
        Some(step) => bound(*step, "step", 34447, 34448)?,
        None => 1,
    };
    if step == 0 {
        bail!(34449, "$range requires a non-zero step value");
    }
    let count = ((end - start) + step - step.signum()) / step;
    // mongod counts 16 bytes for each value against its 100 MB.
    if count > 100 * 1024 * 1024 / 16 {
        bail!(
            Code::EXCEEDED_MEMORY_LIMIT,
            "$range would use too much memory ({} bytes) and cannot spill to disk. Memory limit: 104857600 bytes",
            count * 16
        );
    }
    array_of((0..count).map(|at| Value::Int32((start + at * step) as i32)), cx)
}

fn reverse_array<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    match v[0] {
        Value::Array(array) => array_of(items(array, cx)?.iter().rev().copied(), cx),
        value if value.is_nullish() => Ok(Value::Null),
        other => {
            bail!(
                34435,
                "The argument to $reverseArray must be an array, but was of type: {}",
                other.type_name()
            )
        }
    }
}

fn size<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    match v[0] {
        Value::Array(array) => Ok(Value::Int32(array.count() as i32)),
        other => {
            bail!(17124, "The argument to $size must be an array, but was of type: {}", other.type_name())
        }
    }
}

fn slice<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    if v[0].is_nullish() || v[1].is_nullish() {
        return Ok(Value::Null);
    }
    let Value::Array(array) = v[0] else {
        bail!(28724, "First argument to $slice must be an array, but is of type: {}", v[0].type_name());
    };
    let number = |value: Value<'_>, which: &str, not_number: i32, not_integer: i32| {
        if !value.is_number() {
            bail!(
                Code(not_number),
                "{which} argument to $slice must be a numeric value, but is of type: {}",
                value.type_name()
            );
        }
        match exact_i32(value) {
            Some(n) => Ok(i64::from(n)),
            None => bail!(
                Code(not_integer),
                "{which} argument to $slice can't be represented as a 32-bit integer: {}",
                show(value)
            ),
        }
    };
    let second = number(v[1], "Second", 28725, 28726)?;
    let size = array.count() as i64;
    let (start, count) = match v.get(2) {
        None if second < 0 => ((size + second).max(0), -second),
        None => (0, second),
        Some(third) if third.is_nullish() => return Ok(Value::Null),
        Some(third) => {
            let count = number(*third, "Third", 28727, 28728)?;
            if count <= 0 {
                bail!(28729, "Third argument to $slice must be positive: {}", show(*third));
            }
            (if second < 0 { (size + second).max(0) } else { second }, count)
        }
    };
    Ok(Value::Array(array_in(cx.env.arena(), |out| {
        array.iter().skip(start as usize).take(count as usize).for_each(|item| _ = out.push_element(item));
    })))
}

fn object_to_array<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    match v[0] {
        Value::Document(doc) => Ok(Value::Array(array_in(cx.env.arena(), |out| {
            for element in doc.iter() {
                out.document().append("k", element.key()).append_renamed("v", element);
            }
        }))),
        value if value.is_nullish() => Ok(Value::Null),
        other => bail!(40390, "$objectToArray requires a document input, found: {}", other.type_name()),
    }
}

fn array_to_object<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let array = match v[0] {
        Value::Array(array) => array,
        value if value.is_nullish() => return Ok(Value::Null),
        other => bail!(40386, "$arrayToObject requires an array input, found: {}", other.type_name()),
    };
    let pairs_come = match array.values().next() {
        None => return Ok(Value::Document(RawDoc::EMPTY)),
        Some(Value::Array(_)) => true,
        Some(Value::Document(_)) => false,
        Some(other) => {
            bail!(40398, "Unrecognised input type format for $arrayToObject: {}", other.type_name())
        }
    };
    let mut fields = FieldList::new(cx);
    for item in array.values() {
        let (key, value) = if pairs_come { pair(item)? } else { key_value(item)? };
        fields.set(key, value)?;
        cx.env.spend(1)?;
    }
    fields.document()
}

fn pair(item: Value<'_>) -> Result<(&str, Value<'_>)> {
    let Value::Array(array) = item else {
        bail!(
            40396,
            "Found a mixture of input formats in $arrayToObject: all inputs must be either all arrays or all \
             objects, found: {}",
            item.type_name()
        );
    };
    let mut parts = array.values();
    let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
        bail!(
            40397,
            "$arrayToObject requires an array of size 2 arrays,found array of size: {}",
            array.count()
        );
    };
    match key {
        Value::String(key) if key.contains('\0') => {
            bail!(4940400, "Key field cannot contain an embedded null byte")
        }
        Value::String(key) => Ok((key, value)),
        other => bail!(
            40395,
            "$arrayToObject requires an array of key-value pairs, where the key must be of type string. Found \
             key type: {}",
            other.type_name()
        ),
    }
}

fn key_value(item: Value<'_>) -> Result<(&str, Value<'_>)> {
    let Value::Document(doc) = item else {
        bail!(
            40391,
            "Found a mixture of input formats in $arrayToObject: all inputs must be either all arrays or all \
             objects, found: {}",
            item.type_name()
        );
    };
    if doc.count() != 2 {
        bail!(
            40392,
            "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:{}",
            doc.count()
        );
    }
    let (Some(key), Some(value)) = (doc.get("k"), doc.get("v")) else {
        bail!(
            40393,
            "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both keys from: {}",
            show(item)
        );
    };
    match key {
        Value::String(key) if key.contains('\0') => {
            bail!(4940401, "Key field cannot contain an embedded null byte")
        }
        Value::String(key) => Ok((key, value)),
        other => bail!(
            40394,
            "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' must be of type \
             string. Found type: {}",
            other.type_name()
        ),
    }
}

/// Fields of a document being put together, in which a later value of a name takes the earlier one's place.
pub(super) struct FieldList<'a, 'e> {
    cx: Cx<'a, 'e>,
    fields: bumpalo::collections::Vec<'a, (&'a str, Value<'a>)>,
    /// Places by name, kept once there are so many fields that searching would be slow.
    places: Option<std::collections::HashMap<&'a str, usize, ahash::RandomState>>,
    /// The account of the places.
    held: Option<sheaf_meter::Held>,
}

/// What the places take for each field at most, while they are moved to where there is more room.
const PLACE_BYTES: usize = 160;

/// From so many fields on the places are counted.
const COUNTED_PLACES: usize = 4096;

impl<'a, 'e> FieldList<'a, 'e> {
    pub(super) fn new(cx: Cx<'a, 'e>) -> Self {
        FieldList { cx, fields: bumpalo::collections::Vec::new_in(cx.env.arena()), places: None, held: None }
    }

    pub(super) fn set(&mut self, name: &'a str, value: Value<'a>) -> Result<()> {
        match self.place(name) {
            Some(at) => self.fields[at].1 = value,
            None => {
                if self.fields.len() == self.fields.capacity() {
                    self.expect_more()?;
                }
                if let Some(places) = &mut self.places {
                    places.insert(name, self.fields.len());
                }
                self.fields.push((name, value));
            }
        }
        Ok(())
    }

    /// Counts what twice as many fields take.
    fn expect_more(&mut self) -> Result<()> {
        let count = self.fields.len();
        if count < COUNTED_PLACES {
            return Ok(());
        }
        self.cx.env.expect(2 * count * size_of::<(&str, Value<'_>)>())?;
        let bytes = (count * PLACE_BYTES) as u64;
        match &mut self.held {
            Some(held) => held.set(bytes),
            none => sheaf_meter::reserve(bytes).map(|held| *none = Some(held)),
        }
    }

    fn place(&mut self, name: &str) -> Option<usize> {
        if self.fields.len() == 32 && self.places.is_none() {
            self.places = Some(self.fields.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect());
        }
        match &self.places {
            Some(places) => places.get(name).copied(),
            None => self.fields.iter().position(|(earlier, _)| *earlier == name),
        }
    }

    pub(super) fn document(&self) -> Result<Value<'a>> {
        let mut done = Ok(());
        let document = document_in(self.cx.env.arena(), |out| {
            done = self.fields.iter().try_for_each(|(name, value)| {
                out.append(name, *value);
                grown(self.cx, out.size())
            });
        });
        done.map(|()| Value::Document(document))
    }
}
