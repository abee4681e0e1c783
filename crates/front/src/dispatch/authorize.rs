//! Whether a client may do what it asks for.

use sheaf_auth::Target;
use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::access::Rights;
use crate::audit::noted;
use crate::client::Client;
use crate::command::{Action, Asked, Authentication, Description, Privilege, Privileges, Resource, When};
use crate::request::Request;
use crate::role::Role;
use crate::sasl;
use crate::session::LogicalSessionId;

/// Whether the client may go on as who it is.
///
/// Errors: `ReauthenticationRequired`, upon which drivers show another token and try again.
pub fn fresh(request: &Request<'_>) -> Result<()> {
    let needs = request.command.spec.authentication == Authentication::Required;
    if needs && sasl::must_come_again(request) {
        bail!(
            Code::REAUTHENTICATION_REQUIRED,
            "Command {} requires reauthentication since the current authorization session has expired. Please re-auth.",
            request.command.name
        );
    }
    Ok(())
}

/// What the client of this request may do.
///
/// Errors: `Unauthorized`, if this command is none of it; those of reading users and roles.
pub fn rights(request: &Request<'_>) -> Result<Rights> {
    // Most commands are what the connection has been allowed before, so that is looked for first.
    if let Some(account) = sasl::allowed_again(request)
        && !asks_for_more(request)
    {
        return Ok(Rights::of(account));
    }
    judged(request)
}

/// The same of what was not allowed before.
#[inline(never)]
fn judged(request: &Request<'_>) -> Result<Rights> {
    if request.client.access.lock().is_server {
        return Ok(Rights::everything());
    }
    let account = sasl::account(request)?;
    let is_known = account.is_some();
    let before = request.command.spec.authentication == Authentication::Before;
    let rights = match account {
        Some(ref account) => Rights::of(account.clone()),
        None if !before && first_user_may_come(request)? => Rights::to_make_the_first_user(),
        None => Rights::nothing(),
    };
    if before {
        return Ok(rights);
    }
    let allowed = allows(request.role, &rights, request.command, asked(request));
    if !(is_known || allowed && FIRST.contains(&request.command.name)) {
        noted::unauthorized(request)?;
        bail!(Code::UNAUTHORIZED, "Command {} requires authentication", request.command.name);
    }
    if !allowed {
        return Err(refused(request));
    }
    if let Some(account) = &account
        && tells_by_first_element(&request.command.spec.privileges)
    {
        sasl::remember(request, account);
    }
    Ok(rights)
}

/// Whether the client of a request may have this command run as a part of it.
///
/// Errors: `Unauthorized`.
pub fn inner(request: &Request<'_>) -> Result<()> {
    if !request.front.access.enabled || allows(request.role, &request.rights, request.command, asked(request))
    {
        return Ok(());
    }
    Err(refused(request))
}

/// Whether what a command always needs follows from its name, its database and its first element.
fn tells_by_first_element(privileges: &Privileges) -> bool {
    let Privileges::Needs(list) = privileges else { return false };
    list.iter().all(|privilege| match (privilege.when, privilege.resource) {
        (When::Always, Resource::CollectionIn(_) | Resource::NamespaceIn(_)) => false,
        (When::Always | When::Asked(..) | When::Found(_), _) => true,
    })
}

/// Whether a request needs more than its command always does.
fn asks_for_more(request: &Request<'_>) -> bool {
    let Privileges::Needs(list) = request.command.spec.privileges else { return true };
    list.iter().any(|privilege| match privilege.when {
        When::Asked(_, holds) => holds(asked(request)),
        When::Always | When::Found(_) => false,
    })
}

fn asked<'a>(request: &Request<'a>) -> Asked<'a> {
    Asked { command: request.command.name, db: request.db, body: request.body, sequences: request.sequences }
}

/// Fields by which a router has a shard act for somebody's retryable write are a router's: they name whose it is.
///
/// Errors: `Unauthorized`.
pub fn between_servers(request: &Request<'_>) -> Result<()> {
    let generic = &request.generic;
    let any = generic.retry_of.is_some() || generic.attempt.is_some() || generic.routers_own;
    if any && !request.rights.are_everything() {
        return Err(refused(request));
    }
    Ok(())
}

/// What the command needed that has opened a cursor, its user needs for each further batch that `getMore` asks for: a right may have been
/// taken meanwhile.
///
/// Errors: `Unauthorized`.
pub fn of_cursor(request: &Request<'_>) -> Result<()> {
    let Some(account) = request.rights.account() else { return Ok(()) };
    let id = request.body.iter().next().and_then(|first| first.value().as_exact_i64());
    // The command says itself what there is not, and what is another user's.
    let info = id.and_then(|id| request.role.cursors().info(id));
    let Some(info) = info.filter(|info| info.owner.is_some() && !info.was_judged(account)) else {
        return Ok(());
    };
    let command = info.command.as_raw();
    let opening = command.iter().next().and_then(|first| request.role.find(first.key()));
    let goes_on = info.belongs_to(account)
        && opening.is_none_or(|found| {
            // The request may say another database than the cursor's: it fails then, and is not to count as allowed.
            let db = info.namespace.split_once('.').map_or("", |(db, _)| db);
            let asked = Asked { command: found.command.name, db, body: command, sequences: &[] };
            allows(request.role, &request.rights, found.command, asked)
        });
    if !goes_on {
        noted::unauthorized(request)?;
        bail!(Code::UNAUTHORIZED, "not authorized for getMore with cursor id {}", info.id);
    }
    info.judge(account);
    Ok(())
}

