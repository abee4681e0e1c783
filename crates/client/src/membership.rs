//! As what a process dials the others of its deployment.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sheaf_auth::{ClusterAuthMode, Keys};
use sheaf_tls::{Tls, TlsClient};

use crate::{ConnectionString, Credentials};

/// As what a process dials the others of its deployment: with the key that all have, by its certificate, or as anybody, and by TLS as
/// soon as it should. Copies are the same one.
#[derive(Clone, Default)]
pub struct Membership(Arc<Inner>);

#[derive(Default)]
struct Inner {
    mode: AtomicU8,
    by_keys: Option<Credentials>,
    by_certificate: Option<Credentials>,
    tls: Option<Arc<Tls>>,
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Membership").field(&self.mode()).finish()
    }
}

impl Membership {
    /// With these keys; `optional` while some of the others prove nothing yet.
    pub fn new(
        mode: ClusterAuthMode,
        keys: Option<&Keys>,
        optional: bool,
        tls: Option<Arc<Tls>>,
    ) -> Membership {
        let by_keys = keys.map(|keys| Credentials::of_members(keys, optional));
        let by_certificate =
            tls.is_some().then(|| Credentials { optional, ..Credentials::by_certificate("") });
        Membership(Arc::new(Inner { mode: AtomicU8::new(mode as u8), by_keys, by_certificate, tls }))
    }

    /// By what members prove that they are.
    pub fn mode(&self) -> ClusterAuthMode {
        ClusterAuthMode::ALL[usize::from(self.0.mode.load(Ordering::Relaxed))]
    }

    /// Changes it, for connections from now on.
    pub fn set_mode(&self, mode: ClusterAuthMode) {
        self.0.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// How this process speaks TLS, if it does.
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.0.tls.as_ref()
    }

    /// By what it dials; `None` for without TLS.
    pub fn to_dial(&self) -> Option<&TlsClient> {
        self.0.tls.as_ref()?.to_dial()
    }

    /// One of the others, "host:port".
    pub fn direct(&self, host: &str) -> ConnectionString {
        let tls = self.to_dial().cloned();
        let credentials = match &tls {
            Some(_) if self.mode().sends_certificate() => &self.0.by_certificate,
            _ => &self.0.by_keys,
        };
        ConnectionString { credentials: credentials.clone(), tls, ..ConnectionString::direct(host) }
    }
}
