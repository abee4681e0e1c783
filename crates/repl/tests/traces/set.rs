//! A set whose network and disks do what the script says, and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use sheaf_repl::config::{MemberConfig, ReplSetConfig};
use sheaf_repl::{
    Body, Effect, Entry, Envelope, HardState, Member, MemberOptions, NoticesSilence, Persist, Recovered,
};

use super::words;

/// A member and its disk.
struct Node {
    member: Member,
    /// Units that the disk has not begun.
    units: VecDeque<Persist>,
    /// The last unit that is written, and applied.
    written: u64,
    applied: u64,
    log: BTreeMap<u64, Entry>,
    kept: HardState,
}

/// The set of a script.
#[derive(Default)]
pub struct Set {
    nodes: Vec<Node>,
    /// What is on its way, by sender and receiver.
    messages: BTreeMap<(usize, usize), VecDeque<Envelope>>,
    /// Nothing that is sent to or from these arrives.
    cut: BTreeSet<usize>,
    now: u64,
    quiet: bool,
    out: String,
}

fn host(number: usize) -> String {
    format!("m{number}")
}

fn number(word: &str) -> usize {
    word.trim_start_matches('m').parse().unwrap_or_else(|_| panic!("{word} is no member"))
}

fn millis(word: &str) -> u64 {
    word.trim_end_matches("ms").parse().unwrap_or_else(|_| panic!("{word} is no time"))
}

