//! `--fork`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use super::{bad_options, exit};
use crate::config::Settings;

/// `--fork`: starts this program again in the background and waits until it listens.
pub fn background(settings: &Settings, argv: &[String]) -> ExitCode {
    use std::os::unix::process::CommandExt;
    let Some(logpath) = &settings.logpath else {
        if settings.syslog == Some(true) {
            // Who starts it would not learn from there when it listens, or why it does not.
            return bad_options("BadValue: --fork cannot be used with --syslog here, only with --logpath");
        }
        return bad_options("BadValue: --fork has to be used with --logpath");
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!(
                "cannot start the server in the background: this program's own file is not known ({error}); is /proc mounted?"
            );
            return ExitCode::from(exit::FORK_FAILED);
        }
    };
    // `--fork` may stand in the configuration file, where it can't be taken out.
    let mut child = Command::new(program);
    child.args(argv[1..].iter().filter(|argument| *argument != "--fork"));
    child.env(FORKED, "1").stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let mut said = said();
    let stderr = said.as_ref().and_then(|said| said.try_clone().ok());
    child.stderr(stderr.map_or_else(Stdio::null, Stdio::from));
    let before = std::fs::metadata(logpath).map_or((0, 0), |about| (about.ino(), about.len()));
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot start the server in the background: {error}");
            return ExitCode::from(exit::FORK_FAILED);
        }
    };
    println!("about to fork child process, waiting until server is ready for connections.");
    println!("forked process: {}", child.id());
    loop {
        std::thread::sleep(Duration::from_millis(20));
        if let Ok(Some(status)) = child.try_wait() {
            return failed(status, said.as_mut(), &logged(logpath, before));
        }
        if logged(logpath, before).contains("Waiting for connections") {
            println!("child process started successfully, parent exiting");
            return ExitCode::SUCCESS;
        }
    }
}

/// A file for what the process in the background says before it has a log, which goes with the last who has it open.
fn said() -> Option<File> {
    let path = std::env::temp_dir().join(format!("sheaf-fork-{}", std::process::id()));
    let file = OpenOptions::new().read(true).append(true).create_new(true).open(&path).ok()?;
    std::fs::remove_file(&path).ok()?;
    Some(file)
}

/// What the process in the background has logged: in a file of its own, or behind what the one that was there had before.
fn logged(logpath: &Path, (number, length): (u64, u64)) -> String {
    let is_same = std::fs::metadata(logpath).is_ok_and(|about| about.ino() == number);
    let text = std::fs::read(logpath).unwrap_or_default();
    let new = if is_same { text.get(length as usize..).unwrap_or_default() } else { &text };
    String::from_utf8_lossy(new).into_owned()
}

/// Says what the process in the background would have said on a terminal, and ends with its code.
fn failed(status: ExitStatus, said: Option<&mut File>, logged: &str) -> ExitCode {
    let mut words = String::new();
    if let Some(said) = said {
        let _ = said.rewind();
        let _ = said.read_to_string(&mut words);
    }
    eprint!("{words}");
    for line in logged
        .lines()
        .filter(|line| ["\"s\":\"E\"", "\"s\":\"F\""].iter().any(|severe| line.contains(severe)))
    {
        eprintln!("{line}");
    }
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => {
            eprintln!("ERROR: child process failed, exited with {code}");
            ExitCode::from(if code == 0 { exit::FORK_FAILED } else { code })
        }
        None => {
            eprintln!("ERROR: child process failed: {status}");
            ExitCode::from(exit::FORK_FAILED)
        }
    }
}

/// Set in the process that `--fork` has started.
pub const FORKED: &str = "SHEAF_FORKED";
