//! Where a run takes place.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::results::Environment;

/// Looks at this machine. `data` is the folder in which data folders are made.
pub fn look(data: &Path) -> Result<Environment> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mount = mount_of(&read("/proc/self/mountinfo"), &data.canonicalize()?);
    let (filesystem, disk) = mount.unwrap_or_default();
    let fsync_us = fsync_us(data).map_err(|error| Error::from(error).context(data.display()))?;
    Ok(Environment {
        cpu: cpu_name(&read("/proc/cpuinfo")),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        memory_bytes: memory_bytes(),
        kernel: format!(
            "{} {}",
            read("/proc/sys/kernel/ostype").trim(),
            read("/proc/sys/kernel/osrelease").trim()
        ),
        filesystem,
        disk,
        fsync_us,
        load: read("/proc/loadavg").split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
        versions: [("sheaf-lab".to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into(),
    })
}

fn cpu_name(cpuinfo: &str) -> String {
    let value = |key: &str| {
        cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    // ARM has no names, only the numbers of the implementer and the part.
    value("model name")
        .or_else(|| Some(format!("implementer {} part {}", value("CPU implementer")?, value("CPU part")?)))
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Memory that this process may have, in bytes; 0 where the system does not tell.
pub fn memory_bytes() -> u64 {
    memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default(), &cgroup_limits())
}

/// Memory of the machine, or of the strictest control group around this process.
fn memory(meminfo: &str, limits: &[u64]) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or("");
    let kb: u64 = line.split_whitespace().next().and_then(|kb| kb.parse().ok()).unwrap_or(0);
    limits.iter().copied().fold(kb * 1024, u64::min)
}

fn cgroup_limits() -> Vec<u64> {
    let mut files = vec![
        PathBuf::from("/sys/fs/cgroup/memory.max"),
        PathBuf::from("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ];
    // Version 2: every group on the way up may limit.
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) {
        let mut folder = Path::new("/sys/fs/cgroup").join(path);
        while folder.starts_with("/sys/fs/cgroup") && folder != Path::new("/sys/fs/cgroup") {
            files.push(folder.join("memory.max"));
            folder.pop();
        }
    }
    // "max" is no number, and so no limit.
    files.iter().filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok()).collect()
}

/// Filesystem with its options, and device, of the mount that a folder is in.
fn mount_of(mountinfo: &str, folder: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, (String, String))> = None;
    for line in mountinfo.lines() {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(4);
        let (point, options) = (left.next()?.replace("\\040", " "), left.next()?);
        let mut right = right.split(' ');
        let (kind, device) = (right.next()?, right.next()?);
        // Of several mounts on one point, the last covers those before.
        if folder.starts_with(&point) && best.as_ref().is_none_or(|(length, _)| point.len() >= *length) {
            best = Some((point.len(), (format!("{kind} ({options})"), device.to_owned())));
        }
    }
    best.map(|(_, found)| found)
}

/// Writes of one sync each, whose median is taken.
const SYNCS: usize = 32;

/// Median of write+fdatasync at the end of a file, in microseconds.
fn fsync_us(folder: &Path) -> std::io::Result<f64> {
    let mut file = tempfile::tempfile_in(folder)?;
    let block = [0x5A; 4096];
    let mut took = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(crate::stats::median(&took).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_counts() {
        let info = "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                    2 1 8:2 / /var rw,noatime - xfs /dev/sdb rw,x\n\
                    3 1 0:5 / /var/my\\040data rw - tmpfs none rw\n";
        let of = |path: &str| mount_of(info, Path::new(path)).unwrap();
        assert_eq!(of("/home/x"), ("ext4 (rw,relatime)".into(), "/dev/sda1".into()));
        assert_eq!(of("/var/lib"), ("xfs (rw,noatime)".into(), "/dev/sdb".into()));
        assert_eq!(of("/var/my data/db").1, "none");
        assert_eq!(of("/variety").1, "/dev/sda1");
    }

    #[test]
    fn control_groups_limit_memory() {
        let meminfo = "MemTotal:       1000 kB\nMemFree: 1 kB\n";
        assert_eq!(memory(meminfo, &[]), 1_024_000);
        assert_eq!(memory(meminfo, &[2_000_000, 500_000]), 500_000);
    }

    #[test]
    fn processors_have_names() {
        assert_eq!(cpu_name("processor\t: 0\nmodel name\t: Fast One\n"), "Fast One");
        assert_eq!(cpu_name("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "implementer 0x41 part 0xd0c");
        assert_eq!(cpu_name(""), std::env::consts::ARCH);
    }

    #[test]
    fn this_machine_has_everything() {
        let found = look(&std::env::temp_dir()).unwrap();
        assert!(found.cores > 0 && found.memory_bytes > 1 << 20 && found.fsync_us > 0.0);
        assert!(found.kernel.len() > 5 && !found.filesystem.is_empty());
    }
}
