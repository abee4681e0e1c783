//! DDL: closes the collections that it is about, makes the commands, and runs them as one commit.
//!
//! What a command depends on is read when no writer and no other DDL can change it: with the gates closed and the DDL lock
//! held. Checks that belong to callers (options, expected UUIDs) come as closures and are asked then.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashSet;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};

use super::command::{Command, Told, create_command, drop_command, index_names_command, no_collection};
use crate::catalog::{Catalog, Collection, split};
use crate::commit::prepared::Prepared;
use crate::core::Core;
use crate::locks::{Closed, Pass};
use crate::oplog;
use crate::options::{Interrupt, OpTime};
use crate::order::MutexGuard;
use crate::order::rank::DDL;
use crate::read::oplog_collection::refuse_oplog;
use crate::sequencer::stays_here;
use crate::write::CreateCollection;

/// What `collMod` makes of a collection.
#[derive(Default)]
pub struct CollectionChange {
    /// All options, if they change.
    pub options: Option<DocBuf>,
    /// Indexes' new specifications, by name.
    pub index_specs: NamedSpecs,
    /// Whose event it is.
    pub told: Told,
    /// What readers of the log are told of it; without it, what differs.
    pub said: Option<Said>,
}

/// A `collMod` in the words of who asked for it.
#[derive(Default)]
pub struct Said {
    /// The command's fields, as MongoDB's oplog has them.
    pub asked: DocBuf,
    /// What the options of the index were that are to change, if there is one.
    pub index_before: Option<DocBuf>,
}

/// Index specifications by the indexes' names.
pub type NamedSpecs = Vec<(String, DocBuf)>;

/// Looks at the collection that a DDL is about, just before; an error ends it.
pub type Check<'c> = &'c dyn Fn(&Collection) -> Result<()>;

/// Looks at the collections of a database that is about to be dropped, just before; an error ends it.
pub type DropCheck<'c> = &'c dyn Fn(&[&Collection]) -> Result<()>;

/// Looks at both sides of a renaming, just before: the collection, and what has the new name now.
pub type RenameCheck<'c> = &'c dyn Fn(&Collection, Option<&Collection>) -> Result<()>;

/// The DDL's turn: the lock, and a pass through `fsyncLock`'s gate.
pub(crate) type DdlTurn<'c> = (MutexGuard<'c, DDL, ()>, Pass);

/// So often those who wait for another's DDL look whether they still may.
const LOOK_UP: Duration = Duration::from_millis(20);

impl Core {
    /// Runs commands as one commit. The caller has the DDL's turn and has closed the gates of the collections that they
    /// change, for which `closed` is the proof. They open after the turn is over: the order of locks goes that way.
    pub fn run_commands(&self, commands: &[Command], closed: &[Closed]) -> Result<OpTime> {
        let since = self.definitions.began();
        Ok(self.run_commands_since(commands, closed, since, false)?.0)
    }

