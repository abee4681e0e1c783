//! What RocksDB's files hold, and the log's part that is in them.
//!
//! Every batch of a commit carries its position ([`Commits::write`](crate::commit::Commits::write)). Flushes are atomic over all column families, so
//! whatever has caused a flush (a manual compaction begins with one), the files hold the log up to one position, and they
//! say which. Start-up goes on from there.
//!
//! What commits do not carry is written when a checkpoint orders a flush: counters, multikey bits, the next free numbers,
//! the log's terms (`Core::put_bookkeeping`). Both name the number of the batch before them. Where the files hold more
//! batches than the bookkeeping knows of, RocksDB has flushed by itself and a crash came before the next checkpoint; then
//! [`Core::reconcile`] makes the bookkeeping anew from the log and the data.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result};
use sheaf_log::Log;
use uuid::Uuid;

use crate::apply::apply_entries;
use crate::catalog::Collection;
use crate::core::Core;
use crate::db::Cf;
use crate::db::values::Reference;
use crate::definitions::command::Command;
use crate::index::{IndexKind, KeySet};
use crate::keys::prefix_range;
use crate::oplog::{self, Operation, log_error};
use crate::options::OpTime;
use crate::sequencer::stays_here;

impl Core {
    /// Brings what only checkpoints write to where the files are: from `known` to the newest position, which the files hold
    /// perhaps in the middle of an entry. Then the rest of that entry is applied.
    pub fn reconcile(&self, known: OpTime) -> Result<()> {
        let held = self.published.last();
        tracing::warn!(
            checkpoint = known.index,
            files = held.index,
            "RocksDB had flushed by itself before the crash; counters are made anew"
        );
        let (touched, rest) = match self.durability.log() {
            Some(log) => self.read_between(log, known, held)?,
            None => (None, None),
        };
        let catalog = self.published.catalog();
        for collection in catalog.all().filter(|collection| !collection.is_view()) {
            for ident in collection.maintained().map(|index| index.ident).chain([collection.ident]) {
                self.definitions.note_ident(ident);
            }
            let unlogged = self.base.is_replica() && stays_here(&collection.namespace);
            if unlogged || touched.as_ref().is_none_or(|touched| touched.contains(&collection.uuid)) {
                self.recount(collection)?;
            }
        }
        if let Some(rest) = rest {
            apply_entries(self, &[rest.into()])?;
        }
        Ok(())
    }

    /// Which collections the entries between two positions touch (`None`: the log does not hold them all), and the last entry
    /// if the second position is within it. What else is to be known of the entries is noted.
    #[allow(clippy::type_complexity)]
    fn read_between(
        &self,
        log: &Log,
        known: OpTime,
        held: OpTime,
    ) -> Result<(Option<BTreeSet<Uuid>>, Option<sheaf_log::Entry>)> {
        let mut touched = BTreeSet::new();
        // Where it was damaged it may begin in between.
        let first = log.stats().first_index.max(known.index + 1);
        let is_whole = first == known.index + 1;
        let mut reader = log.read_from(first).map_err(log_error)?;
        while reader.index() <= held.index {
            let Some(entry) = reader.next().map_err(log_error)? else { return Ok((None, None)) };
            self.durability.knowledge().note(entry.at.index, entry.at.term);
            for doc in oplog::documents(&entry.payload) {
                let fields = Operation::read(doc);
                self.note_operation(&fields, &mut touched);
                touched.extend(fields.committed().into_iter().flat_map(|(_, collections)| collections));
                for inner in fields.operations().into_iter().flatten() {
                    self.note_operation(&inner, &mut touched);
                }
            }
            if entry.at.index == held.index && entry.at.time > held.time {
                return Ok((is_whole.then_some(touched), Some(entry)));
            }
        }
        Ok((is_whole.then_some(touched), None))
    }

    fn note_operation(&self, fields: &Operation<'_>, touched: &mut BTreeSet<Uuid>) {
        touched.extend(oplog::value_uuid(fields.uuid));
        if fields.op == Some("c")
            && let Some(command) = Command::from_oplog(fields.doc)
        {
            for ident in command.idents() {
                self.definitions.note_ident(ident);
            }
        }
    }

    /// Counts a collection's documents and looks which index fields have arrays.
    fn recount(&self, collection: &Collection) -> Result<()> {
        let (from, to) = prefix_range(collection.ident);
        let mut options = rocksdb::ReadOptions::default();
        options.set_iterate_upper_bound(to);
        let mut iter = self.base.db.raw().raw_iterator_cf_opt(self.base.db.cf(Cf::Records), options);
        let (mut docs, mut bytes) = (0i64, 0i64);
        let mut keys = KeySet::default();
        iter.seek(from);
        while let Some(value) = iter.value() {
            docs += 1;
            let value = match self.base.db.values().resolve(value) {
                // What is damaged must not keep the rest from being read. Whoever reads it, or validates, is told.
                Err(error) if error.code() == Code::CHECKSUM_MISMATCH => {
                    tracing::error!(collection = collection.namespace, %error, "a document cannot be read");
                    bytes += Reference::read(value).map_or(0, |reference| i64::from(reference.length));
                    iter.next();
                    continue;
                }
                value => value?,
            };
            bytes += value.len() as i64;
            for index in collection.maintained().filter(|index| index.kind != IndexKind::Id) {
                keys.clear();
                match index.generate(RawDoc::new(&value), &mut keys) {
                    Ok(()) => index.multikey.add(&keys.arrays),
                    Err(error) if index.ready => return Err(error),
                    // Its build will end with this error, or after the document has gone.
                    Err(_) => {}
                }
            }
            iter.next();
        }
        iter.status().map_err(crate::db::io_error)?;
        collection.state.docs.store(docs, Ordering::Release);
        collection.state.bytes.store(bytes, Ordering::Release);
        collection.state.dirty.store(true, Ordering::Release);
        Ok(())
    }
}
