//! Waits for write concerns.

use std::collections::BTreeMap;

use sheaf_errors::Result;

use super::{Effect, Member, WaiterId, not_primary};
use crate::types::OpTime;
use crate::write_concern::{Outcome, WriteConcern, check_satisfiable, reached};

/// The waits, by what they wait for and then by position, so that progress touches only those it ends.
#[derive(Default)]
pub(super) struct Waiting {
    by_concern: BTreeMap<WriteConcern, BTreeMap<(u64, WaiterId), ()>>,
    next: u64,
}

impl Member {
    /// Waits until everything up to `at` fulfils `concern`: [`Effect::Resolved`] tells the end. There is no
    /// time-out; [`Member::cancel_wait`] gives up.
    pub fn wait(&mut self, at: OpTime, concern: WriteConcern) -> Result<WaiterId> {
        let Some(config) = &self.config else { return Err(not_primary()) };
        check_satisfiable(config, &concern)?;
        let has = self.raft.as_ref().is_some_and(|raft| raft.raft.raft_log.match_term(at.index, at.term));
        if self.leading.is_none() || !has {
            return Err(not_primary());
        }
        self.waiting.next += 1;
        let waiter = WaiterId(self.waiting.next);
        self.waiting.by_concern.entry(concern).or_default().insert((at.index, waiter), ());
        Ok(waiter)
    }

    /// Forgets a wait.
    pub fn cancel_wait(&mut self, waiter: WaiterId) {
        for waiters in self.waiting.by_concern.values_mut() {
            waiters.retain(|(_, id), ()| *id != waiter);
        }
        self.waiting.by_concern.retain(|_, waiters| !waiters.is_empty());
    }

    /// Ends the waits that are over.
    pub(super) fn resolve_waiters(&mut self) {
        if self.waiting.by_concern.is_empty() {
            return;
        }
        let Some(config) = self.config.clone() else { return };
        let mut waiting = std::mem::take(&mut self.waiting.by_concern);
        for (concern, waiters) in &mut waiting {
            let of = |id: u64| self.positions_of(id);
            let reached = reached(&config, concern, &self.positions, self.commit.index, &of);
            let rest = waiters.split_off(&(reached + 1, WaiterId(0)));
            for (_, waiter) in std::mem::replace(waiters, rest).into_keys() {
                self.out.push(Effect::Resolved { waiter, outcome: Outcome::Satisfied });
            }
        }
        waiting.retain(|_, waiters| !waiters.is_empty());
        self.waiting.by_concern = waiting;
    }

    /// Nobody's wait can be answered by a member that is no longer primary.
    pub(super) fn resolve_not_primary(&mut self) {
        for waiters in std::mem::take(&mut self.waiting.by_concern).into_values() {
            for (_, waiter) in waiters.into_keys() {
                self.out.push(Effect::Resolved { waiter, outcome: Outcome::NotPrimary });
            }
        }
    }

    /// After a reconfiguration: waits that can no longer be met end.
    pub(super) fn resolve_unsatisfiable(&mut self) {
        let Some(config) = self.config.clone() else { return };
        let mut waiting = std::mem::take(&mut self.waiting.by_concern);
        waiting.retain(|concern, waiters| {
            let fine = check_satisfiable(&config, concern).is_ok();
            if !fine {
                for (_, waiter) in std::mem::take(waiters).into_keys() {
                    self.out.push(Effect::Resolved { waiter, outcome: Outcome::Unsatisfiable });
                }
            }
            fine
        });
        self.waiting.by_concern = waiting;
    }
}
