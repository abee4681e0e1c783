//! What the audit log is told of collections and indexes: only what has changed, which a command alone does not tell.

mod conducted;

use std::cell::RefCell;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result};
use sheaf_front::audit::noted::{note, room_for, room_of};
use sheaf_storage::{Collection, Uuid};

use crate::commands::ddl::names;
use crate::op::Operation;

pub use conducted::Conducted;

/// A collection that is about to be made, if there is an audit log.
pub struct Creation {
    makes_database: bool,
}

impl Creation {
    /// Looks whether its database is there, and takes room for telling of both: one command may make many collections.
    ///
    /// Errors: `OutOfDiskSpace`. Then it must not be made.
    pub fn of(op: &Operation<'_>, namespace: &str) -> Result<Option<Self>> {
        if op.front.audit.is_none() {
            return Ok(None);
        }
        let makes_database = !op.catalog().has_database(names::split(namespace).0);
        room_for(op, [namespace].into_iter().chain(makes_database.then_some(namespace)))?;
        Ok(Some(Creation { makes_database }))
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

/// A collection that a command may make or replace while it does something else. What has become of it is told when the command ends,
/// however it does.
pub struct Target<'o, 'a> {
    op: &'o Operation<'a>,
    namespace: String,
    before: Option<Uuid>,
    makes_database: bool,
}

impl<'o, 'a> Target<'o, 'a> {
    /// Looks at it as it is now, if there is an audit log.
    pub fn of(op: &'o Operation<'a>, namespace: &str) -> Option<Self> {
        op.front.audit.as_ref()?;
        let catalog = op.engine().catalog();
        Some(Target {
            op,
            namespace: namespace.to_owned(),
            before: catalog.collection(namespace).map(|found| found.uuid),
            makes_database: !catalog.has_database(names::split(namespace).0),
        })
    }
}

impl Drop for Target<'_, '_> {
    fn drop(&mut self) {
        let now = self.op.engine().catalog().collection(&self.namespace).map(|found| found.uuid);
        if now == self.before {
            return;
        }
        if self.before.is_some() {
            dropped(self.op, &self.namespace, Code::OK);
        }
        if now.is_some() {
            Creation { makes_database: self.makes_database }.done(self.op, &self.namespace, None);
        }
    }
}

/// A collection or view is gone, or was not there.
pub fn dropped(op: &Operation<'_>, namespace: &str, result: Code) {
    note(op, "dropCollection", result, || doc! { "ns": namespace });
}

/// A database that is about to be dropped.
pub struct Dropping<'o, 'a> {
    op: &'o Operation<'a>,
    /// The collections that go with it.
    collections: RefCell<Vec<String>>,
}

impl<'o, 'a> Dropping<'o, 'a> {
    /// The operation's own.
    pub fn of(op: &'o Operation<'a>) -> Self {
        Dropping { op, collections: RefCell::default() }
    }

    /// It goes with these collections, which nobody changes any more: those that were made while it was waited for, too.
    ///
    /// Errors: `OutOfDiskSpace`: there is no room for telling it.
    pub fn begin(&self, collections: &[&Collection]) -> Result<()> {
        if self.op.front.audit.is_none() {
            return Ok(());
        }
        let names: Vec<_> = collections.iter().map(|collection| collection.namespace.clone()).collect();
        room_for(self.op, names.iter().map(String::as_str))?;
        self.collections.replace(names);
        Ok(())
    }

    /// It is gone.
    pub fn done(self) {
        if self.op.front.audit.is_some() {
            for namespace in self.collections.take() {
                dropped(self.op, &namespace, Code::OK);
            }
            note(self.op, "dropDatabase", Code::OK, || doc! { "ns": self.op.db() });
        }
    }
}

/// Takes room for telling of these indexes, which are about to be made.
///
/// Errors: `OutOfDiskSpace`. Then they must not be made.
pub fn room_for_indexes<'s>(op: &Operation<'_>, specs: impl IntoIterator<Item = RawDoc<'s>>) -> Result<()> {
    if op.front.audit.is_none() {
        return Ok(());
    }
    specs.into_iter().try_for_each(|spec| room_of(op, spec))
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
