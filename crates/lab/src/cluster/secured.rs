//! A cluster whose servers ask who their clients are: its [secrets](super::secrets), its first user.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sheaf_bson::doc;

use super::record::Record;
use super::secrets::{FILES, Secrets, file};
use crate::client::{Connection, ConnectionString, Credentials};
use crate::error::Result;
use crate::target::quoted;

/// Who may do everything.
pub(super) const USER: &str = "admin";
const USER_NOT_MADE_TWICE: i32 = 51003;

/// That clients of a cluster prove who they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secured {
    /// Whether everybody speaks TLS.
    pub tls: bool,
    /// Whether the first user is there.
    pub has_user: bool,
}

impl Record {
    fn has_user(&self) -> bool {
        self.secured.as_ref().is_some_and(|secured| secured.has_user)
    }

    fn secrets(&self) -> Option<Secrets> {
        self.secured.as_ref().map(|secured| Secrets { folder: self.folder.clone(), tls: secured.tls })
    }

    /// The flags of a secured cluster, for servers and routers alike.
    pub fn secured_flags(&self) -> Vec<String> {
        self.secrets().map_or_else(Vec::new, |secrets| secrets.flags())
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
        match self.secrets() {
            Some(secrets) => secrets.direct(address),
            None => Ok(ConnectionString::direct(address)),
        }
    }

    /// The line by which somebody has mongosh do this at one of the servers.
    pub fn shell(&self, port: u16, text: &str) -> String {
        let tls = self.secrets().filter(|secrets| secrets.tls).map_or_else(String::new, |secrets| {
            let path = |name: &str| quoted(&file(&secrets.folder, name).to_string_lossy());
            format!(" --tls --tlsCAFile {} --tlsCertificateKeyFile {}", path("ca.pem"), path("client.pem"))
        });
        format!("mongosh --quiet --port {port}{tls} --eval {}", quoted(text))
    }

    /// What a client connects by, as the first user.
    ///
    /// Errors: the cluster's files cannot be read.
    pub fn login(&self, to: ConnectionString) -> Result<ConnectionString> {
        let Some(secrets) = self.secrets() else { return Ok(to) };
        let credentials = Some(Credentials::new(USER, secrets.secret("password")?, "admin"));
        Ok(ConnectionString { credentials, tls: secrets.tls()?, ..to })
    }

    /// The connection string as somebody types it, with the password of the trial's user.
    ///
    /// Errors: the cluster's files cannot be read.
    pub fn typed(&self) -> Result<String> {
        let shown = self.connection_string()?.to_string();
        let Some(secrets) = self.secrets() else { return Ok(shown) };
        Ok(shown.replacen(&format!("{USER}@"), &format!("{USER}:{}@", secrets.secret("password")?), 1))
    }

    /// Makes the first user, who may do everything, by this server.
    ///
    /// Errors: those of the server.
    pub fn make_user(&mut self, address: &str) -> Result<()> {
        let Some(secrets) = self.secrets().filter(|_| !self.has_user()) else { return Ok(()) };
        let password = secrets.secret("password")?;
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
    use super::super::record::Member;
    use super::super::secrets::make;
    use super::*;
    use crate::part::Part;

    #[test]
    fn clients_have_the_password_and_servers_the_key() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), true).unwrap();
        let password = std::fs::read_to_string(file(folder.path(), "password")).unwrap();
        let member =
            Member { port: 1, part: Part::Set, arbiter: false, process: None, paused: false, called: None };
        let mut record = Record::new(folder.path().to_owned(), "rs0", vec![member]);
        record.secured = Some(Secured { tls: true, has_user: false });
        let to = record.direct("127.0.0.1:1").unwrap();
        assert!(to.tls.is_some() && to.credentials.is_some());
        let typed = record.typed().unwrap();
        assert!(typed.contains(&format!("admin:{password}@")) && typed.contains("tls=true"), "{typed}");
        typed.parse::<ConnectionString>().unwrap();
        // What is printed can be typed.
        let shell = record.shell(1, "rs.status()");
        assert!(shell.starts_with("mongosh --quiet --port 1 --tls --tlsCAFile "), "{shell}");
        assert!(shell.contains("client.pem --eval 'rs.status()'"), "{shell}");
        record.secured = None;
        assert_eq!(record.shell(1, "x"), "mongosh --quiet --port 1 --eval x");
    }
}
