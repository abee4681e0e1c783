//! Speaking TLS where this process dials.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

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
    config: RwLock<Arc<ClientConfig>>,
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
        let config = RwLock::new(Arc::new(read(&options)?));
        Ok(TlsClient(Arc::new(Inner { options, config })))
    }

    /// How it was made.
    pub fn options(&self) -> &ClientOptions {
        &self.0.options
    }

    /// The files as they are now; [`TlsClient::put`] takes them into use.
    pub(crate) fn read(&self) -> Result<Arc<ClientConfig>, String> {
        read(&self.0.options).map(Arc::new)
    }

    pub(crate) fn put(&self, config: Arc<ClientConfig>) {
        *self.0.config.write() = config;
    }

    /// A connection to "host:port" that begins.
    ///
    /// Errors: the host is no name.
    pub(crate) fn connection(&self, address: &str) -> io::Result<ClientConnection> {
        let config = self.0.config.read().clone();
        let name = ServerName::try_from(host_of(address).to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        // What a connection writes at once is bounded there.
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}

/// The host of "host:port", whose name its certificate has.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn read(options: &ClientOptions) -> Result<ClientConfig, String> {
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
    let verifier = SomeServer { provider: provider.clone(), strict, any_name };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&files::versions(&options.disabled_protocols)?)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some(identity) = &options.identity else { return Ok(config.with_no_client_auth()) };
    let (certificates, key) = files::identity(identity)?;
    let failed = |error: rustls::Error| files::unfit(&error, identity);
    config.with_client_auth_cert(certificates, key).map_err(failed)
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
