//! Messages to the other shards of the cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, Timestamp, doc};
use sheaf_cluster::{Directory, ReplicaSet};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::{Answer, Request, ShardId};
use sheaf_storage::Interrupt;

use super::names::time_of;
use super::shard_server::{Route, ShardServer};

/// Messages that are under way at once. What would be one more is not sent: the settler sends it again.
const AT_ONCE: usize = 64;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

impl ShardServer {
    /// Sends a request of the settler, and tells it the answer if there is one.
    pub(super) fn send(self: &Arc<Self>, to: ShardId, request: Request) {
        let Some(identity) = self.identity.get() else { return };
        if to == identity.shard {
            return self.ask_myself(request);
        }
        if self.sending.fetch_add(1, Ordering::AcqRel) >= AT_ONCE {
            self.sending.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let server = self.clone();
        let ask = move || {
            // Who does not answer is asked again by the settler.
            let answer = server.ask(&to, &request);
            server.sending.fetch_sub(1, Ordering::AcqRel);
            match (answer, request.id()) {
                (Ok(Some(answer)), Some(id)) => {
                    server.now(&|| server.until_end(), |machine, _| machine.answered(&to, id, answer));
                }
                (Ok(_), _) => {}
                (Err(error), _) => tracing::debug!(%error, shard = %to, "a shard has not answered"),
            }
        };
        let spawned = std::thread::Builder::new().name("sheaf-settle".to_owned()).spawn(ask);
        if let Err(error) = spawned {
            self.sending.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "no thread to ask another shard with");
        }
    }

    fn ask_myself(self: &Arc<Self>, request: Request) {
        let now = time_of(self.replica.cluster_time());
        self.now(&|| self.until_end(), |machine, entrance| {
            let to = entrance.number();
            if let Some(id) = request.id() {
                entrance.replies.insert(to, Route::Own(id.clone()));
            }
            machine.request(to, request, now);
        });
    }

    fn ask(&self, to: &ShardId, request: &Request) -> Result<Option<Answer>> {
        let began = Instant::now();
        let go_on = || {
            self.until_end()?;
            match began.elapsed() < PATIENCE {
                true => Ok(()),
                false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
            }
        };
        let shard = self.directory()?.shard(to.as_str(), &go_on)?;
        let reply = sheaf_cluster::run(&shard.set, &self.clock, "admin", &request.command(), true, &go_on)?;
        Ok(Answer::parse(reply.as_raw()))
    }

    /// Has another shard's primary run an internal command that may be run twice, and gives its reply.
    ///
    /// Errors: that of the reply; those of the way there and of `go_on`.
    pub fn ask_shard(&self, to: &str, command: &DocBuf, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let ask = || {
            let shard = self.directory()?.shard(to, &|| go_on())?;
            sheaf_cluster::run(&shard.set, &self.clock, "admin", command, true, &|| go_on())
        };
        match ask() {
            // What was known by this name was removed, and it may have been added again as other machines.
            Err(error) if error.code() == Code::SHARD_NOT_FOUND => ask(),
            done => done,
        }
    }

    /// Has the primary of this member's own shard write an entry, if its log has not come as far as this time: so that this member, which
    /// follows, comes there.
    ///
    /// Errors: `StaleClusterTime`, if it has; those of the way there and of `go_on`.
    pub fn have_noted(&self, at: Timestamp, go_on: Interrupt<'_>) -> Result<()> {
        if self.engine.last_applied().time >= at.0 || !self.is_known()? {
            return Ok(());
        }
        let Some(identity) = self.identity.get() else { return Ok(()) };
        self.clock.reach(at);
        let note = doc! {
            "appendOplogNote": 1, "data": { "msg": "no-op for a time that was seen elsewhere" }, "maxClusterTime": at
        };
        self.ask_shard(identity.shard.as_str(), &note, go_on).map(|_| ())
    }

    /// Where each set of the cluster is reached.
    ///
    /// Errors: those of asking the config servers.
    pub fn shard_map(&self, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.directory()?.shard_map(&|| go_on())
    }

    pub(super) fn directory(&self) -> Result<&Directory> {
        let Some(identity) = self.identity()? else {
            return Err(Error::new(Code::SHARDING_STATE_NOT_INITIALIZED, "this set is no shard yet"));
        };
        Ok(self.directory.get_or_init(|| {
            let config = ReplicaSet::new(&identity.config, &self.front.membership);
            Directory::new(config, self.clock.clone())
        }))
    }
}
