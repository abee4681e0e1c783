//! Index builds that do not hold writers off.
//!
//! The index enters the catalog as *being built*; from then on every write keeps it. Meanwhile the build
//! walks the records and adds each document's entries, under the document's lock and from its newest
//! state, in sorted batches. When it has seen all of them the index becomes *ready*. Its entries are not
//! in the log: recovery fills an index anew where the log says that a build committed.

use std::sync::Arc;

use ahash::AHashMap;
use rocksdb::WriteBatch;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result, bail};

use crate::catalog::Collection;
use crate::changes::{Changes, Sink};
use crate::core::Core;
use crate::cursor::{Direction, Range};
use crate::db::Cf;
use crate::ddl::{create_indexes_command, index_names_command};
use crate::index::Index;
use crate::keys::{PREFIX, entry_parts};
use crate::locks::{LockKey, Locked, Owner};
use crate::options::{Interrupt, OpTime};
use crate::view::View;

/// Entries are written when this many are gathered (sorted), so locks are held shortly.
const BATCH_ENTRIES: usize = 4096;

/// Entries gathered, to be sorted before they are written.
#[derive(Default)]
struct Run(Vec<(Vec<u8>, Vec<u8>)>);

impl Sink for Run {
    fn put(&mut self, _cf: Cf, key: &[u8], value: &[u8]) {
        self.0.push((key.to_vec(), value.to_vec()));
    }
    fn delete(&mut self, _cf: Cf, _key: &[u8]) {}
}

impl Core {
    /// Builds indexes from complete, checked specs; returns when they are ready. Those that exist already
    /// are skipped.
    pub fn create_indexes(
        self: &Arc<Self>,
        namespace: &str,
        specs: &[RawDoc<'_>],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let collection = self.announce(namespace, specs, interrupt)?;
        let (collection, names) = match collection {
            Announced::Done(at) => return Ok(at),
            Announced::Building(collection, names) => (collection, names),
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let built = self.fill(&collection, &names, interrupt);
        let closed = collection.state.gate.close(&self.options.block, interrupt);
        let result = built.and_then(|()| {
            for name in &names {
                let error = collection.index(name).and_then(|index| index.doomed.lock().clone());
                error.map_or(Ok(()), Err)?;
            }
            closed.as_ref().map(|_| ()).map_err(Error::clone)
        });
        let _turn = self.ddl.lock();
        // The collection may have been dropped meanwhile, which ends the build.
        if self.catalog.load().by_uuid(&collection.uuid).is_none() {
            bail!(Code::INDEX_BUILD_ABORTED, "Index build aborted: collection {namespace} was dropped");
        }
        if let Err(error) = result {
            self.run_commands(&[index_names_command("dropIndexes", &collection, &names)])?;
            let context = format!("Index build failed: Collection {namespace} ( {} )", collection.uuid);
            return Err(error.context(context));
        }
        let at = self.run_commands(&[index_names_command("commitIndexBuild", &collection, &names)])?;
        // So that no later start has to build it again.
        self.ask_for_flush();
        Ok(at)
    }

    /// Puts the indexes into the catalog: ready ones, if there are no documents.
    fn announce(&self, namespace: &str, specs: &[RawDoc<'_>], interrupt: Interrupt<'_>) -> Result<Announced> {
        loop {
            let Some(collection) = self.catalog.load().collection(namespace).cloned() else {
                bail!(Code::NAMESPACE_NOT_FOUND, "ns does not exist: {namespace}");
            };
            let _closed = collection.state.gate.close(&self.options.block, interrupt)?;
            let _turn = self.ddl_turn(interrupt)?;
            let Some(current) =
                self.catalog.load().collection(namespace).filter(|c| c.uuid == collection.uuid).cloned()
            else {
                continue;
            };
            let empty = current.count() == 0;
            let mut indexes: Vec<Arc<Index>> = Vec::new();
            for spec in specs {
                let index = Index::from_spec(*spec, self.new_ident(), empty, None)?;
                if !exists_already(&current, &index)? && indexes.iter().all(|i| i.name != index.name) {
                    indexes.push(Arc::new(index));
                }
            }
            if indexes.is_empty() {
                return Ok(Announced::Done(*self.last.lock()));
            }
            let at = self.run_commands(&[create_indexes_command(&current, &indexes)])?;
            if empty {
                return Ok(Announced::Done(at));
            }
            let names = indexes.iter().map(|index| index.name.clone()).collect();
            let Some(current) = self.catalog.load().by_uuid(&collection.uuid).cloned() else { continue };
            return Ok(Announced::Building(current, names));
        }
    }

    /// Adds the entries of all documents.
    fn fill(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        names: &[&str],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let view = View::newest(self);
        let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
        let mut build = Build {
            core: self,
            collection,
            names,
            owner: self.locks.owner(),
            locks: Vec::new(),
            changes: Changes::default(),
            run: Run::default(),
            gathered: AHashMap::new(),
        };
        let mut outcome = Ok(());
        (self.options.block)(&mut || {
            outcome = (|| {
                while cursor.next()? {
                    build.add(cursor.key(), interrupt)?;
                    if build.run.0.len() >= BATCH_ENTRIES {
                        build.write()?;
                        interrupt()?;
                        if self.catalog.load().by_uuid(&collection.uuid).is_none() {
                            return Ok(());
                        }
                        self.wait_for_room();
                    }
                }
                build.write()
            })();
        });
        let held = std::mem::take(&mut build.locks);
        self.locks.unlock(&held);
        outcome
    }
}

enum Announced {
    Done(OpTime),
    Building(Arc<Collection>, Vec<String>),
}

fn exists_already(collection: &Collection, index: &Index) -> Result<bool> {
    let Some(known) = collection.index(&index.name) else { return Ok(false) };
    if known.spec.as_raw() == index.spec.as_raw() || known.key_pattern() == index.key_pattern() {
        if !known.ready {
            bail!(
                Code::INDEX_BUILD_ALREADY_IN_PROGRESS,
                "index build of '{}' is already in progress",
                index.name
            );
        }
        return Ok(true);
    }
    bail!(
        Code::INDEX_KEY_SPECS_CONFLICT,
        "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: {:?}, existing index: {:?}",
        index.spec,
        known.spec
    )
}

struct Build<'b> {
    core: &'b Core,
    collection: &'b Arc<Collection>,
    names: &'b [&'b str],
    owner: Owner,
    locks: Vec<LockKey>,
    changes: Changes,
    run: Run,
    /// Unique keys in `run`, with their record keys.
    gathered: AHashMap<Vec<u8>, Vec<u8>>,
}

impl Build<'_> {
    fn add(&mut self, record_key: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let mut full = Vec::with_capacity(record_key.len() + PREFIX);
        crate::keys::prefixed(self.collection.ident, record_key, &mut full);
        loop {
            let lock = crate::changes::record_lock(&self.core.locks, self.collection, record_key);
            if let Some(busy) = self.lock(&[lock]) {
                self.wait(busy, interrupt)?;
                continue;
            }
            // The newest state, not the scan's: writers keep the index since the scan began.
            let Some(doc) = self.core.db.get(Cf::Records, &full)? else { return Ok(()) };
            self.changes.compute(
                self.collection,
                record_key,
                None,
                Some(RawDoc::new(&doc)),
                &self.core.locks,
            )?;
            let locks = self.changes.locks.clone();
            if let Some(busy) = self.lock(&locks) {
                self.wait(busy, interrupt)?;
                continue;
            }
            break;
        }
        self.check_unique(record_key)?;
        for name in self.names {
            self.changes.emit_built(self.collection, name, record_key, &mut self.run);
        }
        Ok(())
    }

