//! DDL: closes the collections that it is about, makes the commands, and runs them as one commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};

use crate::catalog::{Catalog, Collection};
use crate::command::{Command, create_command, drop_command, index_names_command, no_collection};
use crate::core::Core;
use crate::index::IndexKind;
use crate::locks::Closed;
use crate::oplog;
use crate::oplog_reader::refuse_oplog;
use crate::options::{Interrupt, OpTime};
use crate::order::MutexGuard;
use crate::order::rank::DDL;
use crate::pipeline::Prepared;
use crate::sequencer::stays_here;
use crate::write::CreateCollection;

impl Core {
    /// Runs commands as one commit. The caller holds the DDL lock and has closed the gates that matter.
    pub fn run_commands(&self, commands: &[Command]) -> Result<OpTime> {
        let since = Some(self.ddl_began.load(Ordering::Acquire));
        let mut prepared = Prepared { since, ..Prepared::default() };
        let mut catalog = self.catalog.load_full();
        let version = catalog.version();
        let mut garbage = Vec::new();
        let mut gone = Vec::new();
        for command in commands {
            let applied = command.apply(&catalog)?;
            applied.put(&self.db, &mut prepared.batch);
            command.log(&mut prepared.payload);
            garbage.extend(applied.garbage);
            gone.extend(applied.gone);
            catalog = Arc::new(applied.catalog);
        }
        // Those who wait for a change of these collections hear of it.
        let changed = commands.iter().filter_map(|command| catalog.by_uuid(command.uuid.as_ref()?));
        for collection in gone.iter().chain(changed) {
            prepared.counts.add(&collection.state, (0, 0));
        }
        let own = commands.to_vec();
        prepared.publish = Some(Box::new(move |now| {
            // What stays on a member meets commands of others that are applied meanwhile.
            let again = |now: Catalog, command: &Command| match command.apply(&now) {
                Ok(applied) => applied.catalog,
                Err(_) => now,
            };
            if now.version() == version { (*catalog).clone() } else { own.iter().fold(now.clone(), again) }
        }));
        let stays = self.is_replica() && commands.iter().all(|command| stays_here(command.target()));
        let at = if stays { self.commit_here(prepared)? } else { self.commit(prepared)? };
        garbage.iter_mut().for_each(|garbage| garbage.index = at.index);
        self.garbage.lock().extend(garbage);
        self.builds.end_unwanted(&self.catalog.load());
        Ok(at)
    }

    /// Closes a collection for writers, and makes sure that it still is the one of this name.
    fn close(&self, namespace: &str, interrupt: Interrupt<'_>) -> Result<(Arc<Collection>, Closed)> {
        loop {
            let collection =
                self.catalog.load().collection(namespace).cloned().ok_or_else(|| no_collection(namespace))?;
            let closed = collection.state.gate.close(&self.options.block, interrupt)?;
            let now = self.catalog.load();
            if now.collection(namespace).is_some_and(|now| now.uuid == collection.uuid) {
                let current = now.collection(namespace).cloned().unwrap_or(collection);
                return Ok((current, closed));
            }
        }
    }

    /// The DDL lock, and a pass through `fsyncLock`'s gate.
    pub fn ddl_turn(
        &self,
        interrupt: Interrupt<'_>,
    ) -> Result<(MutexGuard<'_, DDL, ()>, crate::locks::Pass)> {
        let pass = self.writes.pass(&self.options.block, interrupt)?;
        loop {
            interrupt()?;
            if let Some(guard) = self.ddl.try_lock_for(std::time::Duration::from_millis(20)) {
                self.ddl_began.store(self.others_entries.load(Ordering::Acquire), Ordering::Release);
                return Ok((guard, pass));
            }
        }
    }

    pub fn create_collection(
        &self,
        namespace: &str,
        spec: &CreateCollection,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let _turn = self.ddl_turn(interrupt)?;
        if let Some(existing) = self.catalog.load().collection(namespace) {
            let what = if existing.is_view() { "view" } else { "collection" };
            bail!(Code::NAMESPACE_EXISTS, "a {what} '{namespace}' already exists");
        }
        let command = create_command(self, namespace, spec)?;
        self.run_commands(&[command])
    }

    pub fn drop_collection(&self, namespace: &str, interrupt: Interrupt<'_>) -> Result<OpTime> {
        refuse_oplog(namespace, "drop")?;
        let (collection, _closed) = self.close(namespace, interrupt)?;
        let _turn = self.ddl_turn(interrupt)?;
        self.run_commands(&[drop_command(&collection)])
    }

    pub fn drop_database(&self, db: &str, interrupt: Interrupt<'_>) -> Result<OpTime> {
        if db == "local" && self.oplog.is_some() {
            bail!(Code::ILLEGAL_OPERATION, "Cannot drop '{db}' database while replication is active");
        }
        loop {
            let collections: Vec<_> = self.catalog.load().collections(db).cloned().collect();
            let mut closed = Vec::new();
            for collection in &collections {
                closed.push(collection.state.gate.close(&self.options.block, interrupt)?);
            }
            let _turn = self.ddl_turn(interrupt)?;
            let catalog = self.catalog.load_full();
            let known = |c: &Arc<Collection>| collections.iter().any(|k| k.uuid == c.uuid);
            if !catalog.collections(db).all(known) {
                continue;
            }
            let stays = |c: &&Arc<Collection>| self.is_replica() && stays_here(&c.namespace);
            let own: Vec<Command> = catalog.collections(db).filter(stays).map(drop_command).collect();
            if !own.is_empty() {
                self.run_commands(&own)?;
            }
            let mut commands: Vec<Command> =
                catalog.collections(db).filter(|c| !stays(c)).map(drop_command).collect();
            commands.push(Command::new(&format!("{db}."), None, sheaf_bson::doc! { "dropDatabase": 1 }));
            return self.run_commands(&commands);
        }
    }

