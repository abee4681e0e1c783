//! The operators, one file per family. Each file starts with its part of the table.

mod comparison;

use sheaf_bson::{Bump, Value};

use crate::expr::Call;
use crate::operator::Operator;

/// All parts of the table.
pub(crate) static FAMILIES: &[&[Operator]] = &[comparison::OPERATORS];

/// The argument of an operator with a grammar of its own, for explain.
pub(crate) fn serialize_custom<'a>(_call: &'a Call, _arena: &'a Bump) -> Value<'a> {
    Value::Null
}
