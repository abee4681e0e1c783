//! Which names clients may give to collections, and finding the collection that a command means.

use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::{Catalog, Collection, Uuid};

/// Longest full name of a collection, in bytes.
const NAMESPACE_BYTES_MAX: usize = 255;

/// Whether clients may have a collection of this name below `system.`, which is what it begins with.
fn is_open_system_name(db: &str, collection: &str) -> bool {
    let own = match db {
        "admin" => {
            matches!(collection, "system.roles" | "system.version" | "system.keys" | "system.backup_users")
        }
        "config" => {
            matches!(
                collection,
                "system.sessions"
                    | "system.indexBuilds"
                    | "system.preimages"
                    | "system.sharding_ddl_coordinators"
            ) || collection.contains(".system.resharding.")
        }
        "local" => {
            matches!(collection, "system.replset" | "system.healthlog" | "system.collections_to_restore")
        }
        _ => false,
    };
    let anywhere = matches!(collection, "system.js" | "system.profile" | "system.users" | "system.views");
    own || anywhere
        || collection.starts_with("system.resharding.")
        || collection.strip_prefix("system.buckets.").is_some_and(|name| !name.is_empty())
}

/// Refuses names that a client may not create, however the collection comes into being (`userAllowedCreateNS`).
///
/// Errors: `InvalidNamespace`; `BadValue` for `.system.` within.
pub fn check_new_name(namespace: &str) -> Result<()> {
    let (db, collection) = split(namespace);
    check_new(db, collection)
}

/// The same of a name in two parts: writes ask it, and are spared its whole.
fn check_new(db: &str, collection: &str) -> Result<()> {
    if collection.is_empty() || collection.starts_with('.') || collection.contains(['$', '\0']) {
        bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{db}.{collection}'");
    }
    if db.len() + 1 + collection.len() > NAMESPACE_BYTES_MAX {
        bail!(
            Code::INVALID_NAMESPACE,
            "Fully qualified namespace is too long. Namespace: {db}.{collection} Max: {NAMESPACE_BYTES_MAX}"
        );
    }
    if !collection.contains("system.") {
        return Ok(());
    }
    if collection.starts_with("system.") && !is_open_system_name(db, collection) {
        bail!(Code::INVALID_NAMESPACE, "Invalid system namespace: {db}.{collection}");
    }
    // What is cached of the placement of a system collection is named by it.
    let is_cache = || db == "config" && collection.starts_with("cache.chunks.");
    if collection.contains(".system.") && !collection.contains(".system.sessions") && !is_cache() {
        bail!(Code::BAD_VALUE, "Invalid namespace: {db}.{collection}");
    }
    Ok(())
}

/// Refuses names that a client may not write, or make indexes on (`userAllowedWriteNS`).
///
/// Errors: those of [`check_new_name`].
pub fn check_written_name(db: &str, collection: &str) -> Result<()> {
    let is_kept = matches!(collection, "system.profile" | "system.views");
    if is_kept || (db == "local" && collection == "oplog.rs") {
        bail!(Code::INVALID_NAMESPACE, "cannot write to {db}.{collection}");
    }
    check_new(db, collection)
}

/// Checks both parts of a full name that stands in an argument.
///
/// Errors: `InvalidNamespace`.
pub fn check_full_name(namespace: &str, what: &str) -> Result<()> {
    let (db, collection) = split(namespace);
    let good =
        crate::args::check_db_name(db).is_ok() && crate::args::check_collection_name(collection).is_ok();
    if !good {
        bail!(Code::INVALID_NAMESPACE, "Invalid {what} namespace: {namespace}");
    }
    Ok(())
}

/// `db.some.collection` as `("db", "some.collection")`.
pub fn split(namespace: &str) -> (&str, &str) {
    namespace.split_once('.').unwrap_or((namespace, ""))
}

/// The collection of this name, or the error that there is none (whose words differ between commands).
///
/// Errors: `NamespaceNotFound`, `CommandNotSupportedOnView`.
pub fn existing<'c>(catalog: &'c Catalog, namespace: &str, missing: &str) -> Result<&'c Arc<Collection>> {
    let Some(collection) = catalog.collection(namespace) else {
        bail!(Code::NAMESPACE_NOT_FOUND, "{missing}");
    };
    refuse_view(collection)?;
    Ok(collection)
}

/// Errors: `CommandNotSupportedOnView`.
pub fn refuse_view(collection: &Collection) -> Result<()> {
    if collection.is_view() {
        bail!(
            Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
            "Namespace {} is a view, not a collection",
            collection.namespace
        );
    }
    Ok(())
}

/// Checks the UUID that a client expects a collection to have.
///
/// Errors: `CollectionUUIDMismatch`, which names the collection that has the UUID.
pub fn check_uuid(catalog: &Catalog, namespace: &str, expected: Option<Uuid>) -> Result<()> {
    let Some(uuid) = expected else { return Ok(()) };
    if catalog.collection(namespace).is_some_and(|found| !found.is_view() && found.uuid == uuid) {
        return Ok(());
    }
    let (db, collection) = split(namespace);
    let actual = catalog.by_uuid(&uuid).filter(|found| found.db() == db);
    let extra = DocBuf::build(|out| {
        out.append("db", db);
        out.append("collectionUUID", Value::Binary(Binary { subtype: 4, bytes: uuid.as_bytes() }));
        out.append("expectedCollection", collection);
        out.append("actualCollection", actual.map_or(Value::Null, |found| Value::String(found.name())));
    });
    let error = Error::new(Code::COLLECTION_UUID_MISMATCH, "Collection UUID does not match that specified");
    Err(error.with_extra(extra.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = format!("db.{}", "x".repeat(252));
        for good in [
            "a.b",
            "a.b.c",
            "a.system.js",
            "admin.system.users",
            "admin.system.keys",
            "local.system.healthlog",
            "config.system.sessions",
            "config.cache.chunks.a.system.b",
            "a.systems",
            "a.system.buckets.x",
            long.as_str(),
        ] {
            assert!(check_new_name(good).is_ok(), "{good}");
        }
        assert_eq!(check_new_name("a.b.system.c").map_err(|error| error.code()), Err(Code::BAD_VALUE));
        for kept in ["a.system.views", "a.system.profile", "local.oplog.rs"] {
            let (db, collection) = split(kept);
            assert!(check_written_name(db, collection).is_err() && check_new_name(kept).is_ok(), "{kept}");
        }
        let longer = format!("{long}x");
        for bad in [
            "a",
            "a.",
            "a..b",
            "a.$b",
            "a.b$c",
            "a.system.x",
            "a.system.version",
            "admin.system.x",
            "config.system.x",
            "local.system.x",
            "a.system.buckets.",
            "a.b\0",
            longer.as_str(),
        ] {
            let error = check_new_name(bad).expect_err(bad);
            assert_eq!(error.code(), Code::INVALID_NAMESPACE, "{bad}");
        }
    }

    #[test]
    fn full_names() {
        assert!(check_full_name("a.b.c", "target").is_ok());
        for bad in ["", "a", "a.", ".b", "a b.c", "a..c"] {
            assert!(check_full_name(bad, "target").is_err(), "{bad}");
        }
    }
}
