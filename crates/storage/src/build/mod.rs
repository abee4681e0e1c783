//! Index builds that do not hold writers off.
//!
//! The index enters the catalog as *being built*, together with a snapshot; from then on every write leaves its changes
//! beside the index ([`side`]). The build reads the snapshot, sorts the entries in runs ([`sort`]), and has RocksDB take
//! them in as whole files ([`files`]), which are durable at once. Then it drains what writers have left, generation
//! by generation, the last one while no writer is let in; and the index becomes *ready*.
//!
//! Nothing of this is in the log but its begin and its end. A crash before the end leaves an index that recovery removes.
//! Behind the end, recovery finds the files where they are; from the log's operations it makes again what writers had
//! left beside the index and RocksDB had not flushed, and ends the build the same way ([`replay`]).
//!
//! The members of a replica set that follow build at the same time as the primary, each for itself ([`follow`]). Who may
//! write to the index when is a matter of [`turn`].

mod admission;
mod beside;
mod files;
mod folder;
mod follow;
mod item;
mod replay;
mod running;
mod side;
mod sort;
mod turn;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};

use crate::catalog::Collection;
use crate::core::Core;
use crate::critical::{impossible, must};
use crate::db::Cf;
use crate::definitions::command::{build_command, create_indexes_command};
use crate::definitions::ddl::NamedSpecs;
use crate::index::side::{DUPLICATES, side_key, side_value};
use crate::index::{Index, KeySet, ends_operation, entry_value};
use crate::keys::{PREFIX, prefixed, put_length, take_length};
use crate::locks::Closed;
use crate::options::{Interrupt, OpTime};
use crate::read::view::View;
use crate::sequencer::stays_here;
use beside::{Give, beside};
use files::{Files, LongKeys};
use folder::Folder;
pub(crate) use folder::clear_folder;
pub(crate) use replay::mark_key;
use running::Running;
use sort::Sorter;
pub(crate) use turn::{Builds, Turn};

/// What reading a document costs, in the meter's units.
const READ_COST: u32 = 8;
/// What an index's entry costs until it is in a sorter, in the meter's units.
const ENTRY_COST: u32 = 16;
/// How many documents may fail to be indexed, to be looked at again in the end.
const SKIPPED_MAX: usize = 1000;
/// Changes beside the index that may be drained while no writer is let in.
const LAST_CHANGES_MAX: u64 = 2000;
/// How long writers may be kept out between generations.
const PATIENCE: Duration = Duration::from_millis(20);
/// What is scanned between two looks at whether to go on: about a millisecond of work, in documents and their bytes.
const WORK_AT_ONCE: usize = 1 << 14;
const DOCUMENT_WORK: usize = 16;
const BYTES_OF_WORK: usize = 4;
/// Sorted entries that are written between two looks; one of so many bytes more counts as two.
const CHECK_AFTER: usize = 4096;
const BYTES_OF_CHECK: usize = 1 << 10;
/// Generations, before the last one is taken whatever its size.
const GENERATIONS_MAX: usize = 12;

/// How an announcement ended.
enum Announced {
    /// There was nothing to build.
    Done(OpTime),
    Building(Build),
}

/// A build under way.
struct Build {
    /// As it was announced.
    collection: Arc<Collection>,
    indexes: Vec<Arc<Index>>,
    /// Exactly what was there before writers began to leave their changes; not needed when the index is filled.
    view: Option<View>,
    /// The entry whose state that is.
    at: OpTime,
    /// Records that could not be indexed.
    skipped: Vec<Vec<u8>>,
    running: Running,
}

impl Build {
    fn turn(&self) -> &Arc<Turn> {
        &self.running.turn
    }

    /// Whether writers have left more than is drained while they are kept out.
    fn has_many_changes(&self) -> bool {
        self.indexes.iter().map(|index| index.side.written()).sum::<u64>() > LAST_CHANGES_MAX
    }
}

