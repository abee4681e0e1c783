//! What stands for the laboratory in a binary that was built without it, as scripts/start does: its commands say so.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

/// A command of the laboratory, with whatever was said to it.
#[derive(Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub struct Unavailable {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _words: Vec<OsString>,
}

pub use Unavailable as Bench;
pub use Unavailable as Cluster;
pub use Unavailable as Doctor;

/// `EX_UNAVAILABLE`, told apart from a run that failed.
const UNAVAILABLE: u8 = 69;

/// `sheaf bench`.
pub fn bench(_: &Bench) -> ExitCode {
    refuse("bench")
}

/// `sheaf cluster`.
pub fn cluster(_: &Cluster) -> ExitCode {
    refuse("cluster")
}

/// `sheaf doctor`.
pub fn doctor(_: &Doctor) -> ExitCode {
    refuse("doctor")
}

fn refuse(command: &str) -> ExitCode {
    eprintln!(
        "sheaf: `sheaf {command}` belongs to the laboratory, which this binary was built without (scripts/start builds the \
         server alone).\n`scripts/build start` builds one that has it, `scripts/build` one that is fit to measure."
    );
    ExitCode::from(UNAVAILABLE)
}
