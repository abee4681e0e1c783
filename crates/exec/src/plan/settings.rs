//! Settings that an administrator has made for queries of a shape (`setQuerySettings`), as far as planning and explain are concerned.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_storage::Collection;

use super::query::Hint;
use super::{Query, choose, filters};

/// The settings of one shape.
#[derive(Debug, Default)]
pub struct Settings {
    shown: DocBuf,
    /// Namespaces, and which of their indexes may be used.
    hints: Vec<(String, DocBuf)>,
    rejects: bool,
}

impl Settings {
    /// Reads settings that were checked: `{indexHints, queryFramework, reject, comment}`.
    pub fn read(settings: RawDoc<'_>) -> Settings {
        let part = |hint: RawDoc<'_>| {
            let (namespace, allowed) = (hint.get("ns")?.as_doc()?, hint.get("allowedIndexes")?.as_array()?);
            let (db, coll) = (namespace.get("db")?.as_str()?, namespace.get("coll")?.as_str()?);
            Some((
                format!("{db}.{coll}"),
                DocBuf::build(|out| _ = out.append("indexes", Value::Array(allowed))),
            ))
        };
        let hints = match settings.get("indexHints") {
            Some(Value::Document(one)) => part(one).into_iter().collect(),
            Some(Value::Array(list)) => list.values().filter_map(|one| part(one.as_doc()?)).collect(),
            _ => Vec::new(),
        };
        let rejects = settings.get("reject").is_some_and(|reject| reject.truthy());
        Settings { shown: settings.into(), hints, rejects }
    }

    /// The settings as they are shown.
    pub fn shown(&self) -> RawDoc<'_> {
        self.shown.as_raw()
    }

    /// Whether queries of the shape are refused.
    pub fn rejects(&self) -> bool {
        self.rejects
    }

    /// The query and the collection as these settings have the planner see them; `None` if they say nothing of the collection. A lookup
    /// by `_id` alone is never planned.
    pub fn narrowed(&self, query: &Query, collection: &Collection) -> Option<(Query, Arc<Collection>)> {
        let (_, allowed) = self.hints.iter().find(|(namespace, _)| *namespace == collection.namespace)?;
        if choose::id_equality(query.matcher().root()).is_some() {
            return None;
        }
        let (mut query, narrowed) = filters::narrowed(query, collection, allowed);
        if let Some(natural) = only_natural(allowed.as_raw()) {
            query.hint = natural;
        }
        Some((query, narrowed))
    }
}

/// The hint for a collection scan, where nothing but that is allowed.
fn only_natural(allowed: RawDoc<'_>) -> Option<Hint> {
    let mut list = allowed.get("indexes")?.as_array()?.values();
    let (only, None) = (list.next()?, list.next()) else { return None };
    only.as_doc()?.get("$natural")?;
    Hint::parse(only).ok()
}
