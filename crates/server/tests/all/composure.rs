//! A server ends when it is to, and does not wait for anybody.

use std::io::Read;
use std::time::Duration;

use crate::support::{Connection, Server, message};
use sheaf_bson::{Value, doc};
use sheaf_wire::Flags;

/// Reads until the server closes the connection.
fn reads_to_the_end(connection: &mut Connection) {
    connection.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    // A reset is an end as well; only silence is none.
    if let Err(error) = connection.stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn monitors_end_with_the_server() {
    let server = Server::start(|_, _| {});
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut monitors: Vec<_> = (0..2 * workers + 1).map(|_| server.connect()).collect();
    for monitor in &mut monitors {
        let first = monitor.run(&doc! { "hello": 1, "$db": "admin" });
        let version: Value<'_> = first.as_raw().get("topologyVersion").unwrap();
        let waiting =
            doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 600_000i64, "$db": "admin" };
        monitor.send(&message(&waiting, Flags::EXHAUST_ALLOWED));
    }
    // All of them wait when it begins.
    while server.node.clients().iter().filter(|c| c.parked.load(std::sync::atomic::Ordering::Relaxed)).count()
        < monitors.len()
    {
        std::thread::sleep(Duration::from_millis(2));
    }
    server.node.begin_shutdown();
    for monitor in &mut monitors {
        assert!(monitor.receive().is_some(), "an error tells why");
    }
    drop(server);
    monitors.iter_mut().for_each(reads_to_the_end);
}