impl Core {
    /// Builds indexes from complete, checked specs, made for the collection as it is when the build begins; returns when
    /// they are ready. Those that exist already are skipped.
    pub fn create_indexes(
        self: &Arc<Self>,
        namespace: &str,
        wanted: &dyn Fn(&Collection) -> Result<Vec<DocBuf>>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        loop {
            let before = self.published.peek_catalog().collection(namespace).cloned();
            let built = self.build(namespace, interrupt, |current| {
                let empty = current.count() == 0;
                let mut indexes: Vec<Index> = Vec::new();
                for spec in wanted(current)? {
                    let index =
                        Index::from_spec(spec.as_raw(), self.definitions.new_ident(namespace), empty, None)?;
                    if !exists_already(current, &index)? && indexes.iter().all(|i| i.name != index.name) {
                        indexes.push(index);
                    }
                }
                Ok(indexes)
            });
            match built {
                // Somebody else builds one of them: it exists or not when that is over.
                Err(error) if error.code() == Code::INDEX_BUILD_ALREADY_IN_PROGRESS => {
                    // Or nobody does: it could not be taken back when it failed.
                    if self.base.leads() && self.has_orphans() {
                        self.abort_orphaned_builds()?;
                        continue;
                    }
                    self.wait_for_other(namespace, before.as_ref(), interrupt)?;
                }
                built => return built,
            }
        }
    }

