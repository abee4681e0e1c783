//! Giving a copy to a member that asks for it: who it is, and the thread that sends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sheaf_auth::link::seal::Sealer;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_front::front::Guest;
use sheaf_tls::Wire;
use tokio::io::AsyncReadExt;

use super::frames::{self, MAGIC};
use super::source;
use super::who::Who;
use crate::Replica;
use crate::confirm::Answer;
use crate::errors::not_yet_initialized;
use crate::protocol::GREETING_BYTES_MAX;
use crate::receiving::{not_believed, refuse};
use crate::secured::{self, Incoming, Secrets};

/// How long a request may take to come.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);

/// The proof of the other side, and the request behind it.
async fn read_request(mut stream: Wire, secrets: &Secrets) -> io::Result<(DocBuf, Incoming, Option<Sealer>)> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await?;
    let (mut incoming, sealer) = secured::accept(&mut stream, secrets, MAGIC).await?.on(stream);
    let length = u32::from_le_bytes(incoming.first().await?) as usize;
    if !(5..=GREETING_BYTES_MAX).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a request's length makes no sense"));
    }
    incoming.have(length).await?;
    let bytes = incoming.buffer.split_to(length);
    sheaf_bson::validate(&bytes, 4)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    Ok((DocBuf::from(RawDoc::new(&bytes)), incoming, sealer))
}

/// Serves a connection on which another member fetches a copy; its first word is [`MAGIC`] and still to be read.
/// `guest` counts it among the connections.
pub async fn serve(stream: Wire, replica: Arc<Replica>, guest: Guest) -> io::Result<()> {
    let remote = stream.socket().peer_addr().map(|address| address.to_string()).unwrap_or_default();
    let secrets = Secrets::of(&replica.front);
    let request = read_request(stream, &secrets);
    let request = tokio::time::timeout(REQUEST_PATIENCE, request).await?;
    let (request, mut incoming, mut sealer) =
        request.map_err(|error| not_believed(&replica, &remote, error))?;
    if let Err(why) = replica.confirm_request(request.as_raw()).await {
        let error = refuse(&replica, &remote, &why);
        let reply = sheaf_bson::doc! { "ok": false, "errmsg": why.as_str() };
        secured::send(incoming.stream(), sealer.as_mut(), reply.as_bytes()).await?;
        return Err(error);
    }
    // Places are for members: strangers have not come so far.
    let place = replica.initial_sync.place()?;
    let stream = incoming.into_blocking(sealer)?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let serving = replica.clone();
    let mut share = replica.memory.share();
    share.set(frames::CHUNK_BYTES);
    // Files are read and written for minutes: that is no work for the runtime's threads.
    std::thread::Builder::new().name("sheaf-sync-source".to_owned()).spawn(move || {
        let sync = &serving.initial_sync;
        let served = sync.source.serve(
            stream,
            request.as_raw(),
            &serving.set_name,
            serving.is_writable(),
            &|folder| {
                if !serving.is_readable() {
                    return Err(not_yet_initialized());
                }
                let pin = serving.engine.pin_log();
                Ok((serving.engine.export_copy(folder)?, pin))
            },
        );
        drop((place, guest, share));
        let _ = sender.send(served);
    })?;
    let served = receiver.await.unwrap_or(Ok(()));
    tokio::spawn(async move {
        for wait in [source::RESTART_PATIENCE, source::KEEP] {
            tokio::time::sleep(wait).await;
            replica.initial_sync.source.forget_old(source::KEEP);
        }
    });
    served
}

impl Replica {
    /// Whether a request for a copy comes from the member that it names.
    ///
    /// Errors: why not.
    async fn confirm_request(&self, request: RawDoc<'_>) -> std::result::Result<(), String> {
        let set = self.set_name();
        let who = Who::read(request).ok_or("the request for a copy does not say whose it is")?;
        if who.set != set {
            return Err(format!("this member belongs to the replica set {set}, not {}", who.set));
        }
        let hosts = self.addresses_of(who.id);
        for host in &hosts {
            let address = self.dialled(host);
            match self
                .confirmations
                .ask((set, self.own_id()), (host, address.as_str()), who.nonce, false)
                .await
            {
                Answer::Yes => return Ok(()),
                Answer::No => return Err(format!("{host} says that it has not asked for a copy")),
                Answer::None => {}
            }
        }
        Err(match hosts.first() {
            Some(host) => format!("{host} does not say whether it has asked for a copy"),
            None => format!("member {} is not in this member's configuration", who.id),
        })
    }
}
