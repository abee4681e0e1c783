//! A connection's bytes: messages that come in pieces, replies that are taken in pieces. Both wait with an eye on how much
//! memory all connections hold together ([`crate::buffers`]).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use sheaf_wire::{HEADER_LEN, Header};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Connection, IDLE_BUFFER_BYTES, reason};
use crate::buffers::{self, Claim, FREE_BYTES, Pace};
use crate::strangers::{FIRST_WORD, MESSAGE_BYTES, makes_room};
use crate::stream::Socket;

/// A large buffer is given back when the connection has been silent for this long.
const SILENCE: Duration = Duration::from_secs(2);

/// How often it is asked whether a message stands still.
const STEP: Duration = Duration::from_millis(250);

/// The most that is written in one go: copying it keeps the reactor busy for well under 100 microseconds.
const PIECE_BYTES: usize = 256 * 1024;

/// What came of reading.
pub(super) enum Arrival {
    /// A whole message of this length stands at the start of the buffer.
    Message(usize),
    /// Nothing, for [`super::BUSY_SILENCE`]; only on a thread.
    Silence,
    /// The client closed the connection between two messages.
    End,
}

impl<S: Socket> Connection<S> {
    /// Reads until one whole message stands at the start of the buffer.
    pub(super) async fn read_message(&mut self) -> Result<Arrival, String> {
        let mut pace: Option<Pace> = None;
        loop {
            let (mut wanted, mut room) = (IDLE_BUFFER_BYTES, IDLE_BUFFER_BYTES);
            if self.filled >= HEADER_LEN {
                let length = match Header::parse(&self.buffer[..HEADER_LEN]) {
                    Ok(header) => header.length as usize,
                    Err(error) => {
                        if let Some(answer) = sheaf_wire::http_answer(&self.buffer[..HEADER_LEN]) {
                            self.send(answer.as_bytes()).await?;
                        }
                        return Err(reason(error));
                    }
                };
                self.check_stranger(length)?;
                if self.filled >= length {
                    return Ok(Arrival::Message(length));
                }
                // What is allocated follows what has arrived, not what the header claims.
                wanted = length.min((self.filled + self.filled / 2).max(FREE_BYTES));
                room = buffers::wanted(wanted, length);
            }
            if self.buffer.len() < wanted {
                // Waiting for room is not the client's fault.
                let waited = self.room(room.max(self.buffer.len())).await?;
                if let Some(pace) = &mut pace {
                    pace.has_waited(waited);
                }
                self.buffer.resize(wanted, 0);
            }
            if self.filled > 0 {
                let now = Instant::now();
                pace.get_or_insert_with(|| Pace::new(now, self.filled)).moves(now, self.filled);
            }
            let Some(n) = self.read_some(pace.as_mut()).await? else { return Ok(Arrival::Silence) };
            if n == 0 {
                return if self.filled == 0 {
                    Ok(Arrival::End)
                } else {
                    Err("connection closed within a message".into())
                };
            }
            self.filled += n;
        }
    }

