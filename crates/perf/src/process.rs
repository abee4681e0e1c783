//! The server as a process.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use sheaf_bson::doc;

use crate::Settings;
use crate::client::Client;

/// The binary beside this one: both are built into the same folder.
pub(crate) fn default_binary() -> PathBuf {
    std::env::var_os("SHEAF_BIN").map(PathBuf::from).unwrap_or_else(|| {
        let own = std::env::current_exe().unwrap_or_default();
        own.parent().unwrap_or(Path::new(".")).join("sheaf")
    })
}

/// A server that was told to end has ended by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server with its data folder, which goes with it.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub port: u16,
    binary: PathBuf,
    data: tempfile::TempDir,
    /// How long the last start took until the first answer.
    pub start_took: Duration,
}

impl Server {
    pub fn start(settings: &Settings) -> io::Result<Server> {
        let data = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let binary = settings.binary.clone();
        let (child, start_took) = spawn(&binary, data.path(), port)?;
        Ok(Server { child, port, binary, data, start_took })
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> io::Result<Client> {
        Client::connect(self.port)
    }

    /// Starts the stopped server again on the same data.
    pub fn restart(&mut self) -> io::Result<()> {
        (self.child, self.start_took) = spawn(&self.binary, self.data.path(), self.port)?;
        Ok(())
    }

    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Clean shutdown by command; how long it took.
    pub fn shut_down(&mut self) -> io::Result<Duration> {
        let began = Instant::now();
        // The connection may close before the answer.
        let _ = self.connect()?.call(&doc! { "shutdown": 1, "$db": "admin" });
        self.child.wait()?;
        Ok(began.elapsed())
    }

    /// Ends the server, and keeps its data for as long as what this gives lives.
    pub fn into_data(mut self) -> io::Result<tempfile::TempDir> {
        self.shut_down()?;
        Ok(std::mem::replace(&mut self.data, tempfile::tempdir()?))
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or("0");
        Ok(line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024)
    }

    /// Seconds that the threads which serve clients have run on a processor: what a busy machine does not lengthen.
    pub fn serving_seconds(&self) -> io::Result<f64> {
        let mut seconds = 0.0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            if std::fs::read_to_string(task.join("comm"))?.trim() == "sheaf-worker" {
                seconds += processor_seconds(&task)?;
            }
        }
        Ok(seconds)
    }

    /// Bytes of all files in the data folder, and of the log segments among them.
    pub fn bytes_on_disk(&self) -> io::Result<(u64, u64)> {
        let (mut all, mut log) = (0, 0);
        let mut folders = vec![self.data.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                let meta = entry.metadata()?;
                if meta.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                all += meta.len();
                // Segments are named after their first index in twenty digits.
                let name = entry.file_name();
                let stem = Path::new(&name)
                    .file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned())
                    .unwrap_or_default();
                if stem.len() == 20 && stem.bytes().all(|b| b.is_ascii_digit()) {
                    log += meta.len();
                }
            }
        }
        Ok((all, log))
    }
}

/// Seconds that a thread has run, by its folder in `/proc`.
pub(crate) fn processor_seconds(task: &Path) -> io::Result<f64> {
    let text = std::fs::read_to_string(task.join("schedstat"))?;
    let nanos = text.split_whitespace().next().and_then(|first| first.parse::<u64>().ok());
    Ok(nanos.unwrap_or(0) as f64 / 1e9)
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended has no number any more: it may be another process's by now.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // By its own way out where that is open: what counts its instructions writes down what it has counted at the end only.
        let _ = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(binary: &Path, data: &Path, port: u16) -> io::Result<(Child, Duration)> {
    let began = Instant::now();
    let mut child = Command::new(binary)
        .args(["server", "--bind_ip", "127.0.0.1", "--port", &port.to_string(), "--dbpath"])
        .arg(data)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| {
            let binary = binary.display();
            io::Error::other(format!(
                "{binary} cannot be started ({error}); --bin PATH says where sheaf's binary is"
            ))
        })?;
    loop {
        if Client::connect(port).is_ok() {
            return Ok((child, began.elapsed()));
        }
        if let Some(status) = child.try_wait()? {
            let binary = binary.display();
            return Err(io::Error::other(format!(
                "{binary} ended at its start ({status}); --bin PATH says where sheaf's binary is"
            )));
        }
        if began.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            return Err(io::Error::other("the server did not answer in two minutes"));
        }
        sleep(Duration::from_millis(1));
    }
}
