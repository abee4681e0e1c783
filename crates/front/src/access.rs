//! Who the client of a connection is.

use std::any::Any;
use std::sync::{Arc, LazyLock};

use rand::Rng;
use sheaf_auth::server::Challenge;
use sheaf_auth::{
    Account, Action, ActionSet, Credential, Feigned, Keys, MEMBER_USER, Mechanism, RoleName, Target,
    UserDocument, UserName, legacy_digest,
};
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::Result;

use crate::oidc::ByToken;
use crate::params::Parameters;

/// The users that a role knows.
pub trait Accounts: Send + Sync {
    /// The present state of all users and roles; `None` where it takes long to tell.
    fn state(&self) -> Option<State>;

    /// Whether that is still the present one, if it can be told more cheaply than by asking for the present one.
    fn is_still(&self, state: &State) -> bool;

    /// The user of this name as it is now, with all that its roles come to now.
    ///
    /// Errors: those of reading users and roles.
    fn account(&self, name: &UserName) -> Result<Option<Arc<Account>>>;

    /// The user of this name, of whom nobody knows yet whether he is there: it is not to be told by what was read before, and takes the same
    /// for one who is there and one who is not.
    ///
    /// Errors: those of reading users.
    fn looked_up(&self, name: &UserName, feigned: &Feigned) -> Result<Option<UserDocument>>;

    /// What those are like that are not there; `None` where there are no users.
    ///
    /// Errors: those of reading users.
    fn feigned(&self) -> Result<Option<Arc<Feigned>>>;

    /// Somebody of whom no user is kept, with these roles as they are now.
    ///
    /// Errors: those of reading roles.
    fn with_roles(&self, name: &UserName, roles: &[RoleName]) -> Result<Arc<Account>>;

    /// Whether there is no user and no role.
    ///
    /// Errors: those of reading them.
    fn is_empty(&self) -> Result<bool>;
}

/// A state of all users and roles.
#[derive(Clone)]
pub struct State {
    /// Another one as soon as a user or a role has changed.
    pub number: u64,
    /// By what those who keep them tell that it is still this one, without a lock that all connections share.
    pub mark: Option<Arc<dyn Any + Send + Sync>>,
}

/// How a server treats its clients.
pub struct Access {
    /// Whether clients must prove who they are, and may do only what they were granted.
    pub enabled: bool,
    /// What users are like that there are not, where there are none at all.
    pub(crate) feigned: Arc<Feigned>,
    /// By what members of the deployment know each other.
    keys: Option<Keys>,
    /// As whom they log in by MongoDB's protocol.
    members: Option<Arc<Account>>,
}

impl Access {
    /// With these settings, and a secret of the deployment's key or of its own; `certificates` if members may be known by theirs.
    pub fn new(enabled: bool, keys: Option<Keys>, certificates: bool, parameters: &Parameters) -> Self {
        let mut secret = [0; 32];
        match keys.as_ref().and_then(|keys| keys.iter().next()) {
            // All members say the same of somebody who is not there, whenever they are asked.
            Some(key) => {
                let of_key = Mechanism::Sha256.hmac(key.as_bytes(), b"users that are not there");
                secret.copy_from_slice(&of_key);
            }
            None => rand::rng().fill_bytes(&mut secret),
        }
        let credentials = keys.as_ref().map(|keys| credentials(keys, parameters));
        // By certificate there is nothing to be proved.
        let credentials = credentials.or_else(|| certificates.then(Vec::new));
        let members = credentials.map(|credentials| Arc::new(Account::of_members(credentials)));
        Access { enabled, feigned: Arc::new(Feigned::new(secret)), keys, members }
    }

    /// By what members of the deployment know each other, if they do.
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// The user that all members are, if it is this one.
    pub(crate) fn members(&self, name: &UserName) -> Option<Arc<Account>> {
        self.members.as_ref().filter(|members| members.user.name == *name).cloned()
    }
}

/// How often the hash of a new password is applied.
pub fn iterations(parameters: &Parameters, mechanism: Mechanism) -> u32 {
    let name = match mechanism {
        Mechanism::Sha1 => "scramIterationCount",
        Mechanism::Sha256 => "scramSHA256IterationCount",
    };
    parameters.int(name) as u32
}

