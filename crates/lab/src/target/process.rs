//! A server process that does not outlive the run, and its data folder.

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::context::Stop;
use crate::error::{Error, Result};
use crate::journal::Journal;

/// A server process, its data folder and its log.
///
/// It ends in any case: with this value when the run ends or fails, by the guard when the run itself is killed. The
/// guard is a shell that waits for the other end of its pipe, which only this process holds, to be closed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    guard: Child,
    /// "host:port".
    pub address: String,
    /// The data folder.
    pub data: PathBuf,
    log: PathBuf,
    keep: bool,
    ended: bool,
}

/// Waits for its input to end; unless it has read a line then, it kills the server and removes what is not to be kept.
const GUARD: &str = r#"trap "" INT TERM HUP
read line || { kill -9 "$0"; sleep 1; rm -rf -- "$@"; }"#;

/// How long an orderly shutdown may take.
const SHUTDOWN: Duration = Duration::from_secs(60);
/// How long a server may take to answer for the first time.
const START: Duration = Duration::from_secs(60);
/// Lines of a log that are shown when a server does not start.
const TAIL: usize = 15;

/// A port of the loopback interface that nobody listens on.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A command line as a shell would take it.
pub(super) fn shell_text(command: &Command) -> String {
    let quote = |word: &std::ffi::OsStr| {
        let word = word.to_string_lossy();
        let plain =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '=' | ':' | ',' | '+');
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quote).collect::<Vec<_>>().join(" ")
}

impl Process {
    /// Starts the command, its output going to a log beside the data folder.
    pub(super) fn start(
        mut command: Command,
        address: String,
        data: PathBuf,
        keep: bool,
        journal: &Journal,
    ) -> Result<Process> {
        let log = data.with_extension("log");
        let output = File::create(&log)?;
        journal.note("shell", shell_text(&command));
        let program = PathBuf::from(command.get_program());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C is for the run, which then ends its servers in order.
            .process_group(0)
            .spawn()
            .map_err(|error| Error::from(error).context(program.display()))?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, &child.id().to_string()])
            .args([&data, &log].into_iter().filter(|_| !keep))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        match guard {
            Ok(guard) => Ok(Process { child, guard, address, data, log, keep, ended: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Error::from(error).context("sh"))
            }
        }
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` says that the server answers.
    pub(super) fn wait_until(&mut self, stop: &Stop, mut ready: impl FnMut() -> bool) -> Result<()> {
        let began = Instant::now();
        while !ready() {
            if let Some(status) = self.child.try_wait()? {
                return Err(self.did_not_start(&format!("it ended with {status}")));
            }
            if began.elapsed() > START {
                return Err(self.did_not_start("it does not answer"));
            }
            if stop.is_set() {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn did_not_start(&self, why: &str) -> Error {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  ");
        Error::failed(format!("{} did not start: {why}. The end of its log:\n  {tail}", self.address))
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it: in order when its data is to be kept, else at once.
    pub fn end(mut self) -> Result<()> {
        let status = self.child.try_wait()?;
        if let Some(status) = status {
            return Err(Error::failed(format!("{} ended by itself with {status}", self.address)));
        }
        if self.keep {
            if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
                let _ = kill_process(pid, Signal::TERM);
            }
            let began = Instant::now();
            while self.child.try_wait()?.is_none() {
                if began.elapsed() > SHUTDOWN {
                    return Err(Error::failed(format!("{} does not shut down", self.address)));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.put_down();
        Ok(())
    }

    fn put_down(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The server is gone and its number may be given to another: the guard must not kill.
        if let Some(mut input) = self.guard.stdin.take() {
            let _ = input.write_all(b"\n");
        }
        let _ = self.guard.wait();
        if !self.keep {
            remove(&self.data);
            let _ = std::fs::remove_file(&self.log);
        }
    }
}

/// Files of a killed process may still be appearing for a moment.
fn remove(folder: &Path) {
    for _ in 0..3 {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => return,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.put_down();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(command: Command, data: &Path) -> Process {
        Process::start(command, "here:1".into(), data.to_owned(), false, &Journal::silent()).unwrap()
    }

    fn exists(pid: u32) -> bool {
        // A zombie, which its new parent has not yet collected, runs no more.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn ends_with_its_value_and_takes_its_folder_along() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("file"), "x").unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let process = start(command, &data);
        let pid = process.pid();
        assert!(exists(pid));
        drop(process);
        assert!(!exists(pid) && !data.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_guard_kills_when_its_pipe_closes() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut process = start(command, &data);
        let pid = process.pid();
        // What happens when this process is killed: its ends of pipes are closed.
        drop(process.guard.stdin.take());
        process.guard.wait().unwrap();
        process.child.wait().unwrap();
        assert!(!exists(pid));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_log_says_why_it_did_not_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room here; exit 3"]);
        let mut process = start(command, &folder.path().join("data"));
        let error = process.wait_until(&Stop::default(), || false).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no room here"), "{error}");
    }

    #[test]
    fn command_lines_can_be_repeated_in_a_shell() {
        let mut command = Command::new("/bin/mongod");
        command.args(["--port", "1", "--setParameter", "a=it's b"]);
        assert_eq!(shell_text(&command), r"/bin/mongod --port 1 --setParameter 'a=it'\''s b'");
    }
}
