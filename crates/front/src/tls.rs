//! TLS on clients' sockets, in whichever hand they are.

pub mod control;

use std::io;
use std::time::Duration;

pub use sheaf_tls::stream::{TlsStream, begins};
pub use sheaf_tls::{Certified, Tls, TlsMode, TlsOptions, Wire};

use crate::params::Parameters;
use crate::stream::{ClientStream, Socket};

impl sheaf_tls::stream::Inner for ClientStream {
    fn is_direct(&self) -> bool {
        Socket::is_direct(self)
    }
}

impl Socket for TlsStream<ClientStream> {
    fn is_direct(&self) -> bool {
        Socket::is_direct(self.inner())
    }

    fn to_thread(&mut self, silence: Duration, patience: Duration) -> io::Result<()> {
        self.inner_mut().to_thread(silence, patience)
    }

    fn leave_reactor(&mut self) -> io::Result<()> {
        self.inner_mut().leave_reactor()
    }

    fn to_reactor(&mut self) -> io::Result<()> {
        self.inner_mut().to_reactor()
    }

    fn is_gone(&self) -> bool {
        self.inner().is_gone()
    }
}

/// What flags say of TLS, with what parameters say of it.
pub(crate) fn with_parameters(options: TlsOptions, parameters: &Parameters) -> TlsOptions {
    let other = parameters.text("tlsX509ClusterAuthDNOverride");
    TlsOptions { other_members: (!other.is_empty()).then_some(other), ..options }
}
