//! Writing to collections of which this shard owns a part: each write is checked against the placement.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::{Collection, CreateCollection, DocumentKey, Statement, Uuid, View, Write, WrittenKeys};

use super::ShardServer;
use super::Writing;
use super::placements::Placed;
use crate::op::Operation;

/// A writer that refuses what the shard does not own, and does not see what is there without being the shard's.
pub struct Guarded<'w, 'o, 'a> {
    op: &'o Operation<'a>,
    sharding: &'o ShardServer,
    inner: &'w mut dyn Write,
    /// The collection that was asked for last: its writers keep its placement from changing until they are done.
    current: Option<Current>,
    order: (Vec<u8>, Vec<u8>),
}

struct Current {
    namespace: String,
    uuid: Uuid,
    placed: Option<Arc<Placed>>,
}

impl<'w, 'o, 'a> Guarded<'w, 'o, 'a> {
    /// Guards a writer of this operation.
    pub fn new(op: &'o Operation<'a>, sharding: &'o ShardServer, inner: &'w mut dyn Write) -> Self {
        Guarded { op, sharding, inner, current: None, order: Default::default() }
    }

    fn placed(&mut self, uuid: &Uuid) -> Result<Option<Arc<Placed>>> {
        let placements = self.sharding.placements();
        if self.op.in_transaction() {
            return placements.in_view(&self.inner.view()?, uuid);
        }
        // Whoever changes it waits until this writer has left the collection.
        placements.now(self.op.engine(), &self.op.catalog(), uuid)
    }

    /// Whether what is not sharded of the namespace's database lives here.
    fn check_home(&mut self, namespace: &str) -> Result<()> {
        let db = namespace.split_once('.').map_or(namespace, |(db, _)| db);
        if self.op.in_transaction() {
            let view = self.inner.view()?;
            return self.op.check_home(&view, db);
        }
        self.op.check_home_now(db)
    }

    /// The placement of the collection that is written to.
    fn of(&self, collection: &Collection) -> Option<&Arc<Placed>> {
        let current = self.current.as_ref().filter(|current| current.uuid == collection.uuid);
        assert!(current.is_some(), "{} is written to before it was asked for", collection.namespace);
        current.and_then(|current| current.placed.as_ref())
    }

    /// Tells the balancer's figures what was written.
    fn note(&self, collection: &Collection, document: RawDoc<'_>) {
        if let Some(placed) = self.of(collection) {
            placed.traffic.note(&placed.pattern, document);
        }
    }

    /// Whether an update may make this of a document: it leaves the shard key as it is, or changes it in a way that this shard can see
    /// through.
    ///
    /// Errors: `NotSingleValueField`, `InvalidOptions`, `IllegalOperation`; `WouldChangeOwningShard` with both versions of the
    /// document.
    fn check_update(&mut self, collection: &Collection, old: RawDoc<'_>, new: RawDoc<'_>) -> Result<()> {
        let Some(placed) = self.of(collection).cloned() else { return Ok(()) };
        let (before, after) = &mut self.order;
        before.clear();
        after.clear();
        placed.pattern.put_order(old, before)?;
        if placed.pattern.put_order(new, after).is_err() {
            bail!(
                Code::NOT_SINGLE_VALUE_FIELD,
                "Shard key update cannot contain array values or array descendants."
            );
        }
        if before == after {
            return Ok(());
        }
        if self.op.writing.get() == Writing::Many {
            bail!(
                Code::INVALID_OPTIONS,
                "Multi-update operations are not allowed when updating the shard key field."
            );
        }
        if self.op.txn_number().is_none() {
            bail!(
                Code::ILLEGAL_OPERATION,
                "Must run update to shard key field in a multi-statement transaction or with retryWrites: true."
            );
        }
        if placed.placement.owned.holds(after) {
            return Ok(());
        }
        Err(would_leave(collection, old, new, false))
    }
}

