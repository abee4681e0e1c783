//! A control group that limits the memory of one server.
//!
//! What the server's files have in the page cache counts too, so a server with more data than the limit really reads from
//! its disk. The group is made below the one that this process is in, whose own limits stay in force.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::process::quoted;

/// Of a hierarchy of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group. It goes with this value, once nobody is in it any more.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    version: Version,
    limit: u64,
}

/// Where a group may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    folder: PathBuf,
    version: Version,
}

/// Each of the groups has a name of its own.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl MemoryGroup {
    /// A new group with this limit, in bytes.
    ///
    /// Errors: why none can be made here, in words.
    pub fn make(limit: u64) -> Result<MemoryGroup, String> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let places = places(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let mut why = "no hierarchy of control groups with memory is mounted".to_owned();
        for place in places {
            match MemoryGroup::make_at(&place, limit) {
                Ok(group) => return Ok(group),
                Err(error) => why = format!("{}: {error}", place.folder.display()),
            }
        }
        Err(why)
    }

    fn make_at(place: &Place, limit: u64) -> std::io::Result<MemoryGroup> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = place.folder.join(format!("sheaf-lab-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder)?;
        // From here on it is removed again, whatever fails.
        let group = MemoryGroup { folder, version: place.version, limit };
        let write = |file: &str, text: &str| std::fs::write(group.folder.join(file), text);
        match group.version {
            Version::One => {
                write("memory.limit_in_bytes", &limit.to_string())?;
                // Swap counts together with memory, where the kernel counts it at all.
                let _ = write("memory.memsw.limit_in_bytes", &limit.to_string());
            }
            Version::Two => {
                write("memory.max", &limit.to_string())?;
                let _ = write("memory.swap.max", "0");
            }
        }
        Ok(group)
    }

    /// One that no kernel knows.
    #[cfg(test)]
    pub(super) fn nowhere(limit: u64) -> MemoryGroup {
        MemoryGroup { folder: "/no/such/group".into(), version: Version::One, limit }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Its folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// How a person would make it.
    pub(super) fn shell_text(&self) -> String {
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        let folder = quoted(&self.folder.to_string_lossy());
        format!("mkdir {folder} && echo {} > {folder}/{file}", self.limit)
    }

    /// The command as one that joins the group and then becomes the program, with the same process number.
    pub(super) fn joined(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(self.folder.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        shell
    }

    /// How often the kernel has ended a process in it for want of memory.
    pub fn killed(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }

    /// The most that it held, page cache included, in bytes; `None` where the kernel does not tell.
    pub fn peak(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        std::fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Who was killed may be in it for a moment longer.
        for _ in 0..100 {
            match std::fs::remove_dir(&self.folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

/// The folders in which a group may be made, the best first.
fn places(groups: &str, mounts: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for (version, kind, controller) in [(Version::Two, "cgroup2", ""), (Version::One, "cgroup", "memory")] {
        let own = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers.split(',').any(|name| name == controller).then_some(path)
        });
        let (Some(own), Some((mount, root))) = (own, mount(mounts, kind, controller)) else { continue };
        // In a container the mount may begin somewhere below the hierarchy's root.
        let Some(below) = Path::new(own).strip_prefix(&root).ok() else { continue };
        let folder = mount.join(below);
        match version {
            Version::One => places.push(Place { folder, version }),
            Version::Two => places.extend(of_version_two(&mount, folder)),
        }
    }
    places
}

/// In version 2 a group that has processes cannot hand on the memory to groups below it, unless it is the root: then the
/// new one stands beside it, but only where no limit of its own is left that way.
fn of_version_two(mount: &Path, mut folder: PathBuf) -> Vec<Place> {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let mut places = Vec::new();
    loop {
        let handed = read(folder.join("cgroup.subtree_control"));
        if handed.split_whitespace().any(|name| name == "memory") {
            places.push(Place { folder: folder.clone(), version: Version::Two });
        }
        let limit = read(folder.join("memory.max"));
        if folder == mount || limit.trim() != "max" || !folder.pop() {
            return places;
        }
    }
}

/// Where a hierarchy is mounted, and from which of its groups on.
fn mount(mounts: &str, kind: &str, controller: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (found, _, options) = (right.next()?, right.next()?, right.next()?);
        let fits = controller.is_empty() || options.split(',').any(|option| option == controller);
        (found == kind && fits).then(|| (PathBuf::from(point), PathBuf::from(root)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_made_below_the_own_one() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let groups = "4:memory:/box/inner\n1:cpu:/\n0::/\n";
        let place = Place { folder: "/sys/fs/cgroup/memory/box/inner".into(), version: Version::One };
        assert_eq!(places(groups, mounts), [place]);
        // A container that sees its part of the hierarchy only.
        let part = mounts.replace(" / /sys/fs/cgroup/memory", " /box /sys/fs/cgroup/memory");
        assert_eq!(places(groups, &part)[0].folder, Path::new("/sys/fs/cgroup/memory/inner"));
        assert!(places("4:memory:/other\n", &part).is_empty());
        assert!(places("", "").is_empty());
    }

    #[test]
    fn in_version_two_a_group_stands_beside_but_never_outside_of_a_limit() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("slice/scope");
        std::fs::create_dir_all(&inner).unwrap();
        let set = |folder: &Path, file: &str, text: &str| std::fs::write(folder.join(file), text).unwrap();
        set(root.path(), "cgroup.subtree_control", "cpu memory\n");
        set(&root.path().join("slice"), "cgroup.subtree_control", "memory pids\n");
        set(&root.path().join("slice"), "memory.max", "1000000\n");
        set(&inner, "cgroup.subtree_control", "\n");
        set(&inner, "memory.max", "max\n");
        let mounts = format!("30 24 0:26 / {} rw - cgroup2 cgroup2 rw\n", root.path().display());
        let folders = |groups: &str| -> Vec<PathBuf> {
            places(groups, &mounts).into_iter().map(|place| place.folder).collect()
        };
        assert_eq!(folders("0::/slice/scope\n"), [root.path().join("slice")]);
        set(&inner, "memory.max", "500000\n");
        assert!(folders("0::/slice/scope\n").is_empty());
    }

    #[test]
    fn who_joins_keeps_its_arguments() {
        let group = MemoryGroup::nowhere(7);
        let mut command = Command::new("/bin/server");
        command.args(["--port", "1 2"]);
        assert_eq!(
            super::super::shell_text(&group.joined(&command)),
            r#"sh -c 'echo $$ > "$0" && exec "$@"' /no/such/group/cgroup.procs /bin/server --port '1 2'"#
        );
        assert!(group.shell_text().starts_with("mkdir /no/such/group && echo 7 > "));
        assert_eq!((group.killed(), group.peak()), (0, None));
    }

    #[test]
    fn a_process_is_limited_where_that_can_be_done() {
        // Where it cannot, there is a reason in words, and nothing else to see.
        let group = match MemoryGroup::make(64 << 20) {
            Ok(group) => group,
            Err(why) => return assert!(!why.is_empty()),
        };
        let mut command = Command::new("cat");
        command.arg("/proc/self/cgroup");
        let output = group.joined(&command).output().unwrap();
        let name = group.folder.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(String::from_utf8_lossy(&output.stdout).contains(&name));
        let folder = group.folder.clone();
        assert!(group.peak().is_none_or(|peak| peak > 0 && peak <= group.limit()));
        drop(group);
        assert!(!folder.exists());
    }
}
