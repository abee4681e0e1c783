//! `killSessions`, `killAllSessions`, `killAllSessionsByPattern`.

use std::collections::HashSet;

use sheaf_auth::{Target, UserName};
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};

use super::end_sessions::{own_documents, session_list};
use crate::access::Rights;
use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::{LogicalSessionId, NOBODY, digest};

/// Whether a list of sessions names none but one's own: those that say no user are.
fn are_own(asked: Asked<'_>, rights: &Rights) -> bool {
    let Some(own) = rights.account().map(|account| account.digest()) else { return true };
    let is_own = |session: Value<'_>| {
        let named = session.as_doc().and_then(|lsid| LogicalSessionId::parse(lsid).ok());
        // Where it is none, parsing says so.
        named.and_then(|id| id.uid).is_none_or(|uid| uid == own)
    };
    asked.first().as_array().is_none_or(|list| list.values().all(is_own))
}

/// `{killSessions: [lsid, ...]}`; an empty list means all of the user's. Where nobody says who he is, everybody is one user.
pub struct KillSessions(Vec<LogicalSessionId>);

impl<'a> Command<'a, Request<'a>> for KillSessions {
    const NAME: &'static str = "killSessions";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "stops what sessions are doing",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::ByCommand(
            "killAnySession on the cluster, unless all sessions are the user's own",
            |asked, rights| are_own(asked, rights) || rights.may(Target::Cluster, &[Action::KillAnySession]),
        ),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(KillSessions(session_list(args, "KillSessionsCmd")?))
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let ids: Vec<_> = self.0.into_iter().map(|id| op.session(id)).collect();
        match op.rights.account() {
            Some(account) if ids.is_empty() => kill_of(op, &[account.digest()])?,
            _ => kill(op, (!ids.is_empty()).then_some(&ids))?,
        }
        Ok(Reply::ok())
    }
}

/// `{killAllSessions: [{user, db}, ...]}`.
pub struct KillAllSessions {
    anybody: bool,
    users: Vec<UserName>,
}

impl<'a> Command<'a, Request<'a>> for KillAllSessions {
    const NAME: &'static str = "killAllSessions";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "stops what users' sessions are doing",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::KillAnySession])]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        let users = own_documents(args, "KillAllSessionsCmd")?;
        let users: Vec<_> = users.into_iter().map(user).collect::<Result<_>>()?;
        Ok(KillAllSessions { anybody: users.is_empty(), users })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        // Where nobody has to say who he is, sessions belong to no user.
        if self.anybody {
            kill(op, None)?;
            return Ok(Reply::ok());
        }
        let owners: Vec<_> = self.users.iter().map(sheaf_auth::user_digest).collect();
        kill_of(op, &owners)?;
        Ok(Reply::ok())
    }
}

/// Stops what all sessions of these users are doing.
fn kill_of(op: &Request<'_>, owners: &[[u8; 32]]) -> Result<()> {
    let is_one = |owner: Option<&[u8; 32]>| owner.is_some_and(|owner| owners.contains(owner));
    kill(op, Some(&op.role.sessions().those(&is_one)))?;
    op.role.sessions().kill_elsewhere(owners, &|| op.check_interrupt())
}

/// `{killAllSessionsByPattern: [{lsid: ...} | {uid: ...} | {users, roles}, ...]}`.
pub struct KillAllSessionsByPattern {
    all: bool,
    ids: Vec<LogicalSessionId>,
    /// Of whose sessions, by digest.
    owners: Vec<[u8; 32]>,
}

/// Whether a pattern names users or roles.
fn names_users(asked: Asked<'_>) -> bool {
    let list = "killAllSessionsByPattern";
    asked.any_statement(list, "users") || asked.any_statement(list, "roles")
}

impl<'a> Command<'a, Request<'a>> for KillAllSessionsByPattern {
    const NAME: &'static str = "killAllSessionsByPattern";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "stops what the sessions of a pattern are doing",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[
            Privilege::on(Resource::Cluster, &[Action::KillAnySession]),
            Privilege::on(Resource::Cluster, &[Action::Impersonate])
                .if_asked("a pattern names users or roles", names_users),
        ]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        let patterns = own_documents(args, "KillAllSessionsByPatternCmd")?;
        let mut found =
            KillAllSessionsByPattern { all: patterns.is_empty(), ids: Vec::new(), owners: Vec::new() };
        for pattern in patterns {
            match Pattern::parse(pattern)? {
                Pattern { id: Some(id), .. } => found.ids.push(id),
                Pattern { owner: Some(owner), .. } => found.owners.push(owner),
                // As whom to act says nothing about whose sessions.
                _ => found.all = true,
            }
        }
        Ok(found)
    }

    fn run(mut self, op: &Request<'a>) -> Result<Reply> {
        if !self.owners.is_empty() {
            let is_one = |owner: Option<&[u8; 32]>| self.owners.contains(owner.unwrap_or(&NOBODY));
            self.ids.extend(op.role.sessions().those(&is_one));
        }
        kill(op, (!self.all).then_some(&self.ids))?;
        if !self.all {
            op.role.sessions().kill_elsewhere(&self.owners, &|| op.check_interrupt())?;
        }
        Ok(Reply::ok())
    }
}

