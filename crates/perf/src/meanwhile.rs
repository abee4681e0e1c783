//! A client that reads and writes while something large goes on beside it.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::process::Server;

/// What it saw.
pub(crate) struct Seen {
    /// Latencies in nanoseconds.
    pub times: Histogram<u64>,
    /// How long it went on.
    pub took: Duration,
    /// The longest time between two answers.
    pub stall: Duration,
}

impl Seen {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// A percentile in microseconds.
    pub fn micros(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// Milliseconds of the longest stall.
    pub fn stall_ms(&self) -> f64 {
        self.stall.as_secs_f64() * 1000.0
    }
}

/// Does the work while a client of its own sends the messages that `make` gives for 0, 1, 2, ...; what both gave.
pub(crate) fn meanwhile<T>(
    server: &Server,
    mut make: impl FnMut(u64) -> Vec<u8> + Send,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<(T, Seen)> {
    let stop = AtomicBool::new(false);
    let mut client = server.connect()?;
    let times = Histogram::<u64>::new(3).map_err(io::Error::other)?;
    let seen = Mutex::new(Seen { times, took: Duration::ZERO, stall: Duration::ZERO });
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| -> io::Result<()> {
            let mut seen = seen.lock().map_err(|_| io::Error::other("a client panicked"))?;
            let began = Instant::now();
            let mut last = began;
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let request = make(number);
                number += 1;
                let sent = Instant::now();
                client.checked(&request)?;
                let now = Instant::now();
                seen.times.record((now - sent).as_nanos() as u64).map_err(io::Error::other)?;
                seen.stall = seen.stall.max(now - last);
                last = now;
            }
            seen.took = began.elapsed();
            Ok(())
        });
        let outcome = work();
        stop.store(true, Ordering::Relaxed);
        let asked = asking.join().map_err(|_| io::Error::other("a client panicked"))?;
        outcome.and_then(|value| asked.map(|()| value))
    })
    .and_then(|value| {
        let seen = seen.into_inner().map_err(|_| io::Error::other("a client panicked"))?;
        Ok((value, seen))
    })
}
