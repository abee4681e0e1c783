//! What the server knows about one connection.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use sheaf_bson::DocBuf;

/// One connection's client, as `currentOp`, `connectionStatus` and logs see it.
pub struct Client {
    /// `connectionId`, counted from 1.
    pub id: i64,
    /// Where it connects from; `None` for a Unix domain socket.
    pub remote: Option<SocketAddr>,
    /// Set by `killOp`; the running operation stops at its next check.
    pub killed: AtomicBool,
    /// The `client` document of its first hello.
    pub metadata: Mutex<Option<DocBuf>>,
}

impl Client {
    /// A new connection's client.
    pub fn new(id: i64, remote: Option<SocketAddr>) -> Self {
        Client { id, remote, killed: AtomicBool::new(false), metadata: Mutex::new(None) }
    }

    /// `127.0.0.1:54321`, or `anonymous unix socket`.
    pub fn remote_text(&self) -> String {
        match self.remote {
            Some(address) => address.to_string(),
            None => "anonymous unix socket:27017".to_owned(),
        }
    }
}
