//! Whether this machine has the memory and the disk that a row asks for, looked at before anything is started.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::experiment::Variation;
use crate::report::bytes;
use crate::workload::Workload;
use crate::{doctor, environment};

/// In less memory no server gets as far as to answer.
const LEAST_MEMORY: u64 = 64 << 20;

/// What there is; `None` where the system does not tell, and then nothing is refused.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// Bytes of memory that this process and its servers may have at most.
    pub memory: Option<u64>,
    /// Bytes that are free where the servers' folders will be.
    pub disk: Option<u64>,
    /// Where that is.
    pub folder: PathBuf,
}

impl Room {
    /// Looks at this machine. `data` is the folder in which data folders will be made, which need not exist yet.
    pub fn look(data: &Path) -> Room {
        let memory = Some(environment::memory_bytes()).filter(|memory| *memory > 0);
        Room { memory, disk: doctor::free_space(data), folder: data.to_owned() }
    }

    /// Whether a row has room, for servers that the laboratory starts.
    ///
    /// Errors: what it asks for, and what there is.
    pub fn check(&self, workload: &dyn Workload, row: &Variation, scale: f64) -> Result<()> {
        let limit = row.server.memory_bytes(scale);
        if let Some(limit) = limit {
            self.check_limit(limit)?;
        }
        // Each member of a set has all of its data.
        let copies = row.topology.members.unwrap_or(0).max(1);
        let Some((once, free)) = workload.bytes_to_load(limit, scale).zip(self.disk) else { return Ok(()) };
        let all = once.saturating_mul(u64::from(copies));
        if all <= free {
            return Ok(());
        }
        let members = if copies > 1 { format!(" on each of {copies} members") } else { String::new() };
        Err(Error::usage(format!(
            "row \"{}\": {} of documents{members} are to be loaded, and {} has only {} free: \
             load less, or name another folder with --dbpath",
            row.name,
            bytes(once),
            self.folder.display(),
            bytes(free)
        )))
    }

    fn check_limit(&self, limit: u64) -> Result<()> {
        if limit < LEAST_MEMORY {
            return Err(Error::usage(format!(
                "server.memory_mb: no server can do its work in {} of memory; say {} or more (MB)",
                bytes(limit),
                LEAST_MEMORY >> 20
            )));
        }
        match self.memory {
            Some(memory) if limit > memory => Err(Error::usage(format!(
                "server.memory_mb: a limit of {} (it is in MB, and becomes smaller with --scale) is more than \
                 the {} of memory that there are",
                bytes(limit),
                bytes(memory)
            ))),
            _ => Ok(()),
        }
    }
}
