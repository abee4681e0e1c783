//! RocksDB as this crate uses it: one database, four column families, no write-ahead log of its own.
//!
//! - [`blobs`]: which large values compactions move;
//! - [`direct`]: whether files can be written past the page cache;
//! - [`iter`]: iterators, and the documents that their values refer to;
//! - [`gaps`]: stretches of deleted keys, which seeks need not walk over again;
//! - [`sink`]: where changes of keys go;
//! - [`listener`]: what RocksDB tells of its flushes and errors;
//! - [`sizes`]: of files and levels;
//! - [`manifest`]: the end of its list of files after a power failure;
//! - [`values`]: large documents that are in the log's files.

pub(crate) mod blobs;
mod direct;
mod gaps;
mod iter;
mod listener;
mod manifest;
pub(crate) mod sink;
mod sizes;
pub(crate) mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB,
    DBCompressionType, DBPinnableSlice, IngestExternalFileOptions, IteratorMode, LruCacheOptions,
    ReadOptions, Snapshot, WriteBatch, WriteBatchIteratorCf, WriteOptions,
};
use self_cell::self_cell;
use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result};

use crate::keys::{catalog_key, prefix_range};
use crate::options::Options;
use crate::order::Mutex;
use crate::order::rank::LEAF;
use blobs::{Blobs, Moves, Reason};
use gaps::Gaps;
pub(crate) use gaps::Way;
pub(crate) use iter::IterCell;
use listener::{Events, listen};
use sizes::Sizes;
use values::{Families, Gone, LEAST_BYTES, Pin, Reference, Stored, Values};

/// Column families by kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cf {
    /// `[collection u32][record key] -> BSON`.
    Records,
    /// `[index u32][memcomparable key][record key, unless unique] -> record key length, record key, type bits`.
    Indexes,
    /// Definitions, counters, applied position.
    Catalog,
    /// What retryable writes and transactions must remember.
    Sessions,
}

const ALL: [Cf; 4] = [Cf::Records, Cf::Indexes, Cf::Catalog, Cf::Sessions];
/// What users' data are in.
const DATA: [Cf; 2] = [Cf::Records, Cf::Indexes];
const NAMES: [&str; 4] = ["records", "indexes", "catalog", "sessions"];

/// Values from this size on go to blob files, which compaction does not rewrite.
const MIN_BLOB_BYTES: u64 = 8 << 10;

/// No memtable grows to this: flushes are triggered by the keeper, by memory and age, never by RocksDB. It is the most that
/// RocksDB takes; a larger figure would be cut to it, and with it the filter, whose size is given as a share.
const WRITE_BUFFER_BYTES: usize = 64 << 30;

/// Bytes of a memtable's Bloom filter at most: ten bits for each of some 1.6 million keys.
const MEMTABLE_FILTER_BYTES: u64 = 2 << 20;

/// Where fewer table files may be open than this, they are counted in one place.
const OPEN_FILES_FEW: i32 = 1024;

/// So many files at level 0 are merged with what lies below: RocksDB's own figure.
const LEVEL0_TRIGGER: &str = "4";

/// A table file of which this part or more are deletions is merged with what lies below. (A changed index entry is one of each, so half of them are deletions.)
const DELETIONS: f64 = 0.6;

/// What a memtable takes of memory in one go at most.
const ARENA_BLOCK_BYTES: u64 = 1 << 20;

pub(crate) struct Db {
    db: DB,
    write_options: WriteOptions,
    /// For reads of the newest state: making them anew costs as much as a tenth of a read.
    read_options: ReadOptions,
    /// How table files of indexes are made.
    index_options: rocksdb::Options,
    cache: Cache,
    events: Arc<Events>,
    gaps: Gaps,
    /// Which large values compactions move.
    moves_blobs: Mutex<{ LEAF }, Moves>,
    /// Large documents that are in the log's files.
    values: Values,
    /// The families' numbers in batches, in the order of [`Cf`].
    families: [u32; 4],
}

/// Turns RocksDB's error into ours.
pub(crate) fn io_error(error: rocksdb::Error) -> Error {
    lacks(error.as_ref())
}

fn lacks(text: &str) -> Error {
    if text.contains("No space left") || text.contains("quota") {
        return Error::new(Code::OUT_OF_DISK_SPACE, format!("storage: {text}"));
    }
    Error::new(Code::INTERNAL_ERROR, format!("storage: {text}"))
}

