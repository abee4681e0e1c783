//! What the audit log is told of collections and indexes: only what has changed, which a command alone does not tell.

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result};
use sheaf_front::audit::noted::{note, room_for};
use sheaf_storage::Catalog;

use crate::commands::ddl::names;
use crate::op::Operation;

/// A collection that is about to be made, if there is an audit log.
pub struct Creation {
    makes_database: bool,
}

impl Creation {
    /// Looks whether its database is there.
    pub fn of(op: &Operation<'_>, namespace: &str) -> Option<Self> {
        op.front
            .audit
            .is_some()
            .then(|| Creation { makes_database: !op.catalog().has_database(names::split(namespace).0) })
    }

    /// It has been made.
    pub fn done(self, op: &Operation<'_>, namespace: &str, view: Option<(&str, RawDoc<'_>)>) {
        if self.makes_database {
            note(op, "createDatabase", Code::OK, || doc! { "ns": names::split(namespace).0 });
        }
        note(op, "createCollection", Code::OK, || {
            DocBuf::build(|param| {
                param.append("ns", namespace);
                if let Some((source, pipeline)) = view {
                    param.append("viewOn", &*format!("{}.{source}", names::split(namespace).0));
                    param.append("pipeline", sheaf_bson::Value::Array(pipeline));
                }
            })
        });
    }
}

/// A collection or view is gone, or was not there.
pub fn dropped(op: &Operation<'_>, namespace: &str, result: Code) {
    note(op, "dropCollection", result, || doc! { "ns": namespace });
}

/// Room for telling that a database is gone, with these collections.
///
/// Errors: `OutOfDiskSpace`.
pub fn before_dropping(op: &Operation<'_>, before: &Catalog) -> Result<()> {
    room_for(op, before.collections(op.db()).map(|collection| collection.namespace.as_str()))
}

/// A database is gone, which had these collections.
pub fn database_dropped(op: &Operation<'_>, before: &Catalog) {
    if op.front.audit.is_some() {
        for collection in before.collections(op.db()) {
            dropped(op, &collection.namespace, Code::OK);
        }
        note(op, "dropDatabase", Code::OK, || doc! { "ns": op.db() });
    }
}

/// These indexes have been made, or could not be.
pub fn indexes_built(op: &Operation<'_>, namespace: &str, specs: &[DocBuf], result: Code) {
    if op.front.audit.is_none() {
        return;
    }
    let state = if result == Code::OK { "IndexBuildSucceeded" } else { "IndexBuildAborted" };
    for spec in specs {
        note(op, "createIndex", result, || {
            doc! {
                "ns": namespace, "indexName": spec.as_raw().get_or_missing("name"), "indexSpec": spec.as_raw(),
                "indexBuildState": state,
            }
        });
    }
}

/// These indexes are gone.
pub fn indexes_dropped(op: &Operation<'_>, namespace: &str, names: &[String]) {
    for name in names {
        note(op, "dropIndex", Code::OK, || doc! { "ns": namespace, "indexName": name });
    }
}

/// A collection has another name.
pub fn renamed(op: &Operation<'_>, old: &str, new: &str) {
    note(op, "renameCollection", Code::OK, || doc! { "old": old, "new": new });
}
