//! The intervals of one condition on one indexed field.

use sheaf_bson::{
    Binary, Bump, CodeWithScope, DbPointer, ObjectId, OwnedValue, RawDoc, Regex as RegexValue, Timestamp,
    Value,
};
use sheaf_collation::Collator;
use sheaf_query::matcher::{CompareOp, InList, Leaf, MatchExpr, Regex, Test, TypeSet};

use super::{Interval, Intervals, Tightness};

/// What the builder must know about the field.
#[derive(Clone, Copy, Debug, Default)]
pub struct FieldTraits<'i> {
    /// The index keeps a hash of the value.
    pub hashed: bool,
    /// Some document has an array on the field's path.
    pub multikey: bool,
    /// A document without the field may be missing in the index.
    pub sparse: bool,
    /// It is missing for certain. A sparse index of several fields has each document that has one of them.
    pub only_with_it: bool,
    /// The path has a numeric name, which a filter also reads as a position.
    pub numeric_path: bool,
    /// The path's last name is a position in an array. What stands there is one value in the keys, an array too.
    pub at_position: bool,
    /// By which strings stand in the keys: those of bounds are brought into the same form. Whoever compares strings otherwise
    /// does not ask for bounds of a test that [`compares_strings`].
    pub collator: Option<&'i Collator>,
}

impl FieldTraits<'_> {
    /// A value as it stands in keys.
    fn in_keys<'a>(&self, value: Value<'a>, arena: &'a Bump) -> Value<'a> {
        self.collator.map_or(value, |collator| collator.key(value, arena))
    }
}

/// Whether a value is a string, or may hold some.
pub fn is_collatable(value: Value<'_>) -> bool {
    matches!(value, Value::String(_) | Value::Symbol(_) | Value::Document(_) | Value::Array(_))
}

/// Whether a test compares with strings, or with what may hold some.
pub fn compares_strings(test: &Test) -> bool {
    match test {
        Test::Compare { operand, .. } | Test::ExprCompare { operand, .. } => {
            is_collatable(operand.as_value())
        }
        Test::In(list) => list.values.iter().any(|value| is_collatable(value.as_value())),
        Test::ElemMatchValue(inner) => compares_strings_within(inner),
        _ => false,
    }
}

fn compares_strings_within(expr: &MatchExpr) -> bool {
    match expr {
        MatchExpr::Leaf(leaf) => compares_strings(&leaf.test),
        _ => expr.children().iter().any(compares_strings_within),
    }
}

/// Intervals and how tight they are.
pub type Bounds = (Intervals, Tightness);

/// The intervals that hold every value for which the test passes; `None` if the index cannot serve it.
pub fn test_bounds(test: &Test, field: FieldTraits<'_>) -> Option<Bounds> {
    if field.hashed {
        return hashed_bounds(test, field);
    }
    let (intervals, tightness) = match test {
        Test::Compare { op, operand } => compare_bounds(*op, operand.as_value(), field)?,
        Test::ExprCompare { op, operand } => expr_bounds(*op, operand.as_value(), field)?,
        Test::In(list) => in_bounds(list, field)?,
        Test::Exists => {
            let tight = if field.only_with_it { Tightness::Exact } else { Tightness::Fetch };
            (Intervals::all(), tight)
        }
        Test::Type(types) => type_bounds(types),
        Test::Mod { .. } => (all_numbers(), Tightness::Covered),
        Test::Regex(regex) => regex_bounds(regex, field),
        // Keys have no elements of an array that a position leads to.
        Test::ElemMatchValue(_) if field.at_position => return None,
        Test::ElemMatchValue(inner) => (element_bounds(inner, field)?, Tightness::Fetch),
        Test::Size(_) | Test::Bits { .. } | Test::ElemMatchObject(_) | Test::Geo(_) | Test::Near(_) => {
            return None;
        }
    };
    let tightness = if field.numeric_path { Tightness::Fetch } else { tightness };
    // A key of a multikey index shows one element of many, too little to check a condition on.
    let tightness =
        if field.multikey && tightness == Tightness::Covered { Tightness::Fetch } else { tightness };
    Some((intervals, tightness))
}

