//! Large documents that stay where the log has them: what commits and background work have to do with [`crate::db::values`].
//!
//! - [`collect`]: files of which little is wanted.

mod collect;

use sheaf_log::{Log, Place};

use crate::commit::prepared::Prepared;
use crate::core::Core;
use crate::db::values::Spot;

impl Core {
    /// Has what a group leaves in the log refer to the place that it has there now. Gives the bytes of these documents.
    pub fn place_values(&self, log: &Log, group: &mut [Prepared], Place { segment, offset }: Place) -> u64 {
        let mut left = 0;
        let end = offset + group.iter().map(|unit| unit.payload.len() as u64).sum::<u64>();
        let mut spot = Spot { segment, offset, end };
        for unit in group.iter_mut() {
            if let Some(large) = unit.large.as_mut().filter(|large| large.left > 0) {
                left += std::mem::take(&mut large.left);
                let db = &self.base.db;
                unit.batch = db.values().place(&db.families(), log, (&unit.batch, &unit.payload), spot);
            }
            spot.offset += unit.payload.len() as u64;
        }
        left
    }
}
