//! A server process that does not outlive the run, and its data folder.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::MemoryGroup;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::measure::cost::ServerProcess;
use crate::stop::Stop;

/// A server process, its data folder and its log. It can be killed, paused and started again.
///
/// It ends in any case: with this value when the run ends or fails, by the guard when the run itself is killed. The
/// guard is a shell that waits for the other end of its pipe, which only this process holds, to be closed.
#[derive(Debug)]
pub struct Process {
    /// "host:port".
    pub address: String,
    /// The data folder.
    pub data: PathBuf,
    /// Its number and what it costs, over all its lives.
    pub server: ServerProcess,
    log: PathBuf,
    keep: bool,
    program: OsString,
    arguments: Vec<OsString>,
    life: Mutex<Option<Life>>,
    guard: Guard,
    /// What limits its memory. It is removed when the process is down, so it stands behind all else.
    pub group: Option<Arc<MemoryGroup>>,
}

/// A process that runs, until it is ended by us.
#[derive(Debug)]
struct Life {
    child: Child,
    paused: bool,
}

/// A shell that knows which process there is, through a pipe whose other end only this process holds.
#[derive(Debug)]
struct Guard(Mutex<Child>);

/// Reads lines, each of them the number of the process that there is now, or "none". When they end without "done", it
/// kills that process and removes what is not to be kept.
const GUARD: &str = r#"trap "" INT TERM HUP
pid=none
while read -r line; do [ "$line" = done ] && exit; pid=$line; done
[ "$pid" = none ] || kill -9 "$pid"
sleep 1; rm -rf -- "$@"; [ -z "$GROUP" ] || rmdir -- "$GROUP""#;

/// How long an orderly shutdown may take.
const SHUTDOWN: Duration = Duration::from_secs(60);
/// How long a server may take to answer for the first time.
const START: Duration = Duration::from_secs(60);
/// Lines of a log that are shown when a server does not start.
const TAIL: usize = 15;

