//! The process that holds a cluster's links, and telling it what to do.
//!
//! It listens on a socket in the cluster's folder. A request is a line, the answer another: `ok` and what was asked for,
//! or `error` and why.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::links::{Cut, Links};
use crate::error::{Error, Result};
use crate::experiment::Time;

/// A request that does not come is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a path to a socket, with some left.
const LONGEST_PATH: usize = 100;

/// The word for a state of a way.
pub fn word(cut: Cut) -> &'static str {
    match cut {
        Cut::Open => "open",
        Cut::Silent => "cut",
        Cut::Refused => "refused",
    }
}

/// Whether a socket may have this path: the kernel takes only short ones.
pub fn check_path(socket: &Path) -> Result<()> {
    if socket.as_os_str().len() > LONGEST_PATH {
        return Err(Error::usage(format!(
            "{}: too long for the path of a socket; name a folder with a shorter path by --data",
            socket.display()
        )));
    }
    Ok(())
}

/// Holds the links until it is told to end.
pub fn serve(socket: &Path, members: &[SocketAddr]) -> Result<()> {
    check_path(socket)?;
    let links = Links::start(members)?;
    // Of one who held them before and was killed.
    let _ = std::fs::remove_file(socket);
    let listener =
        UnixListener::bind(socket).map_err(|error| Error::from(error).context(socket.display()))?;
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if answer_all(&stream, &links) == Some(Next::End) {
            break;
        }
    }
    let _ = std::fs::remove_file(socket);
    Ok(())
}

#[derive(PartialEq)]
enum Next {
    GoOn,
    End,
}

/// Answers the requests of one connection; `None` when it broke.
fn answer_all(stream: &UnixStream, links: &Links) -> Option<Next> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let mut writer = stream;
    for line in BufReader::new(stream).lines() {
        let line = line.ok()?;
        let reply = match answer(&line, links) {
            Ok(text) => format!("ok {text}\n"),
            Err(error) => format!("error {error}\n"),
        };
        writer.write_all(reply.as_bytes()).ok()?;
        if line == "end" {
            return Some(Next::End);
        }
    }
    Some(Next::GoOn)
}

fn answer(line: &str, links: &Links) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |text: &str| text.parse::<usize>().map_err(|_| Error::usage(format!("{text} is no member")));
    match words.as_slice() {
        ["peers", member] => Ok(links.peer_addresses(number(member)?)),
        ["set", from, to, state] => {
            let cut = [Cut::Open, Cut::Silent, Cut::Refused].into_iter().find(|cut| word(*cut) == *state);
            let cut = cut.ok_or_else(|| Error::usage(format!("{state} is no state of a link")))?;
            links.set(number(from)?, number(to)?, cut)?;
            Ok(String::new())
        }
        ["delay", from, to, time] => {
            let time: Time = time.parse().map_err(Error::Usage)?;
            links.set_delay(number(from)?, number(to)?, time.0)?;
            Ok(String::new())
        }
        ["get", from, to] => {
            let (from, to) = (number(from)?, number(to)?);
            Ok(format!("{} {}", word(links.get(from, to)?), Time(links.delay(from, to)?)))
        }
        ["end"] => Ok(String::new()),
        _ => Err(Error::usage(format!("\"{line}\" is no request"))),
    }
}

/// The other end: one who tells the links what to do.
pub struct Control {
    stream: BufReader<UnixStream>,
}

impl Control {
    /// Connects to the process that holds the links.
    pub fn connect(socket: &Path) -> Result<Control> {
        let stream =
            UnixStream::connect(socket).map_err(|error| Error::from(error).context(socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Control { stream: BufReader::new(stream) })
    }

    /// Connects as soon as it listens.
    pub fn wait(socket: &Path) -> Result<Control> {
        let began = Instant::now();
        loop {
            match Control::connect(socket) {
                Err(error) if began.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
                connected => return connected,
            }
        }
    }

    /// Asks one thing.
    pub fn ask(&mut self, request: &str) -> Result<String> {
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes())?;
        let mut reply = String::new();
        self.stream.read_line(&mut reply)?;
        match reply.trim_end().split_once(' ').unwrap_or((reply.trim_end(), "")) {
            ("ok", text) => Ok(text.to_owned()),
            ("error", why) => Err(Error::usage(why)),
            _ => Err(Error::failed("the process of the links gave no answer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_told_by_lines() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("links.sock");
        let members: Vec<SocketAddr> =
            ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"].map(|text| text.parse().unwrap()).to_vec();
        std::thread::scope(|scope| {
            let (path, members) = (&socket, &members);
            let serving = scope.spawn(move || serve(path, members));
            let mut control = Control::wait(path).unwrap();
            assert!(control.ask("peers 0").unwrap().starts_with("127.0.0.1:2=127.0.0.1:"));
            control.ask("set 0 2 cut").unwrap();
            control.ask("delay 0 2 430us").unwrap();
            assert_eq!(control.ask("get 0 2").unwrap(), "cut 430us");
            for (request, why) in [
                ("get 0 0", "no link from member 0 to member 0"),
                ("set 0 1 broken", "no state of a link"),
                ("set a b cut", "a is no member"),
                ("delay 0 1 long", "no length of time"),
                ("hello", "no request"),
            ] {
                let error = control.ask(request).unwrap_err().to_string();
                assert!(error.contains(why), "{request}: {error}");
            }
            control.ask("end").unwrap();
            serving.join().unwrap().unwrap();
        });
        assert!(!socket.exists());
        assert!(check_path(Path::new(&format!("/{}", "x".repeat(120)))).is_err());
    }
}
