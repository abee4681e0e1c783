//! The server's log: one JSON object per line, in the shape that mongod writes and that tools parse.
//!
//! Severity, component and id are mongod's own for the messages that tools look for
//! ("Waiting for connections", "Slow query"); messages of ours have those of [`ids`].

pub mod components;
pub mod date;
pub mod events;
pub mod ids;
pub mod seldom;
mod syslog;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sheaf_bson::json::{self, Style};
use sheaf_bson::{DocBuf, RawDoc};
pub use syslog::Facility;
pub(crate) use syslog::SYSTEM_LOG;
use syslog::Syslog;

/// How bad a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The process ends.
    Fatal,
    /// Something failed.
    Error,
    /// Something is not as it should be.
    Warning,
    /// What everybody sees.
    Info,
    /// What is seen with `-v`.
    Debug,
}

impl Severity {
    fn letter(self) -> &'static str {
        match self {
            Severity::Fatal => "F",
            Severity::Error => "E",
            Severity::Warning => "W",
            Severity::Info => "I",
            Severity::Debug => "D1",
        }
    }
}

/// Lines that `getLog` keeps.
const KEPT_LINES: usize = 1024;

struct Logger {
    sink: Mutex<Sink>,
    recent: Mutex<VecDeque<String>>,
    warnings: Mutex<VecDeque<String>>,
    verbosity: AtomicI64,
    quiet: AtomicBool,
    redacting: AtomicBool,
    reopens: AtomicBool,
}

enum Sink {
    Stdout,
    File { file: File, path: PathBuf },
    Syslog(Syslog),
    Nowhere,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

fn logger() -> &'static Logger {
    LOGGER.get_or_init(|| Logger {
        sink: Mutex::new(Sink::Stdout),
        recent: Mutex::default(),
        warnings: Mutex::default(),
        verbosity: AtomicI64::new(0),
        quiet: false.into(),
        redacting: false.into(),
        reopens: false.into(),
    })
}