/// A word as a shell would take it.
pub(crate) fn quoted(word: &str) -> String {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '=' | ':' | ',' | '+');
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A command line as a shell would take it.
pub(crate) fn shell_text(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

impl Process {
    /// Starts the command, its output going to a log beside the data folder.
    pub(super) fn start(
        command: Command,
        address: String,
        data: PathBuf,
        keep: bool,
        journal: &Journal,
    ) -> Result<Process> {
        Process::start_in(None, command, address, data, keep, journal)
    }

    /// The same in a control group, which all its lives are in.
    pub(super) fn start_in(
        group: Option<MemoryGroup>,
        command: Command,
        address: String,
        data: PathBuf,
        keep: bool,
        journal: &Journal,
    ) -> Result<Process> {
        let log = data.with_extension("log");
        let guard = Guard::start(&[&data, &log].map(PathBuf::as_path), keep, group.as_ref())?;
        let command = match &group {
            Some(group) => group.joined(&command),
            None => command,
        };
        let process = Process {
            guard,
            address,
            log,
            data,
            server: ServerProcess::default(),
            keep,
            program: command.get_program().to_owned(),
            arguments: command.get_args().map(ToOwned::to_owned).collect(),
            life: Mutex::new(None),
            group: group.map(Arc::new),
        };
        process.start_again(journal)?;
        Ok(process)
    }

    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it with the same command and data; nothing when it runs.
    pub fn start_again(&self, journal: &Journal) -> Result<()> {
        let mut life = self.life();
        if life.is_some() {
            return Ok(());
        }
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        let output = File::options().create(true).append(true).open(&self.log)?;
        journal.note("shell", shell_text(&command));
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C is for the run, which then ends its servers in order.
            .process_group(0)
            .spawn()
            .map_err(|error| Error::from(error).context(Path::new(&self.program).display()))?;
        self.guard.tell(&child.id().to_string());
        self.server.starts(child.id());
        *life = Some(Life { child, paused: false });
        Ok(())
    }

    /// Ends a life that was taken out of its place. Its number may then be given to another, whom the guard must not kill.
    fn put_down(&self, mut life: Life) {
        let _ = life.child.kill();
        let _ = life.child.wait();
        self.guard.tell("none");
    }

    /// The process's number, while it is meant to run.
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Ends it at once (kill -9); it can be started again.
    pub fn kill(&self, journal: &Journal) {
        if let Some(life) = self.life().take() {
            journal.note("shell", format!("kill -9 {}", life.child.id()));
            self.server.ends();
            self.put_down(life);
        }
    }

    /// Ends it in order (SIGTERM) and waits for that; it can be started again.
    pub fn terminate(&self, journal: &Journal) -> Result<()> {
        let Some(mut life) = self.life().take() else { return Ok(()) };
        journal.note("shell", format!("kill {}", life.child.id()));
        self.server.ends();
        let outcome = life.terminate().map_err(|error| error.context(&self.address));
        self.put_down(life);
        outcome
    }

    /// Stops it (SIGSTOP) until it is resumed.
    pub fn pause(&self, journal: &Journal) {
        if let Some(life) = self.life().as_mut() {
            journal.note("shell", format!("kill -STOP {}", life.child.id()));
            life.signal(Signal::STOP);
            life.paused = true;
        }
    }

    /// Lets it go on (SIGCONT) after a pause.
    pub fn resume(&self, journal: &Journal) {
        if let Some(life) = self.life().as_mut().filter(|life| life.paused) {
            journal.note("shell", format!("kill -CONT {}", life.child.id()));
            life.signal(Signal::CONT);
            life.paused = false;
        }
    }

    /// Whether it is meant to run and is not paused.
    pub fn is_up(&self) -> bool {
        self.life().as_ref().is_some_and(|life| !life.paused)
    }

    /// Waits until `ready` says that the server answers.
    pub(super) fn wait_until(&self, stop: &Stop, mut ready: impl FnMut() -> bool) -> Result<()> {
        let began = Instant::now();
        while !ready() {
            if let Some(life) = self.life().as_mut()
                && let Some(status) = life.child.try_wait()?
            {
                return Err(self.did_not_start(&format!("it ended with {}", self.told(status))));
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
        let tail = self.end_of_log();
        Error::failed(format!("{} did not start: {why}. The end of its log:\n  {tail}", self.address))
    }

    /// Whether it has ended without having been told to.
    pub fn has_ended_by_itself(&self) -> bool {
        self.life().as_mut().is_some_and(|life| !matches!(life.child.try_wait(), Ok(None)))
    }

    /// How it has ended without having been told to, and what may be why.
    pub fn how_it_ended(&self) -> String {
        let status = self.life().as_mut().and_then(|life| life.child.try_wait().ok().flatten());
        status.map_or_else(|| "an unknown status".to_owned(), |status| self.told(status))
    }

    /// A status in words. SIGKILL is how the kernel ends who needs more than the group's limit.
    fn told(&self, status: ExitStatus) -> String {
        match &self.group {
            Some(group) if status.signal() == Some(Signal::KILL.as_raw()) => format!(
                "{status}: its limit of {} MB of memory (server.memory_mb) may be why",
                group.limit() >> 20
            ),
            _ => status.to_string(),
        }
    }

    /// The end of its log, for people who wonder why it ended.
    pub fn end_of_log(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n  ")
    }

    /// Ends it for good: in order when its data is to be kept, else at once.
    pub fn end(self) -> Result<()> {
        let Some(mut life) = self.life().take() else { return Ok(()) };
        self.server.ends();
        let status = life.child.try_wait()?;
        let outcome = match status {
            Some(status) => {
                let told = self.told(status);
                Err(Error::failed(format!("{} ended by itself with {told}", self.address)))
            }
            None if self.keep => life.terminate().map_err(|error| error.context(&self.address)),
            None => Ok(()),
        };
        self.put_down(life);
        outcome
    }
}

impl Life {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    fn terminate(&mut self) -> Result<()> {
        self.signal(Signal::TERM);
        // A stopped process hears of it when it goes on.
        self.signal(Signal::CONT);
        let began = Instant::now();
        while self.child.try_wait()?.is_none() {
            if began.elapsed() > SHUTDOWN {
                return Err(Error::failed("it does not shut down"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Guard {
    fn start(files: &[&Path], keep: bool, group: Option<&MemoryGroup>) -> Result<Guard> {
        let shell = Command::new("sh")
            .env("GROUP", group.map_or("".as_ref(), |group| group.folder().as_os_str()))
            .args(["-c", GUARD, "guard"])
            .args(files.iter().filter(|_| !keep))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| Error::from(error).context("sh"))?;
        Ok(Guard(Mutex::new(shell)))
    }

    fn tell(&self, line: &str) {
        let mut shell = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(input) = &mut shell.stdin {
            // A guard that is gone guards nothing, and the run can go on without.
            let _ = writeln!(input, "{line}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tell("done");
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).wait();
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
        let life = self.life().take();
        if let Some(life) = life {
            self.server.ends();
            self.put_down(life);
        }
        if !self.keep {
            remove(&self.data);
            let _ = std::fs::remove_file(&self.log);
        }
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
        let pid = process.pid().unwrap();
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
        let process = start(command, &data);
        let pid = process.pid().unwrap();
        // What happens when this process is killed: its ends of pipes are closed.
        close(&process.guard);
        process.life().take().unwrap().child.wait().unwrap();
        assert!(!exists(pid));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    fn close(guard: &Guard) {
        let mut shell = guard.0.lock().unwrap();
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }

    #[test]
    fn the_guard_clears_up_after_one_that_is_down_and_kills_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let process = start(command, &data);
        process.kill(&Journal::silent());
        close(&process.guard);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn it_is_killed_paused_and_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo life; exec sleep 1000"]);
        let (process, journal) = (start(command, &data), Journal::silent());
        let first = process.pid().unwrap();
        process.pause(&journal);
        let stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{first}/stat")).unwrap();
            stat.contains(") T ")
        };
        while !stopped() {
            std::thread::yield_now();
        }
        assert!(!process.is_up());
        process.resume(&journal);
        assert!(process.is_up() && !process.has_ended_by_itself());
        process.kill(&journal);
        assert!(!exists(first) && process.pid().is_none() && !process.has_ended_by_itself());
        process.start_again(&journal).unwrap();
        let second = process.pid().unwrap();
        assert!(exists(second) && data.exists());
        process.pause(&journal);
        process.terminate(&journal).unwrap();
        assert!(!exists(second));
        process.start_again(&journal).unwrap();
        let lines: Vec<String> = journal.lines().into_iter().map(|line| line.text).collect();
        assert!(lines[0].starts_with("kill -STOP ") && lines[2].starts_with("kill -9 "), "{lines:?}");
        drop(process);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_log_says_why_it_did_not_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room here; exit 3"]);
        let process = start(command, &folder.path().join("data"));
        let error = process.wait_until(&Stop::default(), || false).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no room here"), "{error}");
    }

    #[test]
    fn who_was_killed_in_a_group_may_have_had_too_little_memory() {
        let folder = tempfile::tempdir().unwrap();
        let ended = |script: &str, group: Option<MemoryGroup>| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let mut process = start(command, &folder.path().join("data"));
            process.group = group.map(Arc::new);
            let error = process.wait_until(&Stop::default(), || false).unwrap_err().to_string();
            assert!(error.contains(&process.how_it_ended()), "{error}");
            assert!(process.end().unwrap_err().to_string().contains("ended by itself with "));
            error
        };
        let group = || Some(MemoryGroup::nowhere(96 << 20));
        let why = "its limit of 96 MB of memory (server.memory_mb) may be why";
        let error = ended("kill -9 $$", group());
        assert!(error.contains("signal: 9") && error.contains(why), "{error}");
        // Who ends by itself, or has no limit, does so for another reason.
        assert!(!ended("exit 3", group()).contains("limit"));
        assert!(!ended("kill -9 $$", None).contains("limit"));
    }

    #[test]
    fn command_lines_can_be_repeated_in_a_shell() {
        let mut command = Command::new("/bin/mongod");
        command.args(["--port", "1", "--setParameter", "a=it's b"]);
        assert_eq!(shell_text(&command), r"/bin/mongod --port 1 --setParameter 'a=it'\''s b'");
    }
}
