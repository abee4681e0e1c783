//! What a member tells clients of itself and its set: `hello`, `replSetGetStatus`, `replSetGetConfig`.

use sheaf_bson::{ClusterTime, DocWriter, Sink, Timestamp};

use crate::types::LogPosition;

mod hello;
mod report;
#[cfg(test)]
mod tests;

pub use hello::{Hello, HelloSet, election_id};
pub use report::StatusContext;

/// A position as replies show it: `{ts, t}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTimeAndTime {
    /// The position.
    pub at: LogPosition,
    /// Cluster time of the entry there.
    pub time: u64,
}

impl OpTimeAndTime {
    /// Appends `{ts, t}` under `key`.
    pub fn write<S: Sink>(&self, doc: &mut DocWriter<'_, S>, key: &str) {
        let mut at = doc.document(key);
        at.append("ts", Timestamp(self.time));
        // Before the first election there is no term.
        at.append("t", if self.at.index == 0 { -1 } else { self.at.term as i64 });
    }

    /// The wall clock of the position, as far as the cluster time tells it: milliseconds since 1970.
    pub fn wall_millis(&self) -> i64 {
        (ClusterTime::from_bits(self.time).micros() / 1000) as i64
    }
}
