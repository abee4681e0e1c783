//! Whether files of a folder can be written past the page cache.

use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Any device's blocks are as large at most, and any page.
const ALIGNED: usize = 64 << 10;

/// Writes one block that way, into a file that is gone afterwards: some file systems refuse to open such files, others to write them.
pub(super) fn is_possible(folder: &Path) -> bool {
    let path = folder.join("direct.tmp");
    let room = vec![0; 2 * ALIGNED];
    let from = room.as_ptr().align_offset(ALIGNED);
    let Some(block) = room.get(from..from.saturating_add(ALIGNED)) else { return false };
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::DIRECT;
    let opened = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
    let written = opened.is_ok_and(|file| std::fs::File::from(file).write_all_at(block, 0).is_ok());
    // It need not be there.
    let _ = std::fs::remove_file(&path);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        is_possible(folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(!is_possible(&folder.path().join("missing")));
    }
}
