//! Where a collection is, as far as this router knows, and what it does when a shard says that it knows too little.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_cluster::{Believed, Sharded};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::ShardId;
use sheaf_shard::placement::Ranges;
use sheaf_timeseries::buckets_namespace;

use crate::addressed::{Addressed, Placed, ShardVersion, on_the_way};
use crate::op::Operation;
use crate::past::{PATIENCE_WITH_PAST, laid_out_anew, was_closed};
use crate::target::Target;
use crate::targeting;
use crate::transaction;

impl Operation<'_> {
    /// A shard as a request for this collection addresses it.
    ///
    /// Errors: `StaleDbVersion`, if it is no shard any more; those of asking the config servers.
    pub fn addressed(&self, sharded: &Sharded, shard: &ShardId) -> Result<Addressed> {
        let shard_there = self.router.directory.shard(shard.as_str(), &|| self.check_interrupt());
        let target = shard_there.map(Target::Shard).map_err(on_the_way)?;
        Ok(Addressed { target, version: Some(ShardVersion::Of(sharded.table.version_of(shard))) })
    }

    /// The shards that have documents of these ranges for a statement that reads, as of its time.
    ///
    /// Errors: `ShardNotFound`; `StaleChunkHistory`; those of asking the config servers.
    pub fn readers_of(&self, sharded: &Sharded, ranges: &Ranges) -> Result<Vec<Addressed>> {
        let at = self.reads_as_of();
        let go_on = || self.check_interrupt();
        let found = targeting::addressed_at(&self.router.directory, sharded, ranges, at, &go_on);
        found.map_err(|error| match self.in_transaction() && error.code() == Code::STALE_CHUNK_HISTORY {
            true => error.with_label("TransientTransactionError"),
            false => error,
        })
    }

    /// The shards that own something of the collection.
    ///
    /// Errors: those of [`Operation::addressed`].
    pub fn owners(&self, sharded: &Sharded) -> Result<Vec<Addressed>> {
        sharded.table.shards().map(|shard| self.addressed(sharded, shard)).collect()
    }

    /// Whether this is the name of a time-series collection whose buckets are sharded.
    ///
    /// Errors: those of asking the config servers.
    pub fn buckets_are_sharded(&self, db: &str, name: &str) -> Result<bool> {
        if name.is_empty() || name.starts_with("system.") {
            return Ok(false);
        }
        let is_plain = self.believed(db, name)?.is_some_and(|believed| believed.sharded.is_none());
        if !is_plain {
            return Ok(false);
        }
        let buckets = buckets_namespace(db, name);
        // Shards refuse a write to measurements by a router that does not know of the buckets; so few are, that asking about each
        // collection would be for nothing, and wait where nobody answers.
        let buckets = match self.corrected.get() || !WRITES.contains(&self.command.name) {
            true => Some(self.collection(&buckets)?),
            false => self.router.directory.known_collection(&buckets),
        };
        let buckets = buckets.and_then(|buckets| buckets.sharded.clone());
        Ok(buckets.is_some_and(|buckets| buckets.timeseries.is_some()))
    }

    fn believed(&self, db: &str, collection: &str) -> Result<Option<Arc<Believed>>> {
        if matches!(db, "admin" | "config" | "local") {
            return Ok(None);
        }
        // Put together without formatting: each command that names a collection does it.
        let mut ns = String::with_capacity(db.len() + 1 + collection.len());
        ns.push_str(db);
        ns.push('.');
        ns.push_str(collection);
        self.collection(&ns).map(Some)
    }

    /// What is believed of a namespace. The thread's other duties go elsewhere only if somebody has to be asked: that costs more than a look
    /// at what is known.
    ///
    /// Errors: those of asking the config servers.
    fn collection(&self, ns: &str) -> Result<Arc<Believed>> {
        let directory = &self.router.directory;
        match directory.known_collection(ns) {
            Some(known) => Ok(known),
            None => self.blocking(|| directory.collection(ns, &|| self.check_interrupt())),
        }
    }
}

/// The commands that change documents.
const WRITES: &[&str] = &["insert", "update", "delete", "findAndModify", "bulkWrite"];

