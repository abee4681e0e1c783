//! Whether a client may do what it asks for.

use sheaf_auth::Target;
use sheaf_errors::{Code, Result, bail};

use crate::access::Rights;
use crate::audit::noted;
use crate::command::{Asked, Authentication, Description, Privilege, Privileges, Resource, When};
use crate::request::Request;
use crate::role::Role;
use crate::sasl;

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
    if request.client.access.lock().is_server {
        return Ok(Rights::everything());
    }
    let account = sasl::account(request)?;
    let is_known = account.is_some();
    let before = request.command.spec.authentication == Authentication::Before;
    let rights = match account {
        Some(account) => Rights::of(account),
        None if !before && first_user_may_come(request)? => Rights::to_make_the_first_user(),
        None => Rights::nothing(),
    };
    if before {
        return Ok(rights);
    }
    let asked = Asked {
        command: request.command.name,
        db: request.db,
        body: request.body,
        sequences: request.sequences,
    };
    let allowed = allows(request.role, &rights, request.command, asked);
    if !(is_known || allowed && FIRST.contains(&request.command.name)) {
        noted::unauthorized(request)?;
        bail!(Code::UNAUTHORIZED, "Command {} requires authentication", request.command.name);
    }
    if !allowed {
        return Err(refused(request));
    }
    Ok(rights)
}

/// The error of a client that may not do what it asks for.
pub fn refused(request: &Request<'_>) -> sheaf_errors::Error {
    if let Err(error) = noted::unauthorized(request) {
        return error;
    }
    let shown = crate::redact::shown(request.command.name, request.body);
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
                let asked = Asked { command: found.command.name, body: inner, ..asked };
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
