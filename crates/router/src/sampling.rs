//! Samples of queries: each router asks now and then which collections are sampled, and writes what it has noted to
//! `config.sampledQueries` on the config servers. Rates are the cluster's, so that each router takes its share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{ArrayBuf, Binary, DocBuf, RawDoc, Value, doc};
use sheaf_cluster::{GoOn, first_batch};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::sampling::{
    ANALYZERS, Analyzer, Due, SAMPLE_ID, TOLD_DIFFS, bulk_namespace, expiry_index, inline_diff,
};

use crate::op::Operation;
use crate::router::Router;

/// A router that has told nothing of itself for so long is not counted any more.
const GONE_MILLIS: i64 = 60_000;

/// For so long who drops a collection waits for the config servers to forget that it is sampled.
const QUICK: Duration = Duration::from_secs(1);

/// What a name stands for.
pub enum Named {
    /// A collection.
    Collection {
        /// Its UUID.
        uuid: [u8; 16],
        /// The collation of queries that name none, unless that is the simple one.
        collation: Option<DocBuf>,
    },
    /// A view, also that of a time-series collection.
    View {
        /// As a collection's.
        collation: Option<DocBuf>,
    },
    /// Nothing.
    Nothing,
}

impl Router {
    /// Asks for what is to be sampled, and writes samples, until shutdown.
    pub async fn keep_sampling(self: Arc<Self>) {
        let mut due = Due::default();
        while !self.is_shutting_down() {
            let (asks, writes) = (due.asks(&self.parameters), due.writes(&self.parameters));
            if asks || writes {
                let router = self.clone();
                let done = tokio::task::spawn_blocking(move || router.sample(asks, writes)).await;
                if let Ok(Err(error)) = done {
                    tracing::debug!(%error, "queries are not sampled for now");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(Due::TICK) => {}
                () = self.until_shutdown() => {}
            }
        }
    }

    fn sample(&self, asks: bool, writes: bool) -> Result<()> {
        let go_on = || match self.is_shutting_down() {
            true => Err(sheaf_front::front::shutting_down_error()),
            false => Ok(()),
        };
        if asks {
            self.refresh_analyzers(&go_on)?;
            self.end_analyzers(&go_on)?;
        }
        if writes {
            self.write_samples(&go_on)?;
        }
        Ok(())
    }

    /// Asks what is to be sampled.
    ///
    /// Errors: those of asking the config servers.
    pub(crate) fn refresh_analyzers(&self, go_on: GoOn<'_>) -> Result<()> {
        let found = self.directory.find(ANALYZERS, &doc! { "mode": "full" }, go_on)?;
        let analyzers: Vec<Analyzer> =
            found.iter().filter_map(|found| Analyzer::parse(found.as_raw())).collect();
        let share = match analyzers.is_empty() {
            true => 1.0,
            false => {
                let since = Value::DateTime(self.clock_millis() - GONE_MILLIS);
                let living = self.directory.find("mongos", &doc! { "ping": { "$gte": since } }, go_on)?;
                1.0 / living.len().max(1) as f64
            }
        };
        self.sampling.configure(analyzers, share);
        Ok(())
    }

    /// Ends the sampling of collections that are not there any more, whoever has dropped or resharded them.
    fn end_analyzers(&self, go_on: GoOn<'_>) -> Result<()> {
        let mut ended = false;
        for Analyzer { namespace, uuid, .. } in self.sampling.analyzers() {
            let Some((db, collection)) = namespace.split_once('.') else { continue };
            // Where a shard does not answer, nothing is known.
            let Ok(named) = self.named(db, collection, go_on) else { continue };
            if !matches!(named, Named::Collection { uuid: now, .. } if now == uuid) {
                let uuid = Value::Binary(Binary { subtype: 4, bytes: &uuid });
                self.forget_analyzers(&doc! { "_id": &*namespace, "collUuid": uuid }, go_on)?;
                ended = true;
            }
        }
        if ended { self.refresh_analyzers(go_on) } else { Ok(()) }
    }

    fn forget_analyzers(&self, filter: &DocBuf, go_on: GoOn<'_>) -> Result<()> {
        let delete = doc! { "delete": ANALYZERS, "deletes": [{ "q": filter.as_raw(), "limit": 0 }] };
        self.directory.write(&delete, go_on)
    }

    /// Collections have been dropped or have got other names: those of this filter are sampled no more. Who has done that is neither
    /// held up nor refused because of it; what is left to do is done when configurations are asked for the next time.
    pub(crate) fn end_sampling(&self, filter: &DocBuf, go_on: GoOn<'_>) {
        let began = Instant::now();
        let go_on = || match began.elapsed() < QUICK {
            true => go_on(),
            false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
        };
        let found = self.directory.find(ANALYZERS, filter, &go_on);
        let ended = found.and_then(|found| match found.is_empty() {
            true => Ok(()),
            false => self.forget_analyzers(filter, &go_on).and_then(|()| self.refresh_analyzers(&go_on)),
        });
        if let Err(error) = ended {
            tracing::debug!(%error, "the sampling of what was dropped ends later");
        }
    }

    /// What a name stands for now: by the directory, or by the primary shard of its database.
    ///
    /// Errors: those of asking.
    pub(crate) fn named(&self, db: &str, name: &str, go_on: GoOn<'_>) -> Result<Named> {
        let placed = doc! { "_id": &format!("{db}.{name}") };
        if let Some(row) = self.directory.find("collections", &placed, go_on)?.first() {
            let row = row.as_raw();
            return collection(row.get("uuid"), row.get("defaultCollation"));
        }
        self.named_at_home(db, name, go_on)
    }

    /// What a name stands for that is not in the directory, by the primary shard of its database.
    ///
    /// Errors: those of asking.
    pub(crate) fn named_at_home(&self, db: &str, name: &str, go_on: GoOn<'_>) -> Result<Named> {
        let Some(mut shard) = self.directory.database(db, go_on)? else { return Ok(Named::Nothing) };
        loop {
            let list = doc! { "listCollections": 1, "filter": { "name": name } };
            let reply = sheaf_cluster::run(&shard.set, &self.clock, db, &list, true, go_on)?;
            if let Some(entry) = first_batch(reply.as_raw()).first() {
                return named(entry);
            }
            // It may have moved with its database.
            self.directory.forget_database(db);
            match self.directory.database(db, go_on)? {
                Some(now) if now.name != shard.name => shard = now,
                _ => return Ok(Named::Nothing),
            }
        }
    }

    /// Writes the samples that were taken.
    ///
    /// Errors: those of the config servers. What is not written is kept for the next time.
    pub(crate) fn write_samples(&self, go_on: GoOn<'_>) -> Result<()> {
        self.sampling.flush(|collection, batch| {
            self.prepare_samples(collection, go_on)?;
            let insert = doc! {
                "insert": collection,
                "documents": Value::Array(ArrayBuf::of(batch).as_raw()),
                "ordered": false,
                "bypassDocumentValidation": true
            };
            match self.directory.write(&insert, go_on) {
                // An earlier attempt has come through whose answer was lost; or several shards have told of one update.
                Err(error) if error.code() == Code::DUPLICATE_KEY => Ok(()),
                done => done,
            }
        })
    }

    /// Makes the index by which samples go away, and with it their collection.
    fn prepare_samples(&self, collection: &str, go_on: GoOn<'_>) -> Result<()> {
        let index =
            doc! { "key": { "expireAt": 1 }, "name": expiry_index(collection), "expireAfterSeconds": 0 };
        let command = doc! {
            "createIndexes": collection, "indexes": [index.as_raw()], "writeConcern": { "w": "majority" }
        };
        self.directory.run("config", &command, true, go_on).map(|_| ())
    }
}

impl Operation<'_> {
    /// Notes what a shard tells of the changes by sampled updates.
    pub fn note_diffs(&self, reply: RawDoc<'_>) {
        if self.sampled.borrow().is_empty() {
            return;
        }
        let told = reply.get(TOLD_DIFFS).and_then(|told| told.as_array());
        for entry in told.into_iter().flat_map(|told| told.values()).filter_map(|entry| entry.as_doc()) {
            if let (Some(Value::Binary(id)), Some(Value::Document(diff))) =
                (entry.get("_id"), entry.get("diff"))
                && let Ok(id) = id.bytes.try_into()
            {
                self.note_diff(&id, diff);
            }
        }
    }

