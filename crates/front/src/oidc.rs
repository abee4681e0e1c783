//! The identity providers that this server believes, and their keys: read at the start and every `JWKSPollSecs`, by
//! `oidcRefreshKeys`, and when a token names a key that is not known.

pub mod control;
mod fetch;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use sheaf_auth::RoleName;
use sheaf_auth::oidc::{KeySet, Provider, Providers, VerifyingKey};
use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Error, Result};

/// The mechanism.
pub(crate) const OIDC: &str = "MONGODB-OIDC";

/// The commands that are there only where tokens are taken.
pub(crate) const OWN_COMMANDS: &[&str] = &["oidcListKeys", "oidcRefreshKeys"];

/// How long a token's key waits for another's turn at asking for keys.
const TURN: Duration = Duration::from_secs(2);

/// The keys of an issuer.
#[derive(Clone, Default)]
struct Kept {
    keys: Arc<KeySet>,
    /// When they were asked for last.
    asked: Option<Instant>,
}

/// Looks whether the files of these providers' keys can be read: one that cannot does not become right by waiting, as an issuer may.
///
/// Errors: `BadValue`.
pub(crate) fn check_files(providers: &Providers) -> Result<()> {
    providers.iter().filter(|provider| provider.file.is_some()).try_for_each(|provider| {
        let read = read_keys(provider).map(drop);
        read.map_err(|why| Error::new(Code::BAD_VALUE, format!("oidcIdentityProviders: JWKSFile {why}")))
    })
}

/// The keys of a provider.
///
/// Errors: a text for the log; it names the file or the address.
fn read_keys(provider: &Provider) -> std::result::Result<KeySet, String> {
    let of_file = |why: String| match &provider.file {
        Some(path) => format!("{}: {why}", path.display()),
        None => why,
    };
    fetch::key_set(provider).and_then(|text| KeySet::parse(&text).map_err(of_file))
}

/// The providers and their keys.
pub struct Oidc {
    /// Whether there are providers.
    on: AtomicBool,
    providers: RwLock<Arc<Providers>>,
    kept: RwLock<HashMap<String, Kept>>,
    /// One reads keys at a time.
    reading: Mutex<()>,
}

impl Oidc {
    /// With these providers.
    pub(crate) fn new(providers: Providers) -> Self {
        let oidc = Oidc {
            on: AtomicBool::new(false),
            providers: RwLock::default(),
            kept: RwLock::default(),
            reading: Mutex::default(),
        };
        oidc.configure(providers);
        oidc
    }

    /// From now on there are these providers. The keys of issuers that were known go on to be, if they come from where they came from.
    pub(crate) fn configure(&self, providers: Providers) {
        let mut kept = self.kept.write();
        let before = self.providers();
        let file = |providers: &Providers, issuer: &str| {
            providers.iter().find(|provider| provider.issuer == issuer).map(|provider| provider.file.clone())
        };
        kept.retain(|issuer, _| {
            file(&providers, issuer).is_some_and(|now| Some(now) == file(&before, issuer))
        });
        self.on.store(providers.iter().next().is_some(), Ordering::Relaxed);
        *self.providers.write() = Arc::new(providers);
    }

    /// Whether there are providers.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The providers.
    pub(crate) fn providers(&self) -> Arc<Providers> {
        self.providers.read().clone()
    }

    /// The keys of an issuer, as they were read last.
    pub(crate) fn keys(&self, issuer: &str) -> Arc<KeySet> {
        self.kept.read().get(issuer).map(|kept| kept.keys.clone()).unwrap_or_default()
    }

    /// Whether an issuer still has this key.
    pub(crate) fn has(&self, issuer: &str, key: &VerifyingKey) -> bool {
        self.kept.read().get(issuer).is_some_and(|kept| kept.keys.has(key))
    }

