//! What a connection waits for, with an eye on its client: changes, other members, the disk.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error};
use tokio::io::AsyncReadExt;

use super::{Connection, IDLE_BUFFER_BYTES};
use crate::client::Client;
use crate::dispatch::Wait;
use crate::node::Node;
use crate::parked::{Parked, Waits};
use crate::replication::Replica;
use crate::stream::Socket;

impl<S: Socket> Connection<S> {
    /// Waits for what a request without an answer waits for.
    ///
    /// Errors: the client has closed the connection.
    pub(super) async fn park(&mut self, parked: &Parked) -> Result<(), String> {
        let (client, node) = (self.client.clone(), self.node.clone());
        let happens = async {
            match &parked.waits {
                Waits::Cursor(changes, cursor) => {
                    let changed = poll_fn(|cx| ready_if(changes.is_over(cx.waker())));
                    tokio::select! {
                        () = changed => {}
                        () = cursor.wake.notified() => {}
                    }
                }
                Waits::Topology(counter) => topology_is_other(&node, *counter).await,
                Waits::State(wanted) => {
                    let engine = node.engine();
                    poll_fn(|cx| ready_if(wanted.is_over(engine, cx.waker()))).await;
                }
            }
        };
        let woken = async {
            tokio::select! {
                () = happens => {}
                () = client.wake.notified() => {}
            }
        };
        client.parked.store(true, Ordering::Relaxed);
        let waited = self.wait(parked.until, woken).await;
        client.parked.store(false, Ordering::Relaxed);
        if waited.is_err()
            && let Some(cursor) = parked.waits.cursor()
        {
            // Nobody asks for more.
            self.node.cursors.kill(cursor.id);
        }
        waited
    }

    /// The error that a parked request ends with, if somebody has stopped it.
    pub(super) fn stopped(&self, parked: &Parked) -> Option<Error> {
        if self.node.is_shutting_down() {
            // No wait lasts from now on, so a request that would only wait once more must not be run again.
            return Some(crate::node::shutting_down_error());
        }
        if let Err(error) = self.client.stop.check() {
            if let Some(cursor) = parked.waits.cursor() {
                self.node.cursors.kill(cursor.id);
            }
            return Some(error);
        }
        let killed = parked.waits.cursor().is_some_and(|cursor| cursor.is_killed());
        killed.then(|| Error::new(Code::CURSOR_KILLED, "cursor was killed"))
    }

    /// Waits until `until` or the server's end, with an eye on the client.
    ///
    /// Errors: the client has closed the connection, so nobody waits for the answer.
    pub(super) async fn hold(&mut self, until: Instant) -> Result<(), String> {
        self.wait(Some(until), std::future::pending()).await
    }

    /// Waits until `until`, the server's end, or `woken`, with an eye on the client.
    async fn wait(&mut self, until: Option<Instant>, woken: impl Future<Output = ()>) -> Result<(), String> {
        // Waiting for two things at once is the reactor's art.
        self.stream.to_reactor().map_err(|error| error.to_string())?;
        let over = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(over);
        tokio::pin!(woken);
        let mut room = [0; 1024];
        loop {
            // A client that sends much before it is answered has to wait, like its answer.
            let watch = self.early.len() < IDLE_BUFFER_BYTES;
            tokio::select! {
                () = &mut over => return Ok(()),
                () = self.node.until_shutdown() => return Ok(()),
                () = &mut woken => return Ok(()),
                read = self.stream.read(&mut room), if watch => match read {
                    Ok(0) => return Err("connection closed while its answer was awaited".to_owned()),
                    Ok(n) => self.early.extend_from_slice(&room[..n]),
                    Err(error) => return Err(error.to_string()),
                },
            }
        }
    }
}

/// For how long a reply still waits for other members or the disk once this node shuts down.
const LAST_PATIENCE: Duration = Duration::from_millis(100);

