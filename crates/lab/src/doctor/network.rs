//! Settings of connections.

use super::finding::{Finding, Host};

pub fn findings(host: &Host) -> Vec<Finding> {
    vec![keepalive(host), backlog(host)]
}

fn keepalive(host: &Host) -> Finding {
    let finding = Finding::new(
        "TCP keepalive",
        "firewalls and load balancers forget idle connections after minutes; a pooled connection then hangs until it times out",
    );
    match host.number("/proc/sys/net/ipv4/tcp_keepalive_time") {
        Some(seconds) if seconds <= 300 => finding.ok(format!("after {seconds} s")),
        Some(seconds) => finding.warn(
            format!("after {seconds} s"),
            "sysctl -w net.ipv4.tcp_keepalive_time=120 (on clients too; not needed when nothing stands between)",
        ),
        None => finding,
    }
}

fn backlog(host: &Host) -> Finding {
    let finding = Finding::new(
        "waiting connections",
        "many clients that connect at once (after a failover) wait in this queue; when it is full they retry after seconds",
    );
    match host.number("/proc/sys/net/core/somaxconn") {
        Some(n) if n >= 1024 => finding.ok(n.to_string()),
        Some(n) => finding.warn(n.to_string(), "sysctl -w net.core.somaxconn=4096"),
        None => finding,
    }
}
