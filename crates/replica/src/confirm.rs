//! Whether the member that a link claims to come from has opened it.
//!
//! A member is known by its address in the configuration; that it has the deployment's key, if there is one, was proved before
//! ([`crate::secured`]), but all have the same. Whoever opens a link gives it a number
//! that is hard to guess; before anything of the link is read, the receiver dials the address under which it knows the sender,
//! as it would to send to it, and asks whether that number is one of its own:
//!
//! ```text
//! on the link        {link: 2, set, host, nonce}
//! asked of `host`    {confirm: 2, set, nonce, by: _id of the one who asks}
//! its answer         {ok, set}
//! ```
//!
//! The answer is yes only for the number of the link to the one who asks, who is known by his `_id`, as he may have moved. A member
//! that said yes to any of its numbers would lend its name: whoever is sent something has seen a number, and could show it to others.
//! Who is in no configuration asks without an `_id`; he, and who is not in that of the one who is asked, is answered for any number.
//!
//! A process has one number for each address that it sends to, for as long as it runs. One that was confirmed is known from
//! then on, so that links that break, also where only one direction is open, come up again without a question. A number
//! is told to nobody but the member it is for, and to whoever has that member's address.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sheaf_auth::link::seal::Sealer;
use sheaf_bson::RawDoc;
use sheaf_tls::{TlsClient, Wire};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::protocol::{Hello, MAGIC, Nonce, put};
use crate::secured::{self, Incoming, Secrets, Way};

/// How long an answer may take, the connection included.
const PATIENCE: Duration = Duration::from_secs(2);

/// Questions at once: to members, and to those who are none and want to be told so.
const ASKING_MAX: usize = 64;
const ASKING_STRANGERS_MAX: usize = 4;

/// Confirmed numbers that are kept. A member restarts less often than this is full.
const CONFIRMED_MAX: usize = 10_000;

/// What is told once in a while only.
const NAMED_PAUSE: Duration = Duration::from_secs(10);

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The member has opened the link.
    Yes,
    /// The member says that it has not opened the link.
    No,
    /// The member did not answer.
    None,
}

/// Which links were confirmed, and who may be asked now.
pub struct Confirmations {
    confirmed: Mutex<HashSet<(Arc<str>, Nonce)>>,
    asking: Semaphore,
    asking_strangers: Semaphore,
    secrets: Secrets,
    /// When a link was named last, of each side.
    named: [Mutex<Option<std::time::Instant>>; 2],
}

/// Whose link is refused.
#[derive(Clone, Copy)]
pub enum Side {
    /// This member's, by the one that it has dialled.
    Own,
    /// Another member's, by this one.
    Other,
}

impl Confirmations {
    /// Of a member with this key.
    pub fn new(secrets: Secrets) -> Confirmations {
        Confirmations {
            secrets,
            confirmed: Mutex::default(),
            asking: Semaphore::new(ASKING_MAX),
            asking_strangers: Semaphore::new(ASKING_STRANGERS_MAX),
            named: Default::default(),
        }
    }

    /// Whether the member at `host`, dialled at `address`, has opened the link of this number to the member `by`, which is
    /// this one.
    pub async fn ask(
        &self,
        (set, by): (&str, Option<u64>),
        (host, address): (&Arc<str>, &str),
        nonce: Nonce,
        stranger: bool,
    ) -> Answer {
        let key = (host.clone(), nonce);
        if self.confirmed.lock().contains(&key) {
            return Answer::Yes;
        }
        let turn = if stranger { &self.asking_strangers } else { &self.asking };
        let Ok(_turn) = turn.acquire().await else { return Answer::None };
        let question = Hello::Question { set: set.to_owned(), nonce, by };
        let mut answer = Answer::None;
        for way in self.secrets.to_dial_with() {
            let asking = ask((host, address), self.secrets.tls(), way, &question);
            answer = match tokio::time::timeout(PATIENCE, asking).await {
                Ok(Ok((true, true))) => Answer::Yes,
                Ok(Ok(_)) => Answer::No,
                Ok(Err(_)) | Err(_) => Answer::None,
            };
            if answer != Answer::None {
                break;
            }
        }
        if answer == Answer::Yes {
            let mut confirmed = self.confirmed.lock();
            if confirmed.len() >= CONFIRMED_MAX {
                confirmed.clear();
            }
            confirmed.insert(key);
        }
        answer
    }

