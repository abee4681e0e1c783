//! What of requests is written down, and when.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use sheaf_auth::{Account, MEMBER_USER, RoleName};
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result};

use super::event::{Event, Place, Who};
use super::size;
use crate::client::Client;
use crate::command::Authentication;
use crate::front::Front;
use crate::request::Request;

/// Commands that are there only where there is an audit log.
pub const OWN_COMMANDS: &[&str] = &["getAuditConfig", "logApplicationMessage", "setAuditConfig"];

/// What events have besides what their command names.
const EVENT_BYTES: usize = 16 << 10;

/// What an event has that names something, besides the name: mostly its user and the roles.
const NAMED_EVENT_BYTES: usize = 4 << 10;

/// Longer commands are not shown whole: who may not do what it asks for must not fill the disk.
const SHOWN_BYTES: usize = 50 << 10;

/// What a role has as JSON, besides its names.
const ROLE_BYTES: usize = 32;

/// How many events a command has for whose user and roles [`before`] takes room; those that have more see to it themselves.
const USUAL_EVENTS: usize = 4;

/// The fields by which each command of users and roles is shown in its event, besides `user` or `role` and `db`.
const ACCESS_COMMANDS: &[(&str, &[&str])] = &[
    ("createRole", &["roles", "privileges", "authenticationRestrictions"]),
    ("createUser", &["customData", "roles", "authenticationRestrictions"]),
    ("dropAllRolesFromDatabase", &[]),
    ("dropAllUsersFromDatabase", &[]),
    ("dropRole", &[]),
    ("dropUser", &[]),
    ("grantPrivilegesToRole", &["privileges"]),
    ("grantRolesToRole", &["roles"]),
    ("grantRolesToUser", &["roles"]),
    ("revokePrivilegesFromRole", &["privileges"]),
    ("revokeRolesFromRole", &["roles"]),
    ("revokeRolesFromUser", &["roles"]),
    ("updateRole", &["roles", "privileges", "authenticationRestrictions"]),
    ("updateUser", &["customData", "roles", "authenticationRestrictions"]),
];

/// Commands besides those of users and roles whose events show what they were given.
const OTHERS: &[&str] = &[
    "addShard",
    "collMod",
    "create",
    "createIndexes",
    "enableSharding",
    "getClusterParameter",
    "logApplicationMessage",
    "refineCollectionShardKey",
    "removeShard",
    "replSetInitiate",
    "replSetReconfig",
    "setAuditConfig",
    "setClusterParameter",
    "shardCollection",
];

/// Takes room for the events of a command that is about to run, if it has some; [`Room`] gives back what they have not taken.
///
/// Errors: `OutOfDiskSpace`. Then the command must not run.
pub fn before(request: &Request<'_>) -> Result<()> {
    let Some(audit) = &request.front.audit else { return Ok(()) };
    let name = request.command.name;
    // These show what they were given.
    let shown = match of_command(request, Code::OK) {
        Some((_, param, _)) => audit.most_bytes(param.as_raw()),
        None if OTHERS.contains(&name) => audit.most_bytes(request.body),
        None if request.command.spec.access.is_write() || request.writes_after_all => 0,
        None => return Ok(()),
    };
    take(request, EVENT_BYTES + USUAL_EVENTS * who_bytes(request) + shown)
}

fn take(request: &Request<'_>, bytes: usize) -> Result<()> {
    if let Some(audit) = &request.front.audit {
        let room = audit.promise(bytes)?;
        request.audit_room.update(|held| held + room.keep());
    }
    Ok(())
}

/// What each event of a request has of its user, at most: there may be many roles.
fn who_bytes(request: &Request<'_>) -> usize {
    let named = |name: &str, db: &str| ROLE_BYTES + size::text(name) + size::text(db);
    // For whom another server asks takes the place of that.
    if let Some(user) = request.user_asked_for() {
        let roles = request.user_roles().map_or(0, |roles| size::as_json(roles.as_raw()));
        return named(&user.user, &user.db) + roles;
    }
    account(request).map_or(0, |account| {
        let user = &account.user.name;
        let roles = account.resolved.roles.iter().map(|role| named(&role.role, &role.db));
        named(&user.user, &user.db) + roles.sum::<usize>()
    })
}

/// Room for more events of the command that is running than [`before`] has taken: one for each of these names. It is kept until
/// they are written.
///
/// Errors: `OutOfDiskSpace`. Then the command must not go on.
pub fn room_for<'n>(request: &Request<'_>, names: impl Iterator<Item = &'n str>) -> Result<()> {
    if request.front.audit.is_none() {
        return Ok(());
    }
    let each = NAMED_EVENT_BYTES + who_bytes(request);
    for name in names {
        take(request, each + size::text(name))?;
    }
    Ok(())
}

/// The same for one event that shows this.
///
/// Errors: `OutOfDiskSpace`. Then the command must not go on.
pub fn room_of(request: &Request<'_>, shown: RawDoc<'_>) -> Result<()> {
    let Some(audit) = &request.front.audit else { return Ok(()) };
    take(request, NAMED_EVENT_BYTES + who_bytes(request) + audit.most_bytes(shown))
}

