//! A cluster whose servers ask who their clients are: its key, the certificates of a trial, its first user.
//!
//! All of it lies in the cluster's folder, for nobody but its owner to read.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use sheaf_bson::doc;
use sheaf_client::tls::{ClientOptions, Identity, TlsClient};

use super::record::Record;
use crate::client::{Connection, ConnectionString, Credentials};
use crate::error::{Error, Result};

/// Who may do everything.
const USER: &str = "admin";
const USER_NOT_MADE_TWICE: i32 = 51003;

/// That clients of a cluster prove who they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secured {
    /// Whether everybody speaks TLS.
    pub tls: bool,
    /// Whether the first user is there.
    pub has_user: bool,
}

/// The files of a secured cluster.
const FILES: [&str; 5] = ["keyfile", "password", "ca.pem", "server.pem", "client.pem"];

fn file(folder: &Path, name: &str) -> PathBuf {
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

impl Record {
    /// The flags of a secured cluster, for servers and routers alike.
    pub fn secured_flags(&self) -> Vec<String> {
        let Some(secured) = &self.secured else { return Vec::new() };
        let path = |name: &str| file(&self.folder, name).display().to_string();
        let mut flags = vec!["--keyFile".to_owned(), path("keyfile")];
        if secured.tls {
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

    /// The files of a secured cluster.
    pub fn secured_files(&self) -> Vec<PathBuf> {
        let folder = self.secured.as_ref().map(|_| &self.folder);
        folder.into_iter().flat_map(|folder| FILES.map(|name| file(folder, name))).collect()
    }

    /// One of the servers, as one of their own.
    ///
    /// Errors: the cluster's files cannot be read.
    pub fn direct(&self, address: &str) -> Result<ConnectionString> {
        let mut to = ConnectionString::direct(address);
        if self.secured.is_some() {
            to.credentials = Some(Credentials::new("__system", self.secret("keyfile")?, "local"));
            to.tls = self.tls()?;
        }
        Ok(to)
    }

    fn secret(&self, name: &str) -> Result<String> {
        let path = file(&self.folder, name);
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::from(error).context(path.display()))?;
        Ok(text.trim().to_owned())
    }

    fn tls(&self) -> Result<Option<TlsClient>> {
        if !self.secured.as_ref().is_some_and(|secured| secured.tls) {
            return Ok(None);
        }
        let options = ClientOptions {
            identity: Some(Identity { file: file(&self.folder, "client.pem"), password: None }),
            ca_file: Some(file(&self.folder, "ca.pem")),
            ..ClientOptions::default()
        };
        TlsClient::new(options).map(Some).map_err(Error::failed)
    }

    /// What a client connects by, as the first user.
    ///
    /// Errors: the cluster's files cannot be read.
    pub fn login(&self, to: ConnectionString) -> Result<ConnectionString> {
        if self.secured.is_none() {
            return Ok(to);
        }
        let credentials = Some(Credentials::new(USER, self.secret("password")?, "admin"));
        Ok(ConnectionString { credentials, tls: self.tls()?, ..to })
    }

    /// The connection string as somebody types it, with the password of the trial's user.
    ///
    /// Errors: the cluster's files cannot be read.
    pub fn typed(&self) -> Result<String> {
        let shown = self.connection_string()?.to_string();
        if self.secured.is_none() {
            return Ok(shown);
        }
        Ok(shown.replacen(&format!("{USER}@"), &format!("{USER}:{}@", self.secret("password")?), 1))
    }

    /// Makes the first user, who may do everything, by this server.
    ///
    /// Errors: those of the server.
    pub fn make_user(&mut self, address: &str) -> Result<()> {
        if self.secured.as_ref().is_none_or(|secured| secured.has_user) {
            return Ok(());
        }
        let password = self.secret("password")?;
        let mut connection = Connection::open(address, &self.direct(address)?)?;
        let command = doc! { "createUser": USER, "pwd": password.as_str(), "roles": ["root"] };
        match connection.command("admin", &command) {
            // Whoever has made it was killed before it could be noted.
            Err(error) if error.code() != Some(USER_NOT_MADE_TWICE) => {
                return Err(error.context("createUser"));
            }
            _ => {}
        }
        if let Some(secured) = &mut self.secured {
            secured.has_user = true;
        }
        self.save()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::record::Member;
    use super::*;
    use crate::part::Part;

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
        let member =
            Member { port: 1, part: Part::Set, arbiter: false, process: None, paused: false, called: None };
        let mut record = Record::new(folder.path().to_owned(), "rs0", vec![member]);
        record.secured = Some(Secured { tls: true, has_user: false });
        let to = record.direct("127.0.0.1:1").unwrap();
        assert!(to.tls.is_some() && to.credentials.is_some());
        let typed = record.typed().unwrap();
        assert!(typed.contains(&format!("admin:{}@", before[1])) && typed.contains("tls=true"), "{typed}");
        typed.parse::<ConnectionString>().unwrap();
    }
}
