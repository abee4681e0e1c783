//! Both sides of connections, without a network.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::UnixTime;
use rustls::{Connection, Error, HandshakeKind};

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

#[test]
fn who_comes_again_shows_what_still_holds() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let path = |name: &str| folder.path().join(name);
    let identity = |name: &str| Identity { file: path(name), password: None };
    for disabled in [vec![], vec!["TLS1_3".to_owned()]] {
        let options = TlsOptions {
            mode: TlsMode::Require,
            identity: identity("server.pem"),
            cluster_identity: None,
            ca_file: path("ca.pem"),
            cluster_ca_file: None,
            crl_file: None,
            without_certificates: false,
            invalid_certificates: false,
            invalid_hostnames: false,
            disabled_protocols: disabled,
            member_attributes: None,
            other_members: None,
        };
        let tls = Tls::new(options).unwrap();
        let client = TlsClient::new(ClientOptions {
            identity: Some(identity("client.pem")),
            ca_file: Some(path("ca.pem")),
            ..ClientOptions::default()
        })
        .unwrap();
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
