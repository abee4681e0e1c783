//! Sockets to other servers.

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

/// Connects to "host:port", on whichever of its addresses somebody listens. Reads and writes block.
///
/// Errors: those of the last address; `NotFound` for a host without any.
pub fn dial(address: &str, patience: Patience) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"));
    for socket in address.to_socket_addrs()? {
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
    let connected = tokio::time::timeout(connect, tokio::net::TcpStream::connect(address)).await;
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
        assert!(dial("no port", PATIENCE).is_err());
    }
}