/// What members prove themselves with: of all keys, with a salt in common.
fn credentials(keys: &Keys, parameters: &Parameters) -> Vec<(Mechanism, Credential)> {
    let mut all = Vec::new();
    for mechanism in Mechanism::ALL {
        let mut salt = vec![0; mechanism.salt_bytes()];
        rand::rng().fill_bytes(&mut salt);
        let iterations = iterations(parameters, mechanism);
        for key in keys.iter() {
            // Base64 is what SASLprep makes of it.
            let prepared = match mechanism {
                Mechanism::Sha1 => legacy_digest(MEMBER_USER.0, key),
                Mechanism::Sha256 => key.to_owned(),
            };
            all.push((mechanism, Credential::derive(mechanism, &prepared, salt.clone(), iterations)));
        }
    }
    all
}

/// What a connection has said and proved of its client.
#[derive(Default)]
pub struct ClientAccess {
    /// Whether it is the server itself, which has no connection.
    pub is_server: bool,
    /// Who it is.
    pub(crate) login: Option<Login>,
    /// Whom the client's certificate names, if it has shown one; `None` without TLS.
    pub(crate) certificate: Option<Option<String>>,
    /// A conversation under way.
    pub(crate) conversation: Option<Conversation>,
    /// Whether the last login has begun with the client's `hello`.
    pub(crate) is_speculative: bool,
    /// The number of the last one.
    pub(crate) conversations: i32,
}

impl ClientAccess {
    /// Who the client is, if it has proved it.
    pub fn user(&self) -> Option<&UserName> {
        self.login.as_ref().map(|login| &login.name)
    }

    /// By what sessions name the client's user.
    pub fn digest(&self) -> Option<[u8; 32]> {
        self.login.as_ref().map(|login| login.digest)
    }
}

/// A client that has proved who it is.
pub(crate) struct Login {
    pub name: UserName,
    /// By what sessions name it: a router says so with each command.
    pub digest: [u8; 32],
    /// The user's own number: one that is made anew with the same name is another.
    pub id: Option<[u8; 16]>,
    /// The token that has said so; the client is nobody when it holds no more.
    pub token: Option<Arc<ByToken>>,
    /// What the client was allowed last.
    pub known: Option<Known>,
}

impl Login {
    /// Who it is.
    pub fn without_known(&self) -> Login {
        Login { name: self.name.clone(), token: self.token.clone(), known: None, ..*self }
    }
}

/// A user as read in one state of all users and roles, and commands that it has been allowed: the next one is often the same.
pub(crate) struct Known {
    state: State,
    pub account: Arc<Account>,
    allowed: [Allowed; ALLOWED],
    /// Which of them makes room for the next.
    next: usize,
}

/// Commands that are remembered. Drivers spread an application's over their connections.
const ALLOWED: usize = 4;

/// A command's name, its database, and its first element as it came.
#[derive(Default)]
struct Allowed {
    command: &'static str,
    db: String,
    first: Vec<u8>,
    /// The last bytes of the first element: mostly it is there that others differ.
    tail: [u8; TAIL],
}

const TAIL: usize = 8;

/// Shorter and longer first elements are not remembered.
const FIRST_BYTES: std::ops::Range<usize> = TAIL..300;

impl Allowed {
    /// `rest` is the command as it came, from its first element on. An element ends by itself: whatever begins with the same bytes has
    /// the same element.
    fn is(&self, command: &'static str, db: &str, rest: &[u8]) -> bool {
        std::ptr::eq(self.command, command)
            && rest.get(..self.first.len()).is_some_and(|first| {
                first.last_chunk() == Some(&self.tail)
                    && same(self.db.as_bytes(), db.as_bytes())
                    && same(&self.first, first)
            })
    }
}

/// Whether they are the same; of what is short by a few comparisons, which are done for each command: a call of the library's takes longer.
#[inline]
fn same(one: &[u8], other: &[u8]) -> bool {
    fn ends<const N: usize>(bytes: &[u8]) -> (Option<&[u8; N]>, Option<&[u8; N]>) {
        (bytes.first_chunk(), bytes.last_chunk())
    }
    one.len() == other.len()
        && match one.len() {
            4..8 => ends::<4>(one) == ends::<4>(other),
            8..=16 => ends::<8>(one) == ends::<8>(other),
            17..=32 => ends::<16>(one) == ends::<16>(other),
            _ => one == other,
        }
}

