//! Functions and values that a database keeps for its clients' JavaScript, in `system.js`.

use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_expr::StoredFunctions;
use sheaf_storage::{Direction, Engine, Range};

/// A database's own.
struct OfDatabase {
    engine: Engine,
    namespace: String,
}

/// Those in a database's `system.js`.
pub fn of(engine: Engine, namespace: String) -> Arc<dyn StoredFunctions> {
    Arc::new(OfDatabase { engine, namespace })
}

impl StoredFunctions for OfDatabase {
    fn load(&self) -> Result<DocBuf> {
        let view = self.engine.view()?;
        let Some(collection) = view.collection(&self.namespace) else { return Ok(DocBuf::new()) };
        let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
        let mut stored = DocBuf::new();
        while cursor.next()? {
            let document = cursor.doc();
            if let (Some(name), Some(value)) =
                (document.get("_id").and_then(|id| id.as_str()), document.get("value"))
            {
                stored.append(name, value);
            }
        }
        Ok(stored)
    }
}
