//! `$bitAnd`, `$bitOr`, `$bitXor`, `$bitNot`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::operator::{Operator, nary, unary};

pub(crate) static OPERATORS: &[Operator] = &[
    nary("$bitAnd", |v, _| fold("$bitAnd", v, -1, |a, b| a & b)),
    nary("$bitOr", |v, _| fold("$bitOr", v, 0, |a, b| a | b)),
    nary("$bitXor", |v, _| fold("$bitXor", v, 0, |a, b| a ^ b)),
    unary("$bitNot", |v, _| match v[0] {
        Value::Int32(n) => Ok(Value::Int32(!n)),
        Value::Int64(n) => Ok(Value::Int64(!n)),
        value if value.is_nullish() => Ok(Value::Null),
        value if value.is_number() => {
            bail!(Code::TYPE_MISMATCH, "$bitNot only supports int and long, not: {}.", value.type_name())
        }
        other => bail!(28765, "$bitNot only supports numeric types, not {}", other.type_name()),
    }),
];

/// Sign extension makes one 64-bit operation do for both widths.
fn fold<'a>(name: &str, values: &[Value<'a>], start: i64, apply: fn(i64, i64) -> i64) -> Result<Value<'a>> {
    let (mut bits, mut long) = (start, false);
    for value in values {
        match value {
            Value::Int32(n) => bits = apply(bits, i64::from(*n)),
            Value::Int64(n) => {
                bits = apply(bits, *n);
                long = true;
            }
            value if value.is_nullish() => return Ok(Value::Null),
            _ => bail!(Code::TYPE_MISMATCH, "{name} only supports int and long operands."),
        }
    }
    Ok(if long { Value::Int64(bits) } else { Value::Int32(bits as i32) })
}
