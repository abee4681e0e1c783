//! A member of a replica set as a state machine: inputs change it, [`Member::poll`] gives what to do.
//!
//! No input does anything but change memory; the driver calls [`Member::poll`] after one or several inputs
//! and performs the [`Effect`]s in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Entry as RaftEntry, Message as RaftMessage, MessageType};
use raft::{RawNode, StateRole};
use sheaf_errors::Result;

use crate::config::{ConfigVersion, MemberConfig, ReplSetConfig};
use crate::effect::{Effect, MemberRole, Persist, WaiterId};
use crate::log_view::LogView;
use crate::message::{Body, Envelope, Heartbeat, Report};
use crate::rng::Rng;
use crate::types::{HardState, LogBounds, LogPosition, Positions};

mod elections;
mod errors;
mod hints;
mod ids;
mod invariants;
mod membership;
mod metrics;
mod parts;
mod peers;
mod plausible;
mod reading;
mod ready;
mod reconfiguration;
mod reporting;
mod silence;
mod status;
mod stepping_down;
#[cfg(test)]
mod tests;
mod waiting;
mod windows;

pub use parts::{Attempts, CandidateMetrics, ElectionCounts, ElectionReason, ParticipantMetrics};
pub use status::{Behind, PeerStatus, Status};

use errors::not_primary;
use invariants::Before;
use parts::{
    Barriers, Elections, EntryTime, Fetch, Hints, Leading, Listening, Peer, Pending, Reconfig, Reporting,
    StepDown, Waiting, Window,
};

/// How a member is set up. Everything that may change while it runs is in the configuration.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// `--replSet`: configurations of another set are refused.
    pub set_name: String,
    /// Seed of the election time-outs.
    pub seed: u64,
    /// Must be higher at every start of this member.
    pub incarnation: u64,
    /// How many bytes of entries are kept in memory to be sent; those not yet written come on top.
    pub cache_bytes: usize,
    /// About how many bytes of entries go into one message.
    pub message_bytes_max: u64,
    /// How many such messages may be on the way to one member.
    pub messages_in_flight_max: usize,
    /// `--setParameter allowMultipleArbiters=true`.
    pub allow_multiple_arbiters: bool,
    /// Where a primary that falls silent is taken for gone before the election time-out.
    pub notices_silence: NoticesSilence,
    /// Whether each poll ends with [`Member::check_invariants`]. On in debug builds and in this crate's tests; the simulator
    /// turns it on.
    pub check_invariants: bool,
}

impl MemberOptions {
    /// Keeps and sends ahead no more than fits a machine with so many bytes of memory: the entries kept have a 32nd of
    /// it, those on the way to one member a 64th. From 4 GB on the defaults remain.
    #[must_use]
    pub fn within(mut self, memory: u64) -> Self {
        let part = |share: u64| usize::try_from(memory / share).unwrap_or(usize::MAX);
        self.cache_bytes = self.cache_bytes.min(part(32)).max(1 << 20);
        let messages = part(64) / (self.message_bytes_max as usize).max(1);
        self.messages_in_flight_max = self.messages_in_flight_max.min(messages).max(4);
        self
    }

    /// Options for this set name, otherwise defaults.
    pub fn new(set_name: impl Into<String>) -> Self {
        MemberOptions {
            set_name: set_name.into(),
            seed: 0,
            incarnation: 1,
            cache_bytes: 64 << 20,
            message_bytes_max: 1 << 20,
            messages_in_flight_max: 64,
            allow_multiple_arbiters: false,
            notices_silence: NoticesSilence::default(),
            check_invariants: cfg!(any(test, debug_assertions)),
        }
    }
}

/// Where a primary that falls silent is taken for gone before the election time-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoticesSilence {
    /// Where nobody has set `electionTimeoutMillis`.
    #[default]
    Unset,
    /// Everywhere: for the simulator, whose time-outs are short.
    Always,
    /// Nowhere: for those who look at something else.
    Never,
}

