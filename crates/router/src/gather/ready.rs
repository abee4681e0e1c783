//! Answers of several shards in the order in which they come.

use std::time::{Duration, Instant};

use sheaf_cluster::{Call, GoOn};
use sheaf_errors::Result;

/// How often it is looked which shards have answered: soon at first, as most answers come soon.
const LOOKS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(5));

/// Hands over each of these as soon as something of its answer is there, and all that are left when the time is over.
///
/// Errors: those of `go_on`, which is asked while nothing comes, and the first of `take`.
pub fn as_they_come<T>(
    under_way: Vec<(T, Call)>,
    until: Option<Instant>,
    go_on: GoOn<'_>,
    mut take: impl FnMut(T, Call) -> Result<()>,
) -> Result<()> {
    let (mut under_way, mut pause) = (under_way, LOOKS.0);
    while !under_way.is_empty() {
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        // What is there of others is taken before somebody is given up.
        let ready: Vec<(T, Call)> = under_way.extract_if(.., |(_, call)| call.is_ready()).collect();
        let ready = if ready.is_empty() && is_late { std::mem::take(&mut under_way) } else { ready };
        if ready.is_empty() {
            go_on()?;
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOKS.1);
        }
        for (of, call) in ready {
            take(of, call)?;
        }
    }
    Ok(())
}
