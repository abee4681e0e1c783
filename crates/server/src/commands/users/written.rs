//! Writing the documents of users and roles.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::{CreateCollection, View};

use crate::accounts::{ROLES, Stored, USERS};
use crate::commands::crud::writes::with_own_writer;
use crate::op::Operation;

const VERSION: &str = "admin.system.version";

/// MongoDB's present format of users and roles.
const SCHEMA: i32 = 5;

/// What becomes of one document.
pub enum Change {
    /// It is there like this from now on.
    Put(DocBuf),
    /// It is gone.
    Remove(String),
}

/// One change of a collection of users or roles.
pub type Changes = Vec<(&'static str, Change)>;

/// Looks at users and roles as they are and changes them; nobody else does in between, but who writes to the collections
/// themselves.
pub fn change(op: &Operation<'_>, plan: impl FnOnce(&Stored<'_>) -> Result<Changes>) -> Result<()> {
    let _turn = op.node().accounts.turn.lock();
    // Whoever came as the first one may not be the first any more.
    if op.is_of_the_first_user() && !op.node().accounts.is_empty(op.engine())? {
        bail!(Code::UNAUTHORIZED, "Command {} requires authentication", op.command.name);
    }
    let view: View = op.engine().view()?;
    let changes = plan(&Stored(&view))?;
    if changes.iter().any(|(_, change)| matches!(change, Change::Put(_))) {
        prepare(op)?;
    }
    with_own_writer(op, true, |w| {
        for (namespace, change) in &changes {
            let Some(collection) = w.collection(namespace)? else { continue };
            let id = match change {
                Change::Put(document) => document.as_raw().get_or_missing("_id"),
                Change::Remove(id) => Value::String(id),
            };
            let key = collection.record_key(id)?;
            match (w.read_for_update(&collection, &key)?, change) {
                (Some(old), Change::Put(new)) => {
                    w.update(&collection, &key, RawDoc::new(&old), new.as_raw(), None)?;
                }
                (None, Change::Put(new)) => w.insert(&collection, new.as_raw())?,
                (Some(old), Change::Remove(_)) => w.delete(&collection, &key, RawDoc::new(&old))?,
                (None, Change::Remove(_)) => {}
            }
        }
        Ok(())
    })
}

/// The collections with their indexes, and the document by which tools know the format.
fn prepare(op: &Operation<'_>) -> Result<()> {
    let (engine, stop) = (op.engine(), op.interrupter());
    let interrupt = || stop.check();
    for (namespace, field) in [(USERS, "user"), (ROLES, "role")] {
        if engine.catalog().collection(namespace).is_none() {
            let made = engine.create_collection(namespace, &CreateCollection::default(), &interrupt);
            made.map(|_| ()).or_else(unless_there)?;
        }
        let name = format!("{field}_1_db_1");
        if engine.catalog().collection(namespace).is_some_and(|found| found.index(&name).is_none()) {
            let key = DocBuf::new().with(field, 1).with("db", 1);
            let spec = doc! { "v": 2, "key": key.as_raw(), "name": &name, "unique": true };
            engine.create_indexes(namespace, &[spec.as_raw()], &interrupt)?;
        }
    }
    with_own_writer(op, true, |w| {
        let collection = crate::commands::crud::writes::collection_for_write(op, w, VERSION)?;
        let key = collection.record_key(Value::String("authSchema"))?;
        if w.read_for_update(&collection, &key)?.is_none() {
            let version = doc! { "_id": "authSchema", "currentVersion": SCHEMA };
            w.insert(&collection, version.as_raw())?;
        }
        Ok(())
    })
}

fn unless_there(error: Error) -> Result<()> {
    if error.code() == Code::NAMESPACE_EXISTS { Ok(()) } else { Err(error) }
}

/// The document with other fields in place of its own; `None` takes one away.
pub fn with_fields(old: RawDoc<'_>, fields: &[(&str, Option<Value<'_>>)]) -> DocBuf {
    DocBuf::build(|doc| {
        for field in old {
            match fields.iter().find(|(name, _)| *name == field.key()) {
                None => {
                    doc.append_element(field);
                }
                Some((name, Some(value))) => {
                    doc.append(name, *value);
                }
                Some((_, None)) => {}
            }
        }
        for (name, value) in fields {
            if let Some(value) = value.filter(|_| old.get(name).is_none()) {
                doc.append(name, value);
            }
        }
    })
}