impl Db {
    pub fn open(path: &Path, options: &Options) -> Result<Db> {
        manifest::cut_torn_end(path)?;
        let cache = block_cache(options.block_cache_bytes() as usize);
        let mut base = rocksdb::Options::default();
        base.create_if_missing(true);
        base.create_missing_column_families(true);
        base.set_atomic_flush(true);
        // One flush and one compaction, where the keys and blocks that each more of them holds would be too many.
        base.set_max_background_jobs(if options.is_small() { 2 } else { 4 });
        base.set_bytes_per_sync(1 << 20);
        // Where there is little memory, what is flushed or compacted would drive out of the page cache what is read, and wait there to be
        // written all at once, while the log's syncs stand behind it. Where there is more, it is read from there afterwards: a block
        // cache begins empty, and who has loaded data reads it.
        let direct = options.is_scarce() && path.parent().is_some_and(direct::is_possible);
        base.set_use_direct_io_for_flush_and_compaction(direct);
        // The system sees by itself who reads a file from one end to the other. RocksDB would have it read no more than it is asked for,
        // and asks for large values one by one.
        base.set_advise_random_on_open(options.is_scarce());
        base.set_compaction_readahead_size(if options.is_small() { 256 << 10 } else { 2 << 20 });
        base.set_keep_log_file_num(3);
        base.set_max_log_file_size(4 << 20);
        base.set_max_open_files(options.open_files);
        if (0..OPEN_FILES_FEW).contains(&options.open_files) {
            // Each shard of the cache of open tables may have one, so the usual 64 shards would never keep less than 64.
            base.set_table_cache_num_shard_bits(0);
        }
        base.set_skip_stats_update_on_db_open(true);
        base.set_allow_concurrent_memtable_write(false);
        base.set_stats_dump_period_sec(0);
        // Closing must not flush behind our back: what is flushed always goes with its log position.
        let mut base = base
            .get_options_from_string("avoid_flush_during_shutdown=true;avoid_flush_during_recovery=true")
            .map_err(io_error)?;
        let events = Arc::<Events>::default();
        listen(&mut base, &events);
        let families =
            ALL.map(|cf| ColumnFamilyDescriptor::new(NAMES[cf as usize], family(cf, options, &cache)));
        let db = DB::open_cf_descriptors(&base, path, families).map_err(io_error)?;
        let mut write_options = WriteOptions::default();
        write_options.disable_wal(true);
        let index_options = family(Cf::Indexes, options, &cache);
        let families = ALL.map(|cf| number(&db, cf));
        let values = Values::open(path, options.open_values())?;
        let catalog =
            db.cf_handle(NAMES[Cf::Catalog as usize]).expect("column families are opened with the database");
        let rows = IteratorMode::From(&[catalog_key::VALUES], rocksdb::Direction::Forward);
        values.load(db.iterator_cf(catalog, rows).map(|row| row.map_err(io_error)))?;
        let (read_options, gaps) = (ReadOptions::default(), Gaps::default());
        let moves_blobs = Mutex::default();
        Ok(Db {
            db,
            write_options,
            read_options,
            index_options,
            cache,
            events,
            gaps,
            moves_blobs,
            values,
            families,
        })
    }

    pub fn raw(&self) -> &DB {
        &self.db
    }

    pub fn cf(&self, cf: Cf) -> &ColumnFamily {
        self.db.cf_handle(NAMES[cf as usize]).expect("column families are opened with the database")
    }

    pub fn index_options(&self) -> &rocksdb::Options {
        &self.index_options
    }

