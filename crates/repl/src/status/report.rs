//! `replSetGetStatus` and `replSetGetConfig` as documents, fields in mongod's order and of mongod's types.
//!
//! The core knows wall-clock times of entries only as far as their cluster times tell them, which is whole
//! seconds.

use std::sync::Arc;

use sheaf_bson::{DocWriter, RawDoc, Sink, Timestamp, Value};
use sheaf_errors::Result;

use super::OpTimeAndTime;
use crate::config::{ConfigVersion, MemberConfig, ReplSetConfig};
use crate::member::{CandidateMetrics, Member, ParticipantMetrics, PeerStatus, Status};
use crate::types::{MemberState, Positions};

/// What `replSetGetStatus` shows and the core does not know.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusContext<'a> {
    /// Milliseconds since 1970.
    pub now_millis: i64,
    /// How long the process has been running.
    pub uptime_secs: u64,
    /// Cluster time of the last flush.
    pub last_stable_recovery: Option<u64>,
    /// `initialSyncStatus`, while the data is being copied.
    pub initial_sync: Option<RawDoc<'a>>,
}

impl Member {
    /// Appends the fields of `replSetGetStatus`.
    pub fn write_status<S: Sink>(
        &self,
        doc: &mut DocWriter<'_, S>,
        context: &StatusContext<'_>,
    ) -> Result<()> {
        let (config, me) = self.place()?;
        let report = Report { config, me, status: self.status(), context };
        report.write(doc);
        Ok(())
    }

    /// Appends `config` and, if asked for, `commitmentStatus`: the fields of `replSetGetConfig`. Who is no member any more shows the one that says so.
    pub fn write_config<S: Sink>(&self, doc: &mut DocWriter<'_, S>, commitment_status: bool) -> Result<()> {
        let config = self.known_config()?;
        let committed = if commitment_status { Some(self.commitment_status()?) } else { None };
        doc.append("config", &config.to_client_document());
        if let Some(committed) = committed {
            doc.append("commitmentStatus", committed);
        }
        Ok(())
    }
}

struct Report<'a> {
    config: &'a ReplSetConfig,
    me: u64,
    status: Status,
    context: &'a StatusContext<'a>,
}

