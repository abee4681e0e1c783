//! Which names clients may give to collections, and finding the collection that a command means.

use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::{Catalog, Collection, Uuid};

/// Longest full name of a collection, in bytes.
const NAMESPACE_BYTES_MAX: usize = 255;

/// Names below `system.` that clients may create and write.
const OPEN_SYSTEM_NAMES: &[&str] = &["system.js", "system.profile", "system.users", "system.views"];

/// Refuses names that a client may not create.
///
/// Errors: `InvalidNamespace`.
pub fn check_new_name(namespace: &str) -> Result<()> {
    let (db, collection) = split(namespace);
    if collection.is_empty() || collection.starts_with('.') || collection.contains(['$', '\0']) {
        bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{namespace}'");
    }
    if namespace.len() > NAMESPACE_BYTES_MAX {
        bail!(
            Code::INVALID_NAMESPACE,
            "Fully qualified namespace is too long. Namespace: {namespace} Max: {NAMESPACE_BYTES_MAX}"
        );
    }
    let internal = matches!(db, "admin" | "config" | "local");
    let open = OPEN_SYSTEM_NAMES.contains(&collection) || collection.starts_with("system.buckets.");
    if collection.starts_with("system.") && !internal && !open {
        bail!(Code::INVALID_NAMESPACE, "Invalid system namespace: {namespace}");
    }
    Ok(())
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
        for good in ["a.b", "a.b.c", "a.system.js", "admin.system.users", "a.systems", long.as_str()] {
            assert!(check_new_name(good).is_ok(), "{good}");
        }
        let longer = format!("{long}x");
        for bad in ["a", "a.", "a..b", "a.$b", "a.b$c", "a.system.x", "a.b\0", longer.as_str()] {
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
