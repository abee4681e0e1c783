//! The conversations by which clients prove who they are, as `saslStart`, `saslContinue` and `hello` lead them.

pub mod logins;
mod oidc;
mod stored;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand::Rng;
use sheaf_auth::server::{self, First};
use sheaf_auth::{Account, Feigned, MEMBER_USER, Mechanism, UserDocument, UserName};
use sheaf_bson::{Binary, DocWriter, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};

pub use self::stored::stored_user;
pub use crate::access::iterations;
use crate::access::{Conversation, Known, Login, Step};
use crate::audit::noted;
use crate::oidc::{ByToken, OIDC};
use crate::params::Parameters;
use crate::request::Request;
use crate::strangers::guesses::{Guesser, Guesses};

/// An answer to one of a client's messages.
pub struct Answer {
    conversation: i32,
    done: bool,
    payload: Vec<u8>,
}

impl Answer {
    /// Writes it as `saslStart` answers.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        doc.append("conversationId", self.conversation).append("done", self.done);
        doc.append("payload", Value::Binary(Binary { subtype: 0, bytes: &self.payload }));
    }
}

/// A first message.
pub struct Start<'a> {
    mechanism: &'a str,
    payload: &'a [u8],
    skip_empty: bool,
}

impl<'a> Start<'a> {
    /// From the fields of `saslStart`.
    pub fn new(mechanism: &'a str, payload: &'a [u8], options: Option<RawDoc<'_>>) -> Self {
        let skip_empty = options.and_then(|options| options.get("skipEmptyExchange"));
        Start { mechanism, payload, skip_empty: skip_empty.is_some_and(|flag| flag.truthy()) }
    }

    /// From the document that a `hello` holds, with the database that it names; `None` if it is something else.
    pub fn read(doc: RawDoc<'a>) -> Option<(Self, &'a str)> {
        doc.get("saslStart")?;
        let Some(Value::Binary(payload)) = doc.get("payload") else { return None };
        let options = doc.get("options").and_then(|options| options.as_doc());
        Some((Start::new(doc.get("mechanism")?.as_str()?, payload.bytes, options), doc.get("db")?.as_str()?))
    }

    /// Begins a conversation; one that is under way is given up.
    ///
    /// Errors: `MechanismUnavailable`, `AuthenticationFailed`.
    pub fn run(self, request: &Request<'_>, db: &str) -> Result<Answer> {
        if self.mechanism == OIDC && takes(&request.front.parameters, OIDC) {
            request.client.access.lock().conversation = None;
            begins(request, OIDC, false);
            return oidc::start(request, db, self.payload);
        }
        let mechanism = Mechanism::from_name(self.mechanism)
            .filter(|mechanism| enabled(&request.front.parameters).contains(mechanism));
        let Some(mechanism) = mechanism else {
            bail!(
                Code::MECHANISM_UNAVAILABLE,
                "Received authentication for mechanism {} which is not enabled",
                self.mechanism
            );
        };
        request.client.access.lock().conversation = None;
        let first = First::read(self.payload)
            .map_err(|error| refuse(request, mechanism.name(), &UserName::new("", db), &error))?;
        let user = UserName::new(first.user.clone(), db);
        begins(request, mechanism.name(), (user.user.as_str(), user.db.as_str()) == MEMBER_USER);
        let (account, feigned) =
            look_up(request, &user).map_err(|error| refuse(request, mechanism.name(), &user, &error))?;
        // Whoever there is not, or not with this mechanism, is asked for a proof like anyone else. What that takes is done for everybody.
        let iterations = iterations(&request.front.parameters, mechanism);
        let nobody = feigned.credential(&user, mechanism, iterations);
        let own = account.iter().flat_map(|account| account.credentials(mechanism));
        let mut credentials: Vec<_> = own.cloned().collect();
        let known = !credentials.is_empty();
        if !known {
            credentials.push(nobody);
        }
        let mut nonce = [0; server::NONCE_BYTES];
        rand::rng().fill_bytes(&mut nonce);
        let (challenge, payload) = first.challenge(mechanism, credentials, known, &nonce);
        let mut access = request.client.access.lock();
        access.conversations = access.conversations.wrapping_add(1);
        let id = access.conversations;
        access.conversation = Some(Conversation {
            id,
            user,
            account,
            mechanism: mechanism.name(),
            step: Step::Proof(Box::new(challenge)),
            skip_empty: self.skip_empty,
        });
        Ok(Answer { conversation: id, done: false, payload: payload.into_bytes() })
    }
}

