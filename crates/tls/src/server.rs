//! What a server needs to speak TLS, to its clients and to the others of its deployment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::RwLock;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{Connection, HandshakeKind, ServerConfig, ServerConnection};
use sheaf_auth::ClusterName;

use crate::client::{ClientOptions, TlsClient};
use crate::files;
use crate::options::{TlsMode, TlsOptions};
use crate::verify::AnyClient;

/// What a server needs to speak TLS.
pub struct Tls {
    options: TlsOptions,
    mode: AtomicU8,
    read: RwLock<Arc<Read>>,
    /// How it dials others.
    client: TlsClient,
}

/// What the files say.
struct Read {
    config: Arc<ServerConfig>,
    /// Who looks at clients' certificates, where any is taken.
    strict: Arc<dyn ClientCertVerifier>,
    /// Who looks at them when they are shown.
    verifier: Arc<dyn ClientCertVerifier>,
    own: Certified,
    /// The certificate that other servers are shown, if it is another one.
    shown: Option<Certified>,
    /// What members' subjects have.
    members: Vec<ClusterName>,
    /// Until when the lists of revocations hold.
    lists_end: Option<i64>,
    /// Why members that have the same files do not take the certificate that they are shown.
    doubt: Option<String>,
}

/// What a server's own certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certified {
    /// Whom it names.
    pub subject: String,
    /// From when on it holds, in seconds since the epoch.
    pub from: i64,
    /// Until when it holds, in seconds since the epoch.
    pub until: i64,
}

impl Certified {
    fn holds_at(&self, time: UnixTime) -> bool {
        let now = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        (self.from..=self.until).contains(&now)
    }
}

const MODES: [TlsMode; 3] = [TlsMode::Allow, TlsMode::Prefer, TlsMode::Require];

impl Tls {
    /// Reads the files.
    ///
    /// Errors: a text for the user.
    pub fn new(options: TlsOptions) -> Result<Tls, String> {
        let read = RwLock::new(Arc::new(read(&options)?));
        let client = TlsClient::new(ClientOptions {
            identity: Some(options.cluster_identity.as_ref().unwrap_or(&options.identity).clone()),
            ca_file: Some(options.ca_file.clone()),
            crl_file: options.crl_file.clone(),
            invalid_certificates: options.invalid_certificates,
            invalid_hostnames: options.invalid_hostnames,
            disabled_protocols: options.disabled_protocols.clone(),
        })?;
        let mode = AtomicU8::new(options.mode as u8);
        Ok(Tls { options, mode, read, client })
    }

    /// Who has to speak TLS.
    pub fn mode(&self) -> TlsMode {
        MODES[usize::from(self.mode.load(Ordering::Relaxed))]
    }

