//! Where an issuer's keys come from: a file, or the issuer's address, by HTTP.

mod answer;

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use sheaf_auth::oidc::Provider;
use sheaf_bson::json;
use sheaf_tls::{Blocking, ClientOptions, TlsClient};

/// How long an issuer may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest answer that is read.
const LONGEST: usize = 1 << 20;

/// The text of a provider's key set.
///
/// Errors: a text for the log.
pub fn key_set(provider: &Provider) -> Result<String, String> {
    if let Some(path) = &provider.file {
        return std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    }
    let about = get(&format!("{}/.well-known/openid-configuration", provider.issuer.trim_end_matches('/')))?;
    let about = json::parse_document(&about).map_err(|error| error.to_string())?;
    let text = |name: &str| about.as_raw().get(name).and_then(|value| value.as_str()).map(str::to_owned);
    if text("issuer").as_deref() != Some(&provider.issuer) {
        return Err("the configuration there is another issuer's".to_owned());
    }
    get(&text("jwks_uri").ok_or("the configuration there names no jwks_uri")?)
}

/// The parts of an address.
#[derive(PartialEq, Eq, Debug)]
struct Address<'a> {
    secure: bool,
    /// With a port.
    authority: String,
    path: &'a str,
}

fn parse(address: &str) -> Result<Address<'_>, String> {
    let (secure, rest) = match (address.strip_prefix("https://"), address.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return Err(format!("{address} is no address of HTTP")),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.is_empty() || address.contains(|c: char| c.is_ascii_control() || c == ' ' || c == '@') {
        return Err(format!("{address} is no address of HTTP"));
    }
    let after_bracket = authority.rfind(']').unwrap_or(0);
    let (host, port) = match authority[after_bracket..].rfind(':') {
        Some(at) => (&authority[..after_bracket + at], &authority[after_bracket + at + 1..]),
        None => (authority, if secure { "443" } else { "80" }),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // Whoever can change what comes without TLS decides who everybody is.
    if !secure && !matches!(bare, "localhost" | "127.0.0.1" | "::1") {
        return Err(format!("{address}: without TLS only this machine is asked"));
    }
    let path = if path.is_empty() { "/" } else { path };
    Ok(Address { secure, authority: format!("{host}:{port}"), path })
}

fn get(address: &str) -> Result<String, String> {
    let parsed = parse(address)?;
    ask(&parsed).map_err(|error| format!("{address}: {error}"))
}

fn ask(to: &Address<'_>) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut socket = connect(to)?;
    // HTTP/1.1, as some gateways answer nothing older.
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nUser-Agent: sheaf\r\nConnection: close\r\n\r\n",
        to.path, to.authority
    );
    socket.write_all(request.as_bytes())?;
    socket.flush()?;
    let mut answer = Vec::new();
    let mut piece = [0; 8192];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.socket().set_read_timeout(Some(left))?;
        let ended = match socket.read(&mut piece) {
            Ok(0) => true,
            Ok(read) => {
                answer.extend_from_slice(&piece[..read]);
                false
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
            // Some servers end TLS without a word; a text that is cut is no JSON.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => true,
            Err(error) => return Err(error),
        };
        if let Some(body) = answer::body(&answer, ended).map_err(io::Error::other)? {
            return Ok(body);
        }
        if answer.len() > LONGEST {
            return Err(io::Error::other("the answer is too long"));
        }
    }
}

fn connect(to: &Address<'_>) -> io::Result<Blocking> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in to.authority.to_socket_addrs()? {
        let socket = match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(socket) => socket,
            Err(error) => {
                failed = error;
                continue;
            }
        };
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        if !to.secure {
            return Ok(Blocking::plain(socket));
        }
        let client = TlsClient::new(ClientOptions::default()).map_err(io::Error::other)?;
        return Blocking::connect(socket, &client, &to.authority, PATIENCE);
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_path() {
        let found = parse("https://idp.example/a/b").unwrap();
        assert_eq!((found.secure, found.authority.as_str(), found.path), (true, "idp.example:443", "/a/b"));
        let found = parse("http://[::1]:8080").unwrap();
        assert_eq!((found.secure, found.authority.as_str(), found.path), (false, "[::1]:8080", "/"));
        assert_eq!(parse("http://localhost/x").unwrap().authority, "localhost:80");
        for bad in [
            "",
            "ftp://localhost",
            "http://idp.example",
            "https://",
            "https://a b/",
            "http://localhost@idp.example/",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
