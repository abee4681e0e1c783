//! Listening on TCP and on a Unix domain socket.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::doc;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener};

use crate::client::Client;
use crate::connection;
use crate::front::Front;
use crate::role::Role;
use crate::strangers::{FIRST_WORD, makes_room};
use crate::stream::ClientStream;
use crate::tls::{TlsMode, TlsStream, Wire};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Silence after which a half-open connection is probed, and given up.
const KEEPALIVE: Duration = Duration::from_secs(120);

/// Sockets that are bound and listen, not yet accepting.
pub struct Listeners {
    tcp: Vec<TcpListener>,
    unix: Option<(UnixListener, PathBuf)>,
}

/// Why a socket could not be bound.
#[derive(Debug)]
pub struct BindError {
    /// The address or path.
    pub address: String,
    /// What the system says.
    pub source: io::Error,
}

/// Binds everything that the options name. With port 0 the system chooses a port, the same for all
/// addresses, and `front.port` is set to it.
pub fn bind(front: &Front) -> Result<Listeners, BindError> {
    let options = &front.options;
    let mut tcp = Vec::new();
    let mut port = options.port;
    for host in &options.bind {
        for address in resolve(host, port)? {
            // Two names may lead to one address.
            let is_bound = |listener: &TcpListener| listener.local_addr().is_ok_and(|known| known == address);
            if tcp.iter().any(is_bound) {
                continue;
            }
            let listener =
                bind_tcp(address).map_err(|source| BindError { address: address.to_string(), source })?;
            if port == 0 {
                port = listener.local_addr().map_or(0, |address| address.port());
                front.port.store(i64::from(port), Ordering::Relaxed);
            }
            tcp.push(listener);
        }
    }
    let unix = match &options.unix_socket_folder {
        Some(folder) => {
            let path = folder.join(format!("mongodb-{port}.sock"));
            let listener = bind_unix(&path, options.unix_socket_permissions)
                .map_err(|source| BindError { address: path.display().to_string(), source })?;
            Some((listener, path))
        }
        None => None,
    };
    Ok(Listeners { tcp, unix })
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, BindError> {
    use std::net::ToSocketAddrs;
    let wrap = |source| BindError { address: format!("{host}:{port}"), source };
    let host = match host {
        "*" => "0.0.0.0",
        other => other,
    };
    let mut addresses: Vec<_> = (host, port).to_socket_addrs().map_err(wrap)?.collect();
    if host == "localhost" {
        addresses.retain(SocketAddr::is_ipv4);
    }
    addresses.dedup();
    Ok(addresses)
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn bind_unix(path: &Path, permissions: u32) -> io::Result<UnixListener> {
    // A socket left behind by a server that was killed; the TCP port has told whether one still runs.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(permissions))?;
    Ok(listener)
}

impl Drop for Listeners {
    /// The socket of a server that did not get as far as to [run](Listeners::run) would keep other users from the port.
    fn drop(&mut self) {
        if let Some((_, path)) = &self.unix {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listeners {
    /// Accepts connections until shutdown.
    pub async fn run(mut self, role: Arc<dyn Role>) {
        for listener in std::mem::take(&mut self.tcp) {
            if let Ok(address) = listener.local_addr() {
                log_listening(&address.to_string());
            }
            tokio::spawn(accept_tcp(listener, role.clone()));
        }
        if let Some((listener, path)) = self.unix.take() {
            log_listening(&path.display().to_string());
            tokio::spawn(accept_unix(listener, path, role.clone()));
        }
        let port = role.front().port.load(Ordering::Relaxed) as i32;
        let attributes = doc! { "port": port, "ssl": if role.front().tls.is_some() { "on" } else { "off" } };
        crate::log::info(
            "NETWORK",
            crate::log::ids::WAITING_FOR_CONNECTIONS,
            "listener",
            "Waiting for connections",
            Some(attributes),
        );
        if role.front().tls.is_some() {
            tokio::spawn(crate::tls::control::watch_certificate(role.front().clone()));
        }
        tokio::spawn(crate::oidc::control::watch(role.front().clone()));
        role.front().until_shutdown().await;
    }
}

fn log_listening(address: &str) {
    let attributes = doc! { "address": address };
    crate::log::info("NETWORK", crate::log::ids::LISTENING_ON, "listener", "Listening on", Some(attributes));
}

async fn accept_tcp(listener: TcpListener, role: Arc<dyn Role>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = role.front().until_shutdown() => return,
        };
        match accepted {
            Ok((stream, remote)) => {
                // A connection works without these, only less well.
                let _ = stream.set_nodelay(true);
                let keepalive =
                    TcpKeepalive::new().with_time(KEEPALIVE).with_interval(Duration::from_secs(10));
                let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                if let Some(client) = admit(role.front(), Some(remote), stream.local_addr().ok()) {
                    tokio::spawn(serve(ClientStream::Tcp(stream), client, role.clone()));
                }
            }
            Err(error) => refused(&error).await,
        }
    }
}

async fn accept_unix(listener: UnixListener, path: PathBuf, role: Arc<dyn Role>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = role.front().until_shutdown() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                if let Some(client) = admit(role.front(), None, None) {
                    tokio::spawn(serve(ClientStream::Unix(stream), client, role.clone()));
                }
            }
            Err(error) => refused(&error).await,
        }
    }
    // The next server that starts would remove it as well.
    let _ = std::fs::remove_file(&path);
}