impl Report<'_> {
    fn write<S: Sink>(&self, doc: &mut DocWriter<'_, S>) {
        let (config, status) = (self.config, &self.status);
        doc.append("set", config.set_name.as_str());
        doc.append("date", Value::DateTime(self.context.now_millis));
        doc.append("myState", status.state as i32);
        doc.append("term", status.term as i64);
        self.write_source(doc, self.my_source());
        if config.configsvr {
            doc.append("configsvr", true);
        }
        doc.append("heartbeatIntervalMillis", config.settings.heartbeat_interval_millis);
        doc.append("majorityVoteCount", config.majority_vote_count() as i32);
        doc.append("writeMajorityCount", config.write_majority_count() as i32);
        doc.append("votingMembersCount", config.voters().count() as i32);
        doc.append("writableVotingMembersCount", config.writable_voting_members_count() as i32);
        self.write_optimes(&mut doc.document("optimes"));
        if let Some(time) = self.context.last_stable_recovery {
            doc.append("lastStableRecoveryTimestamp", Timestamp(time));
        }
        if let Some(progress) = self.context.initial_sync {
            doc.append("initialSyncStatus", progress);
        }
        if let Some(candidate) = &status.candidate {
            self.write_candidate(&mut doc.document("electionCandidateMetrics"), candidate);
        }
        if let Some(participant) = &status.participant {
            self.write_participant(&mut doc.document("electionParticipantMetrics"), participant);
        }
        let mut members = doc.array("members");
        for member in &config.members {
            let mut doc = members.document();
            match status.peers.iter().find(|peer| peer.id == member.id) {
                Some(peer) => self.write_peer(&mut doc, member, peer),
                None => self.write_me(&mut doc, member),
            }
        }
    }

    fn write_optimes<S: Sink>(&self, doc: &mut DocWriter<'_, S>) {
        let commit = OpTimeAndTime { at: self.status.commit, time: self.status.commit_time };
        let [written, applied, durable] = three(&self.status.positions);
        commit.write(doc, "lastCommittedOpTime");
        doc.append("lastCommittedWallTime", Value::DateTime(commit.wall_millis()));
        commit.write(doc, "readConcernMajorityOpTime");
        applied.write(doc, "appliedOpTime");
        durable.write(doc, "durableOpTime");
        written.write(doc, "writtenOpTime");
        write_wall_times(doc, &self.status.positions);
    }

    fn write_candidate<S: Sink>(&self, doc: &mut DocWriter<'_, S>, candidate: &CandidateMetrics) {
        doc.append("lastElectionReason", candidate.reason.name());
        doc.append("lastElectionDate", self.date(candidate.at));
        doc.append("electionTerm", candidate.term as i64);
        candidate.committed.write(doc, "lastCommittedOpTimeAtElection");
        candidate.written.write(doc, "lastSeenWrittenOpTimeAtElection");
        candidate.applied.write(doc, "lastSeenOpTimeAtElection");
        doc.append("numVotesNeeded", candidate.votes_needed as i32);
        doc.append("priorityAtElection", candidate.priority);
        doc.append("electionTimeoutMillis", candidate.election_timeout as i64);
        if let Some(prior) = candidate.prior_primary {
            doc.append("priorPrimaryMemberId", prior as i32);
        }
        if self.config.members.len() > 1 {
            // Who wins has every committed entry, so there is nothing to catch up with.
            doc.append("numCatchUpOps", 0_i64);
        }
        doc.append("newTermStartDate", self.date(candidate.new_term_start));
        if let Some(at) = candidate.majority_available {
            doc.append("wMajorityWriteAvailabilityDate", self.date(at));
        }
    }

    fn write_participant<S: Sink>(&self, doc: &mut DocWriter<'_, S>, participant: &ParticipantMetrics) {
        doc.append("votedForCandidate", true);
        doc.append("electionTerm", participant.term as i64);
        doc.append("lastVoteDate", self.date(participant.at));
        doc.append("electionCandidateMemberId", participant.candidate as i32);
        doc.append("voteReason", "");
        participant.written.write(doc, "lastWrittenOpTimeAtElection");
        participant.written_in_set.write(doc, "maxWrittenOpTimeInSet");
        participant.applied.write(doc, "lastAppliedOpTimeAtElection");
        participant.applied_in_set.write(doc, "maxAppliedOpTimeInSet");
        doc.append("priorityAtElection", participant.priority);
        if let (Some(time), Some(applied)) = (participant.new_term_time, participant.new_term_applied) {
            doc.append("newTermStartDate", Value::DateTime(seconds(time) * 1000));
            doc.append("newTermAppliedDate", self.date(applied));
        }
    }

    fn write_me<S: Sink>(&self, doc: &mut DocWriter<'_, S>, member: &MemberConfig) {
        let status = &self.status;
        write_name(doc, member, 1.0, status.state);
        doc.append("uptime", self.context.uptime_secs as i32);
        if !member.arbiter_only {
            let [written, applied, _] = three(&status.positions);
            applied.write(doc, "optime");
            doc.append("optimeDate", Value::DateTime(applied.wall_millis()));
            written.write(doc, "optimeWritten");
            doc.append("optimeWrittenDate", Value::DateTime(written.wall_millis()));
            write_wall_times(doc, &status.positions);
        }
        self.write_source(doc, self.my_source());
        if status.maintenance > 0 {
            doc.append("maintenanceMode", status.maintenance as i32);
        }
        doc.append("infoMessage", "");
        self.write_election(doc, status.state);
        write_config_version(doc, Some(status.config));
        doc.append("self", true);
        doc.append("lastHeartbeatMessage", "");
    }

    fn write_peer<S: Sink>(&self, doc: &mut DocWriter<'_, S>, member: &MemberConfig, peer: &PeerStatus) {
        let health = if peer.up { 1.0 } else { 0.0 };
        write_name(doc, member, health, peer.state);
        doc.append("uptime", (peer.up_for / 1000) as i32);
        if !member.arbiter_only {
            // How far a member is that cannot be asked is not known any more.
            let [written, applied, durable] =
                three(&if peer.up { peer.positions } else { Positions::default() });
            applied.write(doc, "optime");
            durable.write(doc, "optimeDurable");
            written.write(doc, "optimeWritten");
            doc.append("optimeDate", Value::DateTime(applied.wall_millis()));
            doc.append("optimeDurableDate", Value::DateTime(durable.wall_millis()));
            doc.append("optimeWrittenDate", Value::DateTime(written.wall_millis()));
            write_wall_times(doc, &peer.positions);
        }
        let date = |at: Option<u64>| at.map_or(Value::DateTime(0), |at| self.date(at));
        doc.append("lastHeartbeat", date(peer.answered_at));
        doc.append("lastHeartbeatRecv", date(peer.ping_at));
        doc.append("pingMs", peer.round_trip.unwrap_or(0) as i64);
        doc.append("lastHeartbeatMessage", self.heartbeat_message(member, peer).as_str());
        self.write_source(doc, self.source_of(peer));
        doc.append("infoMessage", "");
        if peer.up {
            self.write_election(doc, peer.state);
        }
        write_config_version(doc, peer.config);
    }

    fn heartbeat_message(&self, member: &MemberConfig, peer: &PeerStatus) -> String {
        match (peer.state, peer.lost) {
            (MemberState::Down, true) => {
                let why = if peer.unproved { "Authentication failed." } else { "Connection refused" };
                format!("Error connecting to {} :: caused by :: {why}", member.host)
            }
            (MemberState::Down, false) => "Couldn't get a connection within the time limit".to_owned(),
            _ => String::new(),
        }
    }

    /// When the primary was elected.
    fn write_election<S: Sink>(&self, doc: &mut DocWriter<'_, S>, state: MemberState) {
        if state == MemberState::Primary
            && let Some(time) = self.status.election_time
        {
            doc.append("electionTime", Timestamp(time));
            doc.append("electionDate", Value::DateTime(seconds(time) * 1000));
        }
    }

    /// Entries always come from the primary.
    fn my_source(&self) -> Option<u64> {
        let feeds = matches!(
            self.status.state,
            MemberState::Secondary | MemberState::Startup2 | MemberState::Recovering | MemberState::Rollback
        );
        self.status.primary.filter(|primary| feeds && *primary != self.me)
    }

    fn source_of(&self, peer: &PeerStatus) -> Option<u64> {
        let feeds = matches!(
            peer.state,
            MemberState::Secondary | MemberState::Startup2 | MemberState::Recovering | MemberState::Rollback
        );
        peer.primary.filter(|primary| feeds && *primary != peer.id)
    }

    fn write_source<S: Sink>(&self, doc: &mut DocWriter<'_, S>, source: Option<u64>) {
        let member = source.and_then(|id| self.config.member(id));
        let host = member.map_or(Arc::from(""), |member| member.host.clone());
        doc.append("syncSourceHost", &*host);
        doc.append("syncSourceId", member.map_or(-1, |member| member.id as i32));
    }

    /// The wall clock at `at`, in the member's own milliseconds.
    fn date(&self, at: u64) -> Value<'static> {
        let ago = self.status.now.saturating_sub(at) as i64;
        Value::DateTime(self.context.now_millis - ago)
    }
}

