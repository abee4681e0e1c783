//! Transactions over shards that are prepared, as a reader of the log meets them.
//!
//! They take effect at a time that is not below their prepare and not above their commit's entry, so what happened meanwhile is told only
//! when they are decided: then all shards' events of a transaction stand at its one time.

use std::collections::BTreeMap;

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};

/// The transactions in doubt where a reader stands: by the time of the prepare, with session and number where they are known.
#[derive(Default)]
pub struct Doubts(BTreeMap<u64, Option<(DocBuf, i64)>>);

impl Doubts {
    /// Those that were prepared at these times.
    pub fn of(prepared: Vec<Timestamp>) -> Self {
        Doubts(prepared.into_iter().map(|time| (time.0, None)).collect())
    }

    /// When the oldest was prepared: what is told has to be before.
    pub fn oldest(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    /// One was prepared.
    pub fn begun(&mut self, time: u64, key: Option<(DocBuf, i64)>) {
        self.0.insert(time, key);
    }

    /// A commit of what was prepared then.
    pub fn committed(&mut self, prepared: u64) {
        self.0.remove(&prepared);
    }

    /// An abort.
    pub fn aborted(&mut self, entry: RawDoc<'_>) {
        let Some((lsid, number)) = key_of(entry) else { return };
        self.0.retain(|_, key| !key.as_ref().is_some_and(|(one, n)| *n == number && one.as_raw() == lsid));
    }
}

/// Whose transaction an entry is about.
pub fn key_of(entry: RawDoc<'_>) -> Option<(RawDoc<'_>, i64)> {
    Some((entry.get("lsid")?.as_doc()?, entry.get("txnNumber")?.as_exact_i64()?))
}

/// A commit's own time, and that of its prepare.
pub fn commit_times(entry: RawDoc<'_>) -> Option<(u64, u64)> {
    let o = entry.get("o")?.as_doc()?;
    o.element("commitTransaction")?;
    match (o.get("commitTimestamp")?, o.get("prepared")?) {
        (Value::Timestamp(at), Value::Timestamp(prepared)) => Some((at.0, prepared.0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn what_is_told_waits_for_the_oldest_doubt() {
        let mut doubts = Doubts::of(vec![Timestamp(5)]);
        let lsid = doc! { "id": 1 };
        doubts.begun(3, Some((lsid.clone(), 7)));
        doubts.begun(4, None);
        assert_eq!(doubts.oldest(), Some(3));
        doubts.aborted(doc! { "lsid": lsid.as_raw(), "txnNumber": 8i64 }.as_raw());
        assert_eq!(doubts.oldest(), Some(3));
        doubts.aborted(doc! { "lsid": lsid.as_raw(), "txnNumber": 7i64 }.as_raw());
        assert_eq!(doubts.oldest(), Some(4));
        doubts.committed(4);
        doubts.committed(5);
        assert_eq!(doubts.oldest(), None);
    }
}
