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

/// Bytes of memory that this process may use: the machine's, or what a control group that it is in leaves of them.
pub fn memory_limit() -> u64 {
    let limit = group_limit(|path| read_to_string(path).ok());
    limit.into_iter().chain([total_memory()]).min().unwrap_or(1 << 30)
}

/// The least limit of memory among this process's control groups, of either version, and the groups around them.
fn group_limit(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let own = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => Some(("/sys/fs/cgroup", path, "memory.max")),
            _ if controllers.split(',').any(|one| one == "memory") => {
                Some(("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    let limits = own.flat_map(|(mount, path, file)| {
        // In a container the path may be the host's, and the mount shows the container's group as its root.
        let around = path.match_indices('/').map(|(at, _)| &path[..at]);
        let files =
            around.chain([path.trim_end_matches('/')]).map(move |group| format!("{mount}{group}/{file}"));
        files.filter_map(|file| read(&file)?.trim().parse().ok()).collect::<Vec<u64>>()
    });
    limits.min()
}

/// The default for `--cacheSizeGB`: half of what is above 1 GiB, and at least 256 MiB, or a quarter of what there is if
/// that is less.
pub fn default_cache_bytes() -> u64 {
    let limit = memory_limit();
    (limit.saturating_sub(1 << 30) / 2).max(256 << 20).min(limit / 4)
}

/// Resident and virtual memory of this process, in bytes.
pub fn process_memory() -> (u64, u64) {
    let text = read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split_whitespace().filter_map(|n| n.parse::<u64>().ok());
    let size = pages.next().unwrap_or(0) * 4096;
    let resident = pages.next().unwrap_or(0) * 4096;
    (resident, size)
}

/// Memory of this process that no file stands behind, in bytes: what cannot be taken back from it.
pub fn anonymous_memory() -> u64 {
    read_to_string("/proc/self/statm").ok().and_then(|text| anonymous(&text)).unwrap_or(0)
}

/// Memory of this process from the text of `/proc/self/statm`.
fn anonymous(statm: &str) -> Option<u64> {
    let mut pages = statm.split_whitespace().skip(1).map_while(|n| n.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * 4096)
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

/// Free space of the file system that holds `path`; `None` if the system does not say.
pub fn free_bytes(path: &std::path::Path) -> Option<u64> {
    fs4::available_space(path).ok()
}

#[cfg(test)]
mod tests {
    use super::{anonymous, group_limit};

    /// What `group_limit` says where these files are.
    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        group_limit(|path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_least_limit_of_the_groups_around_counts() {
        let none = "9223372036854771712\n";
        let groups = ("/proc/self/cgroup", "5:cpu,cpuacct:/box\n4:memory:/box/inner\n0::/\n");
        let root = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", none);
        let outer = ("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "600\n");
        assert_eq!(limit(&[groups, root, outer]), Some(600));
        let inner = ("/sys/fs/cgroup/memory/box/inner/memory.limit_in_bytes", "500\n");
        assert_eq!(limit(&[groups, root, outer, inner]), Some(500));
    }

    #[test]
    fn memory_with_files_behind_it_does_not_count() {
        assert_eq!(anonymous("900 100 40 5 0 70 0\n"), Some(60 * 4096));
        assert_eq!(anonymous(""), None);
    }

    #[test]
    fn groups_of_version_two_may_have_no_limit() {
        let groups = ("/proc/self/cgroup", "0::/system.slice/sheaf.service\n");
        let own = ("/sys/fs/cgroup/system.slice/sheaf.service/memory.max", "max\n");
        assert_eq!(limit(&[groups, own]), None);
        assert_eq!(limit(&[groups, own, ("/sys/fs/cgroup/system.slice/memory.max", "700\n")]), Some(700));
        assert_eq!(limit(&[]), None);
    }
}
