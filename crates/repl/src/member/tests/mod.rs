//! Members that talk to each other without loss or delay, with disks that are done at once: what happens
//! when, step by step. What happens under faults is the simulator's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use sheaf_errors::{Code, Error};

use super::{Member, MemberOptions, Recovered};
use crate::config::{ConfigVersion, MemberConfig, ReplSetConfig};
use crate::effect::{Effect, WaiterId};
use crate::message::{Body, Envelope};
use crate::types::{Entry, HardState, LogBounds, LogPosition, MemberState, TermRun};
use crate::write_concern::{W, WaitOutcome, WriteConcern};

mod elections;
mod reconfiguration;
mod reports;
mod status;
mod writes;

/// A member and its disk.
struct Node {
    member: Member,
    log: Vec<Entry>,
    resolved: BTreeMap<WaiterId, WaitOutcome>,
    stepped_down: Option<Result<(), Error>>,
    reconfigured: Option<Result<ConfigVersion, Error>>,
    syncs: u32,
    refused: Vec<String>,
    fetch: Option<(u64, u64, u64)>,
    /// What it asks its disk for is read at once.
    reads: bool,
    /// Its disk takes nothing...
    stands_still: bool,
    /// ...of which this unit is the last with a term or a vote.
    to_keep: Option<u64>,
    /// What it was given meanwhile.
    held: Vec<Effect>,
}

/// A set whose members are named m0, m1, ...
struct Set {
    nodes: BTreeMap<Arc<str>, Node>,
    messages: VecDeque<(Arc<str>, Arc<str>, Envelope)>,
    cut: BTreeSet<Arc<str>>,
    /// They pass over entries that are sent to them.
    full: BTreeSet<Arc<str>>,
    now: u64,
}

fn host(number: usize) -> Arc<str> {
    Arc::from(format!("m{number}:27017"))
}

fn members(count: usize) -> Vec<MemberConfig> {
    (0..count).map(|number| MemberConfig::new(number as u64, host(number))).collect()
}

impl Set {
    /// Members with this configuration, the first of which has been told to initiate it.
    fn initiated(config: ReplSetConfig) -> Set {
        let mut set = Set::uninitiated(config.members.len());
        set.member(0).initiate(config, 0).unwrap();
        set.settle();
        set
    }

    fn uninitiated(count: usize) -> Set {
        let mut set = Set {
            nodes: BTreeMap::new(),
            messages: VecDeque::new(),
            cut: BTreeSet::new(),
            full: BTreeSet::new(),
            now: 0,
        };
        for number in 0..count {
            set.add(number);
        }
        set
    }

    fn add(&mut self, number: usize) {
        let options =
            MemberOptions { seed: number as u64, allow_multiple_arbiters: true, ..MemberOptions::new("rs") };
        let node = Node {
            member: Member::new(options, Recovered::default()),
            log: Vec::new(),
            resolved: BTreeMap::new(),
            stepped_down: None,
            reconfigured: None,
            syncs: 0,
            refused: Vec::new(),
            fetch: None,
            reads: false,
            stands_still: false,
            to_keep: None,
            held: Vec::new(),
        };
        self.nodes.insert(host(number), node);
    }

    /// With a primary: the first member.
    fn of(config: ReplSetConfig) -> Set {
        let mut set = Set::initiated(config);
        set.run(3000);
        assert_eq!(set.primary(), Some(0));
        set
    }

    fn member(&mut self, number: usize) -> &mut Member {
        &mut self.node(number).member
    }

    fn node(&mut self, number: usize) -> &mut Node {
        self.nodes.get_mut(&host(number)).unwrap()
    }

    fn state(&mut self, number: usize) -> MemberState {
        self.settle();
        self.member(number).role().state
    }

    fn primary(&mut self) -> Option<usize> {
        let of = |set: &mut Set, number: usize| set.member(number).is_writable();
        let found: Vec<usize> = (0..self.nodes.len())
            .filter(|number| !self.cut.contains(&host(*number)))
            .collect::<Vec<_>>()
            .into_iter()
            .filter(|number| of(self, *number))
            .collect();
        assert!(found.len() <= 1, "{found:?}");
        found.first().copied()
    }

    /// Lets time pass.
    fn run(&mut self, millis: u64) {
        let end = self.now + millis;
        while self.now < end {
            self.now += 50;
            for number in 0..self.nodes.len() {
                let now = self.now;
                let secs = 1_000_000 + now / 1000;
                self.member(number).tick(now, secs);
            }
            self.settle();
        }
    }

    /// Until nobody has anything to say.
    fn settle(&mut self) {
        loop {
            let mut busy = false;
            let hosts: Vec<Arc<str>> = self.nodes.keys().cloned().collect();
            for host in hosts {
                let effects = self.nodes.get_mut(&host).unwrap().member.poll();
                busy |= !effects.is_empty();
                for effect in effects {
                    self.perform(&host, effect);
                }
            }
            while let Some((from, to, envelope)) = self.messages.pop_front() {
                busy = true;
                if self.cut.contains(&from) == self.cut.contains(&to)
                    && (!self.cut.contains(&from) || from == to)
                    && !(self.full.contains(&to) && envelope.entry_bytes() > 0)
                    && let Some(node) = self.nodes.get_mut(&to)
                {
                    node.member.step(&from, envelope);
                }
            }
            if !busy {
                return;
            }
        }
    }

