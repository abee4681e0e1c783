//! What the operating system says about the machine and this process.

use std::fs::read_to_string;

fn meminfo(field: &str) -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Bytes of memory in the machine.
pub fn total_memory() -> u64 {
    meminfo("MemTotal:").unwrap_or(1 << 30)
}

/// Bytes of memory that this process may use: the machine's, or its control group's limit.
pub fn memory_limit() -> u64 {
    let limit = |path: &str| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let own_group = read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.trim().to_owned();
        limit(&format!("/sys/fs/cgroup{path}/memory.max"))
    });
    [
        own_group,
        limit("/sys/fs/cgroup/memory.max"),
        limit("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Some(total_memory()),
    ]
    .into_iter()
    .flatten()
    .min()
    .unwrap_or(1 << 30)
}

/// The default for `--cacheSizeGB`: half of what is above 1 GiB, and at least 256 MiB.
pub fn default_cache_bytes() -> u64 {
    (memory_limit().saturating_sub(1 << 30) / 2).max(256 << 20)
}

/// Resident and virtual memory of this process, in bytes.
pub fn process_memory() -> (u64, u64) {
    let text = read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split_whitespace().filter_map(|n| n.parse::<u64>().ok());
    let size = pages.next().unwrap_or(0) * 4096;
    let resident = pages.next().unwrap_or(0) * 4096;
    (resident, size)
}

/// Page faults of this process.
pub fn page_faults() -> u64 {
    let text = read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields are counted after the name in parentheses, which may hold spaces.
    let after = text.rsplit(')').next().unwrap_or("");
    after.split_whitespace().nth(9).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Name and version of the distribution.
pub fn os_release() -> (String, String) {
    let text = read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map_or("unknown", |value| value.trim_matches('"'))
            .to_owned()
    };
    (field("NAME"), field("VERSION_ID"))
}

/// `Linux version ...`.
pub fn kernel_version() -> String {
    read_to_string("/proc/version").unwrap_or_default().trim().to_owned()
}

/// The kernel's release, such as `6.1.0`.
pub fn kernel_release() -> String {
    read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Free space of the file system that holds `path`; `None` if the system does not say.
pub fn free_bytes(path: &std::path::Path) -> Option<u64> {
    fs4::available_space(path).ok()
}