/// The intervals of a negated test.
pub fn negated_bounds(test: &Test, field: FieldTraits<'_>) -> Option<Bounds> {
    if field.hashed {
        return None;
    }
    match test {
        // `$exists: false`: a missing field is indexed as null.
        Test::Exists => (!field.sparse).then(|| (Intervals::point(Value::Null), Tightness::Fetch)),
        Test::Compare { op: CompareOp::Eq | CompareOp::Gte | CompareOp::Lte, operand }
            if operand.as_value().is_nullish() =>
        {
            // An empty array on the way to the field has the key null, and no null: with arrays about, the
            // keys do not tell. So has one with a number where the path has a name behind the position.
            (!field.multikey && !field.numeric_path)
                .then(|| (Intervals::point(Value::Null).complement(), Tightness::Exact))
        }
        // A document without the field passes a negation, and a sparse index does not hold it.
        _ if field.sparse => None,
        Test::ExprCompare { .. } => None,
        Test::Compare { operand, .. } if matches!(operand.as_value(), Value::Array(_)) => None,
        Test::Compare { operand, .. }
            if (field.multikey || field.numeric_path)
                && matches!(operand.as_value(), Value::MinKey | Value::MaxKey) =>
        {
            None
        }
        Test::Compare { op, operand } => {
            let (intervals, tight) = compare_bounds(*op, operand.as_value(), field)?;
            Some((intervals.complement(), negated_tightness(tight, field)))
        }
        Test::In(list) => {
            let arrays = list.values.iter().any(|v| matches!(v.as_value(), Value::Array(_)));
            if arrays || !list.regexes.is_empty() {
                return None;
            }
            if list.has_null && (field.multikey || field.numeric_path) {
                return None;
            }
            let arena = Bump::new();
            let point = |v: &OwnedValue| Interval::point(field.in_keys(v.as_value(), &arena));
            let points = list.values.iter().map(point).collect();
            let tight = negated_tightness(Tightness::Exact, field);
            Some((Intervals::from_unsorted(points).complement(), tight))
        }
        _ => None,
    }
}

fn negated_tightness(tight: Tightness, field: FieldTraits<'_>) -> Tightness {
    if field.multikey || field.numeric_path || tight != Tightness::Exact {
        Tightness::Fetch
    } else {
        Tightness::Exact
    }
}

/// Inside `$elemMatch` all conditions hold for one element, so that their intervals may be intersected.
fn element_bounds(inner: &MatchExpr, field: FieldTraits<'_>) -> Option<Intervals> {
    let field = FieldTraits { sparse: false, ..field };
    match inner {
        // An array within an array is one value in the keys.
        MatchExpr::Leaf(Leaf { test: Test::ElemMatchValue(_), .. }) => None,
        MatchExpr::Leaf(leaf) => Some(test_bounds(&leaf.test, field)?.0),
        MatchExpr::Not(negated) => match &**negated {
            MatchExpr::Leaf(leaf) if !matches!(leaf.test, Test::Exists) => {
                Some(negated_bounds(&leaf.test, field)?.0)
            }
            _ => None,
        },
        MatchExpr::And(parts) => {
            Intervals::of_all(parts.iter().filter_map(|part| element_bounds(part, field)).collect())
        }
        _ => None,
    }
}

fn hashed_bounds(test: &Test, field: FieldTraits<'_>) -> Option<Bounds> {
    let arena = Bump::new();
    let point = |value: Value<'_>| -> Option<Interval> {
        // Arrays are never in a hashed index; the scan hashes the point itself.
        (!matches!(value, Value::Array(_))).then(|| Interval::point(field.in_keys(value, &arena)))
    };
    match test {
        Test::ExprCompare { op: CompareOp::Eq, operand } if !field.multikey => {
            Some((Intervals::from_unsorted(vec![point(operand.as_value())?]), Tightness::Fetch))
        }
        Test::Compare { op: CompareOp::Eq, operand } => {
            let value = operand.as_value();
            // A document without the field is not in a sparse index.
            if value.is_nullish() && (field.sparse || field.numeric_path) {
                return None;
            }
            let value = if value.is_nullish() { Value::Null } else { value };
            Some((Intervals::from_unsorted(vec![point(value)?]), Tightness::Fetch))
        }
        Test::In(list)
            if list.regexes.is_empty() && !(list.has_null && (field.sparse || field.numeric_path)) =>
        {
            let points: Option<Vec<Interval>> = list.values.iter().map(|v| point(v.as_value())).collect();
            Some((Intervals::from_unsorted(points?), Tightness::Fetch))
        }
        _ => None,
    }
}

