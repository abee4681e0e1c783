//! What pipelines ask of who runs them: each stage says it beside its code ([`Needs`]).

use sheaf_aggregate::{Needs, stage_entry};
use sheaf_auth::{Target, UserName};
use sheaf_bson::{RawDoc, Value};
use sheaf_front::access::Rights;

use crate::command::{Action, Asked};

/// Whether an `aggregate` is allowed.
pub fn may_aggregate(asked: Asked<'_>, rights: &Rights) -> bool {
    let pipeline = asked.body.get("pipeline").and_then(|pipeline| pipeline.as_array());
    // One that is none fails when it is parsed.
    let stages = pipeline.unwrap_or(RawDoc::EMPTY);
    Reader { rights, db: asked.db, bypass: asked.bypasses_validation() }.may_run(asked.own(), stages, true)
}

/// Whether a view on this collection may be made: its maker must be able to read what it shows, if the maker can read the view.
pub fn may_make_view(asked: Asked<'_>, rights: &Rights) -> bool {
    let Some(on) = asked.body.get("viewOn").and_then(|on| on.as_str()) else { return true };
    if !rights.may(asked.own(), &[Action::Find]) {
        return true;
    }
    let pipeline = asked.body.get("pipeline").and_then(|pipeline| pipeline.as_array());
    let reader = Reader { rights, db: asked.db, bypass: false };
    reader.may_run(Target::Collection(asked.db, on), pipeline.unwrap_or(RawDoc::EMPTY), true)
}

struct Reader<'a> {
    rights: &'a Rights,
    db: &'a str,
    /// `bypassDocumentValidation`.
    bypass: bool,
}

impl<'a> Reader<'a> {
    /// Whether these stages may run on `own`; with `reads` they read it, otherwise they are given its documents.
    fn may_run(&self, own: Target<'_>, stages: RawDoc<'_>, reads: bool) -> bool {
        let mut stages = stages.values().filter_map(|stage| stage.as_doc()?.iter().next()).peekable();
        let makes_its_own = stages
            .peek()
            .and_then(|first| stage_entry(first.key()))
            .is_some_and(|entry| matches!(entry.needs, Needs::Own(_) | Needs::Cluster(_)));
        let source = makes_its_own || !reads || self.rights.may(own, &[Action::Find]);
        source && stages.all(|stage| self.may_stage(own, stage.key(), stage.value()))
    }

    fn may_stage(&self, own: Target<'_>, name: &str, spec: Value<'_>) -> bool {
        // An unknown stage fails when it is parsed.
        let Some(entry) = stage_entry(name) else { return true };
        let field = |name: &str| spec.as_doc().map_or(Value::Missing, |spec| spec.get_or_missing(name));
        let actions = |names: &[&str]| {
            let known = |name: &&str| Action::from_name(name).expect("stages name actions that there are");
            names.iter().map(known).collect::<Vec<_>>()
        };
        match entry.needs {
            Needs::Nothing => true,
            Needs::Own(names) => {
                let whole = name == "$changeStream" && field("allChangesForCluster").truthy();
                self.rights.may(if whole { Target::AnyNormal } else { own }, &actions(names))
            }
            // One's own operations and sessions need no rights.
            Needs::Cluster(_) if name == "$currentOp" && !field("allUsers").truthy() => true,
            Needs::Cluster(_)
                if matches!(name, "$listLocalSessions" | "$listSessions")
                    && !shows_others(spec, self.rights.user()) =>
            {
                true
            }
            Needs::Cluster(names) => self.rights.may(Target::Cluster, &actions(names)),
            Needs::Foreign => self.may_read_others(own, name, spec),
            Needs::Target(names) => {
                let target = if name == "$merge" && spec.as_str().is_none() { field("into") } else { spec };
                let mut actions = actions(names);
                if self.bypass {
                    actions.push(Action::BypassDocumentValidation);
                }
                self.rights.may(self.named(target, "coll"), &actions)
            }
        }
    }

    /// A collection that a stage names: by its name, or by a document of it and its database.
    fn named<'v>(&'v self, value: Value<'v>, field: &str) -> Target<'v> {
        if let Some(name) = value.as_str() {
            return Target::Collection(self.db, name);
        }
        let part = |name: &str| value.as_doc().and_then(|doc| doc.get(name)?.as_str());
        match part(field) {
            Some(name) => Target::Collection(part("db").unwrap_or(self.db), name),
            None => Target::Any,
        }
    }

    fn may_read_others(&self, own: Target<'_>, name: &str, spec: Value<'_>) -> bool {
        let Some(doc) = spec.as_doc() else {
            return name != "$unionWith" || self.rights.may(self.named(spec, "coll"), &[Action::Find]);
        };
        if name == "$facet" {
            let mut pipelines = doc.iter().filter_map(|facet| facet.value().as_array());
            return pipelines.all(|stages| self.may_run(own, stages, false));
        }
        if let Some(pipelines) = inputs(name, doc) {
            let mut pipelines = pipelines.iter().filter_map(|input| input.value().as_array());
            return pipelines.all(|stages| self.may_run(own, stages, true));
        }
        let other = if name == "$unionWith" { spec } else { doc.get_or_missing("from") };
        let stages = doc.get("pipeline").and_then(|stages| stages.as_array()).unwrap_or(RawDoc::EMPTY);
        if other.is_missing() || (name == "$unionWith" && doc.get("coll").is_none()) {
            // Without a collection the documents come from the first stage.
            return self.may_run(Target::Database(self.db), stages, true);
        }
        self.may_run(self.named(other, "coll"), stages, true)
    }
}

/// The pipelines of a fusion, which all run on the collection itself.
fn inputs<'d>(name: &str, spec: RawDoc<'d>) -> Option<RawDoc<'d>> {
    let fuses = matches!(name, "$rankFusion" | "$scoreFusion");
    let inputs = || spec.get("input")?.as_doc()?.get("pipelines")?.as_doc();
    fuses.then(|| inputs().unwrap_or(RawDoc::EMPTY))
}

fn shows_others(spec: Value<'_>, own: Option<&UserName>) -> bool {
    let Some(spec) = spec.as_doc() else { return false };
    let is_own = |user: Value<'_>| own.is_some() && user.as_doc().and_then(UserName::read).as_ref() == own;
    let names_others = match spec.get("users") {
        Some(Value::Array(users)) => users.is_empty() || !users.values().all(is_own),
        other => other.is_some(),
    };
    names_others || spec.get("allUsers").is_some_and(|all| all.truthy())
}