impl Known {
    /// Nothing has been allowed yet.
    pub fn new(state: State, account: Arc<Account>) -> Self {
        Known { state, account, allowed: Default::default(), next: 0 }
    }

    /// Whether no user and no role has changed since.
    pub fn holds(&mut self, accounts: &dyn Accounts) -> bool {
        accounts.is_still(&self.state) || self.is_same(accounts.state())
    }

    /// Whether this is the same state; it may be told by something else meanwhile.
    #[cold]
    fn is_same(&mut self, now: Option<State>) -> bool {
        let Some(now) = now.filter(|now| now.number == self.state.number) else { return false };
        self.state = now;
        true
    }

    /// Whether this was allowed: a command is the same here as long as name, database and first element are.
    #[inline]
    pub fn has_allowed(&self, command: &'static str, db: &str, body: RawDoc<'_>) -> bool {
        let rest = &body.as_bytes()[4..];
        self.allowed.iter().any(|one| one.is(command, db, rest))
    }

    /// Remembers that this was allowed.
    pub fn allow(&mut self, command: &'static str, db: &str, body: RawDoc<'_>) {
        let Some(first) = body.iter().next() else { return };
        let first = first.as_bytes();
        let Some(tail) = first.last_chunk().filter(|_| FIRST_BYTES.contains(&first.len())) else { return };
        let one = &mut self.allowed[self.next];
        one.command = command;
        one.db.clear();
        one.db.push_str(db);
        one.first.clear();
        one.first.extend_from_slice(first);
        one.tail = *tail;
        self.next = (self.next + 1) % ALLOWED;
    }
}

/// A conversation that waits for the client's next message.
pub(crate) struct Conversation {
    pub id: i32,
    pub user: UserName,
    /// What was known of the user when it began.
    pub account: Option<UserDocument>,
    pub mechanism: &'static str,
    pub step: Step,
    /// Whether the last message says `done`, though the client has one to send.
    pub skip_empty: bool,
}

pub(crate) enum Step {
    /// The client's proof.
    Proof(Box<Challenge>),
    /// A token, of this principal if one was named.
    Token(Option<String>),
    /// An empty message, after which the client is who it says.
    Empty,
}

/// By which a router says that it asks for who makes the first user: by another router somebody may have come sooner.
pub(crate) const FIRST_USER: &str = "$firstUser";

static NO_ROLES: LazyLock<Arc<DocBuf>> = LazyLock::new(Arc::default);

/// What a client may do.
#[derive(Clone)]
pub struct Rights(Held);

#[derive(Clone)]
enum Held {
    Everything,
    Member,
    Account(Arc<Account>),
    FirstUser,
    Nothing,
}

impl Rights {
    /// Everything: nobody is asked who he is, or it is the server itself.
    pub const fn everything() -> Self {
        Rights(Held::Everything)
    }

    /// What this user may do. Members do whatever they do for others, whom they have asked who they are.
    pub fn of(account: Arc<Account>) -> Self {
        Rights(if account.is_member() { Held::Member } else { Held::Account(account) })
    }

    /// What somebody may do before there is any user.
    pub fn to_make_the_first_user() -> Self {
        Rights(Held::FirstUser)
    }

    /// Nothing.
    pub fn nothing() -> Self {
        Rights(Held::Nothing)
    }

    /// Whether somebody has them who may make the first user.
    pub fn are_of_the_first_user(&self) -> bool {
        matches!(self.0, Held::FirstUser)
    }

    /// Whether nobody knows whose they are.
    pub(crate) fn are_nobodys(&self) -> bool {
        matches!(self.0, Held::FirstUser | Held::Nothing)
    }

    /// Whose they are, if a user's.
    pub fn user(&self) -> Option<&UserName> {
        match &self.0 {
            Held::Account(account) => Some(&account.user.name),
            _ => None,
        }
    }

    /// The user whose they are, as it is now.
    pub fn account(&self) -> Option<&Arc<Account>> {
        match &self.0 {
            Held::Account(account) => Some(account),
            _ => None,
        }
    }

    /// Whether they have no bounds.
    pub fn are_everything(&self) -> bool {
        matches!(self.0, Held::Everything | Held::Member)
    }

