//! What the user of a command must be allowed to do, in MongoDB's terms: actions on resources.

pub use sheaf_auth::Action;
use sheaf_auth::Target;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;
use sheaf_wire::Sequence;

use crate::access::Rights;
use crate::args::Args;

/// What the user of a command must be allowed to do.
#[derive(Clone, Copy, Debug)]
pub enum Privileges {
    /// Nothing: everybody may run it who has authenticated (or anybody, see
    /// [`Authentication`](super::Authentication)).
    None,
    /// All of these, where their conditions hold.
    Needs(&'static [Privilege]),
    /// What the request contains decides, beyond what conditions can say; in words for the table.
    ByCommand(&'static str, Judge),
    /// Those of the command that stands in the request.
    OfInner,
}

/// Whether rights are enough for a request.
pub type Judge = fn(Asked<'_>, &Rights) -> bool;

/// Actions on one resource.
#[derive(Clone, Copy, Debug)]
pub struct Privilege {
    /// Where.
    pub resource: Resource,
    /// All of them are needed.
    pub actions: &'static [Action],
    /// An action that does in place of all of them.
    pub or: Option<Action>,
    /// When they are needed.
    pub when: When,
}

impl Privilege {
    /// These actions, whatever is asked.
    pub const fn on(resource: Resource, actions: &'static [Action]) -> Privilege {
        Privilege { resource, actions, or: None, when: When::Always }
    }

    /// An action that does in their place.
    pub const fn or(mut self, action: Action) -> Privilege {
        self.or = Some(action);
        self
    }

    /// Needed only by a request for which this holds; in words for the table.
    pub const fn if_asked(mut self, words: &'static str, holds: fn(Asked<'_>) -> bool) -> Privilege {
        self.when = When::Asked(words, holds);
        self
    }

    /// Needed only in a case that the command finds out when it runs.
    pub const fn if_found(mut self, words: &'static str) -> Privilege {
        self.when = When::Found(words);
        self
    }
}

/// When actions are needed.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Always.
    Always,
    /// If this holds for the request.
    Asked(&'static str, fn(Asked<'_>) -> bool),
    /// In a case that the command finds out when it runs.
    Found(&'static str),
}

/// What a condition looks at.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The command's name.
    pub command: &'static str,
    /// The database that it runs against.
    pub db: &'a str,
    /// The command as it came.
    pub body: RawDoc<'a>,
    /// The message's kind-1 sequences.
    pub sequences: &'a [Sequence<'a>],
}

impl<'a> Asked<'a> {
    /// The arguments as the command itself is given them: what rights depend on is best read by the command's own parser.
    ///
    /// Errors: those of fields that stand twice, upon which the command fails as well.
    pub fn args(self) -> Result<Args<'a>> {
        Args::of_message(self.command, self.body, self.sequences)
    }

    /// The value of the command's own field.
    pub fn first(self) -> Value<'a> {
        self.body.iter().next().map_or(Value::Missing, |first| first.value())
    }

    /// The collection that the command's own value names; the database where it names none.
    pub fn own(self) -> Target<'a> {
        self.first().as_str().map_or(Target::Database(self.db), |name| Target::Collection(self.db, name))
    }

    /// The documents of a list, wherever they stand.
    pub fn documents(self, list: &str) -> Vec<RawDoc<'a>> {
        if let Some(sequence) = self.sequences.iter().find(|sequence| sequence.name == list) {
            return sequence.iter().collect();
        }
        let array = self.body.get(list).and_then(|list| list.as_array());
        array.into_iter().flat_map(RawDoc::values).filter_map(|value| value.as_doc()).collect()
    }

    /// Whether this field is true.
    pub fn is_true(self, field: &str) -> bool {
        self.body.get(field).is_some_and(|value| value.truthy())
    }

    /// Whether there is this field.
    pub fn has(self, field: &str) -> bool {
        self.body.get(field).is_some()
    }

    /// Whether one of the statements in this list has a field that is true.
    pub fn any_statement(self, list: &str, field: &str) -> bool {
        let says = |statement: RawDoc<'_>| statement.get(field).is_some_and(|value| value.truthy());
        if let Some(sequence) = self.sequences.iter().find(|sequence| sequence.name == list) {
            return sequence.iter().any(says);
        }
        let statements = self.body.get(list).and_then(|list| list.as_array());
        statements.is_some_and(|list| list.values().filter_map(|statement| statement.as_doc()).any(says))
    }

    /// Whether documents go in that validators would refuse.
    pub fn bypasses_validation(self) -> bool {
        self.is_true("bypassDocumentValidation")
    }
}

/// Where actions happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// The collection that the command's own value names.
    Collection,
    /// The collection of the command's database that this field names.
    CollectionIn(&'static str),
    /// This collection of the command's database.
    CollectionNamed(&'static str),
    /// The whole namespace that this field names.
    NamespaceIn(&'static str),
    /// The command's database.
    Database,
    /// The cluster.
    Cluster,
}

/// The action that has the command's name, on the cluster.
pub fn of_its_name(asked: Asked<'_>, rights: &Rights) -> bool {
    Action::from_name(asked.command).is_some_and(|action| rights.may(Target::Cluster, &[action]))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn conditions_look_into_bodies_and_their_statements() {
        let one =
            doc! { "update": "c", "updates": [{ "q": {}, "u": {} }, { "q": {}, "u": {}, "upsert": true }] };
        let asked = Asked { command: "update", db: "a", body: one.as_raw(), sequences: &[] };
        assert!(asked.any_statement("updates", "upsert"));
        assert!(!asked.any_statement("updates", "multi"));
        assert!(asked.has("updates") && !asked.is_true("bypassDocumentValidation"));
        let none = doc! { "update": "c", "bypassDocumentValidation": 1 };
        let asked = Asked { command: "update", db: "a", body: none.as_raw(), sequences: &[] };
        assert!(!asked.any_statement("updates", "upsert") && asked.bypasses_validation());
    }
}
