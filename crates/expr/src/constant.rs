//! Values that an expression owns.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_meter::{ALLOCATION, Held};

use crate::env::size_of_value;

/// One owned value. Scalars are kept decoded, because constants are read for every document.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    Scalar(Value<'static>),
    /// With the account of its memory, for values that are copied out of others as often as a client says.
    Bytes(Arc<(DocBuf, Held)>),
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
            other => return Constant::Bytes(Arc::new((build(other), Held::default()))),
        })
    }

    /// A constant whose memory is the operation's.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub(crate) fn counted(value: Value<'_>) -> Result<Self> {
        if size_of_value(value) == 0 {
            return Ok(Self::new(value));
        }
        let held = sheaf_meter::reserve(size_of_value(value) as u64 + 64)?;
        Ok(Constant::Bytes(Arc::new((build(value), held))))
    }

    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Constant::Scalar(value) => *value,
            Constant::Bytes(bytes) => first(bytes.0.as_raw()),
        }
    }
}

/// What a constant takes apart from its expression.
pub(crate) fn size_of_constant(value: Value<'_>) -> usize {
    match size_of_value(value) {
        0 => 0,
        bytes => bytes + size_of::<(DocBuf, Held)>() + 2 * ALLOCATION + size_of::<[usize; 2]>(),
    }
}

fn build(value: Value<'_>) -> DocBuf {
    DocBuf::build(|doc| _ = doc.append("", value))
}

fn first(doc: RawDoc<'_>) -> Value<'_> {
    doc.iter().next().map_or(Value::Missing, |element| element.value())
}