/// Null and undefined: what an index holds for a missing field, a null and an empty array.
fn null_points() -> Intervals {
    Intervals::from_unsorted(vec![Interval::point(Value::Undefined), Interval::point(Value::Null)])
}

fn compare_bounds(op: CompareOp, operand: Value<'_>, field: FieldTraits<'_>) -> Option<Bounds> {
    use CompareOp::{Eq, Gt, Gte, Lt, Lte};
    if operand.is_nullish() {
        return match op {
            Gt | Lt => Some((Intervals::none(), Tightness::Exact)),
            // Behind a position a field may be missing, too, in any document of the array; the keys are of the one there.
            _ if field.sparse || field.numeric_path => None,
            _ => Some((null_points(), Tightness::Fetch)),
        };
    }
    let arena = Bump::new();
    let operand = field.in_keys(operand, &arena);
    if let Value::Array(array) = operand {
        return Some(match op {
            Eq => (array_equality(array), Tightness::Fetch),
            _ => (Intervals::all(), Tightness::Fetch),
        });
    }
    // A missing field lies above MinKey and below MaxKey.
    let takes_missing = matches!((operand, op), (Value::MinKey, Gt | Gte) | (Value::MaxKey, Lt | Lte));
    if takes_missing && field.sparse {
        return None;
    }
    // So does an array as a whole, of which the index has the elements only.
    if takes_missing && (field.multikey || field.numeric_path) {
        return Some((Intervals::all(), Tightness::Fetch));
    }
    let nan = operand.is_number() && operand.as_f64().is_some_and(f64::is_nan);
    let intervals = match op {
        Eq => Intervals::point(operand),
        // NaN equals itself and is neither above nor below anything.
        Gte | Lte if nan => Intervals::point(operand),
        Gt | Lt if nan => Intervals::none(),
        Lt | Lte => match operand {
            Value::MinKey if op == Lt => Intervals::none(),
            Value::MinKey => Intervals::point(operand),
            Value::MaxKey => Intervals::range(Value::MinKey, true, operand, op == Lte),
            _ => {
                let low = least(operand);
                Intervals::range(low.0, low.1, operand, op == Lte)
            }
        },
        Gt | Gte => match operand {
            Value::MaxKey if op == Gt => Intervals::none(),
            Value::MaxKey => Intervals::point(operand),
            Value::MinKey => Intervals::range(operand, op == Gte, Value::MaxKey, true),
            _ => {
                let high = greatest(operand);
                Intervals::range(operand, op == Gte, high.0, high.1)
            }
        },
    };
    Some((intervals, Tightness::Exact))
}

/// The bounds of a comparison as expressions make it: values of all types are in one order, a missing field is less than null
/// and more than MinKey, and stands in the index as null. An array is one value, of which the index has none.
fn expr_bounds(op: CompareOp, operand: Value<'_>, field: FieldTraits<'_>) -> Option<Bounds> {
    use CompareOp::{Eq, Gt, Gte, Lt, Lte};
    let is_lowest = matches!(operand, Value::MinKey);
    let takes_missing = if is_lowest { matches!(op, Gt | Gte) } else { matches!(op, Lt | Lte) };
    // A number in the path is a name here, and in the index also a position: `$a.0` of an array is an array.
    if field.multikey || field.numeric_path || takes_missing && field.sparse {
        return None;
    }
    let arena = Bump::new();
    let is_null = matches!(operand, Value::Null);
    let operand = field.in_keys(operand, &arena);
    let intervals = match op {
        Eq => Intervals::point(operand),
        Gt if matches!(operand, Value::MaxKey) => Intervals::none(),
        Lt if is_lowest => Intervals::none(),
        Gt | Gte => Intervals::range(operand, op == Gte, Value::MaxKey, true),
        Lt | Lte => Intervals::range(Value::MinKey, true, operand, op == Lte || is_null),
    };
    // The condition stands beside the `$expr`, which is checked in any case.
    Some((intervals, if is_null { Tightness::Fetch } else { Tightness::Exact }))
}

