//! The servers, looked at once a second while the workload runs, through connections of their own.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use sheaf_bson::{RawDoc, Value, doc};

use super::cost::ServerProcess;
use crate::client::{Connection, ConnectionString};
use crate::results::ServerSeries;

/// A server that is looked at.
#[derive(Clone, Debug)]
pub struct Watched {
    /// "host:port".
    pub node: String,
    /// Its process, when it is ours.
    pub process: Option<ServerProcess>,
    /// How to reach it for serverStatus, when it knows that.
    pub to: Option<ConnectionString>,
}

/// Samples of one server, taken at moments.
struct Watch {
    server: Watched,
    connection: Option<Connection>,
    last_cpu: Option<(Instant, f64)>,
    samples: Vec<(Instant, BTreeMap<String, f64>)>,
}

/// Sections of serverStatus that are kept, by the beginning of the dotted name. The rest says nothing about a run.
const KEPT: &[&str] = &[
    "opcounters.",
    "opLatencies.",
    "connections.current",
    "connections.active",
    "network.",
    "mem.resident",
    "globalLock.currentQueue.",
    "globalLock.activeClients.",
    "metrics.document.",
    "metrics.operation.",
    "transactions.",
    "wiredTiger.cache.bytes currently in the cache",
    "wiredTiger.cache.bytes read into cache",
    "wiredTiger.cache.bytes written from cache",
    "wiredTiger.log.log bytes written",
    "wiredTiger.log.log sync operations",
    "sheaf.",
    "storage.",
    "extra_info.page_faults",
];

/// Looks at the servers each second until the sender is gone; `each` is called after every look
/// with each node's per cent of one processor and its resident megabytes. The series begin at
/// `origin`, which is asked for at the end, because it is known only then.
pub fn watch(
    servers: Vec<Watched>,
    done: &Receiver<()>,
    mut each: impl FnMut(&[(String, f64, f64)]),
    origin: impl Fn() -> Option<Instant>,
) -> Vec<ServerSeries> {
    let mut watches: Vec<Watch> = servers.into_iter().map(Watch::new).collect();
    let mut next = Instant::now();
    loop {
        for watch in &mut watches {
            watch.look();
        }
        let nodes: Vec<_> = watches.iter().map(Watch::now).collect();
        each(&nodes);
        next += Duration::from_secs(1);
        match done.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    // The state at the end, which a run of less than a second has only here.
    for watch in &mut watches {
        watch.look();
    }
    let origin = origin();
    watches.into_iter().map(|watch| watch.series(origin)).collect()
}

impl Watch {
    fn new(mut server: Watched) -> Watch {
        // A server that does not answer must not hold up the samples of the others for long.
        if let Some(to) = &mut server.to {
            to.connect_timeout = Duration::from_secs(1);
            to.socket_timeout = Duration::from_secs(2);
        }
        Watch { server, connection: None, last_cpu: None, samples: Vec::new() }
    }

    fn look(&mut self) {
        let now = Instant::now();
        let mut figures = BTreeMap::new();
        if let Some(cpu) = self.server.process.as_ref().and_then(ServerProcess::cpu_seconds) {
            if let Some((then, before)) = self.last_cpu {
                let took = now.saturating_duration_since(then).as_secs_f64();
                // Over a few milliseconds the kernel's ticks make no figure.
                if took > 0.2 {
                    figures.insert("cpu_percent".to_owned(), (cpu - before) / took * 100.0);
                }
            }
            self.last_cpu = Some((now, cpu));
        }
        if let Some(bytes) = self.server.process.as_ref().and_then(ServerProcess::resident_bytes) {
            figures.insert("resident_mb".to_owned(), bytes as f64 / (1 << 20) as f64);
        }
        if let Some(disk) = self.server.process.as_ref().and_then(ServerProcess::disk_bytes) {
            figures.insert("disk_read_mb".to_owned(), disk.read as f64 / 1e6);
            figures.insert("disk_written_mb".to_owned(), disk.written as f64 / 1e6);
        }
        self.server_status(&mut figures);
        if !figures.is_empty() {
            self.samples.push((now, figures));
        }
    }

    fn now(&self) -> (String, f64, f64) {
        let figure = |name: &str| {
            let last = self.samples.last().and_then(|(_, figures)| figures.get(name));
            last.copied().unwrap_or(0.0)
        };
        (self.server.node.clone(), figure("cpu_percent"), figure("resident_mb"))
    }

    fn server_status(&mut self, figures: &mut BTreeMap<String, f64>) {
        let Some(to) = &self.server.to else { return };
        if self.connection.is_none() {
            self.connection = Connection::open(&self.server.node, to).ok();
        }
        let Some(connection) = &mut self.connection else { return };
        match connection.command("admin", &doc! { "serverStatus": 1 }) {
            Ok(status) => flatten("", status, figures),
            // The server may be down for the moment, which is what some experiments are about.
            Err(_) => self.connection = None,
        }
    }

    fn series(self, origin: Option<Instant>) -> ServerSeries {
        let origin = origin.or_else(|| self.samples.first().map(|(at, _)| *at));
        let after = |(at, figures): (Instant, BTreeMap<String, f64>)| {
            let since = at.checked_duration_since(origin?)?;
            Some((since.as_secs_f64(), figures))
        };
        ServerSeries { node: self.server.node, samples: self.samples.into_iter().filter_map(after).collect() }
    }
}

fn flatten(prefix: &str, document: RawDoc<'_>, figures: &mut BTreeMap<String, f64>) {
    for element in document.iter() {
        let name = format!("{prefix}{}", element.key());
        match element.value() {
            Value::Document(inner) => flatten(&format!("{name}."), inner, figures),
            value if value.is_number() && KEPT.iter().any(|kept| name.starts_with(kept)) => {
                if let Some(number) = value.as_f64() {
                    figures.insert(name, number);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_something_is_kept() {
        let status = doc! {
            "host": "x", "uptime": 5.0, "opcounters": { "insert": 7i64, "deprecated": { "total": 1 } },
            "mem": { "bits": 64, "resident": 12 }
        };
        let mut figures = BTreeMap::new();
        flatten("", status.as_raw(), &mut figures);
        let expected =
            [("mem.resident", 12.0), ("opcounters.deprecated.total", 1.0), ("opcounters.insert", 7.0)];
        assert_eq!(figures, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn samples_before_the_measured_part_are_left_out() {
        let process = Some(ServerProcess::new(std::process::id()));
        let server = Watched { node: "127.0.0.1:1".into(), process, to: None };
        let (send, receive) = std::sync::mpsc::channel::<()>();
        drop(send);
        let mut looks = 0;
        let before = Instant::now();
        let all = watch(vec![server.clone()], &receive, |_| looks += 1, || Some(before));
        assert_eq!((looks, all[0].samples.len()), (1, 2));
        assert!(all[0].samples.iter().all(|(at, figures)| *at >= 0.0 && figures["resident_mb"] > 0.0));
        let none = watch(vec![server], &receive, |_| {}, || Some(Instant::now()));
        assert!(none[0].samples.is_empty());
    }
}
