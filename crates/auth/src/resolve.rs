//! Roles within roles: what they come to, and circles that must not be.

use std::collections::{BTreeSet, VecDeque};

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::builtin;
use crate::name::RoleName;
use crate::privilege::{Privilege, Privileges};
use crate::restriction::RestrictionSet;

/// A role: what it grants itself, and the roles that it includes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Role {
    /// Its name.
    pub name: RoleName,
    /// The roles that it includes.
    pub roles: Vec<RoleName>,
    /// What it grants besides.
    pub privileges: Privileges,
    /// From where those who have it may come.
    pub restrictions: Option<RestrictionSet>,
}

/// A list of `{role, db}`; what is none is an error of the data.
pub(crate) fn read_names(list: Option<Value<'_>>) -> Result<Vec<RoleName>> {
    let Some(Value::Array(list)) = list else { return Ok(Vec::new()) };
    let read = |value: Value<'_>| value.as_doc().and_then(RoleName::read);
    match list.values().map(read).collect() {
        Some(names) => Ok(names),
        None => bail!(Code::UNSUPPORTED_FORMAT, "Missing or malformed 'roles' of a stored user or role"),
    }
}

impl Role {
    /// Reads a document of `admin.system.roles`.
    ///
    /// Errors: `UnsupportedFormat` and the like for what is no role.
    pub fn read(doc: RawDoc<'_>) -> Result<Role> {
        let Some(name) = RoleName::read(doc) else {
            bail!(Code::FAILED_TO_PARSE, "Role document needs 'role' and 'db' fields that are strings");
        };
        let mut privileges = Privileges::default();
        if let Some(Value::Array(list)) = doc.get("privileges") {
            for privilege in list.values().filter_map(|value| value.as_doc()) {
                privileges.add(Privilege::read(privilege, true)?);
            }
        }
        let restrictions = match doc.get("authenticationRestrictions") {
            Some(Value::Array(list)) => Some(RestrictionSet::read(list)?),
            _ => None,
        };
        Ok(Role { name, roles: read_names(doc.get("roles"))?, privileges, restrictions })
    }
}

/// The roles that there are.
pub trait Roles {
    /// The role of this name that somebody has made; built-in ones need not be known.
    ///
    /// Errors: those of reading it.
    fn made(&self, name: &RoleName) -> Result<Option<Role>>;

    /// The role of this name.
    ///
    /// Errors: those of reading it.
    fn role(&self, name: &RoleName) -> Result<Option<Role>> {
        match builtin::find(name) {
            Some(role) => Ok(Some(role)),
            None => self.made(name),
        }
    }
}

/// What a set of roles comes to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Resolved {
    /// The roles themselves and all that they include; of built-in ones nothing more.
    pub roles: BTreeSet<RoleName>,
    /// All that they grant.
    pub privileges: Privileges,
    /// All of these have to be met.
    pub restrictions: Vec<RestrictionSet>,
    /// Roles that are named somewhere, and are not there.
    pub missing: BTreeSet<RoleName>,
}

/// What these roles come to. A role that is no longer there grants nothing.
///
/// Errors: those of reading roles.
pub fn resolve(direct: &[RoleName], roles: &dyn Roles) -> Result<Resolved> {
    let mut resolved = Resolved::default();
    // Of what built-in roles are made is nobody's business: only what they grant is.
    let mut within = BTreeSet::new();
    let mut left: VecDeque<(RoleName, bool)> = direct.iter().map(|name| (name.clone(), false)).collect();
    while let Some((name, is_within)) = left.pop_front() {
        let known = resolved.roles.contains(&name) || is_within && within.contains(&name);
        if known || resolved.missing.contains(&name) {
            continue;
        }
        let Some(role) = roles.role(&name)? else {
            resolved.missing.insert(name);
            continue;
        };
        let goes_within = is_within || builtin::is_built_in(&name);
        left.extend(role.roles.into_iter().map(|role| (role, goes_within)));
        resolved.privileges.extend(
            role.privileges
                .iter()
                .map(|(resource, actions)| Privilege { resource: resource.clone(), actions }),
        );
        resolved.restrictions.extend(role.restrictions.filter(|set| !set.is_empty()));
        if is_within {
            within.insert(name)
        } else {
            resolved.roles.insert(name)
        };
    }
    Ok(resolved)
}