    /// The key of this name. One that is not known is asked for, unless that has been done in the last `rest`: else whoever makes up names
    /// of keys would have the issuer asked all the time.
    pub(crate) fn key(&self, provider: &Provider, id: &str, rest: Duration) -> Option<VerifyingKey> {
        let known = || self.keys(&provider.issuer).find(id).cloned();
        if let Some(key) = known() {
            return Some(key);
        }
        let may_ask = || {
            let asked = self.kept.read().get(&provider.issuer).and_then(|kept| kept.asked);
            asked.is_none_or(|asked| asked.elapsed() >= rest)
        };
        if may_ask() {
            // Who comes while another asks has that answer; but names of keys are easily made up, so nobody waits long.
            if let Some(_turn) = self.reading.try_lock_for(TURN)
                && known().is_none()
                && may_ask()
            {
                // What fails is in the log.
                let _ = self.read(provider);
            }
        }
        known()
    }

    /// Reads the keys of these issuers, or of all.
    ///
    /// Errors: those that cannot be read.
    pub(crate) fn refresh(&self, wanted: impl Fn(&Provider) -> bool) -> std::result::Result<(), String> {
        let mut failed = Vec::new();
        let _turn = self.reading.lock();
        let mut done: Vec<String> = Vec::new();
        for provider in self.providers().iter().filter(|provider| wanted(provider)) {
            if done.contains(&provider.issuer) {
                continue;
            }
            done.push(provider.issuer.clone());
            failed.extend(self.read(provider).err());
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(failed.join("; ")),
        }
    }

    /// Reads an issuer's keys. Where that fails, those that were known go on to be.
    fn read(&self, provider: &Provider) -> std::result::Result<(), String> {
        let read = read_keys(provider);
        let mut kept = self.kept.write();
        if !self.providers().iter().any(|now| now.issuer == provider.issuer && now.file == provider.file) {
            return Err(format!("{}: it has been taken away meanwhile", provider.issuer));
        }
        let kept = kept.entry(provider.issuer.clone()).or_default();
        kept.asked = Some(Instant::now());
        match read {
            Ok(keys) => {
                kept.keys = Arc::new(keys);
                Ok(())
            }
            Err(why) => {
                let attributes = doc! { "issuer": &provider.issuer, "error": &why };
                let id = crate::log::ids::KEYS_NOT_READ;
                let text = "The keys of an identity provider cannot be read";
                crate::log::warning("ACCESS", id, "oidc", text, Some(attributes));
                Err(format!("{}: {why}", provider.issuer))
            }
        }
    }

    /// Whether it is time to read the keys of this provider.
    pub(crate) fn is_due(&self, provider: &Provider) -> bool {
        match self.kept.read().get(&provider.issuer).and_then(|kept| kept.asked) {
            None => true,
            Some(asked) => {
                provider.poll_seconds > 0
                    && asked.elapsed() >= Duration::from_secs(provider.poll_seconds.unsigned_abs())
            }
        }
    }
}

/// By what a client has logged in that has shown a token.
pub struct ByToken {
    /// By whom it was taken, as the parameter had it then.
    pub provider: Arc<Provider>,
    /// Whoever has shown a token of a key that is no longer the issuer's is nobody.
    pub key: VerifyingKey,
    /// How long it holds, in milliseconds since 1970.
    pub until: i64,
    /// What the token grants; `None` where the user is looked up.
    pub roles: Option<Vec<RoleName>>,
    /// The claims that logs show.
    pub logged: DocBuf,
}

impl ByToken {
    /// Whether the token holds at this time.
    pub(crate) fn holds(&self, oidc: &Oidc, now: i64) -> bool {
        self.until > now
            && oidc.providers().still_have(&self.provider)
            && oidc.has(&self.provider.issuer, &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let checked = || {
            let text = format!(
                "[{{\"issuer\": \"https://idp.example\", \"audience\": \"a\", \"authNamePrefix\": \"p\", \"clientId\": \"c\", \
                 \"authorizationClaim\": \"g\", \"JWKSFile\": \"{}\"}}]",
                path.display()
            );
            check_files(&Providers::parse(&text).unwrap()).map_err(|error| error.message().to_owned())
        };
        let named = format!("oidcIdentityProviders: JWKSFile {}: ", path.display());
        assert!(checked().unwrap_err().starts_with(&named));
        std::fs::write(&path, "no keys").unwrap();
        assert!(checked().unwrap_err().starts_with(&named));
        std::fs::write(&path, "{\"keys\": []}").unwrap();
        checked().unwrap();
    }
}
