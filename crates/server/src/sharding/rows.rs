//! A few documents that a server changes by itself, together: what a conductor and a shard note of collections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_replica::Replica;
use sheaf_storage::{
    Collection, CreateCollection, Direction, Engine, Interrupt, OpTime, Range, Transaction, View, Write,
};

/// How long who meets another's change waits before it tries again.
const PAUSE: Duration = Duration::from_millis(5);

/// Documents that change together.
pub struct Change {
    transaction: Transaction,
}

impl Change {
    /// Begins a change that is its caller's to commit or to prepare, of this session's transaction.
    ///
    /// Errors: those of the engine.
    pub fn begin(engine: &Engine, session: Option<(DocBuf, i64)>) -> Result<Change> {
        Ok(Change { transaction: engine.begin(session)? })
    }

    /// A change that goes on in a transaction which has begun.
    pub fn of(transaction: Transaction) -> Change {
        Change { transaction }
    }

    /// The transaction in which everything was changed.
    pub fn into_transaction(self) -> Transaction {
        self.transaction
    }

    /// The document of this `_id` as this change has left it.
    pub fn get(&mut self, namespace: &str, id: Value<'_>) -> Result<Option<DocBuf>> {
        get(&self.transaction.view()?, namespace, id)
    }

    /// The documents that are wanted, as this change has left them.
    pub fn find(&mut self, namespace: &str, wanted: impl FnMut(RawDoc<'_>) -> bool) -> Result<Vec<DocBuf>> {
        find(&self.transaction.view()?, namespace, wanted)
    }

    /// Writes a document, in the place of what has its `_id`.
    pub fn put(&mut self, namespace: &str, document: RawDoc<'_>) -> Result<()> {
        let collection = self.collection(namespace)?;
        let key = collection.record_key(document.get_or_missing("_id"))?;
        match self.transaction.read_for_update(&collection, &key)? {
            Some(old) if old == document.as_bytes() => Ok(()),
            Some(old) => self.transaction.update(&collection, &key, RawDoc::new(&old), document, None),
            None => self.transaction.insert(&collection, document),
        }
    }

    /// Takes a document away; whether there was one.
    pub fn remove(&mut self, namespace: &str, id: Value<'_>) -> Result<bool> {
        let collection = self.collection(namespace)?;
        let key = collection.record_key(id)?;
        let Some(old) = self.transaction.read_for_update(&collection, &key)? else { return Ok(false) };
        self.transaction.delete(&collection, &key, RawDoc::new(&old))?;
        Ok(true)
    }

    /// Takes a record away that is there and that `is_meant` accepts. It is another shard's now, so that to readers of the log nothing
    /// changes, here and with [`Change::put_record`].
    pub fn remove_record(
        &mut self,
        collection: &Collection,
        key: &[u8],
        is_meant: impl FnOnce(RawDoc<'_>) -> bool,
    ) -> Result<()> {
        let collection = self.collection(&collection.namespace)?;
        self.transaction.set_from_migrate();
        let Some(old) = self.transaction.read_for_update(&collection, key)? else { return Ok(()) };
        if !is_meant(RawDoc::new(&old)) {
            return Ok(());
        }
        self.transaction.delete(&collection, key, RawDoc::new(&old))
    }

    /// Writes a document; in the place of what has its `_id`, if `is_meant` accepts that.
    ///
    /// Errors: `DuplicateKey`, if it does not.
    pub fn put_record(
        &mut self,
        collection: &Collection,
        document: RawDoc<'_>,
        is_meant: impl FnOnce(RawDoc<'_>) -> bool,
    ) -> Result<()> {
        let collection = self.collection(&collection.namespace)?;
        self.transaction.set_from_migrate();
        let key = collection.record_key(document.get_or_missing("_id"))?;
        match self.transaction.read_for_update(&collection, &key)? {
            Some(old) if old == document.as_bytes() => Ok(()),
            Some(old) if is_meant(RawDoc::new(&old)) => {
                self.transaction.update(&collection, &key, RawDoc::new(&old), document, None)
            }
            // The insert says what is in the way.
            _ => self.transaction.insert(&collection, document),
        }
    }

    fn collection(&mut self, namespace: &str) -> Result<Arc<Collection>> {
        self.transaction
            .collection(namespace)?
            .ok_or_else(|| Error::new(Code::NAMESPACE_NOT_FOUND, format!("ns does not exist: {namespace}")))
    }
}

/// Changes documents together, and gives the position of the change. Where it meets another's, it waits and does it again.
///
/// Errors: those of `work` and of the log; why not to go on.
pub fn change<T>(
    engine: &Engine,
    go_on: Interrupt<'_>,
    mut work: impl FnMut(&mut Change) -> Result<T>,
) -> Result<(T, OpTime)> {
    loop {
        let mut attempt = Change { transaction: engine.begin(None)? };
        let done = work(&mut attempt);
        let done = done.and_then(|value| Ok((value, attempt.transaction.commit(go_on)?)));
        match done {
            Err(error) if is_met(error.code()) => {
                go_on()?;
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Whether somebody else has changed, or is changing, the same.
fn is_met(code: Code) -> bool {
    matches!(code, Code::WRITE_CONFLICT | Code::SNAPSHOT_UNAVAILABLE | Code::LOCK_TIMEOUT)
}

/// Makes a collection that the server itself uses, if it is not there.
pub fn ensure(engine: &Engine, namespace: &str, go_on: Interrupt<'_>) -> Result<()> {
    if engine.catalog().collection(namespace).is_some() {
        return Ok(());
    }
    match engine.create_collection(namespace, &CreateCollection::default(), go_on) {
        Err(error) if error.code() != Code::NAMESPACE_EXISTS => Err(error),
        _ => Ok(()),
    }
}

/// The document of this `_id`.
pub fn get(view: &View, namespace: &str, id: Value<'_>) -> Result<Option<DocBuf>> {
    let Some(collection) = view.collection(namespace) else { return Ok(None) };
    let key = collection.record_key(id)?;
    Ok(view.get(collection, &key)?.map(|found| DocBuf::from(found.as_raw())))
}

/// The documents that are wanted, in the order of their `_id`s.
pub fn find(view: &View, namespace: &str, mut wanted: impl FnMut(RawDoc<'_>) -> bool) -> Result<Vec<DocBuf>> {
    let mut found = Vec::new();
    let Some(collection) = view.collection(namespace) else { return Ok(found) };
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
    while cursor.next()? {
        if wanted(cursor.doc()) {
            found.push(DocBuf::from(cursor.doc()));
        }
    }
    Ok(found)
}

/// Waits until a majority has what is written up to here.
///
/// Errors: this member does not lead any more; why not to go on.
pub fn until_majority(replica: &Replica, at: OpTime, term: u64, go_on: Interrupt<'_>) -> Result<()> {
    replica.hurry(at);
    let began = Instant::now();
    while replica.commit_point().index < at.index {
        go_on()?;
        check_leads(replica, term)?;
        // Most often it takes less than a millisecond.
        let wait = if began.elapsed() < Duration::from_millis(5) { 100 } else { 2000 };
        std::thread::sleep(Duration::from_micros(wait));
    }
    check_leads(replica, term)
}

/// Errors: `NotWritablePrimary`, if this member does not lead in this term.
pub fn check_leads(replica: &Replica, term: u64) -> Result<()> {
    let role = replica.role();
    if !role.writable || role.term != term {
        return Err(Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary"));
    }
    Ok(())
}