    /// Changes who has to, for connections from now on.
    pub fn set_mode(&self, mode: TlsMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// How the others of the deployment are dialled; `None` for without TLS.
    pub fn to_dial(&self) -> Option<&TlsClient> {
        self.mode().dials().then_some(&self.client)
    }

    /// What the server's certificate says.
    pub fn own(&self) -> Certified {
        self.read.read().own.clone()
    }

    /// What the certificates of this server say: its own, and the one that it shows to other servers if that is another one.
    pub fn all_own(&self) -> Vec<Certified> {
        let read = self.read.read();
        std::iter::once(&read.own).chain(&read.shown).cloned().collect()
    }

    /// Until when the lists of revocations hold, in seconds since the epoch; `None` if there are none.
    pub fn lists_end(&self) -> Option<i64> {
        self.read.read().lists_end
    }

    /// Whom the certificate names that other servers are shown.
    pub fn shown_to_members(&self) -> Option<String> {
        self.all_own().pop().map(|shown| shown.subject)
    }

    /// Why members that have the same authorities and lists do not take the certificate that this server shows them; `None` if they do.
    pub fn doubt_of_members(&self) -> Option<String> {
        self.read.read().doubt.clone()
    }

    /// Whether these certificates are a member's of this deployment.
    pub fn is_member(&self, certificates: Option<&[CertificateDer<'_>]>) -> bool {
        self.subject_of(certificates).is_some_and(|subject| self.names_member(&subject))
    }

    /// Whether this is the subject of a member of this deployment.
    pub fn names_member(&self, subject: &str) -> bool {
        self.read.read().members.iter().any(|name| name.has(subject))
    }

    /// Reads the files anew, for connections from now on.
    ///
    /// Errors: a text for the user; what was read before holds on.
    pub fn rotate(&self) -> Result<(), String> {
        let new = Arc::new(read(&self.options)?);
        self.client.put(self.client.read()?);
        *self.read.write() = new;
        Ok(())
    }

    pub(crate) fn connection(&self) -> std::io::Result<ServerConnection> {
        let config = self.read.read().config.clone();
        let mut connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
        // What a connection writes at once is bounded there.
        connection.set_buffer_limit(None);
        Ok(connection)
    }

    /// Whether what was shown still holds, of a connection that goes on where an earlier one has been: its handshake has taken the
    /// certificates from the ticket, and they, or the list of those revoked, may have ended since.
    ///
    /// Errors: what a whole handshake would fail with now.
    pub(crate) fn check_resumed(&self, connection: &Connection, now: UnixTime) -> Result<(), rustls::Error> {
        if connection.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Ok(());
        }
        let Some([certificate, above @ ..]) = connection.peer_certificates() else { return Ok(()) };
        let verifier = self.read.read().verifier.clone();
        verifier.verify_client_cert(certificate, above, now).map(drop)
    }

    /// Whom a client's certificates name, if somebody has signed them.
    pub fn subject_of(&self, certificates: Option<&[CertificateDer<'_>]>) -> Option<String> {
        let (certificate, above) = certificates?.split_first()?;
        if self.options.invalid_certificates {
            let strict = self.read.read().strict.clone();
            strict.verify_client_cert(certificate, above, UnixTime::now()).ok()?;
        }
        sheaf_auth::certificate_subject(certificate)
    }
}

fn read(options: &TlsOptions) -> Result<Read, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let ca_file = options.cluster_ca_file.as_ref().unwrap_or(&options.ca_file);
    let roots = files::roots(Some(ca_file))?;
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let mut lists_end = None;
    if let Some(path) = &options.crl_file {
        let lists = files::revocations(path)?;
        lists_end = files::end_of_lists(&lists);
        verifier =
            verifier.with_crls(lists).only_check_end_entity_revocation().enforce_revocation_expiration();
    }
    if options.without_certificates {
        verifier = verifier.allow_unauthenticated();
    }
    let strict = verifier
        .build()
        .map_err(|error| files::unusable(&error, Some(ca_file), options.crl_file.as_deref()))?;
    let verifier: Arc<dyn ClientCertVerifier> = match options.invalid_certificates {
        true => Arc::new(AnyClient(strict.clone())),
        false => strict.clone(),
    };
    let failed = |error: rustls::Error| files::unfit(&error, &options.identity);
    let (certificates, key) = files::identity(&options.identity)?;
    let own = certified(&certificates[0]);
    if !own.holds_at(UnixTime::now()) {
        // Nobody could connect who looks at it, the one who would put it right included.
        return Err(format!(
            "{}: The provided SSL certificate is expired or not yet valid.",
            options.identity.file.display()
        ));
    }
    let of_members = match &options.cluster_identity {
        Some(identity) => Some(files::identity(identity)?.0),
        None => None,
    };
    let to_members = of_members.as_ref().unwrap_or(&certificates);
    let doubt = strict.verify_client_cert(&to_members[0], &to_members[1..], UnixTime::now()).err();
    let doubt = doubt.map(|error| error.to_string());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&files::versions(&options.disabled_protocols)?)
        .map_err(failed)?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(certificates, key)
        .map_err(failed)?;
    // Who comes again proves nothing anew: one round trip. Whether what it has shown still holds is looked at all the same.
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(failed)?;
    let members = members(options, &own.subject)?;
    let shown = of_members.map(|shown| certified(&shown[0]));
    Ok(Read { config: Arc::new(config), strict, verifier, own, shown, members, lists_end, doubt })
}

/// What members' subjects have, of which this server's is one.
fn members(options: &TlsOptions, own: &str) -> Result<Vec<ClusterName>, String> {
    let same = match &options.member_attributes {
        Some(attributes) => Some(
            ClusterName::with_attributes(attributes)
                .ok_or_else(|| format!("clusterAuthX509.attributes: \"{attributes}\" names nothing"))?,
        ),
        None => ClusterName::of_member(own),
    };
    let other = options.other_members.as_deref().map(|subject| {
        ClusterName::of_member(subject)
            .ok_or_else(|| format!("tlsX509ClusterAuthDNOverride: \"{subject}\" names no deployment"))
    });
    Ok(same.into_iter().chain(other.transpose()?).collect())
}

fn certified(certificate: &CertificateDer<'_>) -> Certified {
    let subject = sheaf_auth::certificate_subject(certificate).unwrap_or_default();
    let (from, until) = sheaf_auth::certificate_validity(certificate).unwrap_or((i64::MIN, i64::MAX));
    Certified { subject, from, until }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_holds_between_its_ends() {
        let own = Certified { subject: String::new(), from: 100, until: 200 };
        for (second, holds) in [(99, false), (100, true), (200, true), (201, false)] {
            let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(second));
            assert_eq!(own.holds_at(time), holds, "{second}");
        }
    }
}
