//! `system.views`: the collection in which a database's views are described. The catalog is what counts; the
//! documents follow it, so that clients can read them where MongoDB has them.

use parking_lot::MutexGuard;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result};
use sheaf_storage::{Collection, CreateCollection, Engine, Interrupt, OpTime, Write};

use super::names;
use crate::node::Node;

/// The collection's name.
pub const NAME: &str = "system.views";

/// Waits for the node's turn to change views.
pub fn turn<'n>(node: &'n Node, interrupt: Interrupt<'_>) -> Result<MutexGuard<'n, ()>> {
    loop {
        interrupt()?;
        if let Some(turn) = node.views_turn.try_lock_for(std::time::Duration::from_millis(20)) {
            return Ok(turn);
        }
    }
}

fn home(db: &str) -> String {
    format!("{db}.{NAME}")
}

/// Makes the collection if it is not there. Comes before a view is made, as a view without it would have no
/// place for its description.
pub fn prepare(engine: &Engine, db: &str, interrupt: Interrupt<'_>) -> Result<()> {
    let namespace = home(db);
    if engine.catalog().collection(&namespace).is_some() {
        return Ok(());
    }
    match engine.create_collection(&namespace, &CreateCollection::default(), interrupt) {
        Err(error) if error.code() != Code::NAMESPACE_EXISTS => Err(error),
        _ => Ok(()),
    }
}

/// `{_id: "db.view", viewOn: "...", pipeline: [...]}`
fn describe(view: &Collection) -> DocBuf {
    let mut description = DocBuf::new();
    description.append("_id", view.namespace.as_str());
    let options = view.options.as_raw();
    for name in ["viewOn", "pipeline", "collation"] {
        description.append(name, options.get_or_missing(name));
    }
    description
}

/// Writes a view's description as the catalog has it now, or removes it with the view.
pub fn follow(engine: &Engine, namespace: &str, interrupt: Interrupt<'_>) -> Result<OpTime> {
    let catalog = engine.catalog();
    let description = catalog.collection(namespace).filter(|c| c.is_view()).map(|view| describe(view));
    let mut unit = engine.write(interrupt);
    if let Some(collection) = unit.collection(&home(names::split(namespace).0))? {
        let key = collection.record_key(Value::String(namespace))?;
        let old = unit.read_for_update(&collection, &key)?;
        match (old.as_deref().map(RawDoc::new), description) {
            (Some(old), Some(new)) if old != new.as_raw() => {
                unit.update(&collection, &key, old, new.as_raw(), None)?;
            }
            (Some(old), None) => unit.delete(&collection, &key, old)?,
            (None, Some(new)) => unit.insert(&collection, new.as_raw())?,
            _ => {}
        }
    }
    unit.commit()
}

/// Brings all descriptions up to date: a crash may have come between a view and its document.
pub fn reconcile(engine: &Engine, interrupt: Interrupt<'_>) -> Result<()> {
    let catalog = engine.catalog();
    let views: Vec<&str> =
        catalog.all().filter(|c| c.is_view()).map(|view| view.namespace.as_str()).collect();
    for namespace in &views {
        prepare(engine, names::split(namespace).0, interrupt)?;
    }
    let homes: Vec<&str> = catalog.all().filter(|c| c.name() == NAME).map(|c| c.namespace.as_str()).collect();
    let view = engine.view()?;
    let mut stale = Vec::new();
    for home in homes {
        let Some(collection) = view.collection(home) else { continue };
        let mut cursor =
            view.records(collection, sheaf_storage::Range::ALL, sheaf_storage::Direction::Forward)?;
        while cursor.next()? {
            let name = cursor.doc().get("_id").and_then(|id| id.as_str()).unwrap_or_default();
            if !views.contains(&name) {
                stale.push(name.to_owned());
            }
        }
    }
    for namespace in views.into_iter().map(str::to_owned).chain(stale) {
        follow(engine, &namespace, interrupt)?;
    }
    Ok(())
}

/// Drops the views of a database whose descriptions are dropped.
pub fn drop_all(engine: &Engine, db: &str, interrupt: Interrupt<'_>) -> Result<()> {
    let catalog = engine.catalog();
    for view in catalog.collections(db).filter(|c| c.is_view()) {
        match engine.drop_collection(&view.namespace, interrupt) {
            Err(error) if error.code() != Code::NAMESPACE_NOT_FOUND => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