    /// [`Core::run_commands`], which depends on what was read when [`Commits::others`](crate::commit::Commits::others) was `since`. With `close_new`
    /// the collections that are made come with their gates closed, before anybody can see them.
    pub(crate) fn run_commands_since(
        &self,
        commands: &[Command],
        closed: &[Closed],
        since: u64,
        close_new: bool,
    ) -> Result<(OpTime, Vec<Closed>)> {
        let mut prepared = Prepared { since: Some(since), ..Prepared::default() };
        let mut catalog = (*self.published.catalog()).clone();
        let stays = self.base.is_replica() && commands.iter().all(|command| stays_here(command.target()));
        if self.base.is_ordered() && !stays {
            // Others may have made what is to be made here. It is asked again when the pipeline is held.
            self.commits.check_no_others(since)?;
        }
        let version = catalog.version();
        let proofs: AHashSet<usize> = closed.iter().map(Closed::address).collect();
        let mut garbage = Vec::new();
        let mut gone = Vec::new();
        let mut made: Vec<Arc<Collection>> = Vec::new();
        let mut new_closed = Vec::new();
        for command in commands {
            sheaf_meter::tick(20)?;
            for changed in command.closes(&catalog) {
                if !proofs.contains(&changed.state.gate.address()) {
                    // Others have ordered something since: then this is not what was closed.
                    self.commits.check_no_others(since)?;
                    panic!("{} is changed while its gate is open: {command:?}", changed.namespace);
                }
            }
            let applied = command.apply(catalog)?;
            applied.put(&self.base.db, &mut prepared.batch);
            command.log(&mut prepared.payload);
            garbage.extend(applied.garbage);
            gone.extend(applied.gone);
            catalog = applied.catalog;
            if command.is_create() {
                made.extend(command.uuid.and_then(|uuid| catalog.by_uuid(&uuid)).cloned());
            }
        }
        if close_new {
            new_closed.extend(made.iter().filter_map(|collection| collection.state.gate.try_close()));
            assert_eq!(new_closed.len(), made.len(), "nobody can be in a collection that is not there yet");
        }
        // Those who wait for a change of these collections hear of it.
        let changed = commands.iter().filter_map(|command| catalog.by_uuid(command.uuid.as_ref()?));
        for collection in gone.iter().chain(changed) {
            prepared.counts.add(&collection.state, (0, 0));
        }
        let own = commands.to_vec();
        prepared.publish = Some(Box::new(move |now| {
            // What stays on a member meets commands of others that are applied meanwhile.
            let again = |now: Catalog, command: &Command| {
                let made = made.iter().find(|made| Some(made.uuid) == command.uuid && command.is_create());
                match command.apply_existing(now.clone(), made) {
                    Ok(applied) => applied.catalog,
                    Err(_) => now,
                }
            };
            if now.version() == version { catalog } else { own.iter().fold(now.clone(), again) }
        }));
        let at = if stays { self.commit_here(prepared)? } else { self.commit(prepared)? };
        garbage.iter_mut().for_each(|garbage| garbage.index = at.index);
        self.definitions.garbage().discard(garbage);
        self.definitions.builds().end_unwanted(&self.published.peek_catalog());
        Ok((at, new_closed))
    }

    /// Closes a collection for writers, and makes sure that it still is the one of this name.
    pub(crate) fn close(
        &self,
        namespace: &str,
        interrupt: Interrupt<'_>,
    ) -> Result<(Arc<Collection>, Closed)> {
        loop {
            let collection = self
                .published
                .peek_catalog()
                .collection(namespace)
                .cloned()
                .ok_or_else(|| no_collection(namespace))?;
            let closed = collection.state.gate.close(&self.base.options.block, interrupt)?;
            let now = self.published.peek_catalog();
            if let Some(now) = now.collection(namespace).filter(|now| now.uuid == collection.uuid) {
                return Ok((now.clone(), closed));
            }
        }
    }

    /// Closes a collection and takes the DDL's turn; gives the collection as it is then.
    fn close_for_ddl(
        &self,
        namespace: &str,
        interrupt: Interrupt<'_>,
    ) -> Result<(Arc<Collection>, Closed, DdlTurn<'_>)> {
        loop {
            let (collection, closed) = self.close(namespace, interrupt)?;
            let turn = self.ddl_turn(interrupt)?;
            let now = self.published.peek_catalog();
            if let Some(now) = now.collection(namespace).filter(|now| now.uuid == collection.uuid) {
                return Ok((now.clone(), closed, turn));
            }
        }
    }

