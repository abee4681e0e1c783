//! Which keys a document has in an index.
//!
//! The rules are MongoDB's: a field that is absent reads as null; an array on the path gives one key per
//! element; only one array may be on the paths of a compound index (others must go through the same
//! one); an empty array reads as undefined where the path ends in it, and as null where it goes on; a
//! number in the path is an array position or a field name, but not both.

use sheaf_bson::key::encode;
use sheaf_bson::{RawDoc, Type, Value};
use sheaf_errors::{Code, Result, bail};
use smallvec::SmallVec;

use super::{Index, IndexKind, KeySet};

/// What making a key costs, as the meter counts.
const MAKE: u32 = 4;

/// What is known of one field while its path is followed.
#[derive(Clone, Copy)]
struct Field<'d, 'i> {
    at: At<'d, 'i>,
    /// Which component of the whole path comes next.
    component: u32,
}

#[derive(Clone, Copy)]
enum At<'d, 'i> {
    /// The value was found (or is missing).
    Value(Value<'d>),
    /// The rest of the path goes on in this document.
    In(RawDoc<'d>, &'i str),
    /// An array was met; `rest` is what is left of the path behind it.
    Array(RawDoc<'d>, &'d str, Option<&'i str>),
}

type Fields<'d, 'i> = SmallVec<[Field<'d, 'i>; 4]>;

impl Index {
    /// Replaces `out` with the keys of `doc`, sorted. A document outside a sparse or partial index has none.
    ///
    /// Errors: that the document cannot be indexed, or that the operation is to end ([`super::ends_operation`]).
    pub(crate) fn generate(&self, doc: RawDoc<'_>, out: &mut KeySet) -> Result<()> {
        out.clear();
        out.arrays.resize(self.fields.len(), 0);
        if let Some(filter) = &self.partial_filter
            && !filter.matches_doc(doc)?
        {
            return Ok(());
        }
        if self.kind == IndexKind::Wildcard {
            super::wildcard::generate(self, doc, out)?;
        } else if let Some(geo) = &self.geo {
            super::geo::generate(self, geo, doc, out)?;
        } else if let Some(spec) = &self.text {
            super::text::generate(self, spec, doc, out)?;
        } else {
            let fields =
                self.fields.iter().map(|(path, _)| Field { at: At::In(doc, path), component: 0 }).collect();
            self.expand(fields, out)?;
        }
        out.sort()
    }

    fn expand(&self, mut fields: Fields<'_, '_>, out: &mut KeySet) -> Result<()> {
        for field in &mut fields {
            walk(field);
        }
        let mut met: Option<(RawDoc<'_>, &str)> = None;
        for (at, field) in fields.iter().enumerate() {
            let At::Array(array, name, _) = field.at else { continue };
            if self.is_on_measurements(at) {
                bail!(5930501, "Indexed measurement field contains an array value");
            }
            match met {
                Some((other, other_name)) if !std::ptr::eq(other.as_bytes(), array.as_bytes()) => {
                    bail!(
                        Code::CANNOT_INDEX_PARALLEL_ARRAYS,
                        "cannot index parallel arrays [{name}] [{other_name}]"
                    )
                }
                _ => met = Some((array, name)),
            }
        }
        let Some((array, _)) = met else { return self.emit(&fields, out) };
        if self.kind == IndexKind::Hashed {
            bail!(16766, "hashed indexes do not currently support array values. Index: {}", self.name);
        }
        self.expand_array(&fields, array, out)
    }

    /// Whether a field is one of the two bounds of what a bucket has at some path.
    fn is_on_measurements(&self, at: usize) -> bool {
        const BOUNDS: [&str; 2] = ["control.min.", "control.max."];
        let below = |own: &str, other: &str| {
            let measured = self.fields[at].0.strip_prefix(own)?;
            self.fields.iter().find(|(path, _)| path.strip_prefix(other) == Some(measured))
        };
        below(BOUNDS[0], BOUNDS[1]).or(below(BOUNDS[1], BOUNDS[0])).is_some()
    }

    fn expand_array(&self, fields: &Fields<'_, '_>, array: RawDoc<'_>, out: &mut KeySet) -> Result<()> {
        let mut plan: SmallVec<[Option<Value<'_>>; 4]> = SmallVec::new();
        let mut any_expands = false;
        for (at, field) in fields.iter().enumerate() {
            let At::Array(_, name, rest) = field.at else {
                plan.push(None);
                continue;
            };
            let position = match rest {
                Some(rest) => array_position(array, rest, name)?,
                None => None,
            };
            if position.is_none() {
                any_expands = true;
                out.arrays[at] |= 1 << (field.component - 1).min(63);
            }
            plan.push(position);
        }
        if !any_expands || array.is_empty() {
            let fields =
                fields.iter().zip(&plan).map(|(field, plan)| step_into(field, *plan, None)).collect();
            return self.expand(fields, out);
        }
        for element in array.values() {
            sheaf_meter::tick(MAKE)?;
            let fields = fields
                .iter()
                .zip(&plan)
                .map(|(field, plan)| step_into(field, *plan, Some(element)))
                .collect();
            self.expand(fields, out)?;
        }
        Ok(())
    }

    fn emit(&self, fields: &Fields<'_, '_>, out: &mut KeySet) -> Result<()> {
        if self.sparse && fields.iter().all(|field| matches!(field.at, At::Value(Value::Missing))) {
            return Ok(());
        }
        out.push(|bytes, bits| {
            for (at, field) in fields.iter().enumerate() {
                let found = field_value(field);
                let (_, descending) = self.fields[at];
                if self.hashed_field == Some(at) {
                    encode(Value::Int64(self.hash(found)), descending, bytes, bits);
                } else {
                    self.put_value(found, descending, bytes, bits);
                }
            }
        })
    }
}

/// A missing field reads as null.
fn field_value<'d>(field: &Field<'d, '_>) -> Value<'d> {
    match field.at {
        At::Value(Value::Missing) => Value::Null,
        At::Value(value) => value,
        At::In(..) => {
            debug_assert!(false, "a path is not followed to its end");
            Value::Null
        }
        // Of an array that is not expanded any further.
        At::Array(..) => Value::Null,
    }
}

/// Follows the path to a value or to the first array.
fn walk(field: &mut Field<'_, '_>) {
    while let At::In(doc, path) = field.at {
        let (name, rest) = match path.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        field.component += 1;
        field.at = match (doc.element(name), rest) {
            (Some(element), rest) if element.kind() == Type::Array => match element.value() {
                Value::Array(array) => At::Array(array, element.key(), rest),
                other => At::Value(other),
            },
            (Some(element), None) => At::Value(element.value()),
            (Some(element), Some(rest)) => match element.value() {
                Value::Document(inner) => At::In(inner, rest),
                _ => At::Value(Value::Missing),
            },
            (None, _) => At::Value(Value::Missing),
        };
    }
}

/// The element that a number at the start of `rest` names, if it names one: then the array is not expanded.
fn array_position<'d>(array: RawDoc<'d>, rest: &str, name: &str) -> Result<Option<Value<'d>>> {
    let number = rest.split_once('.').map_or(rest, |(number, _)| number);
    let numeric = !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
        && (number.len() == 1 || !number.starts_with('0'));
    if !numeric {
        return Ok(None);
    }
    let as_field =
        array.values().any(|value| value.as_doc().is_some_and(|doc| doc.element(number).is_some()));
    match (array.get(number), as_field) {
        (Some(_), true) => bail!(
            16746,
            "Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), field: '{number}' for array: {name}"
        ),
        (found, false) => Ok(found),
        (None, true) => Ok(None),
    }
}

/// The field's state behind an array, for one of its elements (`None`: the array is empty or not expanded).
fn step_into<'d, 'i>(
    field: &Field<'d, 'i>,
    position: Option<Value<'d>>,
    element: Option<Value<'d>>,
) -> Field<'d, 'i> {
    let At::Array(_, _, rest) = field.at else { return *field };
    let component = field.component;
    if let (Some(value), Some(rest)) = (position, rest) {
        let component = component + 1;
        let at = match (value, rest.split_once('.')) {
            (value, None) => At::Value(value),
            (Value::Document(doc), Some((_, rest))) => At::In(doc, rest),
            (Value::Array(array), Some((name, rest))) => nested(array, name, rest),
            _ => At::Value(Value::Missing),
        };
        return Field { at, component };
    }
    let at = match (element, rest) {
        (None, None) => At::Value(Value::Undefined),
        (None, Some(_)) => At::Value(Value::Missing),
        (Some(value), None) => At::Value(value),
        (Some(Value::Document(doc)), Some(rest)) => At::In(doc, rest),
        (Some(_), Some(_)) => At::Value(Value::Missing),
    };
    Field { at, component }
}

/// An array reached by position goes on being an array: `a.0.b` looks into the elements of `a[0]`.
fn nested<'d, 'i>(array: RawDoc<'d>, _name: &'i str, rest: &'i str) -> At<'d, 'i> {
    At::Array(array, "", Some(rest))
}
