//! `--fork`.

use std::process::ExitCode;
use std::time::Duration;

use super::{bad_options, exit};
use crate::config::Settings;

/// `--fork`: starts this program again in the background and waits until it listens.
pub fn background(settings: &Settings, argv: &[String]) -> ExitCode {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    let Some(logpath) = &settings.logpath else {
        return bad_options("BadValue: --fork has to be used with --logpath or --syslog");
    };
    let Ok(program) = std::env::current_exe() else {
        return ExitCode::from(exit::FORK_FAILED);
    };
    // `--fork` may stand in the configuration file, where it can't be taken out.
    let mut child = Command::new(program);
    child.args(argv[1..].iter().filter(|argument| *argument != "--fork"));
    child.env(FORKED, "1").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let before = std::fs::metadata(logpath).map_or(0, |about| about.len());
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
            eprintln!("ERROR: child process failed, exited with {}", status.code().unwrap_or(1));
            return ExitCode::from(exit::FORK_FAILED);
        }
        let text = std::fs::read(logpath).unwrap_or_default();
        let new = if settings.logappend == Some(true) {
            text.get(before as usize..).unwrap_or_default()
        } else {
            &text
        };
        if String::from_utf8_lossy(new).contains("Waiting for connections") {
            println!("child process started successfully, parent exiting");
            return ExitCode::SUCCESS;
        }
    }
}

/// Set in the process that `--fork` has started.
pub const FORKED: &str = "SHEAF_FORKED";
