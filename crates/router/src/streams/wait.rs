//! Waiting for answers of shards without a thread.

use std::future::poll_fn;
use std::net::TcpStream;
use std::task::Poll;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How long who cannot be told of answers waits before he looks again.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until something comes on one of these sockets.
pub async fn answers(sockets: Vec<TcpStream>) {
    let watched: std::io::Result<Vec<_>> = sockets.into_iter().map(watched).collect();
    let Ok(watched) = watched else { return tokio::time::sleep(LOOK).await };
    poll_fn(|cx| match watched.iter().any(|socket| socket.poll_read_ready(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// Tokio's own streams would not do: whoever receives the answer waits for the rest of it, on this very socket.
#[expect(
    deprecated,
    reason = "what has taken its place is unsafe for all descriptors; a TcpStream keeps its own"
)]
fn watched(socket: TcpStream) -> std::io::Result<AsyncFd<TcpStream>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}