    /// Whether all these actions may be done there.
    pub fn may(&self, target: Target<'_>, actions: &[Action]) -> bool {
        match &self.0 {
            Held::Everything | Held::Member => true,
            Held::Account(account) => account.held().at(target).contains_all(ActionSet::of(actions)),
            Held::FirstUser => actions.iter().all(|action| match target {
                Target::Database("admin" | "$external") => {
                    matches!(action, Action::CreateUser | Action::CreateRole | Action::GrantRole)
                }
                Target::Cluster => {
                    matches!(action, Action::AddShard | Action::ReplSetConfigure | Action::ReplSetGetStatus)
                }
                _ => false,
            }),
            Held::Nothing => false,
        }
    }

    /// Whether anything may be done there.
    pub fn may_anything(&self, target: Target<'_>) -> bool {
        match &self.0 {
            Held::Account(account) => !account.held().at(target).is_empty(),
            Held::Everything | Held::Member => true,
            Held::FirstUser | Held::Nothing => false,
        }
    }

    /// Whether anything may be done to something in this database.
    pub fn reach(&self, db: &str) -> bool {
        match &self.0 {
            Held::Account(account) => account.resolved.privileges.reach(db),
            Held::Everything | Held::Member => true,
            Held::FirstUser | Held::Nothing => false,
        }
    }

    /// What `$$USER_ROLES` shows: nothing where nobody is asked who he is. Members ask for others, of whom this server knows nothing.
    pub fn user_roles(&self) -> Option<Arc<DocBuf>> {
        match &self.0 {
            Held::Account(account) => Some(account.roles_shown().clone()),
            Held::Everything => Some(NO_ROLES.clone()),
            Held::Member | Held::FirstUser | Held::Nothing => None,
        }
    }

    /// Whether they are those of a member, who asks for others.
    pub fn are_members(&self) -> bool {
        matches!(self.0, Held::Member)
    }

    /// For whom a router asks, in the form of `$audit`: its user with all roles, or whoever makes the first one; `None` where nobody has to say
    /// who he is.
    pub fn asked_for(&self) -> Option<DocBuf> {
        let account = match &self.0 {
            Held::Account(account) => account,
            Held::FirstUser => return Some(doc! { FIRST_USER: true }),
            Held::Everything | Held::Member | Held::Nothing => return None,
        };
        Some(DocBuf::build(|doc| {
            account.user.name.write(&mut doc.document("$impersonatedUser"));
            doc.append("$impersonatedRoles", Value::Array(account.roles_shown().as_raw()));
        }))
    }

    /// Whether the user has this role, by itself or by another.
    pub fn have_role(&self, role: &RoleName) -> bool {
        matches!(&self.0, Held::Account(account) if account.resolved.roles.contains(role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_compared_as_what_is_long() {
        for length in 0..80 {
            let one: Vec<u8> = (0..length).collect();
            assert!(same(&one, &one.clone()));
            assert!(!same(&one, &[one.as_slice(), &[0]].concat()));
            for at in 0..one.len() {
                let mut other = one.clone();
                other[at] ^= 0x40;
                assert!(!same(&one, &other), "{length} {at}");
            }
        }
    }

    #[test]
    fn what_was_allowed_is_known_by_name_database_and_first_element() {
        let account = Arc::new(Account::of_members(Vec::new()));
        let mut known = Known::new(State { number: 1, mark: None }, account);
        let find = |collection: &str| doc! { "find": collection, "filter": { "a": 1 } };
        for collection in
            ["a", "many", "a collection of a long name, which is longer than what is compared at once"]
        {
            let command = find(collection);
            assert!(!known.has_allowed("find", "t", command.as_raw()));
            known.allow("find", "t", command.as_raw());
            assert!(known.has_allowed("find", "t", command.as_raw()));
            assert!(known.has_allowed("find", "t", doc! { "find": collection }.as_raw()));
            assert!(!known.has_allowed("find", "u", command.as_raw()));
            assert!(!known.has_allowed("count", "t", command.as_raw()));
            assert!(!known.has_allowed("find", "t", find(&format!("{collection}2")).as_raw()));
        }
        // What does not fit is not known again, and nothing else for it.
        known.allow("ping", "t", doc! { "p": sheaf_bson::Value::Null }.as_raw());
        assert!(!known.has_allowed("ping", "t", doc! { "p": sheaf_bson::Value::Null }.as_raw()));
        assert!(!known.has_allowed("find", "t", DocBuf::new().as_raw()));
    }
}
