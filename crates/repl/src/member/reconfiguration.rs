//! Making configurations: initiate, reconfigure, the term of a new primary, members that may vote now.
//!
//! Configurations are not entries of the log. A member keeps the newest that it has heard of, compared by
//! (term, version). What makes this safe: a primary changes one voter at a time, and only when a majority
//! has its configuration already and what the set had committed before is committed in it too; and nobody
//! votes for a candidate whose configuration is older than its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_errors::{Code, Error, Result};

use super::errors::{not_primary, not_yet_initialized};
use super::ids::raft_id;
use super::parts::{Pending, Phase, Reconfig};
use super::{Body, Effect, Member, Persist};
use crate::config::{ConfigVersion, ReplSetConfig, reconfig};
use crate::types::MemberState;

impl Member {
    /// `replSetInitiate`: this member, `me` of `config`, begins the set.
    pub fn initiate(&mut self, config: ReplSetConfig, me: u64) -> Result<()> {
        if self.config.is_some() || self.reconfig.is_some() {
            return Err(Error::new(Code::ALREADY_INITIALIZED, "already initialized"));
        }
        reconfig::validate_for_initiate(&config, &self.options.set_name, me)?;
        reconfig::check_arbiters(&config, self.options.allow_multiple_arbiters)?;
        let config = Arc::new(ReplSetConfig { version: 1, term: 0, ..config });
        self.reconfig =
            Some(Reconfig { config: config.clone(), force: true, asked: true, phase: Phase::Persisting });
        self.persist_config(config, Some(me));
        // What it has is what the set has.
        self.filling = None;
        Ok(())
    }

    /// `replSetReconfig`. [`Effect::Reconfigured`] tells when `new` is installed here; that a majority has
    /// it is [`Member::config_committed`]. `me` is which member of `new` this is, where the driver knows
    /// better than that it stays the same: a member that was removed can force itself in again.
    pub fn reconfig(&mut self, new: ReplSetConfig, force: bool, me: Option<u64>) -> Result<()> {
        let Some(old) = self.config.clone() else {
            return Err(not_yet_initialized());
        };
        if self.reconfig.is_some() {
            return Err(Error::new(
                Code::CONFIGURATION_IN_PROGRESS,
                "Cannot run replSetReconfig because the node is currently updating its configuration",
            ));
        }
        // A member that cannot say which one it is finds nobody with this `_id` either.
        let me = me.or(self.me).unwrap_or(u64::MAX);
        let config = Arc::new(self.successor_config(&old, new, me, force)?);
        let mut reconfig = Reconfig { config: config.clone(), force, asked: true, phase: Phase::Persisting };
        if force {
            self.believes_far = true;
            self.reconfig = Some(reconfig);
            self.persist_config(config, Some(me));
            return Ok(());
        }
        let timeout = config.settings.heartbeat_timeout_secs.max(1) as u64 * 1000;
        reconfig.phase = Phase::QuorumCheck { answered: BTreeSet::from([me]), deadline: self.now + timeout };
        self.reconfig = Some(reconfig);
        for member in config.members.iter().filter(|member| member.id != me) {
            let heartbeat = self.heartbeat(self.precise);
            self.send(&member.host, member.id, me, Body::Ping(heartbeat));
        }
        self.tick_reconfig();
        Ok(())
    }

