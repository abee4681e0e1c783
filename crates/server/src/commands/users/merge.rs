//! `_mergeAuthzCollections`: by which mongorestore puts the users and roles of a dump in the places of those that are there. It has written
//! them to collections of its own before, so that no change of others comes in between, and nobody is locked out half-way.

use std::collections::BTreeSet;

use sheaf_auth::{Role, RoleName, Target, UserDocument, UserName};
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::access::Rights;
use sheaf_front::audit::noted::{note, room_of};

use super::written::{Change, Changes, change};
use crate::accounts::{ROLES, Stored, USERS};
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{_mergeAuthzCollections: 1, tempUsersCollection: "admin.tempusers", tempRolesCollection: "admin.temproles", db: "", drop: false}`.
pub struct MergeAuthzCollections<'a> {
    users: &'a str,
    roles: &'a str,
    /// Only those of this database; of all where it is empty.
    db: &'a str,
    /// Whether those that are there are replaced, and go where the dump does not have them.
    drop: bool,
}

/// Whether somebody may do what the command asks for.
fn may(asked: Asked<'_>, rights: &Rights) -> bool {
    // What cannot be parsed fails.
    let Ok(MergeAuthzCollections { users, roles, drop, .. }) = parsed(asked) else { return true };
    let mut actions = vec![Action::CreateUser, Action::CreateRole, Action::GrantRole, Action::RevokeRole];
    if drop {
        actions.extend([Action::DropUser, Action::DropRole]);
    }
    let reads = [users, roles].iter().filter(|name| !name.is_empty()).all(|name| {
        let (db, collection) = name.split_once('.').unwrap_or((name, ""));
        rights.may(Target::Collection(db, collection), &[Action::Find])
    });
    rights.may(Target::AnyNormal, &actions) && reads
}

impl<'a> Command<'a, Operation<'a>> for MergeAuthzCollections<'a> {
    const NAME: &'static str = "_mergeAuthzCollections";
    const SPEC: Spec = Spec {
        admin_only: true,
        ..super::spec::changes(
            "puts the users and roles of a dump in their places",
            Privileges::ByCommand(
                "createUser, createRole, grantRole and revokeRole on any database, with drop dropUser and dropRole, too; find on the collections",
                may,
            ),
        )
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let mut name = |field| args.optional::<&str>(field).map(Option::unwrap_or_default);
        let (users, roles, db) = (name("tempUsersCollection")?, name("tempRolesCollection")?, name("db")?);
        let drop = args.optional("drop")?.unwrap_or(false);
        if users.is_empty() && roles.is_empty() {
            bail!(
                Code::BAD_VALUE,
                "Must provide at least one of \"tempUsersCollection\" and \"tempRolescollection\""
            );
        }
        Ok(MergeAuthzCollections { users, roles, db, drop })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let mut told = Vec::new();
        change(op, |stored| {
            let mut changes = Changes::new();
            for (from, to, kind) in [(self.users, USERS, &USER), (self.roles, ROLES, &ROLE)] {
                if !from.is_empty() {
                    self.merge(stored, from, to, kind, &mut changes, &mut told)?;
                }
            }
            // Whatever is done is told.
            told.iter().try_for_each(|(_, param): &(_, DocBuf)| room_of(op, param.as_raw()))?;
            Ok(changes)
        })?;
        for (atype, param) in told {
            note(op, atype, Code::OK, || param);
        }
        Ok(Reply::ok())
    }
}

/// What is to be known of users, or of roles.
struct Kind {
    /// The names of the events of a new one, a changed one and one that is gone.
    events: [&'static str; 3],
    /// The fields that the events show, besides the name.
    shown: &'static [&'static str],
    /// The `_id` and the database of a document.
    ///
    /// Errors: it is no such document.
    read: fn(RawDoc<'_>) -> Result<(String, String)>,
}

const USER: Kind = Kind {
    events: ["createUser", "updateUser", "dropUser"],
    shown: &["customData", "roles", "authenticationRestrictions"],
    read: |document| {
        let UserName { user, db } = UserDocument::read(document)?.name;
        Ok((UserName::new(user, db.clone()).id(), db))
    },
};

const ROLE: Kind = Kind {
    events: ["createRole", "updateRole", "dropRole"],
    shown: &["roles", "privileges", "authenticationRestrictions"],
    read: |document| {
        Role::read(document)?;
        match RoleName::read(document) {
            Some(name) => Ok((name.id(), name.db)),
            None => {
                bail!(Code::FAILED_TO_PARSE, "Role document needs 'role' and 'db' fields that are strings")
            }
        }
    },
};

/// An event's own document.
fn event(document: RawDoc<'_>, shown: &[&str]) -> DocBuf {
    DocBuf::build(|param| {
        for name in ["user", "role", "db"].iter().chain(shown) {
            if let Some(value) = document.get(name) {
                param.append(name, value);
            }
        }
    })
}

impl MergeAuthzCollections<'_> {
    fn is_meant(&self, db: &str) -> bool {
        self.db.is_empty() || self.db == db
    }

    /// What is to change so that the documents of one collection are among those of the other.
    fn merge(
        &self,
        stored: &Stored<'_>,
        from: &str,
        to: &'static str,
        kind: &Kind,
        changes: &mut Changes,
        told: &mut Vec<(&'static str, DocBuf)>,
    ) -> Result<()> {
        let mut kept = BTreeSet::new();
        stored.each(from, &mut |document| {
            let (id, db) = (kind.read)(document)?;
            if !self.is_meant(&db) {
                return Ok(true);
            }
            if document.get("_id").and_then(|own| own.as_str()) != Some(&id) {
                bail!(Code::BAD_VALUE, "{from}: the _id of {id} is another one");
            }
            let is_there = stored.document(to, &id)?.is_some();
            // One that is there stays, unless all are replaced: as it is where documents are restored.
            if self.drop || !is_there {
                changes.push((to, Change::Put(DocBuf::from(document))));
                told.push((kind.events[usize::from(is_there)], event(document, kind.shown)));
            }
            kept.insert(id);
            Ok(true)
        })?;
        if self.drop {
            stored.each(to, &mut |document| {
                let (id, db) = (kind.read)(document)?;
                if self.is_meant(&db) && !kept.contains(&id) {
                    told.push((kind.events[2], event(document, &[])));
                    changes.push((to, Change::Remove(id)));
                }
                Ok(true)
            })?;
        }
        Ok(())
    }
}
