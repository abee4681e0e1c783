//! Arbitrary commands, a few thousand from a fixed seed: what `fuzz/targets/commands.rs` runs without end.

#[path = "../../../../fuzz/support/command.rs"]
mod command;
#[path = "../../../../fuzz/support/generate.rs"]
mod generate;
#[path = "../../../../fuzz/support/language.rs"]
mod language;
#[path = "../../../../fuzz/support/server.rs"]
mod server;
#[path = "../../../../fuzz/support/stages.rs"]
mod stages;
#[path = "../../../../fuzz/support/words.rs"]
mod words;

/// Inputs, of some three commands each.
const INPUTS: u64 = 2000;

#[test]
fn every_command_is_answered() {
    let mut server = server::Server::start();
    for seed in 1..=INPUTS {
        server.run_arbitrary(&bytes(seed));
    }
    let total: u64 = server.outcomes.values().sum();
    let succeeded = |name: &str| server.outcomes.get(&(name.to_owned(), 0)).copied().unwrap_or(0);
    let successes: u64 = server.outcomes.iter().filter(|((_, code), _)| *code == 0).map(|(_, n)| n).sum();
    // The first insert of an input always succeeds; the rest must not all fail at their arguments.
    assert!(successes > INPUTS + (total - INPUTS) / 8, "{:#?}", server.outcomes);
    for name in ["find", "update", "delete", "getMore"] {
        assert!(succeeded(name) > 0, "no {name} has succeeded: {:#?}", server.outcomes);
    }
    if std::env::var_os("SHEAF_OUTCOMES").is_some() {
        println!("{:#?}", server.outcomes);
    }
}

/// Noise that is the same on every run.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    let length = 40 + usize::from(next()) * 2;
    (0..length).map(|_| next()).collect()
}