    /// Waits until the catalog has something else for this name.
    fn wait_for_other(
        &self,
        namespace: &str,
        before: Option<&Arc<Collection>>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let same = || match (self.published.peek_catalog().collection(namespace), before) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            _ => false,
        };
        let mut outcome = Ok(());
        (self.base.options.block)(&mut || {
            while outcome.is_ok() && same() {
                std::thread::sleep(PATIENCE);
                outcome = interrupt();
            }
        });
        outcome
    }

    /// Builds indexes anew, with these specs, while the old ones stay in use; they are exchanged in one commit.
    pub fn rebuild_indexes(
        self: &Arc<Self>,
        namespace: &str,
        wanted: &dyn Fn(&Collection) -> Result<NamedSpecs>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        self.build(namespace, interrupt, |current| {
            let mut indexes: Vec<Index> = Vec::new();
            for (name, spec) in wanted(current)? {
                match current.index(&name) {
                    None => bail!(Code::INDEX_NOT_FOUND, "index not found with name [{name}]"),
                    Some(index) if index.is_of_id() => continue,
                    Some(index) if !index.ready || current.replacements.iter().any(|r| r.name == name) => {
                        return Err(in_progress(&name));
                    }
                    Some(_) => {}
                }
                let mut index =
                    Index::from_spec(spec.as_raw(), self.definitions.new_ident(namespace), false, None)?;
                index.replaces = true;
                indexes.push(index);
            }
            Ok(indexes)
        })
    }

    /// Whether some index is unfinished that nobody here builds.
    fn has_orphans(&self) -> bool {
        let is_orphan = |index: &Arc<Index>| !index.ready && !self.definitions.builds().has(index.ident);
        self.published.catalog().all().any(|collection| collection.maintained().any(is_orphan))
    }

    /// Removes unfinished indexes that nobody here builds. What a new primary has built while it followed, it ends itself.
    pub fn abort_orphaned_builds(&self) -> Result<()> {
        let go_on = || Ok(());
        let orphaned = |collection: &Collection| -> Vec<Arc<Index>> {
            let orphan = |index: &&Arc<Index>| !index.ready && !self.definitions.builds().has(index.ident);
            collection.maintained().filter(orphan).cloned().collect()
        };
        for collection in self.published.catalog().all().filter(|c| !orphaned(c).is_empty()) {
            let closed = collection.state.gate.close(&self.base.options.block, &go_on)?;
            let _turn = self.ddl_turn(&go_on)?;
            let catalog = self.published.catalog();
            let Some(current) = catalog.by_uuid(&collection.uuid) else { continue };
            let orphans = orphaned(current);
            if !orphans.is_empty() {
                tracing::info!(collection = current.namespace, "dropped index builds of an earlier primary");
                self.run_commands(
                    &[build_command("abortIndexBuild", current, &orphans)],
                    std::slice::from_ref(&closed),
                )?;
            }
        }
        Ok(())
    }

    fn build(
        self: &Arc<Self>,
        namespace: &str,
        interrupt: Interrupt<'_>,
        wanted: impl Fn(&Collection) -> Result<Vec<Index>>,
    ) -> Result<OpTime> {
        let _place = self.place_for_build(namespace, interrupt)?;
        let mut build = match self.announce(namespace, interrupt, wanted)? {
            Announced::Done(at) => return Ok(at),
            Announced::Building(build) => build,
        };
        match self.run_build(&mut build, interrupt) {
            // The next primary decides what becomes of it.
            Err(error) if !self.base.leads() && !stays_here(namespace) => {
                self.follow_on(build);
                Err(error)
            }
            ended => ended.map_err(|error| self.give_up(&build, error)),
        }
    }

    fn run_build(&self, build: &mut Build, interrupt: Interrupt<'_>) -> Result<OpTime> {
        let mut filled = Ok(());
        (self.base.options.block)(&mut || filled = self.fill(build, interrupt));
        filled?;
        let closed = self.close_politely(&build.collection, interrupt)?;
        self.finish(build, closed, interrupt)
    }

    /// Puts the indexes into the catalog: ready ones, if there are no documents.
    fn announce(
        self: &Arc<Self>,
        namespace: &str,
        interrupt: Interrupt<'_>,
        wanted: impl Fn(&Collection) -> Result<Vec<Index>>,
    ) -> Result<Announced> {
        loop {
            let Some(collection) = self.published.peek_catalog().collection(namespace).cloned() else {
                bail!(Code::NAMESPACE_NOT_FOUND, "ns does not exist: {namespace}");
            };
            if collection.is_oplog() {
                bail!(Code::CANNOT_CREATE_INDEX, "cannot have an index on the oplog");
            }
            let closed = self.close_politely(&collection, interrupt)?;
            let _turn = self.ddl_turn(interrupt)?;
            let Some(current) = self
                .published
                .peek_catalog()
                .collection(namespace)
                .filter(|c| c.uuid == collection.uuid)
                .cloned()
            else {
                continue;
            };
            let indexes: Vec<Arc<Index>> = wanted(&current)?.into_iter().map(Arc::new).collect();
            if indexes.is_empty() {
                return Ok(Announced::Done(self.published.last()));
            }
            let ready = indexes.iter().all(|index| index.ready);
            // Indexes that are ready at once are an operation each, as in MongoDB's oplog.
            let together = if ready { 1 } else { indexes.len() };
            let commands: Vec<_> =
                indexes.chunks(together).map(|some| create_indexes_command(&current, some)).collect();
            let announced = self.run_commands(&commands, std::slice::from_ref(&closed))?;
            if ready {
                return Ok(Announced::Done(announced));
            }
            // Entries that others have ordered come past the gate. None may be in the snapshot of which the mark would not tell,
            // nor leave changes before the first generation.
            let _still = self.still();
            self.commits.check_no_others(self.definitions.began())?;
            let view = View::newest(&self.published);
            let Some(collection) = view.catalog.by_uuid(&collection.uuid).cloned() else { continue };
            let own = |index: &&Arc<Index>| indexes.iter().any(|made| made.ident == index.ident);
            let indexes: Vec<Arc<Index>> = collection.maintained().filter(own).cloned().collect();
            indexes.iter().for_each(|index| index.side.begin());
            // Before anybody is let in who might take it for an orphan.
            let running = Running::new(self, &collection, &indexes, false);
            let (view, at, skipped) = (Some(view), announced, Vec::new());
            return Ok(Announced::Building(Build { collection, indexes, view, at, skipped, running }));
        }
    }

    /// Fills the indexes from the snapshot, and drains most of what writers have left.
    fn fill(&self, build: &mut Build, interrupt: Interrupt<'_>) -> Result<()> {
        // Not by the turn's phase: the log may have ended it just now.
        if let Some(view) = &build.view {
            build.skipped = self.fill_from_snapshot(build, view, interrupt)?;
        }
        // Old states need not be kept any more.
        build.view = None;
        for index in build.indexes.iter().filter(|index| index.unique) {
            self.drain(build, index, DUPLICATES, interrupt)?;
        }
        for _ in 0..GENERATIONS_MAX {
            if !build.has_many_changes() {
                break;
            }
            self.drain_generation(build, interrupt)?;
        }
        Ok(())
    }

    /// Gives the keys of records that could not be indexed.
    fn fill_from_snapshot(
        &self,
        build: &Build,
        view: &View,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        let folder = Folder::create(&self.base.options.path, &build.turn().id)?;
        let mut sorter = Sorter::new(&folder.0, self.base.options.sort_bytes());
        let skipped = self.scan(build, view, &mut sorter, interrupt)?;
        let check = || interrupt().and_then(|()| self.check_alive(build));
        let (mut files, duplicates) = self.write_files(&build.indexes, sorter, &folder.0, &check)?;
        files.extend(duplicates);
        files.extend(self.write_marks(&build.indexes, build.at, &folder.0)?);
        // The files last from now on. If the machine dies, the log must tell whose they are.
        self.wait_durable(build.at.index, interrupt)?;
        build.turn().fill(|| self.take_in(files))?;
        Ok(skipped)
    }

    /// Closes the generation that writers fill, and drains it; not if it would need a long wait.
    fn drain_generation(&self, build: &Build, interrupt: Interrupt<'_>) -> Result<()> {
        let Some(closed) = self.close_shortly(&build.collection, interrupt)? else {
            std::thread::sleep(PATIENCE);
            return Ok(());
        };
        let generations: Vec<u8> = {
            // Entries that others have ordered are applied past the gate.
            let _still = self.still();
            build.indexes.iter().map(|index| index.side.close_generation()).collect()
        };
        drop(closed);
        for (index, generation) in build.indexes.iter().zip(generations) {
            self.drain(build, index, generation, interrupt)?;
        }
        Ok(())
    }

    /// Keeps writers out if that needs no long wait, for a transaction that stays open: others would have to wait with it.
    fn close_shortly(&self, collection: &Collection, interrupt: Interrupt<'_>) -> Result<Option<Closed>> {
        let deadline = Instant::now() + PATIENCE;
        let timeout = || Error::new(Code::LOCK_TIMEOUT, "a transaction stays open");
        let in_time = || {
            interrupt()?;
            if Instant::now() < deadline { Ok(()) } else { Err(timeout()) }
        };
        match collection.state.gate.close(&self.base.options.block, &in_time) {
            Ok(closed) => Ok(Some(closed)),
            Err(error) if error.code() == Code::LOCK_TIMEOUT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives the entries of all documents of the snapshot to the sorter. A thread of its own reads them. Returns the keys of records that could not be
    /// indexed.
    fn scan(
        &self,
        build: &Build,
        view: &View,
        sorter: &mut Sorter,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut cursor = view.all_records_once(&build.collection)?;
        let read = |give: Give<'_>| {
            while cursor.next()? {
                sheaf_meter::tick(READ_COST)?;
                give(cursor.key(), cursor.bytes())?;
            }
            Ok(())
        };
        let mut keys = KeySet::default();
        let (mut value, mut skipped, mut work) = (Vec::new(), Vec::new(), 0);
        let mut long = LongKeys::new(self);
        beside("sheaf-read", read, |record_key, doc| {
            work += DOCUMENT_WORK + doc.len() / BYTES_OF_WORK;
            if work >= WORK_AT_ONCE {
                work = 0;
                interrupt()?;
                self.check_alive(build)?;
            }
            for index in &build.indexes {
                if let Err(error) = index.generate(RawDoc::new(doc), &mut keys) {
                    ends_operation(error.clone())?;
                    // Perhaps somebody changes or deletes it before the end.
                    if skipped.len() >= SKIPPED_MAX {
                        return Err(error);
                    }
                    skipped.push(record_key.to_vec());
                    continue;
                }
                sheaf_meter::tick(ENTRY_COST.saturating_mul(keys.len() as u32))?;
                index.multikey.add(&keys.arrays);
                for (key, type_bits) in keys.iter() {
                    long.add(key.len() + record_key.len(), &build.collection)?;
                    value.clear();
                    put_length(record_key.len(), &mut value);
                    value.extend_from_slice(type_bits);
                    sorter.push(index.ident, &[key, record_key], &value)?;
                }
            }
            Ok(())
        })?;
        Ok(skipped)
    }

    /// Writes the sorted entries to table files. A second document with a unique index's key goes beside the index, to
    /// files of its own. `check` is asked now and then whether to go on.
    fn write_files(
        &self,
        indexes: &[Arc<Index>],
        sorter: Sorter,
        folder: &Path,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let mut files = Files::new(&self.base.db, folder, "entries");
        let mut duplicates = Files::new(&self.base.db, folder, "duplicates");
        let mut index: Option<&Arc<Index>> = None;
        let mut last: Option<Vec<u8>> = None;
        let (mut beside, mut out) = (Vec::new(), Vec::new());
        let mut seen = 0;
        sorter.finish(|full, value| {
            seen += 1 + full.len() / BYTES_OF_CHECK;
            if seen >= CHECK_AFTER {
                seen = 0;
                check()?;
            }
            let Some(ident) = full.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else {
                impossible!("a sorted entry has a key of {} bytes", full.len())
            };
            if index.is_none_or(|index| index.ident != ident) {
                index = indexes.iter().find(|index| index.ident == ident);
                last = None;
            }
            let Some(index) = index.filter(|index| index.unique) else { return files.put(full, value) };
            let (len, type_bits) = take_length(value);
            must!(len + PREFIX <= full.len(), "an entry of {} bytes has a record's key of {len}", full.len());
            let (entry, record_key) = full.split_at(full.len() - len);
            if last.as_deref() == Some(entry) {
                let key = &entry[PREFIX..];
                side_key(ident, DUPLICATES, key, record_key, &mut beside);
                side_value(record_key, Some(type_bits), &mut out);
                return duplicates.put(&beside, &out);
            }
            last = Some(entry.to_vec());
            entry_value(index, record_key, type_bits, &mut out);
            files.put(entry, &out)
        })?;
        Ok((files.finish()?, duplicates.finish()?))
    }

    /// The last step, without writers: what is left is drained, and the indexes become ready.
    fn finish(&self, build: &Build, closed: Closed, interrupt: Interrupt<'_>) -> Result<OpTime> {
        let _turn = self.ddl_turn(interrupt)?;
        self.check_alive(build)?;
        let catalog = self.published.catalog();
        let Some(collection) = catalog.by_uuid(&build.collection.uuid) else {
            return Err(build.turn().aborted());
        };
        self.check_skipped(build)?;
        let settle = || build.indexes.iter().try_for_each(|index| self.settle(collection, index));
        if self.base.is_replica() && !stays_here(&collection.namespace) {
            // Entries that others have ordered are applied past the gate. None may come between, or have come.
            let _still = self.still();
            self.commits.check_no_others(self.definitions.began())?;
            build.turn().write(settle)?;
        } else {
            build.turn().write(settle)?;
        }
        self.run_commands(
            &[build_command("commitIndexBuild", collection, &build.indexes)],
            std::slice::from_ref(&closed),
        )
    }

    /// Records that could not be indexed must have gone or changed.
    fn check_skipped(&self, build: &Build) -> Result<()> {
        let (mut full, mut keys) = (Vec::new(), KeySet::default());
        for record_key in &build.skipped {
            prefixed(build.collection.ident, record_key, &mut full);
            let Some(doc) = self.base.db.get(Cf::Records, &full)? else { continue };
            for index in &build.indexes {
                index.generate(RawDoc::new(&doc), &mut keys)?;
            }
        }
        Ok(())
    }

    /// The collection or the indexes may have been dropped meanwhile, which ends the build.
    fn check_alive(&self, build: &Build) -> Result<()> {
        let catalog = self.published.peek_catalog();
        let alive = catalog.by_uuid(&build.collection.uuid).is_some_and(|now| {
            build.indexes.iter().all(|index| now.maintained().any(|known| known.ident == index.ident))
        });
        if alive { Ok(()) } else { Err(build.turn().aborted()) }
    }

    /// Takes a failed build back, and gives its error the words of a build's error.
    fn give_up(&self, build: &Build, error: Error) -> Error {
        // Also what was killed has to be cleared away.
        let _shield = sheaf_meter::shield();
        let _turn = self.definitions.take_turn(|| self.commits.others());
        let catalog = self.published.catalog();
        let collection = catalog.by_uuid(&build.collection.uuid);
        if let Some(collection) = collection
            && let Err(error) =
                self.run_commands(&[build_command("abortIndexBuild", collection, &build.indexes)], &[])
        {
            // Whoever wants the index next takes it back: see `create_indexes`.
            tracing::warn!(%error, namespace = collection.namespace, "a failed index build cannot be taken back yet");
        }
        if error.code() == Code::INDEX_BUILD_ABORTED {
            return error;
        }
        let (namespace, uuid) = (&build.collection.namespace, build.collection.uuid);
        error.context(format!("Index build failed: {}: Collection {namespace} ( {uuid} )", build.turn().id))
    }
}

fn in_progress(name: &str) -> Error {
    let text = format!("index build of '{name}' is already in progress");
    Error::new(Code::INDEX_BUILD_ALREADY_IN_PROGRESS, text)
}

fn exists_already(collection: &Collection, index: &Index) -> Result<bool> {
    let Some(known) = collection.index(&index.name) else { return Ok(false) };
    if known.spec.as_raw() == index.spec.as_raw() || known.key_pattern() == index.key_pattern() {
        if !known.ready {
            return Err(in_progress(&index.name));
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
