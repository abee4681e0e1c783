//! Names of collections.

use std::fmt;

use sheaf_errors::{Code, Result, bail};

/// A database and a collection in it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Namespace {
    /// The database's name.
    pub database: String,
    /// The collection's name; empty for `aggregate: 1`.
    pub collection: String,
}

impl Namespace {
    /// From its two parts.
    pub fn new(database: impl Into<String>, collection: impl Into<String>) -> Self {
        Namespace { database: database.into(), collection: collection.into() }
    }

    /// The namespace, if a stage may read from it.
    ///
    /// Errors: `InvalidNamespace`.
    pub(crate) fn readable_by(self, stage: &str) -> Result<Namespace> {
        if !self.is_valid() {
            bail!(Code::INVALID_NAMESPACE, "invalid {stage} namespace: {self}");
        }
        Ok(self)
    }

    /// Whether both names are such that a collection may have them.
    pub(crate) fn is_valid(&self) -> bool {
        let Namespace { database, collection } = self;
        let database = !database.is_empty() && !database.contains(['/', '\\', '.', ' ', '"', '$', '\0']);
        let collection = !collection.is_empty() && !collection.starts_with('.') && !collection.contains('\0');
        database && collection
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}