/// What a member finds on its disk when it starts. All of it is durable, and the log is applied.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Term, vote, commit point.
    pub hard_state: HardState,
    /// The log.
    pub log: LogBounds,
    /// Index and cluster time of the entries from the commit point on, in order. Some may be missing.
    pub times: Vec<(u64, u64)>,
    /// The configuration, if it was ever in a set, and which of its members this is (`_id`).
    pub config: Option<(ReplSetConfig, Option<u64>)>,
}

/// One member's core. See the module's page.
pub struct Member {
    options: MemberOptions,
    rng: Rng,
    /// Milliseconds of this member's own time; stands still while the process does.
    now: u64,
    clock: Option<u64>,
    /// The driver's clock as far as it is known, to measure round trips only.
    precise: u64,
    wall_secs: u64,
    tick_rest: u64,

    config: Option<Arc<ReplSetConfig>>,
    me: Option<u64>,
    raft: Option<RawNode<LogView>>,
    /// Log and hard state while there is no raft node: before the first configuration, or when removed.
    parked: Option<(LogView, HardState)>,
    /// A raft node is to be made as soon as all of the log is durable, which it takes for granted.
    unpark_due: bool,

    pending: VecDeque<Pending>,
    next_seq: u64,
    applied_seq: u64,
    durable_seq: u64,
    positions: Positions,
    commit: LogPosition,
    commit_time: u64,
    /// The entries after the commit point; some of them where these are many.
    times: VecDeque<EntryTime>,
    install_time: u64,
    /// Highest cluster time seen: the no-op of a new term is put after it.
    cluster_time: u64,
    /// What this member stamps as primary is above this, too.
    ceiling: u64,

    peers: BTreeMap<u64, Peer>,
    election_deadline: u64,
    /// This member has begun the set and nobody was elected yet.
    first_election: bool,
    /// Campaigns since a primary was heard of.
    attempts: u32,
    /// Those of them since which no member has come that was away.
    in_vain: u32,
    /// How often this member has let another stand first since a primary was heard of.
    yielded: u32,
    frozen_until: u64,
    maintenance: u32,
    syncing: bool,
    /// This member began with nothing and has not come to where its set was.
    filling: Option<Filling>,
    /// Since when the log takes nothing, and says so.
    refused_since: Option<u64>,
    /// Whether the disk soon has no room: see [`Member::short_of_room`].
    short_of_room: bool,
    /// Whether it has little: see [`Member::little_room`].
    little_room: bool,
    leading: Option<Leading>,
    elections: Elections,
    hints: Hints,
    listening: Listening,
    step_down: Option<StepDown>,
    reconfig: Option<Reconfig>,
    /// An operator has forced a configuration here: what is far from what this member knows may be true.
    believes_far: bool,
    /// The newest configuration that this member has seen a majority to have.
    committed_config: ConfigVersion,
    /// Commit point when the installed configuration was installed.
    commit_at_install: u64,
    waiting: Waiting,
    barriers: Barriers,
    fetches: BTreeMap<u64, Fetch>,
    /// What is on its way to the others.
    windows: BTreeMap<u64, Window>,
    /// Less is kept and sent ahead than otherwise.
    sparing: bool,
    next_token: u64,
    role: MemberRole,
    config_changed: bool,
    reporting: Reporting,
    /// What the last poll left, where invariants are checked.
    before: Option<Box<Before>>,
    out: Vec<Effect>,
}

/// How far a member that began with nothing has to come before it may be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Filling {
    /// It has heard of no primary yet.
    Unknown,
    /// To what had been committed when a primary sent it the first entries.
    To(u64),
}