/// Whether `role` would include itself if it included `other`.
///
/// Errors: those of reading roles.
pub fn closes_circle(role: &RoleName, other: &RoleName, roles: &dyn Roles) -> Result<bool> {
    Ok(resolve(std::slice::from_ref(other), roles)?.roles.contains(role) || role == other)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::action::{Action, ActionSet};
    use crate::resource::{Resource, Target};

    #[derive(Default, Clone, Debug)]
    struct Made(BTreeMap<RoleName, Role>);

    impl Roles for Made {
        fn made(&self, name: &RoleName) -> Result<Option<Role>> {
            Ok(self.0.get(name).cloned())
        }
    }

    fn name(number: u8) -> RoleName {
        RoleName::new(format!("r{number}"), "admin")
    }

    fn made(graph: &[(u8, Vec<u8>, Vec<u8>)]) -> Made {
        let mut all = Made::default();
        for (number, roles, actions) in graph {
            let actions = actions.iter().map(|at| Action::ALL[*at as usize % Action::ALL.len()]);
            let privilege =
                Privilege { resource: Resource::Database("db".to_owned()), actions: actions.collect() };
            let role = Role {
                name: name(*number),
                roles: roles.iter().map(|number| name(*number)).collect(),
                privileges: [privilege].into_iter().collect(),
                restrictions: None,
            };
            all.0.insert(name(*number), role);
        }
        all
    }

    #[test]
    fn built_in_roles_are_all_there_and_say_what_the_manual_says() {
        for db in ["admin", "x"] {
            for name in builtin::names(db) {
                let role = builtin::find(&name).unwrap();
                assert!(role.roles.iter().all(builtin::is_built_in), "{name}");
                resolve(&[name], &Made::default()).unwrap();
            }
        }
        assert!(builtin::find(&RoleName::new("root", "x")).is_none());
        let of =
            |role: &str, db: &str| resolve(&[RoleName::new(role, db)], &Made::default()).unwrap().privileges;
        let (read, root, system) = (of("read", "x"), of("root", "admin"), of("__system", "admin"));
        assert!(read.allow(Target::Collection("x", "c"), Action::Find));
        assert!(read.allow(Target::Collection("x", "system.js"), Action::Find));
        assert!(!read.allow(Target::Collection("x", "system.profile"), Action::Find));
        assert!(!read.allow(Target::Collection("y", "c"), Action::Find));
        assert!(!read.allow(Target::Collection("x", "c"), Action::Insert));
        assert!(root.allow(Target::Collection("local", "oplog.rs"), Action::Find));
        assert!(!root.allow(Target::Collection("x", "system.views"), Action::Insert));
        assert!(
            !root.allow(Target::Cluster, Action::Internal) && system.allow(Target::Cluster, Action::Internal)
        );
        assert!(system.allow(Target::Any, Action::Find) && !root.allow(Target::Any, Action::Find));
        let owner = of("dbOwner", "x");
        assert!(owner.allow(Target::Database("x"), Action::CreateUser));
        assert!(!owner.allow(Target::Cluster, Action::ListDatabases));
        assert!(!of("readAnyDatabase", "admin").allow(Target::Collection("config", "shards"), Action::Find));
    }

    proptest! {
        #[test]
        fn more_privileges_never_take_one_away(
            graph in proptest::collection::vec((0u8..8, proptest::collection::vec(0u8..8, 0..3), proptest::collection::vec(any::<u8>(), 0..4)), 1..8),
            role in 0u8..8,
            added in any::<u8>(),
        ) {
            // Circles in what is stored end all the same.
            let before = made(&graph);
            let mut after = before.clone();
            let action = Action::ALL[added as usize % Action::ALL.len()];
            if let Some(role) = after.0.get_mut(&name(role)) {
                role.privileges.add(Privilege { resource: Resource::AnyNormal, actions: ActionSet::of(&[action]) });
            }
            let was = resolve(&[name(0), name(1)], &before).unwrap();
            let is = resolve(&[name(0), name(1)], &after).unwrap();
            prop_assert_eq!(&was.roles, &is.roles);
            let target = Target::Collection("db", "c");
            for action in Action::ALL {
                prop_assert!(!was.privileges.allow(target, *action) || is.privileges.allow(target, *action));
            }
        }

        #[test]
        fn circles_are_seen(
            edges in proptest::collection::vec((0u8..6, 0u8..6), 0..20),
        ) {
            // Edges go in one by one unless they close a circle: the result has none.
            let mut all = made(&(0..6).map(|number| (number, Vec::new(), Vec::new())).collect::<Vec<_>>());
            for (from, to) in edges {
                if !closes_circle(&name(from), &name(to), &all).unwrap() {
                    all.0.get_mut(&name(from)).unwrap().roles.push(name(to));
                }
            }
            for number in 0..6 {
                let includes = all.0[&name(number)].roles.clone();
                prop_assert!(!resolve(&includes, &all).unwrap().roles.contains(&name(number)));
            }
        }
    }
}
