//! The update operators: what each takes, and what it makes of a value.

use std::collections::HashSet;

use sheaf_bson::{Bump, Element, Ordered, OwnedValue, RawDoc, Timestamp, Value, number};
use sheaf_collation::{SharedCollator, compare_by};
use sheaf_errors::{Code, Error, Result, bail};

use super::array_ops::{self, Pull, Push};
use crate::diff::ToArray;
use crate::owned::{own, own_all};
use sheaf_expr::ParseCx;

/// What an operator makes of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome<'a> {
    /// Nothing changes.
    Keep,
    /// The field goes (an array's element becomes null).
    Remove,
    /// The value is replaced.
    Replace(Value<'a>),
}

/// An operator with its argument, at the end of one path.
#[derive(Debug)]
pub(super) enum Op {
    Set(OwnedValue),
    SetOnInsert(OwnedValue),
    Unset,
    Inc(OwnedValue),
    Mul(OwnedValue),
    Min(OwnedValue),
    Max(OwnedValue),
    CurrentDate {
        timestamp: bool,
    },
    Push(Box<Push>),
    AddToSet(Vec<OwnedValue>),
    Pop {
        first: bool,
    },
    Pull(Box<Pull>),
    PullAll(Vec<OwnedValue>),
    Bit(Vec<(BitOp, OwnedValue)>),
    /// The target of the `$rename` with this number.
    RenameTo(usize),
    /// The source of the `$rename` with this number.
    RenameFrom(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum BitOp {
    And,
    Or,
    Xor,
}

/// What operators need besides the value.
pub(super) struct OpCx<'a> {
    pub(super) arena: &'a Bump,
    /// The document as it was.
    pub(super) root: RawDoc<'a>,
    /// Whether this builds a document for an upsert.
    pub(super) insert: bool,
    pub(super) now: i64,
    pub(super) timestamp: Timestamp,
    /// Per `$rename`, the value at its source.
    pub(super) renamed: Vec<Value<'a>>,
    /// How strings compare, if not by their bytes.
    pub(super) collator: Option<&'a SharedCollator>,
}

impl OpCx<'_> {
    /// `_id: 1`, which names the document in messages.
    pub(super) fn id_text(&self) -> String {
        match self.root.get("_id") {
            Some(id) => sheaf_bson::element_text("_id", id),
            None => "no id".to_owned(),
        }
    }
}

/// The names of the operators that take `{path: argument}`; `$rename` is parsed by itself.
pub(super) fn is_operator(name: &str) -> bool {
    matches!(
        name,
        "$set"
            | "$setOnInsert"
            | "$unset"
            | "$inc"
            | "$mul"
            | "$min"
            | "$max"
            | "$currentDate"
            | "$push"
            | "$addToSet"
            | "$pop"
            | "$pull"
            | "$pullAll"
            | "$bit"
            | "$rename"
    )
}

impl Op {
    /// How an array that it changes is told of. (Who takes elements out leaves no other way.)
    pub(super) fn to_array(&self) -> ToArray {
        match self {
            Op::Push(push) => push.to_array(),
            Op::AddToSet(_) => ToArray::Whole,
            _ => ToArray::Elements,
        }
    }

    /// Reads one operator's argument for one path.
    pub(super) fn parse(operator: &str, argument: Element<'_>, cx: &mut ParseCx) -> Result<Op> {
        let value = argument.value();
        let own = || own(value);
        Ok(match operator {
            "$set" => Op::Set(own()?),
            "$setOnInsert" => Op::SetOnInsert(own()?),
            "$unset" => Op::Unset,
            "$inc" => Op::Inc(numeric(argument, "increment")?),
            "$mul" => Op::Mul(numeric(argument, "multiply")?),
            "$min" => Op::Min(own()?),
            "$max" => Op::Max(own()?),
            "$currentDate" => Op::CurrentDate { timestamp: current_date(value)? },
            "$push" => Op::Push(Box::new(Push::parse(value)?)),
            "$addToSet" => Op::AddToSet(array_ops::parse_add_to_set(value)?),
            "$pop" => Op::Pop { first: pop(argument)? },
            "$pull" => Op::Pull(Box::new(Pull::parse(value, cx)?)),
            "$pullAll" => match value {
                Value::Array(values) => Op::PullAll(own_all(values)?),
                other => bail!(
                    Code::BAD_VALUE,
                    "$pullAll requires an array argument but was given a {}",
                    other.type_name()
                ),
            },
            "$bit" => Op::Bit(bits(value)?),
            _ => bail!(Code::INTERNAL_ERROR, "not an update operator: {operator}"),
        })
    }

