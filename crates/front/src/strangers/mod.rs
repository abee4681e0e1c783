//! Clients of which nobody knows yet who they are, where clients must prove it: what they may send, how many there may be, and how
//! often they may be wrong.

pub mod establishment;
pub mod guesses;
pub mod members;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::client::Client;
use guesses::Guesses;
use members::Members;

/// The longest message of one.
pub const MESSAGE_BYTES: usize = 16 * 1024;

/// How long one may take to say its first word.
pub const FIRST_WORD: Duration = Duration::from_secs(30);

/// Of all connections, one in so many is kept for those who have logged in.
const ROOM_SHARE: usize = 5;

/// Why a stranger's connection ends.
pub fn makes_room() -> std::io::Error {
    std::io::Error::other("a client that has not logged in makes room for another one")
}

/// The clients that nobody knows yet.
#[derive(Default)]
pub struct Strangers {
    waiting: Mutex<Waiting>,
    /// What was wrong of what they gave as a proof.
    pub guesses: Guesses,
    /// The same of the members' key.
    pub members: Arc<Members>,
}

/// Those that are connected, the one first that has been silent for longest.
#[derive(Default)]
struct Waiting {
    clients: BTreeMap<u64, Weak<Client>>,
    newest: u64,
}

impl Strangers {
    /// Whether one more may come, of so many connections. Who has been silent for longest goes for it: somebody who logs in, or a member of
    /// the set, is not kept out by those who only sit there.
    pub fn make_room(&self, connections: usize) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.clients.len() < connections - connections / ROOM_SHARE {
            return true;
        }
        while let Some((_, client)) = waiting.clients.pop_first() {
            if let Some(client) = client.upgrade() {
                client.stranger.place.store(0, Ordering::Relaxed);
                client.stranger.goes.notify_one();
                return true;
            }
        }
        false
    }

    /// One has come, or has logged out, or has said something.
    pub fn put_last(&self, client: &Arc<Client>) {
        let mut waiting = self.waiting.lock();
        waiting.newest += 1;
        let last = waiting.newest;
        let before = client.stranger.place.swap(last, Ordering::Relaxed);
        waiting.clients.remove(&before);
        waiting.clients.insert(last, Arc::downgrade(client));
    }

    /// One has said something.
    pub fn spoke(&self, client: &Arc<Client>) {
        // Who has to go goes.
        if client.stranger.place.load(Ordering::Relaxed) != 0 {
            self.put_last(client);
        }
    }

    /// One has gone, or is known from now on.
    pub fn remove(&self, client: &Client) {
        let mut waiting = self.waiting.lock();
        let place = client.stranger.place.swap(0, Ordering::Relaxed);
        waiting.clients.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_to_go(client: &Client) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(client.stranger.goes()).poll(&mut context).is_ready()
    }

    #[test]
    fn who_is_silent_for_longest_makes_room() {
        let memory = sheaf_meter::Process::share_of(64 << 20);
        let clients: Vec<_> = (0..9).map(|id| Arc::new(Client::new(id, None, &memory))).collect();
        let strangers = Strangers::default();
        clients[..8].iter().for_each(|client| strangers.put_last(client));
        // A fifth is kept for those who are known.
        assert!(strangers.make_room(11) && !clients.iter().any(|client| has_to_go(client)));
        strangers.spoke(&clients[0]);
        strangers.remove(&clients[1]);
        assert!(strangers.make_room(10) && !has_to_go(&clients[2]));
        strangers.put_last(&clients[8]);
        assert!(strangers.make_room(10));
        let gone: Vec<_> = (0..9).filter(|at| has_to_go(&clients[*at])).collect();
        assert_eq!(gone, [2]);
        // It is none of them any more, whatever it says.
        strangers.spoke(&clients[2]);
        strangers.remove(&clients[2]);
        assert!(strangers.make_room(10) && !clients.iter().any(|client| has_to_go(client)));
        assert!(Strangers::default().make_room(1) && !Strangers::default().make_room(0));
    }
}
