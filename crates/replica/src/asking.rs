//! What clients' commands ask of the core: waits for write concerns and for times, changes of the set, giving up the lead.

use std::sync::mpsc;

use sheaf_bson::{DocBuf, Timestamp};
use sheaf_errors::Result;
use sheaf_repl::config::{ConfigVersion, ReplSetConfig};
use sheaf_repl::write_concern::{WaitOutcome, WriteConcern};
use sheaf_repl::{Member, WaiterId};
use sheaf_storage::{Interrupt, OpTime};
use tokio::sync::oneshot;

use crate::replica::{Asked, Replica};

impl Replica {
    /// Waits until everything up to `at` fulfils the write concern, or this member is no longer primary. There is no
    /// limit here; dropping the future gives up, which callers do who are `limited`.
    ///
    /// Errors: `NotWritablePrimary`, `UnsatisfiableWriteConcern`, `UnknownReplWriteConcern`.
    pub async fn wait(&self, at: OpTime, concern: WriteConcern, limited: bool) -> Result<WaitOutcome> {
        let disk = concern.journal || concern.w == sheaf_repl::write_concern::W::Majority;
        let (waiter, receiver) = self.waiting(|core| core.wait(at.position(), concern))?;
        // A majority may need this member's own disk. A lone waiter syncs by itself, while the messages travel; not one
        // that would wait for the disk past its time.
        if disk && !limited {
            self.engine.on_durable(at.index, Box::new(|_| ()));
        } else if disk {
            self.engine.ask_for_sync();
        }
        self.resolved(waiter, receiver).await
    }

    /// Brings everything up to `at` to a majority as fast as a waiting client would have it: what is to be sent goes out, and this
    /// thread syncs the log if nobody is at it.
    pub fn hurry(&self, at: OpTime) {
        self.flush_links();
        self.engine.on_durable(at.index, Box::new(|_| ()));
    }

    /// Waits until it is sure that this member was primary after this call; see [`Member::read_barrier`].
    ///
    /// Errors: `NotWritablePrimary`.
    pub async fn read_barrier(&self) -> Result<WaitOutcome> {
        let (waiter, receiver) = self.waiting(Member::read_barrier)?;
        self.engine.ask_for_sync();
        self.resolved(waiter, receiver).await
    }

    fn waiting(
        &self,
        wait: impl FnOnce(&mut Member) -> Result<WaiterId>,
    ) -> Result<(WaiterId, oneshot::Receiver<WaitOutcome>)> {
        let (sender, receiver) = oneshot::channel();
        let mut core = self.core.lock();
        let waiter = wait(&mut core)?;
        let before = self.waiters.lock().insert(waiter, sender);
        assert!(before.is_none(), "{waiter:?} is waited for twice");
        self.perform(&mut core);
        drop(core);
        self.flush_links();
        Ok((waiter, receiver))
    }

    async fn resolved(
        &self,
        waiter: WaiterId,
        receiver: oneshot::Receiver<WaitOutcome>,
    ) -> Result<WaitOutcome> {
        let given_up = GivenUp(self, waiter);
        let outcome = receiver.await;
        std::mem::forget(given_up);
        outcome.map_err(|_| sheaf_front::front::shutting_down_error())
    }

    /// Makes this member the first of a set; returns when the configuration is durable.
    ///
    /// Errors: `AlreadyInitialized`, `InvalidReplicaSetConfig` and kin.
    pub fn initiate(&self, config: ReplSetConfig, me: u64) -> Result<()> {
        // What a standalone has written to `local` is in the log, from which a set does not take it.
        self.engine.checkpoint()?;
        self.ask_and_wait(&self.reconfigured, |core| core.initiate(config, me)).map(|_| ())
    }

    /// Changes the configuration; returns when it is installed here.
    pub fn reconfig(&self, config: ReplSetConfig, force: bool, me: Option<u64>) -> Result<ConfigVersion> {
        self.ask_and_wait(&self.reconfigured, |core| core.reconfig(config, force, me))
    }

    /// Hands the lead over; see [`Member::step_down`].
    pub fn step_down(&self, catch_up_millis: u64, period_millis: u64, force: bool) -> Result<()> {
        self.ask_and_wait(&self.stepped_down, |core| core.step_down(catch_up_millis, period_millis, force))
    }

    /// Asks the core for something that takes a while, and waits for its answer, which the driver sends to `place`.
    fn ask_and_wait<T>(&self, place: &Asked<T>, ask: impl FnOnce(&mut Member) -> Result<()>) -> Result<T> {
        #[expect(clippy::disallowed_methods, reason = "one answer is sent")]
        let (sender, receiver) = mpsc::channel();
        {
            let mut core = self.core.lock();
            ask(&mut core)?;
            let before = place.lock().replace(sender);
            assert!(before.is_none(), "the core has taken a second request before the first one's answer");
            self.perform(&mut core);
        }
        self.flush_links();
        receiver.recv().expect("the core answers each request that it has taken")
    }

    /// Before this process ends: the lead goes to another member, if there is one that can have it within this time.
    pub fn hand_over(&self, millis: u64) {
        if self.is_writable() {
            // Without a successor it simply ends.
            let _ = self.ask_and_wait(&self.stepped_down, |core| core.hand_over(millis));
        }
    }

    /// Writes an entry without effect on data, `{op: "n", o: ...}`.
    ///
    /// Errors: `NotWritablePrimary`.
    pub fn write_noop(&self, o: &DocBuf, interrupt: Interrupt<'_>) -> Result<OpTime> {
        self.engine.write_noop(o.as_raw(), interrupt)
    }

    /// Waits until everything up to this cluster time is applied here; the caller sets the limit.
    pub async fn wait_for_time(&self, time: Timestamp) {
        loop {
            let Some(log) = self.engine.catalog().oplog().cloned() else { return };
            let seen = log.version();
            if self.engine.last_applied().time >= time.0 {
                return;
            }
            std::future::poll_fn(|cx| match log.on_change(seen, cx.waker().clone()) {
                true => std::task::Poll::Ready(()),
                false if log.version() > seen => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            })
            .await;
        }
    }
}

/// Sends an answer that the core gives to a request ([`Replica::ask_and_wait`]).
pub(crate) fn answer<T>(place: &Asked<T>, result: Result<T>) {
    let sender = place.lock().take().expect("the core answers what it was asked, once");
    assert!(sender.send(result).is_ok(), "whoever has asked the core waits for its answer");
}

/// A wait whose future was dropped.
struct GivenUp<'r>(&'r Replica, WaiterId);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.waiters.lock().remove(&self.1);
        self.0.with(|core| core.cancel_wait(self.1));
    }
}
