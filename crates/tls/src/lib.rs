//! TLS (rustls): what the files of certificates and keys say, the two sides' configurations, and connections on sockets of a
//! reactor and of a thread.
//!
//! - [`TlsOptions`], [`Tls`]: how a server speaks TLS to its clients and to the others of its deployment.
//! - [`ClientOptions`], [`TlsClient`]: how a process speaks it that dials.
//! - [`stream::TlsStream`], [`Wire`]: connections in a reactor; [`Blocking`]: those of threads.
#![forbid(unsafe_code)]

mod blocking;
mod client;
mod files;
mod options;
mod server;
pub mod stream;
#[cfg(test)]
mod tests;
mod verify;
mod wire;

pub use blocking::Blocking;
pub use client::{ClientOptions, TlsClient};
pub use options::{Identity, TlsMode, TlsOptions};
pub use server::{Certified, Tls};
pub use wire::Wire;

/// A certificate as the other side has shown it.
pub use rustls::pki_types::CertificateDer;

/// What is on a socket whose handshake is over.
pub use rustls::Connection;
