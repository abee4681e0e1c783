//! Both sides of connections, without a network.

use std::io::{self, IoSlice};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::UnixTime;
use rustls::{Connection, Error, HandshakeKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

use crate::stream::{Inner, TlsStream};
use crate::{ClientOptions, Identity, Tls, TlsClient, TlsMode, TlsOptions};

/// Certificates end with the year 2049.
const LATER: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(2_600_000_000));

fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// An authority and what it has signed.
fn certificates(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = authority.self_signed(&key).unwrap();
    std::fs::write(folder.join("ca.pem"), pem("CERTIFICATE", own.der())).unwrap();
    let issuer = Issuer::new(authority, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2050, 1, 1);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let both = pem("CERTIFICATE", certificate.der()) + &pem("PRIVATE KEY", key.serialized_der());
        std::fs::write(folder.join(format!("{name}.pem")), both).unwrap();
    }
}

/// Hands everything over that one side has to say.
fn hand_over(from: &mut Connection, to: &mut Connection) -> bool {
    let mut said = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut said).unwrap();
    }
    let mut rest = said.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest).unwrap();
        to.process_new_packets().unwrap();
    }
    !said.is_empty()
}

fn both(tls: &Tls, client: &TlsClient) -> (Connection, Connection) {
    let mut server = Connection::Server(tls.connection().unwrap());
    let mut client = Connection::Client(client.connection("localhost:1").unwrap());
    while hand_over(&mut client, &mut server) | hand_over(&mut server, &mut client) {}
    assert!(!server.is_handshaking() && !client.is_handshaking());
    (server, client)
}

/// A server, and who dials it, with the certificates of this folder.
fn sides(folder: &Path, disabled_protocols: Vec<String>) -> (Tls, TlsClient) {
    let identity = |name: &str| Identity { file: folder.join(name), password: None };
    let tls = Tls::new(TlsOptions {
        mode: TlsMode::Require,
        identity: identity("server.pem"),
        cluster_identity: None,
        ca_file: folder.join("ca.pem"),
        cluster_ca_file: None,
        crl_file: None,
        without_certificates: false,
        invalid_certificates: false,
        invalid_hostnames: false,
        disabled_protocols,
        member_attributes: None,
        other_members: None,
    });
    let client = TlsClient::new(ClientOptions {
        identity: Some(identity("client.pem")),
        ca_file: Some(folder.join("ca.pem")),
        ..ClientOptions::default()
    });
    (tls.unwrap(), client.unwrap())
}

#[test]
fn who_comes_again_shows_what_still_holds() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    for disabled in [vec![], vec!["TLS1_3".to_owned()]] {
        let (tls, client) = sides(folder.path(), disabled);
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let (server, dialling) = both(&tls, &client);
            assert_eq!((server.handshake_kind(), dialling.handshake_kind()), (Some(kind), Some(kind)));
            tls.check_resumed(&server, UnixTime::now()).unwrap();
            client.check_resumed(&dialling, "localhost:1", UnixTime::now()).unwrap();
        }
        let (server, dialling) = both(&tls, &client);
        let refused = tls.check_resumed(&server, LATER).unwrap_err();
        assert!(matches!(refused, Error::InvalidCertificate(_)), "{refused}");
        let refused = client.check_resumed(&dialling, "localhost:1", LATER).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
        // Nor is it taken for another's.
        client.check_resumed(&dialling, "elsewhere:1", UnixTime::now()).unwrap_err();
    }
}

/// A pipe that counts how often something is written.
struct Counted(DuplexStream, usize);

impl Inner for Counted {}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.1 += 1;
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.1 += 1;
        Pin::new(&mut self.0).poll_write_vectored(cx, pieces)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[test]
fn many_records_are_written_at_once() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let (tls, client) = sides(folder.path(), Vec::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // There is room for all of it.
        let (near, far) = tokio::io::duplex(1 << 20);
        let connection = Connection::Client(client.connection("localhost:1").unwrap());
        let dialling = TlsStream::shaken(Counted(far, 0), connection, Duration::from_secs(60));
        let (server, dialling) = tokio::join!(TlsStream::accept(Counted(near, 0), &tls), dialling);
        let (mut server, mut dialling) = (server.unwrap(), dialling.unwrap());
        let before = server.inner().1;
        let sent: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        server.write_all(&sent).await.unwrap();
        // Of records that hold 16 KB each there are 19.
        let calls = server.inner().1 - before;
        assert!(calls <= 2, "{calls}");
        let mut read = vec![0; sent.len()];
        dialling.read_exact(&mut read).await.unwrap();
        assert!(read == sent);
    });
}
