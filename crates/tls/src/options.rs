//! What a server is told of TLS.

use std::fmt;
use std::path::PathBuf;

/// Who has to speak TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsMode {
    /// Others may.
    Allow,
    /// Others may, and this server does where it dials.
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

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            TlsMode::Allow => "allowTLS",
            TlsMode::Prefer => "preferTLS",
            TlsMode::Require => "requireTLS",
        }
    }

    /// Whether a server that dials speaks TLS.
    pub fn dials(self) -> bool {
        self != TlsMode::Allow
    }

    /// Whether a running server may change to this mode: one step at a time, towards more of it.
    pub fn leads_to(self, next: TlsMode) -> bool {
        matches!((self, next), (TlsMode::Allow, TlsMode::Prefer) | (TlsMode::Prefer, TlsMode::Require))
    }
}

/// A certificate and its key, in one file.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The file.
    pub file: PathBuf,
    /// What the key is encrypted with.
    pub password: Option<String>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

/// How a server speaks TLS.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Who has to.
    pub mode: TlsMode,
    /// The server's certificate.
    pub identity: Identity,
    /// The one that it shows where it dials others of the deployment; else the same.
    pub cluster_identity: Option<Identity>,
    /// Who signs certificates.
    pub ca_file: PathBuf,
    /// Who signs those of clients; else the same.
    pub cluster_ca_file: Option<PathBuf>,
    /// Certificates that do not hold any more.
    pub crl_file: Option<PathBuf>,
    /// Whether clients may have no certificate.
    pub without_certificates: bool,
    /// Whether certificates are taken that nobody has signed; nobody logs in by one.
    pub invalid_certificates: bool,
    /// Whether a server's certificate may name another host.
    pub invalid_hostnames: bool,
    /// Versions that are not spoken: `TLS1_2`, `TLS1_3`; older ones never are.
    pub disabled_protocols: Vec<String>,
    /// What the subjects of all members have, if not the same organisations, units and domains.
    pub member_attributes: Option<String>,
    /// The subject of other members, while certificates are changed for ones that name others.
    pub other_members: Option<String>,
}