/// Goes on with a conversation.
///
/// Errors: `ProtocolError`, `AuthenticationFailed`.
pub fn go_on(request: &Request<'_>, id: i32, payload: &[u8]) -> Result<Answer> {
    let conversation = request.client.access.lock().conversation.take();
    let Some(mut conversation) = conversation else {
        bail!(Code::PROTOCOL_ERROR, "No SASL session state found");
    };
    if conversation.id != id {
        bail!(Code::PROTOCOL_ERROR, "sasl: Mismatched conversation id");
    }
    let answer =
        |done: bool, payload: String| Answer { conversation: id, done, payload: payload.into_bytes() };
    let (mechanism, user) = (conversation.mechanism, conversation.user.clone());
    match &conversation.step {
        Step::Proof(challenge) => {
            waits_for_its_turn(request, mechanism, &user)?;
            let why = |error| why_wrong(&conversation, error);
            let proof = challenge.verify(payload).map_err(|error| {
                was_a_guess(request, &user);
                refuse(request, mechanism, &user, &why(error))
            })?;
            still_the_same(request, &conversation)?;
            if conversation.skip_empty {
                log_in(request, mechanism, &user, None)?;
                was_no_guess(request, &user);
                return Ok(answer(true, proof));
            }
            was_no_guess(request, &user);
            conversation.step = Step::Empty;
            request.client.access.lock().conversation = Some(conversation);
            Ok(answer(false, proof))
        }
        Step::Token(principal) => {
            oidc::go_on(request, principal.as_deref(), payload)?;
            Ok(answer(true, String::new()))
        }
        Step::Empty if payload.is_empty() => {
            still_the_same(request, &conversation)?;
            log_in(request, mechanism, &user, None)?;
            Ok(answer(true, String::new()))
        }
        Step::Empty => {
            let error = Error::new(Code::BAD_VALUE, "the client's last message is not empty");
            Err(refuse(request, mechanism, &user, &error))
        }
    }
}

/// Why a proof is wrong, for the log: the client is told nothing of it.
fn why_wrong(conversation: &Conversation, error: Error) -> Error {
    if error.code() != Code::AUTHENTICATION_FAILED {
        return error;
    }
    let (user, mechanism) = (&conversation.user, conversation.mechanism);
    let has = |account: &UserDocument| Mechanism::from_name(mechanism).is_some_and(|own| account.has(own));
    match &conversation.account {
        None => Error::new(
            Code::USER_NOT_FOUND,
            format!("Could not find user \"{}\" for db \"{}\"", user.user, user.db),
        ),
        Some(account) if !has(account) => Error::new(
            Code::AUTHENTICATION_FAILED,
            format!(
                "Unable to use {mechanism} based authentication for user without any {mechanism} credentials registered"
            ),
        ),
        Some(_) => Error::new(
            Code::AUTHENTICATION_FAILED,
            "SCRAM authentication failed, storedKey mismatch".to_owned(),
        ),
    }
}

