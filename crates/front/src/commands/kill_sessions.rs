//! `killSessions`, `killAllSessions`, `killAllSessionsByPattern`.

use std::collections::HashSet;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::end_sessions::{own_documents, session_list};
use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::LogicalSessionId;

/// `{killSessions: [lsid, ...]}`; an empty list means all of the user's, and everybody is one user.
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
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::KillAnySession])]),
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
        kill(op, (!self.0.is_empty()).then_some(&self.0))?;
        Ok(Reply::ok())
    }
}

/// `{killAllSessions: [{user, db}, ...]}`.
pub struct KillAllSessions {
    anybody: bool,
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
        users.iter().try_for_each(|user| check_user(*user))?;
        Ok(KillAllSessions { anybody: users.is_empty() })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        // Sessions here belong to nobody, so a list of users matches none of them.
        kill(op, (!self.anybody).then_some(&[]))?;
        Ok(Reply::ok())
    }
}

/// `{killAllSessionsByPattern: [{lsid: ...} | {uid: ...} | {users, roles}, ...]}`.
pub struct KillAllSessionsByPattern {
    all: bool,
    ids: Vec<LogicalSessionId>,
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
        let mut found = KillAllSessionsByPattern { all: patterns.is_empty(), ids: Vec::new() };
        for pattern in patterns {
            if let Some(lsid) = pattern.get("lsid").and_then(|v| v.as_doc()) {
                let place = "KillAllSessionsByPatternCmd.killAllSessionsByPattern.lsid";
                found.ids.push(LogicalSessionId::parse_at(lsid, place)?);
            } else if pattern.get("uid").is_none() {
                found.all = true;
            }
        }
        Ok(found)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        kill(op, (!self.all).then_some(&self.ids))?;
        Ok(Reply::ok())
    }
}

/// `{user: ..., db: ...}`, an entry of `killAllSessions`.
fn check_user(user: RawDoc<'_>) -> Result<()> {
    const PLACE: &str = "KillAllSessionsCmd.killAllSessions";
    let mut missing = vec!["user", "db"];
    for field in user.iter() {
        match (field.key(), field.value()) {
            ("user" | "db", Value::Null | Value::Undefined) => {}
            (name @ ("user" | "db"), Value::String(_)) => missing.retain(|other| *other != name),
            (name @ ("user" | "db"), other) => bail!(
                Code::TYPE_MISMATCH,
                "BSON field '{PLACE}.{name}' is the wrong type '{}', expected type 'string'",
                other.type_name()
            ),
            (name, _) => bail!(40415, "BSON field '{PLACE}.{name}' is an unknown field."),
        }
    }
    match missing.first() {
        Some(name) => bail!(40414, "BSON field '{PLACE}.{name}' is missing but a required field"),
        None => Ok(()),
    }
}

/// Kills these sessions, or all; the session of this very command goes on.
fn kill(op: &Request<'_>, meant: Option<&[LogicalSessionId]>) -> Result<()> {
    let own = op.lsid();
    let ids: Option<HashSet<_>> = meant.map(|ids| ids.iter().copied().collect());
    op.front.stop_operations(|lsid| Some(lsid) != own && ids.as_ref().is_none_or(|ids| ids.contains(&lsid)));
    op.role.sessions().kill(meant, own, &|| op.check_interrupt())
}