    pub fn rename_collection(
        &self,
        from: &str,
        to: &str,
        drop_target: bool,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        [from, to].into_iter().try_for_each(|namespace| refuse_oplog(namespace, "rename"))?;
        let pair = self.close_for_rename(from, to, interrupt)?;
        let (collection, target) = (&pair.source, &pair.target);
        if target.is_some() && !drop_target {
            bail!(Code::NAMESPACE_EXISTS, "target namespace exists");
        }
        let _turn = self.ddl_turn(interrupt)?;
        let now = self.catalog.load().collection(to).map(|c| c.uuid);
        if now != target.as_ref().map(|t| t.uuid) && now.is_some() {
            bail!(Code::NAMESPACE_EXISTS, "target namespace exists");
        }
        let o = DocBuf::build(|doc| {
            doc.append("renameCollection", from).append("to", to).append("stayTemp", false);
            if let Some(target) = target {
                doc.append("dropTarget", oplog::uuid_value(&target.uuid));
                doc.document("sheaf").append("numRecords", target.count() as i64);
            }
        });
        self.run_commands(&[Command::new(from, Some(collection.uuid), o)])
    }

    /// Closes both collections, in the order of their names, so that two renames cannot wait for each other.
    fn close_for_rename(&self, from: &str, to: &str, interrupt: Interrupt<'_>) -> Result<ClosedPair> {
        loop {
            let catalog = self.catalog.load_full();
            let source = catalog.collection(from).cloned().ok_or_else(|| no_collection(from))?;
            let target = catalog.collection(to).filter(|target| target.uuid != source.uuid).cloned();
            let mut both: Vec<_> = std::iter::once(&source).chain(&target).collect();
            both.sort_by(|a, b| a.namespace.cmp(&b.namespace));
            let mut closed = Vec::new();
            for collection in both {
                closed.push(collection.state.gate.close(&self.options.block, interrupt)?);
            }
            let now = self.catalog.load();
            let same = |name: &str, was: Option<&Arc<Collection>>| {
                now.collection(name).map(|c| c.uuid) == was.map(|c| c.uuid)
            };
            if same(from, Some(&source)) && same(to, target.as_ref()) {
                return Ok(ClosedPair { source, target, _closed: closed });
            }
        }
    }

    pub fn drop_indexes(&self, namespace: &str, names: &[&str], interrupt: Interrupt<'_>) -> Result<OpTime> {
        let (collection, _closed) = self.close(namespace, interrupt)?;
        let _turn = self.ddl_turn(interrupt)?;
        for name in names {
            match collection.index(name) {
                None => bail!(Code::INDEX_NOT_FOUND, "index not found with name [{name}]"),
                Some(index) if index.kind == IndexKind::Id || index.name == "_id_" => {
                    bail!(Code::INVALID_OPTIONS, "cannot drop _id index")
                }
                Some(_) => {}
            }
        }
        // One operation for each index, as in MongoDB's oplog.
        let commands: Vec<_> =
            names.iter().map(|name| index_names_command("dropIndexes", &collection, &[name])).collect();
        self.run_commands(&commands)
    }

    pub fn coll_mod(
        &self,
        namespace: &str,
        options: Option<RawDoc<'_>>,
        index_specs: &[(&str, RawDoc<'_>)],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        refuse_oplog(namespace, "change options of the")?;
        let (collection, _closed) = self.close(namespace, interrupt)?;
        let _turn = self.ddl_turn(interrupt)?;
        for (name, spec) in index_specs {
            let Some(index) = collection.index(name) else {
                bail!(Code::INDEX_NOT_FOUND, "cannot find index {name} for ns {namespace}");
            };
            let unique = spec.get("unique").is_some_and(|v| v.truthy());
            if index.kind != IndexKind::Id && unique != index.unique {
                bail!(
                    Code::INVALID_OPTIONS,
                    "the entries of a unique index are kept differently: index {name} must be built anew"
                );
            }
        }
        let o = DocBuf::build(|doc| {
            doc.append("collMod", collection.name());
            if let Some(options) = options {
                doc.append("options", options);
            }
            let mut specs = doc.document("indexes");
            for (name, spec) in index_specs {
                specs.append(name, *spec);
            }
            drop(specs);
            // How it was before, which readers of the log are told.
            let mut before = doc.document("sheaf");
            before.append("options", &collection.options);
            let mut specs = before.document("indexes");
            for (name, _) in index_specs {
                if let Some(index) = collection.index(name) {
                    specs.append(name, &index.spec);
                }
            }
        });
        self.run_commands(&[Command::new(namespace, Some(collection.uuid), o)])
    }
}

/// Both sides of a renaming, closed for writers.
struct ClosedPair {
    source: Arc<Collection>,
    target: Option<Arc<Collection>>,
    _closed: Vec<Closed>,
}
