//! Starting PostgreSQL, for the workload that runs on it too.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{free_port, shell_text};
use super::{LaunchOptions, Process, Running};
use crate::context::{Database, Stop};
use crate::error::{Error, Result};
use crate::journal::Journal;

/// PostgreSQL refuses to run as root; Debian's package makes this user for it.
const USER: &str = "postgres";

pub(super) fn bring_up(options: &LaunchOptions, journal: &Journal, stop: &Stop) -> Result<Running> {
    let binaries = find()?;
    let root = rustix::process::geteuid().is_root();
    let data = tempfile::Builder::new()
        .prefix("sheaf-lab-postgres-")
        .tempdir_in(&options.data)
        .map_err(|error| Error::from(error).context(options.data.display()))?;
    if root {
        run(Command::new("chown").arg(USER).arg(data.path()), journal)?;
    }
    run(
        program(root, &binaries.join("initdb"))
            .args(["--auth=trust", "--username=lab", "--encoding=UTF8", "--no-locale", "-D"])
            .arg(data.path()),
        journal,
    )?;
    let port = free_port()?;
    let mut command = program(root, &binaries.join("postgres"));
    command.arg("-D").arg(data.path()).args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", ""]);
    // As many clients as any step of an experiment has.
    command.args(["-c", "max_connections=300"]);
    let address = format!("127.0.0.1:{port}");
    let mut process = Process::start(command, address.clone(), data.keep(), options.keep, journal)?;
    process.wait_until(stop, || answers(&address))?;
    let version = version(&binaries);
    let url = format!("postgresql://lab@{address}/postgres");
    Ok(Running {
        database: Database::PostgreSql(url),
        name: version,
        nodes: vec![address],
        processes: vec![process],
    })
}

/// The newest of Debian's folders, or else wherever `PATH` has `initdb`.
fn find() -> Result<PathBuf> {
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
        return Ok(folder);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .find(|folder| folder.join("initdb").is_file())
        .ok_or_else(|| Error::usage("PostgreSQL is not installed (no initdb): apt-get install postgresql"))
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

/// Asks for encryption, which any PostgreSQL that is up answers with one byte, S or N.
fn answers(address: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(&[0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        Ok(matches!(answer[0], b'S' | b'N'))
    };
    ask().unwrap_or(false)
}

/// "PostgreSQL 15.18".
fn version(binaries: &Path) -> String {
    let output = Command::new(binaries.join("postgres")).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let number = text.split_whitespace().nth(2).unwrap_or("");
    format!("PostgreSQL {number}").trim_end().to_owned()
}