/// The first pause where a shard knows something that the directory does not tell yet, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// For so long a request is tried again whose shards and directory do not agree.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often who pauses is asked whether it should go on.
const ASK: Duration = Duration::from_millis(20);

/// A request's way to a collection: where it is, and again when that has turned out to be out of date.
pub struct Route<'o, 'a> {
    op: &'o Operation<'a>,
    db: &'o str,
    collection: &'o str,
    /// Whether the database is made where there is none.
    makes: bool,
    /// Whether it is about measurements, and the collection has their buckets.
    measured: bool,
    believed: Option<Arc<Believed>>,
    /// Participants of the transaction that were there before this statement.
    joined_before: usize,
    pause: Duration,
    began: Instant,
}

impl<'o, 'a> Route<'o, 'a> {
    /// The way of this operation to a collection, whose database is made where `makes` says so.
    pub fn new(op: &'o Operation<'a>, db: &'o str, collection: &'o str, makes: bool) -> Self {
        let joined_before = op.transaction.borrow().as_ref().map_or(0, |known| known.participants.len());
        let (pause, began) = (PAUSE.0, Instant::now());
        let measured = op.rewritten.get().is_some();
        Route { op, db, collection, makes, measured, believed: None, joined_before, pause, began }
    }

    /// The same for measurements whose buckets have this name, if `measured`.
    #[must_use]
    pub fn of_measurements(self, measured: bool) -> Self {
        Route { measured, ..self }
    }

    /// Where the collection is.
    ///
    /// Errors: those of [`Operation::target`]; those of asking the config servers.
    pub fn placed(&mut self) -> Result<Placed> {
        let op = self.op;
        sheaf_front::args::check_db_name(self.db)?;
        if self.believed.is_none() {
            self.believed = op.believed(self.db, self.collection)?;
        }
        if let Some(sharded) = self.believed.as_ref().and_then(|believed| believed.sharded.clone()) {
            return Ok(Placed::Spread(sharded));
        }
        if self.measured {
            return Err(self.is_not_sharded());
        }
        let target = op.target(self.db, self.makes)?;
        let version = self.believed.as_ref().map(|_| ShardVersion::Plain);
        Ok(Placed::Whole(Addressed { target, version }))
    }

    /// The error for buckets that are not sharded any more: there may be another collection by the name of the measurements.
    fn is_not_sharded(&self) -> Error {
        let namespace = format!("{}.{}", self.db, self.collection);
        let extra = DocBuf::new().with("ns", namespace.as_str());
        let text = format!("{namespace} is not sharded any more");
        Error::new(Code::STALE_CONFIG, text).with_extra(extra.into_bytes())
    }

    /// The view is out of date, but this request does not need a newer one.
    pub fn is_out_of_date(&self) {
        if let Some(believed) = &self.believed {
            self.op.router.directory.stale(believed);
        }
    }

