//! Names of users and roles: both belong to a database.

use std::fmt;

use sheaf_bson::{DocWriter, RawDoc};

macro_rules! name {
    ($type:ident, $field:ident, $words:literal) => {
        #[doc = $words]
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $type {
            /// The database that it belongs to.
            pub db: String,
            /// The name within the database.
            pub $field: String,
        }

        impl $type {
            /// The name of this database.
            pub fn new($field: impl Into<String>, db: impl Into<String>) -> Self {
                $type { db: db.into(), $field: $field.into() }
            }

            /// `_id` of its document: `db.name`.
            pub fn id(&self) -> String {
                format!("{}.{}", self.db, self.$field)
            }

            /// Reads a document that has the two fields; `None` if one is missing or no string.
            pub fn read(doc: RawDoc<'_>) -> Option<Self> {
                let part = |name: &str| doc.get(name).and_then(|value| value.as_str());
                Some($type::new(part(stringify!($field))?, part("db")?))
            }

            /// Writes the two fields.
            pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
                doc.append(stringify!($field), &self.$field).append("db", &self.db);
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}@{}", self.$field, self.db)
            }
        }
    };
}

name!(UserName, user, "A user of a database.");
name!(RoleName, role, "A role of a database.");
