//! What the commands of users and roles ask of who sends them.

use sheaf_auth::{Resource as Pattern, Target, UserName};
use sheaf_bson::{RawDoc, Value};
use sheaf_front::access::Rights;

use crate::command::*;

fn database<'a>(asked: Asked<'a>) -> Target<'a> {
    Target::Database(asked.db)
}

/// The elements of a list; none where there is no list: the command fails anyway.
fn list<'a>(asked: Asked<'a>, name: &str) -> impl Iterator<Item = Value<'a>> + use<'a> {
    asked.body.get(name).and_then(|list| list.as_array()).into_iter().flat_map(RawDoc::values)
}

fn named_db<'a>(asked: Asked<'a>, role: Value<'a>) -> &'a str {
    role.as_doc().and_then(|role| role.get("db")?.as_str()).unwrap_or(asked.db)
}

/// `grantRole` or `revokeRole` on the database of each role.
fn roles(asked: Asked<'_>, rights: &Rights, action: Action) -> bool {
    list(asked, "roles").all(|role| rights.may(Target::Database(named_db(asked, role)), &[action]))
}

/// The same on the database of each privilege.
fn privileges(asked: Asked<'_>, rights: &Rights, action: Action) -> bool {
    list(asked, "privileges").all(|privilege| {
        let resource = privilege.as_doc().and_then(|privilege| privilege.get("resource")?.as_doc());
        let Some(Ok(pattern)) = resource.map(Pattern::read) else { return true };
        rights.may(Target::Database(pattern.grants_in()), &[action])
    })
}

fn restrictions(asked: Asked<'_>, rights: &Rights) -> bool {
    !asked.has("authenticationRestrictions")
        || rights.may(database(asked), &[Action::SetAuthenticationRestriction])
}

pub fn create_user(asked: Asked<'_>, rights: &Rights) -> bool {
    rights.may(database(asked), &[Action::CreateUser])
        && roles(asked, rights, Action::GrantRole)
        && restrictions(asked, rights)
}

pub fn update_user(asked: Asked<'_>, rights: &Rights) -> bool {
    let user = asked.first().as_str().unwrap_or_default();
    let own = rights.user() == Some(&UserName::new(user, asked.db));
    let may = |any: Action, of_own: Action| {
        rights.may(database(asked), &[any]) || (own && rights.may(database(asked), &[of_own]))
    };
    let credentials = asked.has("pwd") || asked.has("mechanisms");
    (!credentials || may(Action::ChangePassword, Action::ChangeOwnPassword))
        && (!asked.has("customData") || may(Action::ChangeCustomData, Action::ChangeOwnCustomData))
        && (!asked.has("roles") || rights.may(Target::AnyNormal, &[Action::RevokeRole]))
        && roles(asked, rights, Action::GrantRole)
        && restrictions(asked, rights)
}

pub fn create_role(asked: Asked<'_>, rights: &Rights) -> bool {
    rights.may(database(asked), &[Action::CreateRole])
        && roles(asked, rights, Action::GrantRole)
        && privileges(asked, rights, Action::GrantRole)
        && restrictions(asked, rights)
}

pub fn update_role(asked: Asked<'_>, rights: &Rights) -> bool {
    rights.may(Target::AnyNormal, &[Action::RevokeRole])
        && roles(asked, rights, Action::GrantRole)
        && privileges(asked, rights, Action::GrantRole)
        && restrictions(asked, rights)
}

pub fn grant_roles(asked: Asked<'_>, rights: &Rights) -> bool {
    roles(asked, rights, Action::GrantRole)
}

pub fn revoke_roles(asked: Asked<'_>, rights: &Rights) -> bool {
    roles(asked, rights, Action::RevokeRole)
}

pub fn grant_privileges(asked: Asked<'_>, rights: &Rights) -> bool {
    privileges(asked, rights, Action::GrantRole)
}

pub fn revoke_privileges(asked: Asked<'_>, rights: &Rights) -> bool {
    privileges(asked, rights, Action::RevokeRole)
}
