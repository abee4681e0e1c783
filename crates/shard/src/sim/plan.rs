//! What a seed stands for: the cluster, its network, its disks and clocks, and what will go wrong.

use sheaf_repl::rng::Rng;

/// A run's parameters, all drawn from the seed. Times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Shards.
    pub shards: usize,
    /// Members of each shard.
    pub members: usize,
    /// Routers.
    pub routers: usize,
    /// Clients, each with one session.
    pub clients: usize,
    /// Documents; each belongs to the shard of its number modulo the shards, if there are no moves.
    pub keys: u64,
    /// Whether there are config servers, and ranges of documents are moved: with odd seeds.
    pub moves: bool,
    /// Whether the config servers are the first shard, too.
    pub config_shard: bool,
    /// Longest time between the end of a move and the next.
    pub move_gap_millis: u64,
    /// How long there are faults.
    pub faults_millis: u64,
    /// How long the cluster may take afterwards to come to rest.
    pub calm_millis: u64,
    /// How long a message travels, at least and at most.
    pub latency: (u64, u64),
    /// Of a hundred messages, how many are lost.
    pub loss: u64,
    /// Of a hundred messages, how many come twice, the second perhaps at another member.
    pub doubled: u64,
    /// Of a hundred messages, how many are late by up to three seconds.
    pub late: u64,
    /// Longest time of a write, of applying, and of a sync.
    pub disk_millis: (u64, u64, u64),
    /// Whether decisions wait for something else that is to be synced: with some seeds.
    pub decisions_wait: bool,
    /// Whether routers tell a shard of several decisions at once, as they do in earnest: with some of these seeds.
    pub decisions_together: bool,
    /// Longest time between faults.
    pub fault_gap_millis: u64,
    /// Longest time that a client thinks.
    pub think_millis: u64,
    /// Largest error of a wall clock.
    pub skew_millis: u64,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x7368_6172_6473);
        let rough = rng.percent(60);
        let slow_disk = rng.percent(25);
        let moves = seed % 2 == 1;
        let shards = [1, 2, 2, 2, 3, 3, 4][rng.below(7) as usize];
        let shards = if moves { shards.max(2) } else { shards };
        let mut of_moves = Rng::new(seed ^ 0x6d6f_7665);
        let drawn = Plan {
            seed,
            moves,
            decisions_wait: matches!(seed % 20, 5 | 8 | 9 | 10 | 11 | 13 | 17 | 18),
            decisions_together: matches!(seed % 20, 8 | 9 | 17 | 18),
            config_shard: seed % 8 == 5,
            move_gap_millis: [50, 300, 1500][of_moves.below(3) as usize],
            shards,
            members: [1, 3, 3][rng.below(3) as usize],
            routers: 2,
            clients: rng.between(3, 8) as usize,
            keys: shards as u64 * rng.between(2, 5),
            faults_millis: rng.between(4, 10) * 1000,
            calm_millis: if moves { 180_000 } else { 60_000 },
            latency: (1, rng.between(1, 20)),
            loss: if rough { rng.below(10) } else { 0 },
            doubled: if rough { rng.below(25) } else { 0 },
            late: if rough { rng.below(6) } else { 0 },
            disk_millis: if slow_disk { (8, 8, 60) } else { (1, 1, 8) },
            fault_gap_millis: rng.between(100, 900),
            think_millis: [5, 20, 60, 300][rng.below(4) as usize],
            skew_millis: [0, 5, 500, 4000][rng.below(4) as usize],
        };
        if !drawn.decisions_together {
            return drawn;
        }
        // So much is decided that several are to be told to a shard.
        let keys = drawn.shards as u64 * 8;
        Plan { clients: 8, keys, think_millis: 5, latency: (1, 3), disk_millis: (1, 1, 8), ..drawn }
    }
}
