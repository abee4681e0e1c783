//! Where actions happen: what a command asks for, and the patterns by which roles grant it.

use sheaf_bson::{DocWriter, RawDoc};
use sheaf_errors::{Code, Result, bail};

/// What a command acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// The cluster, or the server.
    Cluster,
    /// A database as a whole.
    Database(&'a str),
    /// One collection.
    Collection(&'a str, &'a str),
    /// All databases and their collections, but for `local`, `config` and system collections.
    AnyNormal,
    /// What only `anyResource` covers.
    Any,
}

impl<'a> Target<'a> {
    /// The collection `db.name`, or the database if there is no more.
    pub fn of_namespace(namespace: &'a str) -> Self {
        match namespace.split_once('.') {
            Some((db, name)) => Target::Collection(db, name),
            None => Target::Database(namespace),
        }
    }
}

/// A pattern of resources, as privileges name them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Resource {
    /// `{anyResource: true}`
    Any,
    /// `{cluster: true}`
    Cluster,
    /// `{db: "", collection: ""}`: databases and their collections, but for system collections, `local` and `config`.
    AnyNormal,
    /// `{db: "x", collection: ""}`: the database and its collections, but for system collections.
    Database(String),
    /// `{db: "", collection: "x"}`: the collections of this name in all databases.
    Named(String),
    /// `{db: "x", collection: "y"}`
    Collection(String, String),
    /// `{db: "", system_buckets: ""}`: the buckets of all time series.
    AnyBuckets,
    /// `{db: "x", system_buckets: ""}`: the buckets of all time series of the database.
    BucketsOf(String),
}

/// What the names of buckets begin with.
pub(crate) const BUCKETS: &str = "system.buckets.";

/// Whether a collection is none that a role for whole databases covers.
pub(crate) fn is_system(collection: &str) -> bool {
    collection.starts_with("system.")
}

/// The databases that a role for all databases does not cover.
pub(crate) fn is_own(db: &str) -> bool {
    matches!(db, "local" | "config")
}

impl Resource {
    /// Whether the pattern covers what a command acts on.
    pub fn covers(&self, target: Target<'_>) -> bool {
        match (self, target) {
            (Resource::Any, _) => true,
            (_, Target::Any) => false,
            (Resource::Cluster, target) => target == Target::Cluster,
            (Resource::AnyNormal, Target::AnyNormal) => true,
            (Resource::AnyNormal, Target::Database(db)) => !is_own(db),
            (Resource::AnyNormal, Target::Collection(db, name)) => !is_own(db) && !is_system(name),
            (Resource::Database(own), Target::Database(db)) => own == db,
            (Resource::Database(own), Target::Collection(db, name)) => own == db && !is_system(name),
            (Resource::Named(own), Target::Collection(_, name)) => own == name,
            (Resource::Collection(own_db, own), Target::Collection(db, name)) => own_db == db && own == name,
            (Resource::AnyBuckets, Target::Collection(_, name)) => name.starts_with(BUCKETS),
            (Resource::BucketsOf(own), Target::Collection(db, name)) => {
                own == db && name.starts_with(BUCKETS)
            }
            _ => false,
        }
    }

    /// Whether it is of this database, or of something in it.
    pub fn is_of(&self, other: &str) -> bool {
        matches!(self, Resource::Database(db) | Resource::Collection(db, _) | Resource::BucketsOf(db) if db == other)
    }

    /// Whether it may cover something in this database.
    pub fn reaches(&self, other: &str) -> bool {
        match self {
            Resource::Any | Resource::Named(_) | Resource::AnyBuckets => true,
            Resource::Cluster => false,
            Resource::AnyNormal => !is_own(other),
            Resource::Database(db) | Resource::Collection(db, _) | Resource::BucketsOf(db) => db == other,
        }
    }

    /// The database whose administrators may grant it: `admin` for what belongs to none.
    pub fn grants_in(&self) -> &str {
        match self {
            Resource::Database(db) | Resource::Collection(db, _) | Resource::BucketsOf(db) => db,
            _ => "admin",
        }
    }