/// The error with which somebody stops the operation, or the end of this node does.
pub(super) async fn interrupted(node: &Node, client: &Client) -> Error {
    let ended = async {
        node.until_shutdown().await;
        tokio::time::sleep(LAST_PATIENCE).await;
    };
    tokio::pin!(ended);
    loop {
        if let Err(error) = client.stop.check() {
            return error;
        }
        tokio::select! {
            () = client.wake.notified() => {}
            () = &mut ended => return Error::new(Code::INTERRUPTED_AT_SHUTDOWN, "interrupted at shutdown"),
        }
    }
}

/// Waits until what a reply waits for is so.
///
/// Errors: what stands in `writeConcernError` then.
pub(super) async fn fulfilled(node: &Node, wait: &Wait) -> sheaf_errors::Result<()> {
    let concern = &wait.concern;
    let wtimeout = (!concern.timeout.is_zero()).then(|| Instant::now() + concern.timeout);
    let limit = match (wtimeout, wait.deadline) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let waiting = async {
        match node.replica() {
            Some(replica) => replicated(replica, wait).await,
            None => durable(node, wait.at.index, limit.is_some()).await,
        }
    };
    let Some(limit) = limit else { return waiting.await };
    let over = tokio::time::timeout_at(limit.into(), waiting).await;
    over.unwrap_or_else(|_| {
        Err(match wtimeout {
            Some(wtimeout) if wtimeout <= limit => {
                Error::new(Code::WRITE_CONCERN_FAILED, "waiting for replication timed out")
            }
            _ => Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit"),
        })
    })
}

/// Waits until enough members have it.
async fn replicated(replica: &Replica, wait: &Wait) -> sheaf_errors::Result<()> {
    use sheaf_repl::write_concern::Outcome as Ended;
    let stepped_down =
        || Error::new(Code::PRIMARY_STEPPED_DOWN, "Primary stepped down while waiting for replication");
    let mut ended = replica.wait(wait.at, wait.concern.for_set(), wait.is_limited()).await;
    if wait.vital && matches!(ended, Ok(Ended::Satisfied)) {
        // What was read is committed. If this member still leads, no other can have committed anything before the read.
        ended = replica.read_barrier().await;
    }
    match ended {
        Ok(Ended::Satisfied) => Ok(()),
        Ok(Ended::NotPrimary) => Err(stepped_down()),
        Ok(Ended::Unsatisfiable) => {
            Err(Error::new(Code::UNSATISFIABLE_WRITE_CONCERN, "Not enough data-bearing nodes"))
        }
        Err(error) if error.code() == Code::NOT_WRITABLE_PRIMARY => Err(stepped_down()),
        Err(error) => Err(error),
    }
}

/// Waits until the log is on stable storage up to `index`. Who has not for ever leaves the sync to others.
async fn durable(node: &Node, index: u64, limited: bool) -> sheaf_errors::Result<()> {
    let (done, waiting) = tokio::sync::oneshot::channel();
    let done = Box::new(move |result| {
        // Nobody listens any more when the connection is gone.
        let _ = done.send(result);
    });
    if limited {
        // Syncing by itself would make it wait for the disk past its time.
        node.engine().on_durable_later(index, done);
    } else {
        node.engine().on_durable(index, done);
    }
    waiting.await.unwrap_or_else(|_| Err(crate::node::shutting_down_error()))
}

fn ready_if(over: bool) -> Poll<()> {
    if over { Poll::Ready(()) } else { Poll::Pending }
}

/// Waits until the counter of the topology is another one, or this member ends; alone, a node has no topology that could
/// change.
async fn topology_is_other(node: &Node, counter: u64) {
    let Some(replica) = node.replica() else { return std::future::pending().await };
    let mut topology = replica.topology();
    let changed = async {
        if topology.wait_for(|now| *now != counter).await.is_err() {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = changed => {}
        () = node.quiesce.begun() => {}
    }
}