/// Sends the log to a file. Without `append` a file that exists is first renamed with a time stamp,
/// as mongod does.
pub fn to_file(path: &Path, append: bool) -> io::Result<()> {
    if !append && path.exists() {
        std::fs::rename(path, free_name(rotated_name(path)))?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    *logger().sink.lock() = Sink::File { file, path: path.to_owned() };
    Ok(())
}

/// Sends the log to the system's, as lines of this program.
///
/// Errors: nobody listens there.
pub fn to_syslog(program: &str, facility: Facility) -> io::Result<()> {
    *logger().sink.lock() = Sink::Syslog(Syslog::new(Path::new(SYSTEM_LOG), program, facility)?);
    Ok(())
}

/// Switches the log off, for tests.
pub fn to_nowhere() {
    *logger().sink.lock() = Sink::Nowhere;
}

/// `-v`: how many levels of debug messages are written.
pub fn set_verbosity(level: i64) {
    logger().verbosity.store(level, Ordering::Relaxed);
}

/// The level set by [`set_verbosity`].
pub fn verbosity() -> i64 {
    logger().verbosity.load(Ordering::Relaxed)
}

/// `--quiet`: no messages about connections.
pub fn set_quiet(quiet: bool) {
    logger().quiet.store(quiet, Ordering::Relaxed);
}

/// Whether `--quiet` is on.
pub fn is_quiet() -> bool {
    logger().quiet.load(Ordering::Relaxed)
}

/// `security.redactClientLogData`: lines tell no values of clients' data.
pub fn set_redacting(redacting: bool) {
    logger().redacting.store(redacting, Ordering::Relaxed);
}

/// A document of a client's as a line may show it.
pub fn shown(doc: RawDoc<'_>) -> Cow<'_, [u8]> {
    match logger().redacting.load(Ordering::Relaxed) {
        true => Cow::Owned(crate::redact::without_values(doc).into_bytes()),
        false => Cow::Borrowed(doc.as_bytes()),
    }
}

/// A text that may quote a client's data, as a line may show it.
pub fn shown_text(text: &str) -> &str {
    if logger().redacting.load(Ordering::Relaxed) { crate::redact::NO_VALUE } else { text }
}

/// `--logRotate reopen`: something else (logrotate) moves logs out of the way, so that their files are only opened anew.
pub fn set_reopening(reopens: bool) {
    logger().reopens.store(reopens, Ordering::Relaxed);
}

/// Whether a log that is rotated is kept under a name with a time stamp: nothing else has moved it.
pub fn is_renamed() -> bool {
    !logger().reopens.load(Ordering::Relaxed)
}

/// Opens the log file anew. The old one is kept under a name with a time stamp, unless logs are only to be opened anew.
pub fn rotate() -> io::Result<()> {
    let mut sink = logger().sink.lock();
    if let Sink::File { path, .. } = &*sink {
        let path = path.clone();
        if is_renamed() && path.exists() {
            set_aside(&path, &rotated_name(&path))?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        *sink = Sink::File { file, path };
    }
    Ok(())
}

/// Gives a file the name under which it is kept.
///
/// Errors: the one of this second is there already, and stays as it is.
fn set_aside(path: &Path, kept: &Path) -> io::Result<()> {
    if kept.exists() {
        let text = format!(
            "Renaming file {} to {} failed; destination already exists",
            path.display(),
            kept.display()
        );
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    std::fs::rename(path, kept)
}

/// A name that no file has, for one that a start finds: it must not fail because another one began in this second.
fn free_name(kept: PathBuf) -> PathBuf {
    let numbered = (2u32..).map(|number| PathBuf::from(format!("{}-{number}", kept.display())));
    let mut names = std::iter::once(kept.clone()).chain(numbered);
    names.find(|name| !name.exists()).unwrap_or(kept)
}

/// The name under which a file is kept that is rotated now.
pub(crate) fn rotated_name(path: &Path) -> PathBuf {
    let stamp = date::iso_date(now_millis());
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(stamp[..19].replace(':', "-"));
    PathBuf::from(name)
}

#[expect(clippy::disallowed_methods, reason = "a line of the log says when it was written")]
fn now_millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// The newest lines, oldest first: `getLog: "global"`.
pub fn recent() -> Vec<String> {
    logger().recent.lock().iter().cloned().collect()
}

/// Warnings since start, oldest first: `getLog: "startupWarnings"`.
pub fn startup_warnings() -> Vec<String> {
    logger().warnings.lock().iter().cloned().collect()
}

/// Writes a line.
pub fn write(
    severity: Severity,
    component: &str,
    id: i32,
    context: &str,
    message: &str,
    attributes: Option<&DocBuf>,
) {
    let logger = logger();
    if severity == Severity::Debug && components::level(component) < 1 {
        return;
    }
    let mut line = String::with_capacity(256);
    line.push_str("{\"t\":{\"$date\":\"");
    line.push_str(&date::iso_date(now_millis()));
    let quoted = format!("\"{component}\",");
    line.push_str(&format!("\"}},\"s\":\"{}\",  \"c\":{quoted:<12}\"id\":{id},", severity.letter()));
    line.push_str(" \"ctx\":");
    json::put_string(&mut line, context);
    line.push_str(",\"msg\":");
    json::put_string(&mut line, message);
    if let Some(attributes) = attributes {
        line.push_str(",\"attr\":");
        json::put_document(&mut line, attributes.as_raw(), Style::Log);
    }
    line.push('}');
    keep(&logger.recent, &line);
    if severity == Severity::Warning && context == "initandlisten" {
        keep(&logger.warnings, &line);
    }
    line.push('\n');
    // There is nowhere to report that the log itself can't be written.
    let _ = match &mut *logger.sink.lock() {
        Sink::Stdout => io::stdout().lock().write_all(line.as_bytes()),
        Sink::File { file, .. } => file.write_all(line.as_bytes()),
        Sink::Syslog(syslog) => syslog.send(severity, &line),
        Sink::Nowhere => Ok(()),
    };
}

fn keep(lines: &Mutex<VecDeque<String>>, line: &str) {
    let mut lines = lines.lock();
    if lines.len() == KEPT_LINES {
        lines.pop_front();
    }
    lines.push_back(line.to_owned());
}

thread_local! {
    /// The connection whose command runs on this thread.
    static CONNECTION: Cell<i64> = const { Cell::new(0) };
}

/// Says for which connection this thread works from now on.
pub fn set_connection(id: i64) {
    CONNECTION.set(id);
}

/// The context of what this thread does, as log lines have it.
pub fn current_context() -> String {
    match CONNECTION.get() {
        0 => "-".to_owned(),
        id => format!("conn{id}"),
    }
}

/// An informational line.
pub fn info(component: &str, id: i32, context: &str, message: &str, attributes: Option<DocBuf>) {
    write(Severity::Info, component, id, context, message, attributes.as_ref());
}

/// A warning.
pub fn warning(component: &str, id: i32, context: &str, message: &str, attributes: Option<DocBuf>) {
    write(Severity::Warning, component, id, context, message, attributes.as_ref());
}

/// An error.
pub fn error(component: &str, id: i32, context: &str, message: &str, attributes: Option<DocBuf>) {
    write(Severity::Error, component, id, context, message, attributes.as_ref());
}

/// A line that only `-v` shows.
pub fn debug(component: &str, id: i32, context: &str, message: &str, attributes: Option<DocBuf>) {
    write(Severity::Debug, component, id, context, message, attributes.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_that_was_set_aside_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let [log, kept, second] = ["log", "log.now", "log.now-2"].map(|name| folder.path().join(name));
        for text in ["first", "second"] {
            std::fs::write(&log, text).unwrap();
            let done = set_aside(&log, &kept);
            assert_eq!(done.is_ok(), text == "first");
            assert_eq!(std::fs::read(&kept).unwrap(), b"first");
        }
        assert_eq!(std::fs::read(&log).unwrap(), b"second");
        assert_eq!(free_name(kept.clone()), second);
        assert_eq!(free_name(log.with_extension("none")), log.with_extension("none"));
    }
}
