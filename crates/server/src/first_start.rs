//! What a data folder holds before the first client writes to it.

use sheaf_bson::doc;
use sheaf_errors::{Code, Result};
use sheaf_storage::{CreateCollection, Engine, Write};

use crate::version::FEATURE_VERSION;

const NAMESPACE: &str = "admin.system.version";

/// Writes the document that tools look for to know which version made the data, as mongod does. Because of
/// it the database `admin` is always listed.
pub fn prepare(engine: &Engine) -> Result<()> {
    if engine.catalog().collection(NAMESPACE).is_some() {
        return Ok(());
    }
    let go_on = || Ok(());
    match engine.create_collection(NAMESPACE, &CreateCollection::default(), &go_on) {
        Err(error) if error.code() != Code::NAMESPACE_EXISTS => return Err(error),
        _ => {}
    }
    let mut unit = engine.write(&go_on);
    if let Some(collection) = unit.collection(NAMESPACE)? {
        let version = doc! { "_id": "featureCompatibilityVersion", "version": FEATURE_VERSION };
        unit.insert(&collection, version.as_raw())?;
    }
    unit.commit()?;
    Ok(())
}
