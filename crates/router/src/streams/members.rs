//! Who is a shard, and when: what `config.shards` tells of it.

use sheaf_bson::{RawDoc, Value};

/// Something was done to a shard's document.
pub struct Change {
    /// The shard's name.
    pub shard: String,
    /// Where its set is, `name/host:port,...`, if that is told: when it is added.
    pub host: Option<String>,
    /// When it was done.
    pub time: u64,
    /// What it was.
    pub kind: Kind,
}

/// What was done to a shard's document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is a shard, all that happens on it behind this time is the cluster's.
    Added(u64),
    /// It is none any more.
    Removed,
    /// Something else, such as the beginning of its draining, without which no shard is removed.
    Changed,
}

impl Change {
    /// What an event of `config.shards` says.
    pub fn of(event: RawDoc<'_>, time: u64) -> Option<Change> {
        let part = |name: &str| event.get(name).and_then(|part| part.as_doc());
        let shard = part("documentKey")?.get("_id")?.as_str()?.to_owned();
        let text = |value: Value<'_>| value.as_str().map(str::to_owned);
        let host = part("fullDocument").and_then(|shard| text(shard.get("host")?));
        let kind = match event.get("operationType")?.as_str()? {
            "insert" => Kind::Added(part("fullDocument").and_then(added).unwrap_or(time)),
            "delete" => Kind::Removed,
            _ => Kind::Changed,
        };
        Some(Change { shard, host, time, kind })
    }
}

/// Behind which time all that happens on a shard with this document is the cluster's.
pub fn added(shard: RawDoc<'_>) -> Option<u64> {
    match shard.get("topologyTime") {
        Some(Value::Timestamp(time)) => Some(time.0),
        _ => None,
    }
}

/// Whether a shard with this document is being drained.
pub fn is_draining(shard: RawDoc<'_>) -> bool {
    shard.get("draining").is_some_and(|draining| draining.truthy())
}

/// A time for which a shard was one.
#[derive(Debug, PartialEq, Eq)]
pub struct Earlier<'c> {
    /// Where its set was, if that is known.
    pub host: Option<&'c str>,
    /// Behind what, if it is not from the beginning on.
    pub behind: Option<u64>,
    /// Up to when.
    pub until: u64,
}

/// The times for which a shard was one before it was added last.
pub fn earlier<'c>(changes: &'c [Change], shard: &str, last: u64) -> Vec<Earlier<'c>> {
    let mut all = Vec::new();
    let (mut behind, mut host) = (None, None);
    for change in changes.iter().filter(|change| change.shard == shard && change.time <= last) {
        match change.kind {
            Kind::Added(time) => (behind, host) = (Some(time), change.host.as_deref()),
            Kind::Removed => all.push(Earlier { host, behind, until: change.time }),
            Kind::Changed => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{Timestamp, doc};

    use super::*;

    fn change(shard: &str, time: u64, kind: Kind) -> Change {
        let host = matches!(kind, Kind::Added(_)).then(|| format!("{shard}-{time}/a:1"));
        Change { shard: shard.to_owned(), host, time, kind }
    }

    fn part(host: Option<&'static str>, behind: Option<u64>, until: u64) -> Earlier<'static> {
        Earlier { host, behind, until }
    }

    #[test]
    fn a_shard_has_been_one_before() {
        let changes = [
            change("s1", 10, Kind::Removed),
            change("s2", 11, Kind::Removed),
            change("s1", 20, Kind::Added(18)),
            change("s1", 25, Kind::Changed),
            change("s1", 30, Kind::Removed),
            change("s1", 40, Kind::Added(39)),
        ];
        let second = || part(Some("s1-20/a:1"), Some(18), 30);
        assert_eq!(earlier(&changes, "s1", 39), [part(None, None, 10), second()]);
        // The first of them was before the stream began.
        assert_eq!(earlier(&changes[2..], "s1", 39), [second()]);
        assert_eq!(earlier(&changes, "s3", 39), []);
        // It was removed again since.
        assert_eq!(earlier(&changes, "s1", 18), [part(None, None, 10)]);
    }

    #[test]
    fn events_of_shards_documents_are_read() {
        let shard = doc! { "_id": "s1", "host": "s1/a:1", "topologyTime": Timestamp(7) };
        let event = |kind: &str| {
            doc! { "operationType": kind, "documentKey": { "_id": "s1" }, "fullDocument": shard.as_raw() }
        };
        let kind = |name: &str| Change::of(event(name).as_raw(), 9).map(|change| (change.time, change.kind));
        assert_eq!(kind("insert"), Some((9, Kind::Added(7))));
        let host = Change::of(event("insert").as_raw(), 9).and_then(|change| change.host);
        assert_eq!(host.as_deref(), Some("s1/a:1"));
        assert_eq!(kind("delete"), Some((9, Kind::Removed)));
        assert_eq!(kind("replace"), Some((9, Kind::Changed)));
        assert!(Change::of(doc! { "operationType": "drop" }.as_raw(), 9).is_none());
        assert!(is_draining(doc! { "_id": "s1", "draining": true }.as_raw()));
    }
}
