//! The file system and the device under the data folder, as far as the system tells.

use std::path::Path;

use super::finding::{Finding, Host};
use crate::report::bytes;

const GIB: u64 = 1 << 30;

pub fn findings(host: &Host) -> Vec<Finding> {
    let mount = Mount::of(host);
    vec![
        file_system(mount.as_ref()),
        options(mount.as_ref()),
        read_ahead(host, mount.as_ref()),
        rotating(host, mount.as_ref()),
        scheduler(host, mount.as_ref()),
        free_space(host),
    ]
}

/// A line of `/proc/self/mountinfo`.
struct Mount {
    /// "major:minor".
    device: String,
    kind: String,
    source: String,
    options: Vec<String>,
}

impl Mount {
    /// The mount that holds the data folder: the longest mount point that is a prefix of it, and of those the last.
    fn of(host: &Host) -> Option<Mount> {
        let text = host.read("/proc/self/mountinfo")?;
        let mounts = text.lines().filter_map(Mount::parse).filter(|(point, _)| host.data.starts_with(point));
        mounts.max_by_key(|(point, _)| Path::new(point).components().count()).map(|(_, mount)| mount)
    }

    /// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
    fn parse(line: &str) -> Option<(String, Mount)> {
        let (first, second) = line.split_once(" - ")?;
        let first: Vec<&str> = first.split(' ').collect();
        let mut second = second.split(' ');
        let (kind, source) = (second.next()?.to_owned(), second.next()?.to_owned());
        let super_options = second.next().unwrap_or("");
        let all = first.get(5)?.split(',').chain(super_options.split(','));
        let point = first.get(4)?.replace("\\040", " ");
        Some((
            point,
            Mount {
                device: (*first.get(2)?).to_owned(),
                kind,
                source,
                options: all.map(str::to_owned).collect(),
            },
        ))
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }

    /// A file in the device's queue folder; partitions have none, their disk does.
    fn queue(&self, host: &Host, file: &str) -> Option<String> {
        let folder = format!("/sys/dev/block/{}", self.device);
        host.read(&format!("{folder}/queue/{file}")).or_else(|| {
            let device = host.at(&folder).canonicalize().ok()?;
            std::fs::read_to_string(device.parent()?.join("queue").join(file))
                .ok()
                .map(|t| t.trim().to_owned())
        })
    }
}

fn file_system(mount: Option<&Mount>) -> Finding {
    let finding = Finding::new(
        "file system",
        "an acknowledged write is as safe as the file system's fsync, and large files that grow need extents: XFS and ext4 do both \
         well; copy-on-write file systems write more, network file systems break locks and fsync",
    );
    let Some(mount) = mount else { return finding };
    let seen = format!("{} on {}", mount.kind, mount.source);
    let mend = "keep the data on a local disk with XFS or ext4: mkfs.xfs /dev/..., and --dbpath there";
    match mount.kind.as_str() {
        "xfs" | "ext4" => finding.ok(seen),
        "tmpfs" | "ramfs" => finding.bad(format!("{seen}: gone after a restart"), mend),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "vboxsf" => finding.bad(seen, mend),
        _ => finding.warn(seen, mend),
    }
}

fn options(mount: Option<&Mount>) -> Finding {
    let finding = Finding::new(
        "mount options",
        "without barriers an fsync promises nothing after a power cut; recording each access time turns reads into writes",
    );
    let Some(mount) = mount else { return finding };
    let seen = mount.options.join(",");
    if mount.has("ro") {
        return finding.bad(seen, "mount -o remount,rw (after a look at why it is read-only: dmesg)");
    }
    if mount.has("nobarrier") || mount.has("barrier=0") {
        return finding.bad(seen, "mount -o remount,barrier=1, and take nobarrier out of /etc/fstab");
    }
    if mount.has("data=writeback") {
        return finding
            .warn(seen, "data=ordered in /etc/fstab: after a crash, files may hold other files' old bytes");
    }
    if mount.has("noatime") || mount.has("relatime") {
        return finding.ok(seen);
    }
    finding.warn(seen, "mount -o remount,noatime, and noatime in /etc/fstab")
}

