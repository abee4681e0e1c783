//! The configuration as a document of `local.system.replset`, where tools look for it.

use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result};
use sheaf_storage::{CreateCollection, Write};

use crate::node::Node;

const NAMESPACE: &str = "local.system.replset";

/// While writes are locked it is tried again after this time.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Puts the configuration that is installed in place of the one that the collection has.
fn publish_config(node: &Node) -> Result<()> {
    let Some(replica) = node.replica() else { return Ok(()) };
    let Some(config) = replica.with(|core| core.config().cloned()) else { return Ok(()) };
    let document = config.to_document();
    let id = DocBuf::new().with("_id", config.set_name.as_str());
    let unless_locked = || node.unless_locked();
    let mut unit = node.engine().write(&unless_locked);
    if unit.collection(NAMESPACE)?.is_none() {
        unit.create_collection(NAMESPACE, CreateCollection::default())?;
    }
    let Some(collection) = unit.collection(NAMESPACE)? else { return Ok(()) };
    let key = collection.record_key(id.as_raw().get_or_missing("_id"))?;
    match unit.read_for_update(&collection, &key)? {
        Some(old) if old == document.as_bytes() => return Ok(()),
        Some(old) => unit.update(&collection, &key, RawDoc::new(&old), document.as_raw(), None)?,
        None => unit.insert(&collection, document.as_raw())?,
    }
    unit.commit()?;
    Ok(())
}

/// Keeps the document up to date until shutdown.
pub async fn keep_config_published(node: std::sync::Arc<Node>) {
    let Some(replica) = node.replica() else { return };
    let mut topology = replica.topology();
    loop {
        topology.borrow_and_update();
        let published = tokio::task::block_in_place(|| publish_config(&node));
        let locked = published.as_ref().is_err_and(|error| error.code() == Code::LOCK_TIMEOUT);
        if let Err(error) = published.or_else(|error| if locked { Ok(()) } else { Err(error) }) {
            let attributes = sheaf_bson::doc! { "error": Value::String(error.message()) };
            let text = "Cannot write local.system.replset";
            crate::log::warning(
                "REPL",
                crate::log::ids::CONFIG_NOT_PUBLISHED,
                "ReplCoord",
                text,
                Some(attributes),
            );
        }
        tokio::select! {
            changed = topology.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOCKED_PAUSE), if locked => {}
            () = node.until_shutdown() => return,
        }
    }
}