impl Set {
    /// What has come since this was last asked.
    pub fn take_output(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// One command.
    ///
    /// ```text
    /// set 3 [arbiter 2] [priority 1 2.5]    members 0 to 2; the first is told to begin the set, and becomes its primary
    /// propose 0 [3]                         the member appends an entry (three), and does what follows from it
    /// wait 0 (1,4) majority                 a client waits for a write concern: majority, 2, or 2j
    /// disk 1 [written|applied|durable]      the disk does all that it was asked to do; or only this stage of it
    /// deliver 0 1 [2]                       what member 0 has sent to 1 arrives (of it, the first two messages)
    /// drop 0 1                              it gets lost
    /// tick 1 500ms                          time passes for one member
    /// run 2000ms                            time passes for all, with disks and a network that are done at once; only roles and answers are told
    /// cut 0, heal                           nothing reaches the member or leaves it; all is well again
    /// add 3                                 one more member, which has no configuration
    /// reconfig 0 add 3 | remove 2 | priority 1 2
    /// stepdown 0 catch-up 5000ms [force]    replSetStepDown
    /// lost 1 0                              member 1 sees the connection to 0 break
    /// forge 1 0 MsgHeartbeat 3 17           member 0 hears what 1 has not said: this message of term 3, with index or commit 17
    /// compact 0 4                           entries up to this have left the log
    /// copy 1 0                              the copy that member 1 asked for is there: what 0 has committed
    /// state [1]                             what the member is, and how far
    /// ```
    pub fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["set", count, ref rest @ ..] => self.begin(number(count), rest),
            ["propose", member] => self.propose(number(member), 1),
            ["propose", member, count] => self.propose(number(member), number(count)),
            ["wait", member, at, concern] => self.wait(number(member), at, concern),
            ["disk", member] => self.disk(number(member), &["written", "applied", "durable"]),
            ["disk", member, stage] => self.disk(number(member), &[stage]),
            ["deliver", from, to] => self.deliver(number(from), number(to), usize::MAX),
            ["deliver", from, to, count] => self.deliver(number(from), number(to), number(count)),
            ["drop", from, to] => self.drop_messages(number(from), number(to)),
            ["tick", member, time] => self.tick(number(member), millis(time)),
            ["run", time] => self.run(millis(time)),
            ["cut", member] => drop(self.cut.insert(number(member))),
            ["heal"] => self.cut.clear(),
            ["add", member] => self.add(number(member)),
            ["reconfig", member, ref change @ ..] => self.reconfig(number(member), change),
            ["stepdown", member, "catch-up", time, ref force @ ..] => {
                let force = force == ["force"];
                self.ask(number(member), |member| member.step_down(millis(time), 60_000, force));
            }
            ["lost", member, peer] => {
                self.nodes[number(member)].member.connection_lost(number(peer) as u64);
                self.poll(number(member));
            }
            ["forge", from, to, kind, term, index] => {
                self.forge((number(from), number(to)), kind, term.parse().unwrap(), index.parse().unwrap());
            }
            ["compact", member, index] => self.compact(number(member), index.parse().unwrap()),
            ["copy", to, from] => self.copy(number(to), number(from)),
            ["state"] => (0..self.nodes.len()).for_each(|member| self.state(member)),
            ["state", member] => self.state(number(member)),
            _ => panic!("no command: {line}"),
        }
    }

    fn say(&mut self, text: &str) {
        if !self.quiet {
            let _ = writeln!(self.out, "{text}");
        }
    }

    fn begin(&mut self, count: usize, rest: &[&str]) {
        let mut config = ReplSetConfig::new(
            "rs",
            (0..count).map(|n| MemberConfig::new(n as u64, host(n).as_str())).collect(),
        );
        let mut rest = rest.iter();
        while let Some(what) = rest.next() {
            let member = &mut config.members[number(rest.next().unwrap())];
            match *what {
                "arbiter" => (member.arbiter_only, member.priority) = (true, 0.0),
                "priority" => member.priority = rest.next().unwrap().parse().unwrap(),
                _ => panic!("a set has no {what}"),
            }
        }
        (0..count).for_each(|member| self.add(member));
        self.quiet = true;
        self.nodes[0].member.initiate(config, 0).unwrap();
        self.run(3000);
        self.quiet = false;
        self.out.clear();
        for member in 0..count {
            let role = words::role(&self.nodes[member].member.role());
            self.say(&format!("{member} {role}"));
        }
    }

    fn add(&mut self, member: usize) {
        assert_eq!(member, self.nodes.len(), "members are added in order");
        let options = MemberOptions {
            seed: member as u64,
            allow_multiple_arbiters: true,
            check_invariants: true,
            notices_silence: NoticesSilence::Never,
            ..MemberOptions::new("rs")
        };
        let member = Member::new(options, Recovered::default());
        let (units, log, kept) = (VecDeque::new(), BTreeMap::new(), HardState::default());
        self.nodes.push(Node { member, units, written: 0, applied: 0, log, kept });
    }

    /// Performs the member's effects, and tells them.
    fn poll(&mut self, from: usize) {
        loop {
            let effects = self.nodes[from].member.poll();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                let always = matches!(
                    effect,
                    Effect::Role(_)
                        | Effect::SteppedDown(_)
                        | Effect::Reconfigured(_)
                        | Effect::InitialSync { .. }
                        | Effect::Resolved { .. }
                );
                if let Some(text) = words::effect(&effect, &|host| number(host).to_string())
                    && (always || !self.quiet)
                {
                    let _ = writeln!(self.out, "{from} {text}");
                }
                match effect {
                    Effect::Send { host, envelope } => {
                        let to = number(&host);
                        if !self.cut.contains(&from) && !self.cut.contains(&to) && to < self.nodes.len() {
                            self.messages.entry((from, to)).or_default().push_back(envelope);
                        }
                    }
                    Effect::Persist(unit) => self.nodes[from].units.push_back(unit),
                    Effect::Fetch { token, low, high, .. } => {
                        let node = &mut self.nodes[from];
                        let entries = node.log.range(low..high).map(|(_, entry)| entry.clone()).collect();
                        node.member.fetched(token, entries);
                    }
                    _ => {}
                }
            }
        }
    }

    fn propose(&mut self, member: usize, count: usize) {
        for _ in 0..count {
            let core = &mut self.nodes[member].member;
            let time = core.cluster_time() + 1;
            if let Err(error) = core.propose(time, Bytes::from_static(b"x")) {
                self.say(&format!("{member} refuses a write: {}", error.message()));
            }
        }
        self.poll(member);
    }

    fn wait(&mut self, member: usize, at: &str, concern: &str) {
        match self.nodes[member].member.wait(words::parse_at(at), words::parse_concern(concern)) {
            Ok(waiter) => self.say(&format!("{member} begins wait {}", waiter.0)),
            Err(error) => self.say(&format!("{member} refuses a wait: {}", error.message())),
        }
        self.poll(member);
    }

    fn ask(&mut self, member: usize, work: impl FnOnce(&mut Member) -> Result<(), sheaf_errors::Error>) {
        if let Err(error) = work(&mut self.nodes[member].member) {
            self.say(&format!("{member} refuses: {}", error.message()));
        }
        self.poll(member);
    }

    fn disk(&mut self, member: usize, stages: &[&str]) {
        let node = &mut self.nodes[member];
        for stage in stages {
            match *stage {
                "written" => node.write(),
                "applied" => {
                    node.applied = node.written;
                    node.member.applied(node.applied);
                }
                "durable" => node.member.durable(node.written),
                _ => panic!("a disk has no stage {stage}"),
            }
        }
        self.poll(member);
    }

    fn deliver(&mut self, from: usize, to: usize, count: usize) {
        for _ in 0..count {
            let Some(envelope) = self.messages.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
                return;
            };
            if let Some(text) = words::message(&envelope) {
                self.say(&format!("{to} hears from {from}: {text}"));
            }
            self.nodes[to].member.step(&Arc::from(host(from)), envelope);
            self.poll(to);
        }
    }

    fn forge(&mut self, (from, to): (usize, usize), kind: &str, term: u64, index: u64) {
        let core = &self.nodes[to].member;
        let mut message = Message { from: from as u64 + 1, to: to as u64 + 1, term, ..Message::default() };
        match kind {
            "MsgAppendResponse" => message.index = index,
            "MsgHeartbeat" => message.commit = index,
            "MsgRequestVote" => (message.log_term, message.index) = (term, index),
            _ => panic!("no message to be forged: {kind}"),
        }
        let kinds = [MessageType::MsgAppendResponse, MessageType::MsgHeartbeat, MessageType::MsgRequestVote];
        message.set_msg_type(kinds.into_iter().find(|of| format!("{of:?}") == kind).unwrap());
        let envelope = Envelope {
            from: from as u64,
            to: to as u64,
            config: core.status().config,
            incarnation: 1,
            body: Body::Raft(Box::new(message)),
        };
        self.messages.entry((from, to)).or_default().push_front(envelope);
        self.deliver(from, to, 1);
    }

    fn drop_messages(&mut self, from: usize, to: usize) {
        for envelope in self.messages.remove(&(from, to)).unwrap_or_default() {
            if let Some(text) = words::message(&envelope) {
                self.say(&format!("lost from {from} to {to}: {text}"));
            }
        }
    }

    fn tick(&mut self, member: usize, time: u64) {
        for _ in 0..time.div_ceil(50) {
            self.now += 50;
            self.nodes[member].member.tick(self.now, 1_000_000 + self.now / 1000);
            self.poll(member);
        }
    }

    fn run(&mut self, time: u64) {
        let before = std::mem::replace(&mut self.quiet, true);
        for _ in 0..time.div_ceil(50) {
            self.now += 50;
            for member in 0..self.nodes.len() {
                self.nodes[member].member.tick(self.now, 1_000_000 + self.now / 1000);
                self.poll(member);
            }
            self.settle();
        }
        self.quiet = before;
    }

    fn settle(&mut self) {
        loop {
            let ways: Vec<(usize, usize)> = self.messages.keys().copied().collect();
            ways.iter().for_each(|(from, to)| self.deliver(*from, *to, usize::MAX));
            let busy: Vec<usize> =
                (0..self.nodes.len()).filter(|member| !self.nodes[*member].units.is_empty()).collect();
            busy.iter().for_each(|member| self.disk(*member, &["written", "applied", "durable"]));
            self.messages.retain(|_, messages| !messages.is_empty());
            if busy.is_empty() && self.messages.is_empty() {
                return;
            }
        }
    }

    fn reconfig(&mut self, member: usize, change: &[&str]) {
        let mut config = (**self.nodes[member].member.config().unwrap()).clone();
        config.version += 1;
        match change {
            ["add", new] => {
                config.members.push(MemberConfig::new(number(new) as u64, host(number(new)).as_str()));
            }
            ["remove", old] => config.members.retain(|member| member.id != number(old) as u64),
            ["priority", of, priority] => config.members[number(of)].priority = priority.parse().unwrap(),
            _ => panic!("no change: {change:?}"),
        }
        self.ask(member, |core| core.reconfig(config, false, None));
    }

    fn compact(&mut self, member: usize, index: u64) {
        let node = &mut self.nodes[member];
        node.member.compacted(index);
        node.log.retain(|at, _| *at > index);
        self.poll(member);
    }

    fn copy(&mut self, to: usize, from: usize) {
        let (at, time) = (self.nodes[from].member.commit_point(), self.nodes[from].member.commit_time());
        self.nodes[to].member.initial_sync_finished(at, time);
        self.poll(to);
    }

    fn state(&mut self, member: usize) {
        let node = &self.nodes[member];
        let (status, bounds) = (node.member.status(), node.member.log());
        let primary = status.primary.map_or("no primary".to_owned(), |id| format!("primary {id}"));
        let at = status.positions;
        let places = [("written", at.written), ("applied", at.applied), ("durable", at.durable)];
        let places = places.map(|(name, at)| format!("{name} {}", words::at(at))).join(" ");
        let vote = node.kept.vote.map_or("none".to_owned(), |vote| vote.to_string());
        let text = format!(
            "{member} is {}, {primary}, configuration {}\n  log after {} to {}, commit {}, {places}\n  disk: term {} vote {vote}",
            status.state.name(),
            status.config.version,
            words::at(bounds.start),
            bounds.last,
            words::at(status.commit),
            node.kept.term,
        );
        self.say(&text);
    }
}

impl Node {
    /// Puts all units into the log.
    fn write(&mut self) {
        for unit in std::mem::take(&mut self.units) {
            if unit.install.is_some() {
                self.log.clear();
            }
            if let Some(rollback) = unit.rollback {
                self.log.split_off(&(rollback.keep.index + 1));
            }
            self.log.extend(unit.entries.into_iter().map(|entry| (entry.at.index, entry)));
            self.kept = unit.hard_state.unwrap_or(self.kept);
            self.written = unit.seq;
        }
        self.member.written(self.written);
    }
}
