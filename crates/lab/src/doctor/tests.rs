use std::fs;

use super::*;

/// A made-up `/proc` and `/sys` of a well-kept host.
struct Tree {
    folder: tempfile::TempDir,
    data: tempfile::TempDir,
}

impl Tree {
    fn new() -> Tree {
        let tree = Tree { folder: tempfile::tempdir().unwrap(), data: tempfile::tempdir().unwrap() };
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             96365                96365                processes\n\
                      Max open files            64000                unlimited            files\n";
        for (path, text) in [
            ("proc/self/limits", limits),
            ("proc/self/cgroup", "0::/system.slice/sheaf.service\n"),
            ("proc/sys/vm/max_map_count", "262144\n"),
            ("proc/meminfo", "MemTotal:       16000000 kB\nSwapTotal:             0 kB\n"),
            ("proc/sys/vm/swappiness", "60\n"),
            ("proc/sys/vm/zone_reclaim_mode", "0\n"),
            ("proc/sys/vm/dirty_background_bytes", "0\n"),
            ("proc/sys/vm/dirty_background_ratio", "5\n"),
            ("proc/sys/vm/dirty_bytes", "0\n"),
            ("proc/sys/vm/dirty_ratio", "20\n"),
            ("proc/sys/vm/overcommit_memory", "0\n"),
            ("proc/sys/net/ipv4/tcp_keepalive_time", "120\n"),
            ("proc/sys/net/core/somaxconn", "4096\n"),
            ("proc/cpuinfo", "processor : 0\nflags : fpu sse hypervisor\n"),
            ("proc/stat", "cpu  1000 0 1000 5000 0 0 0 10 0 0\ncpu0 1 1 1 1\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never\n"),
            ("sys/devices/system/node/node0/cpulist", "0-7\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ("sys/dev/block/259:1/queue/read_ahead_kb", "128\n"),
            ("sys/dev/block/259:1/queue/rotational", "0\n"),
            ("sys/dev/block/259:1/queue/scheduler", "[none] mq-deadline\n"),
        ] {
            tree.set(path, text);
        }
        tree.mount("xfs", "/dev/nvme0n1p1", "rw,noatime");
        tree
    }

    fn set(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn mount(&self, kind: &str, source: &str, options: &str) {
        let point = self.data.path().canonicalize().unwrap();
        let line = |n: u32, device: &str, point: &str, options: &str, kind: &str, source: &str| {
            format!("{n} 1 {device} / {point} {options} shared:1 - {kind} {source} {options}\n")
        };
        let root = line(1, "8:0", "/", "rw,strictatime", "btrfs", "/dev/sda");
        self.set(
            "proc/self/mountinfo",
            &(root + &line(2, "259:1", &point.to_string_lossy(), options, kind, source)),
        );
    }

    fn finding(&self, name: &str) -> Finding {
        // A data folder that does not exist yet is judged by the folder it will be in.
        let findings = facts_at(self.folder.path(), &self.data.path().join("not/yet"));
        findings.into_iter().find(|f| f.name == name).unwrap_or_else(|| panic!("no finding {name}"))
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.folder.path().join(path)).unwrap();
    }
}

#[test]
fn a_well_kept_host_is_well() {
    let tree = Tree::new();
    let findings = facts_at(tree.folder.path(), tree.data.path());
    let wrong: Vec<&Finding> =
        findings.iter().filter(|f| f.status != Status::Ok && f.name != "free disk space").collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(tree.finding("file system").seen.contains("xfs on /dev/nvme0n1p1"));
    assert!(tree.finding("virtualisation").seen.contains("QEMU"));
}

#[test]
fn each_neglect_is_found_and_has_a_remedy() {
    let cases: [(&str, &str, &str, Status); 21] = [
        ("proc/self/limits", "Max open files  1024  4096  files\n", "open files", Status::Bad),
        ("proc/self/limits", "Max open files  20000  20000  files\n", "open files", Status::Warn),
        ("proc/self/limits", "Max processes  500  500  processes\n", "processes and threads", Status::Bad),
        ("proc/sys/vm/max_map_count", "1000", "memory mappings", Status::Warn),
        (
            "sys/fs/cgroup/system.slice/memory.max",
            "134217728",
            "memory limit of the control group",
            Status::Bad,
        ),
        (
            "sys/fs/cgroup/system.slice/sheaf.service/cpu.max",
            "50000 100000",
            "processor limit of the control group",
            Status::Warn,
        ),
        ("proc/meminfo", "MemTotal: 16000000 kB\nSwapTotal: 4000000 kB\n", "swap", Status::Warn),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never",
            "transparent huge pages",
            Status::Warn,
        ),
        ("sys/devices/system/node/node1/cpulist", "8-15", "NUMA", Status::Warn),
        ("proc/sys/vm/dirty_ratio", "90", "unwritten pages", Status::Warn),
        ("proc/sys/vm/dirty_background_bytes", "9000000000", "unwritten pages", Status::Warn),
        ("proc/sys/vm/overcommit_memory", "2", "overcommit", Status::Warn),
        (
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave",
            "frequency scaling",
            Status::Warn,
        ),
        (
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet",
            "clock source",
            Status::Warn,
        ),
        ("proc/stat", "cpu  1000 0 1000 5000 0 0 0 500 0 0\n", "stolen time", Status::Warn),
        ("proc/sys/net/ipv4/tcp_keepalive_time", "7200", "TCP keepalive", Status::Warn),
        ("proc/sys/net/core/somaxconn", "128", "waiting connections", Status::Warn),
        ("sys/dev/block/259:1/queue/read_ahead_kb", "4096", "readahead", Status::Warn),
        ("sys/dev/block/259:1/queue/rotational", "1", "kind of disk", Status::Warn),
        ("sys/dev/block/259:1/queue/scheduler", "none [bfq]", "input/output scheduler", Status::Warn),
        ("proc/self/cgroup", "4:memory:/box\n", "memory limit of the control group", Status::Ok),
    ];
    for (path, text, name, status) in cases {
        let tree = Tree::new();
        tree.set(path, text);
        let finding = tree.finding(name);
        assert_eq!(finding.status, status, "{path} = {text}: {finding:?}");
        assert_eq!(finding.mend.is_empty(), status == Status::Ok, "{finding:?}");
        assert!(!finding.why.is_empty());
    }
}