    /// What becomes of a client's configuration, if it may follow `old`.
    fn successor_config(
        &mut self,
        old: &ReplSetConfig,
        mut new: ReplSetConfig,
        me: u64,
        force: bool,
    ) -> Result<ReplSetConfig> {
        if force {
            let jump = 10_000 + self.rng.below(90_000) as i64;
            new.version = old.version.max(new.version).saturating_add(jump);
            new.term = -1;
        } else {
            if !self.is_writable() {
                return Err(rejected(
                    Code::NOT_WRITABLE_PRIMARY,
                    format!(
                        "replSetReconfig should only be run on a writable PRIMARY. Current state {};",
                        self.state().name()
                    ),
                ));
            }
            self.check_config_settled()?;
            new.term = self.term() as i64;
        }
        new.settings.replica_set_id = old.settings.replica_set_id.or(new.settings.replica_set_id);
        if new.members.iter().any(|member| member.newly_added) {
            return Err(Error::new(
                Code::INVALID_REPLICA_SET_CONFIG,
                "Cannot provide newlyAdded field to member config during reconfig.",
            ));
        }
        reconfig::validate_for_reconfig(old, &new, me, force)?;
        reconfig::check_arbiters(&new, self.options.allow_multiple_arbiters)?;
        if !force {
            reconfig::mark_newly_added(old, &mut new);
            self.check_new_voters(old, &new)?;
        }
        Ok(new)
    }

    /// A reconfiguration needs the one before it to be done with.
    fn check_config_settled(&self) -> Result<()> {
        let ours = self.config_version();
        let ours = format!("{{version: {}, term: {}}}", ours.version, ours.term);
        let text = if !self.config_committed() {
            format!(
                "Cannot run replSetReconfig because the current config: {ours} is not majority committed."
            )
        } else if !self.log_committed_in_config() {
            format!(
                "Cannot run replSetReconfig because the current config: {ours} does not have its oplog committed."
            )
        } else {
            return Ok(());
        };
        Err(rejected(CURRENT_CONFIG_NOT_COMMITTED_YET, text))
    }

    /// Whether a majority of the voters has the installed configuration.
    pub fn config_committed(&self) -> bool {
        let Some(config) = &self.config else { return false };
        let ours = config.config_version();
        if self.is_leader() && ours.term != -1 && ours.term != self.term() as i64 {
            return false;
        }
        let has = |id: u64| {
            Some(id) == self.me || self.peers.get(&id).is_some_and(|peer| peer.config == Some(ours))
        };
        config.voters().filter(|member| has(member.id)).count() >= config.majority_vote_count()
    }

    /// Whether a majority of the voters was seen to have this configuration or a later one. Unlike
    /// [`Member::config_committed`] it stays so when the lead is lost.
    pub fn config_was_committed(&mut self, version: ConfigVersion) -> bool {
        if self.config_committed() {
            self.committed_config = self.config_version();
        }
        !version.newer_than(self.committed_config)
    }

    /// Whether everything committed when the configuration was installed, and the beginning of this term,
    /// is on enough of its members.
    fn log_committed_in_config(&self) -> bool {
        let (Some(config), Some(leading)) = (&self.config, &self.leading) else { return false };
        let target = self.commit_at_install.max(leading.begin);
        let has = |id: u64| self.matched(id) >= target;
        let count = config.voters().filter(|member| member.bears_data() && has(member.id)).count();
        self.commit.index >= leading.begin && count >= config.write_majority_count()
    }

    /// `replSetGetConfig`'s `commitmentStatus`: whether another reconfiguration may follow. Only a primary
    /// knows.
    pub fn commitment_status(&self) -> Result<bool> {
        if !self.is_writable() {
            return Err(Error::new(
                Code::NOT_WRITABLE_PRIMARY,
                "commitmentStatus is only supported on primary.",
            ));
        }
        Ok(self.check_config_settled().is_ok())
    }

    /// How much of the log a member has acknowledged to this primary.
    fn matched(&self, id: u64) -> u64 {
        let Some(raft) = &self.raft else { return 0 };
        raft.raft.prs().get(raft_id(id)).map_or(0, |progress| progress.matched)
    }