impl Member {
    /// A member with what it found on its disk.
    pub fn new(options: MemberOptions, recovered: Recovered) -> Self {
        let mut log = LogView::new(recovered.log);
        let last = log.last();
        let mut hard_state = recovered.hard_state;
        // The log may have been synced where the hard state was not: a single voter writes both at once.
        if last.term > hard_state.term {
            hard_state = HardState { term: last.term, vote: None, ..hard_state };
        }
        hard_state.commit = hard_state.commit.clamp(log.bounds().start.index, last.index);
        let term = log.term_at(hard_state.commit);
        let commit = LogPosition::new(term.expect("each entry of the log has a term"), hard_state.commit);
        log.snapshot_at = commit;
        let cluster_time = log.bounds().last_time;
        let term_begin = log.bounds().runs.last().and_then(|run| {
            let time = recovered.times.iter().find(|(of, _)| *of == run.first)?.1;
            Some((LogPosition::new(run.term, run.first), time))
        });
        let mut member = Member {
            rng: Rng::new(options.seed),
            options,
            now: 0,
            clock: None,
            precise: 0,
            wall_secs: 0,
            tick_rest: 0,
            config: None,
            me: None,
            raft: None,
            parked: Some((log, hard_state)),
            unpark_due: false,
            pending: VecDeque::new(),
            next_seq: 1,
            applied_seq: 0,
            durable_seq: 0,
            positions: Positions { written: last, applied: last, durable: last, times: [cluster_time; 3] },
            commit,
            commit_time: recovered
                .times
                .iter()
                .rfind(|(of, _)| *of <= commit.index)
                .map_or(0, |(_, time)| *time),
            times: recovered
                .times
                .into_iter()
                .filter(|(of, _)| *of > commit.index)
                .map(|(index, time)| EntryTime { index, time, since: 0 })
                .collect(),
            install_time: 0,
            cluster_time,
            ceiling: 0,
            peers: BTreeMap::new(),
            election_deadline: 0,
            first_election: false,
            attempts: 0,
            in_vain: 0,
            yielded: 0,
            frozen_until: 0,
            maintenance: 0,
            syncing: false,
            filling: (last.index == 0).then_some(Filling::Unknown),
            refused_since: None,
            short_of_room: false,
            little_room: false,
            leading: None,
            hints: Hints::default(),
            listening: Listening::default(),
            elections: Elections { term_begin, ..Elections::default() },
            step_down: None,
            reconfig: None,
            believes_far: false,
            committed_config: ConfigVersion::NONE,
            commit_at_install: commit.index,
            waiting: Waiting::default(),
            barriers: Barriers::default(),
            fetches: BTreeMap::new(),
            windows: BTreeMap::new(),
            sparing: false,
            next_token: 1,
            role: MemberRole::default(),
            config_changed: false,
            reporting: Reporting::default(),
            before: None,
            out: Vec::new(),
        };
        if let Some((config, me)) = recovered.config {
            member.install_config(Arc::new(config), me);
        }
        member
    }

    /// Time has passed: `clock` are milliseconds of a clock that never goes back, `wall_secs` are seconds
    /// since 1970. Call it at least every [`Member::tick_millis`].
    pub fn tick(&mut self, clock: u64, wall_secs: u64) {
        let passed = clock.saturating_sub(self.clock.unwrap_or(clock));
        self.clock = Some(clock.max(self.clock.unwrap_or(0)));
        self.wall_secs = wall_secs;
        self.observe_clock(clock);
        // After a pause or a jump nobody could be heard of, so most of the gap does not count.
        let tick = self.raft_tick_millis();
        let passed = passed.min(4 * tick);
        self.now += passed;
        self.tick_rest += passed;
        while self.tick_rest >= tick {
            self.tick_rest -= tick;
            self.tick_raft();
        }
        self.listen(passed);
        self.reporting.tick();
        self.send_pings();
        self.tick_hand_over();
        self.tick_elections();
        self.tick_step_down();
        self.tick_reconfig();
    }

    /// The clock of [`Member::tick`], read when a message came: makes the round trips that
    /// `replSetGetStatus` shows exact. Nothing else depends on it.
    pub fn observe_clock(&mut self, clock: u64) {
        self.precise = self.precise.max(clock);
    }

