//! Who is who: the addresses of members and of this one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_front::front::Front;
use sheaf_repl::config::ReplSetConfig;

use crate::Replica;
use crate::protocol::Nonce;

impl Replica {
    /// The addresses under which this member knows the one of this `_id`.
    pub(crate) fn addresses_of(&self, id: u64) -> Vec<Arc<str>> {
        self.core.lock().addresses_of(id).collect()
    }

    /// Which member of the configuration this process is.
    pub fn find_me(&self, config: &ReplSetConfig) -> Option<u64> {
        find(&self.front, config)
    }

    /// The address under which others know this member.
    pub fn own_address(&self) -> String {
        let core = self.core.lock();
        let own = core.config().zip(core.id()).and_then(|(config, me)| config.member(me));
        let own = own.map(|member| member.host.to_string());
        drop(core);
        own.unwrap_or_else(|| self.front.member_address())
    }

    /// This member's `_id`; `None` while it is in no configuration.
    pub(crate) fn own_id(&self) -> Option<u64> {
        self.core.lock().id()
    }

    /// Whether this process has given its link to the member `to` this number. Who is in no configuration, or not in this
    /// member's, is told of any number: he has been removed, or is about to become a member.
    pub(crate) fn has_link(&self, nonce: Nonce, to: Option<u64>) -> bool {
        let Some(links) = self.links.get() else { return false };
        let hosts = to.map(|id| self.addresses_of(id)).unwrap_or_default();
        match &hosts[..] {
            [] => links.has(nonce),
            hosts => hosts.iter().any(|host| links.nonce_for(host) == Some(nonce)),
        }
    }

    /// Whether the configuration, or one that is coming, has a member at this address.
    pub(crate) fn is_address(&self, host: &str) -> bool {
        self.core.lock().is_address(host)
    }

    /// Where to dial for an address of the configuration.
    pub fn dialled(&self, host: &str) -> String {
        self.links.get().map_or_else(|| host.to_owned(), |links| links.address(host))
    }
}

/// Which member of the configuration has an address of this process.
pub(crate) fn find(front: &Front, config: &ReplSetConfig) -> Option<u64> {
    let own = front.member_address();
    let port = front.port.load(Ordering::Relaxed);
    let exactly = config.members.iter().find(|member| *member.host == *own);
    let here = || {
        config.members.iter().find(|member| {
            let Some((host, its_port)) = member.host.rsplit_once(':') else { return false };
            its_port.parse() == Ok(port) && is_this_machine(host)
        })
    };
    exactly.or_else(here).map(|member| member.id)
}

fn is_this_machine(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    matches!(host, "localhost" | "::1") || host.starts_with("127.") || host == sheaf_front::front::hostname()
}