/// Gives back the room that a command's events have not taken when it has ended, in whichever way.
pub struct Room<'a>(pub &'a Request<'a>);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(audit) = &self.0.front.audit {
            audit.give_back(self.0.audit_room.take());
        }
    }
}

/// Keeps an event of the command that is running; it is written when the command has ended.
pub fn note(request: &Request<'_>, atype: &'static str, result: Code, param: impl FnOnce() -> DocBuf) {
    if request.front.audit.is_some() {
        request.audited.borrow_mut().push((atype, param(), result));
    }
}

/// Writes the events of a command that has ended with this error, or well.
pub fn after(request: &Request<'_>, error: Option<&Error>) {
    let Some(audit) = &request.front.audit else { return };
    let noted = request.audited.take();
    let own = of_command(request, error.map_or(Code::OK, Error::code));
    if noted.is_empty() && own.is_none() {
        return;
    }
    let who = who(request, account(request).as_deref());
    for (atype, param, result) in noted.into_iter().chain(own) {
        let place = audit.append_done(&who, &event(request.front, atype, result, param), &request.audit_room);
        request.client.audited.fetch_max(place, Ordering::Relaxed);
    }
}

/// A client may not do what it has asked for.
///
/// Errors: it cannot be written down.
pub fn unauthorized(request: &Request<'_>) -> Result<()> {
    checked(request, Code::UNAUTHORIZED)
}

/// A client may do what it has asked for.
///
/// Errors: it cannot be written down, if it is to be.
pub fn authorized(request: &Request<'_>) -> Result<()> {
    let Some(audit) = &request.front.audit else { return Ok(()) };
    let always = request.command.spec.authentication == Authentication::Before;
    let wanted = audit.wants_successes() || request.front.parameters.bool("auditAuthorizationSuccess");
    if always || !wanted {
        return Ok(());
    }
    checked(request, Code::OK)
}

fn checked(request: &Request<'_>, result: Code) -> Result<()> {
    if request.front.audit.is_none() {
        return Ok(());
    }
    let mut shown = crate::redact::shown(request.command.name, request.body);
    if shown.len() > SHOWN_BYTES {
        shown = Cow::Owned(doc! { (request.command.name): "too large to be shown" }.into_bytes());
    }
    let param = doc! {
        "command": request.command.name, "ns": &namespace(request), "args": RawDoc::new(&shown),
    };
    happens(request, account(request).as_deref(), &event(request.front, "authCheck", result, param))
}

/// What a command is about: its collection where its own value names one.
fn namespace(request: &Request<'_>) -> String {
    let names_none = request.command.spec.admin_only
        || ACCESS_COMMANDS.iter().any(|(name, _)| *name == request.command.name)
        || matches!(request.command.name, "usersInfo" | "rolesInfo");
    match request.body.iter().next().map(|first| first.value()) {
        Some(Value::String(collection)) if !names_none => request.namespace(collection),
        _ => request.db.to_owned(),
    }
}

/// A client has proved who it is, or has failed to.
///
/// Errors: it cannot be written down; then nobody has proved anything.
pub fn authenticated(
    request: &Request<'_>,
    mechanism: &str,
    (user, db): (&str, &str),
    account: Option<&Account>,
    claims: Option<RawDoc<'_>>,
    result: Code,
) -> Result<()> {
    if request.front.audit.is_none() {
        return Ok(());
    }
    let mut param = doc! { "user": user, "db": db, "mechanism": mechanism };
    if let Some(claims) = claims {
        param = param.with("claims", claims);
    }
    happens(request, account, &event(request.front, "authenticate", result, param))
}

/// Somebody has not proved that it is a member, on a link. It is refused whether that can be written down or not, and the server's log has it.
pub fn refused_member(front: &Front, remote: SocketAddr) {
    let Some(audit) = &front.audit else { return };
    let place = Place::Tcp { local: None, remote };
    let who = Who { id: *uuid::Uuid::new_v4().as_bytes(), place, ..Who::default() };
    let (user, db) = MEMBER_USER;
    let param = doc! { "user": user, "db": db, "mechanism": "keyFile" };
    if let Ok(place) = audit.append(&who, &event(front, "authenticate", Code::AUTHENTICATION_FAILED, param)) {
        audit.settle(place);
    }
}

/// A client is about to be no longer who it was.
///
/// Errors: it cannot be written down.
pub fn logged_out(front: &Front, client: &Client, account: Option<&Account>, reason: &str) -> Result<()> {
    let Some(audit) = &front.audit else { return Ok(()) };
    let who = client.who(account);
    let Some(user) = &who.user else { return Ok(()) };
    let param = DocBuf::build(|doc| {
        doc.append("reason", reason);
        user.write(&mut doc.array("initialUsers").document());
        let _ = doc.array("updatedUsers");
    });
    let place = audit.append(&who, &event(front, "logout", Code::OK, param))?;
    client.audited.fetch_max(place, Ordering::Relaxed);
    Ok(())
}

