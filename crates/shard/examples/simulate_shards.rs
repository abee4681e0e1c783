//! Runs the simulator over many seeds, or one again.
//!
//! `simulate_shards --seeds 1000 [--from 1] [--jobs 2] [--mutation NAME] [--faults-secs 120]` or
//! `simulate_shards --seed 42 [--tell 3000]`, which prints what happens from that time on
#![allow(clippy::disallowed_methods, reason = "each simulation is one thread; several run at once")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sheaf_shard::sim::{Mutation, Plan, Tally, World};

/// After how many seeds a line is printed.
const PROGRESS_SEEDS: u64 = 5000;

struct Arguments {
    from: u64,
    seeds: u64,
    jobs: u64,
    one: bool,
    mutation: Option<Mutation>,
    tell: Option<u64>,
    faults_secs: Option<u64>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed =
        Arguments { from: 1, seeds: 300, jobs: 2, one: false, mutation: None, tell: None, faults_secs: None };
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let value = words.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--seed" => (parsed.from, parsed.seeds, parsed.one) = (number()?, 1, true),
            "--seeds" => parsed.seeds = number()?,
            "--from" => parsed.from = number()?,
            "--tell" => parsed.tell = Some(number()?),
            "--faults-secs" => parsed.faults_secs = Some(number()?),
            "--jobs" => parsed.jobs = number()?.max(1),
            "--mutation" => {
                let found = Mutation::ALL.into_iter().find(|mutation| mutation.name() == value);
                parsed.mutation = Some(found.ok_or(format!("no mutation is called {value}"))?);
            }
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let next = Arc::new(AtomicU64::new(arguments.from));
    let end = arguments.from + arguments.seeds;
    let failures = Arc::new(Mutex::new(0u64));
    let total = Arc::new(Mutex::new(Tally::default()));
    let threads: Vec<_> = (0..arguments.jobs)
        .map(|_| {
            let (next, failures, total) = (next.clone(), failures.clone(), total.clone());
            std::thread::spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let begun = seed - arguments.from;
                    if begun > 0 && begun.is_multiple_of(PROGRESS_SEEDS) {
                        let failed = *failures.lock().expect("no thread panics with it");
                        eprintln!("{begun} seeds begun, {failed} failed");
                    }
                    let result = std::panic::catch_unwind(|| {
                        let mut plan = Plan::of(seed);
                        if let Some(secs) = arguments.faults_secs {
                            plan.faults_millis = secs * 1000;
                        }
                        let world = World::new(plan, arguments.mutation);
                        match arguments.tell {
                            Some(from) => world.tell(from).play(),
                            None => world.play(),
                        }
                    });
                    match result {
                        Ok(Ok(report)) => {
                            if arguments.one {
                                println!("seed {seed}: {report:?}");
                            }
                            total.lock().expect("no thread panics with it").add(&report);
                        }
                        Ok(Err(failure)) => {
                            println!("{failure}");
                            *failures.lock().expect("no thread panics with it") += 1;
                        }
                        Err(_) => {
                            println!("seed {seed}: panic\nreplay: cargo run -p sheaf-shard --release --example simulate_shards -- --seed {seed}");
                            *failures.lock().expect("no thread panics with it") += 1;
                        }
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
    let failures = *failures.lock().expect("all threads are done");
    println!(
        "{} seeds, {failures} failed; {:?}",
        arguments.seeds,
        total.lock().expect("all threads are done")
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