    /// A shard has answered this error. `Ok`: it said that the router's view is out of date, or the time to read at that the router has
    /// chosen; there is a newer one now, or some time has passed, and the request can begin anew.
    ///
    /// Errors: this one, if it is another or nothing has helped for 20 seconds, or if the transaction has done something before, in
    /// which case it is labelled; those of asking the config servers.
    pub fn stale(&mut self, error: Error) -> Result<()> {
        match error.code() {
            // A shard took longer to come as far as that time than it keeps states; or the collection was laid out anew just then, or
            // came with its database.
            Code::SNAPSHOT_TOO_OLD | Code::SNAPSHOT_UNAVAILABLE | Code::STALE_CHUNK_HISTORY
                if self.began.elapsed() < PATIENCE && self.reads_at_another_time() =>
            {
                return self.op.blocking(|| self.pause());
            }
            Code::STALE_CONFIG => _ = self.op.router.stale_config.fetch_add(1, Ordering::Relaxed),
            Code::STALE_DB_VERSION => self.op.router.directory.forget_database(self.db),
            _ => return Err(error),
        }
        let op = self.op;
        // A collection that was closed at that time is closed at that time for ever.
        op.choose_anew();
        // Marked whatever becomes of this request: a transaction that ends by it must not meet the same view when it is run again.
        let ours = format!("{}.{}", self.db, self.collection);
        // A stage may read another namespace.
        let other = other_namespace(&error).filter(|ns| *ns != ours);
        match (&other, &self.believed) {
            (Some(other), _) => {
                let believed = op.collection(other)?;
                op.router.directory.stale(&believed);
            }
            (None, Some(believed)) => op.router.directory.stale(believed),
            (None, None) => {}
        }
        let buckets = || buckets_namespace(self.db, self.collection);
        if !op.in_transaction() && other.as_ref().is_some_and(|other| *other == buckets()) {
            // The command begins anew, about the buckets.
            return Err(error);
        }
        if self.began.elapsed() >= PATIENCE || self.names_a_time() && was_closed(&error) {
            // Clients know what to do about this one.
            return Err(if self.names_a_time() { laid_out_anew(&error) } else { error });
        }
        if op.in_transaction() && !(self.joined_before == 0 && op.blocking(|| transaction::begin_anew(op))) {
            return Err(error.with_label("TransientTransactionError"));
        }
        if other.is_some() {
            return op.blocking(|| self.pause());
        }
        let before = self.believed.take();
        self.believed = op.believed(self.db, self.collection)?;
        let version = |believed: &Option<Arc<Believed>>| {
            believed.as_ref().and_then(|believed| Some(believed.sharded.as_ref()?.table.version()))
        };
        let is_same = version(&before) == version(&self.believed);
        if self.is_past(is_same) {
            return Err(laid_out_anew(&error));
        }
        if is_same {
            op.blocking(|| self.pause())?;
        }
        Ok(())
    }

    /// Whether the client has named the time that it reads at.
    fn names_a_time(&self) -> bool {
        self.op.generic.read_concern.is_some_and(|concern| concern.at_cluster_time.is_some())
    }

    /// Whether the client reads at a time of which the directory does not know any more where the collection was. `is_same`: it was asked
    /// again, and has told nothing newer.
    fn is_past(&self, is_same: bool) -> bool {
        let Some(at) = self.op.generic.read_concern.and_then(|concern| concern.at_cluster_time) else {
            return false;
        };
        let sharded = self.believed.as_ref().and_then(|believed| believed.sharded.as_ref());
        sharded.is_some_and(|sharded| sharded.timestamp > at)
            || is_same && self.began.elapsed() >= PATIENCE_WITH_PAST
    }

    /// Has the request read at another time, if nobody has seen anything of the one that was chosen; a transaction begins anew for it.
    fn reads_at_another_time(&self) -> bool {
        let op = self.op;
        match op.request.in_transaction() {
            false => op.choose_anew(),
            true => {
                self.joined_before == 0 && !self.names_a_time() && op.blocking(|| transaction::begin_anew(op))
            }
        }
    }

    fn pause(&mut self) -> Result<()> {
        let until = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE.1);
        loop {
            self.op.check_interrupt()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(ASK));
        }
    }
}

/// The namespace that an error of a shard is about.
pub fn other_namespace(error: &Error) -> Option<String> {
    RawDoc::new(error.extra()?).get("ns")?.as_str().map(str::to_owned)
}

/// Runs a request for a collection, and runs it again where a shard says that the router's view was out of date. What it does must not
/// matter if that happens: a shard that answers so has done nothing, but others may have.
///
/// Errors: those of `run` and of [`Route::stale`].
pub fn until_fresh<T>(
    op: &Operation<'_>,
    db: &str,
    collection: &str,
    makes: bool,
    mut run: impl FnMut(&Placed) -> Result<T>,
) -> Result<T> {
    let mut route = Route::new(op, db, collection, makes);
    loop {
        let placed = route.placed()?;
        match run(&placed) {
            Err(error) => route.stale(error)?,
            done => return done,
        }
    }
}

/// The error of what this version does not do over several shards.
pub fn not_over_shards(op: &Operation<'_>, sharded: &Sharded) -> Error {
    let (name, ns) = (op.command.name, &sharded.ns);
    let text = format!("This version does not run this {name} on a sharded collection ({ns})");
    Error::new(Code::COMMAND_NOT_SUPPORTED, text)
}