    /// Reads from the newest state.
    pub fn get(&self, cf: Cf, key: &[u8]) -> Result<Option<Stored<'_>>> {
        self.get_with(cf, key, &self.read_options)
    }

    pub fn get_with(&self, cf: Cf, key: &[u8], options: &ReadOptions) -> Result<Option<Stored<'_>>> {
        let mut found = self.db.get_pinned_cf_opt(self.cf(cf), key, options).map_err(io_error)?;
        if cf == Cf::Records {
            while let Some(reference) = found.as_deref().and_then(Reference::read) {
                let mut bytes = Vec::new();
                let read = self.values.read(&reference, &mut bytes);
                if read.is_ok() {
                    return Ok(Some(Stored::Read(bytes)));
                }
                // Without a pin: the document may have been copied, or changed, since the reference was read, and the file gone.
                found = self.db.get_pinned_cf_opt(self.cf(cf), key, options).map_err(io_error)?;
                if found.as_deref().and_then(Reference::read) == Some(reference) {
                    read?;
                }
            }
        }
        Ok(found.map(Stored::Pinned))
    }

    /// [`Db::get`], which leaves a reference to a document one.
    pub fn get_unresolved(&self, cf: Cf, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>> {
        self.db.get_pinned_cf_opt(self.cf(cf), key, &self.read_options).map_err(io_error)
    }

    /// Large documents that are in the log's files.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// A record, of which this is the key, is about to have another document than this one, or none: where that is in a file, adds the place to
    /// `gone`. It is for an estimate, so what cannot be read now is left out.
    pub fn put_gone(&self, full: &[u8], before: Option<RawDoc<'_>>, gone: &mut Gone) {
        if before.is_some_and(|doc| doc.len() >= LEAST_BYTES)
            && self.values.any()
            && let Some(ident) = full.first_chunk()
            && let Ok(Some(found)) = self.get_unresolved(Cf::Records, full)
            && let Some(reference) = Reference::read(&found)
        {
            gone.push((u32::from_be_bytes(*ident), reference));
        }
    }

    pub fn write(&self, batch: WriteBatch) -> Result<()> {
        let [records, indexes, ..] = self.families;
        let _writing = self.gaps.writing(&batch, [records, indexes]);
        self.db.write_opt(batch, &self.write_options).map_err(io_error)
    }

    /// Takes files of entries of indexes in.
    pub fn ingest(&self, options: &IngestExternalFileOptions, files: Vec<PathBuf>) -> Result<()> {
        let _ingesting = self.gaps.ingesting();
        self.db.ingest_external_file_cf_opts(self.cf(Cf::Indexes), options, files).map_err(io_error)
    }

    /// A column family's number, as batches have it.
    pub fn number(&self, cf: Cf) -> u32 {
        self.families[cf as usize]
    }

    /// All column families.
    pub fn families(&self) -> Families<'_> {
        Families {
            all: ALL.map(|cf| (self.number(cf), self.cf(cf))),
            records: self.number(Cf::Records),
            catalog: self.cf(Cf::Catalog),
        }
    }

    /// What RocksDB tells of its background work.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Starts an atomic flush of all memtables. Whether it has come to its end is for [`Db::flush_ended`] to say.
    pub fn flush(&self) -> Result<()> {
        let all = ALL.map(|cf| self.cf(cf));
        listener::flush(&self.db, &all).map_err(|error| lacks(&error))
    }

    /// Files at level 0, of the family that has most of them: whoever seeks looks into each.
    pub fn level0_files(&self) -> u64 {
        self.level0_files_of(&ALL)
    }

    /// Whether none of the documents and index entries are at level 0.
    pub fn level0_is_merged(&self) -> bool {
        self.level0_files_of(&DATA) == 0
    }

    fn level0_files_of(&self, families: &[Cf]) -> u64 {
        families
            .iter()
            .filter_map(|cf| {
                self.db.property_value_cf(self.cf(*cf), "rocksdb.num-files-at-level0").ok().flatten()
            })
            .filter_map(|number| number.parse().ok())
            .max()
            .unwrap_or(0)
    }

    /// Merges all files, down to the last level, that have something under this number.
    pub fn compact_prefix(&self, cf: Cf, ident: u32) {
        let (from, to) = prefix_range(ident);
        self.db.compact_range_cf(self.cf(cf), Some(from), Some(to));
    }

    /// Whether what comes to level 0 is to be merged with what lies below at once, which takes out what is deleted, and not when it has become several
    /// files.
    pub fn merge_level0(&self, at_once: bool) -> Result<()> {
        let trigger = if at_once { "1" } else { LEVEL0_TRIGGER };
        for cf in DATA {
            let options = [("level0_file_num_compaction_trigger", trigger)];
            self.db.set_options_cf(self.cf(cf), &options).map_err(io_error)?;
        }
        Ok(())
    }

    /// Has compactions move large values out of old files, or not.
    pub fn tune_blobs(&self, reason: Reason) -> Result<()> {
        let figure =
            |name| self.db.property_int_value_cf(self.cf(Cf::Records), name).ok().flatten().unwrap_or(0);
        let blobs = Blobs {
            files: figure("rocksdb.num-blob-files"),
            bytes: figure("rocksdb.live-blob-file-size"),
            garbage: figure("rocksdb.live-blob-file-garbage-size"),
        };
        let mut moves = self.moves_blobs.lock();
        let next = moves.next(blobs, reason);
        if next != *moves {
            let [on, part, force] = [next.on.to_string(), next.part.to_string(), next.force.to_string()];
            let options = [
                ("enable_blob_garbage_collection", &on[..]),
                ("blob_garbage_collection_age_cutoff", &part),
                ("blob_garbage_collection_force_threshold", &force),
            ];
            self.db.set_options_cf(self.cf(Cf::Records), &options).map_err(io_error)?;
            *moves = next;
        }
        Ok(())
    }

    /// Flushes all memtables, at a start, when nobody else writes.
    pub fn flush_and_wait(&self) -> Result<()> {
        let failed = self.events.failed_flushes();
        self.flush()?;
        while !self.flush_ended(failed)? {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends what RocksDB does in the background: a flush that is at work, or waits at the gate, will not put its files among
    /// the others. (`FlushJob::Run` and whoever installs its result look whether the database shuts down, and give up.) Reads
    /// go on; nothing is flushed any more.
    pub fn end_background(&self) {
        self.db.cancel_all_background_work(false);
        self.events.end();
    }

    /// Whether everything that was in memtables when [`Db::flush`] returned is on disk. `failed` is
    /// [`Events::failed_flushes`] from before.
    ///
    /// Errors: the flush has failed; what it should have written is still in memtables, and the next flush writes it.
    pub fn flush_ended(&self, failed: u64) -> Result<bool> {
        if self.events.failed_flushes() > failed || self.events.is_stopped() {
            return Err(lacks(&self.events.last_error()));
        }
        Ok(self.property("rocksdb.num-immutable-mem-table") == 0)
    }

    /// A number property summed over the column families.
    pub fn property(&self, name: &str) -> u64 {
        ALL.iter().filter_map(|cf| self.db.property_int_value_cf(self.cf(*cf), name).ok().flatten()).sum()
    }

    /// Bytes of the smallest and largest keys of all table files, which RocksDB has in memory.
    pub fn file_key_bytes(&self) -> u64 {
        listener::file_key_bytes(&self.db)
    }

    pub fn cache_used(&self) -> u64 {
        self.cache.get_usage() as u64
    }

    pub fn set_cache_bytes(&self, bytes: u64) {
        self.cache.clone().set_capacity(bytes as usize);
    }

    /// Estimated bytes of a key range in memtables.
    pub fn memtable_bytes(&self, cf: Cf, from: &[u8], to: &[u8]) -> u64 {
        listener::memtable_bytes(&self.db, self.cf(cf), from, to)
    }

    /// Estimated bytes on disk of a key range.
    pub fn size_of(&self, cf: Cf, from: &[u8], to: &[u8]) -> u64 {
        let range = rocksdb::Range::new(from, to);
        self.db.get_approximate_sizes_cf(self.cf(cf), &[range]).first().copied().unwrap_or(0)
    }
}

fn number(db: &DB, cf: Cf) -> u32 {
    struct Seen(u32);
    impl WriteBatchIteratorCf for Seen {
        fn put_cf(&mut self, family: u32, _: &[u8], _: &[u8]) {
            self.0 = family;
        }
        fn delete_cf(&mut self, _: u32, _: &[u8]) {}
        fn merge_cf(&mut self, _: u32, _: &[u8], _: &[u8]) {}
    }
    let family = db.cf_handle(NAMES[cf as usize]).expect("column families are opened with the database");
    let mut batch = WriteBatch::default();
    batch.put_cf(family, b"", b"");
    let mut seen = Seen(0);
    batch.iterate_cf(&mut seen);
    seen.0
}

/// No shard is smaller than this, so that large blocks and values find room in one.
const CACHE_SHARD_BYTES: usize = 32 << 20;

fn block_cache(bytes: usize) -> Cache {
    let shards = (bytes / CACHE_SHARD_BYTES).clamp(1, 64);
    let mut options = LruCacheOptions::default();
    options.set_capacity(bytes);
    options.set_num_shard_bits(shards.ilog2() as i32);
    Cache::new_lru_cache_opts(&options)
}

fn family(cf: Cf, options: &Options, cache: &Cache) -> rocksdb::Options {
    // An index block that is being made has the key of each data block, however well these are compressed, and a file of keys
    // that begin alike would never be full.
    let mut family = rocksdb::Options::default()
        .get_options_from_string("target_file_size_is_upper_bound=true")
        .unwrap_or_else(|error| panic!("this version of RocksDB lacks an option: {error}"));
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_block_size(16 << 10);
    table.set_bloom_filter(10.0, false);
    table.set_format_version(6);
    // Index and filter come in pieces: those of a file of small keys weigh many megabytes, too much for a shard of a small
    // cache, and would be read again for every key.
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    table.set_metadata_block_size(16 << 10);
    // What is pinned is beyond the cache's capacity. It is little, unless keys are large and alike: then index blocks have them
    // whole, for every block of a file, at both levels.
    table.set_pin_top_level_index_and_filter(!options.is_small());
    table.set_cache_index_and_filter_blocks(true);
    table.set_cache_index_and_filter_blocks_with_high_priority(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(!options.is_small());
    if options.is_small() {
        // Neighbours' common beginnings are written once for so many of them.
        table.set_index_block_restart_interval(16);
    }
    family.set_block_based_table_factory(&table);
    family.set_write_buffer_size(WRITE_BUFFER_BYTES);
    if matches!(cf, Cf::Records | Cf::Indexes) {
        // Every insert asks whether its key is there. In a full memtable that search costs more than all
        // the rest of it, and mostly the answer is no.
        family.set_memtable_whole_key_filtering(true);
        let filter_bytes = (options.memtable_bytes() / 64).min(MEMTABLE_FILTER_BYTES);
        family.set_memtable_prefix_bloom_ratio(filter_bytes as f64 / WRITE_BUFFER_BYTES as f64);
    }
    // Every memtable takes filter and first block whole, and flushes that fail leave memtables behind.
    family.set_arena_block_size((options.memtable_bytes() / 128).min(ARENA_BLOCK_BYTES) as usize);
    // A flush that fails leaves one more behind each time that it is tried. With too many RocksDB would hold everybody back,
    // also whoever flushes again. Their memory is bounded elsewhere.
    family.set_max_write_buffer_number(1_000_000);
    family.set_compression_type(DBCompressionType::Lz4);
    family.set_bottommost_compression_type(DBCompressionType::Zstd);
    family.set_level_compaction_dynamic_level_bytes(true);
    let sizes = Sizes::of(options);
    family.set_target_file_size_base(sizes.file);
    family.set_max_bytes_for_level_base(sizes.level);
    family.set_max_compaction_bytes(sizes.compaction);
    if matches!(cf, Cf::Records | Cf::Indexes) {
        // What is deleted takes room until the deletions are merged with it, and they are too small to be merged for their own size.
        family.add_compact_on_deletion_collector_factory(0, 0, DELETIONS);
    }
    family.set_soft_pending_compaction_bytes_limit(0);
    family.set_hard_pending_compaction_bytes_limit(0);
    // Whoever writes waits for memory, where it can be ended (`flush/room.rs`), and the keeper for level 0 before it flushes.
    family.set_level_zero_slowdown_writes_trigger(1_000_000);
    family.set_level_zero_stop_writes_trigger(1_000_000);
    if cf == Cf::Records {
        family.set_enable_blob_files(true);
        family.set_min_blob_size(MIN_BLOB_BYTES);
        family.set_blob_file_size(sizes.blob_file);
        family.set_blob_compression_type(DBCompressionType::Lz4);
        let Moves { on, part, force } = Moves::default();
        family.set_enable_blob_gc(on);
        family.set_blob_gc_age_cutoff(part);
        family.set_blob_gc_force_threshold(force);
        family.set_blob_cache(cache);
    }
    family
}

/// A database, and what was known of its gaps before a snapshot of it was taken.
pub(crate) struct Taken {
    db: Arc<Db>,
    known: u64,
    pin: Pin,
}

self_cell!(
    /// A RocksDB snapshot that keeps its database open.
    pub(crate) struct SnapshotCell {
        owner: Taken,
        #[covariant]
        dependent: Snapshot,
    }
);

impl SnapshotCell {
    pub fn take(db: &Arc<Db>) -> SnapshotCell {
        let (known, pin) = (db.gaps.known(), db.values.pin());
        SnapshotCell::new(Taken { db: db.clone(), known, pin }, |taken| taken.db.db.snapshot())
    }

    /// What keeps the documents that it refers to: for who goes on reading when it is no more.
    pub fn pin(&self) -> &Pin {
        &self.borrow_owner().pin
    }

    /// [`Gaps::known`] from before it was taken.
    pub fn known(&self) -> u64 {
        self.borrow_owner().known
    }

    /// Options for reads at this snapshot; valid only while the snapshot lives.
    pub fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(self.borrow_dependent());
        options
    }
}