    /// Notes what an update changes that its shard has refused, since the document is to be another shard's.
    pub fn note_change(&self, at: usize, before: RawDoc<'_>, after: RawDoc<'_>) {
        if let Some(id) = self.sample_at(at)
            && let Some(diff) = inline_diff(before, after)
        {
            self.note_diff(&id, diff.as_raw());
        }
    }

    fn note_diff(&self, id: &[u8; 16], diff: RawDoc<'_>) {
        let namespace = match self.body().values().next().and_then(|first| first.as_str()) {
            Some(collection) => self.namespace(collection),
            None => {
                let at = self.sampled.borrow().iter().find(|sample| sample.id == *id).map(|sample| sample.at);
                let found = at.and_then(|at| bulk_namespace(self.body(), self.sequences, at));
                found.unwrap_or_default().to_owned()
            }
        };
        let expires = self.router.samples_expire();
        self.router.sampling.note_diff(&namespace, id, diff, expires);
    }
}

/// An update, with the number of its sample for the shard that executes it.
pub fn with_sample(statement: RawDoc<'_>, id: &[u8; 16]) -> DocBuf {
    DocBuf::from(statement).with(SAMPLE_ID, Value::Binary(Binary { subtype: 4, bytes: id }))
}

/// What an entry of `listCollections` is.
fn named(entry: &DocBuf) -> Result<Named> {
    let entry = entry.as_raw();
    let within = |part: &str, name: &str| entry.get(part)?.as_doc()?.get(name);
    let said = within("options", "collation");
    match entry.get("type").and_then(|kind| kind.as_str()) {
        Some("view" | "timeseries") => Ok(Named::View { collation: collation(said) }),
        _ => collection(within("info", "uuid"), said),
    }
}

fn collection(uuid: Option<Value<'_>>, said: Option<Value<'_>>) -> Result<Named> {
    let Some(Value::Binary(Binary { bytes, .. })) = uuid else { return Err(no_uuid()) };
    let uuid = bytes.try_into().map_err(|_| no_uuid())?;
    Ok(Named::Collection { uuid, collation: collation(said) })
}

/// The collation that an entry names, unless it is the simple one.
fn collation(said: Option<Value<'_>>) -> Option<DocBuf> {
    let is_simple = |collation: &RawDoc<'_>| {
        collation.is_empty() || collation.get("locale").and_then(|locale| locale.as_str()) == Some("simple")
    };
    said.and_then(|said| said.as_doc()).filter(|said| !is_simple(said)).map(DocBuf::from)
}

fn no_uuid() -> Error {
    Error::new(Code::INTERNAL_ERROR, "a collection has no UUID")
}