/// Tells the guesses of the server who gives a proof; nothing, if the address is none that could be slowed.
fn with_guesser<T>(
    request: &Request<'_>,
    user: &UserName,
    tell: impl FnOnce(&Guesses, &Guesser<'_>) -> T,
) -> Option<T> {
    let from = request.client.remote?.ip();
    let user = user.to_string();
    let shake = request.client.handshake.lock();
    let client = shake.metadata.as_ref().map_or(&[][..], |metadata| metadata.as_bytes());
    Some(tell(&request.front.strangers.guesses, &Guesser { from, user: &user, client }))
}

/// Holds back the answer to a proof, whatever it is, where many before it were wrong.
///
/// Errors: `AuthenticationFailed`, if so many wait already that it is not looked at.
fn waits_for_its_turn(request: &Request<'_>, mechanism: &str, user: &UserName) -> Result<()> {
    match with_guesser(request, user, Guesses::takes_turn) {
        None => Ok(()),
        Some(Some(wait)) => {
            request.client.delay.store(wait.as_millis() as u64, Ordering::Relaxed);
            Ok(())
        }
        Some(None) => {
            was_a_guess(request, user);
            let why = "many proofs from this address were wrong, and too many wait for their answer";
            Err(refuse(request, mechanism, user, &Error::new(Code::AUTHENTICATION_FAILED, why)))
        }
    }
}

/// The proof was wrong, or there was no turn for it.
fn was_a_guess(request: &Request<'_>, user: &UserName) {
    if let Some(Some(held)) = with_guesser(request, user, Guesses::was_wrong) {
        request.client.delay.store(held.as_millis() as u64, Ordering::Relaxed);
    }
}

/// The proof was right: whoever comes next from there need not wait for it.
fn was_no_guess(request: &Request<'_>, user: &UserName) {
    with_guesser(request, user, Guesses::was_right);
}

/// Looks whether the user is still the one with whom the conversation began, with what it has proved.
///
/// Errors: `AuthenticationFailed`.
fn still_the_same(request: &Request<'_>, conversation: &Conversation) -> Result<()> {
    let (mechanism, user) = (conversation.mechanism, &conversation.user);
    let now = find(request, user).map_err(|error| refuse(request, mechanism, user, &error))?;
    let proved = |user: &UserDocument| {
        let of = Mechanism::from_name(mechanism).into_iter();
        let own = of.flat_map(|mechanism| user.credentials(mechanism)).cloned();
        (user.id, own.collect::<Vec<_>>())
    };
    if now.as_deref().map(|now| proved(&now.user)) != conversation.account.as_ref().map(proved) {
        let why =
            Error::new(Code::AUTHENTICATION_FAILED, "the user has become another since the login began");
        return Err(refuse(request, mechanism, user, &why));
    }
    Ok(())
}

/// What a `hello` has done at once of what it asks for in `speculativeAuthenticate`.
pub enum Speculated {
    /// A conversation has begun.
    Begun(Answer),
    /// The client is whom its certificate names.
    Certified(String),
}

impl Speculated {
    /// Does what the field asks for. One that fails is nothing: the client tries again by a command, and is told then.
    pub fn run(request: &Request<'_>, doc: RawDoc<'_>) -> Option<Speculated> {
        let text = |name: &str| doc.get(name).and_then(|value| value.as_str());
        request.client.access.lock().is_speculative = true;
        if doc.get("authenticate").is_some() && text("mechanism") == Some(X509) {
            let db = text("db").unwrap_or("$external");
            return by_certificate(request, db, text("user")).ok().map(Speculated::Certified);
        }
        let (start, db) = Start::read(doc)?;
        start.run(request, db).ok().map(Speculated::Begun)
    }

    /// Writes the reply.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        match self {
            Speculated::Begun(answer) => answer.write(doc),
            Speculated::Certified(subject) => {
                doc.append("dbname", "$external").append("user", subject);
            }
        }
    }
}

/// The mechanism by which certificates prove who a client is.
const X509: &str = "MONGODB-X509";