fn read_ahead(host: &Host, mount: Option<&Mount>) -> Finding {
    let finding = Finding::new(
        "readahead",
        "finding one document by its key reads one block; a large readahead reads its neighbours with it and fills the page cache. \
         RocksDB turns it off for its own files, mongod does not and is best with 4 to 16 KiB",
    );
    let Some(kilobytes) =
        mount.and_then(|m| m.queue(host, "read_ahead_kb")).and_then(|t| t.parse::<u64>().ok())
    else {
        return finding;
    };
    let seen = format!("{kilobytes} KiB");
    if kilobytes <= 256 {
        return finding.ok(seen);
    }
    let source = mount.map_or("/dev/...", |m| m.source.as_str());
    finding.warn(
        seen,
        format!("blockdev --setra 64 {source} (in sectors of 512 bytes; a udev rule makes it stay)"),
    )
}

fn rotating(host: &Host, mount: Option<&Mount>) -> Finding {
    let finding = Finding::new(
        "kind of disk",
        "on a rotating disk each fsync and each read beside the cache waits for the plate: 5 to 10 ms instead of 0.1 ms",
    );
    match mount.and_then(|m| m.queue(host, "rotational")).as_deref() {
        Some("0") => finding.ok("does not rotate"),
        // Virtual disks say that they rotate when the hypervisor does not tell.
        Some("1")
            if mount.is_some_and(|m| m.source.starts_with("/dev/vd") || m.source.starts_with("/dev/xvd")) =>
        {
            finding.unknown("virtual; says that it rotates, see the measured fsync")
        }
        Some("1") => finding.warn("rotates", "put the data on a solid-state disk"),
        _ => finding,
    }
}

fn scheduler(host: &Host, mount: Option<&Mount>) -> Finding {
    let finding = Finding::new(
        "input/output scheduler",
        "solid-state disks and hypervisors order requests themselves; a fair scheduler above them only delays an fsync",
    );
    let Some(text) = mount.and_then(|m| m.queue(host, "scheduler")) else { return finding };
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text.as_str(), |(word, _)| word);
    match chosen {
        "none" | "noop" | "mq-deadline" | "deadline" | "kyber" => finding.ok(chosen),
        _ => finding.warn(
            chosen,
            format!(
                "echo none > /sys/dev/block/{}/queue/scheduler (or mq-deadline)",
                mount.map_or("...", |m| m.device.as_str())
            ),
        ),
    }
}

fn free_space(host: &Host) -> Finding {
    let finding = Finding::new(
        "free disk space",
        "compactions need room for old and new files at once; when the disk is full, writes stop",
    );
    let Ok(space) = rustix::fs::statvfs(&host.data) else { return finding };
    let (free, total) = (space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize);
    space_finding(finding, free, total)
}

fn space_finding(finding: Finding, free: u64, total: u64) -> Finding {
    let share = if total > 0 { 100.0 * free as f64 / total as f64 } else { 0.0 };
    let seen = format!("{} of {} ({share:.0} %)", bytes(free), bytes(total));
    match free {
        _ if free < GIB => finding.bad(seen, "make room, or move --dbpath to a larger disk"),
        _ if free < 5 * GIB || share < 10.0 => {
            finding.warn(seen, "make room, or move --dbpath to a larger disk")
        }
        _ => finding.ok(seen),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn free_space_counts_in_bytes_and_in_share() {
        let status = |free, total| space_finding(Finding::new("x", "y"), free, total).status;
        assert_eq!(status(50 * GIB, 100 * GIB), Status::Ok);
        assert_eq!(status(50 * GIB, 1000 * GIB), Status::Warn);
        assert_eq!(status(4 * GIB, 10 * GIB), Status::Warn);
        assert_eq!(status(GIB / 2, GIB), Status::Bad);
        assert_eq!(status(0, 0), Status::Bad);
    }
}