fn seconds(time: u64) -> i64 {
    (time >> 32) as i64
}

/// Written, applied, durable.
fn three(positions: &Positions) -> [OpTimeAndTime; 3] {
    let at = [positions.written, positions.applied, positions.durable];
    std::array::from_fn(|which| OpTimeAndTime { at: at[which], time: positions.times[which] })
}

fn write_wall_times<S: Sink>(doc: &mut DocWriter<'_, S>, positions: &Positions) {
    let [written, applied, durable] = three(positions);
    doc.append("lastAppliedWallTime", Value::DateTime(applied.wall_millis()));
    doc.append("lastDurableWallTime", Value::DateTime(durable.wall_millis()));
    doc.append("lastWrittenWallTime", Value::DateTime(written.wall_millis()));
}

fn write_name<S: Sink>(doc: &mut DocWriter<'_, S>, member: &MemberConfig, health: f64, state: MemberState) {
    doc.append("_id", member.id as i32);
    doc.append("name", &*member.host);
    doc.append("health", health);
    doc.append("state", state as i32);
    doc.append("stateStr", state.name());
}

fn write_config_version<S: Sink>(doc: &mut DocWriter<'_, S>, version: Option<ConfigVersion>) {
    let version = version.unwrap_or(ConfigVersion { version: -1, term: -1 });
    doc.append("configVersion", version.version as i32);
    doc.append("configTerm", version.term as i32);
}
