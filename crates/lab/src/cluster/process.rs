//! Processes that outlive the one that has started them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::target::shell_text;

/// The command that [`hold`] runs.
const HOLD: [&str; 2] = ["cluster", "hold"];

/// A process, known again later: the number alone may meanwhile belong to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasting {
    /// Its number.
    pub pid: u32,
    /// When it was started, in the kernel's ticks since it booted.
    started: u64,
}

/// State and start of a process, from a line of `/proc/PID/stat`.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    // The program's name, in parentheses, may hold anything; after it come the state and numbers.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn look(pid: u32) -> Option<(char, u64)> {
    state_and_start(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

impl Lasting {
    /// Starts a command in the background, its output going to the end of a file. It does nothing before `noted` has returned: whoever
    /// starts it may be killed at any moment, and then it was noted, or ends by itself.
    pub fn start(
        command: &Command,
        output: &Path,
        journal: &Journal,
        noted: impl FnOnce(Lasting) -> Result<()>,
    ) -> Result<()> {
        journal.note("shell", format!("{} >> {} 2>&1 &", shell_text(command), output.display()));
        let mut held = Command::new(std::env::current_exe()?);
        held.args(HOLD).arg("--").arg(command.get_program()).args(command.get_args());
        let (process, child) = Lasting::spawn(held, Stdio::piped(), output)?;
        noted(process)?;
        let mut gate = child.stdin.expect("it was piped");
        gate.write_all(b"\n").map_err(|error| Error::from(error).context("a server that was to start"))
    }

    fn spawn(mut command: Command, input: Stdio, output: &Path) -> Result<(Lasting, Child)> {
        let file = File::options().create(true).append(true).mode(0o600).open(output)?;
        let child = command
            .stdin(input)
            .stdout(file.try_clone()?)
            .stderr(file)
            // Ctrl-C in this terminal is not for it.
            .process_group(0)
            .spawn()
            .map_err(|error| Error::from(error).context(Path::new(command.get_program()).display()))?;
        let pid = child.id();
        let started = look(pid).map_or(0, |(_, started)| started);
        Ok((Lasting { pid, started }, child))
    }

    /// Starts a command at once, for tests.
    #[cfg(test)]
    pub fn start_at_once(command: Command, output: &Path) -> Lasting {
        Lasting::spawn(command, Stdio::null(), output).unwrap().0
    }

    /// This very process, for tests.
    #[cfg(test)]
    pub fn of(pid: u32) -> Lasting {
        Lasting { pid, started: look(pid).map_or(0, |(_, started)| started) }
    }

    /// Whether it still runs. One that has ended and that nobody has collected runs no more, once its last thread has let go of its files.
    pub fn runs(&self) -> bool {
        look(self.pid).is_some_and(|(state, started)| {
            started == self.started && (state != 'Z' || threads(self.pid) > 1)
        })
    }

    /// Waits until it is known whether it runs: one that was noted by whoever was then killed still waits for a word, and is about to
    /// read that none comes. Only for who holds the folder's lock, and so knows that nobody is about to give it.
    pub fn settle(&self) {
        let may_end = || {
            look(self.pid).is_some_and(|(state, started)| started == self.started && !"ZT".contains(state))
        };
        while may_end() && self.waits() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn waits(&self) -> bool {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).skip(1);
        HOLD.iter().all(|word| words.next() == Some(word.as_bytes()))
    }

    /// Sends a signal, printed as the command for it; nothing when it has gone.
    pub fn signal(&self, signal: Signal, journal: &Journal) {
        let Some(pid) = Pid::from_raw(self.pid as i32).filter(|_| self.runs()) else { return };
        let flag = match signal {
            Signal::KILL => "-9 ",
            Signal::STOP => "-STOP ",
            Signal::CONT => "-CONT ",
            _ => "",
        };
        journal.note("shell", format!("kill {flag}{}", self.pid));
        // It fails only when it has gone meanwhile.
        let _ = kill_process(pid, signal);
    }

    /// Waits for its end; whether it came.
    pub fn ends_within(&self, time: Duration) -> bool {
        let began = Instant::now();
        while self.runs() {
            if began.elapsed() > time {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// `sheaf cluster hold`: becomes this command when it is told to. Who ends without a word has not noted it.
///
/// Errors: the command cannot be run.
pub fn hold(command: &[OsString]) -> Result<()> {
    if std::io::stdin().read(&mut [0])? == 0 {
        return Ok(());
    }
    let [program, arguments @ ..] = command else { return Err(Error::usage("hold: name a command")) };
    let error = Command::new(program).args(arguments).stdin(Stdio::null()).exec();
    Err(Error::from(error).context(Path::new(program).display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_to_another_is_not_the_process() {
        let own = Lasting::of(std::process::id());
        assert!(own.runs());
        assert!(!Lasting { started: own.started + 1, ..own }.runs());
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 1 0 4711 9 9";
        assert_eq!(state_and_start(stat), Some(('S', 4711)));
    }

    #[test]
    fn it_is_started_signalled_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (output, journal) = (folder.path().join("it's.log"), Journal::silent());
        let mut command = Command::new("sh");
        command.args(["-c", "echo here; exec sleep 1000"]);
        let process = Lasting::start_at_once(command, &output);
        assert!(process.runs());
        process.signal(Signal::TERM, &journal);
        assert!(process.ends_within(Duration::from_secs(20)));
        // Nothing is left to be signalled, or printed.
        process.signal(Signal::KILL, &journal);
        let lines: Vec<String> = journal.lines().into_iter().map(|line| line.text).collect();
        assert_eq!(lines, [format!("kill {}", process.pid)]);
    }
}
