//! `--shutdown`: ends the server of a data folder, and waits until it has ended.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// mongod's exit code where there is no server to end.
const FAILED: u8 = 1;

/// The file that a server keeps open, locked, with its process id in it (`sheaf_storage`).
const LOCK: &str = "sheaf.lock";

/// Ends the server that runs with this data folder. Says so, or why it could not be done.
pub fn main(folder: &Path) -> ExitCode {
    let Some(pid) = holder(folder) else {
        eprintln!("There doesn't seem to be a server running with dbpath: {}", folder.display());
        return ExitCode::from(FAILED);
    };
    println!("killing process with pid: {}", pid.as_raw_nonzero());
    match kill_process(pid, Signal::TERM) {
        // It has ended by itself meanwhile.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            eprintln!("process {} cannot be ended: {error}", pid.as_raw_nonzero());
            return ExitCode::from(FAILED);
        }
    }
    // However long: it flushes its data.
    while runs(pid) {
        std::thread::sleep(Duration::from_millis(20));
    }
    ExitCode::SUCCESS
}

/// The server of this folder: the process that the lock names, if it runs and has the lock open. A server that crashed
/// leaves its number behind, which may be another process's by now.
fn holder(folder: &Path) -> Option<Pid> {
    let name = folder.join(LOCK);
    let lock = fs::metadata(&name).ok()?;
    let pid = Pid::from_raw(fs::read_to_string(&name).ok()?.trim().parse().ok()?)?;
    let holds = match fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())) {
        Ok(open) => open
            .flatten()
            .filter_map(|file| fs::metadata(file.path()).ok())
            .any(|file| (file.dev(), file.ino()) == (lock.dev(), lock.ino())),
        // Another user's. The signal will be refused, and the user told so.
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    holds.then_some(pid)
}

/// Whether the process has not ended. One that its parent has not asked about yet has.
fn runs(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}