    /// Whether the operator does nothing in this run.
    pub(super) fn is_idle(&self, cx: &OpCx<'_>) -> bool {
        match self {
            Op::SetOnInsert(_) => !cx.insert,
            Op::RenameTo(slot) | Op::RenameFrom(slot) => cx.renamed[*slot].is_missing(),
            _ => false,
        }
    }

    /// Whether an absent path is created for it.
    pub(super) fn creates(&self) -> bool {
        !matches!(self, Op::Unset | Op::Pop { .. } | Op::Pull(_) | Op::PullAll(_) | Op::RenameFrom(_))
    }

    /// Whether a path that leads through a scalar is no error.
    pub(super) fn ignores_blocked_path(&self) -> bool {
        matches!(self, Op::Unset | Op::RenameFrom(_))
    }

    /// The value for an absent field; asked only when [`Op::creates`].
    pub(super) fn create<'a>(&'a self, cx: &OpCx<'a>) -> Result<Value<'a>> {
        Ok(match self {
            Op::Set(value) | Op::SetOnInsert(value) | Op::Inc(value) | Op::Min(value) | Op::Max(value) => {
                value.as_value()
            }
            Op::Mul(factor) => {
                arithmetic(false, Value::Int32(0), factor.as_value()).unwrap_or(Value::Int32(0))
            }
            Op::CurrentDate { timestamp } => today(*timestamp, cx),
            Op::Push(push) => {
                push.apply(RawDoc::EMPTY, cx.arena, cx.collator)?.unwrap_or(Value::Array(RawDoc::EMPTY))
            }
            Op::AddToSet(values) => array_ops::add_to_set(values, RawDoc::EMPTY, cx.arena, cx.collator)?
                .unwrap_or(Value::Array(RawDoc::EMPTY)),
            Op::Bit(ops) => bit(ops, Value::Int32(0)).unwrap_or(Value::Int32(0)),
            Op::RenameTo(slot) => cx.renamed[*slot],
            Op::Unset | Op::Pop { .. } | Op::Pull(_) | Op::PullAll(_) | Op::RenameFrom(_) => Value::Missing,
        })
    }