    /// A message has come from `host`.
    pub fn step(&mut self, host: &Arc<str>, envelope: Envelope) {
        if self.note_sender(host, &envelope) {
            match envelope.body {
                Body::Raft(message) => self.step_raft(envelope.from, host, envelope.config, *message),
                Body::Progress(report) => self.note_report(envelope.from, envelope.incarnation, report),
                Body::Ping(heartbeat) => self.answer_ping(host, envelope.from, envelope.to, heartbeat),
                Body::Pong(heartbeat) => self.note_pong(envelope.from, heartbeat),
                Body::Config(config) => self.receive_config(config, envelope.to),
            }
        }
    }

    /// Appends a commit group. Its position is final unless this member loses the lead.
    pub fn propose(&mut self, time: u64, payload: Bytes) -> Result<LogPosition> {
        if !self.is_writable() {
            return Err(not_primary());
        }
        assert!(time > self.cluster_time, "cluster time {time} after {}", self.cluster_time);
        let raft = self.raft.as_mut().expect("a primary has a raft node");
        let entry = RaftEntry {
            data: payload,
            context: Bytes::copy_from_slice(&time.to_le_bytes()),
            ..RaftEntry::default()
        };
        let mut message = RaftMessage::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = raft.raft.id;
        message.mut_entries().push(entry);
        let before = raft.raft.raft_log.last_index();
        errors::taken(raft.raft.step(message))?;
        let at = LogPosition::new(raft.raft.term, raft.raft.raft_log.last_index());
        assert_eq!(at.index, before + 1, "a proposal is the next entry");
        self.cluster_time = time;
        Ok(at)
    }

    /// A cluster time was seen in a message; later ones are above it. A wall clock is none: what one that is wrong for a
    /// moment says must not become the set's time. Only what a primary writes takes the time of day.
    pub fn observe_time(&mut self, time: u64) {
        self.cluster_time = self.cluster_time.max(time);
    }

    /// The log says that everything below a time may have been shown: a primary stamps above it. Who follows keeps it for the day when it
    /// leads, and tells nobody: such times are ahead of the day, and readers who were told of them would drive them on.
    pub fn observe_ceiling(&mut self, time: u64) {
        self.ceiling = self.ceiling.max(time);
        if self.leading.is_some() {
            self.observe_time(time);
        }
    }

    /// The highest cluster time seen.
    pub fn cluster_time(&self) -> u64 {
        self.cluster_time
    }

    /// Does what the inputs made necessary, and tells what the driver has to do.
    pub fn poll(&mut self) -> Vec<Effect> {
        self.run_ready();
        self.refresh_role();
        self.send_report();
        self.resolve_waiters();
        self.resolve_barriers();
        if self.options.check_invariants {
            self.check_invariants();
            self.check_step();
        }
        std::mem::take(&mut self.out)
    }

    /// Whether writes are taken here.
    pub fn is_writable(&self) -> bool {
        let applied = self.positions.applied.index;
        self.step_down.is_none()
            && self.is_primary()
            && !self.is_handing_over()
            && self.leading.as_ref().is_some_and(|leading| applied >= leading.begin)
    }

    /// The member's `_id` in its configuration.
    pub fn id(&self) -> Option<u64> {
        self.me
    }

    /// The configuration installed.
    pub fn config(&self) -> Option<&Arc<ReplSetConfig>> {
        self.config.as_ref()
    }

    /// The addresses under which this member knows the one of this `_id`: that of its configuration, and that of the one
    /// that it is about to install.
    pub fn addresses_of(&self, id: u64) -> impl Iterator<Item = Arc<str>> + use<> {
        let coming = self.reconfig.as_ref().map(|reconfig| &reconfig.config);
        let of = |config: Option<&Arc<ReplSetConfig>>| config?.member(id).map(|member| member.host.clone());
        let (now, soon) = (of(self.config.as_ref()), of(coming));
        let other = soon.filter(|soon| now.as_ref() != Some(soon));
        now.into_iter().chain(other)
    }

