//! What somebody may do, arranged by where: each command asks.

use std::collections::HashMap;

use crate::action::ActionSet;
use crate::privilege::Privileges;
use crate::resource::{BUCKETS, Resource, Target, is_own, is_system};

type ByName<T> = HashMap<String, T, ahash::RandomState>;

/// [`Privileges`] to be looked at often: they do not change, and what covers a target is found without looking at each pattern.
#[derive(Clone, Default, Debug)]
pub struct Held {
    everywhere: ActionSet,
    cluster: ActionSet,
    normal: ActionSet,
    buckets: ActionSet,
    databases: ByName<OfDatabase>,
    /// Of collections in whatever database.
    named: ByName<ActionSet>,
}

#[derive(Clone, Default, Debug)]
struct OfDatabase {
    whole: ActionSet,
    buckets: ActionSet,
    collections: ByName<ActionSet>,
}

impl Held {
    /// These privileges.
    pub fn new(privileges: &Privileges) -> Self {
        let mut held = Held::default();
        for (resource, actions) in privileges.iter() {
            let place = match resource {
                Resource::Any => &mut held.everywhere,
                Resource::Cluster => &mut held.cluster,
                Resource::AnyNormal => &mut held.normal,
                Resource::AnyBuckets => &mut held.buckets,
                Resource::Named(name) => held.named.entry(name.clone()).or_default(),
                Resource::Database(db) => &mut held.databases.entry(db.clone()).or_default().whole,
                Resource::BucketsOf(db) => &mut held.databases.entry(db.clone()).or_default().buckets,
                Resource::Collection(db, name) => {
                    let of = held.databases.entry(db.clone()).or_default();
                    of.collections.entry(name.clone()).or_default()
                }
            };
            *place = place.union(actions);
        }
        held
    }

    /// All that may be done there: the patterns that cover the target need not all grant it.
    pub fn at(&self, target: Target<'_>) -> ActionSet {
        let mut found = self.everywhere;
        match target {
            Target::Any => {}
            Target::Cluster => found = found.union(self.cluster),
            Target::AnyNormal => found = found.union(self.normal),
            Target::Database(db) => {
                if !is_own(db) {
                    found = found.union(self.normal);
                }
                if let Some(of) = self.databases.get(db) {
                    found = found.union(of.whole);
                }
            }
            Target::Collection(db, name) => {
                let is_system = is_system(name);
                if !is_system && !is_own(db) {
                    found = found.union(self.normal);
                }
                let is_of_buckets = name.starts_with(BUCKETS);
                if is_of_buckets {
                    found = found.union(self.buckets);
                }
                if let Some(of) = self.databases.get(db) {
                    if !is_system {
                        found = found.union(of.whole);
                    }
                    if is_of_buckets {
                        found = found.union(of.buckets);
                    }
                    found = found.union(of.collections.get(name).copied().unwrap_or_default());
                }
                found = found.union(self.named.get(name).copied().unwrap_or_default());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::action::Action;
    use crate::privilege::Privilege;

    const ACTIONS: &[Action] = &[Action::Find, Action::Insert, Action::ServerStatus, Action::AnyAction];

    fn db() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["lib", "admin", "local", "config"]).prop_map(str::to_owned)
    }

    fn collection() -> impl Strategy<Value = String> {
        let names = vec!["books", "system.js", "system.buckets.books", "system", "users"];
        prop::sample::select(names).prop_map(str::to_owned)
    }

    fn resource() -> impl Strategy<Value = Resource> {
        prop_oneof![
            Just(Resource::Any),
            Just(Resource::Cluster),
            Just(Resource::AnyNormal),
            Just(Resource::AnyBuckets),
            db().prop_map(Resource::Database),
            db().prop_map(Resource::BucketsOf),
            collection().prop_map(Resource::Named),
            (db(), collection()).prop_map(|(db, name)| Resource::Collection(db, name)),
        ]
    }

    fn privileges() -> impl Strategy<Value = Privileges> {
        let actions = prop::collection::vec(prop::sample::select(ACTIONS.to_vec()), 1..3);
        let one = (resource(), actions).prop_map(|(resource, actions)| Privilege::new(resource, &actions));
        prop::collection::vec(one, 0..8).prop_map(|list| list.into_iter().collect())
    }

    proptest! {
        #[test]
        fn what_is_held_is_what_the_patterns_say(granted in privileges(), db in db(), name in collection()) {
            let held = Held::new(&granted);
            let targets = [
                Target::Any, Target::Cluster, Target::AnyNormal, Target::Database(&db), Target::Collection(&db, &name),
            ];
            for target in targets {
                for action in ACTIONS {
                    prop_assert_eq!(held.at(target).contains(*action), granted.allow(target, *action), "{:?} {:?}", target, action);
                }
                for pair in ACTIONS.windows(2) {
                    let wanted = ActionSet::of(pair);
                    prop_assert_eq!(held.at(target).contains_all(wanted), granted.allow_all(target, wanted));
                }
                prop_assert_eq!(!held.at(target).is_empty(), granted.allow_any(target));
            }
        }
    }
}