/// The error for an update whose result belongs to another shard: a router deletes and inserts instead.
fn would_leave(collection: &Collection, old: RawDoc<'_>, new: RawDoc<'_>, upserts: bool) -> Error {
    let extra = DocBuf::build(|out| {
        out.append("preImage", old);
        out.append("postImage", new);
        out.append("shouldUpsert", upserts);
        out.append("ns", collection.namespace.as_str());
    });
    let text = "Document shard key value updates that cause the doc to move shards must be sent with write batch of size 1";
    Error::new(Code::WOULD_CHANGE_OWNING_SHARD, text).with_extra(extra.into_bytes())
}

impl Write for Guarded<'_, '_, '_> {
    fn view(&mut self) -> Result<View> {
        self.inner.view()
    }

    fn collection(&mut self, namespace: &str) -> Result<Option<Arc<Collection>>> {
        let found = self.inner.collection(namespace)?;
        let same = |current: &Current| {
            current.namespace == namespace && found.as_ref().is_some_and(|found| found.uuid == current.uuid)
        };
        if self.current.as_ref().is_some_and(same) {
            return Ok(found);
        }
        self.current = None;
        let placed = match &found {
            Some(collection) => self.placed(&collection.uuid)?,
            None => None,
        };
        self.op.check_version(namespace, found.as_deref(), placed.as_deref())?;
        if placed.is_none() {
            self.check_home(namespace)?;
        }
        self.inner.document_key(placed.as_ref().map(|placed| placed.document_key().clone()));
        self.current =
            found.as_ref().map(|found| Current { namespace: namespace.to_owned(), uuid: found.uuid, placed });
        Ok(found)
    }

    /// What is owned must not change between the search and the last write: only what is pending goes, with the records' locks.
    fn set_down(&mut self) -> Result<bool> {
        self.inner.view().map(|_| false)
    }

    fn read_for_update(&mut self, collection: &Arc<Collection>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.inner.read_for_update(collection, key)?;
        let filters = self.of(collection).filter(|placed| placed.placement.filters()).cloned();
        let (Some(document), Some(placed)) = (&found, filters) else { return Ok(found) };
        let owned = placed.owns(RawDoc::new(document), &mut self.order.0)?;
        Ok(found.filter(|_| owned))
    }

    fn insert(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()> {
        if let Some(placed) = self.of(collection).cloned()
            && !placed.owns(doc, &mut self.order.0)?
        {
            // The router has sent an upsert by its filter; what comes of it may belong elsewhere.
            let upserts = self.op.writing.get() != Writing::Others;
            return Err(match self.op.version_for(&collection.namespace) {
                Some(_) if upserts => would_leave(collection, RawDoc::EMPTY, doc, true),
                _ => self.op.not_owned(&collection.namespace, &placed),
            });
        }
        match self.inner.insert(collection, doc) {
            Err(error) if error.code() == Code::DUPLICATE_KEY => {
                if let Some(placed) = self.of(collection) {
                    let record = collection.record_key(doc.get_or_missing("_id"))?;
                    self.sharding.placements().has_met(placed, collection.uuid, record);
                }
                return Err(error);
            }
            done => done?,
        }
        self.note(collection, doc);
        Ok(())
    }

    fn update(
        &mut self,
        collection: &Arc<Collection>,
        key: &[u8],
        old: RawDoc<'_>,
        new: RawDoc<'_>,
        diff: Option<RawDoc<'_>>,
    ) -> Result<()> {
        self.check_update(collection, old, new)?;
        self.inner.update(collection, key, old, new, diff)?;
        self.note(collection, new);
        Ok(())
    }

    fn delete(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>) -> Result<()> {
        self.inner.delete(collection, key, old)
    }

    fn create_collection(&mut self, namespace: &str, spec: CreateCollection) -> Result<()> {
        match self.op.version_for(namespace) {
            Some(received) if received.uuid.is_some() => {
                Err(self.op.stale(namespace, received, None, "the collection is not here"))
            }
            _ => self.inner.create_collection(namespace, self.op.making(namespace, spec)?),
        }
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