/// An array equals an operand if it is that array, or has it as an element.
fn array_equality(array: RawDoc<'_>) -> Intervals {
    let first = array.values().next().unwrap_or(Value::Undefined);
    Intervals::from_unsorted(vec![Interval::point(first), Interval::point(Value::Array(array))])
}

fn in_bounds(list: &InList, field: FieldTraits<'_>) -> Option<Bounds> {
    let mut intervals = Vec::new();
    let mut tightness = Tightness::Exact;
    for value in &list.values {
        let (found, tight) = compare_bounds(CompareOp::Eq, value.as_value(), field)?;
        intervals.extend(found.iter().cloned());
        tightness = tightness.max(tight);
    }
    for regex in &list.regexes {
        let (found, tight) = regex_bounds(regex, field);
        intervals.extend(found.iter().cloned());
        tightness = tightness.max(tight);
    }
    Some((Intervals::from_unsorted(intervals), tightness))
}

fn regex_bounds(regex: &Regex, field: FieldTraits<'_>) -> Bounds {
    let literal = Value::Regex(RegexValue { pattern: regex.pattern(), options: regex.options() });
    let itself = Interval::point(literal);
    let strings = || Interval::new(Value::String(""), true, Value::Document(RawDoc::EMPTY), false);
    if field.collator.is_some() {
        // Keys that are not the text say nothing of it.
        return (Intervals::from_unsorted(vec![strings(), itself]), Tightness::Fetch);
    }
    let (text, tightness) = match regex.prefix() {
        Some((text, exact)) => {
            let tight = if exact { Tightness::Exact } else { Tightness::Covered };
            let low = Value::String(&text);
            match successor(&text) {
                Some(above) => (Interval::new(low, true, Value::String(&above), false), tight),
                None => (Interval::new(low, true, Value::Document(RawDoc::EMPTY), false), tight),
            }
        }
        None => (strings(), Tightness::Covered),
    };
    (Intervals::from_unsorted(vec![text, itself]), tightness)
}