    /// What becomes of an existing value. `key` is its name and `path` the dotted path to it.
    pub(super) fn apply<'a>(
        &'a self,
        key: &str,
        path: impl Fn() -> String,
        old: Value<'a>,
        cx: &OpCx<'a>,
    ) -> Result<Outcome<'a>> {
        Ok(match self {
            Op::Set(value) | Op::SetOnInsert(value) => Outcome::Replace(value.as_value()),
            Op::RenameTo(slot) => Outcome::Replace(cx.renamed[*slot]),
            Op::Unset | Op::RenameFrom(_) => Outcome::Remove,
            Op::Inc(by) => Outcome::Replace(calculate("$inc", key, old, by.as_value(), cx)?),
            Op::Mul(by) => Outcome::Replace(calculate("$mul", key, old, by.as_value(), cx)?),
            Op::Min(value) => replace_if(compare_by(cx.collator, value.as_value(), old).is_lt(), value),
            Op::Max(value) => replace_if(compare_by(cx.collator, value.as_value(), old).is_gt(), value),
            Op::CurrentDate { timestamp } => Outcome::Replace(today(*timestamp, cx)),
            Op::Push(push) => match old {
                Value::Array(array) => changed(push.apply(array, cx.arena, cx.collator)?),
                other => bail!(
                    Code::BAD_VALUE,
                    "The field '{}' must be an array but is of type {} in document {{{}}}",
                    path(),
                    other.type_name(),
                    cx.id_text()
                ),
            },
            Op::AddToSet(values) => match old {
                Value::Array(array) => changed(array_ops::add_to_set(values, array, cx.arena, cx.collator)?),
                other => bail!(
                    Code::BAD_VALUE,
                    "Cannot apply $addToSet to non-array field. Field named '{key}' has non-array type {}",
                    other.type_name()
                ),
            },
            Op::Pop { first } => match old {
                Value::Array(array) => changed(array_ops::pop(*first, array, cx.arena)),
                other => bail!(
                    Code::TYPE_MISMATCH,
                    "Path '{}' contains an element of non-array type '{}'",
                    path(),
                    other.type_name()
                ),
            },
            Op::Pull(pull) => changed(array_ops::retain(array_to_pull(old)?, cx.arena, |v| {
                Ok(!pull.matches(v, cx.collator)?)
            })?),
            Op::PullAll(values) if cx.collator.is_some() => {
                let keep = |value| {
                    sheaf_meter::tick_for(values.len() * 64)?;
                    Ok(!values.iter().any(|pulled| compare_by(cx.collator, pulled.as_value(), value).is_eq()))
                };
                changed(array_ops::retain(array_to_pull(old)?, cx.arena, keep)?)
            }
            Op::PullAll(values) => {
                let pulled: HashSet<Ordered<'_>> =
                    values.iter().map(|value| Ordered(value.as_value())).collect();
                let keep = |value| Ok(!pulled.contains(&Ordered(value)));
                changed(array_ops::retain(array_to_pull(old)?, cx.arena, keep)?)
            }
            Op::Bit(ops) => match bit(ops, old) {
                Some(value) => Outcome::Replace(value),
                None => bail!(
                    Code::BAD_VALUE,
                    "Cannot apply $bit to a value of non-integral type.{} has the field {key} of non-integer type {}",
                    cx.id_text(),
                    old.type_name()
                ),
            },
        })
    }
}

fn changed(value: Option<Value<'_>>) -> Outcome<'_> {
    value.map_or(Outcome::Keep, Outcome::Replace)
}

fn replace_if(wanted: bool, value: &OwnedValue) -> Outcome<'_> {
    if wanted { Outcome::Replace(value.as_value()) } else { Outcome::Keep }
}

fn array_to_pull(old: Value<'_>) -> Result<RawDoc<'_>> {
    match old {
        Value::Array(array) => Ok(array),
        _ => bail!(Code::BAD_VALUE, "Cannot apply $pull to a non-array value"),
    }
}

fn numeric(argument: Element<'_>, verb: &str) -> Result<OwnedValue> {
    let value = argument.value();
    if !value.is_number() {
        bail!(
            Code::TYPE_MISMATCH,
            "Cannot {verb} with non-numeric argument: {{{}}}",
            sheaf_bson::element_text(argument.key(), value)
        );
    }
    Ok(OwnedValue::from(value))
}

fn today<'a>(timestamp: bool, cx: &OpCx<'_>) -> Value<'a> {
    if timestamp { Value::Timestamp(cx.timestamp) } else { Value::DateTime(cx.now) }
}

fn current_date(value: Value<'_>) -> Result<bool> {
    let options = match value {
        Value::Bool(_) => return Ok(false),
        Value::Document(options) => options,
        other => bail!(
            Code::BAD_VALUE,
            "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type expression \
             ({{$type: 'timestamp/date'}}).",
            other.type_name()
        ),
    };
    let mut timestamp = None;
    for option in options.iter() {
        if option.key() != "$type" {
            bail!(Code::BAD_VALUE, "Unrecognized $currentDate option: {}", option.key());
        }
        timestamp = match option.value().as_str() {
            Some("date") => Some(false),
            Some("timestamp") => Some(true),
            _ => None,
        };
    }
    timestamp.ok_or_else(|| {
        Error::bad_value(
            "The '$type' string field is required to be 'date' or 'timestamp': \
             {$currentDate: {field : {$type: 'date'}}}",
        )
    })
}

/// Whether `$pop` takes the first element.
fn pop(argument: Element<'_>) -> Result<bool> {
    let value = argument.value();
    if !value.is_number() {
        bail!(
            Code::FAILED_TO_PARSE,
            "Expected a number in: {}",
            sheaf_bson::element_text(argument.key(), value)
        );
    }
    match value.as_exact_i64() {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        Some(other) => bail!(Code::FAILED_TO_PARSE, "$pop expects 1 or -1, found: {other}"),
        None => {
            bail!(
                Code::FAILED_TO_PARSE,
                "Expected an integer: {}",
                sheaf_bson::element_text(argument.key(), value)
            )
        }
    }
}