/// Logs the client in whom its certificate names, if that is the one that it says; gives the name.
///
/// Errors: `ProtocolError`, `MechanismUnavailable`, `AuthenticationFailed`.
pub fn by_certificate(request: &Request<'_>, db: &str, said: Option<&str>) -> Result<String> {
    let Some(shown) = request.client.access.lock().certificate.clone() else {
        bail!(Code::PROTOCOL_ERROR, "SSL support is required for the MONGODB-X509 mechanism.");
    };
    if db != "$external" {
        bail!(Code::PROTOCOL_ERROR, "X.509 authentication must always use the $external database.");
    }
    if !takes(&request.front.parameters, X509) {
        bail!(
            Code::MECHANISM_UNAVAILABLE,
            "Received authentication for mechanism {X509} which is not enabled"
        );
    }
    let refused = |name: &str, why: &str| {
        let why = Error::new(Code::AUTHENTICATION_FAILED, why);
        refuse(request, X509, &UserName::new(name, "$external"), &why)
    };
    let Some(subject) = shown else {
        return Err(refused("", "No verified subject name available from client"));
    };
    if said.is_some_and(|said| said != subject) {
        return Err(refused(&subject, "There is no x.509 client certificate matching the user."));
    }
    let takes = request.front.membership.mode().takes_certificates();
    begins(request, X509, takes && names_member(request, &subject));
    if takes && names_member(request, &subject) {
        log_in(request, X509, &UserName::new(MEMBER_USER.0, MEMBER_USER.1), None)?;
        return Ok(subject);
    }
    if is_reserved(request, &subject) {
        // As soon as members are known by their certificates it would be one.
        let refused = refused(&subject, "a member's certificate, where members are not known by theirs");
        match refused.code() {
            Code::AUTHENTICATION_FAILED => bail!(Code::AUTHENTICATION_FAILED, "{NO_CLIENTS_CERTIFICATE}"),
            _ => return Err(refused),
        }
    }
    log_in(request, X509, &UserName::new(subject.clone(), "$external"), None)?;
    Ok(subject)
}

/// What is said to who shows a member's certificate where members are not known by theirs.
const NO_CLIENTS_CERTIFICATE: &str = "The provided certificate can only be used for cluster authentication, not client authentication. The current configuration does not allow x.509 cluster authentication, check the --clusterAuthMode flag";

fn names_member(request: &Request<'_>, subject: &str) -> bool {
    request.front.tls.as_ref().is_some_and(|tls| tls.names_member(subject))
}

/// Whether a user must not have this name in `$external`, as it is a member's.
pub fn is_reserved(request: &Request<'_>, subject: &str) -> bool {
    request.front.parameters.bool("enforceUserClusterSeparation") && names_member(request, subject)
}

/// Who somebody says that he is, before he has proved anything, and what users are like that there are not.
fn look_up(request: &Request<'_>, user: &UserName) -> Result<(Option<UserDocument>, Arc<Feigned>)> {
    let mut feigned = request.front.access.feigned.clone();
    if let Some(members) = request.front.access.members(user) {
        // Members that have to show a certificate cannot prove a key.
        let takes_keys = request.front.membership.mode().takes_keys();
        return Ok((takes_keys.then(|| members.user.clone()), feigned));
    }
    let Some(accounts) = request.role.accounts() else { return Ok((None, feigned)) };
    if let Some(of_users) = accounts.feigned()? {
        feigned = of_users;
    }
    Ok((accounts.looked_up(user, &feigned)?, feigned))
}

fn find(request: &Request<'_>, user: &UserName) -> Result<Option<Arc<Account>>> {
    if let Some(members) = request.front.access.members(user) {
        return Ok(Some(members));
    }
    match request.role.accounts() {
        Some(accounts) => accounts.account(user),
        None => Ok(None),
    }
}

/// The same for somebody who has shown a token: it may say which roles he has, and then nobody is looked up.
fn find_with(
    request: &Request<'_>,
    user: &UserName,
    token: Option<&ByToken>,
) -> Result<Option<Arc<Account>>> {
    match (token.and_then(|token| token.roles.as_ref()), request.role.accounts()) {
        (Some(roles), Some(accounts)) => accounts.with_roles(user, roles).map(Some),
        _ => find(request, user),
    }
}

fn counted<'m>(request: &Request<'_>, mechanism: &'m str, is_member: bool) -> logins::Login<'m> {
    let is_speculative = request.client.access.lock().is_speculative;
    logins::Login { mechanism, is_speculative, is_member }
}

