//! Functions and values that a database keeps for its clients' JavaScript, in `system.js`.

use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_expr::StoredFunctions;
use sheaf_storage::{Direction, Engine, Range};
use smallvec::SmallVec;

/// A database's own.
struct OfDatabase {
    engine: Engine,
    /// In place: every command has this at hand, and hardly any asks.
    db: SmallVec<[u8; 64]>,
}

/// Those in a database's `system.js`.
pub fn of(engine: Engine, db: &str) -> Arc<dyn StoredFunctions> {
    Arc::new(OfDatabase { engine, db: SmallVec::from_slice(db.as_bytes()) })
}

impl StoredFunctions for OfDatabase {
    fn load(&self) -> Result<DocBuf> {
        let view = self.engine.view()?;
        let db = std::str::from_utf8(&self.db).expect("it was a name");
        let Some(collection) = view.collection(&format!("{db}.system.js")) else { return Ok(DocBuf::new()) };
        let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
        let mut stored = DocBuf::new();
        while cursor.next()? {
            let document = cursor.doc();
            let name = document.get("_id").and_then(|id| id.as_str()).filter(|name| !name.contains('\0'));
            if let (Some(name), Some(value)) = (name, document.get("value")) {
                sheaf_meter::grow(document.as_bytes().len())?;
                stored.append(name, value);
            }
        }
        Ok(stored)
    }
}
