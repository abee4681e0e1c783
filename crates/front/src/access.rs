//! Who the client of a connection is.

use std::sync::Arc;

use rand::Rng;
use sheaf_auth::server::Challenge;
use sheaf_auth::{Account, UserName};
use sheaf_errors::Result;

/// The users that a role knows.
pub trait Accounts: Send + Sync {
    /// The user of this name as it is now, with all that its roles come to now.
    ///
    /// Errors: those of reading users and roles.
    fn account(&self, name: &UserName) -> Result<Option<Arc<Account>>>;

    /// Whether there is no user and no role.
    ///
    /// Errors: those of reading them.
    fn is_empty(&self) -> Result<bool>;
}

/// How a server treats its clients.
pub struct Access {
    /// Whether clients must prove who they are, and may do only what they were granted.
    pub enabled: bool,
    /// Of which credentials of users are made that there are not.
    pub(crate) secret: [u8; 32],
}

impl Access {
    /// With this setting, and a secret of its own.
    pub fn new(enabled: bool) -> Self {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        Access { enabled, secret }
    }
}

/// What a connection has said and proved of its client.
#[derive(Default)]
pub struct ClientAccess {
    /// Who it is.
    pub(crate) login: Option<Login>,
    /// A conversation under way.
    pub(crate) conversation: Option<Conversation>,
    /// The number of the last one.
    pub(crate) conversations: i32,
}

impl ClientAccess {
    /// Who the client is, if it has proved it.
    pub fn user(&self) -> Option<&UserName> {
        self.login.as_ref().map(|login| &login.name)
    }
}

/// A client that has proved who it is.
#[derive(Clone)]
pub(crate) struct Login {
    pub name: UserName,
    /// The user's own number: one that is made anew with the same name is another.
    pub id: Option<[u8; 16]>,
}

/// A conversation that waits for the client's next message.
pub(crate) struct Conversation {
    pub id: i32,
    pub user: UserName,
    pub mechanism: &'static str,
    pub step: Step,
    /// Whether the last message says `done`, though the client has one to send.
    pub skip_empty: bool,
}

pub(crate) enum Step {
    /// The client's proof.
    Proof(Box<Challenge>),
    /// An empty message, after which the client is who it says.
    Empty,
}