    /// Where few hold data, an entry can be committed without a majority of votes. A new voter could then
    /// win with the arbiters' votes, so it must have everything before it votes.
    fn check_new_voters(&self, old: &ReplSetConfig, new: &ReplSetConfig) -> Result<()> {
        if old.write_majority_count() == old.majority_vote_count() {
            return Ok(());
        }
        let committed = self.raft.as_ref().map_or(0, |raft| raft.raft.raft_log.committed);
        let is_new = |id: u64| !old.member(id).is_some_and(|member| member.is_voter());
        let behind = new
            .voters()
            .find(|member| member.bears_data() && is_new(member.id) && self.matched(member.id) < committed);
        match behind {
            None => Ok(()),
            Some(member) => Err(Error::new(
                CURRENT_CONFIG_NOT_COMMITTED_YET,
                format!(
                    "Cannot run replSetReconfig because {} has not caught up with the primary",
                    member.host
                ),
            )),
        }
    }

    /// While a change of who votes is being written, the commit point must not move by the old rule alone.
    pub(super) fn commit_is_held(&self) -> bool {
        self.reconfig.as_ref().is_some_and(|reconfig| matches!(reconfig.phase, Phase::Persisting))
    }

    pub(super) fn note_quorum_check(&mut self, from: u64) {
        if let Some(Reconfig { config, phase: Phase::QuorumCheck { answered, .. }, .. }) = &mut self.reconfig
            && config.member(from).is_some()
        {
            answered.insert(from);
            self.tick_reconfig();
        }
    }

    pub(super) fn tick_reconfig(&mut self) {
        let Some(reconfig) = &self.reconfig else {
            self.promote_newly_added();
            return;
        };
        if !reconfig.force && !self.is_leader() {
            self.end_reconfig(Err(not_primary()));
            return;
        }
        let Phase::QuorumCheck { answered, deadline } = &reconfig.phase else { return };
        let config = reconfig.config.clone();
        let voters: Vec<_> = config.members.iter().filter(|member| member.votes > 0).collect();
        let answering = voters.iter().filter(|member| answered.contains(&member.id)).count();
        if answering > voters.len() / 2 {
            if let Some(old) = self.config.clone()
                && let Err(error) =
                    self.check_config_settled().and_then(|()| self.check_new_voters(&old, &config))
            {
                self.end_reconfig(Err(error));
                return;
            }
            let reconfig = self.reconfig.as_mut().expect("it was under way above");
            reconfig.phase = Phase::Persisting;
            self.persist_config(config, self.me);
        } else if self.now >= *deadline {
            let error = quorum_check_failed(&config, answered);
            self.end_reconfig(Err(error));
        }
    }

    fn end_reconfig(&mut self, result: Result<()>) {
        let reconfig = self.reconfig.take().expect("a reconfiguration that ends was under way");
        if reconfig.asked {
            let result = result.map(|()| reconfig.config.config_version());
            self.out.push(Effect::Reconfigured(result));
        }
    }

    /// A member that was added with a vote gets it once it has the data.
    fn promote_newly_added(&mut self) {
        let Some(config) = self.config.clone() else { return };
        if !self.is_writable() || config.members.iter().all(|member| !member.newly_added) {
            return;
        }
        let ready = |id: u64| {
            let Some(peer) = self.peers.get(&id) else { return false };
            let shows_data = peer.state == MemberState::Secondary || peer.state == MemberState::Arbiter;
            let behind = self.commit.index.saturating_sub(self.matched(id));
            self.is_up(peer) && shows_data && (peer.state == MemberState::Arbiter || behind < 100)
        };
        let Some(at) = config.members.iter().position(|member| member.newly_added && ready(member.id)) else {
            return;
        };
        let mut new = ReplSetConfig::clone(&config);
        new.members[at].newly_added = false;
        new.version += 1;
        new.term = self.term() as i64;
        if self.check_config_settled().and_then(|()| self.check_new_voters(&config, &new)).is_ok() {
            let new = Arc::new(new);
            let phase = Phase::Persisting;
            self.reconfig = Some(Reconfig { config: new.clone(), force: false, asked: false, phase });
            self.persist_config(new, self.me);
        }
    }

    /// A new primary puts its term into the configuration, so that it replaces all earlier ones.
    pub(super) fn stamp_config_term(&mut self) {
        let config = self.config.clone().expect("a primary has a configuration");
        let term = self.term() as i64;
        // A forced configuration has no term and goes by its version alone.
        if config.term != -1 && config.term < term {
            self.persist_config(Arc::new(ReplSetConfig { term, ..ReplSetConfig::clone(&config) }), self.me);
        }
    }

