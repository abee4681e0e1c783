//! Whether the member that this folder belongs to runs elsewhere: then this folder is a copy of its.
//!
//! Which member it is a process knows from its folder, not from its address, which a translation of addresses may hide from it. So
//! does a process on a copy. Other members do not listen to that one, since they ask at the member's address who opens links in its name; but the
//! only voter of a set needs nobody, and would be a second primary under the first one's name. Such a one, where the configuration has
//! an address that does not look like its own, asks there before it takes part. It answers nobody itself yet, so who answers is another one.

use std::net::{ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_front::front::Front;
use sheaf_front::log;
use sheaf_repl::config::ReplSetConfig;

use crate::addresses::find;
use crate::confirm::Confirmations;

/// Whether a member of the set answers at the address of the member `me` of this configuration, though this process is to be that. Only looked for
/// where it matters; where nobody answers there is no reason to doubt.
pub fn is_elsewhere(front: &Front, config: &ReplSetConfig, me: u64, asking: &Confirmations) -> bool {
    let Some(member) = config.member(me) else { return false };
    let needs_nobody = config.majority_vote_count() == 1 && member.is_voter();
    if !needs_nobody || find(front, config) == Some(me) {
        return false;
    }
    let host: Arc<str> = Arc::from(&*member.host);
    let is_elsewhere = tokio::task::block_in_place(|| {
        let asked = asking.finds_member(&config.set_name, &host);
        !leads_here(front, &host) && tokio::runtime::Handle::current().block_on(asked)
    });
    if is_elsewhere {
        let attributes = sheaf_bson::doc! { "set": &config.set_name, "host": &*host };
        let text = "Another process answers at this member's address in the configuration: the data folder is taken for a copy, and is in no \
                    set until it is given an address of its own (replSetReconfig with force)";
        log::warning("REPL", log::ids::MEMBER_IS_ELSEWHERE, "initandlisten", text, Some(attributes));
    }
    is_elsewhere
}

/// Whether a name leads to this machine, and to the port that this process has there. Where it does nobody need be asked, and waited for.
fn leads_here(front: &Front, host: &str) -> bool {
    let port = front.port.load(Ordering::Relaxed);
    let Ok(mut addresses) = host.to_socket_addrs() else { return false };
    // Only what belongs to this machine can be bound here.
    addresses.any(|to| i64::from(to.port()) == port && UdpSocket::bind((to.ip(), 0)).is_ok())
}