    /// Reads a privilege's `resource`.
    ///
    /// Errors: `FailedToParse`.
    pub fn read(doc: RawDoc<'_>) -> Result<Self> {
        let flag = |name: &str| doc.get(name).is_some_and(|value| value.as_bool() == Some(true));
        if let Some(field) = doc.iter().find(|field| {
            !matches!(field.key(), "db" | "collection" | "cluster" | "anyResource" | "system_buckets")
        }) {
            bail!(40415, "BSON field 'resource.{}' is an unknown field.", field.key());
        }
        let names = ["db", "collection", "system_buckets"].iter().any(|name| doc.get(name).is_some());
        match (flag("anyResource"), flag("cluster"), names) {
            (true, false, false) => return Ok(Resource::Any),
            (false, true, false) => return Ok(Resource::Cluster),
            (false, false, true) => {}
            (false, false, false) => bail!(
                Code::BAD_VALUE,
                "resource must have 'db' and 'collection' set, or 'cluster' set, or 'anyResource' set"
            ),
            _ => bail!(
                Code::BAD_VALUE,
                "resource must not have 'db', 'collection', 'cluster' and 'anyResource' set together"
            ),
        }
        let part = |name: &str| doc.get(name).and_then(|value| value.as_str());
        if let (Some(of), None) = (part("system_buckets"), part("collection")) {
            // Those of one time series are a collection like another.
            return Ok(match (part("db").unwrap_or_default(), of) {
                ("", "") => Resource::AnyBuckets,
                ("", of) => Resource::Named(format!("{BUCKETS}{of}")),
                (db, "") => Resource::BucketsOf(db.to_owned()),
                (db, of) => Resource::Collection(db.to_owned(), format!("{BUCKETS}{of}")),
            });
        }
        let (Some(db), Some(collection)) = (part("db"), part("collection")) else {
            bail!(Code::BAD_VALUE, "resource must set both 'db' and 'collection', as strings");
        };
        Ok(match (db, collection) {
            ("", "") => Resource::AnyNormal,
            ("", name) => Resource::Named(name.to_owned()),
            (db, "") => Resource::Database(db.to_owned()),
            (db, name) => Resource::Collection(db.to_owned(), name.to_owned()),
        })
    }

    /// Writes the fields of a privilege's `resource`.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        let mut names = |db: &str, collection: &str| {
            doc.append("db", db).append("collection", collection);
        };
        match self {
            Resource::AnyNormal => names("", ""),
            Resource::Database(db) => names(db, ""),
            Resource::Named(name) => names("", name),
            Resource::Collection(db, name) => names(db, name),
            Resource::Any => {
                doc.append("anyResource", true);
            }
            Resource::Cluster => {
                doc.append("cluster", true);
            }
            Resource::AnyBuckets => {
                doc.append("db", "").append("system_buckets", "");
            }
            Resource::BucketsOf(db) => {
                doc.append("db", db).append("system_buckets", "");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, doc};

    use super::*;

    #[test]
    fn buckets_are_named_as_they_are_shown() {
        let (lib, other) =
            (Target::Collection("lib", "system.buckets.t"), Target::Collection("b", "system.buckets.s"));
        let books = Target::Collection("lib", "books");
        for (resource, covers) in [
            (doc! { "db": "", "system_buckets": "" }, [true, true]),
            (doc! { "db": "lib", "system_buckets": "" }, [true, false]),
            (doc! { "db": "lib", "system_buckets": "t" }, [true, false]),
            (doc! { "db": "lib", "system_buckets": "s" }, [false, false]),
            (doc! { "db": "", "system_buckets": "s" }, [false, true]),
            (doc! { "system_buckets": "t" }, [true, false]),
        ] {
            let read = Resource::read(resource.as_raw()).unwrap();
            assert_eq!([lib, other].map(|target| read.covers(target)), covers, "{read:?}");
            assert!(!read.covers(books));
            let shown = DocBuf::build(|doc| read.write(doc));
            assert_eq!(Resource::read(shown.as_raw()).unwrap(), read);
        }
        assert!(Resource::read(doc! { "db": "lib" }.as_raw()).is_err());
        assert!(Resource::read(doc! { "db": "lib", "collection": "c", "cluster": true }.as_raw()).is_err());
    }
}
