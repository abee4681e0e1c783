//! Speaking TLS where this process dials.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, Connection, HandshakeKind};

use crate::blocking::broken;
use crate::files;
use crate::options::Identity;
use crate::verify::SomeServer;

/// How a process that dials speaks TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientOptions {
    /// The certificate that it shows.
    pub identity: Option<Identity>,
    /// Who signs servers' certificates; else those whom the system trusts.
    pub ca_file: Option<PathBuf>,
    /// Certificates that do not hold any more.
    pub crl_file: Option<PathBuf>,
    /// Whether certificates are taken that nobody has signed.
    pub invalid_certificates: bool,
    /// Whether a certificate may name another host.
    pub invalid_hostnames: bool,
    /// Versions that are not spoken.
    pub disabled_protocols: Vec<String>,
}

/// What a process that dials needs to speak TLS. Copies are the same one.
#[derive(Clone)]
pub struct TlsClient(Arc<Inner>);

struct Inner {
    options: ClientOptions,
    read: RwLock<Arc<Read>>,
}

/// What the files say.
pub(crate) struct Read {
    config: Arc<ClientConfig>,
    /// Who looks at servers' certificates.
    verifier: Arc<SomeServer>,
}

impl PartialEq for TlsClient {
    fn eq(&self, other: &TlsClient) -> bool {
        self.0.options == other.0.options
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.options.fmt(f)
    }
}

impl TlsClient {
    /// Reads the files.
    ///
    /// Errors: a text for the user.
    pub fn new(options: ClientOptions) -> Result<TlsClient, String> {
        let read = RwLock::new(Arc::new(read(&options)?));
        Ok(TlsClient(Arc::new(Inner { options, read })))
    }

    /// How it was made.
    pub fn options(&self) -> &ClientOptions {
        &self.0.options
    }

    /// The files as they are now; [`TlsClient::put`] takes them into use.
    pub(crate) fn read(&self) -> Result<Arc<Read>, String> {
        read(&self.0.options).map(Arc::new)
    }

    pub(crate) fn put(&self, read: Arc<Read>) {
        *self.0.read.write() = read;
    }

    /// A connection to "host:port" that begins.
    ///
    /// Errors: the host is no name.
    pub(crate) fn connection(&self, address: &str) -> io::Result<ClientConnection> {
        let config = self.0.read.read().config.clone();
        let mut connection = ClientConnection::new(config, name_of(address)?).map_err(io::Error::other)?;
        // What a connection writes at once is bounded there.
        connection.set_buffer_limit(None);
        Ok(connection)
    }

    /// Whether what "host:port" has shown still holds, of a connection that goes on where an earlier one has been: its handshake has
    /// looked at no certificate, and it, or the list of those revoked, may have ended since.
    ///
    /// Errors: what a whole handshake would fail with now.
    pub(crate) fn check_resumed(
        &self,
        connection: &Connection,
        address: &str,
        now: UnixTime,
    ) -> io::Result<()> {
        if connection.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Ok(());
        }
        let Some([certificate, above @ ..]) = connection.peer_certificates() else { return Ok(()) };
        let verifier = self.0.read.read().verifier.clone();
        let verified = verifier.verify_server_cert(certificate, above, &name_of(address)?, &[], now);
        verified.map(drop).map_err(broken)
    }
}

fn name_of(address: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host_of(address).to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// The host of "host:port", whose name its certificate has.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn read(options: &ClientOptions) -> Result<Read, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = files::roots(options.ca_file.as_deref())?;
    let strict = match options.invalid_certificates {
        true => None,
        false => {
            let mut strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            if let Some(path) = &options.crl_file {
                strict = strict
                    .with_crls(files::revocations(path)?)
                    .only_check_end_entity_revocation()
                    .enforce_revocation_expiration();
            }
            Some(strict.build().map_err(|error| {
                files::unusable(&error, options.ca_file.as_deref(), options.crl_file.as_deref())
            })?)
        }
    };
    let any_name = options.invalid_hostnames;
    let verifier = Arc::new(SomeServer { provider: provider.clone(), strict, any_name });
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&files::versions(&options.disabled_protocols)?)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone());
    let read = |config: ClientConfig| Read { config: Arc::new(config), verifier };
    let Some(identity) = &options.identity else { return Ok(read(config.with_no_client_auth())) };
    let (certificates, key) = files::identity(identity)?;
    let failed = |error: rustls::Error| files::unfit(&error, identity);
    config.with_client_auth_cert(certificates, key).map(read).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_what_certificates_name() {
        for (address, host) in
            [("one:1", "one"), ("[::1]:5", "::1"), ("127.0.0.1:3", "127.0.0.1"), ("one", "one")]
        {
            assert_eq!(host_of(address), host);
            ServerName::try_from(host.to_owned()).unwrap();
        }
    }
}
