//! What processes cost: processor time and memory.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Processor seconds that this process has used, all its threads together.
pub fn own_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor seconds that a process has used; `None` when it is gone.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = cpu_ticks(&stat)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system time of a line of `/proc/PID/stat`.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The program's name, in parentheses, may hold anything; the fields after it are numbers.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Seconds that this thread was ready to run but had no processor; 0 where the kernel does not tell.
pub fn queued_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    nanos.unwrap_or(0) as f64 / 1e9
}

/// Resident bytes of a process; `None` when it is gone.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmRSS:")
}

fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Bytes that a process has had read from disk and written to it, dirtied pages that were dropped before they came there
/// not counted; `None` when it is gone or another's.
pub fn disk_bytes(pid: u32) -> Option<Disk> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let number = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
    };
    let dropped = number("cancelled_write_bytes")?;
    Some(Disk { read: number("read_bytes")?, written: number("write_bytes")?.saturating_sub(dropped) })
}

/// The most memory that a process was resident with, in bytes; `None` when it is gone.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

/// See [`disk_bytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// A server that may be ended and started again, with another process number then.
#[derive(Clone, Debug, Default)]
pub struct ServerProcess(Arc<Mutex<Lives>>);

#[derive(Debug, Default)]
struct Lives {
    pid: Option<u32>,
    /// Processor seconds of those that have ended.
    spent_s: f64,
}

impl ServerProcess {
    /// One that runs with this number.
    pub fn new(pid: u32) -> ServerProcess {
        ServerProcess(Arc::new(Mutex::new(Lives { pid: Some(pid), spent_s: 0.0 })))
    }

    fn lives(&self) -> MutexGuard<'_, Lives> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.lives().pid
    }

    /// It is about to be ended: what it has used is kept.
    pub fn ends(&self) {
        let mut lives = self.lives();
        if let Some(pid) = lives.pid.take() {
            lives.spent_s += cpu_seconds(pid).unwrap_or(0.0);
        }
    }

    /// It was started again.
    pub fn starts(&self, pid: u32) {
        self.lives().pid = Some(pid);
    }

    /// Processor seconds of all its lives; `None` when it is gone without our doing.
    pub fn cpu_seconds(&self) -> Option<f64> {
        let lives = self.lives();
        match lives.pid {
            Some(pid) => cpu_seconds(pid).map(|now| now + lives.spent_s),
            None => Some(lives.spent_s),
        }
    }

    /// What it has read from disk and written in this life; `None` when it does not run.
    pub fn disk_bytes(&self) -> Option<Disk> {
        disk_bytes(self.pid()?)
    }

    /// The most that it was resident with in this life; `None` when it does not run.
    pub fn peak_bytes(&self) -> Option<u64> {
        peak_bytes(self.pid()?)
    }

    /// Resident bytes; `None` when it does not run.
    pub fn resident_bytes(&self) -> Option<u64> {
        resident_bytes(self.pid()?)
    }
}

/// Processor time from the beginning of the measured part.
#[derive(Debug, Default)]
pub struct Meter {
    servers: Vec<ServerProcess>,
    begin: OnceLock<Reading>,
    each: OnceLock<Each>,
}

/// What had been used at a moment, or since one.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    client_s: f64,
    server_s: Option<f64>,
}

/// What the servers had used when the measured part began.
type Each = Vec<Option<f64>>;

/// What the measured part has cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Its length.
    pub seconds: f64,
    /// Processor seconds of this process.
    pub client_s: f64,
    /// Processor seconds of the servers, when they are ours.
    pub server_s: Option<f64>,
}

impl Meter {
    /// For these servers.
    pub fn new(servers: Vec<ServerProcess>) -> Meter {
        Meter { servers, ..Meter::default() }
    }

    fn read(&self) -> Reading {
        let all: Option<Vec<f64>> = self.servers.iter().map(ServerProcess::cpu_seconds).collect();
        let server_s = all.filter(|all| !all.is_empty()).map(|all| all.iter().sum());
        Reading { at: Instant::now(), client_s: own_cpu_seconds(), server_s }
    }

    /// The measured part begins now, unless it has begun already.
    pub fn begin(&self) {
        self.begin.get_or_init(|| {
            self.each.get_or_init(|| self.read_each());
            self.read()
        });
    }

    fn read_each(&self) -> Each {
        self.servers.iter().map(ServerProcess::cpu_seconds).collect()
    }

    /// The servers, in the order in which they were given.
    pub fn servers(&self) -> &[ServerProcess] {
        &self.servers
    }

    /// Processor seconds that each server has used since the measured part began; `None` for one that has gone.
    pub fn each(&self) -> Vec<Option<f64>> {
        let Some(begin) = self.each.get() else { return vec![None; self.servers.len()] };
        let since = |(now, begin): (Option<f64>, &Option<f64>)| Some(now? - (*begin)?);
        self.read_each().into_iter().zip(begin).map(since).collect()
    }

    /// What has been used since; nothing when nothing was measured.
    pub fn cost(&self) -> Cost {
        let Some(begin) = self.begin.get() else { return Cost::default() };
        let now = self.read();
        Cost {
            seconds: now.at.saturating_duration_since(begin.at).as_secs_f64(),
            client_s: now.client_s - begin.client_s,
            server_s: now.server_s.zip(begin.server_s).map(|(now, begin)| now - begin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_no_harm() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1 0 5";
        assert_eq!(cpu_ticks(stat), Some(200));
        assert_eq!(cpu_ticks("7 (x) S"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        let pid = std::process::id();
        assert!(resident_bytes(pid).unwrap() > 100_000);
        assert!(cpu_seconds(pid).is_some());
        assert!(peak_bytes(pid) >= resident_bytes(pid) && disk_bytes(u32::MAX - 1).is_none());
        assert!(disk_bytes(pid).is_some());
        let before = own_cpu_seconds();
        let mut sum = 0u64;
        while own_cpu_seconds() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(own_cpu_seconds() > before);
        assert!(cpu_seconds(u32::MAX - 1).is_none());
    }

    #[test]
    fn the_meter_counts_from_the_first_beginning() {
        let meter = Meter::new(vec![ServerProcess::new(std::process::id())]);
        assert_eq!((meter.cost().seconds, meter.each()), (0.0, vec![None]));
        meter.begin();
        let first = meter.cost();
        meter.begin();
        let second = meter.cost();
        assert!(second.seconds > first.seconds && second.client_s >= first.client_s);
        assert!(second.server_s.is_some() && meter.each()[0].is_some_and(|seconds| seconds >= 0.0));
        let gone = Meter::new(vec![ServerProcess::new(u32::MAX - 1)]);
        gone.begin();
        assert!(gone.cost().server_s.is_none());
    }
    #[test]
    fn a_server_that_is_started_again_goes_on_counting() {
        let server = ServerProcess::new(std::process::id());
        let before = server.cpu_seconds().unwrap();
        server.ends();
        assert!(server.pid().is_none() && server.resident_bytes().is_none());
        let kept = server.cpu_seconds().unwrap();
        assert!(kept >= before);
        server.starts(std::process::id());
        assert!(server.cpu_seconds().unwrap() >= 2.0 * kept);
    }
}