/// What a client has told of itself.
///
/// Errors: it cannot be written down.
pub fn metadata(request: &Request<'_>, metadata: RawDoc<'_>) -> Result<()> {
    if request.front.audit.is_none() {
        return Ok(());
    }
    let endpoint = request.client.who(None).place.local_endpoint();
    let param = doc! { "localEndpoint": endpoint.as_raw(), "clientMetadata": metadata };
    happens(request, None, &event(request.front, "clientMetadata", Code::OK, param))
}

/// Waits until what this client's command has written is on the disk.
pub fn settle(front: &Front, client: &Client) {
    let Some(audit) = &front.audit else { return };
    if client.audited.load(Ordering::Relaxed) != 0 {
        audit.settle(client.audited.swap(0, Ordering::Relaxed));
    }
}

/// Whose doing an event of this request is: who has logged in, or for whom the router asks that has.
fn who(request: &Request<'_>, account: Option<&Account>) -> Who {
    let mut who = request.client.who(account);
    if let Some(user) = request.user_asked_for() {
        let roles = request.user_roles();
        let roles = roles.iter().flat_map(|roles| roles.as_raw().values());
        who.roles = roles.filter_map(|role| RoleName::read(role.as_doc()?)).collect();
        who.user = Some(user);
    }
    who
}

/// Writes an event that stands for what is about to be so.
fn happens(request: &Request<'_>, account: Option<&Account>, event: &Event) -> Result<()> {
    let Some(audit) = &request.front.audit else { return Ok(()) };
    let place = audit.append(&who(request, account), event)?;
    request.client.audited.fetch_max(place, Ordering::Relaxed);
    Ok(())
}

fn event(front: &Front, atype: &'static str, result: Code, param: DocBuf) -> Event {
    Event { atype, param, result, millis: front.clock.now_millis() }
}

/// The client's user, if it is one; who cannot be read is told by his name alone.
fn account(request: &Request<'_>) -> Option<std::sync::Arc<Account>> {
    crate::sasl::account(request).ok().flatten()
}

/// The event of a command that its request tells.
fn of_command(request: &Request<'_>, result: Code) -> Option<(&'static str, DocBuf, Code)> {
    let (name, body) = (request.command.name, request.body);
    if let Some((name, fields)) = ACCESS_COMMANDS.iter().find(|(known, _)| *known == name) {
        return Some((name, of_access(request, name, fields), result));
    }
    let first = body.iter().next()?.value();
    let field = |name: &str| body.get(name).unwrap_or(Value::Missing);
    let namespace = first.as_str().unwrap_or_default();
    let (atype, param) = match name {
        "enableSharding" => ("enableSharding", doc! { "ns": namespace }),
        "shardCollection" => {
            let unique = field("unique").truthy();
            let param = DocBuf::build(|doc| {
                doc.append("ns", namespace).append("key", field("key"));
                doc.document("options").append("unique", unique);
            });
            ("shardCollection", param)
        }
        "refineCollectionShardKey" => {
            ("refineCollectionShardKey", doc! { "ns": namespace, "key": field("key") })
        }
        "addShard" => {
            let shard = field("name").as_str().or(namespace.split_once('/').map(|(set, _)| set));
            let shard = shard.unwrap_or(namespace);
            ("addShard", doc! { "shard": shard, "connectionString": namespace, "maxSize": 0i64 })
        }
        "removeShard" => ("removeShard", doc! { "shard": namespace }),
        "getClusterParameter" => ("getClusterParameter", doc! { "requestedClusterServerParameters": first }),
        "logApplicationMessage" => ("applicationMessage", doc! { "msg": first }),
        _ => return None,
    };
    Some((atype, param, result))
}

/// What a command of users and roles is about.
fn of_access(request: &Request<'_>, name: &str, fields: &[&str]) -> DocBuf {
    // What stands at a wrong place may be what must not be shown.
    let shown = crate::redact::shown(name, request.body);
    let body = RawDoc::new(&shown);
    let whom = if name.contains("User") && !name.contains("Role") || name.ends_with("User") {
        "user"
    } else {
        "role"
    };
    DocBuf::build(|doc| {
        if !name.starts_with("dropAll")
            && let Some(named) = body.iter().next()
        {
            doc.append(whom, named.value());
        }
        doc.append("db", request.db);
        if name == "updateUser" {
            doc.append("passwordChanged", body.get("pwd").is_some());
        }
        for field in fields {
            match body.get(field) {
                Some(Value::Array(roles)) if *field == "roles" => write_roles(request, roles, doc),
                Some(value) => {
                    doc.append(field, value);
                }
                None => {}
            }
        }
    })
}

/// Roles that are named without a database belong to the command's.
fn write_roles(request: &Request<'_>, roles: RawDoc<'_>, doc: &mut DocWriter<'_, Vec<u8>>) {
    let mut list = doc.array("roles");
    for role in roles.values() {
        match role {
            Value::String(role) => {
                list.document().append("role", role).append("db", request.db);
            }
            other => {
                list.push(other);
            }
        }
    }
}
