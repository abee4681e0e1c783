//! Sockets to other servers.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use socket2::SockRef;

/// How patient a connection is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For each address of a host: until the connection stands.
    pub connect: Duration,
    /// For a single read or write.
    pub each: Duration,
}

/// The name of a host does not lead to an address: nobody was asked.
#[derive(Debug)]
struct NoAddress {
    address: String,
    why: io::Error,
}

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Could not find address for {}: {}", self.address, self.why)
    }
}

impl std::error::Error for NoAddress {}

fn no_address(address: &str, why: io::Error) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, NoAddress { address: address.to_owned(), why })
}

/// Whether a host was not reached because its name does not lead to an address.
pub fn is_without_address(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<NoAddress>())
}

/// Connects to "host:port", on whichever of its addresses somebody listens. Reads and writes block.
///
/// Errors: those of the last address; `NotFound` for a host without any, which [`is_without_address`] tells apart.
pub fn dial(address: &str, patience: Patience) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"));
    for socket in address.to_socket_addrs().map_err(|why| no_address(address, why))? {
        match TcpStream::connect_timeout(&socket, patience.connect) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience.each))?;
                stream.set_write_timeout(Some(patience.each))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to "host:port" within the runtime that this is called in. What is sent and not acknowledged for `unanswered`
/// breaks the connection.
///
/// Errors: `TimedOut`; those of the addresses.
pub async fn dial_async(
    address: &str,
    connect: Duration,
    unanswered: Duration,
) -> io::Result<tokio::net::TcpStream> {
    let connecting = async {
        let found = tokio::net::lookup_host(address).await.map_err(|why| no_address(address, why))?;
        tokio::net::TcpStream::connect(&*found.collect::<Vec<_>>()).await
    };
    let connected = tokio::time::timeout(connect, connecting).await;
    let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(unanswered))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { connect: Duration::from_secs(5), each: Duration::from_secs(5) };

    #[test]
    fn a_host_is_reached_on_whichever_address_listens() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = dial(&format!("localhost:{port}"), PATIENCE).unwrap();
        assert!(stream.nodelay().unwrap());
        assert_eq!(stream.read_timeout().unwrap(), Some(PATIENCE.each));
    }

    #[test]
    fn nobody_is_an_error_that_says_so() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(dial(&free.to_string(), PATIENCE).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let error = dial("nosuch.invalid:27017", PATIENCE).unwrap_err();
        assert!(is_without_address(&error), "{error}");
        assert!(
            error.to_string().starts_with("Could not find address for nosuch.invalid:27017: "),
            "{error}"
        );
        assert!(is_without_address(&dial("no port", PATIENCE).unwrap_err()));
    }

    #[tokio::test]
    async fn nor_is_anybody_reached_by_a_name_without_an_address() {
        let (connect, unanswered) = (PATIENCE.connect, PATIENCE.each);
        let error = dial_async("nosuch.invalid:27017", connect, unanswered).await.unwrap_err();
        assert!(is_without_address(&error), "{error}");
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = dial_async(&free.to_string(), connect, unanswered).await.unwrap_err();
        assert!(!is_without_address(&error), "{error}");
    }
}