    /// Duplicates among what is written, and within what is gathered.
    fn check_unique(&mut self, record_key: &[u8]) -> Result<()> {
        let (core, collection, names, gathered) =
            (self.core, self.collection, self.names, &mut self.gathered);
        self.changes.each_new_unique_key(collection, |unique| {
            if !names.contains(&unique.index.name.as_str()) {
                return Ok(());
            }
            let known = match gathered.get(unique.entry) {
                Some(other) => other[..] != *record_key,
                None => core
                    .db
                    .get(Cf::Indexes, unique.entry)?
                    .is_some_and(|found| entry_parts(true, unique.entry, &found).record_key != record_key),
            };
            if known {
                return Err(unique.index.duplicate(&collection.namespace, unique.key, unique.type_bits));
            }
            gathered.insert(unique.entry.to_vec(), record_key.to_vec());
            Ok(())
        })
    }

    /// Locks without waiting; gives the first lock that somebody else has.
    fn lock(&mut self, keys: &[LockKey]) -> Option<LockKey> {
        for key in keys {
            match self.core.locks.try_lock(*key, self.owner) {
                Locked::Taken => self.locks.push(*key),
                Locked::Already => {}
                Locked::Busy => return Some(*key),
            }
        }
        None
    }

    /// Never waits while holding: what is gathered is written first.
    fn wait(&mut self, busy: LockKey, interrupt: Interrupt<'_>) -> Result<()> {
        self.write()?;
        self.core.locks.wait(busy, &self.core.options.block, interrupt)
    }

    /// Writes what is gathered, in order, and gives the locks back.
    fn write(&mut self) -> Result<()> {
        self.run.0.sort();
        self.gathered.clear();
        let mut batch = WriteBatch::default();
        let cf = self.core.db.cf(Cf::Indexes);
        for (key, value) in self.run.0.drain(..) {
            batch.put_cf(cf, key, value);
        }
        let bytes = batch.size_in_bytes() as u64;
        self.core.db.write(batch)?;
        self.core.unflushed.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        self.core.locks.unlock(&self.locks);
        self.locks.clear();
        Ok(())
    }
}
