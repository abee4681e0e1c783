//! Starting PostgreSQL, for the workload that runs on it too.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::shell_text;
use super::{Access, LaunchOptions, Process, Running};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::ports;
use crate::stop::Stop;

/// PostgreSQL refuses to run as root; Debian's package makes this user for it.
const USER: &str = "postgres";

pub(super) fn bring_up(options: &LaunchOptions, journal: &Journal, stop: &Stop) -> Result<Running> {
    let root = rustix::process::geteuid().is_root();
    let binaries = find()?;
    let data = tempfile::Builder::new()
        .prefix("sheaf-lab-postgres-")
        .tempdir_in(&options.data)
        .map_err(|error| Error::from(error).context(options.data.display()))?;
    if root {
        check_reachable(data.path())?;
        run(Command::new("chown").arg(USER).arg(data.path()), journal)?;
    }
    run(
        program(root, &binaries.join("initdb"))
            .args(["--auth=trust", "--username=lab", "--encoding=UTF8", "--no-locale", "-D"])
            .arg(data.path()),
        journal,
    )?;
    let port = ports::free(1)?[0];
    let mut command = program(root, &binaries.join("postgres"));
    command.arg("-D").arg(data.path()).args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", ""]);
    // As many clients as any step of an experiment has.
    command.args(["-c", "max_connections=300"]);
    let address = format!("127.0.0.1:{port}");
    let process = Process::start(command, address.clone(), data.keep(), options.keep, journal)?;
    let url = format!("postgresql://lab@{address}/postgres");
    // It listens a good while before it takes anybody in.
    process.wait_until(stop, || postgres::Client::connect(&url, postgres::NoTls).is_ok())?;
    let version = version(&binaries);
    Ok(Running {
        database: Database::PostgreSql(url),
        access: Access::default(),
        name: version,
        nodes: vec![address],
        processes: vec![process],
        members: Vec::new(),
        links: None,
        warnings: Vec::new(),
    })
}

/// The folder of the programs: the newest of Debian's, or else wherever `PATH` has `initdb`.
///
/// Errors: there is none, and what to install. That is not done unasked.
pub(super) fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(Path::new("/usr/lib/postgresql"), &path).ok_or_else(|| {
        Error::usage(
            "PostgreSQL is not installed (there is no initdb). Install it, on Debian and Ubuntu with \
             `apt-get install --no-install-recommends postgresql`, or name one that runs: --target postgresql://...",
        )
    })
}

fn find_in(debian: &Path, path: &OsStr) -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(debian)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let folder = entry.path().join("bin");
            folder.join("initdb").is_file().then_some((version, folder))
        })
        .collect();
    versions.sort();
    if let Some((_, folder)) = versions.pop() {
        return Some(folder);
    }
    std::env::split_paths(path).find(|folder| folder.join("initdb").is_file())
}

/// The other user must be able to walk to the folder, or initdb fails with words that do not say why.
fn check_reachable(folder: &Path) -> Result<()> {
    for above in folder.ancestors().skip(1) {
        if std::fs::metadata(above)?.permissions().mode() & 0o001 == 0 {
            return Err(Error::usage(format!(
                "PostgreSQL runs as the user {USER}, who cannot enter {}: name another folder with --dbpath",
                above.display()
            )));
        }
    }
    Ok(())
}

fn program(root: bool, binary: &Path) -> Command {
    if !root {
        return Command::new(binary);
    }
    // Unlike runuser, setpriv becomes the program, so that its number is the server's.
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(binary);
    command
}

fn run(command: &mut Command, journal: &Journal) -> Result<()> {
    journal.note("shell", shell_text(command));
    let output = command.output().map_err(|error| Error::from(error).context(shell_text(command)))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(Error::failed(format!("{}: {}: {text}", shell_text(command), output.status)))
}

/// "PostgreSQL 15.18".
fn version(binaries: &Path) -> String {
    let output = Command::new(binaries.join("postgres")).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let number = text.split_whitespace().nth(2).unwrap_or("");
    format!("PostgreSQL {number}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_the_packages_is_taken_or_else_what_the_path_has() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str| {
            let bin = folder.path().join(name);
            std::fs::create_dir_all(&bin).unwrap();
            std::fs::write(bin.join("initdb"), "").unwrap();
            bin
        };
        let debian = folder.path().join("debian");
        assert_eq!(find_in(&debian, OsStr::new("")), None);
        let own = program("own");
        assert_eq!(find_in(&debian, own.as_os_str()), Some(own.clone()));
        program("debian/9/bin");
        let newest = program("debian/15/bin");
        std::fs::create_dir_all(debian.join("16/bin")).unwrap();
        assert_eq!(find_in(&debian, own.as_os_str()), Some(newest));
    }
}
