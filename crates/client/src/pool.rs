//! Connections that are used again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::DocBuf;

use crate::{Connection, ConnectionString, Result};

/// Connections to one server that are kept for the next command.
const KEPT: usize = 8;

/// A connection that has not been used for so long is closed: the other side may have forgotten it.
const IDLE: Duration = Duration::from_secs(60);

/// Idle connections, by address.
pub struct Pool {
    kept: usize,
    /// They are few: a name is found by comparing sooner than by a hash.
    idle: Mutex<BTreeMap<String, Vec<(Connection, Instant)>>>,
    swept: Mutex<Instant>,
}

/// How often connections are closed that nobody uses any more.
const SWEEP: Duration = Duration::from_secs(1);

impl Default for Pool {
    fn default() -> Pool {
        Pool::keeping(KEPT)
    }
}

impl Pool {
    /// Keeps so many connections to one server.
    pub fn keeping(kept: usize) -> Pool {
        Pool { kept, idle: Mutex::default(), swept: Mutex::new(Instant::now()) }
    }

    /// Idle connections to each server.
    pub fn counts(&self) -> Vec<(String, usize)> {
        self.idle.lock().iter().map(|(address, kept)| (address.clone(), kept.len())).collect()
    }

    /// Closes the idle connections to a server.
    pub fn forget(&self, address: &str) {
        self.idle.lock().remove(address);
    }

    /// Has the server at `to` run a command, and gives its answer, whether it reports an error or not. What `to` says
    /// about users holds for new connections.
    ///
    /// Errors: those of the network. The command may have been run then.
    pub fn run(&self, to: &ConnectionString, db: &str, command: &DocBuf) -> Result<DocBuf> {
        let address = &to.hosts[0];
        let mut connection = match self.take(address) {
            Some(kept) => kept,
            None => Connection::open(address, to)?,
        };
        connection.set_timeout(to.socket_timeout)?;
        let answer = connection.ask(db, command)?;
        self.put_back(address, connection);
        Ok(answer)
    }

    /// A connection that is still open, as far as one can see.
    pub fn take(&self, address: &str) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(address)?;
        while let Some((mut connection, since)) = kept.pop() {
            // Nothing has come, not even the end.
            if since.elapsed() < IDLE && !connection.is_readable() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection on which nothing is under way.
    pub fn put_back(&self, address: &str, connection: Connection) {
        let mut idle = self.idle.lock();
        let mut swept = self.swept.lock();
        if swept.elapsed() >= SWEEP {
            *swept = Instant::now();
            // Those to servers that nobody asks any more, an earlier primary, hold descriptors.
            idle.retain(|_, kept| {
                kept.retain(|(_, since)| since.elapsed() < IDLE);
                !kept.is_empty()
            });
        }
        // Its name is copied for the first one only.
        let kept = match idle.get_mut(address) {
            Some(kept) => kept,
            None => idle.entry(address.to_owned()).or_default(),
        };
        if kept.len() < self.kept {
            kept.push((connection, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sheaf_bson::doc;

    use super::*;

    /// A server that answers `{ok: 1}` to so many messages of a connection, and then closes it. Counts its connections.
    fn server(answers: usize) -> (ConnectionString, Arc<AtomicUsize>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = ConnectionString::direct(&listener.local_addr().unwrap().to_string());
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut stream = stream.unwrap();
                for _ in 0..answers {
                    if crate::tests::answer(&mut stream, &doc! { "ok": 1.0 }).is_none() {
                        break;
                    }
                }
            }
        });
        (to, connections)
    }

    #[test]
    fn connections_are_used_again_and_closed_ones_are_not() {
        for (answers, expected) in [(100, 1), (1, 3)] {
            let (to, connections) = server(answers);
            let pool = Pool::default();
            for _ in 0..3 {
                let answer = pool.run(&to, "admin", &doc! { "ping": 1 }).unwrap();
                assert!(answer.as_raw().get("ok").is_some_and(|ok| ok.truthy()));
                if answers == 1 {
                    // Its end is on the way.
                    let idle = pool.idle.lock();
                    let (connection, _) = &idle[&to.hosts[0]][0];
                    connection.socket().unwrap().peek(&mut [0]).unwrap();
                }
            }
            assert_eq!(connections.load(Ordering::SeqCst), expected, "{answers}");
        }
    }
}
