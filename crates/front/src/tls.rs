//! TLS (rustls): whether clients may, or must, speak it, with which certificates, and the sockets of those who do.

pub mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};

/// Who has to speak TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsMode {
    /// Clients may.
    Allow,
    /// Clients may, and this server does where it is one.
    Prefer,
    /// All must.
    Require,
}

impl TlsMode {
    /// The mode of this name; `None` within for `disabled`.
    pub fn from_name(name: &str) -> Option<Option<TlsMode>> {
        Some(match name {
            "disabled" => None,
            "allowTLS" => Some(TlsMode::Allow),
            "preferTLS" => Some(TlsMode::Prefer),
            "requireTLS" => Some(TlsMode::Require),
            _ => return None,
        })
    }
}

/// How a server speaks TLS.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Who has to.
    pub mode: TlsMode,
    /// The server's certificate and its key, in one file.
    pub certificate_key_file: PathBuf,
    /// Who signs clients' certificates.
    pub ca_file: PathBuf,
    /// Certificates that do not hold any more.
    pub crl_file: Option<PathBuf>,
    /// Whether clients may have no certificate.
    pub without_certificates: bool,
    /// Versions that are not spoken: `TLS1_2`, `TLS1_3`; older ones never are.
    pub disabled_protocols: Vec<String>,
}

/// What a server needs to speak TLS.
pub struct Tls {
    options: TlsOptions,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// Errors: a text for the user.
    pub fn new(options: TlsOptions) -> Result<Tls, String> {
        let config = RwLock::new(Arc::new(read(&options)?));
        Ok(Tls { options, config })
    }

    /// Who has to speak TLS.
    pub fn mode(&self) -> TlsMode {
        self.options.mode
    }

    /// Reads the files anew, for connections from now on.
    ///
    /// Errors: a text for the user; what was read before holds on.
    pub fn rotate(&self) -> Result<(), String> {
        let new = Arc::new(read(&self.options)?);
        *self.config.write() = new;
        Ok(())
    }

    fn connection(&self) -> std::io::Result<ServerConnection> {
        let config = self.config.read().clone();
        let mut connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
        // What a connection writes at once is bounded there.
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error| format!("cannot read certificates of {}: {error}", shown(path));
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(failed)?.collect();
    match read.map_err(failed)? {
        none if none.is_empty() => Err(format!("{} has no certificate", shown(path))),
        some => Ok(some),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", shown(path)))?;
    if text.contains("ENCRYPTED") {
        return Err(format!("the key in {} is encrypted, which is not supported", shown(path)));
    }
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| format!("cannot read the key of {}: {error}", shown(path)))
}

fn versions(disabled: &[String]) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut all = vec![("TLS1_2", &rustls::version::TLS12), ("TLS1_3", &rustls::version::TLS13)];
    for name in disabled {
        // rustls speaks none of the older ones.
        if !["TLS1_0", "TLS1_1", "TLS1_2", "TLS1_3", "none"].contains(&name.as_str()) {
            return Err(format!("Unrecognized disabledProtocols '{name}'"));
        }
        all.retain(|(known, _)| known != name);
    }
    if all.is_empty() {
        return Err("All valid TLS modes disabled".to_owned());
    }
    Ok(all.into_iter().map(|(_, version)| version).collect())
}

fn read(options: &TlsOptions) -> Result<ServerConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&options.ca_file)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", shown(&options.ca_file)))?;
    }
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    if let Some(path) = &options.crl_file {
        let failed = |error| format!("cannot read revocations of {}: {error}", shown(path));
        let lists: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_file_iter(path).map_err(failed)?.collect();
        verifier = verifier
            .with_crls(lists.map_err(failed)?)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    if options.without_certificates {
        verifier = verifier.allow_unauthenticated();
    }
    let verifier = verifier.build().map_err(|error| format!("{}: {error}", shown(&options.ca_file)))?;
    let path = &options.certificate_key_file;
    let failed = |error: rustls::Error| format!("{}: {error}", shown(path));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(&options.disabled_protocols)?)
        .map_err(failed)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(path)?, key(path)?)
        .map_err(failed)?;
    // Who comes again proves nothing anew: one round trip.
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(failed)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_disabled_are_not_spoken() {
        let names = |list: &[&str]| versions(&list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["TLS1_0", "TLS1_1"]).unwrap().len(), 2);
        assert_eq!(names(&["TLS1_2"]).unwrap(), [&rustls::version::TLS13]);
        assert!(names(&["TLS1_2", "TLS1_3"]).is_err() && names(&["SSL3"]).is_err());
    }
}