#[test]
fn zone_reclaim_matters_with_several_nodes() {
    let tree = Tree::new();
    tree.set("proc/sys/vm/zone_reclaim_mode", "1");
    assert_eq!(tree.finding("zone reclaim").status, Status::Ok);
    tree.set("sys/devices/system/node/node1/cpulist", "8-15");
    assert_eq!(tree.finding("zone reclaim").status, Status::Bad);
}

#[test]
fn limits_of_version_1_control_groups_count() {
    let tree = Tree::new();
    tree.set("proc/self/cgroup", "5:cpu,cpuacct:/box\n4:memory:/box/inner\n0::/\n");
    tree.set("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "300000000\n");
    tree.set("sys/fs/cgroup/memory/box/inner/memory.limit_in_bytes", "9223372036854771712\n");
    tree.set("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000\n");
    tree.set("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    let memory = tree.finding("memory limit of the control group");
    assert_eq!((memory.status, memory.seen.as_str()), (Status::Warn, "286 MiB"));
    assert_eq!(tree.finding("processor limit of the control group").seen, "2.5 processors");
    // -1 is no quota.
    tree.set("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    assert_eq!(tree.finding("processor limit of the control group").seen, "none");
}

#[test]
fn file_systems_and_mount_options() {
    let tree = Tree::new();
    for (kind, options, name, status) in [
        ("ext4", "rw,relatime", "file system", Status::Ok),
        ("ext4", "rw,relatime", "mount options", Status::Ok),
        ("ext4", "rw", "mount options", Status::Warn),
        ("ext4", "rw,noatime,nobarrier", "mount options", Status::Bad),
        ("ext4", "rw,noatime,data=writeback", "mount options", Status::Warn),
        ("ext4", "ro,noatime", "mount options", Status::Bad),
        ("tmpfs", "rw,relatime", "file system", Status::Bad),
        ("nfs4", "rw,relatime", "file system", Status::Bad),
        ("overlay", "rw,relatime", "file system", Status::Warn),
    ] {
        tree.mount(kind, "somewhere", options);
        assert_eq!(tree.finding(name).status, status, "{kind} {options}");
    }
    tree.set("sys/dev/block/259:1/queue/rotational", "1");
    tree.mount("ext4", "/dev/vda1", "rw,relatime");
    assert_eq!(tree.finding("kind of disk").status, Status::Unknown);
}

#[test]
fn what_the_system_does_not_tell_is_unknown() {
    let empty = tempfile::tempdir().unwrap();
    let findings = facts_at(empty.path(), empty.path());
    for name in ["open files", "swap", "file system", "readahead", "clock source", "TCP keepalive"] {
        let finding = findings.iter().find(|f| f.name == name).unwrap();
        assert_eq!(finding.status, Status::Unknown, "{name}");
    }
    let tree = Tree::new();
    tree.remove("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    assert_eq!(tree.finding("frequency scaling").status, Status::Ok);
}

#[test]
fn printed_with_reason_and_remedy() {
    let tree = Tree::new();
    tree.set("proc/sys/net/core/somaxconn", "128");
    let text = print(&facts_at(tree.folder.path(), tree.data.path()));
    assert!(text.contains("ok    open files"), "{text}");
    assert!(text.contains("warn  waiting connections"), "{text}");
    assert!(
        text.contains("      why:  many clients")
            && text.contains("      mend:  sysctl -w net.core.somaxconn=4096")
    );
    let json = serde_json::to_string(&tree.finding("waiting connections")).unwrap();
    assert!(json.contains("\"status\":\"warn\""), "{json}");
}
