//! An event of the audit log, in MongoDB's form.

use std::net::SocketAddr;

use sheaf_auth::{RoleName, UserName};
use sheaf_bson::{Binary, DocBuf, DocWriter, Value};
use sheaf_errors::Code;

/// Whose doing an event is.
#[derive(Clone, Debug, Default)]
pub struct Who {
    /// Names the connection, or the server itself.
    pub id: [u8; 16],
    /// From where it comes and where it has arrived.
    pub place: Place,
    /// Who has proved to be there.
    pub user: Option<UserName>,
    /// The roles that the user has.
    pub roles: Vec<RoleName>,
}

/// Where a connection comes from and where it has arrived.
#[derive(Clone, Copy, Debug, Default)]
pub enum Place {
    /// It is the server itself.
    #[default]
    System,
    /// By a Unix domain socket.
    Unix,
    /// By TCP.
    Tcp {
        /// This server's address.
        local: Option<SocketAddr>,
        /// The client's.
        remote: SocketAddr,
    },
}

impl Place {
    fn write(self, name: &str, address: Option<SocketAddr>, doc: &mut DocWriter<'_, Vec<u8>>) {
        let mut place = doc.document(name);
        match (self, address) {
            (Place::System, _) => {
                place.append("isSystemUser", true);
            }
            (Place::Unix, _) => {
                place.append("unix", "anonymous");
            }
            (Place::Tcp { .. }, Some(address)) => {
                place.append("ip", &address.ip().to_canonical().to_string());
                place.append("port", i32::from(address.port()));
            }
            (Place::Tcp { .. }, None) => {}
        }
    }

    /// Writes `local` and `remote`.
    fn write_both(self, doc: &mut DocWriter<'_, Vec<u8>>) {
        let (local, remote) = match self {
            Place::Tcp { local, remote } => (local, Some(remote)),
            Place::System | Place::Unix => (None, None),
        };
        self.write("local", local, doc);
        self.write("remote", remote, doc);
    }

    /// This server's address as `clientMetadata` shows it.
    pub fn local_endpoint(self) -> DocBuf {
        let local = match self {
            Place::Tcp { local, .. } => local,
            Place::System | Place::Unix => None,
        };
        let mut endpoint = DocBuf::new();
        DocBuf::build(|doc| self.write("e", local, doc))
            .as_raw()
            .get("e")
            .and_then(|value| value.as_doc())
            .into_iter()
            .for_each(|inner| endpoint = DocBuf::from(inner));
        endpoint
    }
}

/// What has happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// MongoDB's name of it.
    pub atype: &'static str,
    /// To what.
    pub param: DocBuf,
    /// How it ended.
    pub result: Code,
    /// When, in milliseconds of the epoch.
    pub millis: i64,
}

impl Event {
    /// The document that is written, and that the filter is about.
    pub fn document(&self, who: &Who) -> DocBuf {
        DocBuf::build(|doc| {
            doc.append("atype", self.atype);
            doc.append("ts", Value::DateTime(self.millis));
            doc.append("uuid", Value::Binary(Binary { subtype: 4, bytes: &who.id }));
            who.place.write_both(doc);
            {
                let mut users = doc.array("users");
                if let Some(user) = &who.user {
                    user.write(&mut users.document());
                }
            }
            {
                let mut roles = doc.array("roles");
                for role in &who.roles {
                    role.write(&mut roles.document());
                }
            }
            doc.append("param", &self.param);
            doc.append("result", self.result.0);
        })
    }
}
