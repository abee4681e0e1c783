//! What is put around the bytes of a link: the seal of who has proved the key ([`sheaf_auth::link`]), and TLS around that.

use std::io::{self, Read, Write};

use sheaf_auth::link::seal::Sealer;
use sheaf_tls::Connection;

/// What keeps what is sent from being altered, and from being read; nothing, where there is neither key nor TLS.
#[derive(Default)]
pub struct Cover {
    sealer: Option<Sealer>,
    tls: Option<Box<Connection>>,
    /// Sealed, and to be encrypted.
    sealed: Vec<u8>,
}

impl Cover {
    /// Of a connection.
    pub fn new(tls: Option<Connection>, sealer: Option<Sealer>) -> Cover {
        Cover { sealer, tls: tls.map(Box::new), sealed: Vec::new() }
    }

    /// Whether bytes go as they are.
    pub fn is_none(&self) -> bool {
        self.sealer.is_none() && self.tls.is_none()
    }

    /// Adds to `out` what these bytes become.
    ///
    /// Errors: TLS takes nothing more.
    pub fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let Cover { sealer, tls, sealed } = self;
        let Some(tls) = tls else {
            match sealer {
                Some(sealer) => sealer.seal(bytes, out),
                None => out.extend_from_slice(bytes),
            }
            return Ok(());
        };
        match sealer {
            Some(sealer) => {
                sealer.seal(bytes, sealed);
                tls.writer().write_all(sealed)?;
                sealed.clear();
            }
            None => tls.writer().write_all(bytes)?,
        }
        drain(tls, out)
    }

    /// Takes in what has come from the other side, which has nothing to say itself; adds to `out` what TLS answers.
    ///
    /// Errors: it is nothing of TLS.
    pub fn take_in(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Err(io::ErrorKind::ConnectionReset.into()) };
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes)?;
            let state = tls
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if state.plaintext_bytes_to_read() > 0 || state.peer_has_closed() {
                let _ = tls.reader().read(&mut [0]);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
        drain(tls, out)
    }
}

fn drain(tls: &mut Connection, out: &mut Vec<u8>) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(out)?;
    }
    Ok(())
}