/// The least string above all strings that start with `text`: its last character moved up.
fn successor(text: &str) -> Option<String> {
    let mut chars: Vec<char> = text.chars().collect();
    while let Some(last) = chars.pop() {
        let next = (last as u32 + 1..=char::MAX as u32).find_map(char::from_u32);
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

fn all_numbers() -> Intervals {
    Intervals::range(Value::Double(f64::NAN), true, Value::Double(f64::INFINITY), true)
}

fn type_bounds(types: &TypeSet) -> Bounds {
    let mut intervals = Vec::new();
    let mut tightness = Tightness::Exact;
    if types.number {
        intervals.extend(all_numbers().iter().cloned());
    }
    for number in &types.types {
        let (found, tight) = one_type(*number);
        intervals.extend(found.iter().cloned());
        tightness = tightness.max(tight);
    }
    (Intervals::from_unsorted(intervals), tightness)
}

fn one_type(number: i32) -> Bounds {
    let sample = match number {
        // The numeric types share a bracket, and so do strings and symbols: the key does not tell them apart.
        1 | 16 | 18 | 19 => return (all_numbers(), Tightness::Fetch),
        2 | 14 => {
            let strings = Intervals::range(Value::String(""), true, Value::Document(RawDoc::EMPTY), false);
            return (strings, Tightness::Fetch);
        }
        3 => Value::Document(RawDoc::EMPTY),
        // An array's elements are indexed, not the array.
        4 => return (Intervals::all(), Tightness::Fetch),
        5 => Value::Binary(Binary { subtype: 0, bytes: &[] }),
        6 => return (Intervals::point(Value::Undefined), Tightness::Fetch),
        7 => Value::ObjectId(ObjectId([0; 12])),
        8 => Value::Bool(false),
        9 => Value::DateTime(0),
        10 => return (Intervals::point(Value::Null), Tightness::Fetch),
        11 => Value::Regex(RegexValue { pattern: "", options: "" }),
        12 => Value::DbPointer(DbPointer { namespace: "", id: ObjectId([0; 12]) }),
        13 => Value::JavaScript(""),
        15 => Value::CodeWithScope(CodeWithScope { code: "", scope: RawDoc::EMPTY }),
        17 => Value::Timestamp(Timestamp(0)),
        127 => return (Intervals::point(Value::MaxKey), Tightness::Exact),
        _ => return (Intervals::point(Value::MinKey), Tightness::Exact),
    };
    let (low, low_in) = least(sample);
    let (high, high_in) = greatest(sample);
    (Intervals::range(low, low_in, high, high_in), Tightness::Exact)
}

/// The least value of the operand's bracket that a comparison can match (numbers: not NaN).
fn least(operand: Value<'_>) -> (Value<'static>, bool) {
    let low = match operand {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => {
            Value::Double(f64::NEG_INFINITY)
        }
        Value::String(_) | Value::Symbol(_) => Value::String(""),
        Value::Document(_) => Value::Document(RawDoc::EMPTY),
        Value::Array(_) => Value::Array(RawDoc::EMPTY),
        Value::Binary(_) => Value::Binary(Binary { subtype: 0, bytes: &[] }),
        Value::ObjectId(_) => Value::ObjectId(ObjectId([0; 12])),
        Value::Bool(_) => Value::Bool(false),
        Value::DateTime(_) => Value::DateTime(i64::MIN),
        Value::Timestamp(_) => Value::Timestamp(Timestamp(0)),
        Value::Regex(_) => Value::Regex(RegexValue { pattern: "", options: "" }),
        Value::DbPointer(_) => Value::DbPointer(DbPointer { namespace: "", id: ObjectId([0; 12]) }),
        Value::JavaScript(_) => Value::JavaScript(""),
        Value::CodeWithScope(_) => Value::CodeWithScope(CodeWithScope { code: "", scope: RawDoc::EMPTY }),
        Value::Missing | Value::MinKey | Value::Undefined | Value::Null => Value::MinKey,
        Value::MaxKey => Value::MaxKey,
    };
    (low, true)
}

/// The end of the operand's bracket, and whether it belongs to it.
fn greatest(operand: Value<'_>) -> (Value<'static>, bool) {
    match operand {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => {
            (Value::Double(f64::INFINITY), true)
        }
        Value::String(_) | Value::Symbol(_) => (Value::Document(RawDoc::EMPTY), false),
        Value::Document(_) => (Value::Array(RawDoc::EMPTY), false),
        Value::Array(_) => (Value::Binary(Binary { subtype: 0, bytes: &[] }), false),
        Value::Binary(_) => (Value::ObjectId(ObjectId([0; 12])), false),
        Value::ObjectId(_) => (Value::ObjectId(ObjectId([0xFF; 12])), true),
        Value::Bool(_) => (Value::Bool(true), true),
        Value::DateTime(_) => (Value::DateTime(i64::MAX), true),
        Value::Timestamp(_) => (Value::Timestamp(Timestamp(u64::MAX)), true),
        Value::Regex(_) => (Value::DbPointer(DbPointer { namespace: "", id: ObjectId([0; 12]) }), false),
        Value::DbPointer(_) => (Value::JavaScript(""), false),
        Value::JavaScript(_) => {
            (Value::CodeWithScope(CodeWithScope { code: "", scope: RawDoc::EMPTY }), false)
        }
        Value::CodeWithScope(_) => (Value::MaxKey, false),
        Value::Missing | Value::MinKey | Value::Undefined | Value::Null | Value::MaxKey => {
            (Value::MaxKey, true)
        }
    }
}