    /// The DDL lock, and a pass through `fsyncLock`'s gate.
    pub fn ddl_turn(&self, interrupt: Interrupt<'_>) -> Result<DdlTurn<'_>> {
        let pass = self.commits.pass(interrupt)?;
        loop {
            interrupt()?;
            let others = || self.commits.others();
            if let Some(turn) = self.definitions.try_turn(LOOK_UP, others) {
                return Ok((turn, pass));
            }
        }
    }

    /// Creates collections and views of these names, all or none.
    pub fn create_collections(
        &self,
        wanted: &[(&str, &CreateCollection)],
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let _turn = self.ddl_turn(interrupt)?;
        let command = |(namespace, spec): &(&str, &CreateCollection)| {
            self.refuse_existing(namespace)?;
            spec.check()?;
            if let Some(uuid) = spec.uuid
                && let Some(other) = self.published.peek_catalog().by_uuid(&uuid)
            {
                bail!(Code::INVALID_UUID, "the collection {uuid} is there already, as {}", other.namespace);
            }
            create_command(&self.definitions, namespace, spec)
        };
        let commands: Vec<_> = wanted.iter().map(command).collect::<Result<_>>()?;
        self.run_commands(&commands, &[])
    }

    /// Errors: `NamespaceExists`, `DatabaseDifferCase`.
    pub(crate) fn refuse_existing(&self, namespace: &str) -> Result<()> {
        let catalog = self.published.peek_catalog();
        if let Some(existing) = catalog.collection(namespace) {
            let what = if existing.is_view() { "view" } else { "collection" };
            bail!(Code::NAMESPACE_EXISTS, "a {what} '{namespace}' already exists");
        }
        catalog.check_case(split(namespace).0)
    }

    pub fn drop_collection(
        &self,
        namespace: &str,
        check: Check<'_>,
        told: Told,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        refuse_oplog(namespace, "drop")?;
        let (collection, closed, _turn) = self.close_for_ddl(namespace, interrupt)?;
        check(&collection)?;
        self.run_commands(&[drop_command(&collection).told(told)], std::slice::from_ref(&closed))
    }

    pub fn drop_database(
        &self,
        db: &str,
        check: DropCheck<'_>,
        told: Told,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        if db == "local" && self.published.oplog.is_some() {
            bail!(Code::ILLEGAL_OPERATION, "Cannot drop '{db}' database while replication is active");
        }
        loop {
            let mut collections: Vec<_> = self.published.peek_catalog().collections(db).cloned().collect();
            // As those who rename close them.
            collections.sort_by_key(|collection| collection.uuid);
            let mut closed = Vec::with_capacity(collections.len());
            for collection in &collections {
                sheaf_meter::tick(4)?;
                closed.push(collection.state.gate.close(&self.base.options.block, interrupt)?);
            }
            let _turn = self.ddl_turn(interrupt)?;
            let catalog = self.published.catalog();
            let known: AHashSet<_> = collections.iter().map(|collection| collection.uuid).collect();
            // A collection that has come meanwhile has no writers yet, or else this begins anew.
            let new = catalog.collections(db).filter(|c| !known.contains(&c.uuid));
            let Some(more) = new.map(|c| c.state.gate.try_close()).collect::<Option<Vec<_>>>() else {
                continue;
            };
            closed.extend(more);
            check(&catalog.collections(db).map(Arc::as_ref).collect::<Vec<_>>())?;
            let stays = |c: &&Arc<Collection>| self.base.is_replica() && stays_here(&c.namespace);
            let own: Vec<Command> = catalog.collections(db).filter(stays).map(drop_command).collect();
            if !own.is_empty() {
                self.run_commands(&own, &closed)?;
            }
            let mut commands: Vec<Command> =
                catalog.collections(db).filter(|c| !stays(c)).map(|c| drop_command(c).told(told)).collect();
            let last = Command::new(&format!("{db}."), None, sheaf_bson::doc! { "dropDatabase": 1 });
            commands.push(last.told(told));
            return self.run_commands(&commands, &closed);
        }
    }

    pub fn rename_collection(
        &self,
        from: &str,
        to: &str,
        drop_target: bool,
        check: RenameCheck<'_>,
        told: Told,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        [from, to].into_iter().try_for_each(|namespace| refuse_oplog(namespace, "rename"))?;
        if self.base.is_replica() && stays_here(from) != stays_here(to) {
            bail!(
                Code::ILLEGAL_OPERATION,
                "Cannot rename collections between a replicated and an unreplicated database"
            );
        }
        loop {
            let (uuids, closed) = self.close_for_rename(from, to, interrupt)?;
            let _turn = self.ddl_turn(interrupt)?;
            let catalog = self.published.catalog();
            let uuid_of = |name| catalog.collection(name).map(|collection| collection.uuid);
            let Some(source) = catalog.collection(from).filter(|_| uuids == [uuid_of(from), uuid_of(to)])
            else {
                continue;
            };
            catalog.check_case(split(to).0)?;
            let target = catalog.collection(to).filter(|target| target.uuid != source.uuid);
            check(source, target.map(|target| &**target))?;
            match target {
                Some(target) if target.is_view() => {
                    bail!(Code::NAMESPACE_EXISTS, "a view already exists with that name: {to}")
                }
                Some(_) if !drop_target => bail!(Code::NAMESPACE_EXISTS, "target namespace exists"),
                _ => {}
            }
            return self.run_commands(&[rename_command(source, to, target).told(told)], &closed);
        }
    }

    /// Closes both collections, in the order of their UUIDs, so that two renames cannot wait for each other: their names may be others by
    /// the time at which the first is closed. Gives the UUIDs, for what was closed to be known again.
    fn close_for_rename(
        &self,
        from: &str,
        to: &str,
        interrupt: Interrupt<'_>,
    ) -> Result<([Option<uuid::Uuid>; 2], Vec<Closed>)> {
        let catalog = self.published.catalog();
        let source = catalog.collection(from).ok_or_else(|| no_collection(from))?;
        let target = catalog.collection(to);
        let mut both: Vec<_> =
            std::iter::once(source).chain(target.filter(|target| target.uuid != source.uuid)).collect();
        both.sort_by_key(|collection| collection.uuid);
        let mut closed = Vec::new();
        for collection in both {
            closed.push(collection.state.gate.close(&self.base.options.block, interrupt)?);
        }
        Ok(([Some(source.uuid), target.map(|target| target.uuid)], closed))
    }

    pub fn drop_indexes(
        &self,
        namespace: &str,
        choose: &dyn Fn(&Collection) -> Result<Vec<String>>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let (collection, closed, _turn) = self.close_for_ddl(namespace, interrupt)?;
        let names = choose(&collection)?;
        if names.is_empty() {
            return Ok(self.published.last());
        }
        for name in &names {
            match collection.index(name) {
                None => bail!(Code::INDEX_NOT_FOUND, "index not found with name [{name}]"),
                Some(index) if index.is_of_id() => {
                    bail!(Code::INVALID_OPTIONS, "cannot drop _id index")
                }
                Some(_) => {}
            }
        }
        // One operation for each index, as in MongoDB's oplog.
        let commands: Vec<_> =
            names.iter().map(|name| index_names_command("dropIndexes", &collection, &[name])).collect();
        self.run_commands(&commands, std::slice::from_ref(&closed))
    }

    pub fn coll_mod(
        &self,
        namespace: &str,
        change: &dyn Fn(&Collection) -> Result<CollectionChange>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        refuse_oplog(namespace, "change options of the")?;
        let (collection, closed, _turn) = self.close_for_ddl(namespace, interrupt)?;
        let CollectionChange { options, index_specs, told, said } = change(&collection)?;
        for (name, spec) in &index_specs {
            check_index_change(&collection, name, spec.as_raw())?;
        }
        let o = DocBuf::build(|doc| {
            doc.append("collMod", collection.name());
            if let Some(options) = &options {
                doc.append("options", options);
            }
            let mut specs = doc.document("indexes");
            for (name, spec) in &index_specs {
                specs.append(name, spec);
            }
            drop(specs);
            // How it was before, which readers of the log are told.
            let mut before = doc.document("sheaf");
            before.append("options", &collection.options);
            let mut specs = before.document("indexes");
            for (name, _) in &index_specs {
                if let Some(index) = collection.index(name) {
                    specs.append(name, &index.spec);
                }
            }
            drop(specs);
            if let Some(said) = &said {
                before.append("asked", &said.asked);
                if let Some(index) = &said.index_before {
                    before.append("indexBefore", index);
                }
            }
        });
        let command = Command::new(namespace, Some(collection.uuid), o).told(told);
        self.run_commands(&[command], std::slice::from_ref(&closed))
    }
}

/// Errors: `IndexNotFound`, `InvalidOptions`, `BackgroundOperationInProgressForNamespace`.
fn check_index_change(collection: &Collection, name: &str, spec: RawDoc<'_>) -> Result<()> {
    let Some(index) = collection.index(name) else {
        bail!(Code::INDEX_NOT_FOUND, "cannot find index {name} for ns {}", collection.namespace);
    };
    let unique = spec.get("unique").is_some_and(|v| v.truthy());
    if !index.is_of_id() && unique != index.unique {
        bail!(
            Code::INVALID_OPTIONS,
            "the entries of a unique index are kept differently: index {name} must be built anew"
        );
    }
    // The one that takes its place has the specification that it had when the build began.
    if collection.replacements.iter().any(|other| other.name == name) {
        bail!(
            Code::BACKGROUND_OPERATION_IN_PROGRESS_FOR_NAMESPACE,
            "cannot perform operation: index {name} of {} is being built anew",
            collection.namespace
        );
    }
    Ok(())
}

/// The command that gives a collection this name, and takes away what has it.
pub(crate) fn rename_command(source: &Collection, to: &str, target: Option<&Arc<Collection>>) -> Command {
    let o = DocBuf::build(|doc| {
        doc.append("renameCollection", source.namespace.as_str()).append("to", to).append("stayTemp", false);
        if let Some(target) = target {
            doc.append("dropTarget", oplog::uuid_value(&target.uuid));
            doc.document("sheaf").append("numRecords", target.count() as i64);
        }
    });
    Command::new(&source.namespace, Some(source.uuid), o)
}
