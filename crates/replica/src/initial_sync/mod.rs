//! Initial sync: a member whose log has no overlap with the primary's copies another member's data.
//!
//! The copy is RocksDB's files as they are at a flush of the source ([`source`]), fetched over a connection of its own
//! ([`frames`], [`target`]). A copy costs the source a flush and keeps its log: it is made for members only. Who asks for one
//! names its `_id` and the number of its link to the source, and is asked back under the address that the source knows
//! ([`super::confirm`]). When it is whole the core is told; it says when the copy takes the place of the data, which
//! happens in a restart in place. From there the member follows the log like any other.

mod frames;
mod progress;
mod source;
mod target;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_repl::{LogPosition, Member};
use sheaf_storage::OpTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Replica;
use super::confirm::{Answer, GREETING_BYTES_MAX, Nonce};
use super::driver::restart_in_place;
use super::errors::keep_trying;
pub use frames::MAGIC;
use progress::ATTEMPTS_MAX;
use sheaf_front::front::Guest;
use source::Source;
use target::{Control, Target};

/// Pause between attempts, and after so many that it begins from the start.
const PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// How often a source is asked again that does not answer and has given a part of the copy: another one would have to
/// begin anew.
const FAITHFUL: usize = 5;

/// Members that may fetch copies at a time: each has a thread and a megabyte here.
const SERVING_MAX: usize = 8;

/// How long a request may take to come.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);

/// Both sides of initial sync.
pub struct InitialSync {
    set_name: String,
    source: Source,
    target: Target,
    running: AtomicBool,
    serving: Arc<Semaphore>,
}

impl InitialSync {
    /// The set's name.
    pub fn set_name(&self) -> &str {
        &self.set_name
    }

    /// For this data folder and set. What an earlier run has fetched in part is kept.
    pub fn open(dbpath: &Path, set_name: &str) -> InitialSync {
        InitialSync {
            set_name: set_name.to_owned(),
            source: Source::open(dbpath),
            target: Target::open(dbpath),
            running: AtomicBool::new(false),
            serving: Arc::new(Semaphore::new(SERVING_MAX)),
        }
    }

    /// The right to fetch a copy here, as long as it is kept.
    ///
    /// Errors: too many have it already.
    fn place(&self) -> io::Result<OwnedSemaphorePermit> {
        let refused = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "too many fetch copies already");
        self.serving.clone().try_acquire_owned().map_err(refused)
    }
}

/// Who asks for a copy.
pub struct Who {
    set: String,
    /// The asking member's `_id` in the configuration.
    id: u64,
    /// The number of the asking member's link to the source.
    nonce: Nonce,
}

impl Who {
    fn append_to(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        let nonce = Value::Binary(Binary { subtype: 0, bytes: &self.nonce });
        doc.append("set", self.set.as_str()).append("from", self.id as i64).append("nonce", nonce);
    }

    fn read(doc: RawDoc<'_>) -> Option<Who> {
        let Some(Value::Binary(nonce)) = doc.get("nonce") else { return None };
        Some(Who {
            set: doc.get("set")?.as_str()?.to_owned(),
            id: u64::try_from(doc.get("from")?.as_exact_i64()?).ok()?,
            nonce: nonce.bytes.try_into().ok()?,
        })
    }
}

/// The request behind the magic word.
async fn read_request(stream: &mut TcpStream) -> io::Result<DocBuf> {
    let mut head = [0; MAGIC.len() + 4];
    stream.read_exact(&mut head).await?;
    let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if !(5..=GREETING_BYTES_MAX).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a request's length makes no sense"));
    }
    let mut bytes = vec![0; length];
    bytes[..4].copy_from_slice(&head[4..]);
    stream.read_exact(&mut bytes[4..]).await?;
    sheaf_bson::validate(&bytes, 4)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok(DocBuf::from(RawDoc::new(&bytes)))
}

