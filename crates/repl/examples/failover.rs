//! Measures, in simulated time, how long a set with default settings is without a primary.
//!
//! `failover [SEEDS]`: for each way in which a primary can go, the distribution over that many seeds (200).
//! `failover noise [HOURS]`: in how many terms a set has a primary that is overloaded for so long (24), and well: one is right.

use sheaf_repl::sim::failover::{Case, Times, measure};
use sheaf_repl::sim::noise;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("noise") {
        return noisy();
    }
    let seeds: u64 = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(200);
    println!("milliseconds over {seeds} seeds          least  median    90 %    99 %    most  without");
    for (name, case, members, latency) in [
        ("killed", Case::Killed, 3, 1),
        ("killed, five members", Case::Killed, 5, 1),
        ("killed, seven members", Case::Killed, 7, 1),
        ("killed, 50 ms one way", Case::Killed, 3, 50),
        ("killed, five, 50 ms one way", Case::Killed, 5, 50),
        ("machine gone without a word", Case::Gone, 3, 1),
        ("stepped down", Case::SteppedDown, 3, 1),
        ("stepped down, 50 ms one way", Case::SteppedDown, 3, 50),
    ] {
        let all: Vec<Option<Times>> = (1..=seeds).map(|seed| measure(seed, case, members, latency)).collect();
        let found: Vec<Times> = all.iter().flatten().copied().collect();
        let missing = all.len() - found.len();
        row(name, "takes writes", found.iter().map(|times| times.writable).collect(), missing);
        row("", "majority", found.iter().map(|times| times.majority).collect(), missing);
    }
}

fn row(name: &str, what: &str, mut times: Vec<u64>, missing: usize) {
    times.sort_unstable();
    let Some(last) = times.len().checked_sub(1) else { return };
    let at = |share: usize| times[last * share / 100];
    println!(
        "{name:28} {what:12} {:7} {:7} {:7} {:7} {:7} {missing:8}",
        at(0),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}

fn noisy() {
    let hours: u64 = std::env::args().nth(2).and_then(|word| word.parse().ok()).unwrap_or(24);
    for seed in 1..=4 {
        println!("seed {seed}: {} terms in {hours} hours", noise::terms(seed, hours * 3_600_000));
    }
}
