//! Every command line and administrative command that a run makes: printed as it happens, and kept.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::results::CommandLine;

/// The commands so far.
#[derive(Debug, Default)]
pub struct Journal {
    silent: bool,
    lines: Mutex<Vec<CommandLine>>,
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "reports say when something was")]
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

impl Journal {
    /// One that prints.
    pub fn new() -> Journal {
        Journal::default()
    }

    /// One that only keeps.
    pub fn silent() -> Journal {
        Journal { silent: true, ..Journal::default() }
    }

    /// A command is about to be run: "shell" or a node, and its text.
    pub fn note(&self, to: &str, text: impl Into<String>) {
        let line = CommandLine { at_ms: now_ms(), to: to.to_owned(), text: text.into() };
        if !self.silent {
            match to {
                "shell" => eprintln!("$ {}", line.text),
                "fault" => eprintln!("# {}", line.text),
                node => eprintln!("{node}> {}", line.text),
            }
        }
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// All of them, in order.
    pub fn lines(&self) -> Vec<CommandLine> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