fn bits(value: Value<'_>) -> Result<Vec<(BitOp, OwnedValue)>> {
    let Value::Document(spec) = value else {
        bail!(
            Code::BAD_VALUE,
            "The $bit modifier is not compatible with a {}. You must pass in an embedded document: \
             {{$bit: {{field: {{and/or/xor: #}}}}",
            value.type_name()
        );
    };
    let mut ops = Vec::new();
    for element in spec.iter() {
        let op = match element.key() {
            "and" => BitOp::And,
            "or" => BitOp::Or,
            "xor" => BitOp::Xor,
            other => bail!(
                Code::BAD_VALUE,
                "The $bit modifier only supports 'and', 'or', and 'xor', not '{other}' which is an unknown \
                 operator: {{{}}}",
                sheaf_bson::element_text(other, element.value())
            ),
        };
        if !matches!(element.value(), Value::Int32(_) | Value::Int64(_)) {
            bail!(
                Code::BAD_VALUE,
                "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not supported here: {{{}}}",
                element.value().type_name(),
                sheaf_bson::element_text(element.key(), element.value())
            );
        }
        sheaf_meter::grow(size_of::<BitOp>())?;
        ops.push((op, own(element.value())?));
    }
    if ops.is_empty() {
        bail!(
            Code::BAD_VALUE,
            "You must pass in at least one bitwise operation. The format is: \
             {{$bit: {{field: {{and/or/xor: #}}}}"
        );
    }
    Ok(ops)
}

/// The result of `$bit`; `None` if the value is no integer. Two int32 stay int32.
fn bit(ops: &[(BitOp, OwnedValue)], start: Value<'_>) -> Option<Value<'static>> {
    let (mut bits, mut wide) = match start {
        Value::Int32(n) => (i64::from(n), false),
        Value::Int64(n) => (n, true),
        _ => return None,
    };
    for (op, operand) in ops {
        let operand = match operand.as_value() {
            Value::Int32(n) => i64::from(n),
            Value::Int64(n) => {
                wide = true;
                n
            }
            _ => return None,
        };
        bits = match op {
            BitOp::And => bits & operand,
            BitOp::Or => bits | operand,
            BitOp::Xor => bits ^ operand,
        };
    }
    Some(if wide { Value::Int64(bits) } else { Value::Int32(bits as i32) })
}

fn calculate<'a>(
    operator: &str,
    key: &str,
    old: Value<'a>,
    by: Value<'a>,
    cx: &OpCx<'a>,
) -> Result<Value<'a>> {
    if !old.is_number() {
        bail!(
            Code::TYPE_MISMATCH,
            "Cannot apply {operator} to a value of non-numeric type. {{{}}} has the field '{key}' of non-numeric \
             type {}",
            cx.id_text(),
            old.type_name()
        );
    }
    arithmetic(operator == "$inc", old, by).ok_or_else(|| {
        Error::bad_value(format!(
            "Failed to apply {operator} operations to current value (({}){}) for document {{{}}}",
            shell_type(old),
            sheaf_bson::value_text(old),
            cx.id_text()
        ))
    })
}

fn shell_type(value: Value<'_>) -> &'static str {
    match value {
        Value::Int32(_) => "NumberInt",
        Value::Int64(_) => "NumberLong",
        Value::Double(_) => "NumberDouble",
        _ => "NumberDecimal",
    }
}

/// `$inc` and `$mul`: int32 grows to int64, but an int64 never becomes a double: that is an error (`None`).
/// A result of the same type and value changes nothing, not even the sign of a zero.
pub(super) fn arithmetic<'a>(add: bool, a: Value<'a>, b: Value<'a>) -> Option<Value<'a>> {
    let result = if add { number::checked_add(a, b) } else { number::checked_multiply(a, b) }?;
    let same = result.kind() == a.kind() && sheaf_bson::compare(result, a).is_eq();
    Some(if same { a } else { result })
}
