//! The system's log as the place for the server's (RFC 3164: a priority, the program, the text, in a datagram).
//!
//! Unlike events of the [audit log](crate::audit), a line that is not taken at once is lost: nobody waits for the log.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Severity;

/// Where it listens.
pub const SYSTEM_LOG: &str = "/dev/log";

/// Facilities by their names, in the order of their numbers; between `cron` and the local ones some have none.
const NAMES: [&str; 12] =
    ["kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"];
const FIRST_LOCAL: u8 = 16;

/// What kind of program says it: one of syslog's facilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facility(u8);

impl Default for Facility {
    /// `user`, as in MongoDB.
    fn default() -> Self {
        Facility(1)
    }
}

impl FromStr for Facility {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            return Ok(Facility(at as u8));
        }
        let local = name.strip_prefix("local").and_then(|number| number.parse::<u8>().ok());
        local.filter(|number| *number < 8).map(|number| Facility(FIRST_LOCAL + number)).ok_or(())
    }
}

pub(super) struct Syslog {
    socket: UnixDatagram,
    path: PathBuf,
    program: String,
    facility: Facility,
}

impl Syslog {
    pub fn new(path: &Path, program: &str, facility: Facility) -> io::Result<Self> {
        // Connected once only to see that somebody listens: later it may be started anew.
        UnixDatagram::unbound()?.connect(path)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let program = format!("{program}[{}]", std::process::id());
        Ok(Syslog { socket, path: path.to_owned(), program, facility })
    }

    pub fn send(&self, severity: Severity, line: &str) -> io::Result<()> {
        let level = match severity {
            Severity::Fatal => 2,
            Severity::Error => 3,
            Severity::Warning => 4,
            Severity::Info => 6,
            Severity::Debug => 7,
        };
        let priority = self.facility.0 * 8 + level;
        let datagram = format!("<{priority}>{}: {}", self.program, line.trim_end());
        self.socket.send_to(datagram.as_bytes(), &self.path).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facilities_have_names() {
        for (name, number) in
            [("kern", 0), ("user", 1), ("daemon", 3), ("ftp", 11), ("local0", 16), ("local7", 23)]
        {
            assert_eq!(name.parse(), Ok(Facility(number)));
        }
        for name in ["", "User", "local", "local8", "local-1", "nonesuch"] {
            assert_eq!(name.parse::<Facility>(), Err(()));
        }
        assert_eq!(Facility::default(), "user".parse().unwrap());
    }

    #[test]
    fn a_line_is_a_datagram_and_nobody_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(Syslog::new(&path, "sheaf.27017", Facility::default()).is_err());
        let system = UnixDatagram::bind(&path).unwrap();
        let syslog = Syslog::new(&path, "sheaf.27017", "local3".parse().unwrap()).unwrap();
        syslog.send(Severity::Warning, "{\"t\":1}\n").unwrap();
        let mut datagram = [0; 100];
        let length = system.recv(&mut datagram).unwrap();
        let expected = format!("<156>sheaf.27017[{}]: {{\"t\":1}}", std::process::id());
        assert_eq!(std::str::from_utf8(&datagram[..length]), Ok(&*expected));
        assert!((0..100_000).any(|_| syslog.send(Severity::Info, "full").is_err()));
        // The system's log may be started anew.
        drop(system);
        std::fs::remove_file(&path).unwrap();
        assert!(syslog.send(Severity::Info, "lost").is_err());
        let system = UnixDatagram::bind(&path).unwrap();
        syslog.send(Severity::Info, "kept").unwrap();
        assert!(system.recv(&mut datagram).unwrap() > 0);
    }
}