    /// Whether a configuration that holds or comes has a member at this address.
    pub fn is_address(&self, host: &str) -> bool {
        let coming = self.reconfig.as_ref().map(|reconfig| &reconfig.config);
        let mut configs = self.config.iter().chain(coming);
        configs.any(|config| config.members.iter().any(|member| *member.host == *host))
    }

    /// What this member is.
    pub fn role(&self) -> MemberRole {
        self.role
    }

    /// How far this member is.
    pub fn positions(&self) -> Positions {
        self.positions
    }

    /// The commit point, as far as it is applied here.
    pub fn commit_point(&self) -> LogPosition {
        self.commit
    }

    /// The cluster time of the commit point.
    pub fn commit_time(&self) -> u64 {
        self.commit_time
    }

    /// The log as the core knows it.
    pub fn log(&self) -> &LogBounds {
        self.view().bounds()
    }

    /// The member's term.
    pub fn term(&self) -> u64 {
        match (&self.raft, &self.parked) {
            (Some(raft), _) => raft.raft.term,
            (None, Some((_, hard_state))) => hard_state.term,
            (None, None) => 0,
        }
    }

    fn view(&self) -> &LogView {
        match (&self.raft, &self.parked) {
            (Some(raft), _) => &raft.raft.raft_log.store,
            (None, Some((log, _))) => log,
            (None, None) => unreachable!("the log is with the raft node or parked"),
        }
    }

    fn view_mut(&mut self) -> &mut LogView {
        match (&mut self.raft, &mut self.parked) {
            (Some(raft), _) => &mut raft.raft.raft_log.store,
            (None, Some((log, _))) => log,
            (None, None) => unreachable!("the log is with the raft node or parked"),
        }
    }

    fn is_leader(&self) -> bool {
        self.raft.as_ref().is_some_and(|raft| raft.raft.state == StateRole::Leader)
    }

    /// Whether this member leads as primary, not just as a stand-in.
    fn is_primary(&self) -> bool {
        self.is_leader() && self.my_config().is_some_and(|me| me.priority > 0.0)
    }

    fn my_config(&self) -> Option<&MemberConfig> {
        self.config.as_ref()?.member(self.me?)
    }

    fn config_version(&self) -> ConfigVersion {
        self.config.as_ref().map_or(ConfigVersion::NONE, |config| config.config_version())
    }

    fn election_timeout(&self) -> u64 {
        self.config.as_ref().map_or(10_000, |config| config.settings.election_timeout_millis.max(1) as u64)
    }

    fn report(&self) -> Report {
        Report { term: self.term(), positions: self.positions }
    }

    fn send(&mut self, host: &Arc<str>, to: u64, from: u64, body: Body) {
        let envelope =
            Envelope { from, to, config: self.config_version(), incarnation: self.options.incarnation, body };
        self.out.push(Effect::Send { host: host.clone(), envelope });
    }

    fn send_to(&mut self, to: u64, body: Body) {
        let Some(me) = self.me.filter(|me| *me != to) else { return };
        let Some(host) = self.config.as_ref().and_then(|config| config.member(to)).map(|m| m.host.clone())
        else {
            return;
        };
        self.send(&host, to, me, body);
    }

    fn heartbeat(&self, sent_at: u64) -> Heartbeat {
        Heartbeat {
            set_name: Arc::from(self.options.set_name.as_str()),
            report: self.report(),
            state: self.state(),
            primary: self.primary(),
            electable: self.can_lead(),
            syncing: self.syncing || self.pending.iter().any(|pending| pending.install),
            short_of_room: self.short_of_room,
            little_room: self.little_room,
            commit: self.commit.index,
            sent_at,
        }
    }

    fn persist(&mut self, pending: Pending, persist: Persist) {
        assert_eq!((pending.seq, persist.seq), (self.next_seq, self.next_seq), "a unit has the next number");
        self.next_seq += 1;
        self.pending.push_back(pending);
        self.out.push(Effect::Persist(persist));
    }
}
