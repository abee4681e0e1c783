//! Damage of the log.

use std::path::PathBuf;

use sheaf_log::Mending;

use crate::options::OpTime;

/// Damage of the log that a repair has met.
#[derive(Clone, Debug)]
pub struct DamagedLog {
    /// Where it is, what stays of the log and what does not.
    pub mending: Mending,
    /// RocksDB's files hold the log up to there...
    pub flushed: OpTime,
    /// ...and perhaps only a part of that last entry, of which the log does not have the rest any more.
    pub in_part: bool,
    /// The folder that has what has left the log. `None`: nothing was changed.
    pub aside: Option<PathBuf>,
}
