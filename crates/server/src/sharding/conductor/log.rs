//! `config.changelog`: what has happened in the cluster, for people; and that this and the balancer's log do not grow for ever.

use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Value, doc};
use sheaf_errors::Result;
use sheaf_storage::Interrupt;

use super::Conductor;
use super::balancer::ACTION_LOG;
use crate::sharding::rows::{self, Change};

const CHANGE_LOG: &str = "config.changelog";

/// Of so many bytes the logs are, where MongoDB has capped collections of these sizes.
const SIZES: [(&str, u64); 2] = [(CHANGE_LOG, 200 << 20), (ACTION_LOG, 20 << 20)];

/// So many entries are removed together.
const TOGETHER: usize = 1000;

impl Conductor {
    /// Removes the oldest entries of logs that are larger than they may be, and a tenth more.
    ///
    /// Errors: those of reading and writing.
    pub(super) fn cut_logs(&self, go_on: Interrupt<'_>) -> Result<()> {
        for (namespace, size) in SIZES {
            let catalog = self.engine.catalog();
            let bytes = catalog.collection(namespace).map_or(0, |collection| collection.data_bytes());
            if bytes <= size {
                continue;
            }
            let mut entries = Vec::new();
            rows::find(&self.engine.view()?, namespace, |entry| {
                let time = match entry.get("time") {
                    Some(Value::DateTime(time)) => time,
                    _ => i64::MIN,
                };
                entries.push((time, entry.len() as u64, OwnedValue::from(entry.get_or_missing("_id"))));
                false
            })?;
            entries.sort_by_key(|(time, ..)| *time);
            let mut left = bytes - size + size / 10;
            let oldest = entries.into_iter().take_while(|(_, length, _)| {
                let goes = left > 0;
                left = left.saturating_sub(*length);
                goes
            });
            let oldest: Vec<OwnedValue> = oldest.map(|(.., id)| id).collect();
            for ids in oldest.chunks(TOGETHER) {
                self.change(go_on, |change| {
                    ids.iter().try_for_each(|id| change.remove(namespace, id.as_value()).map(|_| ()))
                })?;
            }
        }
        Ok(())
    }

    /// Notes, within a change, what has happened.
    pub(super) fn note(
        &self,
        change: &mut Change,
        what: &str,
        namespace: &str,
        details: RawDoc<'_>,
    ) -> Result<()> {
        change.put(CHANGE_LOG, self.changelog_entry(what, namespace, details).as_raw())
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
