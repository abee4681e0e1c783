//! Starting PostgreSQL, for the workload that runs on it too.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::process::shell_text;
use super::{LaunchOptions, Process, Running};
use crate::context::{Database, Stop};
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::ports;

/// PostgreSQL refuses to run as root; Debian's package makes this user for it.
const USER: &str = "postgres";

pub(super) fn bring_up(options: &LaunchOptions, journal: &Journal, stop: &Stop) -> Result<Running> {
    let root = rustix::process::geteuid().is_root();
    let binaries = match find() {
        Some(binaries) => binaries,
        None => {
            install(root, journal)?;
            find().ok_or_else(|| Error::failed("the package has brought no initdb"))?
        }
    };
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
        name: version,
        nodes: vec![address],
        processes: vec![process],
        members: Vec::new(),
        links: None,
    })
}

/// The newest of Debian's folders, or else wherever `PATH` has `initdb`.
fn find() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
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
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).find(|folder| folder.join("initdb").is_file())
}

/// Installs Debian's package. Where services are started it starts a server of its own, on its own port and with its
/// own data; ours is another one.
fn install(root: bool, journal: &Journal) -> Result<()> {
    if !root || !Path::new("/usr/bin/apt-get").is_file() {
        return Err(Error::usage("PostgreSQL is not installed (no initdb): apt-get install postgresql"));
    }
    for arguments in
        [&["update", "-qq"][..], &["install", "-y", "-qq", "--no-install-recommends", "postgresql"]]
    {
        let mut command = Command::new("env");
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(arguments);
        run(command.stdin(Stdio::null()), journal)?;
    }
    Ok(())
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
