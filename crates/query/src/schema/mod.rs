//! `$jsonSchema`.

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;

/// A parsed schema.
#[derive(Debug)]
pub struct Schema {
    source: DocBuf,
}

impl Schema {
    /// Parses a schema.
    pub fn parse(schema: RawDoc<'_>) -> Result<Schema> {
        Ok(Schema { source: schema.into() })
    }

    /// The schema as it was given.
    pub fn source(&self) -> RawDoc<'_> {
        self.source.as_raw()
    }

    /// Whether a document satisfies the schema.
    pub fn matches(&self, _doc: RawDoc<'_>) -> bool {
        true
    }
}
