//! The tasks of links: each dials a member, says whose link it is, and writes what the queue holds ([`crate::links`]).

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sheaf_client::dial::{dial_async, is_without_address};
use sheaf_storage::critical::Critical;
use sheaf_tls::Wire;

use crate::Replica;
use crate::errors::Lost;
use crate::links::{Begun, Connected, Link};
use crate::outstanding::TOGETHER;
use crate::protocol::{Hello, MAGIC, put};
use crate::receiving::{name_own, refuse_own};
use crate::secured::{self, Secrets};
use crate::vain::{Stage, Vain};

/// How long a connection may take to come about.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// A connection on which nothing is acknowledged for so long is given up, and dialled anew.
const UNANSWERED: Duration = Duration::from_secs(5);

/// How long the proof of both sides may take.
const PROOF_PATIENCE: Duration = Duration::from_secs(5);

/// Pause after a link broke.
const PAUSE: Duration = Duration::from_millis(50);

/// How long such a link lasts, if nobody becomes a member meanwhile: one that has been removed is told so.
const STRANGERS_LIFE: Duration = Duration::from_secs(5);

/// So often it is said that a member's name leads to no address.
const TOLD: Duration = Duration::from_secs(60);

/// Runs a link's task: for good, or for a while where nobody of the configuration is at its address.
pub async fn dial(replica: Weak<Replica>, Begun { host, to, link }: Begun) {
    if link.stranger.load(Ordering::Acquire) {
        run_for_a_while(replica, host, to, link).await;
    } else {
        run(replica, host, to, link).await;
    }
}

/// Sends what there is to say to one who is not in the configuration, and forgets the link, unless he is by then.
async fn run_for_a_while(replica: Weak<Replica>, host: Arc<str>, to: String, link: Arc<Link>) {
    let critical = Critical::enter("a link to one who is no member");
    let ended = {
        let mut stage = Stage::default();
        let serving = serve(&replica, (&host, &to), &link, &mut stage);
        tokio::pin!(serving);
        loop {
            tokio::select! {
                ended = &mut serving => break ended,
                () = tokio::time::sleep(STRANGERS_LIFE) => {
                    let Some(replica) = replica.upgrade() else { return };
                    if !replica.is_address(&host) {
                        break Ok(());
                    }
                    link.stranger.store(false, Ordering::Release);
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(host = &*host, %error, "a link to one who is no member ended");
    }
    {
        let Some(replica) = replica.upgrade() else { return };
        if let Some(links) = replica.links.get().filter(|_| !replica.is_address(&host)) {
            links.forget(&host);
            return;
        }
    }
    link.stranger.store(false, Ordering::Release);
    link.end();
    drop(critical);
    run(replica, host, to, link).await;
}

/// Keeps one link up while there is something to send.
async fn run(replica: Weak<Replica>, host: Arc<str>, to: String, link: Arc<Link>) {
    // A panic would leave the other member without a word from this one for as long as it runs.
    let _critical = Critical::enter("a link to another member");
    let (mut told, mut vain): (Option<Instant>, _) = (None, Vain::default());
    loop {
        // A message that waits is the reason to connect.
        while link.is_empty() {
            link.work.notified().await;
        }
        let mut stage = Stage::default();
        let ended = serve(&replica, (&host, &to), &link, &mut stage).await;
        link.end();
        let Some(replica) = replica.upgrade() else { return };
        if let Err(error) = ended {
            if is_without_address(&error) && told.is_none_or(|told| told.elapsed() >= TOLD) {
                tracing::warn!(host = &*host, %error, "a member cannot be reached: its name leads to no address");
                told = Some(Instant::now());
            }
            tracing::debug!(host = &*host, %error, "a link to a member ended");
            if let Some(why) = vain.ended(&stage, &error, Instant::now()) {
                name_own(&host, &why);
            }
            if Lost::by(&error) == Lost::Member {
                replica.connection_lost(&host, error.kind() == io::ErrorKind::PermissionDenied);
            }
        }
        drop(replica);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn serve(
    replica: &Weak<Replica>,
    (host, to): (&str, &str),
    link: &Link,
    stage: &mut Stage,
) -> io::Result<()> {
    let socket = dial_async(to, CONNECT_PATIENCE, UNANSWERED).await?;
    let Some(secrets) = replica.upgrade().map(|replica| Secrets::of(&replica.front)) else { return Ok(()) };
    // Where others may prove nothing yet, each way is tried in its turn.
    let ways: Vec<_> = secrets.to_dial_with().collect();
    let way = ways[link.dialled.fetch_add(1, Ordering::Relaxed) % ways.len()];
    *stage = if secrets.tls().is_some() { Stage::Encrypting } else { Stage::Proving };
    let proving = async {
        let mut stream = Wire::connect(socket, secrets.tls(), host, PROOF_PATIENCE).await?;
        *stage = Stage::Proving;
        let session = secured::dial(&mut stream, way, MAGIC).await?;
        if session.is_some() {
            secrets.is_a_members(stream.socket().peer_addr()?.ip());
        }
        Ok((stream.into_parts(), session))
    };
    let proved = tokio::time::timeout(PROOF_PATIENCE, proving).await.map_err(io::Error::from)?;
    let Some(replica) = replica.upgrade() else { return Ok(()) };
    let ((socket, tls), session) = proved.inspect_err(|error: &io::Error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            refuse_own(&replica, to, &error.to_string());
        }
    })?;
    *stage = Stage::Linked(Instant::now());
    let stream = Arc::new(socket);
    let host = Arc::from(replica.own_address());
    let hello = Hello::Link { set: replica.set_name().to_owned(), host, nonce: link.nonce };
    drop(replica);
    let mut greeting = Vec::new();
    put(&mut greeting, hello.encode().as_bytes());
    link.begin(
        Connected { stream: stream.clone(), tls, sealer: session.map(|session| session.seal) },
        &greeting,
    )?;
    let mut nothing = [0; 1024];
    loop {
        tokio::select! {
            () = link.work.notified() => {
                if link.broken.load(Ordering::Acquire) {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                if link.later.load(Ordering::Acquire) {
                    tokio::time::sleep(TOGETHER).await;
                    // Before what waits is taken: whoever adds something from now on asks again.
                    link.later.store(false, Ordering::Release);
                }
                stream.writable().await?;
                link.flush();
            }
            // The other side never sends: what comes is the end, or belongs to TLS.
            readable = stream.readable() => {
                readable?;
                match stream.try_read(&mut nothing) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(0) => return Err(io::ErrorKind::ConnectionReset.into()),
                    Ok(read) => link.take_in(&nothing[..read])?,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