/// Sessions are their users': the one that a client names is its own, whoever has another of this UUID.
///
/// Errors: `Unauthorized`, if it says somebody else's.
pub fn own_session(request: &mut Request<'_>) -> Result<()> {
    let Some(id) = request.generic.lsid else { return Ok(()) };
    let session = request.session(id);
    let is_own = request.rights.account().is_none_or(|account| session.uid == Some(account.digest()));
    if !is_own && !request.rights.may(Target::Cluster, &[Action::Impersonate]) {
        bail!(Code::UNAUTHORIZED, "Unauthorized to set user digest in LogicalSessionId");
    }
    request.generic.lsid = Some(session);
    Ok(())
}

/// The command with the user in its `lsid`, where it goes on to other servers as it is: these know only which server has sent it.
pub fn with_user_of_session(role: &dyn Role, client: &Client, body: RawDoc<'_>) -> Option<DocBuf> {
    if !role.passes_commands_on() || !role.front().access.enabled {
        return None;
    }
    let lsid = body.get("lsid")?.as_doc()?;
    let uid = client.access.lock().digest()?;
    // What is said of a user without naming one is not heeded: by the other servers neither.
    if LogicalSessionId::parse(lsid).map_or(true, |id| id.uid.is_some()) {
        return None;
    }
    Some(DocBuf::build(|doc| {
        for field in body {
            match field.key() {
                "lsid" => {
                    let mut named = doc.document("lsid");
                    for field in lsid.iter().filter(|field| field.key() != "uid") {
                        named.append_element(field);
                    }
                    named.append("uid", Value::Binary(Binary { subtype: 0, bytes: &uid }));
                }
                _ => {
                    doc.append_element(field);
                }
            }
        }
    }))
}

/// Times of the cluster are not signed here, so a client could have all clocks of a deployment go ahead for good. What servers have given
/// out is about the present: of users no other time is taken, of whoever is not known none at all.
pub fn judge_time(request: &mut Request<'_>) {
    let Some(time) = request.generic.cluster_time else { return };
    if request.rights.may(Target::Cluster, &[Action::AdvanceClusterTime]) {
        return;
    }
    let now = request.now_millis().max(0) as u64 / 1000;
    if request.rights.user().is_none() || time.0 >> 32 > now + CLOCKS_APART_SECS {
        request.generic.cluster_time = None;
    }
}

/// So far apart the clocks of a deployment's servers may be, for what one has given out to be taken by another of a client.
const CLOCKS_APART_SECS: u64 = 60;

/// The error of a client that may not do what it asks for.
pub fn refused(request: &Request<'_>) -> sheaf_errors::Error {
    if let Err(error) = noted::unauthorized(request) {
        return error;
    }
    let shown = crate::redact::shown(request.command.name, request.sent);
    let shown = sheaf_bson::document_text(sheaf_bson::RawDoc::new(&shown));
    let text = format!("not authorized on {} to execute command {shown}", request.db);
    sheaf_errors::Error::new(Code::UNAUTHORIZED, text)
}

/// Without any user somebody from this machine may make one, and nothing else.
fn first_user_may_come(request: &Request<'_>) -> Result<bool> {
    let near = request.client.remote.is_none_or(|remote| remote.ip().to_canonical().is_loopback());
    if !near || !request.front.parameters.bool("enableLocalhostAuthBypass") {
        return Ok(false);
    }
    request.role.accounts().map_or(Ok(false), |accounts| accounts.is_empty())
}

/// The commands by which somebody may begin where there is no user.
const FIRST: &[&str] =
    &["addShard", "createRole", "createUser", "replSetGetStatus", "replSetInitiate", "replSetReconfig"];

/// Whether these rights are enough for a command.
fn allows(role: &dyn Role, rights: &Rights, command: &Description, asked: Asked<'_>) -> bool {
    match command.spec.privileges {
        Privileges::None => true,
        Privileges::Needs(list) => list.iter().all(|privilege| has(rights, privilege, asked)),
        Privileges::ByCommand(_, judge) => judge(asked, rights),
        Privileges::OfInner => {
            let Some(inner) = asked.body.iter().next().and_then(|first| first.value().as_doc()) else {
                // It fails as soon as it is parsed.
                return true;
            };
            let named = inner.iter().next().and_then(|first| role.find(first.key()));
            named.is_none_or(|found| {
                // It has no sequences of its own, and is not given those of the message.
                let asked = Asked { command: found.command.name, body: inner, sequences: &[], ..asked };
                !matches!(found.command.spec.privileges, Privileges::OfInner)
                    && allows(role, rights, found.command, asked)
            })
        }
    }
}

fn has(rights: &Rights, privilege: &Privilege, asked: Asked<'_>) -> bool {
    let needed = match privilege.when {
        When::Always => true,
        When::Asked(_, holds) => holds(asked),
        // The command looks itself.
        When::Found(_) => false,
    };
    let target = target(privilege.resource, asked);
    !needed
        || rights.may(target, privilege.actions)
        || privilege.or.is_some_and(|or| rights.may(target, &[or]))
}

/// What a privilege is about in this request. What is named in no sound way belongs to the database: the command fails anyway.
fn target<'a>(resource: Resource, asked: Asked<'a>) -> Target<'a> {
    let field = |name: &str| asked.body.get(name).and_then(|value| value.as_str());
    match resource {
        Resource::Cluster => Target::Cluster,
        Resource::Database => Target::Database(asked.db),
        Resource::Collection => asked.own(),
        Resource::CollectionNamed(name) => Target::Collection(asked.db, name),
        Resource::CollectionIn(name) => field(name)
            .map_or(Target::Database(asked.db), |collection| Target::Collection(asked.db, collection)),
        Resource::NamespaceIn(name) => field(name).map_or(Target::Cluster, Target::of_namespace),
    }
}
