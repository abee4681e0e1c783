//! A cursor of a router: it is open on a shard.

use sheaf_front::cursors::Cursor;

use crate::target::Target;

/// A cursor that is open on one member of a shard.
pub struct RouterCursor {
    /// The shard.
    pub target: Target,
    /// The member.
    pub host: String,
    /// The cursor's id there.
    pub id: i64,
    /// Whether `getMore` waits for documents at its end.
    pub awaits: bool,
}

impl Cursor for RouterCursor {
    fn is_await_data(&self) -> bool {
        self.awaits
    }
}