/// A client begins to prove who it is.
fn begins(request: &Request<'_>, mechanism: &str, is_member: bool) {
    request.front.logins.begin(counted(request, mechanism, is_member));
}

/// The proof was right: the connection is this user's from now on.
fn log_in(
    request: &Request<'_>,
    mechanism: &str,
    user: &UserName,
    token: Option<Arc<ByToken>>,
) -> Result<()> {
    let refused = |error| refuse(request, mechanism, user, &error);
    let Some(account) = find_with(request, user, token.as_deref()).map_err(refused)? else {
        return Err(refused(Error::new(
            Code::USER_NOT_FOUND,
            format!("Could not find user \"{}\" for db \"{}\"", user.user, user.db),
        )));
    };
    let from = request.client.remote.map(|remote| remote.ip());
    if !account.may_come(from, request.client.local.map(|local| local.ip())) {
        let error = Error::new(Code::AUTHENTICATION_RESTRICTION_UNMET, "the user must not come from there");
        return Err(refused(error));
    }
    let before = request.client.access.lock().user().cloned();
    if let Some(before) = before.filter(|before| before != user) {
        bail!(
            5626701,
            "Each client connection may only be authenticated once. Previously authenticated as: {before}"
        );
    }
    let claims = token.as_ref().map(|token| token.logged.as_raw());
    noted::authenticated(request, mechanism, (&user.user, &user.db), Some(&account), claims, Code::OK)?;
    request.client.access.lock().login = Some(Login {
        name: user.clone(),
        digest: sheaf_auth::user_digest(user),
        id: account.user.id,
        token: token.clone(),
        known: None,
    });
    request.front.is_known(request.client);
    request.front.logins.succeed(counted(request, mechanism, account.is_member()));
    let mut attributes = doc! {
        "client": &request.client.remote_text(), "isSpeculative": request.client.access.lock().is_speculative, "isClusterMember": account.is_member(),
        "mechanism": mechanism, "user": &user.user, "db": &user.db, "result": 0,
    };
    if let Some(claims) = claims {
        attributes = attributes.with("extraInfo", &doc! { "claims": claims });
    }
    // All members are one user: it is to be seen whose certificate was used.
    if mechanism == X509
        && account.is_member()
        && let Some(Some(subject)) = &request.client.access.lock().certificate
    {
        attributes = attributes.with("extraInfo", &doc! { "subject": subject });
    }
    let context = request.client.context();
    crate::log::info(
        "ACCESS",
        crate::log::ids::AUTHENTICATED,
        &context,
        "Successfully authenticated",
        Some(attributes),
    );
    Ok(())
}

/// What a client is told whose proof fails, whatever the reason; the log has that.
fn refuse(request: &Request<'_>, mechanism: &str, user: &UserName, why: &Error) -> Error {
    let attributes = doc! {
        "client": &request.client.remote_text(), "isSpeculative": request.client.access.lock().is_speculative, "isClusterMember": false,
        "mechanism": mechanism, "user": &user.user, "db": &user.db,
        "error": &format!("{}: {}", why.code().name(), why.message()), "result": why.code().0,
    };
    let context = request.client.context();
    crate::log::info(
        "ACCESS",
        crate::log::ids::NOT_AUTHENTICATED,
        &context,
        "Failed to authenticate",
        Some(attributes),
    );
    // Also where nothing can be written down.
    if let Some(remote) = request.client.remote {
        let delay = request.front.strangers.guesses.failed(remote.ip());
        request.client.delay.fetch_add(delay.as_millis() as u64, Ordering::Relaxed);
    }
    let named = (user.user.as_str(), user.db.as_str());
    match noted::authenticated(request, mechanism, named, None, None, Code::AUTHENTICATION_FAILED) {
        Ok(()) => server::failed(),
        Err(error) => error,
    }
}

/// Whether this server takes a mechanism.
pub fn takes(parameters: &Parameters, mechanism: &str) -> bool {
    parameters.text("authenticationMechanisms").split(',').any(|name| name.trim() == mechanism)
}

