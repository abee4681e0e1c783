//! The folder that a run leaves its results in. It is there, and can be written, before anything is measured.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::RESULTS;
use crate::error::{Error, Result};

/// Where a run makes its folder when nothing else is said.
const HOME: &str = "lab-results";
/// More runs than these do not begin in one second.
const MOST: u32 = 1000;

/// Where a run will write.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// It was not there before.
    new: bool,
}

impl Folder {
    /// The folder that `--out` names.
    ///
    /// Errors: results are in it already, or it cannot be made or written.
    pub(super) fn given(path: &Path) -> Result<Folder> {
        let refuse = |what: String| Error::usage(format!("--out {}: {what}", path.display()));
        let new = !path.exists();
        if path.join(RESULTS).exists() {
            return Err(refuse("it has the results of a run already; name another folder".to_owned()));
        }
        std::fs::create_dir_all(path).map_err(|error| refuse(format!("cannot be made: {error}")))?;
        let folder = Folder { path: path.to_owned(), new };
        folder.try_out().map_err(|error| refuse(format!("cannot be written: {error}")))?;
        Ok(folder)
    }

    /// A new one below [`HOME`] in this folder: `bank-2026-01-31T10-20-30Z`, and behind that a number when it is there already.
    pub(super) fn of_its_own(within: &Path, experiment: &str, now_ms: i64) -> Result<Folder> {
        let home = within.join(HOME);
        let refuse = |path: &Path, error: std::io::Error| {
            Error::usage(format!(
                "{}: cannot be made: {error}; name another folder with --out",
                path.display()
            ))
        };
        std::fs::create_dir_all(&home).map_err(|error| refuse(&home, error))?;
        let name = name(experiment, now_ms);
        for number in 1..=MOST {
            let path = home.join(if number == 1 { name.clone() } else { format!("{name}-{number}") });
            // Of two runs at the same time one finds it made.
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Folder { path, new: true }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refuse(&path, error)),
            }
        }
        Err(Error::usage(format!("{}: {MOST} runs have this name", home.join(name).display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes an empty folder away again: there was nothing to write.
    pub(super) fn give_up(self) {
        if self.new {
            // What somebody else has put there meanwhile stays.
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    fn try_out(&self) -> std::io::Result<()> {
        tempfile::tempfile_in(&self.path).map(drop)
    }
}

/// "insert-latency-2026-01-31T10-20-30Z".
fn name(experiment: &str, now_ms: i64) -> String {
    let seconds = now_ms / 1000 * 1000;
    let date = sheaf_bson::json::iso_date(seconds, false).unwrap_or_else(|| seconds.to_string());
    format!("{experiment}-{}", date.replace(':', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_123;

    #[test]
    fn folders_are_named_after_experiment_and_time_and_never_shared() {
        let folder = tempfile::tempdir().unwrap();
        let made = |_| Folder::of_its_own(folder.path(), "bank", NOW).unwrap();
        let folders: Vec<Folder> = (0..3).map(made).collect();
        for (made, end) in folders.iter().zip(["", "-2", "-3"]) {
            let name = format!("lab-results/bank-2023-11-14T22-13-20Z{end}");
            assert_eq!(made.path(), folder.path().join(name));
            assert!(made.path().is_dir());
        }
        folders.into_iter().for_each(Folder::give_up);
        assert_eq!(std::fs::read_dir(folder.path().join(HOME)).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_named_is_new_or_has_no_results() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a/b");
        Folder::given(&out).unwrap().give_up();
        assert!(!out.exists());
        Folder::given(&out).unwrap();
        Folder::given(&out).unwrap().give_up();
        assert!(out.exists(), "it was there before");
        std::fs::write(out.join(RESULTS), "{}").unwrap();
        let error = Folder::given(&out).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
        assert!(error.to_string().contains("already"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for error in [
            Folder::given(&file.join("x")).unwrap_err(),
            Folder::given(&file).unwrap_err(),
            Folder::of_its_own(&file, "bank", NOW).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Usage(_)), "{error}");
            assert!(error.to_string().contains("cannot be made"), "{error}");
        }
    }
}
