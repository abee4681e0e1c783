//! What a seed stands for: the set, its network, its disks, and what will go wrong.

use crate::config::{MemberConfig, ReplSetConfig};
use crate::member::NoticesSilence;
use crate::rng::Rng;

/// A run's parameters, all drawn from the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Members of the first configuration, then machines without one.
    pub config: ReplSetConfig,
    /// Machines that can be added.
    pub spares: usize,
    /// How long there are faults.
    pub faults_millis: u64,
    /// How long the set may take afterwards to come to rest.
    pub calm_millis: u64,
    /// Milliseconds that a message travels, at least and at most.
    pub latency: (u64, u64),
    /// Of a hundred messages, how many are lost.
    pub loss: u64,
    /// Of a hundred messages, how many come twice.
    pub doubled: u64,
    /// Of a hundred messages, how many are late by up to two seconds.
    pub late: u64,
    /// Longest time of a write, of applying, and of a sync.
    pub disk_millis: (u64, u64, u64),
    /// Longest time between faults.
    pub fault_gap_millis: u64,
    /// Longest time between writes of the clients.
    pub write_gap_millis: u64,
    /// Bytes of entries kept to be sent.
    pub cache_bytes: usize,
    /// Of a hundred writes, how many ask for the journal.
    pub journal_percent: u64,
    /// Whether a majority counts without its journals; then no machine crashes, only processes.
    pub without_journal: bool,
    /// Whether all messages pass through their byte form.
    pub encode: bool,
    /// Whether a rollback and an installed copy end in a restart of the process, as the server's do: it finds what the
    /// disk has and nothing else.
    pub restarts: bool,
    /// Whether a message may travel as a part of the one before it, as it does where a link is written late.
    pub together: bool,
    /// Where members take silence for a hint that the primary is gone.
    pub notices_silence: NoticesSilence,
    /// Whether each member checks itself after each poll, in release builds too.
    pub check_invariants: bool,
}

/// The name of machine `number`.
pub(super) fn host(number: usize) -> String {
    format!("m{number}:27017")
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let data = [1, 2, 3, 3, 3, 3, 4, 5][rng.below(8) as usize];
        let arbiters =
            if data < 5 && data > 0 && rng.percent(30) { 1 + u64::from(rng.percent(15)) } else { 0 };
        let non_voters = if rng.percent(20) { 1 } else { 0 };
        let mut members = Vec::new();
        for id in 0..data + arbiters + non_voters {
            let mut member = MemberConfig::new(id, host(id as usize).as_str());
            member.tags = vec![
                ("dc".into(), ["east", "west", "north"][id as usize % 3].into()),
                ("rack".into(), format!("r{id}")),
            ];
            member.arbiter_only = id >= data && id < data + arbiters;
            if member.arbiter_only {
                member.priority = 0.0;
                member.tags.clear();
            } else if id >= data {
                member.votes = 0;
                member.priority = 0.0;
            } else if id > 0 {
                decorate(&mut rng, &mut member);
            }
            members.push(member);
        }
        let mut config = ReplSetConfig::new("rs", members);
        config.settings.election_timeout_millis = 500;
        config.settings.heartbeat_interval_millis = 100;
        config.settings.heartbeat_timeout_secs = 1;
        config.settings.get_last_error_modes = vec![
            ("twoCenters".into(), vec![("dc".into(), 2)]),
            ("racks".into(), vec![("rack".into(), data.min(2) as i64)]),
        ];
        let without_journal = rng.percent(10);
        config.write_concern_majority_journal_default = !without_journal;
        let rough = rng.percent(70);
        let slow_disk = rng.percent(30);
        Plan {
            seed,
            config,
            spares: rng.below(3) as usize,
            faults_millis: rng.between(4, 10) * 1000,
            calm_millis: 30_000,
            latency: (1, rng.between(1, 30)),
            loss: if rough { rng.below(15) } else { 0 },
            doubled: if rough { rng.below(10) } else { 0 },
            late: if rough { rng.below(6) } else { 0 },
            disk_millis: if slow_disk { (10, 10, 80) } else { (1, 1, 10) },
            fault_gap_millis: rng.between(100, 900),
            write_gap_millis: rng.between(5, 40),
            cache_bytes: if rng.percent(30) { 200 } else { 1 << 20 },
            journal_percent: 30,
            without_journal,
            encode: rng.percent(25),
            restarts: rng.percent(50),
            together: rng.percent(50),
            notices_silence: if rng.percent(50) { NoticesSilence::Always } else { NoticesSilence::Unset },
            check_invariants: true,
        }
    }
}

fn decorate(rng: &mut Rng, member: &mut MemberConfig) {
    match rng.below(10) {
        0 => member.priority = 2.0,
        1 => member.priority = 0.0,
        2 => {
            member.priority = 0.0;
            member.hidden = true;
        }
        3 => {
            member.priority = 0.0;
            member.hidden = true;
            member.secondary_delay_secs = 1;
        }
        _ => {}
    }
}