    fn perform(&mut self, host: &Arc<str>, effect: Effect) {
        let node = self.nodes.get_mut(host).unwrap();
        match effect {
            Effect::Send { host: to, envelope } => self.messages.push_back((host.clone(), to, envelope)),
            Effect::Persist(persist) if node.stands_still => {
                if persist.hard_state.is_some() {
                    node.to_keep = Some(persist.seq);
                }
                node.held.push(Effect::Persist(persist));
            }
            Effect::Persist(persist) => {
                if let Some(rollback) = persist.rollback {
                    node.log.truncate(rollback.keep.index as usize);
                }
                node.log.extend(persist.entries);
                node.member.written(persist.seq);
                node.member.applied(persist.seq);
                node.member.durable(persist.seq);
            }
            Effect::Resolved { waiter, outcome } => {
                node.resolved.insert(waiter, outcome);
            }
            Effect::SteppedDown(result) => node.stepped_down = Some(result),
            Effect::Reconfigured(result) => node.reconfigured = Some(result),
            Effect::InitialSync { .. } => node.syncs += 1,
            Effect::Fetch { token, low, high, bytes_max } if node.reads => {
                let mut bytes = 0;
                let within = |entry: &&Entry| {
                    bytes += entry.payload.len() as u64;
                    entry.at.index == low || (entry.at.index < high && bytes <= bytes_max)
                };
                let entries = node.log[low as usize - 1..].iter().take_while(within).cloned().collect();
                node.member.fetched(token, entries);
            }
            Effect::Fetch { token, low, high, .. } => node.fetch = Some((token, low, high)),
            Effect::Refused { host: from, what, .. } => node.refused.push(format!("{from}: {what}")),
            Effect::CommitPoint(_) | Effect::Role(_) => {}
        }
    }

    /// A disk that stood still takes what it was given.
    fn go_on(&mut self, number: usize) {
        self.node(number).stands_still = false;
        for effect in std::mem::take(&mut self.node(number).held) {
            self.perform(&host(number), effect);
        }
        self.settle();
    }

    /// A write, without letting anybody react to it.
    fn propose(&mut self, number: usize) -> LogPosition {
        let time = (1_000_000 + self.now / 1000) << 32 | 1;
        let member = self.member(number);
        let time = time.max(member.cluster_time() + 1);
        member.propose(time, Bytes::from_static(b"x")).unwrap()
    }

    fn write(&mut self, number: usize, concern: WriteConcern) -> WaiterId {
        let at = self.propose(number);
        let waiter = self.member(number).wait(at, concern).unwrap();
        self.settle();
        waiter
    }

    fn outcome(&mut self, number: usize, waiter: WaiterId) -> Option<WaitOutcome> {
        self.node(number).resolved.get(&waiter).cloned()
    }

    /// Ends a member and starts it with what its disk has.
    fn restart(&mut self, number: usize) {
        let log = self.node(number).log.clone();
        let (term, last) = (self.member(number).term(), log.last().unwrap());
        let config = self.member(number).config().map(|config| ((**config).clone(), Some(number as u64)));
        let recovered = Recovered {
            hard_state: HardState { term, vote: Some(0), commit: 0 },
            log: LogBounds {
                start: LogPosition::default(),
                last: last.at.index,
                runs: vec![TermRun { first: 1, term: 1 }],
                last_time: last.time,
            },
            times: log.iter().map(|entry| (entry.at.index, entry.time)).collect(),
            config,
        };
        let options = MemberOptions { seed: number as u64, incarnation: 2, ..MemberOptions::new("rs") };
        self.node(number).member = Member::new(options, recovered);
    }

    /// Ends a member and starts it with nothing.
    fn empty(&mut self, number: usize) {
        self.add(number);
        let options = MemberOptions { seed: number as u64, incarnation: 2, ..MemberOptions::new("rs") };
        self.node(number).member = Member::new(options, Recovered::default());
    }

    fn cut(&mut self, number: usize) {
        self.cut.insert(host(number));
    }

    fn heal(&mut self) {
        self.cut.clear();
    }

    fn reconfig(
        &mut self,
        number: usize,
        change: impl FnOnce(&mut ReplSetConfig),
    ) -> Result<ConfigVersion, Error> {
        let mut config = (**self.member(number).config().unwrap()).clone();
        config.version += 1;
        change(&mut config);
        self.node(number).reconfigured = None;
        self.member(number).reconfig(config, false, None)?;
        self.settle();
        self.node(number).reconfigured.take().expect("all members answer at once")
    }
}

fn three() -> Set {
    Set::of(ReplSetConfig::new("rs", members(3)))
}
