//! Which commands run on which member of a replica set.

use std::sync::atomic::Ordering;

use sheaf_errors::{Code, Error, Result};
use sheaf_front::request::Request;
use sheaf_repl::MemberState;

use crate::command::Secondary;
use crate::node::Node;

/// Whether this member, being what it is now, runs the command. What is in `local` is each member's own.
///
/// Errors: `NotWritablePrimary`, `NotPrimaryNoSecondaryOk`, `NotPrimaryOrSecondary`.
pub fn check(node: &Node, request: &Request<'_>) -> Result<()> {
    let Some(replica) = node.replica() else { return Ok(()) };
    if replica.is_writable() || request.db == "local" {
        return Ok(());
    }
    let state = replica.role().state;
    check_state(
        state,
        request.command.spec.secondary,
        request.command.spec.maintenance,
        Asked {
            secondary_ok: request.generic.secondary_ok(),
            in_transaction: request.in_transaction(),
            knows_hello: request.client.hello_ok.load(Ordering::Relaxed),
        },
    )
}

/// What a request says about where it may run.
#[derive(Clone, Copy)]
struct Asked {
    secondary_ok: bool,
    in_transaction: bool,
    knows_hello: bool,
}

fn check_state(state: MemberState, allowed: Secondary, maintenance: bool, asked: Asked) -> Result<()> {
    let words = |new: &str, old: &str| if asked.knows_hello { new.to_owned() } else { old.to_owned() };
    let could_opt_in = allowed == Secondary::OptIn && !asked.in_transaction;
    let opted_in = could_opt_in && asked.secondary_ok;
    if allowed != Secondary::Always && !opted_in {
        return Err(if could_opt_in {
            let text = words("not primary and secondaryOk=false", "not master and slaveOk=false");
            Error::new(Code::NOT_PRIMARY_NO_SECONDARY_OK, text)
        } else {
            Error::new(Code::NOT_WRITABLE_PRIMARY, words("not primary", "not master"))
        });
    }
    if maintenance || state == MemberState::Secondary {
        return Ok(());
    }
    let text = match state {
        MemberState::Recovering | MemberState::Startup2 | MemberState::Rollback => "node is recovering",
        MemberState::Primary if allowed != Secondary::Never => return Ok(()),
        MemberState::Primary => "node is in drain mode",
        _ => "node is not in primary or recovering state",
    };
    Err(Error::new(Code::NOT_PRIMARY_OR_SECONDARY, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(state: MemberState, allowed: Secondary, maintenance: bool, secondary_ok: bool, txn: bool) -> i32 {
        let asked = Asked { secondary_ok, in_transaction: txn, knows_hello: true };
        check_state(state, allowed, maintenance, asked).map_or_else(|error| error.code().0, |()| 0)
    }

    #[test]
    fn members_run_what_they_may() {
        use MemberState::{Arbiter, Primary, Recovering, Startup};
        for (state, allowed, maintenance, secondary_ok, txn, expected) in [
            (MemberState::Secondary, Secondary::Never, false, true, false, 10107),
            (MemberState::Secondary, Secondary::OptIn, false, false, false, 13435),
            (MemberState::Secondary, Secondary::OptIn, false, true, false, 0),
            (MemberState::Secondary, Secondary::OptIn, false, true, true, 10107),
            (MemberState::Secondary, Secondary::Always, true, false, false, 0),
            (Recovering, Secondary::OptIn, false, true, false, 13436),
            (Recovering, Secondary::OptIn, true, true, false, 0),
            (Recovering, Secondary::Always, false, false, false, 13436),
            (Startup, Secondary::OptIn, false, false, false, 13435),
            (Startup, Secondary::OptIn, false, true, false, 13436),
            (Arbiter, Secondary::OptIn, false, true, false, 13436),
            (Startup, Secondary::Always, true, false, false, 0),
            // Elected, and not yet through with what came before.
            (Primary, Secondary::Never, false, false, false, 10107),
            (Primary, Secondary::OptIn, false, true, false, 0),
        ] {
            assert_eq!(
                code(state, allowed, maintenance, secondary_ok, txn),
                expected,
                "{state:?} {allowed:?} maintenance {maintenance} ok {secondary_ok} txn {txn}"
            );
        }
    }

    #[test]
    fn old_clients_get_the_old_words() {
        let asked = Asked { secondary_ok: false, in_transaction: false, knows_hello: false };
        let text = |allowed| {
            check_state(MemberState::Secondary, allowed, false, asked).unwrap_err().message().to_owned()
        };
        assert_eq!(text(Secondary::Never), "not master");
        assert_eq!(text(Secondary::OptIn), "not master and slaveOk=false");
    }
}
