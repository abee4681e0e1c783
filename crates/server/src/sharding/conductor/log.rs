//! `config.changelog`: what has happened in the cluster, for people.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::Result;

use super::Conductor;
use crate::sharding::rows::Change;

impl Conductor {
    /// Notes, within a change, what has happened.
    pub(super) fn note(
        &self,
        change: &mut Change,
        what: &str,
        namespace: &str,
        details: RawDoc<'_>,
    ) -> Result<()> {
        change.put("config.changelog", self.changelog_entry(what, namespace, details).as_raw())
    }

    fn changelog_entry(&self, what: &str, namespace: &str, details: RawDoc<'_>) -> DocBuf {
        let now = self.front.clock.now_millis();
        let server = self.front.host_and_port();
        let id = format!("{server}-{now}-{}", sheaf_front::front::new_object_id());
        doc! {
            "_id": &id, "server": &server, "shard": "config", "clientAddr": "", "time": Value::DateTime(now), "what": what,
            "ns": namespace, "details": details
        }
    }
}