/// Serves a connection on which another member fetches a copy; its first word is [`MAGIC`] and still to be read.
/// `guest` counts it among the connections.
pub async fn serve(mut stream: TcpStream, replica: Arc<Replica>, guest: Guest) -> io::Result<()> {
    let request = tokio::time::timeout(REQUEST_PATIENCE, read_request(&mut stream)).await??;
    if let Err(why) = replica.confirm_request(request.as_raw()).await {
        let remote = stream.peer_addr().map(|address| address.to_string()).unwrap_or_default();
        let error = super::receiving::refuse(&replica, &remote, &why);
        let reply = sheaf_bson::doc! { "ok": false, "errmsg": why.as_str() };
        stream.write_all(reply.as_bytes()).await?;
        return Err(error);
    }
    // Places are for members: strangers have not come so far.
    let place = replica.initial_sync.place()?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let serving = replica.clone();
    let mut share = replica.memory.share();
    share.set(frames::CHUNK_BYTES);
    // Files are read and written for minutes: that is no work for the runtime's threads.
    std::thread::Builder::new().name("sheaf-sync-source".to_owned()).spawn(move || {
        let sync = &serving.initial_sync;
        let served =
            sync.source.serve(stream, request.as_raw(), &sync.set_name, serving.is_writable(), &|folder| {
                if !serving.is_readable() {
                    return Err(super::not_yet_initialized());
                }
                let pin = serving.engine.pin_log();
                Ok((serving.engine.export_copy(folder)?, pin))
            });
        drop((place, guest, share));
        let _ = sender.send(served);
    })?;
    let served = receiver.await.unwrap_or(Ok(()));
    tokio::spawn(async move {
        for wait in [source::RESTART_PATIENCE, source::KEEP] {
            tokio::time::sleep(wait).await;
            replica.initial_sync.source.forget_old(source::KEEP);
        }
    });
    served
}

impl Replica {
    /// Whether a request for a copy comes from the member that it names.
    ///
    /// Errors: why not.
    async fn confirm_request(&self, request: RawDoc<'_>) -> std::result::Result<(), String> {
        let set = self.initial_sync.set_name();
        let who = Who::read(request).ok_or("the request for a copy does not say whose it is")?;
        if who.set != set {
            return Err(format!("this member belongs to the replica set {set}, not {}", who.set));
        }
        let hosts = self.addresses_of(who.id);
        for host in &hosts {
            let address = self.dialled(host);
            match self
                .confirmations
                .ask((set, self.own_id()), (host, address.as_str()), who.nonce, false)
                .await
            {
                Answer::Yes => return Ok(()),
                Answer::No => return Err(format!("{host} says that it has not asked for a copy")),
                Answer::None => {}
            }
        }
        Err(match hosts.first() {
            Some(host) => format!("{host} does not say whether it has asked for a copy"),
            None => format!("member {} is not in this member's configuration", who.id),
        })
    }

    /// Who this member is to the one that it asks for a copy.
    fn who_for(&self, host: &str) -> io::Result<Who> {
        let id = self.core.lock().id();
        let nonce = self.links.get().and_then(|links| links.nonce_for(host));
        match (id, nonce) {
            (Some(id), Some(nonce)) => Ok(Who { set: self.initial_sync.set_name.clone(), id, nonce }),
            _ => Err(io::Error::other(format!("{host} was not sent anything yet"))),
        }
    }

    /// The document `initialSyncStatus` of `replSetGetStatus`, while data is being copied.
    pub fn initial_sync_status(&self) -> Option<DocBuf> {
        self.initial_sync.target.progress.lock().status()
    }

    /// Begins to copy data that is as new as `at_least`, first from the member `source`.
    pub(super) fn begin_initial_sync(self: &Arc<Self>, source: u64, at_least: LogPosition) -> Result<()> {
        let running = self.initial_sync.running.swap(true, Ordering::AcqRel);
        assert!(!running, "the core asks for a second copy, as of {at_least:?}, while the first one is made");
        let replica = self.clone();
        let begun =
            super::driver::spawn("sheaf-initial-sync", move || replica.run_initial_sync(source, at_least));
        if begun.is_err() {
            // The core asks again when it is told.
            self.initial_sync.running.store(false, Ordering::Release);
        }
        begun
    }

    fn run_initial_sync(&self, source: u64, at_least: LogPosition) {
        let sync = &self.initial_sync;
        let wall = self.front.clock.now_millis();
        {
            let mut progress = sync.target.progress.lock();
            let partial = progress.partial.take();
            *progress = progress::Progress {
                began: Some((wall, Instant::now())),
                partial,
                running: true,
                ..progress::Progress::default()
            };
        }
        let own = self.engine.last_applied().index;
        let wanted = sheaf_bson::doc! { "atLeast": at_least.index as i64, "own": own as i64 };
        log("Initial sync begins", &wanted);
        let fetched = self.try_sources(source, at_least.index);
        sync.target.progress.lock().running = false;
        sync.running.store(false, Ordering::Release);
        match fetched {
            Some(at) => {
                log("Initial sync has fetched a copy", &sheaf_bson::doc! { "index": at.index as i64 });
                self.with(|core| core.initial_sync_finished(at.position(), at.time));
            }
            None => self.with(Member::initial_sync_failed),
        }
    }

