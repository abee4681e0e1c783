//! How clients reach the servers of a target: as whoever they have to prove to be, and with TLS where it is spoken.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use crate::client::ConnectionString;
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::experiment::SecuredBy;

/// How each server of a target is reached.
#[derive(Clone, Debug)]
pub struct Access {
    /// What every connection has in common.
    template: ConnectionString,
    /// What the servers are started with.
    pub flags: Vec<String>,
    /// Where the files are, which go with this.
    _folder: Option<Arc<TempDir>>,
}

impl Default for Access {
    fn default() -> Access {
        Access { template: ConnectionString::direct(""), flags: Vec::new(), _folder: None }
    }
}

impl Access {
    /// As a client of this deployment.
    pub fn of(to: &ConnectionString) -> Access {
        let (credentials, tls) = (to.credentials.clone(), to.tls.clone());
        Access {
            template: ConnectionString { credentials, tls, ..ConnectionString::direct("") },
            ..Access::default()
        }
    }

    /// Makes what new servers and their clients need to know each other, in a folder within this one.
    ///
    /// Errors: files that cannot be made.
    pub fn make(by: Option<SecuredBy>, within: &Path) -> Result<Access> {
        let Some(by) = by else { return Ok(Access::default()) };
        let folder = tempfile::Builder::new()
            .prefix("sheaf-lab-secrets-")
            .tempdir_in(within)
            .map_err(|error| Error::from(error).context(within.display()))?;
        let secrets = Secrets::make(folder.path(), by == SecuredBy::Tls)?;
        Ok(Access { template: secrets.direct("")?, flags: secrets.flags(), _folder: Some(Arc::new(folder)) })
    }

    /// One server, addressed directly.
    pub fn direct(&self, address: &str) -> ConnectionString {
        ConnectionString { hosts: vec![address.to_owned()], ..self.template.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secured_servers_are_reached_as_one_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        let plain = Access::make(None, folder.path()).unwrap().direct("one:1");
        assert!(plain.credentials.is_none() && plain.tls.is_none() && files() == 0);
        let keyed = Access::make(Some(SecuredBy::Key), folder.path()).unwrap();
        assert!(
            keyed.flags.contains(&"--keyFile".to_owned()) && !keyed.flags.contains(&"--tlsMode".to_owned())
        );
        let to = keyed.direct("one:1");
        assert!(to.credentials.is_some() && to.tls.is_none() && to.hosts == ["one:1"]);
        let sealed = Access::make(Some(SecuredBy::Tls), folder.path()).unwrap();
        assert!(sealed.flags.contains(&"requireTLS".to_owned()));
        let to = sealed.direct("one:1");
        assert!(to.credentials.is_some() && to.tls.is_some());
        assert_eq!(
            Access::of(&to).direct("two:2"),
            ConnectionString { hosts: vec!["two:2".to_owned()], ..to }
        );
        assert_eq!(files(), 2);
        drop((keyed, sealed));
        assert_eq!(files(), 0);
    }
}