/// Out of file descriptors, mostly: wait for some to be given back instead of spinning.
async fn refused(error: &io::Error) {
    let attributes = doc! { "error": &error.to_string() };
    crate::log::warning(
        "NETWORK",
        crate::log::ids::NOT_ACCEPTED,
        "listener",
        "Error accepting new connection",
        Some(attributes),
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn admit(front: &Front, remote: Option<SocketAddr>, local: Option<SocketAddr>) -> Option<Arc<Client>> {
    let client = front.connect(remote, local);
    match &client {
        Some(client) if !crate::log::is_quiet() => {
            let attributes = client.about(front);
            crate::log::info(
                "NETWORK",
                crate::log::ids::CONNECTION_ACCEPTED,
                "listener",
                "Connection accepted",
                Some(attributes),
            );
        }
        None => {
            let attributes = doc! { "connectionCount": front.connection_count() as i64 };
            crate::log::info(
                "NETWORK",
                crate::log::ids::CONNECTION_REFUSED,
                "listener",
                "Connection refused because there are too many open connections",
                Some(attributes),
            );
        }
        _ => {}
    }
    client
}

/// How long a word of four bytes may take to arrive.
const WORD_PATIENCE: Duration = Duration::from_secs(5);

/// The word with which a connection begins that speaks another protocol, if it is one; waits for its first bytes.
async fn first_word(stream: &TcpStream, known: &[[u8; 4]]) -> Option<[u8; 4]> {
    let mut first = [0; 4];
    let mut begun: Option<Instant> = None;
    loop {
        let n = stream.peek(&mut first).await.ok()?;
        let part = n > 0 && n < first.len() && known.iter().any(|word| word.starts_with(&first[..n]));
        // Who stops within the word is a client whose message makes no sense.
        if part && begun.get_or_insert_with(Instant::now).elapsed() < WORD_PATIENCE {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        return (n == first.len() && known.contains(&first)).then_some(first);
    }
}

/// Has a client that wants TLS begin with it. `None`: it wants none, and need not.
///
/// Errors: why it is not served.
async fn with_tls(
    stream: &mut ClientStream,
    client: &Client,
    front: &Front,
) -> io::Result<Option<TlsStream<ClientStream>>> {
    let (Some(tls), ClientStream::Tcp(tcp)) = (&front.tls, &*stream) else { return Ok(None) };
    if !crate::tls::begins(tcp).await {
        return match tls.mode() {
            TlsMode::Require => {
                let text = "The server is configured to only allow SSL connections";
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            TlsMode::Allow | TlsMode::Prefer => Ok(None),
        };
    }
    let begun = TlsStream::accept(std::mem::replace(stream, ClientStream::Lost), tls).await?;
    match begun.is_newest() {
        true => front.metrics.tls_1_3.add(1),
        false => front.metrics.tls_1_2.add(1),
    }
    client.access.lock().certificate = Some(tls.subject_of(begun.certificates()));
    Ok(Some(begun))
}

/// What a connection has turned out to be.
enum Begun {
    /// A client's, without TLS.
    Plain(ClientStream),
    /// A client's, with TLS.
    Tls(Box<TlsStream<ClientStream>>),
    /// One that speaks another protocol, and has begun with this word.
    Word([u8; 4], Wire),
    /// Nobody's any more.
    Gone,
}

/// Finds out what a connection is.
///
/// Errors: why it is not served.
async fn begin(mut stream: ClientStream, client: &Client, role: &dyn Role) -> io::Result<Begun> {
    let words = role.words();
    let Some(mut tls) = with_tls(&mut stream, client, role.front()).await? else {
        let word = match &stream {
            ClientStream::Tcp(tcp) if !words.is_empty() => first_word(tcp, words).await,
            _ => None,
        };
        return Ok(match (word, stream) {
            (Some(word), ClientStream::Tcp(tcp)) => Begun::Word(word, Wire::Plain(tcp)),
            (_, stream) => Begun::Plain(stream),
        });
    };
    if words.is_empty() {
        return Ok(Begun::Tls(Box::new(tls)));
    }
    let Some(word) = tls.first().await?.first_chunk().copied() else { return Ok(Begun::Gone) };
    if !words.contains(&word) {
        return Ok(Begun::Tls(Box::new(tls)));
    }
    let tcp = tls.on(|stream| match stream {
        ClientStream::Tcp(tcp) => Some(tcp),
        _ => None,
    });
    Ok(tcp.map_or(Begun::Gone, |tcp| Begun::Word(word, Wire::Tls(Box::new(tcp)))))
}

async fn serve(stream: ClientStream, client: Arc<Client>, role: Arc<dyn Role>) {
    if !role.front().establishment.enter(&role.front().parameters).await {
        role.front().metrics.connections_rejected.add(1);
        role.front().disconnect(&client);
        return;
    }
    let begun = begin(stream, &client, &*role);
    // Who says nothing takes the place of others.
    let begun = match role.front().access.enabled {
        true => tokio::select! {
            begun = tokio::time::timeout(FIRST_WORD, begun) => begun.map_err(io::Error::from),
            () = client.stranger.goes() => Err(makes_room()),
        },
        false => Ok(begun.await),
    };
    match begun.flatten() {
        Ok(Begun::Plain(stream)) => connection::serve(stream, client, role).await,
        Ok(Begun::Tls(stream)) => connection::serve(*stream, client, role).await,
        Ok(Begun::Gone) => role.front().disconnect(&client),
        Ok(Begun::Word(word, stream)) => {
            // It counts as a client's until it is known to be another's.
            let guest = role.front().guest(client.clone());
            if let Err(error) = role.serve(word, stream, guest).await {
                let attributes = doc! { "remote": &client.remote_text(), "error": &error.to_string() };
                let text = "A member's link ended";
                let id = crate::log::ids::MEMBER_LINK_ENDED;
                crate::log::debug("REPL", id, "listener", text, Some(attributes));
            }
        }
        Err(error) => {
            let attributes = doc! { "remote": &client.remote_text(), "error": &error.to_string() };
            let text = "Error receiving request from client. Ending connection from remote";
            let id = crate::log::ids::CONNECTION_BROKEN;
            crate::log::info("NETWORK", id, &client.context(), text, Some(attributes));
            role.front().disconnect(&client);
        }
    }
}
