//! Copies that take a collection's place, or stand beside it: `convertToCapped`, `cloneCollectionAsCapped`.
//!
//! What is swapped is closed for writers from before the copy is read until it has its place; the proof of that
//! ([`Closed`]) is asked for where the commands are run. The new collection is closed before anybody can see it, so nobody
//! writes to a half of it, and no other DDL can be in its way: whoever holds these gates waits for no other gate.

use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Result, bail};
use uuid::Uuid;

use crate::catalog::Collection;
use crate::core::Core;
use crate::definitions::command::{Told, create_command, drop_command};
use crate::definitions::ddl::{Check, rename_command};
use crate::hooks::HookPoint;
use crate::locks::Closed;
use crate::options::{Interrupt, OpTime};
use crate::read::cursor::{Direction, Range};
use crate::read::oplog_collection::refuse_oplog;
use crate::read::view::View;
use crate::write::unit::WriteUnit;
use crate::write::{CreateCollection, Write};

/// A collection that only its maker can write to.
struct Made {
    collection: Arc<Collection>,
    closed: Closed,
}

impl Core {
    /// Copies a collection, as it is now, into a capped one of this name; the newest documents stay.
    pub fn clone_as_capped(
        self: &Arc<Self>,
        from: &str,
        to: &str,
        size: i64,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let since = self.commits.others();
        let view = View::newest(&self.published);
        let Some(source) = view.collection(from) else {
            bail!(Code::NAMESPACE_NOT_FOUND, "source collection {from} does not exist");
        };
        let made = self.create_closed(
            to,
            &capped_like(source, "cloneCollectionAsCapped", size, false)?,
            since,
            interrupt,
        )?;
        self.copy_newest(&view, source, &made, size, interrupt).inspect_err(|_| self.take_back(&made))
    }

    /// Makes a collection capped: a capped copy takes its place. Indexes but `_id` go, as in MongoDB. Writers wait meanwhile; `check` has
    /// seen the collection when none can come any more.
    pub fn convert_to_capped(
        self: &Arc<Self>,
        namespace: &str,
        size: i64,
        check: Check<'_>,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        refuse_oplog(namespace, "convert")?;
        // What others order from here on is past the gate: then this must not happen.
        let since = self.commits.others();
        let (source, closed) = self.close(namespace, interrupt)?;
        check(&source)?;
        let spec = capped_like(&source, "convertToCapped", size, true)?;
        let temporary = format!("{}.tmp.convertToCapped.{}", source.db(), Uuid::new_v4().simple());
        let made = self.create_closed(&temporary, &spec, since, interrupt)?;
        self.copy_newest(&View::newest(&self.published), &source, &made, size, interrupt)
            .and_then(|_| self.base.hooks.call(HookPoint::Swap))
            .and_then(|()| self.swap(&made, &source, &closed, since, interrupt))
            .inspect_err(|_| self.take_back(&made))
    }

    /// Makes a collection whose gate is closed before anybody sees it.
    fn create_closed(
        &self,
        namespace: &str,
        spec: &CreateCollection,
        since: u64,
        interrupt: Interrupt<'_>,
    ) -> Result<Made> {
        let _turn = self.ddl_turn(interrupt)?;
        self.refuse_existing(namespace)?;
        let command = create_command(&self.definitions, namespace, spec)?;
        let uuid = command.uuid;
        let (_, closed) = self.run_commands_since(&[command], &[], since, true)?;
        let catalog = self.published.peek_catalog();
        let collection = uuid.and_then(|uuid| catalog.by_uuid(&uuid)).cloned();
        match (collection, closed.into_iter().next()) {
            (Some(collection), Some(closed)) => Ok(Made { collection, closed }),
            _ => {
                bail!(Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE, "{namespace} was dropped by another member")
            }
        }
    }

    /// Copies as many of the newest documents as fit.
    fn copy_newest(
        self: &Arc<Self>,
        view: &View,
        source: &Collection,
        made: &Made,
        size: i64,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let mut cursor = view.records(source, Range::ALL, Direction::Forward)?;
        // What would be overwritten anyway is not copied.
        let mut surplus = source.data_bytes() as i64 - size;
        let mut unit = WriteUnit::new(self.clone(), interrupt);
        unit.admit(&made.collection, &made.closed);
        while cursor.next()? {
            interrupt()?;
            surplus -= cursor.bytes().len() as i64;
            if surplus < 0 && cursor.bytes().len() as i64 <= size {
                unit.insert(&made.collection, cursor.doc())?;
            }
        }
        unit.commit()
    }

    /// Gives what was made the place of what it was made from, if that is what it was.
    fn swap(
        &self,
        made: &Made,
        source: &Arc<Collection>,
        closed: &Closed,
        since: u64,
        interrupt: Interrupt<'_>,
    ) -> Result<OpTime> {
        let _turn = self.ddl_turn(interrupt)?;
        let command = rename_command(&made.collection, &source.namespace, Some(source));
        Ok(self.run_commands_since(&[command], &[made.closed.clone(), closed.clone()], since, false)?.0)
    }

    /// Drops what was made in vain. What cannot be dropped now is dropped as a temporary collection, by the next primary or at
    /// the next start.
    fn take_back(&self, made: &Made) {
        let _shield = sheaf_meter::shield();
        let dropped = self.ddl_turn(&|| Ok(())).and_then(|_turn| {
            self.run_commands(&[drop_command(&made.collection)], std::slice::from_ref(&made.closed))
        });
        if let Err(error) = dropped {
            tracing::warn!(%error, collection = made.collection.namespace, "an unfinished copy stays for now");
        }
    }

    /// Drops the temporary collections that commands of an earlier run, or of an earlier primary, have left behind.
    pub fn drop_temporary_collections(&self, interrupt: Interrupt<'_>) -> Result<()> {
        let is_temporary =
            |c: &Collection| !c.is_view() && c.options.as_raw().get("temp").is_some_and(|v| v.truthy());
        for collection in self.published.catalog().all().filter(|c| is_temporary(c)) {
            let still = |now: &Collection| {
                if now.uuid == collection.uuid && is_temporary(now) {
                    return Ok(());
                }
                bail!(Code::NAMESPACE_NOT_FOUND, "it is temporary no more")
            };
            match self.drop_collection(&collection.namespace, &still, Told::Here, interrupt) {
                Ok(_) => {
                    tracing::info!(collection = collection.namespace, "dropped a temporary collection");
                }
                Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A capped collection with the options of another.
fn capped_like(source: &Collection, command: &str, size: i64, temporary: bool) -> Result<CreateCollection> {
    if source.is_view() {
        bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "{command} not supported for views: {}", source.namespace);
    }
    let before = source.options.as_raw();
    if before.element("clusteredIndex").is_some() {
        bail!(
            Code::INVALID_OPTIONS,
            "{command} not supported for clustered collections: {}",
            source.namespace
        );
    }
    let options = DocBuf::build(|doc| {
        doc.append("capped", true).append("size", size);
        if temporary {
            doc.append("temp", true);
        }
        for element in before.iter().filter(|e| !matches!(e.key(), "capped" | "size" | "max" | "temp")) {
            doc.append_element(element);
        }
    });
    let id_index = source.indexes.first().map(|index| index.spec.clone());
    Ok(CreateCollection { options, id_index, ..CreateCollection::default() })
}
