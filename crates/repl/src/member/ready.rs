//! Between raft-rs and the driver: what raft-rs has ready goes out, what the driver has done goes in.

use std::collections::VecDeque;
use std::sync::Arc;

use raft::StateRole;
use raft::eraftpb::{Entry as RaftEntry, Message as RaftMessage, MessageType, Snapshot};
use sheaf_bson::ClusterTime;

use super::errors;
use super::ids::{member_id, raft_id};
use super::parts::{EntryTime, Fetch, Leading, Pending};
use super::{Body, Effect, Member, Persist};
use crate::config::ReplSetConfig;
use crate::effect::Rollback;
use crate::log_view::{from_raft, time_of};
use crate::types::{Entry, HardState, LogPosition};

/// Entries that were asked for and have not come are asked for again after this.
const ASK_AGAIN_MILLIS: u64 = 2000;

/// So many cluster times of entries that are not committed are known.
const TIMES_MAX: usize = 1 << 16;

impl Member {
    /// The log has refused what was to be written. It is tried again; if that goes on, another member is to lead.
    pub fn refused(&mut self) {
        self.refused_since.get_or_insert(self.now);
    }

    /// Term and vote of the units up to `seq` are durable, before their turn: the log refuses what comes before them. A vote may be
    /// told then. It was given by the log as it will be, which has more than what a crash would leave; of that nothing was promised.
    pub fn kept(&mut self, seq: u64) {
        self.check_reported(seq);
        let mut votes = Vec::new();
        for pending in self.pending.iter_mut().take_while(|pending| pending.seq <= seq) {
            let told = pending.messages.extract_if(.., |message| is_vote(message));
            votes.extend(told);
        }
        for vote in votes {
            self.send_raft(vote);
        }
    }

    /// Whether the log refuses what is to be written.
    pub fn is_refused(&self) -> bool {
        self.refused_since.is_some()
    }

    /// Everything up to `seq` is in the log.
    pub fn written(&mut self, seq: u64) {
        self.check_reported(seq);
        self.refused_since = None;
        if let Some((last, time)) = self.last_of(seq) {
            self.positions.written = last;
            self.positions.times[0] = time;
            let limit = self.cache_limit();
            self.view_mut().set_written(last.index, limit);
            self.reporting.note();
        }
    }

    /// Everything up to `seq` is applied.
    pub fn applied(&mut self, seq: u64) {
        self.check_reported(seq);
        self.applied_seq = self.applied_seq.max(seq);
        if let Some((last, time)) = self.last_of(seq) {
            self.positions.applied = last;
            self.positions.times[1] = time;
            self.reporting.note();
            self.end_filling();
            self.note_applied();
        }
        self.acknowledge();
    }

    /// Everything up to `seq` is durable.
    pub fn durable(&mut self, seq: u64) {
        self.check_reported(seq);
        self.durable_seq = self.durable_seq.max(seq);
        if let Some((last, time)) = self.last_of(seq) {
            self.positions.durable = last;
            self.positions.times[2] = time;
            self.reporting.note();
        }
        self.acknowledge();
    }

    /// The driver can only have done what it was told to do.
    fn check_reported(&self, seq: u64) {
        assert!(seq < self.next_seq, "unit {seq} is reported, and the next one made is {}", self.next_seq);
    }

    /// The driver has removed the log's entries up to and including `index`, which is not above the
    /// commit point.
    pub fn compacted(&mut self, index: u64) {
        assert!(index <= self.commit.index, "only committed entries may leave the log");
        self.view_mut().compact(index);
    }

    /// The answer to [`Effect::Fetch`]; empty if the entries are gone.
    pub fn fetched(&mut self, token: u64, entries: Vec<Entry>) {
        let Some(fetch) = self.fetches.remove(&token) else { return };
        let Some(raft) = &mut self.raft else { return };
        let Some(first) = entries.first() else { return };
        assert_eq!(first.at.index, fetch.low, "the driver reads what it was asked for");
        let gap = entries.windows(2).find(|pair| pair[0].at.index + 1 != pair[1].at.index);
        assert!(gap.is_none(), "the driver's log has a gap: {:?}", gap.map(|pair| [pair[0].at, pair[1].at]));
        raft.raft.raft_log.store.set_fetched(entries);
        for (_, context) in fetch.wanted {
            raft.on_entries_fetched(context);
        }
        raft.raft.raft_log.store.set_fetched(Vec::new());
    }

