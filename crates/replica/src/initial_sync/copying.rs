//! Copying another member's data: which one is asked, how often, and how the copy is taken into use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_repl::{LogPosition, Member};
use sheaf_storage::OpTime;

use super::frames;
use super::progress::{self, ATTEMPTS_MAX};
use super::target::Control;
use super::who::Who;
use crate::Replica;
use crate::errors::keep_trying;
use crate::process::{restart_in_place, spawn};
use crate::secured::Secrets;

/// Pause between attempts, and after so many that it begins from the start.
const PAUSE: Duration = Duration::from_secs(1);
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// How often a source is asked again that does not answer and has given a part of the copy: another one would have to
/// begin anew.
const FAITHFUL: usize = 5;

impl Replica {
    /// Who this member is to the one that it asks for a copy.
    fn who_for(&self, host: &str) -> io::Result<Who> {
        let id = self.core.lock().id();
        let nonce = self.links.get().and_then(|links| links.nonce_for(host));
        match (id, nonce) {
            (Some(id), Some(nonce)) => Ok(Who { set: self.set_name.clone(), id, nonce }),
            _ => Err(io::Error::other(format!("{host} was not sent anything yet"))),
        }
    }

    /// The document `initialSyncStatus` of `replSetGetStatus`, while data is being copied.
    pub fn initial_sync_status(&self) -> Option<DocBuf> {
        self.initial_sync.target.progress.lock().status()
    }

    /// Begins to copy data that is as new as `at_least`, first from the member `source`.
    pub(crate) fn begin_initial_sync(self: &Arc<Self>, source: u64, at_least: LogPosition) -> Result<()> {
        let running = self.initial_sync.running.swap(true, Ordering::AcqRel);
        assert!(!running, "the core asks for a second copy, as of {at_least:?}, while the first one is made");
        let replica = self.clone();
        let begun = spawn("sheaf-initial-sync", move || replica.run_initial_sync(source, at_least));
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
        let control =
            Control { bytes_per_second: &limit, stopped: &stopped, secrets: &Secrets::of(&self.front) };
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
    pub(crate) fn install_copy(&self, at: LogPosition) -> ! {
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