    /// Reads what there is, waiting for some. `None`: nothing came for [`super::BUSY_SILENCE`] on a thread.
    /// `pace` says how the message comes whose rest is waited for.
    async fn read_some(&mut self, mut pace: Option<&mut Pace>) -> Result<Option<usize>, String> {
        if let Some(pace) = &pace
            && self.front.incoming.is_stuck(pace)
        {
            return Err(format!("a message is too slow: {} bytes", self.filled));
        }
        if self.stream.is_direct() {
            if let Some(time) = self.patience.look() {
                self.stream.look_for_bytes(time);
            }
            return match self.stream.read(&mut self.buffer[self.filled..]).await {
                Ok(n) => Ok(Some(n)),
                Err(error) if is_timeout(&error) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
        }
        loop {
            let large = self.buffer.len() > IDLE_BUFFER_BYTES;
            let reading = self.stream.read(&mut self.buffer[self.filled..]);
            let is_stranger = self.client.is_stranger.load(Ordering::Relaxed);
            if pace.is_none() && !large && self.greeted && !is_stranger {
                return reading.await.map(Some).map_err(|error| error.to_string());
            }
            let client = &self.client;
            let reading = async {
                tokio::select! {
                    biased;
                    result = reading => result,
                    () = client.stranger.goes(), if is_stranger => Err(makes_room()),
                }
            };
            let result = match (&pace, large) {
                (None, false) if self.greeted => Ok(reading.await),
                (None, false) => tokio::time::timeout(FIRST_WORD, reading).await,
                (None, true) => tokio::time::timeout(SILENCE, reading).await,
                (Some(_), _) => tokio::time::timeout(STEP, reading).await,
            };
            match result {
                Ok(result) => return result.map(Some).map_err(|error| error.to_string()),
                Err(_) => match &mut pace {
                    None if !large => return Err("the client does not say anything".to_owned()),
                    None => {
                        self.buffer = vec![0; IDLE_BUFFER_BYTES];
                        self.room(IDLE_BUFFER_BYTES).await?;
                    }
                    Some(pace) => {
                        pace.look(Instant::now());
                        if self.front.incoming.is_stuck(pace) {
                            return Err(format!("a message stopped after {} bytes", self.filled));
                        }
                    }
                },
            }
        }
    }

    /// Who has not logged in where clients must sends nothing long.
    pub(super) fn check_stranger(&self, length: usize) -> Result<(), String> {
        if length > MESSAGE_BYTES && self.client.is_stranger.load(Ordering::Relaxed) {
            return Err(format!("a message of {length} bytes comes from a client that has not logged in"));
        }
        Ok(())
    }

    /// Waits until there is memory for a buffer of this size, and says how long.
    pub(super) async fn room(&mut self, bytes: usize) -> Result<Duration, String> {
        let client = &self.client;
        let room = self.claim.room(bytes, || client.sender()).await;
        room.ok_or_else(|| "no memory for a message for too long".to_owned())
    }

    /// Sends a reply, which is counted until it has gone.
    pub(super) async fn send_counted(&mut self, bytes: &[u8]) -> Result<(), String> {
        let _claim = (bytes.len() > FREE_BYTES).then(|| {
            let mut claim = Claim::on(&self.front.outgoing);
            claim.count(bytes.len());
            claim
        });
        self.send(bytes).await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.front.metrics.physical_bytes_out.add(bytes.len() as u64);
        let mut rest = bytes;
        while !rest.is_empty() {
            let piece = &rest[..rest.len().min(PIECE_BYTES)];
            // Most replies fit into the socket's buffer, and need no clock.
            let stream = &mut self.stream;
            let at_once = poll_fn(|cx| match Pin::new(&mut *stream).poll_write(cx, piece) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => Poll::Ready(None),
            });
            let n = match at_once.await {
                Some(Ok(n)) => n,
                Some(Err(error)) if is_timeout(&error) && self.stream.is_direct() => {
                    // Waiting for a slow client is no work for a thread.
                    self.stream.to_reactor().map_err(|error| error.to_string())?;
                    continue;
                }
                Some(Err(error)) => return Err(error.to_string()),
                None => self.write_patiently(piece).await?,
            };
            if n == 0 {
                return Err("connection closed".into());
            }
            rest = &rest[n..];
        }
        Ok(())
    }

    /// Writes some of a reply to a client that does not take it at once. The clock
    /// runs anew with every piece that it takes.
    async fn write_patiently(&mut self, piece: &[u8]) -> Result<usize, String> {
        let since = Instant::now();
        // The end of this process waits for answers, not for those who do not take them.
        self.client.answering.store(false, Ordering::Release);
        loop {
            let limit = self.front.options.write_timeout;
            let step = STEP.min(limit.saturating_sub(since.elapsed()));
            if let Ok(written) = tokio::time::timeout(step, self.stream.write(piece)).await {
                return written.map_err(|error| error.to_string());
            }
            if self.front.outgoing.is_kept_from_others(since) || since.elapsed() >= limit {
                return Err("the client does not read its replies".to_owned());
            }
        }
    }
}

/// Whether a read or write on a thread has waited as long as it may.
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}
