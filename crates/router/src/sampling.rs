//! Samples of queries: each router asks now and then which collections are sampled, and writes what it has noted to
//! `config.sampledQueries` on the config servers. Rates are the cluster's, so that each router takes its share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{ArrayBuf, Value, doc};
use sheaf_cluster::GoOn;
use sheaf_errors::{Code, Result};
use sheaf_front::sampling::{ANALYZERS, Analyzer, REFRESH, SAMPLES, SAMPLES_INDEX, WRITE};

use crate::router::Router;

/// How often is looked whether something is due.
const TICK: Duration = Duration::from_millis(500);

/// A router that has told nothing of itself for so long is not counted any more.
const GONE_MILLIS: i64 = 60_000;

impl Router {
    /// Asks for what is to be sampled, and writes samples, until shutdown.
    pub async fn keep_sampling(self: Arc<Self>) {
        let seconds = |name: &str| Duration::from_secs(self.parameters.int(name).max(1) as u64);
        let (mut asked, mut written) = (None::<Instant>, Instant::now());
        while !self.is_shutting_down() {
            let asks = asked.is_none_or(|asked| asked.elapsed() >= seconds(REFRESH));
            let writes = written.elapsed() >= seconds(WRITE);
            if asks || writes {
                let router = self.clone();
                let done = tokio::task::spawn_blocking(move || router.sample(asks, writes)).await;
                asked = if asks { Some(Instant::now()) } else { asked };
                written = if writes { Instant::now() } else { written };
                if let Ok(Err(error)) = done {
                    tracing::debug!(%error, "queries are not sampled for now");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
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

    /// Writes the samples that were taken.
    ///
    /// Errors: those of the config servers. What is not written is kept for the next time.
    pub(crate) fn write_samples(&self, go_on: GoOn<'_>) -> Result<()> {
        loop {
            let batch = self.sampling.take_batch();
            if batch.is_empty() {
                return Ok(());
            }
            let insert = doc! {
                "insert": SAMPLES,
                "documents": Value::Array(ArrayBuf::of(&batch).as_raw()),
                "ordered": false,
                "bypassDocumentValidation": true
            };
            let written =
                self.prepare_samples(go_on).and_then(|()| match self.directory.write(&insert, go_on) {
                    // An earlier attempt has come through whose answer was lost.
                    Err(error) if error.code() == Code::DUPLICATE_KEY => Ok(()),
                    done => done,
                });
            if let Err(error) = written {
                self.sampling.put_back(batch);
                return Err(error);
            }
        }
    }

    /// Makes the index by which samples go away, and with it their collection.
    fn prepare_samples(&self, go_on: GoOn<'_>) -> Result<()> {
        let command = doc! {
            "createIndexes": SAMPLES,
            "indexes": [{ "key": { "expireAt": 1 }, "name": SAMPLES_INDEX, "expireAfterSeconds": 0 }],
            "writeConcern": { "w": "majority" }
        };
        self.directory.run("config", &command, true, go_on).map(|_| ())
    }
}