    /// `None`: it was tried so often that it shall begin from the start.
    fn try_sources(&self, source: u64, at_least: u64) -> Option<OpTime> {
        let target = &self.initial_sync.target;
        let mut failures = 0;
        let mut turn = 0;
        while failures < ATTEMPTS_MAX && !self.is_stopping() {
            let sources = self.sources(source, target.begun_from(), turn);
            let Some(host) = sources.first() else { break };
            let before = target.progress.lock().received;
            match self.fetch_from(host, at_least) {
                Ok(at) => return Some(at),
                Err(error) => {
                    let mut progress = target.progress.lock();
                    // A connection that broke after it has brought something is no failure.
                    if progress.received == before {
                        progress.failed(&error.to_string());
                        failures += 1;
                        turn += usize::from(target.begun_from().is_none() || failures % FAITHFUL == 0);
                    }
                    drop(progress);
                    let attributes = sheaf_bson::doc! { "syncSource": host, "error": &error.to_string() };
                    log("Initial sync attempt failed", &attributes);
                }
            }
            self.pause(PAUSE);
        }
        if !self.is_stopping() {
            target.forget();
            target.progress.lock().partial = None;
            self.pause(LONG_PAUSE);
        }
        None
    }

    fn pause(&self, length: Duration) {
        let until = Instant::now() + length;
        while Instant::now() < until && !self.is_stopping() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn fetch_from(&self, host: &str, at_least: u64) -> io::Result<OpTime> {
        let target = &self.initial_sync.target;
        target.progress.lock().attempt = Some((Instant::now(), host.to_owned()));
        let limit = || self.front.parameters.int("initialSyncMaxBytesPerSec").max(0) as u64;
        let stopped = || self.is_stopping();
        let control = Control { bytes_per_second: &limit, stopped: &stopped };
        let who = self.who_for(host)?;
        let mut share = self.memory.share();
        share.set(frames::CHUNK_BYTES);
        target.fetch((host, &self.dialled(host)), &who, at_least, &control)
    }

    /// Members that hold data: first the one that has given a part already, then the one that is wanted, then the others;
    /// `turn` takes the first ones off.
    fn sources(&self, wanted: u64, begun: Option<String>, turn: usize) -> Vec<String> {
        let core = self.core.lock();
        let Some(config) = core.config() else { return begun.into_iter().collect() };
        let own = core.id();
        let mut others: Vec<_> =
            config.members.iter().filter(|m| Some(m.id) != own && !m.arbiter_only).collect();
        others.sort_by_key(|member| (Some(&*member.host) != begun.as_deref(), member.id != wanted));
        let mut hosts: Vec<String> = others.iter().map(|member| member.host.to_string()).collect();
        if !hosts.is_empty() {
            let turn = turn % hosts.len();
            hosts.rotate_left(turn);
        }
        hosts
    }

    /// Takes the copy that was fetched into use, by a restart. The pipeline is held, everything before is applied.
    pub(super) fn install_copy(&self, at: LogPosition) -> ! {
        let commit = self.commit_point();
        assert!(at.index > commit.index, "a copy as of {at:?} would replace {commit:?}, which is committed");
        let dbpath = self.dbpath.clone();
        let files = self.initial_sync.target.files();
        let failed = |error: &sheaf_errors::Error| {
            let attributes = sheaf_bson::doc! { "error": error.message(), "index": at.index as i64 };
            log("A fetched copy cannot be taken into use; trying again", &attributes);
        };
        keep_trying(PAUSE, failed, || sheaf_storage::install_at_next_open(&dbpath, &files));
        restart_in_place("initial sync")
    }
}

fn log(text: &'static str, attributes: &DocBuf) {
    sheaf_front::log::info(
        "INITSYNC",
        sheaf_front::log::ids::INITIAL_SYNC,
        "ReplCoord",
        text,
        Some(attributes.clone()),
    );
}
