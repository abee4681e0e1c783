//! Writing to the collections of users and roles by other commands than theirs: the audit log is told what was written.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result};
use sheaf_front::audit::noted::{note, room_of};
use sheaf_storage::{Collection, CreateCollection, DocumentKey, Statement, View, Write, WrittenKeys};

use crate::op::Operation;

/// Of which collections each write is told.
const TOLD: [&str; 3] = ["admin.system.users", "admin.system.roles", "admin.system.version"];

/// A writer that tells.
pub struct Witness<'w, 'o, 'a> {
    op: &'o Operation<'a>,
    inner: &'w mut dyn Write,
}

/// The document; of what passwords are proved by, only for which mechanisms.
fn shown(document: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in document {
            if field.key() != "credentials" {
                out.append_element(field);
                continue;
            }
            let mut mechanisms = out.array("credentials");
            for mechanism in field.value().as_doc().into_iter().flatten() {
                mechanisms.push(mechanism.key());
            }
        }
    })
}

impl<'w, 'o, 'a> Witness<'w, 'o, 'a> {
    /// Watches a writer of this operation.
    pub fn new(op: &'o Operation<'a>, inner: &'w mut dyn Write) -> Self {
        Witness { op, inner }
    }

    /// Does it, and tells it if it is to be told. There is room for that before anything is done.
    fn told(
        &mut self,
        collection: &Collection,
        operation: &str,
        document: RawDoc<'_>,
        work: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let namespace = collection.namespace.as_str();
        if !TOLD.contains(&namespace) {
            return work(self.inner);
        }
        let document = shown(document);
        room_of(self.op, document.as_raw())?;
        work(self.inner)?;
        note(self.op, "directAuthMutation", Code::OK, || {
            doc! { "document": document.as_raw(), "ns": namespace, "operation": operation }
        });
        Ok(())
    }
}

impl Write for Witness<'_, '_, '_> {
    fn view(&mut self) -> Result<View> {
        self.inner.view()
    }

    fn collection(&mut self, namespace: &str) -> Result<Option<Arc<Collection>>> {
        self.inner.collection(namespace)
    }

    fn set_down(&mut self) -> Result<bool> {
        self.inner.set_down()
    }

    fn take_up(&mut self, collection: &Arc<Collection>) -> Result<Arc<Collection>> {
        self.inner.take_up(collection)
    }

    fn read_for_update(&mut self, collection: &Arc<Collection>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.read_for_update(collection, key)
    }

    fn insert(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()> {
        self.told(collection, "insert", doc, |inner| inner.insert(collection, doc))
    }

    fn update(
        &mut self,
        collection: &Arc<Collection>,
        key: &[u8],
        old: RawDoc<'_>,
        new: RawDoc<'_>,
        diff: Option<RawDoc<'_>>,
    ) -> Result<()> {
        self.told(collection, "update", new, |inner| inner.update(collection, key, old, new, diff))
    }

    fn delete(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>) -> Result<()> {
        self.told(collection, "remove", old, |inner| inner.delete(collection, key, old))
    }

    fn create_collection(&mut self, namespace: &str, spec: CreateCollection) -> Result<()> {
        self.inner.create_collection(namespace, spec)
    }

    fn retries_conflicts(&self) -> bool {
        self.inner.retries_conflicts()
    }

    fn reserve(&mut self, bytes: usize) {
        self.inner.reserve(bytes);
    }

    fn statement(&mut self, statement: Option<Statement>) {
        self.inner.statement(statement);
    }

    fn joint_statements(&mut self, statements: Vec<Statement>) -> Result<()> {
        self.inner.joint_statements(statements)
    }

    fn document_key(&mut self, key: Option<Arc<DocumentKey>>) {
        self.inner.document_key(key);
    }

    fn written_keys(&self) -> WrittenKeys {
        self.inner.written_keys()
    }
}