/// An entry of `killAllSessionsByPattern`: `{lsid, uid, users, roles}`, of which the last two name as whom to act.
#[derive(Default)]
struct Pattern {
    id: Option<LogicalSessionId>,
    owner: Option<[u8; 32]>,
}

impl Pattern {
    fn parse(entry: RawDoc<'_>) -> Result<Pattern> {
        const PLACE: &str = "KillAllSessionsByPatternCmd.killAllSessionsByPattern";
        let mut pattern = Pattern::default();
        for field in entry.iter() {
            match (field.key(), field.value()) {
                ("lsid" | "users" | "roles", Value::Null | Value::Undefined) => {}
                ("lsid", Value::Document(lsid)) => {
                    pattern.id = Some(LogicalSessionId::parse_at(lsid, &format!("{PLACE}.lsid"))?);
                }
                ("uid", uid) => pattern.owner = digest(uid, PLACE)?,
                (list @ ("users" | "roles"), Value::Array(entries)) => {
                    let name = if list == "users" { "user" } else { "role" };
                    for (at, entry) in entries.values().enumerate() {
                        let place = format!("{PLACE}.{list}");
                        match entry {
                            Value::Document(entry) => drop(name_and_db(entry, [name, "db"], &place)?),
                            other => return Err(wrong_type(&format!("{place}.{at}"), other, "object")),
                        }
                    }
                }
                (name @ ("lsid" | "users" | "roles"), other) => {
                    let wanted = if name == "lsid" { "object" } else { "array" };
                    return Err(wrong_type(&format!("{PLACE}.{name}"), other, wanted));
                }
                (name, _) => bail!(40415, "BSON field '{PLACE}.{name}' is an unknown field."),
            }
        }
        Ok(pattern)
    }
}

/// `{user: ..., db: ...}`, an entry of `killAllSessions`.
fn user(entry: RawDoc<'_>) -> Result<UserName> {
    let [user, db] = name_and_db(entry, ["user", "db"], "KillAllSessionsCmd.killAllSessions")?;
    Ok(UserName::new(user, db))
}

/// The two strings that an entry of a list has, and nothing else.
fn name_and_db<'e>(entry: RawDoc<'e>, names: [&str; 2], place: &str) -> Result<[&'e str; 2]> {
    let mut found = [None, None];
    for field in entry.iter() {
        let Some(at) = names.iter().position(|name| *name == field.key()) else {
            bail!(40415, "BSON field '{place}.{}' is an unknown field.", field.key())
        };
        match field.value() {
            Value::Null | Value::Undefined => {}
            Value::String(text) => found[at] = Some(text),
            other => return Err(wrong_type(&format!("{place}.{}", names[at]), other, "string")),
        }
    }
    match found {
        [Some(name), Some(db)] => Ok([name, db]),
        [None, _] => bail!(40414, "BSON field '{place}.{}' is missing but a required field", names[0]),
        [_, None] => bail!(40414, "BSON field '{place}.{}' is missing but a required field", names[1]),
    }
}

fn wrong_type(place: &str, found: Value<'_>, wanted: &str) -> Error {
    let found = found.type_name();
    let text = format!("BSON field '{place}' is the wrong type '{found}', expected type '{wanted}'");
    Error::new(Code::TYPE_MISMATCH, text)
}

/// Kills these sessions, or all; the session of this very command goes on.
fn kill(op: &Request<'_>, meant: Option<&[LogicalSessionId]>) -> Result<()> {
    let own = op.lsid();
    let ids: Option<HashSet<_>> = meant.map(|ids| ids.iter().copied().collect());
    op.front.stop_operations(|lsid| Some(lsid) != own && ids.as_ref().is_none_or(|ids| ids.contains(&lsid)));
    op.role.sessions().kill(meant, own, &|| op.check_interrupt())
}
