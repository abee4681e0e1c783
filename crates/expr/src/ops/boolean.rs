//! `$and`, `$or`, `$not`.

use sheaf_bson::Value;
use sheaf_errors::Result;

use crate::expr::{Call, Cx};
use crate::operator::{Arity, Operator, lazy, unary};

pub(crate) static OPERATORS: &[Operator] = &[
    lazy("$and", Arity::Any, and),
    lazy("$or", Arity::Any, or),
    unary("$not", |v, _| Ok(Value::Bool(!v[0].truthy()))),
];

fn and<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    for arg in &call.args {
        if !arg.value(cx)?.truthy() {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn or<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    for arg in &call.args {
        if arg.value(cx)?.truthy() {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}
