//! How a connection waits, with an eye on its client.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error};
use tokio::io::AsyncReadExt;

use super::{Connection, IDLE_BUFFER_BYTES};
use crate::client::Client;
use crate::front::Front;
use crate::outcome::Parked;
use crate::role::Wait;
use crate::strangers::makes_room;
use crate::stream::Socket;

impl<S: Socket> Connection<S> {
    /// Waits for what a request without an answer waits for.
    ///
    /// Errors: the client has closed the connection.
    pub(super) async fn park(&mut self, parked: &Parked) -> Result<(), String> {
        let client = self.client.clone();
        let happens = parked.cause.over();
        let woken = async {
            tokio::select! {
                () = happens => {}
                () = client.wake.notified() => {}
            }
        };
        client.parked.store(true, Ordering::Relaxed);
        let waited = self.wait(parked.until, woken).await;
        client.parked.store(false, Ordering::Relaxed);
        if waited.is_err() {
            parked.cause.abandon();
        }
        waited
    }

    /// The error that a parked request ends with, if somebody has stopped it.
    pub(super) fn stopped(&self, parked: &Parked) -> Option<Error> {
        if self.front.is_shutting_down() {
            // No wait lasts from now on, so a request that would only wait once more must not be run again.
            return Some(crate::front::shutting_down_error());
        }
        if let Err(error) = self.client.stop.check() {
            parked.cause.abandon();
            return Some(error);
        }
        parked.cause.stopped()
    }

    /// Waits for what must be so before a reply goes out, with an eye on the client if that takes long.
    ///
    /// Errors: the client has closed the connection. Within: those of the wait; why the operation was stopped.
    pub(super) async fn fulfilled(&mut self, wait: &dyn Wait) -> Result<Result<(), Error>, String> {
        let (front, client) = (self.front.clone(), self.client.clone());
        let over = async {
            tokio::select! {
                waited = wait.over() => waited,
                error = interrupted(&front, &client) => Err(error),
            }
        };
        tokio::pin!(over);
        tokio::select! {
            biased;
            waited = &mut over => return Ok(waited),
            () = tokio::time::sleep(UNWATCHED) => {}
        }
        let mut waited = None;
        self.wait(None, async { waited = Some((&mut over).await) }).await?;
        match waited {
            Some(waited) => Ok(waited),
            // This node shuts down: there is a moment left.
            None => Ok(over.await),
        }
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
            let is_stranger = self.client.is_stranger.load(Ordering::Relaxed);
            tokio::select! {
                () = &mut over => return Ok(()),
                () = self.front.until_shutdown() => return Ok(()),
                () = &mut woken => return Ok(()),
                () = self.client.stranger.goes(), if is_stranger => return Err(makes_room().to_string()),
                read = self.stream.read(&mut room), if watch => match read {
                    Ok(0) => return Err("connection closed while its answer was awaited".to_owned()),
                    Ok(n) => self.early.extend_from_slice(&room[..n]),
                    Err(error) => return Err(error.to_string()),
                },
            }
        }
    }
}

/// For so long nobody looks whether the client of a reply that waits is still there.
const UNWATCHED: Duration = Duration::from_secs(1);

/// For how long a reply still waits for other members or the disk once this node shuts down.
const LAST_PATIENCE: Duration = Duration::from_millis(100);

/// The error with which somebody stops the operation, or the end of this node does.
async fn interrupted(front: &Front, client: &Client) -> Error {
    let ended = async {
        front.until_shutdown().await;
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
