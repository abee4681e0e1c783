//! `$cmp`, `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`.

use std::cmp::Ordering;

use sheaf_bson::Value;

use crate::operator::{Operator, binary};

pub(crate) static OPERATORS: &[Operator] = &[
    binary("$cmp", |v, cx| Ok(Value::Int32(cx.compare(v[0], v[1]) as i32))),
    binary("$eq", |v, cx| Ok(Value::Bool(cx.compare(v[0], v[1]) == Ordering::Equal))),
    binary("$ne", |v, cx| Ok(Value::Bool(cx.compare(v[0], v[1]) != Ordering::Equal))),
    binary("$gt", |v, cx| Ok(Value::Bool(cx.compare(v[0], v[1]) == Ordering::Greater))),
    binary("$gte", |v, cx| Ok(Value::Bool(cx.compare(v[0], v[1]) != Ordering::Less))),
    binary("$lt", |v, cx| Ok(Value::Bool(cx.compare(v[0], v[1]) == Ordering::Less))),
    binary("$lte", |v, cx| Ok(Value::Bool(cx.compare(v[0], v[1]) != Ordering::Greater))),
];
