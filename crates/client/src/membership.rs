//! As what a process dials the others of its deployment.

use std::sync::Arc;

use sheaf_auth::Keys;

use crate::{ConnectionString, Credentials};

/// As what a process dials the others of its deployment: with the key that all have, or as anybody.
#[derive(Clone, Debug, Default)]
pub struct Membership(Arc<Option<Credentials>>);

impl Membership {
    /// With these keys; `optional` while some of the others have none yet.
    pub fn new(keys: Option<&Keys>, optional: bool) -> Membership {
        Membership(Arc::new(keys.map(|keys| Credentials::of_members(keys, optional))))
    }

    /// One of the others, "host:port".
    pub fn direct(&self, host: &str) -> ConnectionString {
        ConnectionString { credentials: (*self.0).clone(), ..ConnectionString::direct(host) }
    }
}