    /// Another member has sent its configuration, calling this member `called`.
    pub(super) fn receive_config(&mut self, config: Arc<ReplSetConfig>, called: u64) {
        let theirs = config.config_version();
        let coming = self.pending.iter().filter_map(|pending| pending.config.as_ref());
        let newest = coming.map(|(config, _)| config.config_version()).next_back();
        let known = newest.unwrap_or(self.config_version());
        let ours = self.config_version();
        // A member that was removed and added again under another `_id` may have heard of both at once,
        // under its old name.
        let found = self.me.is_none() && theirs == ours && known == ours && config.member(called).is_some();
        if found || (theirs.newer_than(known) && theirs.newer_than(ours)) {
            // The same `_id`, or the same host under another `_id` (removed and added again meanwhile), or,
            // for a member that never was in a set, what the sender calls it.
            let same = self.me.filter(|me| config.member(*me).is_some());
            let host = self.my_config().map(|me| me.host.clone());
            let moved = host.as_ref().and_then(|host| config.member_at(host)).map(|member| member.id);
            let named = Some(called).filter(|called| host.is_none() && config.member(*called).is_some());
            self.persist_config(config, same.or(moved).or(named));
        }
    }

    fn persist_config(&mut self, config: Arc<ReplSetConfig>, me: Option<u64>) {
        let persist =
            Persist { seq: self.next_seq, config: Some((config.clone(), me)), ..Persist::default() };
        let pending = Pending {
            seq: self.next_seq,
            ready: None,
            messages: Vec::new(),
            last: self.view().last(),
            last_time: self.view().bounds().last_time,
            vote: true,
            config: Some((config, me)),
            rollback: false,
            install: false,
            acknowledged: false,
            since: self.now,
        };
        self.persist(pending, persist);
    }

    /// After a configuration has been installed.
    pub(super) fn config_installed(&mut self) {
        let ours = self.config_version();
        let Some(reconfig) = &self.reconfig else { return };
        let persisting = matches!(reconfig.phase, Phase::Persisting);
        if persisting && reconfig.config.config_version() == ours {
            // The first member of a set does not wait for others to elect it.
            let first = ours.term == 0;
            self.end_reconfig(Ok(()));
            if first {
                self.first_election = true;
                self.election_deadline = self.now;
            }
        } else if persisting || !reconfig.force {
            self.end_reconfig(Err(Error::new(
                Code::CONFIGURATION_IN_PROGRESS,
                "a newer configuration was received meanwhile",
            )));
        }
        self.resolve_unsatisfiable();
    }
}

/// `CurrentConfigNotCommittedYet`.
const CURRENT_CONFIG_NOT_COMMITTED_YET: Code = Code(308);

/// What mongod says before the reasons that are its own and not the document's.
fn rejected(code: Code, text: String) -> Error {
    Error::new(code, text).context("New config is rejected")
}

fn quorum_check_failed(config: &ReplSetConfig, answered: &BTreeSet<u64>) -> Error {
    let voters = config.members.iter().filter(|member| member.votes > 0);
    let (up, down): (Vec<_>, Vec<_>) = voters.partition(|member| answered.contains(&member.id));
    let names = |members: &[&crate::config::MemberConfig], tail: &str| {
        members.iter().map(|member| format!("{}{tail}", member.host)).collect::<Vec<_>>().join(", ")
    };
    let required = (up.len() + down.len()) / 2 + 1;
    let text = format!(
        "Quorum check failed because not enough voting nodes responded; required {required} but only the following \
         {} voting nodes responded: {}; the following nodes did not respond affirmatively: {}",
        up.len(),
        names(&up, ""),
        names(&down, " failed with Request timed out"),
    );
    Error::new(Code::NODE_NOT_FOUND, text)
}
