//! Privileges: actions on resources, and what a user has of them.

use std::collections::BTreeMap;

use sheaf_bson::{ArrayWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::action::{Action, ActionSet};
use crate::resource::{Resource, Target};

/// Actions on what a pattern covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Privilege {
    /// Where.
    pub resource: Resource,
    /// What.
    pub actions: ActionSet,
}

impl Privilege {
    /// These actions there.
    pub fn new(resource: Resource, actions: &[Action]) -> Self {
        Privilege { resource, actions: ActionSet::of(actions) }
    }

    /// Reads `{resource: {...}, actions: [...]}`. A name that no action has is left out with `lenient`: another version may know it.
    ///
    /// Errors: `BadValue`, `FailedToParse`.
    pub fn read(doc: RawDoc<'_>, lenient: bool) -> Result<Self> {
        let Some(Value::Document(resource)) = doc.get("resource") else {
            bail!(40414, "BSON field 'privileges.resource' is missing but a required field");
        };
        let Some(Value::Array(list)) = doc.get("actions") else {
            bail!(40414, "BSON field 'privileges.actions' is missing but a required field");
        };
        let resource = Resource::read(resource)?;
        let (mut actions, mut unknown) = (ActionSet::NONE, Vec::new());
        for value in list.values() {
            match value.as_str().map(|name| (name, Action::from_name(name))) {
                Some((_, Some(action))) => actions.insert(action),
                Some((name, None)) => unknown.push(name),
                None => bail!(Code::TYPE_MISMATCH, "actions of a privilege must be strings"),
            }
        }
        if !unknown.is_empty() && !lenient {
            bail!(Code::BAD_VALUE, "Unrecognized action privilege strings: {}", unknown.join(","));
        }
        Ok(Privilege { resource, actions })
    }
}

/// What a user or a role may do: actions by pattern.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Privileges(BTreeMap<Resource, ActionSet>);

impl Privileges {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Grants another.
    pub fn add(&mut self, privilege: Privilege) {
        let held = self.0.entry(privilege.resource).or_default();
        *held = held.union(privilege.actions);
    }

    /// Takes actions back where they were granted by the same pattern. Whether it was one.
    pub fn take(&mut self, privilege: &Privilege) -> bool {
        let Some(held) = self.0.get_mut(&privilege.resource) else { return false };
        *held = held.minus(privilege.actions);
        if held.is_empty() {
            self.0.remove(&privilege.resource);
        }
        true
    }

    /// Whether the action may be done there: the patterns that cover the target need not all grant it.
    pub fn allow(&self, target: Target<'_>, action: Action) -> bool {
        self.0.iter().any(|(resource, actions)| actions.contains(action) && resource.covers(target))
    }

    /// Whether all of these may be done there.
    pub fn allow_all(&self, target: Target<'_>, actions: ActionSet) -> bool {
        let mut left = actions;
        for (resource, held) in &self.0 {
            if resource.covers(target) {
                if held.contains(Action::AnyAction) {
                    return true;
                }
                left = left.minus(*held);
            }
        }
        left.is_empty()
    }

    /// Whether anything is granted there.
    pub fn allow_any(&self, target: Target<'_>) -> bool {
        self.0.keys().any(|resource| resource.covers(target))
    }

    /// Whether anything is granted for something in this database.
    pub fn reach(&self, db: &str) -> bool {
        self.0.keys().any(|resource| resource.reaches(db))
    }

    /// All, by pattern.
    pub fn iter(&self) -> impl Iterator<Item = (&Resource, ActionSet)> {
        self.0.iter().map(|(resource, actions)| (resource, *actions))
    }

    /// Writes them as `{resource, actions}`.
    pub fn write(&self, list: &mut ArrayWriter<'_, Vec<u8>>) {
        for (resource, actions) in self.iter() {
            let mut doc = list.document();
            resource.write(&mut doc.document("resource"));
            let mut names = doc.array("actions");
            for action in actions.iter() {
                names.push(action.name());
            }
        }
    }
}

impl Extend<Privilege> for Privileges {
    fn extend<I: IntoIterator<Item = Privilege>>(&mut self, privileges: I) {
        privileges.into_iter().for_each(|privilege| self.add(privilege));
    }
}

impl FromIterator<Privilege> for Privileges {
    fn from_iter<I: IntoIterator<Item = Privilege>>(privileges: I) -> Self {
        let mut all = Privileges::default();
        all.extend(privileges);
        all
    }
}
