//! The data folder itself: who has it, which format it has, and some room for opening it on a full disk.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use fs4::FileExt as _;
use sheaf_errors::{Code, Error, Result, bail};

/// Version of the folder's layout.
const FORMAT: u32 = 3;

/// The file that says so.
const FORMAT_NAME: &str = "sheaf.format";

/// A file that nobody reads, which keeps room for what opening the folder writes.
const SPARE: &str = "sheaf.spare";

/// RocksDB writes its options (some 40 KB), a list of its tables and a log for people, and removes the old ones later.
const SPARE_BYTES: u64 = 1 << 20;

/// Less than this is not worth keeping.
const SPARE_BYTES_MIN: u64 = 64 << 10;

/// On a full disk the folder is opened in the room that was kept for it.
pub(crate) fn lend_spare_room(path: &Path) {
    if fs4::available_space(path).is_ok_and(|room| room < SPARE_BYTES) {
        // Where there is none, opening fails and says why.
        let _ = fs::remove_file(path.join(SPARE));
    }
}

/// Keeps room for the next start, as much of it as there is.
pub(crate) fn keep_spare_room(path: &Path) {
    let name = path.join(SPARE);
    if fs::metadata(&name).is_ok_and(|about| about.len() >= SPARE_BYTES) {
        return;
    }
    let Ok(file) = File::options().create(true).truncate(false).write(true).open(&name) else { return };
    let mut bytes = SPARE_BYTES;
    // A file system that cannot do this has no room kept.
    while bytes >= SPARE_BYTES_MIN && file.allocate(bytes).is_err() {
        bytes /= 2;
    }
}

pub(crate) fn folder_error(what: &str, path: &Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => Code::NON_EXISTENT_PATH,
        std::io::ErrorKind::StorageFull => Code::OUT_OF_DISK_SPACE,
        _ => Code::FILE_OPEN_FAILED,
    };
    Error::new(code, format!("{what} in data folder {} failed: {error}", path.display()))
}

/// Refuses a folder that is none of ours, before anything is made in it: one with `data` in it, of which the most likely is that this is the
/// data folder.
fn check_is_ours(path: &Path) -> Result<()> {
    let data = path.join("data");
    let holds = |name: &str| data.join(name).exists();
    if path.join(FORMAT_NAME).exists() || !data.is_dir() {
        return Ok(());
    }
    if holds(FORMAT_NAME) {
        bail!(
            Code::UNSUPPORTED_FORMAT,
            "{} is no data folder, but has one in it: {}",
            path.display(),
            data.display()
        );
    }
    if holds("CURRENT") {
        bail!(
            Code::UNSUPPORTED_FORMAT,
            "{} is no data folder, or not all of one: {FORMAT_NAME} is missing",
            path.display()
        );
    }
    Ok(())
}

/// Refuses a folder that this user may not read, as after somebody else has started a server on it.
pub(crate) fn check_readable(path: &Path) -> Result<()> {
    let current = path.join("data").join("CURRENT");
    match File::open(&current) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
            Code::FILE_OPEN_FAILED,
            "{} cannot be read by this user: all files of a data folder have to be those of the user who runs the server (chown -R)",
            current.display()
        ),
        _ => Ok(()),
    }
}

/// Takes `sheaf.lock`; the lock lasts as long as the file is open.
pub(crate) fn lock(path: &Path) -> Result<File> {
    if !path.is_dir() {
        bail!(
            Code::NON_EXISTENT_PATH,
            "data folder {} not found: create it or give another with --dbpath",
            path.display()
        );
    }
    check_is_ours(path)?;
    let name = path.join("sheaf.lock");
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&name)
        .map_err(|e| folder_error("opening sheaf.lock", path, &e))?;
    if let Err(error) = file.try_lock() {
        let holder = fs::read_to_string(&name).unwrap_or_default();
        bail!(
            Code::DB_PATH_IN_USE,
            "data folder {} is in use by another process (pid {}): {error}",
            path.display(),
            holder.trim()
        );
    }
    // Written over what is there: a file that is emptied gives its room away, and a full disk has none.
    let pid = format!("{}\n", std::process::id());
    file.write_all(pid.as_bytes())
        .and_then(|()| file.set_len(pid.len() as u64))
        .map_err(|e| folder_error("writing sheaf.lock", path, &e))?;
    Ok(file)
}

/// Refuses a folder that a newer version has made; a new one gets the version's number.
pub(crate) fn check_format(path: &Path) -> Result<()> {
    let name = path.join(FORMAT_NAME);
    match fs::read_to_string(&name) {
        // The power was lost while it was made, and nothing was written before it.
        Ok(text) if text.is_empty() => write_format(path, &name),
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(FORMAT) => Ok(()),
            // An earlier version must not open it any more; the data files are changed when they are opened.
            Ok(version) if version < FORMAT => write_durably(&name, format!("{FORMAT}\n").as_bytes()),
            Ok(version) => bail!(
                Code::MUST_UPGRADE,
                "data folder {} has format {version}, made by a newer version; this version knows formats up to {FORMAT}",
                path.display()
            ),
            Err(_) => {
                bail!(Code::UNSUPPORTED_FORMAT, "{} is not readable as a format version", name.display())
            }
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => write_format(path, &name),
        Err(error) => Err(folder_error("reading sheaf.format", path, &error)),
    }
}

fn write_format(path: &Path, name: &Path) -> Result<()> {
    let made = File::create(name).and_then(|mut file| {
        writeln!(file, "{FORMAT}")?;
        file.sync_all()
    });
    made.map_err(|e| folder_error("writing sheaf.format", path, &e))
}

/// Writes a file whole or not at all; it lasts when this returns.
pub(crate) fn write_durably(path: &Path, contents: &[u8]) -> Result<()> {
    let next: PathBuf = path.with_extension("next");
    let written = File::create(&next).and_then(|mut file| {
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&next, path)
    });
    written.map_err(|e| file_error("writing", path, &e))?;
    path.parent().map_or(Ok(()), sync)
}

/// Removes a file or folder, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(file_error("removing", path, &error)),
        _ => Ok(()),
    }
}

/// Has the names in a folder last.
pub(crate) fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| file_error("syncing", folder, &e))
}

/// The error of a file or a folder within the data folder.
pub(crate) fn file_error(what: &str, path: &Path, error: &std::io::Error) -> Error {
    let full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let code = if full { Code::OUT_OF_DISK_SPACE } else { Code::FILE_STREAM_FAILED };
    Error::new(code, format!("{what} {} failed: {error}", path.display()))
}
