//! The feature compatibility version, where MongoDB keeps it.

use sheaf_bson::Value;
use sheaf_storage::Engine;

/// The collection of documents that say which versions made the data.
pub const NAMESPACE: &str = "admin.system.version";

/// The document that has the feature compatibility version.
pub const DOCUMENT: &str = "featureCompatibilityVersion";

/// The version that the data has.
pub fn of(engine: &Engine) -> Option<String> {
    let view = engine.view().ok()?;
    let collection = view.collection(NAMESPACE)?;
    let key = collection.record_key(Value::String(DOCUMENT)).ok()?;
    let found = view.get(collection, &key).ok()??;
    found.as_raw().get("version").and_then(|version| version.as_str()).map(str::to_owned)
}
