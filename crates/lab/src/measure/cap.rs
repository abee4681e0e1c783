//! Control groups: a process may use so much of the processors and no more.
//!
//! Servers of a cluster that share a machine's few processors slow each other down; with a cap on each, so low that all of them fit,
//! each is as fast as it would be on a small machine of its own.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A cap on one process; it is lifted with this value.
#[derive(Debug)]
pub struct Cap {
    group: PathBuf,
    /// Where the process was before.
    home: PathBuf,
    pid: u32,
}

/// In so many microseconds a process has its share; short, so that nobody waits long for its turn.
const PERIOD_US: u64 = 20_000;
/// The kernel gives no less.
const LEAST_US: u64 = 1_000;

/// Where this process's groups are.
#[derive(Debug, PartialEq, Eq)]
enum Hierarchy {
    /// The first version: a tree of its own for processors.
    First(PathBuf),
    /// The second version: one tree for everything.
    Second(PathBuf),
}

impl Cap {
    /// Lets the process use so many processors (0.2 is a fifth of one).
    ///
    /// Errors: the machine does not allow it.
    pub fn new(pid: u32, processors: f64) -> Result<Cap> {
        let own = std::fs::read_to_string("/proc/self/cgroup")?;
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let hierarchy = find(&own, &mounts)
            .ok_or_else(|| Error::failed("there are no control groups for processors on this machine"))?;
        let quota = ((processors * PERIOD_US as f64) as u64).max(LEAST_US);
        let (home, limits) = match hierarchy {
            Hierarchy::First(home) => {
                let quota = ("cpu.cfs_quota_us", quota.to_string());
                (home, vec![("cpu.cfs_period_us", PERIOD_US.to_string()), quota])
            }
            Hierarchy::Second(home) => (home, vec![("cpu.max", format!("{quota} {PERIOD_US}"))]),
        };
        let group = home.join(format!("sheaf-lab-{}-{pid}", std::process::id()));
        let place = |error: std::io::Error| Error::from(error).context(group.display());
        std::fs::create_dir(&group).map_err(place)?;
        let cap = Cap { group: group.clone(), home, pid };
        for (name, value) in limits {
            std::fs::write(cap.group.join(name), value).map_err(place)?;
        }
        std::fs::write(cap.group.join(MEMBERS), pid.to_string()).map_err(place)?;
        Ok(cap)
    }
}

/// The file of a group that names its processes.
const MEMBERS: &str = "cgroup.procs";

impl Drop for Cap {
    fn drop(&mut self) {
        // It fails when the process has ended, and is in no group then.
        let _ = std::fs::write(self.home.join(MEMBERS), self.pid.to_string());
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// The group that this process is in, from `/proc/self/cgroup` and `/proc/self/mounts`.
fn find(own: &str, mounts: &str) -> Option<Hierarchy> {
    let mount = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, at, found, options, ..] = fields.as_slice() else { return None };
            let fits =
                *found == kind && option.is_none_or(|option| options.split(',').any(|each| each == option));
            fits.then(|| PathBuf::from(at))
        })
    };
    let path = |controller: &str| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            controllers
                .split(',')
                .any(|each| each == controller)
                .then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let below = |at: &Path, path: String| if path.is_empty() { at.to_owned() } else { at.join(path) };
    if let (Some(at), Some(path)) = (mount("cgroup", Some("cpu")), path("cpu")) {
        return Some(Hierarchy::First(below(&at, path)));
    }
    Some(Hierarchy::Second(below(&mount("cgroup2", None)?, path("")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_found() {
        let own = "9:name=systemd:/\n2:cpuacct:/\n1:cpu,cpuset:/jobs/a:b\n0::/user";
        let first = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0";
        let second = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0";
        assert_eq!(find(own, first), Some(Hierarchy::First("/sys/fs/cgroup/cpu/jobs/a:b".into())));
        assert_eq!(find("0::/user", second), Some(Hierarchy::Second("/sys/fs/cgroup/user".into())));
        assert_eq!(find("0::/", second), Some(Hierarchy::Second("/sys/fs/cgroup".into())));
        assert_eq!(find("0::/", "proc /proc proc rw 0 0"), None);
    }

    #[test]
    fn a_cap_is_lifted_with_its_value() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // Where the machine does not allow it, there is nothing to be seen.
        if let Ok(cap) = Cap::new(child.id(), 0.5) {
            let group = cap.group.clone();
            let members = std::fs::read_to_string(group.join(MEMBERS)).unwrap();
            assert_eq!(members.trim(), child.id().to_string());
            drop(cap);
            assert!(!group.exists());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
