//! `$jsonSchema`: JSON Schema draft 4 without references, with `bsonType`.

mod check;
mod encrypt;
mod failure;
mod parse;
mod rule;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::Result;

use crate::room::Room;

pub use rule::Schema;

impl Schema {
    /// Parses a schema.
    pub fn parse(schema: RawDoc<'_>) -> Result<Schema> {
        parse::root(schema, true)
    }

    /// Parses a schema that may not say what is encrypted: what fails it is written to a log.
    ///
    /// Errors: those of schemas, and `QueryFeatureNotAllowed`.
    pub fn parse_without_encryption(schema: RawDoc<'_>) -> Result<Schema> {
        parse::root(schema, false)
    }

    /// The schema as it was given.
    pub fn source(&self) -> RawDoc<'_> {
        self.source.as_raw()
    }

    /// Whether a document satisfies the schema.
    ///
    /// Errors: what cannot be decided (51156); what the meter says.
    pub fn matches(&self, doc: RawDoc<'_>) -> Result<bool> {
        self.holds(Value::Document(doc))
    }

    /// Why a document does not satisfy the schema: the `details` of `errInfo`.
    pub(crate) fn failure(&self, doc: RawDoc<'_>, room: &Room) -> DocBuf {
        failure::details(self, doc, room)
    }
}

#[cfg(test)]
mod tests;
