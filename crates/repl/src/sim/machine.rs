//! One simulated machine with its process.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::effect::Persist;
use crate::member::{Member, MemberOptions, Recovered};
use crate::types::LogPosition;

use super::disk::Disk;
use super::model::Model;
use super::plan::Plan;

/// A machine.
pub(super) struct Machine {
    pub host: Arc<str>,
    pub disk: Disk,
    /// The process, if it runs.
    pub member: Option<Member>,
    /// Counts the starts; events of earlier ones are void.
    pub incarnation: u64,
    /// Whether its core was told something while its effects were performed.
    pub told: bool,
    pub model: Model,
    /// Units that are to be written; the first is being written.
    pub to_write: VecDeque<Persist>,
    /// Units that are to be applied; the first is being applied.
    pub to_apply: VecDeque<Persist>,
    pub written_seq: u64,
    pub syncing: bool,
    pub paused_until: u64,
    pub disk_full_until: u64,
    pub clock_ahead: u64,
    /// Seconds by which its wall clock is wrong.
    pub wall_wrong: i64,
    /// The next unit with entries cannot be applied.
    pub apply_fails: bool,
    /// After so many more effects the process panics.
    pub panics_after: Option<u64>,
    /// The process ends when it has kept the state of a unit that cuts the log.
    pub ends_half_kept: bool,
    /// The member has refused a configuration because it did not know the sender.
    pub knows_nobody: bool,
    /// The commit point that the process has told.
    pub commit: LogPosition,
    /// What the process said its core had committed when it last became primary.
    pub committed_at_election: Option<(u64, u64)>,
    pub primary: bool,
}

impl Machine {
    pub fn new(host: &str) -> Self {
        Machine {
            host: Arc::from(host),
            disk: Disk::default(),
            member: None,
            incarnation: 0,
            told: false,
            model: Model::default(),
            to_write: VecDeque::new(),
            to_apply: VecDeque::new(),
            written_seq: 0,
            syncing: false,
            paused_until: 0,
            disk_full_until: 0,
            clock_ahead: 0,
            wall_wrong: 0,
            apply_fails: false,
            panics_after: None,
            ends_half_kept: false,
            knows_nobody: false,
            commit: LogPosition::default(),
            committed_at_election: None,
            primary: false,
        }
    }

    /// Starts the process on what the disk has.
    pub fn start(&mut self, seed: u64, plan: &Plan) {
        self.incarnation += 1;
        let image = &self.disk.image;
        let last = image.last();
        self.model = self.disk.model_at(last.index);
        let last_time = self.model.time;
        let config = image.config.as_ref().map(|(config, me)| ((**config).clone(), *me));
        let mut hard_state = image.hard_state;
        hard_state.commit = hard_state.commit.min(last.index).max(self.disk.flushed.at.index);
        let times = image.entries.iter().filter(|entry| entry.at.index >= hard_state.commit);
        let times = times.map(|entry| (entry.at.index, entry.time)).collect();
        let options = MemberOptions {
            seed: seed ^ (self.incarnation << 40),
            incarnation: self.incarnation,
            cache_bytes: plan.cache_bytes,
            message_bytes_max: 2000,
            messages_in_flight_max: 8,
            allow_multiple_arbiters: true,
            notices_silence: plan.notices_silence,
            check_invariants: plan.check_invariants,
            ..MemberOptions::new("rs")
        };
        let member =
            Member::new(options, Recovered { hard_state, log: image.bounds(last_time), times, config });
        self.commit = member.commit_point();
        self.member = Some(member);
        self.committed_at_election = None;
    }

    /// The process is gone.
    pub fn stop(&mut self) {
        self.member = None;
        self.to_write.clear();
        self.to_apply.clear();
        self.written_seq = 0;
        self.syncing = false;
        self.paused_until = 0;
        self.primary = false;
        self.apply_fails = false;
        self.panics_after = None;
        self.ends_half_kept = false;
    }
}
