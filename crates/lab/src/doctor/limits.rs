//! What a process may use: files, processes, mappings, and the limits of its control group.

use super::finding::{Finding, Host};
use crate::report::bytes;

const MIB: u64 = 1024 * 1024;

pub fn findings(host: &Host) -> Vec<Finding> {
    vec![open_files(host), processes(host), mappings(host), cgroup_memory(host), cgroup_cpu(host)]
}

/// Soft and hard limit by the name that `/proc/self/limits` gives; `u64::MAX` is unlimited.
fn limit(host: &Host, name: &str) -> Option<(u64, u64)> {
    let text = host.read("/proc/self/limits")?;
    let mut values = text.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace();
    let mut next = || {
        let value = values.next()?;
        if value == "unlimited" { Some(u64::MAX) } else { value.parse().ok() }
    };
    Some((next()?, next()?))
}

fn limit_text(soft: u64, hard: u64) -> String {
    let text = |v: u64| if v == u64::MAX { "unlimited".to_owned() } else { v.to_string() };
    format!("{}, at most {}", text(soft), text(hard))
}

fn open_files(host: &Host) -> Finding {
    let finding = Finding::new(
        "open files",
        "each connection and each data file is an open file; when they run out, connections are refused and writes fail",
    );
    let mend = "ulimit -n 64000, or LimitNOFILE=64000 in the systemd unit";
    match limit(host, "Max open files") {
        Some((soft, hard)) if soft >= 64_000 => finding.ok(limit_text(soft, hard)),
        Some((soft, hard)) if soft < 4096 => finding.bad(limit_text(soft, hard), mend),
        Some((soft, hard)) => finding.warn(limit_text(soft, hard), mend),
        None => finding,
    }
}

fn processes(host: &Host) -> Finding {
    let finding = Finding::new(
        "processes and threads",
        "mongod runs a thread for each connection; Sheaf needs few, but shares the user's limit with everything else",
    );
    let mend = "ulimit -u 64000, or LimitNPROC=64000 in the systemd unit";
    match limit(host, "Max processes") {
        Some((soft, hard)) if soft >= 32_000 => finding.ok(limit_text(soft, hard)),
        Some((soft, hard)) if soft < 1024 => finding.bad(limit_text(soft, hard), mend),
        Some((soft, hard)) => finding.warn(limit_text(soft, hard), mend),
        None => finding,
    }
}

fn mappings(host: &Host) -> Finding {
    let finding = Finding::new(
        "memory mappings",
        "thread stacks and the allocator's regions are mappings; a process that reaches vm.max_map_count is ended",
    );
    let mend = "sysctl -w vm.max_map_count=262144 (and a file in /etc/sysctl.d)";
    match host.number("/proc/sys/vm/max_map_count") {
        Some(n) if n >= 65_530 => finding.ok(n.to_string()),
        Some(n) => finding.warn(n.to_string(), mend),
        None => finding,
    }
}

/// The folders of this process' control group for a controller of version 1, from the innermost outwards; with an
/// empty name, those of version 2.
fn groups(host: &Host, controller: &str) -> Vec<String> {
    let text = host.read("/proc/self/cgroup").unwrap_or_default();
    let path = text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        controllers.split(',').any(|c| c == controller).then(|| path.to_owned())
    });
    let Some(path) = path else { return Vec::new() };
    let base = if controller.is_empty() {
        "/sys/fs/cgroup".to_owned()
    } else {
        format!("/sys/fs/cgroup/{controller}")
    };
    let mut folders = Vec::new();
    let mut inner = path.trim_end_matches('/');
    loop {
        folders.push(format!("{base}{inner}"));
        let Some(slash) = inner.rfind('/') else { break };
        inner = &inner[..slash];
    }
    folders
}

/// The tightest memory limit around this process, in bytes.
fn memory_limit(host: &Host) -> Option<u64> {
    let version_2 = groups(host, "").into_iter().filter_map(|g| host.number(&format!("{g}/memory.max")));
    let version_1 =
        groups(host, "memory").into_iter().filter_map(|g| host.number(&format!("{g}/memory.limit_in_bytes")));
    version_2.chain(version_1).min()
}

fn cgroup_memory(host: &Host) -> Finding {
    let finding = Finding::new(
        "memory limit of the control group",
        "a process that exceeds it is killed; Sheaf sizes its cache from it, other programs may not know it",
    );
    let total = host.meminfo("MemTotal").unwrap_or(u64::MAX);
    match memory_limit(host) {
        Some(limit) if limit < 256 * MIB => {
            finding.bad(bytes(limit), "give the container or unit at least 512 MiB (MemoryMax=, --memory)")
        }
        Some(limit) if limit < 512 * MIB => {
            finding.warn(bytes(limit), "give the container or unit at least 512 MiB (MemoryMax=, --memory)")
        }
        Some(limit) if limit < total => finding.ok(bytes(limit)),
        _ => finding.ok("none"),
    }
}

/// Processors granted by the tightest quota around this process.
fn cpu_quota(host: &Host) -> Option<f64> {
    let version_2 = groups(host, "").into_iter().filter_map(|g| {
        let text = host.read(&format!("{g}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    let version_1 = groups(host, "cpu").into_iter().filter_map(|g| {
        let quota = host.number(&format!("{g}/cpu.cfs_quota_us"))?;
        Some(quota as f64 / host.number(&format!("{g}/cpu.cfs_period_us"))? as f64)
    });
    version_2.chain(version_1).min_by(f64::total_cmp)
}

fn cgroup_cpu(host: &Host) -> Finding {
    let finding = Finding::new(
        "processor limit of the control group",
        "a process that has used its quota stands still until the next period: pauses of up to 100 ms in every latency",
    );
    match cpu_quota(host) {
        None => finding.ok("none"),
        Some(quota) if quota >= 1.0 => finding.ok(format!("{quota:.1} processors")),
        Some(quota) => {
            finding.warn(format!("{quota:.2} processors"), "grant at least one processor (CPUQuota=, --cpus)")
        }
    }
}
