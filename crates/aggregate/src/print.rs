//! Values as mongod's aggregation prints them inside error messages: `{a: 1, b: ["x"]}`.

use sheaf_bson::{RawDoc, Value};
pub(crate) use sheaf_expr::show as value;

/// A document: `{a: 1}`.
pub fn document(doc: RawDoc<'_>) -> String {
    value(Value::Document(doc))
}
