//! The folder in which a build keeps its runs and files.

use std::fs;
use std::path::{Path, PathBuf};

use sheaf_errors::Result;
use uuid::Uuid;

use crate::folder::{file_error, remove};

/// Folder of a data folder in which builds keep their runs and files.
const FOLDER: &str = "builds";

/// Removes what builds left behind in a crash.
pub(crate) fn clear_folder(data: &Path) -> Result<()> {
    remove(&data.join(FOLDER))
}

/// A build's own folder; it goes with the build.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    /// Makes the folder of this build.
    pub fn create(data: &Path, build: &Uuid) -> Result<Folder> {
        let path = data.join(FOLDER).join(build.simple().to_string());
        fs::create_dir_all(&path).map_err(|e| file_error("creating an index build's folder", &path, &e))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays is removed at the next start.
        let _ = fs::remove_dir_all(&self.0);
    }
}