    /// The copy asked for by [`Effect::InitialSync`] is there, complete up to `at`. It is not yet in use:
    /// the [`Persist`] with `install` says when to take it.
    ///
    /// `time` is the cluster time of the entry at `at`.
    pub fn initial_sync_finished(&mut self, at: LogPosition, time: u64) {
        self.syncing = false;
        self.install_time = time;
        let Some(raft) = &mut self.raft else { return };
        if raft.raft.state != StateRole::Follower || at.index <= raft.raft.raft_log.committed {
            return;
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = at.index;
        metadata.term = at.term;
        metadata.set_conf_state(raft.raft.prs().conf().to_conf_state());
        if raft.raft.leader_id == 0 {
            // Nobody to answer; the next primary will find out how far this log is.
            raft.raft.restore(snapshot);
            return;
        }
        let mut message = RaftMessage::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        message.from = raft.raft.leader_id;
        message.term = raft.raft.term;
        message.set_snapshot(snapshot);
        // A copy that the log already covers, or that came too late, is refused, which is as good.
        errors::stepped(raft.raft.step(message));
    }

    /// The copy could not be made; the primary will offer another.
    pub fn initial_sync_failed(&mut self) {
        self.syncing = false;
    }

    /// Where the log ended with the newest unit not after `seq`, if that is still remembered.
    fn last_of(&self, seq: u64) -> Option<(LogPosition, u64)> {
        let unit = self.pending.iter().rev().find(|pending| pending.seq <= seq)?;
        Some((unit.last, unit.last_time))
    }

    /// Tells raft-rs, and those who wait for it, what is safe to be told.
    fn acknowledge(&mut self) {
        let journaled =
            self.config.as_ref().is_none_or(|config| config.write_concern_majority_journal_default);
        let mut messages = Vec::new();
        let mut configs = Vec::new();
        for pending in &mut self.pending {
            let durable = pending.seq <= self.durable_seq;
            let applied = pending.seq <= self.applied_seq;
            if durable && let Some(config) = pending.config.take() {
                configs.push(config);
            }
            let safe = durable || !(journaled || pending.vote);
            if !applied || !safe {
                break;
            }
            if !pending.acknowledged {
                pending.acknowledged = true;
                messages.append(&mut pending.messages);
                if let Some(number) = pending.ready {
                    let raft = self.raft.as_mut().expect("units of a parked member are not raft-rs's");
                    raft.on_persist_ready(number);
                }
            }
        }
        let done = self.durable_seq.min(self.applied_seq);
        while self.pending.front().is_some_and(|front| front.seq <= done && front.acknowledged) {
            self.pending.pop_front();
        }
        for message in messages {
            self.send_raft(message);
        }
        for (config, me) in configs {
            let (new, old) = (config.config_version(), self.config_version());
            if new.newer_than(old) || (new == old && self.me.is_none() && me.is_some()) {
                self.install_config(config, me);
            } else {
                self.config_installed();
            }
        }
        self.unpark_when_due();
    }

    /// Lets raft-rs go on until it has nothing more to say.
    pub(super) fn run_ready(&mut self) {
        loop {
            self.after_step();
            self.acknowledge_for_arbiters();
            self.ask_barrier();
            if !self.raft.as_ref().is_some_and(|raft| raft.has_ready()) {
                break;
            }
            self.handle_ready();
        }
        self.fetch_wanted();
        self.advance_commit();
    }

    fn handle_ready(&mut self) {
        let raft = self.raft.as_mut().expect("raft-rs has something ready");
        let mut ready = raft.ready();
        let leader = raft.raft.state == StateRole::Leader;
        let read_states = ready.take_read_states();
        let mut hold = ready.take_persisted_messages();
        let mut now = ready.take_messages();
        let mut persist = Persist { seq: self.next_seq, ..Persist::default() };
        let mut vote = false;
        if let Some(hs) = ready.hs() {
            let known = &mut raft.raft.raft_log.store.hard_state;
            vote = hs.term != known.term || hs.vote != known.vote;
            *known = hs.clone();
            // What is committed behind the durable part of the log is learned again. Kept now, it would name entries of
            // the end that is being taken back, if the machine stopped before the log is cut for good.
            let commit = hs.commit.min(self.positions.durable.index);
            persist.hard_state = Some(HardState { term: hs.term, vote: member_id(hs.vote), commit });
        }
        if !ready.snapshot().is_empty() {
            let metadata = ready.snapshot().get_metadata();
            let at = LogPosition::new(metadata.term, metadata.index);
            let commit = self.commit;
            assert!(at.index > commit.index, "a copy as of {at:?} replaces {commit:?}, which is committed");
            raft.raft.raft_log.store.reset(at, self.install_time);
            self.times =
                VecDeque::from([EntryTime { index: at.index, time: self.install_time, since: self.now }]);
            self.cluster_time = self.cluster_time.max(self.install_time);
            persist.install = Some(at);
        }
        self.note_read_states(&read_states);
        self.take_entries(ready.take_entries(), &mut persist);
        let (number, must_sync) = (ready.number(), ready.must_sync() || vote || persist.install.is_some());
        let raft = self.raft.as_mut().expect("what was ready is raft-rs's");
        raft.advance_append_async(ready);
        let unkept = self.pending.iter().any(|pending| pending.keeps_term());
        if leader && (vote || unkept) {
            // A single voter leads at once. Nothing of a term must be seen before the term is kept, however long the disk
            // takes: forgotten, the term could come twice, with two different entries in one place.
            hold.append(&mut now);
        }
        let (at_once, hold): (Vec<_>, Vec<_>) =
            hold.into_iter().partition(|message| !vote && is_harmless(message));
        // First what can be on its way while the disk works.
        for message in now.into_iter().chain(at_once) {
            self.send_raft(message);
        }
        if must_sync {
            self.persist_ready(number, persist, hold, vote);
        } else {
            self.hold_messages(number, hold);
        }
    }

    /// Entries to append, perhaps in place of the end of the log.
    fn take_entries(&mut self, entries: Vec<RaftEntry>, persist: &mut Persist) {
        let Some(first) = entries.first() else { return };
        let raft = self.raft.as_mut().expect("entries are raft-rs's");
        let (keep, commit) = (first.index - 1, self.commit);
        assert!(keep >= commit.index, "entry {} would replace {commit:?}, which is committed", first.index);
        let log = &mut raft.raft.raft_log.store;
        if keep < log.last().index {
            let keep = LogPosition::new(log.term_at(keep).expect("a log is cut within it"), keep);
            persist.rollback = Some(Rollback { keep, last: log.last() });
            // What is cut off is not durable any more, nor will it be when earlier units are.
            let cut = |at: &mut LogPosition| *at = if at.index > keep.index { keep } else { *at };
            cut(&mut self.positions.written);
            cut(&mut self.positions.durable);
            self.pending.iter_mut().for_each(|pending| cut(&mut pending.last));
        }
        let mut term = log.term_at(keep);
        log.append(&entries);
        for entry in &entries {
            if term.replace(entry.term).is_some_and(|before| before != entry.term) {
                self.elections.term_begin = Some((LogPosition::new(entry.term, entry.index), time_of(entry)));
            }
        }
        while self.times.back().is_some_and(|entry| entry.index > keep) {
            self.times.pop_back();
        }
        let since = self.now;
        let time = |entry: &RaftEntry| EntryTime { index: entry.index, time: time_of(entry), since };
        self.times.extend(entries.iter().map(time));
        if self.times.len() > TIMES_MAX {
            // The commit point may stand still for hours. The oldest stays, and so does the newest.
            let newest = self.times.len();
            let mut at = 0;
            self.times.retain(|_| {
                at += 1;
                at % 2 == 1 || at == newest
            });
        }
        self.cluster_time = self.cluster_time.max(entries.iter().map(time_of).max().unwrap_or(0));
        persist.entries = entries.iter().map(from_raft).collect();
    }

    fn persist_ready(&mut self, number: u64, persist: Persist, hold: Vec<RaftMessage>, vote: bool) {
        let pending = Pending {
            seq: persist.seq,
            ready: Some(number),
            messages: hold,
            last: self.view().last(),
            last_time: self.view().bounds().last_time,
            vote,
            config: None,
            rollback: persist.rollback.is_some(),
            install: persist.install.is_some(),
            acknowledged: false,
            since: self.now,
        };
        self.persist(pending, persist);
    }

    /// There is nothing to write, but what is said may rest on what is still being written.
    fn hold_messages(&mut self, number: u64, hold: Vec<RaftMessage>) {
        if let Some(last) = self.pending.back_mut().filter(|last| !last.acknowledged) {
            last.messages.extend(hold);
            last.ready = Some(number);
            return;
        }
        self.raft.as_mut().expect("what was ready is raft-rs's").on_persist_ready(number);
        for message in hold {
            self.send_raft(message);
        }
    }

    fn fetch_wanted(&mut self) {
        let bytes_max = self.options.message_bytes_max;
        for wanted in self.view_mut().take_wanted() {
            // Each entry that is proposed and each acknowledgement makes raft-rs ask once more for each member that is behind.
            let reads = format!("{:?}", wanted.context);
            let asked =
                |fetch: &&mut Fetch| fetch.low == wanted.low && self.now < fetch.asked_at + ASK_AGAIN_MILLIS;
            if let Some(fetch) = self.fetches.values_mut().find(asked) {
                if !fetch.wanted.iter().any(|(known, _)| *known == reads) {
                    fetch.wanted.push((reads, wanted.context));
                }
                continue;
            }
            let token = self.next_token;
            self.next_token += 1;
            let fetch = Fetch { low: wanted.low, asked_at: self.now, wanted: vec![(reads, wanted.context)] };
            self.fetches.insert(token, fetch);
            self.out.push(Effect::Fetch { token, low: wanted.low, high: wanted.high, bytes_max });
        }
        // An answer that never comes must not be kept for ever; the heartbeats ask anew.
        while self.fetches.len() > 1024 {
            self.fetches.pop_first();
        }
    }

    /// The commit point is what the set has committed, as far as it is applied here.
    fn advance_commit(&mut self) {
        let Some(raft) = &mut self.raft else { return };
        let log = &raft.raft.raft_log;
        let (committed, persisted, passed) = (log.committed, log.persisted, log.applied);
        let through = committed.min(persisted);
        if through > passed {
            raft.advance_apply_to(through);
        }
        let applied = self.positions.applied;
        let view = &raft.raft.raft_log.store;
        let index = committed.min(applied.index);
        if index > self.commit.index
            && view.has(applied)
            && let Some(term) = view.term_at(index)
        {
            assert!(term >= self.commit.term, "entry {index} of term {term} follows {:?}", self.commit);
            self.commit = LogPosition::new(term, index);
            while let Some(entry) = self.times.front().copied().filter(|entry| entry.index <= index) {
                self.times.pop_front();
                self.commit_time = entry.time;
            }
            self.view_mut().snapshot_at = LogPosition::new(term, index);
            self.out.push(Effect::CommitPoint(self.commit));
            self.note_available();
        }
    }

    /// After raft-rs has seen an input: did this member win or lose an election by it?
    pub(super) fn after_step(&mut self) {
        let Some(raft) = &mut self.raft else { return };
        let term = raft.raft.term;
        let leads = raft.raft.state == StateRole::Leader;
        match &self.leading {
            Some(leading) if !leads || leading.term != term => self.lost_lead(),
            Some(_) => return,
            None => {}
        }
        if leads {
            self.won_lead();
        }
    }

    pub(super) fn lost_lead(&mut self) {
        self.note_lost_lead();
        self.leading = None;
        self.elections.candidate = None;
        self.resolve_not_primary();
    }

    fn won_lead(&mut self) {
        let raft = self.raft.as_mut().expect("raft-rs has won an election");
        let begin = raft.raft.raft_log.last_index();
        // raft-rs has appended the entry that begins the term; it gets its cluster time here, in the log
        // and in the messages that carry it already.
        let seen = self.cluster_time.max(self.ceiling).max(self.wall_secs << 32);
        self.cluster_time = ClusterTime::from_bits(seen).successor().bits();
        let time = self.cluster_time;
        let stamp = |entry: &mut RaftEntry| {
            if entry.index == begin {
                entry.context = time.to_le_bytes().to_vec().into();
            }
        };
        raft.raft.raft_log.unstable.entries.iter_mut().for_each(stamp);
        for message in &mut raft.raft.msgs {
            message.entries.iter_mut().for_each(stamp);
        }
        let term = raft.raft.term;
        let takeover_at = if self.is_primary() { self.now + self.election_timeout() } else { self.now };
        self.forget_windows();
        self.leading =
            Some(Leading { term, begin, since: self.now, takeover_at, hand_over_until: 0, offered: false });
        self.note_won();
        self.commit_at_install = self.commit_at_install.max(self.commit.index);
        for peer in self.peers.values_mut() {
            peer.in_log = Default::default();
        }
        self.park_arbiters();
        self.stamp_config_term();
    }

    pub(super) fn send_raft(&mut self, mut message: RaftMessage) {
        let to = member_id(message.to).expect("raft-rs says who a message is for");
        let arbiter = self
            .config
            .as_ref()
            .and_then(|config| config.member(to))
            .is_some_and(|member| member.arbiter_only);
        if arbiter {
            match message.get_msg_type() {
                // An arbiter holds nothing.
                MessageType::MsgAppend | MessageType::MsgSnapshot => return,
                MessageType::MsgHeartbeat => message.commit = 0,
                _ => {}
            }
        }
        if message.get_msg_type() == MessageType::MsgSnapshot {
            // Who is in the set is known from the configuration.
            message.mut_snapshot().mut_metadata().clear_conf_state();
        }
        if message.get_msg_type() == MessageType::MsgAppend {
            self.say_what_is_wanted(&mut message);
        }
        self.note_feeding(&message);
        self.send_to(to, Body::Raft(Box::new(message)));
    }

    /// Where fewer voters hold data than make a majority, an entry is committed when all of those have
    /// it. raft-rs counts a majority of votes, so it is told that the arbiters have what all the others
    /// have. (Whoever wins an election is one of those others, so it has every such entry.) A majority must
    /// have the configuration first: with the one before, arbiters could still elect a member that holds
    /// data but no longer votes.
    fn acknowledge_for_arbiters(&mut self) {
        let is_plain =
            |config: &Arc<ReplSetConfig>| config.write_majority_count() == config.majority_vote_count();
        let Some(config) = self.config.as_ref().filter(|config| !is_plain(config)).cloned() else { return };
        if !self.is_leader() || self.commit_is_held() || !self.config_committed() {
            return;
        }
        let Some(raft) = &mut self.raft else { return };
        let matched = |id: u64| raft.raft.prs().get(raft_id(id)).map_or(0, |progress| progress.matched);
        let least = config.voters().filter(|member| member.bears_data()).map(|m| matched(m.id)).min();
        let least = least.unwrap_or(0);
        let mut changed = false;
        for arbiter in config.voters().filter(|member| member.arbiter_only) {
            if let Some(progress) = raft.raft.mut_prs().get_mut(raft_id(arbiter.id)) {
                changed |= progress.maybe_update(least);
            }
        }
        if changed && raft.raft.maybe_commit() {
            raft.raft.bcast_append();
        }
    }

    /// Keeps raft-rs from sending entries to arbiters: it never feeds a member that copies its data.
    pub(super) fn park_arbiters(&mut self) {
        let Some(config) = self.config.clone() else { return };
        let Some(raft) = &mut self.raft else { return };
        for arbiter in config.members.iter().filter(|member| member.arbiter_only) {
            if let Some(progress) = raft.raft.mut_prs().get_mut(raft_id(arbiter.id)) {
                progress.become_snapshot(u64::MAX);
            }
        }
    }

    /// Planted bug for the simulator's own test: takes an entry of an earlier term for committed because
    /// a majority has it.
    #[doc(hidden)]
    pub fn commit_old_terms_by_count(&mut self) {
        let Some(raft) = &mut self.raft else { return };
        if raft.raft.state == StateRole::Leader {
            let index = raft.raft.mut_prs().maximal_committed_index().0;
            if index > raft.raft.raft_log.committed {
                raft.raft.raft_log.committed = index;
                raft.raft.bcast_append();
            }
        }
    }
}

/// A vote, or word that none is given: it rests on the term and the vote that are kept, and on nothing else that is to be written.
fn is_vote(message: &RaftMessage) -> bool {
    message.get_msg_type() == MessageType::MsgRequestVoteResponse
}

/// Messages that promise nothing, so that they need not wait for the disk: a slow disk must not look like a
/// dead member.
fn is_harmless(message: &RaftMessage) -> bool {
    match message.get_msg_type() {
        MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => true,
        MessageType::MsgAppendResponse | MessageType::MsgRequestVoteResponse => message.reject,
        _ => false,
    }
}
