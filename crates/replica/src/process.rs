//! This process as a whole: its threads that must not end alone, and its restart.

use sheaf_errors::{Code, Error, Result};
use sheaf_storage::critical::Critical;

/// Runs this program anew in place of itself: same process id, same arguments, same ports. What is on disk is all that
/// the new one knows, as after a crash; so a rollback and a copy of another member's data are taken into use by the one
/// path by which every start brings the data to the end of the log.
pub fn restart_in_place(why: &str) -> ! {
    use std::os::unix::process::CommandExt;
    sheaf_front::log::info(
        "REPL",
        sheaf_front::log::ids::RESTARTING_IN_PLACE,
        "ReplCoord",
        "Restarting in place",
        Some(sheaf_bson::doc! { "why": why }),
    );
    let mut argv = std::env::args_os();
    let mut program = std::process::Command::new("/proc/self/exe");
    if let Some(name) = argv.next() {
        program.arg0(name);
    }
    let error = program.args(argv).env(RESTARTED, "1").exec();
    tracing::error!(%error, "cannot restart in place");
    std::process::abort();
}

/// Set in a process that has restarted in place.
pub const RESTARTED: &str = "SHEAF_RESTARTED";

/// Starts a thread whose end by a panic is the process's: a member that answers heartbeats and does nothing else would hold
/// its vote for ever.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _critical = Critical::enter("a thread of replication");
        work();
    });
    spawned
        .map(|_| ())
        .map_err(|e| Error::new(Code::INTERNAL_ERROR, format!("cannot start thread {name}: {e}")))
}
