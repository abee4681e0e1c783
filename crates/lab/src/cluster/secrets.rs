//! What the servers of a secured deployment know each other by: a key, the first user's password, the certificates of a trial.
//!
//! All of it lies in one folder, for nobody but its owner to read.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use sheaf_client::tls::{ClientOptions, Identity, TlsClient};

use crate::client::{ConnectionString, Credentials};
use crate::error::{Error, Result};

/// The files.
pub const FILES: [&str; 5] = ["keyfile", "password", "ca.pem", "server.pem", "client.pem"];

/// What the servers of a deployment know each other by: files of one folder.
pub struct Secrets {
    /// Where they are.
    pub folder: PathBuf,
    /// Whether everybody speaks TLS.
    pub tls: bool,
}

impl Secrets {
    /// Makes them.
    ///
    /// Errors: files that cannot be made.
    pub fn make(folder: &Path, tls: bool) -> Result<Secrets> {
        make(folder, tls)?;
        Ok(Secrets { folder: folder.to_owned(), tls })
    }

    /// The flags of its servers and routers.
    pub fn flags(&self) -> Vec<String> {
        let path = |name: &str| file(&self.folder, name).display().to_string();
        let mut flags = vec!["--keyFile".to_owned(), path("keyfile")];
        if self.tls {
            let tls = [
                "--tlsMode",
                "requireTLS",
                "--tlsCertificateKeyFile",
                &path("server.pem"),
                "--tlsCAFile",
                &path("ca.pem"),
            ];
            flags.extend(tls.map(str::to_owned));
        }
        flags
    }

    /// One of the servers, as one of their own.
    ///
    /// Errors: the files cannot be read.
    pub fn direct(&self, address: &str) -> Result<ConnectionString> {
        let credentials = Some(Credentials::new("__system", self.secret("keyfile")?, "local"));
        Ok(ConnectionString { credentials, tls: self.tls()?, ..ConnectionString::direct(address) })
    }

    /// The text of one of the files.
    ///
    /// Errors: it cannot be read.
    pub fn secret(&self, name: &str) -> Result<String> {
        let path = file(&self.folder, name);
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::from(error).context(path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// By what clients speak TLS, if they do.
    ///
    /// Errors: the files cannot be read.
    pub fn tls(&self) -> Result<Option<TlsClient>> {
        if !self.tls {
            return Ok(None);
        }
        let options = ClientOptions {
            identity: Some(Identity { file: file(&self.folder, "client.pem"), password: None }),
            ca_file: Some(file(&self.folder, "ca.pem")),
            ..ClientOptions::default()
        };
        TlsClient::new(options).map(Some).map_err(Error::failed)
    }
}

/// One of the files.
pub fn file(folder: &Path, name: &str) -> PathBuf {
    debug_assert!(FILES.contains(&name), "{name}");
    folder.join(name)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = file(folder, name);
    let place = |error: std::io::Error| Error::from(error).context(path.display());
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(place)?;
    file.write_all(text.as_bytes()).map_err(place)
}

/// Makes the key, the password and the certificates, where they are not there.
pub fn make(folder: &Path, tls: bool) -> Result<()> {
    if !file(folder, "keyfile").exists() {
        write(folder, "keyfile", &STANDARD.encode(rand::random::<[u8; 48]>()))?;
    }
    if !file(folder, "password").exists() {
        write(folder, "password", &URL_SAFE_NO_PAD.encode(rand::random::<[u8; 15]>()))?;
    }
    if tls && !file(folder, "client.pem").exists() {
        for name in ["ca.pem", "server.pem"] {
            let _ = std::fs::remove_file(file(folder, name));
        }
        certificates(folder).map_err(|error| match error {
            Made::Not(error) => Error::failed(format!("cannot make certificates: {error}")),
            Made::Unwritten(error) => error,
        })?;
    }
    Ok(())
}

enum Made {
    Not(rcgen::Error),
    Unwritten(Error),
}

impl From<rcgen::Error> for Made {
    fn from(error: rcgen::Error) -> Made {
        Made::Not(error)
    }
}

/// An authority, and what it signs: a certificate for all servers, and one for clients.
fn certificates(folder: &Path) -> std::result::Result<(), Made> {
    let key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    named(&mut authority, "trial", "authority");
    let certificate = authority.self_signed(&key)?;
    let issuer = Issuer::new(authority, key);
    write(folder, "ca.pem", &pem("CERTIFICATE", certificate.der())).map_err(Made::Unwritten)?;
    for (name, unit) in [("server", "servers"), ("client", "clients")] {
        let key = KeyPair::generate()?;
        let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut params = CertificateParams::new(hosts)?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        named(&mut params, unit, name);
        let certificate = params.signed_by(&key, &issuer)?;
        let both = pem("CERTIFICATE", certificate.der()) + &pem("PRIVATE KEY", key.serialized_der());
        write(folder, &format!("{name}.pem"), &both).map_err(Made::Unwritten)?;
    }
    Ok(())
}

fn pem(label: &str, der: &[u8]) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(der);
    let lines: Vec<&str> =
        (0..text.len()).step_by(LINE).map(|at| &text[at..text.len().min(at + LINE)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

fn named(params: &mut CertificateParams, unit: &str, name: &str) {
    params.distinguished_name.push(DnType::OrganizationName, "Sheaf trial");
    params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
    params.distinguished_name.push(DnType::CommonName, name);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_a_trial_needs_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), true).unwrap();
        let read = |name: &str| std::fs::read_to_string(file(folder.path(), name)).unwrap();
        let before = FILES.map(read);
        make(folder.path(), true).unwrap();
        assert_eq!(FILES.map(read), before);
        for name in FILES {
            assert_eq!(std::fs::metadata(file(folder.path(), name)).unwrap().permissions().mode() & 0o077, 0);
        }
    }
}