    /// Whether a member of this set answers at `host`, whatever it says.
    pub async fn finds_member(&self, set: &str, host: &Arc<str>) -> bool {
        // Of no link, and so no number that says something about one.
        let question = Hello::Question { set: set.to_owned(), nonce: Nonce::default(), by: None };
        for way in self.secrets.to_dial_with() {
            let asking = ask((host, host), self.secrets.tls(), way, &question);
            if let Ok(Ok((true, _))) = tokio::time::timeout(PATIENCE, asking).await {
                return true;
            }
        }
        false
    }

    /// Whether to name what was refused: not for each of thousands.
    pub fn is_to_be_named(&self, by: Side) -> bool {
        let mut named = self.named[by as usize].lock();
        let due = named.is_none_or(|at| at.elapsed() >= NAMED_PAUSE);
        if due {
            *named = Some(std::time::Instant::now());
        }
        due
    }
}

/// Whether a member of the same set answers, and whether it says yes.
async fn ask(
    (host, address): (&str, &str),
    tls: Option<&TlsClient>,
    way: Way<'_>,
    question: &Hello,
) -> io::Result<(bool, bool)> {
    let Hello::Question { set, .. } = question else { return Ok((false, false)) };
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let mut stream = Wire::connect(socket, tls, host, PATIENCE).await?;
    let (mut sealer, opener) = match secured::dial(&mut stream, way, MAGIC).await? {
        Some(session) => (Some(session.seal), Some(session.open)),
        None => (None, None),
    };
    let mut bytes = Vec::new();
    put(&mut bytes, question.encode().as_bytes());
    secured::send(&mut stream, sealer.as_mut(), &bytes).await?;
    let answer = Incoming::new(stream, opener).short().await?;
    sheaf_bson::validate(&answer, 4).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let answer = RawDoc::new(&answer);
    let same_set = answer.get("set").and_then(|v| v.as_str()) == Some(set.as_str());
    Ok((same_set, answer.get("ok").is_some_and(|v| v.truthy())))
}

/// Answers a question.
pub async fn answer(stream: &mut Wire, sealer: Option<&mut Sealer>, set: &str, ok: bool) -> io::Result<()> {
    let mut bytes = Vec::new();
    put(&mut bytes, sheaf_bson::doc! { "ok": ok, "set": set }.as_bytes());
    secured::send(stream, sealer, &bytes).await
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_member_is_asked_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: Arc<str> = Arc::from(listener.local_addr().unwrap().to_string());
        let host: Arc<str> = Arc::from("member:1");
        let served = tokio::spawn(async move {
            for _ in 0..4 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut magic = [0; 4];
                stream.read_exact(&mut magic).await.unwrap();
                let mut incoming = Incoming::new(Wire::Plain(stream), None);
                let hello = Hello::decode(&incoming.short().await.unwrap()).unwrap();
                let Hello::Question { nonce, by, .. } = hello else { panic!("{hello:?}") };
                assert!(by == Some(7) || nonce == Nonce::default());
                answer(incoming.stream(), None, "rs", nonce == [1; 16]).await.unwrap();
            }
        });
        let known = Confirmations::new(Secrets::default());
        let ask = |nonce| known.ask(("rs", Some(7)), (&host, &*address), nonce, false);
        assert_eq!(ask([2; 16]).await, Answer::No);
        assert_eq!(ask([1; 16]).await, Answer::Yes);
        // Whoever answers is there, if it is of the set.
        assert!(known.finds_member("rs", &address).await);
        assert!(!known.finds_member("other", &address).await);
        served.await.unwrap();
        // Nobody listens any more.
        assert_eq!(ask([1; 16]).await, Answer::Yes);
        assert_eq!(ask([3; 16]).await, Answer::None);
        assert!(!known.finds_member("rs", &address).await);
    }
}