/// The mechanisms by passwords that this server takes.
pub fn enabled(parameters: &Parameters) -> Vec<Mechanism> {
    let list = parameters.text("authenticationMechanisms");
    list.split(',').filter_map(|name| Mechanism::from_name(name.trim())).collect()
}

/// What `saslSupportedMechs` asks for: the mechanisms of the user `db.name`. One that there is not has those of others.
///
/// Errors: `BadValue`; those of reading users.
pub fn supported(request: &Request<'_>, user: &str) -> Result<Vec<Mechanism>> {
    request.front.logins.asked_for_mechanisms();
    let Some((db, name)) = user.split_once('.') else {
        bail!(Code::BAD_VALUE, "UserName must contain a '.' separated database.user pair");
    };
    let mut mechanisms = enabled(&request.front.parameters);
    mechanisms.sort_unstable_by(|a, b| b.cmp(a));
    let user = UserName::new(name, db);
    let (account, feigned) = look_up(request, &user)?;
    mechanisms.retain(|mechanism| {
        let would_have = feigned.has(&user, *mechanism);
        account.as_ref().map_or(would_have, |account| account.has(*mechanism))
    });
    Ok(mechanisms)
}

/// The client of the request with all that it may do now; `None` if it has not proved who it is, or is no longer a user.
///
/// Errors: those of reading users and roles.
pub fn account(request: &Request<'_>) -> Result<Option<Arc<Account>>> {
    let (state, login) = {
        let mut access = request.client.access.lock();
        let Some(login) = &mut access.login else { return Ok(None) };
        let accounts = request.role.accounts();
        if let (Some(known), Some(accounts)) = (&mut login.known, accounts)
            && known.holds(accounts)
        {
            return Ok(Some(known.account.clone()));
        }
        // Before the user is read: what changes in between is read again next time.
        (accounts.and_then(|accounts| accounts.state()), login.without_known())
    };
    if has_expired(request, &login) {
        return Ok(None);
    }
    let account = find_with(request, &login.name, login.token.as_deref())?
        .filter(|account| account.user.id == login.id);
    if account.is_none() && request.front.access.enabled {
        request.front.is_stranger(request.client);
    }
    let mut access = request.client.access.lock();
    match (&account, &mut access.login) {
        (None, login) => *login = None,
        // A token ends by itself.
        (Some(account), Some(login)) if login.token.is_none() => {
            login.known = state.map(|state| Known::new(state, account.clone()));
        }
        _ => {}
    }
    Ok(account)
}

/// The client of the request, if it has been allowed the same [lately](Known), and nothing has changed since.
#[inline]
pub fn allowed_again(request: &Request<'_>) -> Option<Arc<Account>> {
    let mut access = request.client.access.lock();
    let known = access.login.as_mut()?.known.as_mut()?;
    let allowed = known.has_allowed(request.command.name, request.db, request.body)
        && known.holds(request.role.accounts()?);
    allowed.then(|| known.account.clone())
}

/// Remembers for [`allowed_again`] that this account has been allowed what the request asks for.
pub fn remember(request: &Request<'_>, account: &Arc<Account>) {
    let mut access = request.client.access.lock();
    if let Some(known) = access.login.as_mut().and_then(|login| login.known.as_mut())
        && Arc::ptr_eq(&known.account, account)
    {
        known.allow(request.command.name, request.db, request.body);
    }
}

/// Whether the token by which the client has logged in holds no more.
fn has_expired(request: &Request<'_>, login: &Login) -> bool {
    login.token.as_ref().is_some_and(|token| !token.holds(&request.front.oidc, request.now_millis()))
}

/// Whether the client was somebody by a token that holds no more, and has to show another one.
pub fn must_come_again(request: &Request<'_>) -> bool {
    let login = request.client.access.lock().login.as_ref().map(Login::without_known);
    login.is_some_and(|login| has_expired(request, &login))
}
