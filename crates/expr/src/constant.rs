//! Values that an expression owns.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};

/// One owned value. Scalars are kept decoded, because constants are read for every document.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    Scalar(Value<'static>),
    Bytes(Arc<DocBuf>),
}

impl Constant {
    pub(crate) const MISSING: Constant = Constant::Scalar(Value::Missing);

    pub(crate) fn new(value: Value<'_>) -> Self {
        Constant::Scalar(match value {
            Value::Missing => Value::Missing,
            Value::MinKey => Value::MinKey,
            Value::Undefined => Value::Undefined,
            Value::Null => Value::Null,
            Value::Int32(n) => Value::Int32(n),
            Value::Int64(n) => Value::Int64(n),
            Value::Double(n) => Value::Double(n),
            Value::Decimal128(n) => Value::Decimal128(n),
            Value::ObjectId(id) => Value::ObjectId(id),
            Value::Bool(b) => Value::Bool(b),
            Value::DateTime(t) => Value::DateTime(t),
            Value::Timestamp(t) => Value::Timestamp(t),
            Value::MaxKey => Value::MaxKey,
            other => return Constant::Bytes(Arc::new(DocBuf::build(|doc| _ = doc.append("", other)))),
        })
    }

    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Constant::Scalar(value) => *value,
            Constant::Bytes(doc) => first(doc.as_raw()),
        }
    }
}

fn first(doc: RawDoc<'_>) -> Value<'_> {
    doc.iter().next().map_or(Value::Missing, |element| element.value())
}
